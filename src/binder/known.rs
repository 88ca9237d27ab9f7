//! What is known of the cluster: the tables, the indexes of them, the proofs, and what the plugins are at.
//!
//! In: objects as they change, and outcomes of live reads. Out: the [`View`] that a decision is made on.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    act::write::Target,
    annotations,
    decide::{
        proofs::{Proofs, Seen},
        view::{BinderOptions, NoPlugins, Plugins, View},
    },
    doubt::Doubts,
    matching::{
        choose_claim::ClaimIndex,
        choose_volume::VolumeIndex,
        predicate::{Comparisons, Requirements},
    },
};
use crate::{
    controller::claim_pods::ClaimPods,
    kube_api::{
        ids::{ClassName, ResourceVersion, VolumeName},
        kinds::{BindingMode, Narrow, ObjectRef, PersistentVolume, StorageClass},
    },
    state::Objects,
};

/// The cluster as known.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) objects: Arc<Objects>,
    pub(crate) options: BinderOptions,
    pub(crate) volumes: VolumeIndex,
    pub(crate) claims: ClaimIndex,
    /// Pods that are not scheduled, and not over.
    pub(crate) pods: ClaimPods,
    default_class: Option<ClassName>,
    pub(crate) proofs: Proofs,
    pub(crate) plugins: Box<dyn Plugins>,
    pub(crate) doubts: Doubts,
    /// Of the plan that is being made.
    pub(crate) compared: Comparisons,
}

impl Known {
    /// The indexes are still to be loaded.
    pub(crate) fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self {
            objects,
            options,
            pods: ClaimPods::default(),
            plugins: Box::new(NoPlugins),
            volumes: VolumeIndex::default(),
            claims: ClaimIndex::default(),
            default_class: None,
            proofs: Proofs::default(),
            doubts: Doubts::default(),
            compared: Comparisons::default(),
        }
    }

    /// Takes in every object there is, but for pods.
    pub(crate) fn load(&mut self, now: Instant) {
        for (name, volume) in &self.objects.volumes.snapshot() {
            self.volumes.update(name, Some(volume));
            self.plugins.changed(&ObjectRef::Volume(name.clone()), &self.objects, now);
        }
        for (key, claim) in &self.objects.claims.snapshot() {
            self.claims.update(key, Some(claim));
        }
        self.observe_default_class();
    }

    /// Looks for the default class again. Returns whether it is another.
    pub(crate) fn observe_default_class(&mut self) -> bool {
        let default = default_class(self.objects.classes.snapshot().values());
        let has_changed = default != self.default_class;
        self.default_class = default;
        has_changed
    }

    /// What a decision is made on, if these volumes are busy.
    pub(crate) fn view<'a>(&'a self, busy: &'a dyn Fn(&VolumeName) -> bool) -> View<'a> {
        View {
            objects: &self.objects,
            claims: &self.claims,
            volumes: &self.volumes,
            pods: &self.pods,
            default_class: self.default_class.as_ref(),
            proofs: &self.proofs,
            busy,
            plugins: &*self.plugins,
            doubts: &self.doubts,
            compared: &self.compared,
            options: &self.options,
        }
    }

    /// Whether nothing may be decided about a volume: a pod empties it, or it cannot be read.
    pub(crate) fn is_closed(&self, name: &VolumeName) -> bool {
        self.plugins.is_at_work(name, &self.objects)
            || self.objects.unreadable::<PersistentVolume>(name).is_some()
    }

    /// Whether a claim takes no free volume, but only one that is reserved for it.
    pub(crate) fn is_delayed(&self, requirements: &Requirements<'_>) -> bool {
        let class = self.objects.classes.get(&ClassName::from(requirements.class));
        class.is_some_and(|class| class.volume_binding_mode == Some(BindingMode::WaitForFirstConsumer))
    }

    /// Revision of the newest claim in our tables, at least of the one that a request is about: one whose change is of
    /// no interest here comes into the table without being told of.
    pub(crate) fn newest_claim(&self, subject: &Target) -> ResourceVersion {
        let own = match subject {
            Target::Claim(key) => self.objects.claims.get(key).map(|claim| claim.metadata.resource_version),
            Target::Volume(_) => None,
        };
        own.unwrap_or_default().max(self.objects.claims.observed())
    }

    /// What was proven of the claims that name a volume was proven of the volume as it was. The read that proved
    /// it may be the change.
    pub(crate) fn unprove_claims_of(&mut self, name: &VolumeName) {
        let seen = Seen::of(&self.objects, name);
        for key in self.claims.naming(name) {
            self.proofs.forget_claim_unless(key, seen);
        }
    }
}

/// The class for claims without one: the newest of those marked, the first by name among equals
/// (pv-binder §8).
// KCM: pkg/volume/util/storageclass.go, GetDefaultClass.
fn default_class<'a>(classes: impl Iterator<Item = &'a Arc<StorageClass>>) -> Option<ClassName> {
    let mut best: Option<&Arc<StorageClass>> = None;
    for class in classes.filter(|class| annotations::is_default_class(&class.metadata)) {
        let newer =
            best.is_none_or(|best| class.metadata.creation_timestamp > best.metadata.creation_timestamp);
        if newer {
            best = Some(class);
        }
    }
    best.map(|class| class.key())
}
