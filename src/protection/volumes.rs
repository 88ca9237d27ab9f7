//! `persistentvolume-protection-controller`: a volume keeps its finalizer while it is bound.
//!
//! In: volumes as they change. Out: whether each is in use. It trusts the phase, as KCM does: the binder writes the phase
//! of a volume before a claim names it (pv-binder §15.2). So no list is needed.

use std::convert::Infallible;

use apiserver::{
    call::{CallError, Caller},
    ids::VolumeName,
    kinds::{PersistentVolume, VolumePhase},
    tables::Objects,
};

use crate::controller::finalizer::{Protected, Users, protection::Protection};

/// KCM: pkg/volume/util/finalizer.go, PVProtectionFinalizer.
pub const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

/// The controller.
pub type VolumeProtection = Protection<VolumeName>;

impl Protected for VolumeName {
    type Object = PersistentVolume;
    type Users = BoundClaim;

    const FINALIZER: &str = VOLUME_FINALIZER;
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const NAME: &str = "persistentvolume-protection-controller";
    const QUEUES: &[&str] = &["pvprotection"];
    const KIND: &str = "protected_volume";
    const FIELD: &str = "volume";
}

/// The claim of a volume, which the volume's own phase tells of.
#[derive(Debug, Default)]
pub struct BoundClaim;

impl Users<VolumeName> for BoundClaim {
    type List = Infallible;
    type Shown = Infallible;

    // KCM: pkg/controller/volume/pvprotection/pv_protection_controller.go, isBeingUsed.
    fn user(&self, volume: &PersistentVolume, _: &Objects) -> Option<&'static str> {
        (volume.status.phase == VolumePhase::Bound).then_some("it is bound to a claim")
    }

    async fn send(list: &Infallible, _: &Caller) -> Result<Infallible, CallError> {
        match *list {}
    }

    fn shown_user(shown: &Infallible, _: &PersistentVolume) -> Option<&'static str> {
        match *shown {}
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc, time::Duration};

    use apiserver::{ids::ResourceVersion, kinds::ObjectRef};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::controller::{
        Controller as _,
        finalizer::calls::{Answer, Call},
    };

    #[test]
    fn s52_a_volume_is_kept_while_it_is_bound() {
        // phase, finalizers, whether it is being deleted, the finalizers that are written
        type Case = (VolumePhase, &'static [&'static str], bool, Option<&'static [&'static str]>);
        let cases: [Case; 9] = [
            (VolumePhase::Bound, &[VOLUME_FINALIZER], false, None),
            (VolumePhase::Bound, &[VOLUME_FINALIZER], true, None),
            (VolumePhase::Released, &[VOLUME_FINALIZER], true, Some(&[])),
            (VolumePhase::Available, &[VOLUME_FINALIZER], true, Some(&[])),
            (VolumePhase::Failed, &["other", VOLUME_FINALIZER], true, Some(&["other"])),
            (VolumePhase::Released, &[VOLUME_FINALIZER], false, None),
            (VolumePhase::Released, &["other"], true, None),
            (VolumePhase::Bound, &[], false, Some(&[VOLUME_FINALIZER])),
            (VolumePhase::Available, &[], false, Some(&[VOLUME_FINALIZER])),
        ];
        for (phase, finalizers, is_going, expected) in cases {
            let mut volume = PersistentVolume::default();
            volume.metadata.name = "v".into();
            volume.status.phase = phase;
            volume.metadata.finalizers = finalizers.iter().copied().collect();
            volume.metadata.deletion_timestamp = is_going.then(Box::default);
            let (objects, now) = (Arc::new(Objects::default()), Instant::now());
            objects.apply(volume);
            let mut controller = VolumeProtection::new(objects);
            controller.lead(now);
            let calls = controller.plan(now).calls;
            let written = calls.iter().map(|call| match call {
                Call::Patch(_, _, request) => request.body.clone().unwrap_or_default(),
                other @ Call::Users(..) => panic!("{other:?}"),
            });
            let written: Vec<_> = written.map(|body| body["metadata"]["finalizers"].clone()).collect();
            let expected: Vec<_> = expected.into_iter().map(|finalizers| json!(finalizers)).collect();
            assert_eq!(written, expected, "{phase:?} {finalizers:?} {is_going}");
        }
    }

    #[test]
    fn s46_a_finalizer_that_others_take_off_at_once_is_put_on_at_longer_intervals_and_one_that_stood_at_once()
    {
        let start = Instant::now();
        for (stands, expected) in [(0, 8..=11), (60, 5..=6)] {
            let objects = Arc::new(Objects::default());
            let mut controller = VolumeProtection::new(Arc::clone(&objects));
            controller.lead(start);
            let (mut now, mut writes, mut revision) = (start, 0, 0);
            let end = start + Duration::from_secs(if stands == 0 { 60 } else { 300 });
            while now <= end {
                // The other writer has taken it off.
                revision += 1;
                let mut volume = PersistentVolume::default();
                volume.metadata.name = "v".into();
                volume.metadata.resource_version = ResourceVersion(revision);
                objects.apply(volume.clone());
                controller.changed(BTreeSet::from([ObjectRef::Volume("v".into())]), now);
                let plan = controller.plan(now);
                let Some(call) = plan.calls.into_iter().next() else {
                    now = plan.wake_at.unwrap();
                    continue;
                };
                writes += 1;
                assert!(writes < 100, "{stands}");
                controller.answered(call, Ok(Answer::Object(volume)), now, 0.0);
                now += Duration::from_secs(stands);
            }
            assert!(expected.contains(&writes), "{stands}: {writes}");
        }
    }
}
