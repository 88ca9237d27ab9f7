//! What a decision may look at, and the [`Plugins`] to which it may hand an object.
//!
//! In: the shared tables, the binder's indexes, the writes under way and the outcomes of live
//! reads. Nothing here can reach the API server, a clock or a log.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    decision::{ClaimDecision, Step, VolumeDecision},
    proofs::Proofs,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Op, Purpose},
            write::Target,
        },
        annotations,
        doubt::Doubts,
        matching::{
            choose_claim::{ClaimIndex, PodIndex},
            choose_volume::VolumeIndex,
            predicate::{Comparisons, Requirements, mismatch_for_named},
        },
        plugins::options::Recyclers,
        tell::reason::{ClaimReason, Unprovisioned, Unreclaimable, VolumeReason},
    },
    kube_api::{
        call::CallError,
        events::Event,
        ids::{ClaimKey, ClassName, PodKey, Uid, VolumeName},
        kinds::{ClaimPhase, ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    },
    state::Objects,
};

/// Settings of the binder (pv-binder §12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinderOptions {
    /// Whether provisioners are asked for volumes.
    pub enable_dynamic_provisioning: bool,
    /// Whether volumes of `kubernetes.io/host-path` are made and deleted.
    pub enable_hostpath_provisioner: bool,
    /// How volumes are recycled, if they are.
    pub recyclers: Option<Arc<Recyclers>>,
    /// How often everything unsettled is looked at although nothing happened.
    pub sync_period: Duration,
}

impl BinderOptions {
    /// Whether it is kept which pods use a claim: a volume is not recycled under them.
    #[must_use]
    pub fn needs_users(&self) -> bool {
        self.recyclers.is_some()
    }
}

impl Default for BinderOptions {
    fn default() -> Self {
        Self {
            enable_dynamic_provisioning: true,
            enable_hostpath_provisioner: false,
            recyclers: None,
            sync_period: Duration::from_mins(5),
        }
    }
}

/// The cluster as a decision sees it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Current objects.
    pub objects: &'a Objects,
    /// Claims by the volume that they name.
    pub claims: &'a ClaimIndex,
    /// Volumes by what claims look for.
    pub volumes: &'a VolumeIndex,
    /// Unscheduled pods by claim.
    pub pods: &'a PodIndex,
    /// The class that claims without one get.
    pub default_class: Option<&'a ClassName>,
    /// Outcomes of live reads.
    pub proofs: &'a Proofs,
    /// Whether a write to the volume is under way.
    pub busy: &'a dyn Fn(&VolumeName) -> bool,
    /// Volumes that are recycled, deleted or made here.
    pub plugins: &'a dyn Plugins,
    /// Reservations of which it is not known whether they were made.
    pub doubts: &'a Doubts,
    /// What decisions cost.
    pub compared: &'a Comparisons,
    /// Settings.
    pub options: &'a BinderOptions,
}

impl View<'_> {
    /// A volume as last seen.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
        self.objects.volumes.get(name)
    }

    /// The claim that has a volume, although the volume does not name it (S45): it was bound to it, as its phase or the
    /// marker says, and lives. Of several the one that is Bound, or else the oldest: a copy is younger.
    #[must_use]
    pub fn owner(&self, volume: &VolumeName) -> Option<ClaimKey> {
        let bound = self.naming(volume).filter(|claim| was_bound(claim));
        bound
            .min_by_key(|claim| {
                let is_bound = claim.status.phase == ClaimPhase::Bound;
                (!is_bound, claim.metadata.creation_timestamp, claim.key())
            })
            .map(|claim| claim.key())
    }

    pub(super) fn naming(&self, volume: &VolumeName) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let claims = self.claims.naming(volume).filter_map(|key| self.objects.claims.get(key));
        claims.filter(|claim| claim.spec.volume_name == *volume)
    }

    /// A volume that a claim may look for: none that belongs to another claim, which is about to take it back, and none
    /// that another names and would take now.
    #[must_use]
    pub fn unowned(&self, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
        let volume = self.volume(name)?;
        let suits = |claim: &PersistentVolumeClaim| {
            Requirements::of(claim)
                .is_ok_and(|requirements| mismatch_for_named(&volume, &requirements).is_none())
        };
        let is_taken = volume.spec.claim_ref.is_none()
            && self.naming(name).any(|claim| was_bound(&claim) || suits(&claim));
        (!is_taken).then_some(volume)
    }

    /// A class as last seen; no class for the empty name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        if name.is_empty() { None } else { self.objects.classes.get(&ClassName::from(name)) }
    }
}

