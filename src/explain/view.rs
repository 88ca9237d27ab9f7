//! What an answer is made from: a snapshot, what is assumed, and the dry runs.
//!
//! In: a snapshot. Out: where each claim, volume and volume on a node stands, as the controllers say.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{assumptions::Assumptions, sidecars::Sidecars, snapshot::Snapshot, subject::Subject};
use crate::{
    attach_detach::{
        self,
        desired::volume_name::VolumeId,
        dry_run::{Desired, NodeVolumeOutlook},
    },
    binder::{
        self,
        dry_run::Place,
        tell::reason::{ClaimReason, VolumeReason},
    },
    kube_api::{
        ids::{ClaimKey, NodeName, PodKey, VolumeName},
        kinds::ObjectRef,
    },
    state::{Objects, Stored},
};

/// See the module.
pub(super) struct View<'a> {
    pub snapshot: &'a Snapshot,
    pub sidecars: Sidecars<'a>,
    pub attach_detach: attach_detach::dry_run::Outlook,
    assumptions: &'a Assumptions,
}

impl<'a> View<'a> {
    pub fn new(snapshot: &'a Snapshot, assumptions: &'a Assumptions) -> Self {
        let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
        let options = assumptions.attach_detach;
        let attach_detach =
            attach_detach::dry_run::dry_run(&snapshot.objects, options, &is_absent, snapshot.taken_at);
        Self { snapshot, sidecars: Sidecars::new(snapshot), attach_detach, assumptions }
    }

    pub fn objects(&self) -> &'a Objects {
        &self.snapshot.objects
    }

    pub fn now(&self) -> Timestamp {
        self.snapshot.taken_at
    }

    /// Where a claim stands.
    pub fn claim(&self, key: &ClaimKey) -> Place<ClaimReason> {
        self.ask(std::slice::from_ref(key), &[]).claims.remove(key).unwrap_or_default()
    }

    /// Where a volume stands.
    pub fn volume(&self, name: &VolumeName) -> Place<VolumeReason> {
        self.ask(&[], std::slice::from_ref(name)).volumes.remove(name).unwrap_or_default()
    }

    fn ask(&self, claims: &[ClaimKey], volumes: &[VolumeName]) -> binder::dry_run::Outlook {
        let is_absent = |object: &ObjectRef| self.snapshot.is_absent(object);
        let options = &self.assumptions.binder;
        binder::dry_run::dry_run_of(claims, volumes, &self.snapshot.objects, options, &is_absent)
    }

    /// Where a volume on a node stands.
    pub fn on_node(&self, volume: &VolumeId, node: &NodeName) -> Option<&NodeVolumeOutlook> {
        self.attach_detach.node_volumes.get(&(volume.clone(), node.clone()))
    }

    /// All nodes on which a volume is, may be, or is to be.
    pub fn nodes_of<'b>(
        &'b self,
        volume: &'b VolumeId,
    ) -> impl Iterator<Item = (&'b NodeName, &'b NodeVolumeOutlook)> {
        let node_volumes = self.attach_detach.node_volumes.iter().filter(move |((of, _), _)| of == volume);
        node_volumes.map(|((_, node), node_volume)| (node, node_volume))
    }

    /// Pods that want a volume on a node.
    pub fn users<'b>(&'b self, volume: &'b VolumeId, node: &'b NodeName) -> impl Iterator<Item = &'b PodKey> {
        let is_of = move |wanted: &Desired| wanted.volume == *volume && wanted.node == *node;
        self.attach_detach.desired.iter().filter(move |(_, all)| all.iter().any(is_of)).map(|(pod, _)| pod)
    }

    /// The object of a subject as it was read, whole.
    pub fn whole(&self, subject: &Subject) -> Option<&'a Value> {
        self.snapshot.details.get(&subject.object())
    }

    /// Whether an object was looked for and is not there, could not be read, or was not looked for.
    pub fn missing<T: Stored>(&self, key: &T::Key) -> Missing {
        let object = T::object_ref(key.clone());
        if let Some(error) = self.objects().unreadable::<T>(key) {
            return Missing::Unreadable(error);
        }
        if self.snapshot.is_absent(&object) {
            return Missing::Absent;
        }
        let about = [object.to_string(), T::PLURAL.to_owned()];
        let unseen = self.snapshot.unseen.iter().find(|unseen| about.contains(&unseen.what));
        if unseen.is_some_and(|unseen| unseen.forbidden) {
            return Missing::Unseen("you may not read it".to_owned());
        }
        let unseen = unseen.or(self.snapshot.unseen.first());
        Missing::Unseen(unseen.map_or_else(|| "it was not read".to_owned(), |unseen| unseen.why.clone()))
    }

    /// What the reader has no right to see: what matters to the question, or, if nothing of that is missing, the rest.
    pub fn lacks_rights(&self, matters: impl Fn(&str) -> bool) -> Option<String> {
        let lacking = self.snapshot.unseen.iter().filter(|unseen| unseen.forbidden);
        let all: Vec<&str> = lacking.map(|unseen| unseen.what.as_str()).collect();
        let these: Vec<&str> = all.iter().copied().filter(|what| matters(what)).collect();
        let told = if these.is_empty() { all } else { these };
        (!told.is_empty()).then(|| told.join(", "))
    }
}

/// Why an object is in no table.
pub(super) enum Missing {
    /// It does not exist.
    Absent,
    /// It cannot be read.
    Unreadable(String),
    /// The reader could not see it, in the server's words.
    Unseen(String),
}

/// The narrow form of an object.
pub(super) fn get<T: Stored>(view: &View<'_>, key: &T::Key) -> Option<Arc<T>> {
    view.objects().get::<T>(key)
}
