//! Which of the objects of an answer one may see: which questions are asked about it.
//!
//! In: objects, and the rights of one who asks. Out: those that are hidden. An object is asked about by its name; where an answer
//! has many of a kind, the question is whether all of the kind may be seen, and if not, none of these is shown. So an answer
//! costs a bounded number of questions, and what was not asked about is hidden.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};

use crate::{
    http::{Denial, Resource, Rights},
    kube_api::kinds::{
        CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment,
    },
};

/// Objects of a kind in a namespace up to which each is asked about by its name.
const FEW: usize = 8;
/// Questions for one answer.
pub(super) const MOST_QUESTIONS: usize = 48;
/// Questions under way at once: as many as are sent at once.
const AT_ONCE: usize = 4;

/// An object as rights are asked about.
pub(super) fn resource(object: &ObjectRef) -> Resource {
    fn of<T: Narrow>(namespace: &str, name: &str) -> Resource {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Resource { group: T::GROUP, resource: T::PLURAL, namespace, name }
    }
    match object {
        ObjectRef::Node(name) => of::<Node>("", name.as_str()),
        ObjectRef::Pod(key) => of::<Pod>(key.namespace(), key.name()),
        ObjectRef::Volume(name) => of::<PersistentVolume>("", name.as_str()),
        ObjectRef::Claim(key) => of::<PersistentVolumeClaim>(key.namespace(), key.name()),
        ObjectRef::Attachment(name) => of::<VolumeAttachment>("", name.as_str()),
        ObjectRef::Class(name) => of::<StorageClass>("", name.as_str()),
        ObjectRef::Driver(name) => of::<CsiDriver>("", name.as_str()),
    }
}

/// Questions, each with the objects that its answer is about. Pure.
fn questions(
    objects: impl IntoIterator<Item = ObjectRef>,
    few: usize,
) -> BTreeMap<Resource, BTreeSet<ObjectRef>> {
    let mut kinds: BTreeMap<Resource, BTreeSet<ObjectRef>> = BTreeMap::new();
    for object in objects {
        kinds.entry(Resource { name: String::new(), ..resource(&object) }).or_default().insert(object);
    }
    let mut questions = BTreeMap::new();
    for (kind, objects) in kinds {
        if objects.len() > few {
            questions.insert(kind, objects);
        } else {
            questions.extend(objects.into_iter().map(|object| (resource(&object), BTreeSet::from([object]))));
        }
    }
    questions
}

/// Which of these objects one may not see.
///
/// # Errors
/// It cannot be told now.
pub(super) async fn hidden(
    objects: impl IntoIterator<Item = ObjectRef>,
    rights: &Rights,
) -> Result<BTreeSet<ObjectRef>, Denial> {
    ask(questions(objects, FEW), rights).await
}

/// What one may see of many objects: only whole kinds are asked about, and kinds in a namespace.
#[derive(Debug, Default)]
pub(super) struct Sight(BTreeMap<Resource, bool>);

impl Sight {
    /// Asks about these kinds, and, where not all may be seen, about the namespaces of these objects.
    ///
    /// # Errors
    /// It cannot be told now.
    pub async fn of(objects: impl IntoIterator<Item = ObjectRef>, rights: &Rights) -> Result<Self, Denial> {
        let mut sight = Self::default();
        let kinds = [
            (Pod::GROUP, Pod::PLURAL),
            (PersistentVolumeClaim::GROUP, PersistentVolumeClaim::PLURAL),
            (PersistentVolume::GROUP, PersistentVolume::PLURAL),
            (VolumeAttachment::GROUP, VolumeAttachment::PLURAL),
            (Node::GROUP, Node::PLURAL),
        ];
        for (group, resource) in kinds {
            let kind = Resource { group, resource, namespace: String::new(), name: String::new() };
            let may = rights.may_see(&kind).await?;
            sight.0.insert(kind, may);
        }
        let open = objects.into_iter().filter(|object| !sight.sees(object));
        let mut places: Vec<_> = questions(open, 0).into_iter().collect();
        places.retain(|(place, _)| !place.namespace.is_empty());
        places.sort_by_key(|(_, objects)| std::cmp::Reverse(objects.len()));
        places.truncate(MOST_QUESTIONS);
        let ask =
            |place: Resource| async move { rights.may_see(&place).await.map(|may| (place.clone(), may)) };
        let places = places.into_iter().map(|(place, _)| place);
        let answers: Vec<_> = stream::iter(places).map(ask).buffered(AT_ONCE).collect().await;
        for answer in answers {
            let (place, may) = answer?;
            sight.0.insert(place, may);
        }
        Ok(sight)
    }

    /// Whether an object may be seen.
    pub fn sees(&self, object: &ObjectRef) -> bool {
        let place = Resource { name: String::new(), ..resource(object) };
        let kind = Resource { namespace: String::new(), ..place.clone() };
        [kind, place].iter().any(|asked| self.0.get(asked) == Some(&true))
    }
}

async fn ask(
    questions: BTreeMap<Resource, BTreeSet<ObjectRef>>,
    rights: &Rights,
) -> Result<BTreeSet<ObjectRef>, Denial> {
    let mut questions: Vec<_> = questions.into_iter().collect();
    questions.sort_by_key(|(_, objects)| std::cmp::Reverse(objects.len()));
    let unasked = questions.split_off(questions.len().min(MOST_QUESTIONS));
    let mut hidden: BTreeSet<ObjectRef> = unasked.into_iter().flat_map(|(_, objects)| objects).collect();
    let ask = |(resource, objects): (Resource, BTreeSet<ObjectRef>)| async move {
        rights.may_see(&resource).await.map(|may| (may, objects))
    };
    let answers: Vec<_> = stream::iter(questions).map(ask).buffered(AT_ONCE).collect().await;
    for answer in answers {
        let (may, objects) = answer?;
        if !may {
            hidden.extend(objects);
        }
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::ids::ClaimKey;

    #[test]
    fn few_are_asked_about_by_name_and_many_as_a_kind_of_their_namespace() {
        let claim = |number: usize| ObjectRef::Claim(ClaimKey::new("shop", &format!("c{number}")));
        let few = questions((0..FEW).map(claim), FEW);
        assert_eq!(few.len(), FEW);
        assert!(few.keys().all(|question| !question.name.is_empty() && question.namespace == "shop"));
        let many = questions((0..=FEW).map(claim).chain([ObjectRef::Volume("v".into())]), FEW);
        let asked: Vec<_> = many
            .iter()
            .map(|(question, objects)| (question.resource, question.name.as_str(), objects.len()))
            .collect();
        assert_eq!(asked, [("persistentvolumeclaims", "", FEW + 1), ("persistentvolumes", "v", 1)]);
    }
}
