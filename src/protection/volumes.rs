//! `persistentvolume-protection-controller`: a volume keeps its finalizer while it is bound.
//!
//! In: volumes as they change. Out: one patch each, where the finalizer is missing or has to go. It trusts the phase,
//! as KCM does: the binder writes the phase of a volume before a claim names it (pv-binder §15.2).

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    call::CallError,
    ids::VolumeName,
    kinds::{Narrow, ObjectRef, PersistentVolume, VolumePhase},
    tables::Objects,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call},
    finalizer::{FinalizerStep, patch},
    keys::FinalizerKeys,
    reasons::ProtectionReason,
    second_writer::Protected,
};
use crate::controller::{
    Controller, Identity, Plan,
    keys::LOOKS,
    second_writer::{OwnedField, Role, WrittenObject},
};

/// KCM: pkg/volume/util/finalizer.go, PVProtectionFinalizer.
pub const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

impl WrittenObject for VolumeName {
    fn field(&self) -> OwnedField {
        OwnedField::VolumeFinalizer
    }

    fn kind(&self) -> &'static str {
        "volume_finalizer_added"
    }
}

impl Protected for VolumeName {
    const FINALIZER: &str = VOLUME_FINALIZER;
    const ROLE: Role = Role {
        name: "volume protection controller",
        alarm: "second_volume_protection_controller",
        held: "no finalizer is taken off a volume",
        kinds: &["volume_finalizer_added", Self::REMOVED],
    };
    const REMOVED: &str = "volume_finalizer_removed";
}

/// The controller.
#[derive(Debug)]
pub struct VolumeProtection {
    objects: Arc<Objects>,
    keys: FinalizerKeys<VolumeName>,
    leads: bool,
}

impl VolumeProtection {
    /// The controller over the shared tables.
    #[must_use]
    pub fn new(objects: Arc<Objects>) -> Self {
        Self { objects, keys: FinalizerKeys::default(), leads: false }
    }

    /// Looks at one volume.
    fn look(&mut self, name: &VolumeName, now: Instant) -> Option<Call> {
        let Some(volume) = self.objects.volumes.get(name) else {
            self.keys.gone(name);
            return None;
        };
        let step = decide(&volume);
        if step == FinalizerStep::Nothing {
            if FinalizerStep::of(&volume.metadata, VOLUME_FINALIZER) == FinalizerStep::Remove {
                self.keys.keys.stands(name, ProtectionReason::InUse("it is bound to a claim"));
            } else {
                self.keys.keys.settled(name, ProtectionReason::Settled);
            }
            return None;
        }
        if self.objects.unreadable::<PersistentVolume>(name).is_some() {
            self.keys.keys.stands(name, ProtectionReason::Unreadable);
            return None;
        }
        if step == FinalizerStep::Remove && self.keys.is_held(name, &self.objects, now) {
            return None;
        }
        if step == FinalizerStep::Add && self.keys.is_undone(name, now) {
            return None;
        }
        self.keys.sends(name, step, now);
        let request = patch(PersistentVolume::path(name), &volume.metadata, VOLUME_FINALIZER, step);
        Some(Call::Volume(name.clone(), step, request))
    }
}

/// What to do about a volume.
// KCM: pkg/controller/volume/pvprotection/pv_protection_controller.go, processPV and isBeingUsed.
#[must_use]
pub fn decide(volume: &PersistentVolume) -> FinalizerStep {
    match FinalizerStep::of(&volume.metadata, VOLUME_FINALIZER) {
        FinalizerStep::Remove if volume.status.phase == VolumePhase::Bound => FinalizerStep::Nothing,
        step => step,
    }
}

