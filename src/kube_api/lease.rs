//! The rules of the lease: who may lead, judged from what was read and when.
//!
//! In: the Lease object as read ([`Observed`]) and the monotonic time. Out: an [`Action`] and the
//! body to write. No client, no clock, no randomness: the loop around this is
//! [`super::elector`].
//!
//! Semantics are client-go's: a lease expires when its content has not changed for its duration
//! *since we saw it change*, on our own monotonic clock. Nobody's wall clock is trusted, so skew
//! and jumps neither steal a lease nor keep a dead one alive (S36, E10). What is written is the
//! object as read with only our fields changed, so fields we do not know survive.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// client-go: tools/leaderelection/leaderelection.go, JitterFactor.
pub const JITTER_FACTOR: f64 = 1.2;

/// Durations of leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait before they take over.
    pub lease_duration: Duration,
    /// How long the leader goes on without a successful renewal.
    pub renew_deadline: Duration,
    /// Time between attempts.
    pub retry_period: Duration,
}

/// What is left between the last moment in which a write may be carried out and the first in which another may
/// lead: for clocks that run at different speed, and for an etcd that is still at it when the server's time is
/// over.
pub const MARGIN: Duration = Duration::from_secs(1);

/// How much longer than the renew deadline a lease has to last: [`MARGIN`], and as much again for a write that is
/// sent in the last moment.
pub const LEAST_RESERVE: Duration = Duration::from_secs(2);

/// How late a renewal usually is: its round trip, which counts from when it was sent.
const LATE_RENEWAL: Duration = Duration::from_millis(500);

/// What a lease says for its duration that was given up. The server refuses zero.
///
/// client-go: tools/leaderelection/leaderelection.go, release.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// What `metav1.MicroTime` can tell apart.
const TICK: Duration = Duration::from_micros(1);

impl Timing {
    /// How long after the end of a term a write of it may still be carried out.
    #[must_use]
    pub fn reserve(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline).saturating_sub(MARGIN)
    }

    /// How long the server may take over a write, as long as the lease is renewed as it should be.
    #[must_use]
    pub fn longest_write(&self) -> Duration {
        let renewed = self.retry_period + LATE_RENEWAL;
        self.lease_duration.saturating_sub(MARGIN).saturating_sub(renewed)
    }

    /// How long one request for the lease may take.
    ///
    /// client-go: tools/leaderelection/resourcelock/interface.go, NewFromKubeconfig.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// How long the lease is kept for writes whose outcome is not known, when it is to be given up: after that it is
    /// not far from its expiry.
    #[must_use]
    pub fn settling(&self) -> Duration {
        self.lease_duration / 3
    }

    /// How long giving up the lease may take in all: [`Timing::settling`], and a request.
    #[must_use]
    pub fn giving_up(&self) -> Duration {
        self.settling() + self.request_timeout()
    }

    /// What the renew deadline has to exceed for one failed attempt not to end a term.
    #[must_use]
    pub fn longest_pause(&self) -> Duration {
        self.retry_period.mul_f64(JITTER_FACTOR)
    }
}

/// Notes that are kept on the lease, beside the names in its spec.
pub mod note {
    /// How many seconds nothing destructive is to be done, after a restore of etcd (E11).
    pub const RESTORE_GRACE: &str = "mooring.dev/restore-grace-seconds";
    /// Who noted that.
    pub const RESTORE_GRACE_BY: &str = "mooring.dev/restore-grace-by";
    /// The holder that sees nothing any more, and asks whether anybody else does.
    pub const SUCCESSOR_SOUGHT: &str = "mooring.dev/successor-sought-by";
    /// The replica that sees everything, and would lead.
    pub const SUCCESSOR: &str = "mooring.dev/successor";
}

/// What the holder notes when it writes the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// What is left of the grace after a restore of etcd.
    pub grace: Option<Duration>,
    /// Whether it sees nothing any more and looks for a successor.
    pub seeks_successor: bool,
}

/// Who held a lease that is gone or was blanked by hand, and until when that one may think that it leads.
#[derive(Clone, Debug, PartialEq)]
struct Departed {
    holder: String,
    /// What its record said.
    duration: Option<Duration>,
    changed: Instant,
}

