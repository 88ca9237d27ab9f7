//! What a decision may look at, and the [`Plugins`] to which it may hand an object.
//!
//! In: the shared tables, the binder's indexes, the writes under way and the outcomes of live
//! reads. Nothing here can reach the API server, a clock or a log.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    decision::{ClaimDecision, VolumeDecision},
    proofs::Proofs,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Call, Op, Purpose},
            write::Target,
        },
        annotations,
        doubt::Doubts,
        matching::{
            choose_claim::ClaimIndex,
            choose_volume::VolumeIndex,
            predicate::{Comparisons, Requirements, mismatch_for_named},
        },
    },
    controller::claim_pods::ClaimPods,
    kube_api::{
        call::CallError,
        events::{Event, Involved},
        ids::{ClaimKey, ClassName, PodKey, Uid, VolumeName},
        kinds::{
            ClaimPhase, ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, StorageClass,
        },
    },
    state::Objects,
};

/// Settings of the binder (pv-binder §12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinderOptions {
    /// Whether provisioners are asked for volumes.
    pub enable_dynamic_provisioning: bool,
    /// How often everything unsettled is looked at although nothing happened.
    pub sync_period: Duration,
}

impl Default for BinderOptions {
    fn default() -> Self {
        Self { enable_dynamic_provisioning: true, sync_period: Duration::from_mins(5) }
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
    pub pods: &'a ClaimPods,
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

/// What recycles, deletes and makes volumes for the binder, if anything does ([`crate::host_plugins`]). What an
/// implementation leaves out is what a binder without such plugins does.
pub trait Plugins: fmt::Debug + Send {
    /// Whether volumes of this provisioner are made and deleted here.
    fn provisions(&self, _provisioner: &str) -> bool {
        false
    }

    /// Whether a volume of which nothing tells who made it is deleted here.
    fn deletes(&self, _volume: &PersistentVolume) -> bool {
        false
    }

    /// What has to be done about a volume before anything else is decided about it.
    fn first(&self, _volume: &PersistentVolume, _view: &View<'_>) -> Option<VolumeDecision> {
        None
    }

    /// Recycles or deletes a volume whose claim is proven gone, as its policy says; `None` if nothing here does.
    fn reclaim(&self, _: &PersistentVolume, _: &ClaimRef, _: &View<'_>) -> Option<VolumeDecision> {
        None
    }

    /// Makes a volume for a claim of a provisioner that is here; `None` if the claim has to name that first.
    fn provision(&self, _: &PersistentVolumeClaim, _: &StorageClass, _: &View<'_>) -> Option<ClaimDecision> {
        None
    }

    /// Whether nothing else is decided about a volume, as a pod is at work on it.
    fn is_at_work(&self, _volume: &VolumeName, _objects: &Objects) -> bool {
        false
    }

    /// The volume that a pod is known to recycle.
    fn volume_of(&self, _pod: &PodKey) -> Option<VolumeName> {
        None
    }

    /// The pods at work, by UID, with the volume of each.
    fn pods_at_work(&self, _objects: &Objects) -> BTreeMap<Uid, (PodKey, Involved)> {
        BTreeMap::new()
    }

    /// An object changed; how it is now, the tables show. Returns the claims and volumes that this concerns.
    fn changed(&mut self, _object: &ObjectRef, _objects: &Objects, _now: Instant) -> Vec<Target> {
        Vec::new()
    }

    /// A claim is gone: returns the step that removes storage which was made for it in vain.
    fn claim_gone(&mut self, _claim: &ClaimKey, _objects: &Objects) -> Option<Call> {
        None
    }

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

    /// Takes the answer to a request that it asked for. Returns how the subject goes on, if not as usual.
    fn answered(
        &mut self,
        _op: &Op,
        _result: &Result<Answer, CallError>,
        _objects: &Objects,
        _now: Instant,
    ) -> Option<Then> {
        None
    }
}

/// No plugins.
#[derive(Debug)]
pub struct NoPlugins;

impl Plugins for NoPlugins {}

/// How the subject of a request goes on.
#[derive(Debug)]
pub enum Then {
    /// It is looked at again.
    Look,
    /// The same, and this is told: the answer to a request of a plugin shows that an earlier write was made.
    Tell(Event),
    /// The same, after a pause that is longer each time.
    Failed,
    /// The same, after a pause if that happens again and again.
    Conflicted,
    /// The same, after a pause that depends on the error.
    Pause(CallError),
    /// The same, at this time.
    At(Instant),
    /// The request, a read, is repeated after such a pause; until then nothing is decided about the pair.
    Repeat(CallError),
    /// The object of the request is read before anything else is decided about the pair.
    Read(Purpose),
}
