//! Why every claim and volume that is not settled is where it is, for explanations and debugging.
//!
//! Written by the planner with each decision, read by anybody. `/debug/binder` prints the very values
//! that were decided on, and for each claim without a volume those that come nearest.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{
    decision::Target,
    matching::Wish,
    nearest::{Near, Unbound},
    reason::{ClaimReason, VolumeReason},
};
use crate::{
    kube_api::{
        ids::{ClaimKey, VolumeName},
        kinds::{ClaimPhase, PersistentVolumeClaim},
    },
    state::Objects,
};

/// Volumes shown for each claim.
const NEAREST: usize = 5;

#[derive(Debug, Default)]
struct Inner {
    claims: BTreeMap<ClaimKey, ClaimReason>,
    volumes: BTreeMap<VolumeName, VolumeReason>,
    rivals: (Option<String>, Vec<Value>),
}

/// Reasons of everything unsettled.
#[derive(Debug, Default)]
pub struct Standing {
    objects: Arc<Objects>,
    inner: Mutex<Inner>,
}

impl Standing {
    /// Nothing has been decided yet.
    #[must_use]
    pub fn new(objects: Arc<Objects>) -> Self {
        Self { objects, inner: Mutex::default() }
    }

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

    /// How many claims wait, by the reason's label.
    #[must_use]
    pub fn waiting(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for reason in self.lock().claims.values() {
            *counts.entry(reason.label()).or_default() += 1;
        }
        counts
    }

    /// As JSON: every claim that is not Bound or waits otherwise, and every volume that waits, each
    /// with the reason's label and text; for claims also the volumes that come nearest, with all that
    /// is wrong with each.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut unbound = Unbound::default();
        for (name, volume) in self.objects.volumes.snapshot() {
            unbound.update(&name, Some(&volume));
        }
        let waiting = self.claims();
        let claims: Vec<Value> = self
            .objects
            .claims
            .snapshot()
            .iter()
            .filter(|(key, claim)| claim.status.phase != ClaimPhase::Bound || waiting.contains_key(*key))
            .map(|(key, claim)| self.claim_row(key, claim, waiting.get(key), &unbound))
            .collect();
        let volumes: Vec<Value> = self
            .volumes()
            .iter()
            .map(|(name, reason)| json!({ "volume": name, "reason": reason.label(), "text": reason.to_string() }))
            .collect();
        let (rival, rows) = self.lock().rivals.clone();
        json!({ "secondBinder": rival, "secondWriters": rows, "claims": claims, "volumes": volumes })
    }

    fn claim_row(
        &self,
        key: &ClaimKey,
        claim: &PersistentVolumeClaim,
        reason: Option<&ClaimReason>,
        unbound: &Unbound,
    ) -> Value {
        let open = claim.spec.volume_name.is_empty();
        let near: Vec<Near> = match Wish::of(claim) {
            Ok(wish) if open => unbound.nearest(&wish, NEAREST, &|name| self.objects.volumes.get(name)),
            _ => Vec::new(),
        };
        let near: Vec<Value> = near
            .iter()
            .map(|near| {
                let wrong: Vec<Value> = near
                    .faults
                    .iter()
                    .map(|fault| json!({ "code": fault.misfit.code(), "text": fault.text }))
                    .collect();
                json!({ "volume": near.volume, "wrong": wrong })
            })
            .collect();
        // A standby decides nothing.
        let (label, text) = match reason {
            Some(reason) => (reason.label(), reason.to_string()),
            None => {
                ("not_looked_at", "this process has not looked at the claim, as it does not lead".to_owned())
            }
        };
        json!({
            "claim": key.to_string(),
            "phase": claim.status.phase,
            "reason": label,
            "text": text,
            "nearest": near,
        })
    }

    /// Sets who else changes what we write: a binder that does so everywhere, and where others do, each with object,
    /// field, manager and end.
    pub(super) fn set_rivals(&self, rival: Option<String>, rows: Vec<Value>) {
        self.lock().rivals = (rival, rows);
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