/// The Lease as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The object; `None` when there is none.
    object: Option<Value>,
    /// When we saw its spec change, not when we last looked.
    changed: Instant,
    /// Of a lease that was deleted or blanked: its holder knows nothing of that before it renews it.
    departed: Option<Departed>,
}

impl Observed {
    /// Takes what was read (or what the answer to a write showed) at `now`.
    #[must_use]
    pub fn update(previous: Option<&Self>, object: Option<Value>, now: Instant) -> Self {
        let unchanged = previous.filter(|previous| spec(previous.object.as_ref()) == spec(object.as_ref()));
        let changed = unchanged.map_or(now, |previous| previous.changed);
        let mut observed = Self { changed, object, departed: None };
        if !observed.is_anybodys() && !observed.is_given_up() {
            observed.departed = previous.and_then(Self::departing);
        }
        observed
    }

    fn departing(&self) -> Option<Departed> {
        if !self.is_anybodys() && !self.is_given_up() {
            return self.departed.clone();
        }
        let holder = self.holder().to_owned();
        Some(Departed { holder, duration: self.duration(), changed: self.changed })
    }

    fn is_anybodys(&self) -> bool {
        !self.holder().is_empty()
    }

    /// Whether its last holder itself left it to others.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, release (a duration of one second).
    fn is_given_up(&self) -> bool {
        self.object.is_some() && !self.is_anybodys() && self.duration() == Some(GIVEN_UP)
    }

    /// Who holds the lease; empty for nobody.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.field("holderIdentity").and_then(Value::as_str).unwrap_or_default()
    }

    /// The revision of the object.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        self.object.as_ref()?.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok()
    }

    /// From when on nobody can think any more that it leads. The holder's own record says for how long it may,
    /// within the range of the field.
    #[must_use]
    pub fn free_at(&self, timing: &Timing) -> Instant {
        let of = |changed: Instant, duration: Option<Duration>| {
            changed + duration.unwrap_or(timing.lease_duration)
        };
        match &self.departed {
            _ if self.is_given_up() => self.changed,
            _ if self.is_anybodys() => of(self.changed, self.duration()),
            Some(departed) if departed.holder.is_empty() => departed.changed,
            Some(departed) => of(departed.changed, departed.duration),
            None => self.changed + timing.renew_deadline,
        }
    }

    /// How long nothing destructive is to be done, by the note on the lease, unless it is one's own: rounded up and
    /// read again and again it would never end.
    #[must_use]
    pub fn grace_for(&self, identity: &str) -> Option<Duration> {
        if self.note(note::RESTORE_GRACE_BY) == Some(identity) {
            return None;
        }
        let seconds: u32 = self.note(note::RESTORE_GRACE)?.parse().ok()?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// Whether the holder looks for a successor, and nobody has answered yet.
    #[must_use]
    pub fn seeks_successor(&self) -> bool {
        let sought_by = self.note(note::SUCCESSOR_SOUGHT);
        sought_by.is_some_and(|name| !name.is_empty() && name == self.holder()) && self.successor().is_none()
    }

    /// Who would lead in the holder's place.
    #[must_use]
    pub fn successor(&self) -> Option<&str> {
        self.note(note::SUCCESSOR)
    }

    fn note(&self, name: &str) -> Option<&str> {
        self.object.as_ref()?.get("metadata")?.get("annotations")?.get(name)?.as_str()
    }

    fn duration(&self) -> Option<Duration> {
        let recorded = self.field("leaseDurationSeconds").and_then(Value::as_u64);
        let seconds = recorded.and_then(|seconds| u32::try_from(seconds).ok()).map(u64::from);
        seconds.map(Duration::from_secs)
    }

    fn field(&self, name: &str) -> Option<&Value> {
        spec(self.object.as_ref())?.get(name)
    }
}

fn spec(object: Option<&Value>) -> Option<&Value> {
    object?.get("spec")
}

