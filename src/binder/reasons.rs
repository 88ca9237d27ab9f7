//! The last reason of each claim and volume that is not settled, and what fails about it.
//!
//! In: decisions and failures. Out: what the last decision was, for the next one; and the same on the debug page, which
//! is written here and never read.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{
    act::write::Target,
    tell::{
        diagnostics::{Diagnostics, Failing},
        failure::Failure,
        reason::{ClaimReason, VolumeReason},
    },
};
use crate::kube_api::ids::{ClaimKey, VolumeName};

/// Reasons of what is not settled, or fails.
#[derive(Debug)]
pub(crate) struct Reasons {
    claims: BTreeMap<ClaimKey, Arc<ClaimReason>>,
    volumes: BTreeMap<VolumeName, Arc<VolumeReason>>,
    /// Requests that fail, each with when the next is sent, if that has been settled.
    failing: BTreeMap<Target, Failing>,
    page: Arc<Diagnostics>,
}

impl Reasons {
    pub(crate) fn new(page: Arc<Diagnostics>) -> Self {
        Self { claims: BTreeMap::new(), volumes: BTreeMap::new(), failing: BTreeMap::new(), page }
    }

    /// The page on which they are shown.
    pub(crate) fn page(&self) -> &Arc<Diagnostics> {
        &self.page
    }

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

    pub(crate) fn set_claim(&mut self, key: &ClaimKey, reason: Arc<ClaimReason>, now: Instant) {
        let failing = self.failing.get(&Target::Claim(key.clone()));
        let waits = !reason.is_settled() || failing.is_some();
        self.page.set_claim(key, waits.then_some((&reason, failing)), now);
        if waits {
            self.claims.insert(key.clone(), reason);
        } else {
            self.claims.remove(key);
        }
    }

    pub(crate) fn set_volume(&mut self, name: &VolumeName, reason: Arc<VolumeReason>, now: Instant) {
        let failing = self.failing.get(&Target::Volume(name.clone()));
        let waits = !reason.is_settled() || failing.is_some();
        self.page.set_volume(name, waits.then_some((&reason, failing)), now);
        if waits {
            self.volumes.insert(name.clone(), reason);
        } else {
            self.volumes.remove(name);
        }
    }

    /// A request about a claim or volume fails; the next is sent then, if that has been settled.
    pub(crate) fn fails(&mut self, target: &Target, failure: Failure, next: Option<Instant>, now: Instant) {
        self.failing.insert(target.clone(), (failure, next));
        self.show(target, now);
    }

    /// Nothing about it fails any more.
    pub(crate) fn works(&mut self, target: &Target, now: Instant) {
        self.failing.remove(target);
        self.show(target, now);
    }

    fn show(&mut self, target: &Target, now: Instant) {
        match target {
            Target::Claim(key) => {
                if let Some(reason) = self.claim(key).cloned() {
                    self.set_claim(key, reason, now);
                }
            }
            Target::Volume(name) => {
                if let Some(reason) = self.volume(name).cloned() {
                    self.set_volume(name, reason, now);
                }
            }
        }
    }

    /// The object is gone.
    pub(crate) fn gone(&mut self, target: &Target) {
        self.failing.remove(target);
        match target {
            Target::Claim(key) => {
                self.claims.remove(key);
            }
            Target::Volume(name) => {
                self.volumes.remove(name);
            }
        }
        self.page.forget(target);
    }
}
