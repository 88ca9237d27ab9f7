//! What waits, for what, since when and until when: the one form in which both subsystems say it.
//!
//! In: the reasons that the rules returned, so that what is shown cannot drift from what is done. Out: the rows of the
//! debug pages, and the gauges `mooring_waiting` and `mooring_waiting_oldest_seconds` (L18). Reason codes are
//! CamelCase, and the same in events, logs, metrics and pages; once published they keep their meaning.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::jiff::Timestamp;
use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::asked::Names;
use crate::metrics::Metrics;

/// What kind of thing waits: value of the label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A volume on a node.
    Attachment,
    /// A volume of a pod that cannot be attached yet.
    PodVolume,
    /// A PersistentVolumeClaim.
    Claim,
    /// A PersistentVolume.
    Volume,
}

impl Kind {
    /// Value of the label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Attachment => "attachment",
            Self::PodVolume => "pod_volume",
            Self::Claim => "claim",
            Self::Volume => "volume",
        }
    }
}

/// Why something waits.
pub trait Reason: Clone + PartialEq + fmt::Debug + Send + 'static {
    /// The reason's code, CamelCase.
    fn code(&self) -> &'static str;
    /// A sentence for people.
    fn message(&self) -> String;
    /// When the wait ends by itself, if it does.
    fn until(&self, _clock: &WallClock) -> Option<Timestamp> {
        None
    }
    /// What the reason speaks of, by name.
    fn facts(&self) -> Map<String, Value> {
        Map::new()
    }
}

/// What waits.
pub trait Subject: Ord + Clone + fmt::Debug + Send + 'static {
    /// Names by which it is found, each under its kind.
    fn names(&self) -> Names;
}

/// One wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait<R> {
    /// Why.
    pub reason: R,
    /// Since when for a reason of this code.
    pub since: Instant,
    /// When it is looked at again although nothing happens.
    pub next: Option<Instant>,
}

/// Everything of a kind that waits.
#[derive(Debug)]
pub struct Waits<K, R> {
    waits: Mutex<BTreeMap<K, Wait<R>>>,
    /// Whether this process decides: the waits of a standby are not counted, as the leader counts them.
    leads: AtomicBool,
}

impl<K, R> Default for Waits<K, R> {
    fn default() -> Self {
        Self { waits: Mutex::default(), leads: AtomicBool::new(false) }
    }
}

/// A copy as of now, which goes its own way.
impl<K: Subject, R: Reason> Clone for Waits<K, R> {
    fn clone(&self) -> Self {
        let leads = AtomicBool::new(self.leads.load(Ordering::Relaxed));
        Self { waits: Mutex::new(self.lock().clone()), leads }
    }
}

impl<K: Subject, R: Reason> Waits<K, R> {
    /// Sets why something waits, if it does. Returns how it waited before.
    pub fn set(&self, key: &K, wait: Option<(R, Option<Instant>)>, now: Instant) -> Option<Wait<R>> {
        let mut waits = self.lock();
        let Some((reason, next)) = wait else { return waits.remove(key) };
        let before = waits.get_mut(key);
        let Some(before) = before else {
            waits.insert(key.clone(), Wait { reason, since: now, next });
            return None;
        };
        let since = if before.reason.code() == reason.code() { before.since } else { now };
        Some(std::mem::replace(before, Wait { reason, since, next }))
    }

    /// Forgets one that is gone.
    pub fn remove(&self, key: &K) {
        self.lock().remove(key);
    }

    /// The wait of one.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<Wait<R>> {
        self.lock().get(key).cloned()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The keys of everything that waits.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    /// Looks at everything that waits. Nothing is set meanwhile.
    pub fn for_each(&self, mut look: impl FnMut(&K, &Wait<R>)) {
        self.lock().iter().for_each(|(key, wait)| look(key, wait));
    }