/// How fit this replica is to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fitness {
    /// It knows all there is, and sees what happens.
    Fit,
    /// It does not see what happens now: it leaves the lease to others, unless nobody else wants it for the length
    /// of a lease.
    Blind,
    /// It has not seen yet what there is: it does not take the lease.
    Unready,
}

impl Fitness {
    /// In one word, for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Blind => "blind",
            Self::Unready => "unready",
        }
    }
}

/// What may be done about the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is none: create it.
    Create,
    /// It is ours: renew it.
    Renew,
    /// Its holder gave it up, or let it expire: take it.
    TakeOver {
        /// Who held it; empty if it was given up.
        from: String,
    },
    /// Somebody else holds it.
    Wait {
        /// Who.
        holder: String,
    },
    /// It is free, and is left to others.
    StandAside,
}

/// Judges the lease.
///
/// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew. Unlike there, a lease that was deleted, or
/// blanked by hand, is as good as held until its last holder's time is over: that one leads on until it next renews.
/// A process that has never seen the lease cannot know whether somebody leads. It waits for the renew deadline: who
/// has not made the lease anew by then has stopped to write (S10). A retry period would do if every renewal were
/// answered at once; but one request that hangs takes half of that deadline. That costs the first start in a
/// cluster, which lists meanwhile, and no other: a lease that was given up stays.
#[must_use]
pub fn evaluate(
    observed: &Observed,
    now: Instant,
    identity: &str,
    timing: &Timing,
    fitness: Fitness,
) -> Action {
    let departed = observed.departed.as_ref().map(|departed| departed.holder.as_str()).unwrap_or_default();
    let (action, holder) = match &observed.object {
        Some(_) if observed.holder() == identity => return Action::Renew,
        // Somebody wants us to go.
        Some(_) if departed == identity => return Action::Wait { holder: String::new() },
        Some(_) if observed.is_anybodys() => {
            (Action::TakeOver { from: observed.holder().to_owned() }, observed.holder())
        }
        Some(_) => (Action::TakeOver { from: String::new() }, departed),
        None if departed == identity => return Action::Create,
        None => (Action::Create, departed),
    };
    let free_at = observed.free_at(timing);
    if now < free_at {
        return Action::Wait { holder: holder.to_owned() };
    }
    match fitness {
        Fitness::Fit => action,
        Fitness::Blind if now >= free_at + timing.lease_duration => action,
        Fitness::Blind | Fitness::Unready => Action::StandAside,
    }
}

/// A Lease to create.
#[must_use]
pub fn creation(
    namespace: &str,
    name: &str,
    identity: &str,
    timing: &Timing,
    notes: Notes,
    wall: Timestamp,
) -> Value {
    let mut object = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": timing.lease_duration.as_secs(),
            "acquireTime": micro_time(wall),
            "renewTime": micro_time(wall),
            "leaseTransitions": 0,
        },
    });
    write_notes(&mut object, identity, notes);
    object
}

/// The observed Lease, renewed or taken. `None` when there is no object to change.
#[must_use]
pub fn renewal(
    observed: &Observed,
    identity: &str,
    timing: &Timing,
    notes: Notes,
    wall: Timestamp,
) -> Option<Value> {
    let ours = observed.holder() == identity;
    let transitions = observed.field("leaseTransitions").and_then(Value::as_i64).unwrap_or_default();
    // Others go by its change: with a wall clock that stands still the same content would be no write at all.
    let is_known = |time: &str| observed.field("renewTime").and_then(Value::as_str) == Some(time);
    let renewed = Some(micro_time(wall)).filter(|time| !is_known(time));
    let renewed = renewed.unwrap_or_else(|| micro_time(wall.checked_add(TICK).unwrap_or(wall)));
    let mut object = changed(observed, |spec| {
        spec.insert("renewTime".to_owned(), renewed.into());
        spec.insert("leaseDurationSeconds".to_owned(), timing.lease_duration.as_secs().into());
        if !ours {
            spec.insert("holderIdentity".to_owned(), identity.into());
            spec.insert("acquireTime".to_owned(), micro_time(wall).into());
            spec.insert("leaseTransitions".to_owned(), transitions.saturating_add(1).into());
        }
    })?;
    write_notes(&mut object, identity, notes);
    Some(object)
}