/// Whether the claim was bound to the volume that it names. The phase is written by controllers alone.
pub(super) fn was_bound(claim: &PersistentVolumeClaim) -> bool {
    matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost)
        || annotations::has(&claim.metadata, annotations::BIND_COMPLETED)
}

/// The door to what is compiled in for volumes that are recycled, deleted or made here. What an implementation leaves
/// out is what a binder without such plugins does.
pub trait Plugins: fmt::Debug {
    /// What has to be done about a volume before anything else is decided about it.
    fn first(&self, _volume: &PersistentVolume, _view: &View<'_>) -> Option<VolumeDecision> {
        None
    }

    /// Recycles a volume whose claim is proven gone.
    fn recycle(&self, volume: &PersistentVolume, _reference: &ClaimRef, _view: &View<'_>) -> VolumeDecision {
        VolumeDecision::failed(volume, VolumeReason::NotReclaimable(Unreclaimable::NoRecycler))
    }

    /// Deletes a volume whose claim is proven gone.
    fn delete(&self, volume: &PersistentVolume, _view: &View<'_>) -> VolumeDecision {
        VolumeDecision::failed(volume, VolumeReason::NotReclaimable(Unreclaimable::NoDeleter(volume.key())))
    }

    /// Why the plugin here does not even take a claim.
    fn refuses(&self, _claim: &PersistentVolumeClaim) -> Option<Unprovisioned> {
        None
    }

    /// Makes a volume for a claim that is handed to the plugin here.
    fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        _view: &View<'_>,
    ) -> ClaimDecision {
        ClaimDecision::waiting(claim, ClaimReason::NoProvisioner(class.provisioner.clone()))
    }

    /// Whether nothing else is decided about a volume, as a pod is at work on it.
    fn is_at_work(&self, _volume: &VolumeName, _objects: &Objects) -> bool {
        false
    }

    /// The volume that a pod is known to recycle.
    fn volume_of(&self, _pod: &PodKey) -> Option<VolumeName> {
        None
    }

    /// The pods at work, by their volumes.
    fn pods_at_work(&self) -> Vec<(VolumeName, PodKey, Uid)> {
        Vec::new()
    }

    /// Takes a volume as it is now.
    fn observe_volume(&mut self, _volume: &PersistentVolume) {}

    /// Takes a pod's current content, or its absence. Returns the volume whose recycler pod it is or was.
    fn observe_pod(&mut self, _key: &PodKey, _pod: Option<&Pod>, _now: Instant) -> Option<VolumeName> {
        None
    }

    /// Whether a volume is or was being made for a claim of this name.
    fn has_claim(&self, _claim: &ClaimKey) -> bool {
        false
    }

    /// A claim is gone: returns the step that removes storage which was made for it in vain.
    fn claim_gone(&mut self, _claim: &ClaimKey, _objects: &Objects) -> Option<Step> {
        None
    }

    /// A volume is gone.
    fn volume_gone(&mut self, _volume: &VolumeName) {}

    /// The step about a volume that rested on a proof is not made now, and the proof will be old when it is.
    fn unproven(&mut self, _volume: &VolumeName) {}

    /// Keys whose failed work may begin anew.
    fn take_due(&mut self, _now: Instant) -> Vec<Target> {
        Vec::new()
    }

    /// When the next of them is due.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Counts pods from here on, so that no other process gives one the same name.
    fn count_from(&mut self, _number: u64) {}

    /// Takes the answer to a request of a plugin.
    fn answered(
        &mut self,
        _op: &Op,
        _result: Result<Answer, CallError>,
        _objects: &Objects,
        _now: Instant,
    ) -> Progress {
        Progress::default()
    }
}

/// What the answer to a request of a plugin comes to.
#[derive(Debug, Default)]
pub struct Progress {
    /// Goes into the tables.
    pub answer: Option<Answer>,
    /// Events about the write that was made.
    pub events: Vec<Event>,
    /// An event about an earlier write, whose answer was lost.
    pub late: Option<Event>,
    /// When, and with what, the subject goes on.
    pub then: Then,
}

/// How the subject of a request goes on.
#[derive(Debug, Default)]
pub enum Then {
    /// It is looked at again.
    #[default]
    Look,
    /// The same, after a pause if that happens again and again.
    Conflicted,
    /// After a pause, longer each time.
    Failed,
    /// After a pause that depends on the error of a write.
    Pause(CallError),
    /// After a pause that depends on the error of a read.
    PauseForRead(CallError),
    /// At this time.
    At(Instant),
    /// The object of the request is read first.
    Read(Purpose),
}
