//! Why every claim and volume that is not settled is where it is, for explanations and debugging.
//!
//! Written by [`Reasons`](crate::binder::reasons::Reasons) with each decision; no decision reads it. `/debug/binder`
//! prints the very values that were decided on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    failure::Failure,
    reason::{ClaimReason, VolumeReason},
};
use crate::{
    binder::act::write::Target,
    controller::{
        asked::{Asked, Names},
        diagnostics::{Kind, Reason, Rows, Subject, Wait, Waits, WallClock, row},
    },
    kube_api::{
        ids::{ClaimKey, VolumeName},
        kinds::{ClaimPhase, PersistentVolumeClaim},
    },
    metrics::Metrics,
    state::Objects,
};

impl Subject for ClaimKey {
    fn names(&self) -> Names {
        vec![("claim", self.to_string())]
    }
}

impl Subject for VolumeName {
    fn names(&self) -> Names {
        vec![("volume", self.to_string())]
    }
}

impl Reason for ClaimReason {
    fn code(&self) -> &'static str {
        self.code()
    }

    fn message(&self) -> String {
        self.to_string()
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        match self {
            Self::HeldBack(why) => Some(clock.at(why.until())),
            _ => None,
        }
    }
}

impl Reason for VolumeReason {
    fn code(&self) -> &'static str {
        self.code()
    }

    fn message(&self) -> String {
        self.to_string()
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        match self {
            Self::HeldBack(why) => Some(clock.at(why.until())),
            _ => None,
        }
    }
}

/// Where a claim or volume stands, and the request about it that fails, if one does: that is why it waits then.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitReason<R> {
    /// Where it stands.
    pub reason: Arc<R>,
    /// What fails.
    pub failure: Option<Failure>,
}

/// A request that fails, and when the next is sent, if that has been settled.
pub(crate) type Failing = (Failure, Option<Instant>);

impl<R> WaitReason<R> {
    fn of(reason: &Arc<R>, failing: Option<&Failing>) -> (Self, Option<Instant>) {
        let (failure, next) = failing.cloned().unzip();
        (Self { reason: Arc::clone(reason), failure }, next.flatten())
    }
}

impl<R: Reason + Send + Sync> Reason for WaitReason<R> {
    fn code(&self) -> &'static str {
        if self.failure.is_some() { "RetryBackoff" } else { self.reason.code() }
    }

    fn message(&self) -> String {
        self.failure.as_ref().map_or_else(|| self.reason.message(), Failure::text)
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        self.reason.until(clock).filter(|_| self.failure.is_none())
    }

    fn facts(&self) -> Map<String, Value> {
        let Some(failure) = &self.failure else { return self.reason.facts() };
        let meanwhile = json!({ "reason": self.reason.code(), "message": self.reason.message() });
        Map::from_iter([
            ("request".to_owned(), json!(failure.task.label())),
            ("outcome".to_owned(), json!(failure.outcome.label())),
            ("meanwhile".to_owned(), meanwhile),
        ])
    }
}

/// Reasons of everything unsettled.
#[derive(Debug, Default)]
pub struct Diagnostics {
    objects: Arc<Objects>,
    claims: Arc<Waits<ClaimKey, WaitReason<ClaimReason>>>,
    volumes: Arc<Waits<VolumeName, WaitReason<VolumeReason>>>,
    alarm: Mutex<Option<String>>,
    second_writers: Mutex<Vec<Value>>,
    leads: AtomicBool,
}