/// The observed Lease, given up. `None` unless it is ours.
///
/// client-go: tools/leaderelection/leaderelection.go, release. The server refuses a duration of
/// zero, hence one second.
#[must_use]
pub fn released(
    observed: &Observed,
    identity: &str,
    grace: Option<Duration>,
    wall: Timestamp,
) -> Option<Value> {
    if observed.holder() != identity {
        return None;
    }
    let mut object = changed(observed, |spec| {
        spec.insert("holderIdentity".to_owned(), "".into());
        spec.insert("leaseDurationSeconds".to_owned(), GIVEN_UP.as_secs().into());
        spec.insert("acquireTime".to_owned(), micro_time(wall).into());
        spec.insert("renewTime".to_owned(), micro_time(wall).into());
    })?;
    write_notes(&mut object, identity, Notes { grace, seeks_successor: false });
    Some(object)
}

/// The observed Lease of another holder with our answer to its question for a successor.
#[must_use]
pub fn answered(observed: &Observed, identity: &str) -> Option<Value> {
    let mut object = observed.object.clone()?;
    write_note(&mut object, note::SUCCESSOR, Some(identity.to_owned()));
    Some(object)
}

/// The observed Lease with what is left of a grace that its holder may know nothing of. `None` if it says so
/// already.
#[must_use]
pub fn warned(observed: &Observed, identity: &str, grace: Duration) -> Option<Value> {
    if observed.note(note::RESTORE_GRACE).is_some() {
        return None;
    }
    let mut object = observed.object.clone()?;
    write_grace(&mut object, identity, Some(grace));
    Some(object)
}

fn changed(observed: &Observed, change: impl FnOnce(&mut Map<String, Value>)) -> Option<Value> {
    let mut object = observed.object.clone()?;
    change(map(&mut object, "spec")?);
    Some(object)
}

/// What the holder has to say. An answer to a question that is no longer asked goes with it.
fn write_notes(object: &mut Value, identity: &str, notes: Notes) {
    write_grace(object, identity, notes.grace);
    write_note(object, note::SUCCESSOR_SOUGHT, notes.seeks_successor.then(|| identity.to_owned()));
    if !notes.seeks_successor {
        write_note(object, note::SUCCESSOR, None);
    }
}

fn write_grace(object: &mut Value, identity: &str, grace: Option<Duration>) {
    write_note(object, note::RESTORE_GRACE, grace.map(whole_seconds));
    write_note(object, note::RESTORE_GRACE_BY, grace.map(|_| identity.to_owned()));
}

fn whole_seconds(duration: Duration) -> String {
    duration.as_secs_f64().ceil().to_string()
}

fn write_note(object: &mut Value, name: &str, text: Option<String>) {
    let there = object.pointer("/metadata/annotations").and_then(Value::as_object);
    if text.is_none() && !there.is_some_and(|annotations| annotations.contains_key(name)) {
        return;
    }
    let Some(metadata) = object.get_mut("metadata") else { return };
    let Some(annotations) = map(metadata, "annotations") else { return };
    match text {
        Some(text) => annotations.insert(name.to_owned(), text.into()),
        None => annotations.remove(name),
    };
}

/// The map of that name, made if it is missing or something else.
fn map<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    let field = object.as_object_mut()?.entry(name).or_insert_with(|| json!({}));
    if !field.is_object() {
        *field = json!({});
    }
    field.as_object_mut()
}