impl Controller for VolumeProtection {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-protection-controller",
        component: "persistentvolume-protection-controller",
        queues: &["pvprotection"],
        role: Some(VolumeName::ROLE),
    };
    type Key = VolumeName;
    type Reason = ProtectionReason;
    type Call = Call;
    type Answer = Answer;
    type Measures = ();

    fn load(&mut self, now: Instant) {
        for (name, volume) in self.objects.volumes.snapshot() {
            self.keys.others.observed(&name, Some(&volume.metadata), false, now);
        }
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            let ObjectRef::Volume(name) = object else { continue };
            let volume = self.objects.volumes.get(&name);
            let meta = volume.as_ref().map(|volume| &volume.metadata);
            self.keys.others.observed(&name, meta, self.leads, now);
            if self.leads {
                self.keys.keys.changed(name, now);
            }
        }
    }

    fn answered(&mut self, call: Call, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        let (name, step) = match call {
            Call::Volume(name, step, _) => (name, step),
            Call::VolumeOwner(name, uid) => return self.keys.owner_read((name, uid), result, now, jitter),
            Call::Claim(..) | Call::ClaimOwner(..) | Call::Pods(..) => return,
        };
        if let (FinalizerStep::Add, Ok(Answer::Volume(volume))) = (step, &result) {
            self.objects.observe_response(volume.clone());
        }
        self.keys.patched(&name, &result, now, jitter);
    }

    fn lead(&mut self, now: Instant) {
        self.leads = true;
        self.keys.others.writers.lead(now);
        self.keys.keys.queue.at(now);
        self.keys.keys.queue.extend(self.objects.volumes.snapshot().into_keys());
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = Vec::new();
        for _ in 0..LOOKS {
            let Some(name) = self.keys.keys.next(0, now) else { break };
            calls.extend(match self.keys.reads_first(&name) {
                Some(uid) => Some(Call::VolumeOwner(name, uid)),
                None => self.look(&name, now),
            });
        }
        self.keys.plan(calls, 0, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_kept_while_it_is_bound() {
        // phase, finalizers, whether it is being deleted, what to do
        let cases = [
            (VolumePhase::Bound, &[VOLUME_FINALIZER][..], false, FinalizerStep::Nothing),
            (VolumePhase::Bound, &[VOLUME_FINALIZER], true, FinalizerStep::Nothing),
            (VolumePhase::Released, &[VOLUME_FINALIZER], true, FinalizerStep::Remove),
            (VolumePhase::Available, &[VOLUME_FINALIZER], true, FinalizerStep::Remove),
            (VolumePhase::Failed, &[VOLUME_FINALIZER], true, FinalizerStep::Remove),
            (VolumePhase::Released, &[VOLUME_FINALIZER], false, FinalizerStep::Nothing),
            (VolumePhase::Released, &["other"], true, FinalizerStep::Nothing),
            (VolumePhase::Bound, &[], false, FinalizerStep::Add),
            (VolumePhase::Available, &[], false, FinalizerStep::Add),
        ];
        for (phase, finalizers, is_going, expected) in cases {
            let mut volume = PersistentVolume::default();
            volume.status.phase = phase;
            volume.metadata.finalizers = finalizers.iter().copied().collect();
            volume.metadata.deletion_timestamp = is_going.then(Box::default);
            assert_eq!(decide(&volume), expected, "{phase:?} {finalizers:?} {is_going}");
        }
    }

    #[test]
    fn s46_a_finalizer_that_others_take_off_at_once_is_put_on_at_longer_intervals_and_one_that_stood_at_once()
    {
        let start = Instant::now();
        for (stands, expected) in [(0, 8..=11), (60, 5..=6)] {
            let objects = Arc::new(Objects::default());
            let mut controller = VolumeProtection::new(Arc::clone(&objects));
            controller.leads = true;
            let (mut now, mut writes, mut revision) = (start, 0, 0);
            let end = start + std::time::Duration::from_secs(if stands == 0 { 60 } else { 300 });
            while now <= end {
                // The other writer has taken it off.
                revision += 1;
                let mut volume = PersistentVolume::default();
                volume.metadata.name = "v".into();
                volume.metadata.resource_version = apiserver::ids::ResourceVersion(revision);
                objects.apply(volume.clone());
                controller.changed(BTreeSet::from([ObjectRef::Volume("v".into())]), now);
                let plan = controller.plan(now);
                let Some(call) = plan.calls.into_iter().next() else {
                    now = plan.wake_at.unwrap();
                    continue;
                };
                writes += 1;
                assert!(writes < 100, "{stands}");
                controller.answered(call, Ok(Answer::Volume(volume)), now, 0.0);
                now += std::time::Duration::from_secs(stands);
            }
            assert!(expected.contains(&writes), "{stands}: {writes}");
        }
    }
}