    /// Everything that waits.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<K, Wait<R>> {
        self.lock().clone()
    }

    /// Notes that this process decides from now on: all waits begin anew.
    pub fn lead(&self, now: Instant) {
        self.leads.store(true, Ordering::Relaxed);
        for wait in self.lock().values_mut() {
            wait.since = now;
        }
    }

    /// How many wait for each reason, and since when the first of them.
    #[must_use]
    pub fn count(&self) -> BTreeMap<&'static str, (usize, Instant)> {
        let mut counts = BTreeMap::new();
        for wait in self.lock().values() {
            let (count, oldest) = counts.entry(wait.reason.code()).or_insert((0, wait.since));
            *count += 1;
            *oldest = wait.since.min(*oldest);
        }
        counts
    }

    /// Registers the gauges of this kind.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn register(self: &Arc<Self>, kind: Kind, metrics: &Metrics) -> Result<(), prometheus::Error> {
        let gauge = |name: &str, help: &str| {
            IntGaugeVec::new(Opts::new(name, help).const_label("kind", kind.label()), &["reason"])
        };
        metrics.register(&Gauges {
            waits: Arc::clone(self),
            seen: Arc::default(),
            count: gauge(
                "mooring_waiting",
                "Objects that wait, by kind and by the reason's code; of a standby, none",
            )?,
            oldest: gauge(
                "mooring_waiting_oldest_seconds",
                "How long in seconds the object that has waited longest for a reason has done so; 0 if none does",
            )?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Wait<R>>> {
        // The map is valid between any two statements, so a panic elsewhere cannot spoil it.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row of a debug page for one wait.
#[must_use]
pub fn row<K: Subject, R: Reason>(kind: Kind, key: &K, wait: &Wait<R>, clock: &WallClock) -> Value {
    let mut row: Map<String, Value> =
        key.names().into_iter().map(|(field, name)| (field.to_owned(), Value::String(name))).collect();
    let Wait { reason, since, next } = wait;
    let text = |at: Option<Timestamp>| at.map(|at| at.to_string());
    row.extend([
        ("kind".to_owned(), json!(kind.label())),
        ("reason".to_owned(), json!(reason.code())),
        ("message".to_owned(), json!(reason.message())),
        ("since".to_owned(), json!(text(Some(clock.at(*since))))),
        ("next".to_owned(), json!(text(next.map(|next| clock.at(next))))),
        ("until".to_owned(), json!(text(reason.until(clock)))),
        ("facts".to_owned(), Value::Object(reason.facts())),
    ]);
    Value::Object(row)
}

/// Rows of a debug page, each made when it is written: there may be as many as there are volumes on nodes.
#[derive(Clone, Copy, Debug)]
pub struct Rows<F>(pub F);

impl<I: Iterator<Item = Value>, F: Fn() -> I> Serialize for Rows<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// What time an instant is for people, by the wall clock as it stands when a page is made.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    wall: Timestamp,
    now: Instant,
}

impl WallClock {
    /// As it stands.
    #[must_use]
    pub fn now() -> Self {
        Self { wall: Timestamp::now(), now: Instant::now() }
    }

    /// As if it had stood so.
    #[must_use]
    pub fn new(wall: Timestamp, now: Instant) -> Self {
        Self { wall, now }
    }

    /// The time of an instant, to the second.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Timestamp {
        let time = match instant.checked_duration_since(self.now) {
            Some(ahead) => self.wall.checked_add(ahead),
            None => self.wall.checked_sub(self.now.saturating_duration_since(instant)),
        };
        let time = time.unwrap_or(Timestamp::MAX);
        Timestamp::from_second(time.as_second()).unwrap_or(time)
    }
}

/// The gauges of one kind, filled in when scraped.
#[derive(Debug)]
struct Gauges<K, R> {
    waits: Arc<Waits<K, R>>,
    /// Reasons that were ever seen: each stays, with 0, so that a wait that has ended does not look like a gap.
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
    count: IntGaugeVec,
    oldest: IntGaugeVec,
}

impl<K, R> Clone for Gauges<K, R> {
    fn clone(&self) -> Self {
        let Self { waits, seen, count, oldest } = self;
        Self {
            waits: Arc::clone(waits),
            seen: Arc::clone(seen),
            count: count.clone(),
            oldest: oldest.clone(),
        }
    }
}

impl<K: Subject, R: Reason> Collector for Gauges<K, R> {
    fn desc(&self) -> Vec<&Desc> {
        [self.count.desc(), self.oldest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let leads = self.waits.leads.load(Ordering::Relaxed);
        let counts = if leads { self.waits.count() } else { BTreeMap::new() };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(counts.keys());
        for reason in &*seen {
            let (count, age) = counts
                .get(reason)
                .map_or((0, 0), |(count, oldest)| (*count, now.saturating_duration_since(*oldest).as_secs()));
            self.count.with_label_values(&[reason]).set(i64::try_from(count).unwrap_or(i64::MAX));
            self.oldest.with_label_values(&[reason]).set(i64::try_from(age).unwrap_or(i64::MAX));
        }
        [self.count.collect(), self.oldest.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Why {
        Held(&'static str),
        Grace(Timestamp),
    }

    impl Reason for Why {
        fn code(&self) -> &'static str {
            match self {
                Self::Held(_) => "HeldByNode",
                Self::Grace(_) => "RestoreGrace",
            }
        }

        fn message(&self) -> String {
            format!("{self:?}")
        }

        fn until(&self, _: &WallClock) -> Option<Timestamp> {
            match self {
                Self::Held(_) => None,
                Self::Grace(until) => Some(*until),
            }
        }

        fn facts(&self) -> Map<String, Value> {
            match self {
                Self::Held(node) => Map::from_iter([("node".to_owned(), json!(node))]),
                Self::Grace(_) => Map::new(),
            }
        }
    }

    impl Subject for &'static str {
        fn names(&self) -> Names {
            vec![("claim", (*self).to_owned())]
        }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn l18_a_wait_lasts_as_long_as_its_code_stays_the_same() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let waits = Waits::default();
        waits.lead(start);
        let set = |why: Option<Why>, second| {
            waits.set(&"c", why.map(|why| (why, None)), at(second)).map(|before| before.reason)
        };
        assert_eq!(set(Some(Why::Held("a")), 1), None);
        assert_eq!(set(Some(Why::Held("b")), 2), Some(Why::Held("a")));
        assert_eq!(waits.get(&"c").map(|wait| wait.since), Some(at(1)));
        assert_eq!(set(Some(Why::Grace(second(9))), 3), Some(Why::Held("b")));
        assert_eq!(waits.count(), [("RestoreGrace", (1, at(3)))].into());
        let copy = waits.clone();
        assert_eq!(set(None, 4), Some(Why::Grace(second(9))));
        assert!(waits.is_empty() && !copy.is_empty());
        assert_eq!(set(None, 5), None);
    }

    #[tokio::test(start_paused = true)]
    async fn l18_a_row_says_what_waits_for_what_since_when_and_until_when() {
        let now = Instant::now() + Duration::from_secs(100);
        let clock = WallClock::new(second(1_000), now);
        let wait = |reason, next| Wait { reason, since: now - Duration::from_mins(1), next };
        let held = wait(Why::Held("a"), Some(now + Duration::from_secs(5)));
        assert_eq!(
            row(Kind::Claim, &"c", &held, &clock),
            json!({
                "claim": "c", "kind": "claim", "reason": "HeldByNode", "message": "Held(\"a\")",
                "since": "1970-01-01T00:15:40Z", "next": "1970-01-01T00:16:45Z", "until": null,
                "facts": {"node": "a"},
            })
        );
        let grace = row(Kind::Claim, &"c", &wait(Why::Grace(second(7)), None), &clock);
        assert_eq!((&grace["until"], &grace["next"]), (&json!("1970-01-01T00:00:07Z"), &Value::Null));
    }

    #[tokio::test(start_paused = true)]
    async fn l18_the_gauges_tell_how_many_wait_and_how_long_the_first_has() {
        let metrics = Metrics::default();
        let (claims, volumes) = (Arc::new(Waits::default()), Arc::new(Waits::default()));
        claims.register(Kind::Claim, &metrics).unwrap();
        volumes.register(Kind::Volume, &metrics).unwrap();
        claims.set(&"a", Some((Why::Held("a"), None)), Instant::now());
        assert!(!metrics.text().unwrap().contains("mooring_waiting"), "a standby counts nothing");
        tokio::time::advance(Duration::from_hours(1)).await;
        claims.lead(Instant::now());
        volumes.lead(Instant::now());
        let held = || Some((Why::Held("a"), None));
        tokio::time::advance(Duration::from_secs(7)).await;
        claims.set(&"b", held(), Instant::now());
        volumes.set(&"v", held(), Instant::now());
        let shown = |line: &str| {
            let text = metrics.text().unwrap();
            assert!(text.lines().any(|shown| shown == line), "{line}\nis missing in\n{text}");
        };
        shown("mooring_waiting{kind=\"claim\",reason=\"HeldByNode\"} 2");
        shown("mooring_waiting_oldest_seconds{kind=\"claim\",reason=\"HeldByNode\"} 7");
        shown("mooring_waiting{kind=\"volume\",reason=\"HeldByNode\"} 1");
        for claim in ["a", "b"] {
            claims.set(&claim, None, Instant::now());
        }
        shown("mooring_waiting{kind=\"claim\",reason=\"HeldByNode\"} 0");
        shown("mooring_waiting_oldest_seconds{kind=\"claim\",reason=\"HeldByNode\"} 0");
    }
}