/// `metav1.MicroTime`.
fn micro_time(wall: Timestamp) -> String {
    wall.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn lease(holder: &str, renew_time: &str) -> Value {
        json!({
            "metadata": { "name": "mooring", "resourceVersion": "7", "labels": { "team": "storage" } },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": 15,
                "acquireTime": "2020-01-01T00:00:00.000000Z",
                "renewTime": renew_time,
                "leaseTransitions": 3,
                "strategy": "unknown to us",
            },
        })
    }

    fn given_up(renew_time: &str) -> Value {
        let mut lease = lease("", renew_time);
        lease["spec"]["leaseDurationSeconds"] = json!(1);
        lease
    }

    fn wall() -> Timestamp {
        "2026-01-02T03:04:05.000678Z".parse().unwrap()
    }

    /// One look at the lease: seconds since start, and what was read.
    type Look = (u64, Option<Value>);

    #[test]
    fn who_may_lead() {
        let old = "1999-01-01T00:00:00.000000Z";
        let future = "2099-01-01T00:00:00.000000Z";
        let wait = |holder: &str| Action::Wait { holder: holder.to_owned() };
        let take = |from: &str| Action::TakeOver { from: from.to_owned() };
        let cases: Vec<(&str, Vec<Look>, u64, Action)> = vec![
            ("absent: perhaps deleted a moment ago, and its holder leads on", vec![(0, None)], 9, wait("")),
            ("absent for as long as a term lasts: create", vec![(0, None), (9, None)], 10, Action::Create),
            ("ours: renew", vec![(0, Some(lease("me", old)))], 0, Action::Renew),
            ("ours after a restart, expired: renew", vec![(0, Some(lease("me", old)))], 60, Action::Renew),
            ("given up: take", vec![(0, Some(given_up(old)))], 0, take("")),
            ("blanked by hand: its holder does not know yet", vec![(0, Some(lease("", old)))], 9, wait("")),
            ("blanked long ago: take", vec![(0, Some(lease("", old)))], 10, take("")),
            (
                "blanked by hand while another held it",
                vec![(0, Some(lease("other", old))), (1, Some(lease("", old)))],
                14,
                wait("other"),
            ),
            (
                "blanked by hand, then deleted",
                vec![(0, Some(lease("other", old))), (1, Some(lease("", old))), (2, None)],
                14,
                wait("other"),
            ),
            (
                "blanked by hand while another held it, whose time is over",
                vec![(0, Some(lease("other", old))), (1, Some(lease("", old)))],
                15,
                take(""),
            ),
            (
                "blanked by hand while it was ours: lost",
                vec![(0, Some(lease("me", old))), (1, Some(lease("", old)))],
                1,
                wait(""),
            ),
            (
                "first look, renewTime long past by the wall clock: wait, we saw it change just now",
                vec![(0, Some(lease("other", old)))],
                0,
                wait("other"),
            ),
            ("just before expiry", vec![(0, Some(lease("other", old)))], 14, wait("other")),
            (
                "expired, although renewTime lies in the future",
                vec![(0, Some(lease("other", future)))],
                15,
                take("other"),
            ),
            (
                "looking again does not prolong it",
                vec![(0, Some(lease("other", old))), (10, Some(lease("other", old)))],
                15,
                take("other"),
            ),
            (
                "a renewal does",
                vec![(0, Some(lease("other", old))), (10, Some(lease("other", future)))],
                24,
                wait("other"),
            ),
            (
                "a renewal by a holder whose clock went back does, too",
                vec![(0, Some(lease("other", future))), (10, Some(lease("other", old)))],
                24,
                wait("other"),
            ),
            (
                "lost to another",
                vec![(0, Some(lease("me", old))), (10, Some(lease("other", future)))],
                10,
                wait("other"),
            ),
            (
                "deleted: its holder does not know yet",
                vec![(0, Some(lease("other", old))), (1, None)],
                14,
                wait("other"),
            ),
            (
                "deleted, looked at again, and its holder's time is over: create",
                vec![(0, Some(lease("other", old))), (1, None), (9, None)],
                15,
                Action::Create,
            ),
            (
                "deleted while it was ours: create",
                vec![(0, Some(lease("me", old))), (1, None)],
                1,
                Action::Create,
            ),
            (
                "deleted after it was given up: create",
                vec![(0, Some(given_up(old))), (1, None)],
                1,
                Action::Create,
            ),
            (
                "deleted and created by a third",
                vec![(0, Some(lease("other", old))), (1, None), (2, Some(lease("third", future)))],
                16,
                wait("third"),
            ),
        ];
        let start = Instant::now();
        for (name, looks, now, expected) in cases {
            let mut observed = None;
            for (seconds, object) in looks {
                let at = start + Duration::from_secs(seconds);
                observed = Some(Observed::update(observed.as_ref(), object, at));
            }
            let action =
                evaluate(&observed.unwrap(), start + Duration::from_secs(now), "me", &TIMING, Fitness::Fit);
            assert_eq!(action, expected, "{name}");
        }
    }

    #[test]
    fn the_holders_own_duration_counts() {
        let start = Instant::now();
        let mut short = lease("other", "1999-01-01T00:00:00.000000Z");
        short["spec"]["leaseDurationSeconds"] = json!(1);
        let observed = Observed::update(None, Some(short), start);
        let after =
            |seconds| evaluate(&observed, start + Duration::from_secs(seconds), "me", &TIMING, Fitness::Fit);
        assert!(matches!(after(0), Action::Wait { .. }));
        assert!(matches!(after(1), Action::TakeOver { .. }));
    }

    #[test]
    fn a_renewal_changes_nothing_but_its_time() {
        let observed =
            Observed::update(None, Some(lease("me", "1999-01-01T00:00:00.000000Z")), Instant::now());
        let mut expected = lease("me", "2026-01-02T03:04:05.000678Z");
        assert_eq!(renewal(&observed, "me", &TIMING, Notes::default(), wall()), Some(expected.clone()));

        // Taken by another: holder, acquisition and number of transitions, too.
        expected["spec"]["holderIdentity"] = json!("you");
        expected["spec"]["acquireTime"] = json!("2026-01-02T03:04:05.000678Z");
        expected["spec"]["leaseTransitions"] = json!(4);
        assert_eq!(renewal(&observed, "you", &TIMING, Notes::default(), wall()), Some(expected));
    }

    #[test]
    fn a_renewal_is_a_change_although_the_wall_clock_stands_still() {
        let mut observed =
            Observed::update(None, Some(lease("me", "1999-01-01T00:00:00.000000Z")), Instant::now());
        let mut times = Vec::new();
        for _ in 0..4 {
            let body = renewal(&observed, "me", &TIMING, Notes::default(), wall()).unwrap();
            times.push(body["spec"]["renewTime"].as_str().unwrap().to_owned());
            observed = Observed::update(Some(&observed), Some(body), Instant::now());
        }
        assert!(times.windows(2).all(|pair| pair[0] != pair[1]), "{times:?}");
    }

    #[test]
    fn a_release_leaves_nobody_and_only_gives_up_what_is_ours() {
        let observed =
            Observed::update(None, Some(lease("me", "1999-01-01T00:00:00.000000Z")), Instant::now());
        let body = released(&observed, "me", None, wall()).unwrap();
        assert_eq!(body["spec"]["holderIdentity"], json!(""));
        assert_eq!(body["spec"]["leaseDurationSeconds"], json!(1));
        assert_eq!(body["spec"]["leaseTransitions"], json!(3));
        assert_eq!(body["metadata"]["resourceVersion"], json!("7"));
        assert_eq!(released(&observed, "you", None, wall()), None);
    }

    #[test]
    fn a_lease_without_a_spec_can_be_taken() {
        let start = Instant::now();
        let observed = Observed::update(None, Some(json!({"metadata": {"name": "mooring"}})), start);
        assert_eq!(
            evaluate(&observed, start + TIMING.renew_deadline, "me", &TIMING, Fitness::Fit),
            Action::TakeOver { from: String::new() }
        );
        let body = renewal(&observed, "me", &TIMING, Notes::default(), wall()).unwrap();
        assert_eq!(body["spec"]["holderIdentity"], json!("me"));
        assert_eq!(body["spec"]["leaseTransitions"], json!(1));
    }

    #[test]
    fn m2_who_is_not_fit_leaves_the_lease_to_others() {
        let start = Instant::now();
        let aside = Action::StandAside;
        let take = |from: &str| Action::TakeOver { from: from.to_owned() };
        let old = "1999-01-01T00:00:00.000000Z";
        // the lease, seconds since it was seen, what one does that has not seen what there is, and a blind one
        let cases = [
            (None, 10, Action::StandAside, Action::StandAside),
            (None, 25, aside.clone(), Action::Create),
            (Some(given_up(old)), 14, aside.clone(), aside.clone()),
            (Some(given_up(old)), 15, aside.clone(), take("")),
            (Some(lease("other", old)), 15, aside.clone(), aside.clone()),
            (Some(lease("other", old)), 30, aside.clone(), take("other")),
            (Some(lease("me", old)), 0, Action::Renew, Action::Renew),
        ];
        for (object, seconds, unready, blind) in cases {
            let observed = Observed::update(None, object.clone(), start);
            let at = start + Duration::from_secs(seconds);
            let judge = |fitness| evaluate(&observed, at, "me", &TIMING, fitness);
            assert_eq!(judge(Fitness::Unready), unready, "{object:?} {seconds}");
            assert_eq!(judge(Fitness::Blind), blind, "{object:?} {seconds}");
        }
    }

    #[test]
    fn e11_m2_notes_come_and_go_and_leave_others_alone() {
        let now = Instant::now();
        let see = |object: &Value| Observed::update(None, Some(object.clone()), now);
        let mut object = lease("me", "1999-01-01T00:00:00.000000Z");
        object["metadata"]["annotations"] = json!({ "team": "storage" });
        let plain = object["metadata"]["annotations"].clone();
        let renew = |object: &Value, identity: &str, notes| {
            renewal(&see(object), identity, &TIMING, notes, wall()).unwrap()
        };
        let all = Notes { grace: Some(Duration::from_millis(61_200)), seeks_successor: true };
        let noted = renew(&object, "me", all);
        let annotations = json!({
            "team": "storage",
            "mooring.dev/restore-grace-seconds": "62",
            "mooring.dev/restore-grace-by": "me",
            "mooring.dev/successor-sought-by": "me",
        });
        assert_eq!(noted["metadata"]["annotations"], annotations);
        assert_eq!(see(&noted).grace_for("you"), Some(Duration::from_secs(62)));
        assert_eq!(see(&noted).grace_for("me"), None, "nobody inherits from itself");
        assert!(see(&noted).seeks_successor());

        // A standby answers, and does not do so twice.
        let answer = answered(&see(&noted), "you").unwrap();
        assert_eq!(answer["spec"], noted["spec"]);
        assert_eq!((see(&answer).successor(), see(&answer).seeks_successor()), (Some("you"), false));
        assert_eq!(see(&renew(&answer, "me", all)).successor(), Some("you"));
        assert_eq!(renew(&answer, "me", Notes::default())["metadata"]["annotations"], plain);

        // Who takes it begins anew; who gives it up leaves what is left of the grace.
        let taken = renew(&answer, "you", Notes { grace: all.grace, seeks_successor: false });
        assert_eq!(see(&taken).successor(), None);
        assert!(see(&taken).grace_for("me").is_some() && !see(&taken).seeks_successor());
        let released = released(&see(&answer), "me", Some(Duration::from_secs(5)), wall()).unwrap();
        assert_eq!(
            (see(&released).grace_for("you"), see(&released).successor()),
            (Some(Duration::from_secs(5)), None)
        );

        // What an earlier holder asked for does not count.
        let mut stale = noted.clone();
        stale["spec"]["holderIdentity"] = json!("third");
        assert!(!see(&stale).seeks_successor());

        // Who saw a restore tells the holder, once.
        let warning = warned(&see(&object), "you", Duration::from_mins(5)).unwrap();
        assert_eq!(see(&warning).grace_for("me"), Some(Duration::from_mins(5)));
        assert_eq!(warned(&see(&warning), "you", Duration::from_mins(5)), None);
        let created = creation("ns", "mooring", "me", &TIMING, all, wall());
        assert_eq!(see(&created).grace_for("you"), Some(Duration::from_secs(62)));
        assert_eq!(
            creation("ns", "mooring", "me", &TIMING, Notes::default(), wall())["metadata"],
            json!({
                "name": "mooring", "namespace": "ns",
            })
        );
    }
}
