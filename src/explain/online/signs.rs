//! Signs that an answer no longer holds.

use super::{Knowledge, boards};
use crate::{
    explain::{report::Explanation, snapshot::Snapshot, subject::Subject},
    kube_api::{ids::ResourceVersion, kinds::ObjectRef},
    state::{Objects, Stored},
    telemetry::{history::Change, transition::Named},
};

/// Objects by which a change is seen.
const MOST_SIGNS: usize = 512;

/// By what it is seen, without making it anew, that an answer no longer holds: revisions of what it was made from, and the
/// last changes of state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    revisions: Vec<(ObjectRef, Option<ResourceVersion>)>,
    changes: Vec<(Named, Option<Change>)>,
}

impl Signs {
    /// Whether all is as it was.
    pub fn hold(&self, knowledge: &Knowledge) -> bool {
        self.revisions.iter().all(|(object, known)| revision(&knowledge.objects, object) == *known)
            && self
                .changes
                .iter()
                .all(|(object, known)| knowledge.history.of(object).last() == known.as_ref())
    }
}

/// Those of an answer.
pub(super) fn signs(explanation: &Explanation, snapshot: &Snapshot, knowledge: &Knowledge) -> Signs {
    fn keys<T: Stored>(snapshot: &Snapshot) -> impl Iterator<Item = ObjectRef> + use<T> {
        T::table(&snapshot.objects).keys().into_iter().map(T::object_ref)
    }
    use crate::kube_api::kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};
    let steps = explanation.steps.iter().map(|step| &step.object);
    let subjects: Vec<Subject> =
        std::iter::once(&explanation.subject).chain(steps).filter_map(boards::subject_of).collect();
    let mut objects: Vec<ObjectRef> = subjects
        .iter()
        .map(Subject::object)
        .chain(keys::<PersistentVolumeClaim>(snapshot))
        .chain(keys::<VolumeAttachment>(snapshot))
        .chain(keys::<Node>(snapshot))
        .chain(keys::<Pod>(snapshot))
        .chain(keys::<PersistentVolume>(snapshot))
        .take(MOST_SIGNS)
        .collect();
    objects.sort();
    objects.dedup();
    let revision = |object: ObjectRef| {
        let known = revision(&snapshot.objects, &object);
        (object, known)
    };
    let change = |subject: &Subject| {
        let named = boards::named(subject);
        let last = knowledge.history.of(&named).pop();
        (named, last)
    };
    Signs {
        revisions: objects.into_iter().map(revision).collect(),
        changes: subjects.iter().map(change).collect(),
    }
}

fn revision(objects: &Objects, object: &ObjectRef) -> Option<ResourceVersion> {
    fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<ResourceVersion> {
        objects.get::<T>(key).map(|object| object.metadata().resource_version)
    }
    by_kind!(object, of(objects))
}
