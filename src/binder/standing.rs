//! Why every claim and volume that is not settled is where it is, for explanations and debugging.
//!
//! Written by the planner with each decision, read by anybody.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{
    decision::Target,
    reason::{ClaimReason, VolumeReason},
};
use crate::kube_api::ids::{ClaimKey, VolumeName};

#[derive(Debug, Default)]
struct Inner {
    claims: BTreeMap<ClaimKey, ClaimReason>,
    volumes: BTreeMap<VolumeName, VolumeReason>,
}

/// Reasons of everything unsettled.
#[derive(Debug, Default)]
pub struct Standing {
    inner: Mutex<Inner>,
}

impl Standing {
    /// Why a claim waits; `None` when it does not, or has not been looked at.
    #[must_use]
    pub fn claim(&self, key: &ClaimKey) -> Option<ClaimReason> {
        self.lock().claims.get(key).cloned()
    }

    /// Why a volume waits; `None` when it does not, or has not been looked at.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<VolumeReason> {
        self.lock().volumes.get(name).cloned()
    }

    /// Every claim that waits.
    #[must_use]
    pub fn claims(&self) -> BTreeMap<ClaimKey, ClaimReason> {
        self.lock().claims.clone()
    }

    /// Every volume that waits.
    #[must_use]
    pub fn volumes(&self) -> BTreeMap<VolumeName, VolumeReason> {
        self.lock().volumes.clone()
    }

    /// As JSON: claims and volumes that wait, with the reason's label and text.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |object: &dyn Display, reason: &'static str, text: &dyn Display| json!({ "object": object.to_string(), "reason": reason, "text": text.to_string() });
        let claims = self.claims();
        let claims = claims.iter().map(|(key, reason)| row(key, reason.label(), reason));
        let volumes = self.volumes();
        let volumes = volumes.iter().map(|(name, reason)| row(name, reason.label(), reason));
        json!({ "claims": claims.collect::<Vec<_>>(), "volumes": volumes.collect::<Vec<_>>() })
    }

    pub(super) fn set_claim(&self, key: &ClaimKey, reason: ClaimReason) {
        if reason.is_settled() {
            self.lock().claims.remove(key);
        } else {
            self.lock().claims.insert(key.clone(), reason);
        }
    }

    pub(super) fn set_volume(&self, name: &VolumeName, reason: VolumeReason) {
        if reason.is_settled() {
            self.lock().volumes.remove(name);
        } else {
            self.lock().volumes.insert(name.clone(), reason);
        }
    }

    pub(super) fn forget(&self, target: &Target) {
        match target {
            Target::Claim(key) => {
                self.lock().claims.remove(key);
            }
            Target::Volume(name) => {
                self.lock().volumes.remove(name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The maps are valid between any two statements, so a panic elsewhere cannot spoil them.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
