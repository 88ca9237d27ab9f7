//! The last reason of each claim and volume that is not settled, and what fails about it.
//!
//! In: decisions and failures. Out: what the last decision was, for the next one, and for the report of it.

use std::{collections::BTreeMap, sync::Arc};

use apiserver::ids::{ClaimKey, VolumeName};
use tokio::time::Instant;

use super::{
    calls::Target,
    tell::{
        failure::Failure,
        reason::{ClaimReason, VolumeReason},
        state::Failing,
    },
};
/// Reasons of what is not settled, or fails.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    claims: BTreeMap<ClaimKey, Arc<ClaimReason>>,
    volumes: BTreeMap<VolumeName, Arc<VolumeReason>>,
    /// Requests that fail, each with when the next is sent, if that has been settled.
    failing: BTreeMap<Target, Failing>,
}

impl Reasons {
    pub(crate) fn claim(&self, key: &ClaimKey) -> Option<&Arc<ClaimReason>> {
        self.claims.get(key)
    }

    pub(crate) fn volume(&self, name: &VolumeName) -> Option<&Arc<VolumeReason>> {
        self.volumes.get(name)
    }

    /// Whether a claim waits for the proof that it has no class.
    pub(crate) fn is_proving_class(&self, key: &ClaimKey) -> bool {
        self.claim(key).is_some_and(|reason| matches!(**reason, ClaimReason::ProvingClass(_)))
    }

    /// Whether a claim waits for a pod.
    pub(crate) fn is_waiting_for_pods(&self, key: &ClaimKey) -> bool {
        self.claim(key).is_some_and(|reason| {
            matches!(**reason, ClaimReason::WaitsForFirstConsumer | ClaimReason::WaitsForPods(_))
        })
    }

    /// Everything that is not settled, or fails.
    pub(crate) fn keys(&self) -> (Vec<ClaimKey>, Vec<VolumeName>) {
        (self.claims.keys().cloned().collect(), self.volumes.keys().cloned().collect())
    }

    /// The request about it that fails, if one does.
    pub(crate) fn failing(&self, target: &Target) -> Option<&Failing> {
        self.failing.get(target)
    }

    pub(crate) fn set_claim(&mut self, key: &ClaimKey, reason: Arc<ClaimReason>) {
        if !reason.is_settled() || self.failing.contains_key(&Target::Claim(key.clone())) {
            self.claims.insert(key.clone(), reason);
        } else {
            self.claims.remove(key);
        }
    }

    pub(crate) fn set_volume(&mut self, name: &VolumeName, reason: Arc<VolumeReason>) {
        if !reason.is_settled() || self.failing.contains_key(&Target::Volume(name.clone())) {
            self.volumes.insert(name.clone(), reason);
        } else {
            self.volumes.remove(name);
        }
    }

    /// A request about a claim or volume fails; the next is sent then, if that has been settled.
    pub(crate) fn fails(&mut self, target: &Target, failure: Failure, next: Option<Instant>) {
        self.failing.insert(target.clone(), (failure, next));
    }

    /// Nothing about it fails any more.
    pub(crate) fn works(&mut self, target: &Target) {
        self.failing.remove(target);
    }

    /// The object is gone. Returns whether it was not settled.
    pub(crate) fn gone(&mut self, target: &Target) -> bool {
        self.failing.remove(target);
        match target {
            Target::Claim(key) => self.claims.remove(key).is_some(),
            Target::Volume(name) => self.volumes.remove(name).is_some(),
        }
    }
}
