//! Why every claim and volume that is not settled is where it is, for explanations and debugging.
//!
//! Written by the planner with each decision, read by anybody. `/debug/binder` prints the very values
//! that were decided on, and for each claim without a volume those that come nearest.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    decision::Target,
    matching::Wish,
    nearest::{Near, Unbound},
    reason::{ClaimReason, VolumeReason},
};
use crate::{
    diagnostics::{Kind, Reason, Subject, Wait, Waits, WallClock, row},
    kube_api::{
        ids::{ClaimKey, VolumeName},
        kinds::{ClaimPhase, PersistentVolumeClaim},
    },
    metrics::Metrics,
    state::Objects,
};

/// Volumes shown for each claim.
const NEAREST: usize = 5;

impl Subject for ClaimKey {
    fn names(&self) -> Map<String, Value> {
        Map::from_iter([("claim".to_owned(), json!(self.to_string()))])
    }
}

impl Subject for VolumeName {
    fn names(&self) -> Map<String, Value> {
        Map::from_iter([("volume".to_owned(), json!(self))])
    }
}

impl Reason for ClaimReason {
    fn code(&self) -> &'static str {
        self.code()
    }

    fn message(&self) -> String {
        self.to_string()
    }
}

impl Reason for VolumeReason {
    fn code(&self) -> &'static str {
        self.code()
    }

    fn message(&self) -> String {
        self.to_string()
    }
}

/// Reasons of everything unsettled.
#[derive(Debug, Default)]
pub struct Standing {
    objects: Arc<Objects>,
    claims: Arc<Waits<ClaimKey, ClaimReason>>,
    volumes: Arc<Waits<VolumeName, VolumeReason>>,
    alarm: Mutex<Option<String>>,
    leads: AtomicBool,
}

impl Standing {
    /// Nothing has been decided yet.
    #[must_use]
    pub fn new(objects: Arc<Objects>) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Registers the gauges of what waits.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn register(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        self.claims.register(Kind::Claim, metrics)?;
        self.volumes.register(Kind::Volume, metrics)
    }

    /// Why a claim waits; `None` when it does not, or has not been looked at.
    #[must_use]
    pub fn claim(&self, key: &ClaimKey) -> Option<ClaimReason> {
        self.claims.get(key).map(|wait| wait.reason)
    }

    /// Why a volume waits; `None` when it does not, or has not been looked at.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<VolumeReason> {
        self.volumes.get(name).map(|wait| wait.reason)
    }

    /// Every claim that waits.
    #[must_use]
    pub fn claims(&self) -> BTreeMap<ClaimKey, Wait<ClaimReason>> {
        self.claims.snapshot()
    }

    /// Every volume that waits.
    #[must_use]
    pub fn volumes(&self) -> BTreeMap<VolumeName, Wait<VolumeReason>> {
        self.volumes.snapshot()
    }

    /// How many claims wait, by the reason's code.
    #[must_use]
    pub fn waiting(&self) -> BTreeMap<&'static str, usize> {
        self.claims.count().into_iter().map(|(code, (count, _))| (code, count)).collect()
    }

    /// As JSON: whether this replica decides; every claim that is not Bound or waits otherwise, and every volume that
    /// waits. For claims also the volumes that come nearest, with all that is wrong with each.
    #[must_use]
    pub fn json(&self) -> Value {
        let clock = WallClock::now();
        let mut unbound = Unbound::default();
        for (name, volume) in self.objects.volumes.snapshot() {
            unbound.update(&name, Some(&volume));
        }
        let waits = self.claims.snapshot();
        let mut waiting: Vec<Value> = self
            .objects
            .claims
            .snapshot()
            .iter()
            .filter(|(key, claim)| claim.status.phase != ClaimPhase::Bound || waits.contains_key(*key))
            .map(|(key, claim)| self.claim_row(key, claim, waits.get(key), &unbound, &clock))
            .collect();
        let volumes = self.volumes.snapshot();
        waiting.extend(volumes.iter().map(|(name, wait)| row(Kind::Volume, name, wait, &clock)));
        let alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({ "leads": self.leads.load(Ordering::Relaxed), "alarm": alarm, "waiting": waiting })
    }

    fn claim_row(
        &self,
        key: &ClaimKey,
        claim: &PersistentVolumeClaim,
        wait: Option<&Wait<ClaimReason>>,
        unbound: &Unbound,
        clock: &WallClock,
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
        let mut row = match wait {
            Some(wait) => row(Kind::Claim, key, wait, clock),
            None => json!({
                "kind": Kind::Claim.label(),
                "claim": key.to_string(),
                "reason": "NotLeader",
                "message": "this process has not looked at the claim, as it does not lead",
                "since": null, "next": null, "until": null, "facts": {},
            }),
        };
        if let Some(facts) = row.get_mut("facts").and_then(Value::as_object_mut) {
            facts.insert("phase".to_owned(), json!(claim.status.phase));
            facts.insert("nearest".to_owned(), json!(near));
        }
        row
    }

    /// Notes that this process decides from now on.
    pub(super) fn lead(&self, now: Instant) {
        self.leads.store(true, Ordering::Relaxed);
        self.claims.lead(now);
        self.volumes.lead(now);
    }

    /// Sets who else changes what we write.
    pub(super) fn set_alarm(&self, alarm: Option<String>) {
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner) = alarm;
    }

    pub(super) fn set_claim(&self, key: &ClaimKey, reason: ClaimReason, now: Instant) {
        let wait = (!reason.is_settled()).then_some((reason, None));
        self.claims.set(key, wait, now);
    }

    pub(super) fn set_volume(&self, name: &VolumeName, reason: VolumeReason, now: Instant) {
        let wait = (!reason.is_settled()).then_some((reason, None));
        self.volumes.set(name, wait, now);
    }

    pub(super) fn forget(&self, target: &Target) {
        match target {
            Target::Claim(key) => self.claims.remove(key),
            Target::Volume(name) => self.volumes.remove(name),
        }
    }
}