impl Diagnostics {
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
        self.claims.get(key).map(|wait| ClaimReason::clone(&wait.reason.reason))
    }

    /// Why a volume waits; `None` when it does not, or has not been looked at.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<VolumeReason> {
        self.volumes.get(name).map(|wait| VolumeReason::clone(&wait.reason.reason))
    }

    /// Every claim that waits.
    #[must_use]
    pub fn claims(&self) -> BTreeMap<ClaimKey, Wait<WaitReason<ClaimReason>>> {
        self.claims.snapshot()
    }

    /// Every volume that waits.
    #[must_use]
    pub fn volumes(&self) -> BTreeMap<VolumeName, Wait<WaitReason<VolumeReason>>> {
        self.volumes.snapshot()
    }

    /// How many claims wait, by the reason's code.
    #[must_use]
    pub fn waiting(&self) -> BTreeMap<&'static str, usize> {
        self.claims.count().into_iter().map(|(code, (count, _))| (code, count)).collect()
    }

    /// As JSON: whether this replica decides; every claim that is not Bound or waits otherwise, and every volume that
    /// waits.
    #[must_use]
    pub fn page(&self) -> Page {
        self.part(Asked::default())
    }

    /// The same with the rows that are asked for.
    #[must_use]
    pub fn part(&self, asked: Asked) -> Page {
        Page {
            asked,
            clock: WallClock::now(),
            objects: Arc::clone(&self.objects),
            alarm: self.alarm.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            leads: self.leads(),
            second_writers: self.second_writers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            claims: self.claims.snapshot(),
            volumes: self.volumes.snapshot(),
        }
    }

    /// Notes that this process decides from now on.
    pub(crate) fn lead(&self, now: Instant) {
        self.leads.store(true, Ordering::Relaxed);
        self.claims.lead(now);
        self.volumes.lead(now);
    }

    /// Whether this process decides.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Sets who else changes what we write: the alarm, and what others wrote of late, each with object, field, manager,
    /// and until when it counts.
    pub(crate) fn set_second_writers(&self, (alarm, rows): (Option<String>, Vec<Value>)) {
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner) = alarm;
        *self.second_writers.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    pub(crate) fn set_claim(
        &self,
        key: &ClaimKey,
        wait: Option<(&Arc<ClaimReason>, Option<&Failing>)>,
        now: Instant,
    ) {
        self.claims.set(key, wait.map(|(reason, failing)| WaitReason::of(reason, failing)), now);
    }

    pub(crate) fn set_volume(
        &self,
        name: &VolumeName,
        wait: Option<(&Arc<VolumeReason>, Option<&Failing>)>,
        now: Instant,
    ) {
        self.volumes.set(name, wait.map(|(reason, failing)| WaitReason::of(reason, failing)), now);
    }

    pub(crate) fn forget(&self, target: &Target) {
        match target {
            Target::Claim(key) => self.claims.remove(key),
            Target::Volume(name) => self.volumes.remove(name),
        }
    }
}

/// The debug page as of one moment, but for the claims and volumes themselves, which are shown as they are when it is
/// written.
#[derive(Debug)]
pub struct Page {
    asked: Asked,
    clock: WallClock,
    objects: Arc<Objects>,
    alarm: Option<String>,
    leads: bool,
    second_writers: Vec<Value>,
    claims: BTreeMap<ClaimKey, Wait<WaitReason<ClaimReason>>>,
    volumes: BTreeMap<VolumeName, Wait<WaitReason<VolumeReason>>>,
}

impl Page {
    fn claim_row(
        &self,
        key: &ClaimKey,
        claim: &PersistentVolumeClaim,
        wait: Option<&Wait<WaitReason<ClaimReason>>>,
    ) -> Value {
        let mut row = match wait {
            Some(wait) => row(Kind::Claim, key, wait, &self.clock),
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
        }
        row
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waiting = || {
            let claims = self.objects.claims.snapshot().into_iter().filter_map(|(key, claim)| {
                let wait = self.claims.get(&key);
                let is_unsettled = claim.status.phase != ClaimPhase::Bound || wait.is_some();
                let is_shown = is_unsettled && self.asked.has(&key.names());
                is_shown.then(|| self.claim_row(&key, &claim, wait))
            });
            let volumes = self.volumes.iter().filter(|(name, _)| self.asked.has(&name.names()));
            let volumes = volumes.map(|(name, wait)| row(Kind::Volume, name, wait, &self.clock));
            claims.chain(volumes)
        };
        let mut page = serializer.serialize_struct("Page", 4)?;
        page.serialize_field("alarm", &self.alarm)?;
        page.serialize_field("leads", &self.leads)?;
        page.serialize_field("secondWriters", &self.second_writers)?;
        page.serialize_field("waiting", &Rows(waiting))?;
        page.end()
    }
}
