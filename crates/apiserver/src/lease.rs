//! The rules of the lease: who may lead, judged from what was read and when.
//!
//! In: the Lease object as read ([`Observed`]) and the monotonic time. Out: an [`Action`] and the
//! body to write. No client, no clock, no randomness: the loop around this is
//! [`super::elector`].
//!
//! Semantics are client-go's: a lease expires when its content has not changed for its duration
//! *since we saw it change*, on our own monotonic clock. No wall clock is trusted, so skew
//! and jumps neither steal a lease nor keep a dead one alive (S36, E10). What is written is the
//! object as read with only our fields changed, so fields we do not know survive.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use strum::{IntoStaticStr, VariantNames};
use tokio::time::Instant;

/// client-go: tools/leaderelection/leaderelection.go, JitterFactor.
const JITTER_FACTOR: f64 = 1.2;

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

/// What a leader told its successor is believed for so long after its last renewal: longer than any lease lasts.
const NOTE_LASTS: SignedDuration = SignedDuration::from_mins(5);

/// What a lease says for its duration that was given up. The server refuses zero.
///
/// client-go: tools/leaderelection/leaderelection.go, release.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// What `metav1.MicroTime` can tell apart.
const TICK: Duration = Duration::from_micros(1);

impl Timing {
    /// How long after the end of a term a write of it may still be carried out.
    pub fn reserve(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline).saturating_sub(MARGIN)
    }

    /// How long the server may take over a write, as long as the lease is renewed as it should be.
    pub fn longest_write(&self) -> Duration {
        let renewed = self.retry_period + LATE_RENEWAL;
        self.lease_duration.saturating_sub(MARGIN).saturating_sub(renewed)
    }

    /// How long one request for the lease may take.
    ///
    /// client-go: tools/leaderelection/resourcelock/interface.go, NewFromKubeconfig.
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// How long the lease is kept for writes whose outcome is not known, when it is to be given up: after that it is
    /// not far from its expiry.
    pub(crate) fn settling(&self) -> Duration {
        self.lease_duration / 3
    }

    /// How long giving up the lease may take in all: [`Timing::settling`], and a request.
    pub fn giving_up(&self) -> Duration {
        self.settling() + self.request_timeout()
    }

    /// What the renew deadline has to exceed for one failed attempt not to end a term.
    pub fn longest_pause(&self) -> Duration {
        self.retry_period.mul_f64(JITTER_FACTOR)
    }
}

/// Notes that are kept on the lease, beside the names in its spec.
pub mod note {
    /// How many seconds nothing destructive is to be done, after a restore of etcd (E11).
    pub const RESTORE_GRACE: &str = "mooring.dev/restore-grace-seconds";
    /// Who noted that.
    pub(crate) const RESTORE_GRACE_BY: &str = "mooring.dev/restore-grace-by";
    /// The holder that sees nothing any more, and asks whether another replica does.
    pub(crate) const SUCCESSOR_SOUGHT: &str = "mooring.dev/successor-sought-by";
    /// The replica that sees everything, and would lead.
    pub(crate) const SUCCESSOR: &str = "mooring.dev/successor";
}

/// What the holder notes when it writes the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// What is left of the grace after a restore of etcd.
    pub grace: Option<Duration>,
    /// Whether it sees nothing any more and looks for a successor.
    pub seeks_successor: bool,
    /// What it tells its successor, behind the annotation that has it; `None` leaves what another has told.
    pub for_successor: Option<(&'static str, Arc<str>)>,
}

/// The Lease as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The object; `None` when there is none.
    object: Option<Value>,
    /// When we saw its spec change, not when we last looked.
    changed: Instant,
    /// For how long its holder may lead; of a lease that was deleted, as it said last.
    duration: Option<Duration>,
}

impl Observed {
    /// Takes what was read (or what the answer to a write showed) at `now`.
    pub fn update(previous: Option<&Self>, object: Option<Value>, now: Instant) -> Self {
        let unchanged = previous.filter(|previous| spec(previous.object.as_ref()) == spec(object.as_ref()));
        let changed = unchanged.map_or(now, |previous| previous.changed);
        let seconds = spec(object.as_ref()).and_then(|spec| spec.get("leaseDurationSeconds")?.as_u64());
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        let duration = seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let duration = duration.or_else(|| previous.filter(|_| object.is_none())?.duration);
        Self { object, changed, duration }
    }

    /// Whether there is no lease.
    pub(crate) fn is_absent(&self) -> bool {
        self.object.is_none()
    }

    /// When it was renewed by the clock of its holder, as its record says.
    fn renewed(&self) -> Option<&str> {
        self.field("renewTime").and_then(Value::as_str)
    }

    /// Whether its last holder itself left it to others.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, release (a duration of one second).
    fn is_given_up(&self) -> bool {
        self.object.is_some() && self.holder().is_empty() && self.duration == Some(GIVEN_UP)
    }

    /// Who holds the lease; empty without a holder.
    pub fn holder(&self) -> &str {
        self.field("holderIdentity").and_then(Value::as_str).unwrap_or_default()
    }

    /// The revision of the object.
    pub fn revision(&self) -> Option<u64> {
        self.object.as_ref()?.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok()
    }

    /// From when on no process can believe that it leads. The holder's own record says for how long it may,
    /// within the range of the field; less than our own does not count, for a person may have written that.
    pub(crate) fn free_at(&self, timing: &Timing) -> Instant {
        if self.is_given_up() {
            return self.changed;
        }
        self.changed + self.duration.unwrap_or_default().max(timing.lease_duration)
    }

    /// How long nothing destructive is to be done, by the note on the lease, unless it is one's own: rounded up and
    /// read again and again it would never end.
    pub(crate) fn grace_for(&self, identity: &str) -> Option<Duration> {
        if self.note(note::RESTORE_GRACE_BY) == Some(identity) {
            return None;
        }
        let seconds: u32 = self.note(note::RESTORE_GRACE)?.parse().ok()?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// Whether the holder looks for a successor, and none has answered yet.
    pub(crate) fn seeks_successor(&self) -> bool {
        let sought_by = self.note(note::SUCCESSOR_SOUGHT);
        sought_by.is_some_and(|name| !name.is_empty() && name == self.holder()) && self.successor().is_none()
    }

    /// Who would lead in the holder's place.
    pub fn successor(&self) -> Option<&str> {
        self.note(note::SUCCESSOR)
    }

    /// What the leader of the last term told its successor in an annotation, where the text is behind the term in which
    /// it was told: how often the lease had changed hands. What is of an earlier term, or was written by hand, is not
    /// believed: another program may have led since, which tells nothing. Nor is what is old by our own clock: a backup of
    /// etcd may have brought it back, and who knows what came and went since.
    pub fn told(&self, annotation: &str, wall: Timestamp) -> Option<&str> {
        let (term, text) = self.note(annotation)?.split_once(' ')?;
        let renewed: Timestamp = self.renewed()?.parse().ok()?;
        let is_fresh = wall.duration_since(renewed).abs() <= NOTE_LASTS;
        (is_fresh && term.parse() == Ok(self.transitions())).then_some(text)
    }

    /// Whether something is told that is not believed.
    pub(crate) fn is_told_in_vain(&self, annotation: &str, wall: Timestamp) -> bool {
        self.note(annotation).is_some() && self.told(annotation, wall).is_none()
    }

    fn transitions(&self) -> i64 {
        self.field("leaseTransitions").and_then(Value::as_i64).unwrap_or_default()
    }

    fn note(&self, name: &str) -> Option<&str> {
        self.object.as_ref()?.get("metadata")?.get("annotations")?.get(name)?.as_str()
    }

    fn field(&self, name: &str) -> Option<&Value> {
        spec(self.object.as_ref())?.get(name)
    }
}

fn spec(object: Option<&Value>) -> Option<&Value> {
    object?.get("spec")
}

/// How fit this replica is to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Fitness {
    /// It knows all there is, and sees what happens.
    Fit,
    /// It does not see what happens now: it leaves the lease to others, unless no other wants it for the length
    /// of a lease.
    Blind,
    /// It has not seen yet what there is: it does not take the lease.
    Unready,
    /// What keeps another writer from writing was not found in force yet: it does not take the lease.
    Unfenced,
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
    /// Another process holds it.
    Wait {
        /// Who.
        holder: String,
    },
    /// It is free, and is left to others.
    StandAside,
}

/// Judges the lease.
///
/// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew. Unlike there, a lease that is absent, or blanked
/// by hand, is as good as held for a whole lease: its last holder leads on until it next renews, and a write of it that is
/// under way may land until the lease would have ended (S37). That costs the first start in a cluster, which lists
/// meanwhile, and no other: a lease that was given up stays.
pub(crate) fn evaluate(
    observed: &Observed,
    now: Instant,
    identity: &str,
    timing: &Timing,
    fitness: Fitness,
) -> Action {
    let holder = observed.holder();
    if holder == identity {
        return Action::Renew;
    }
    let free_at = observed.free_at(timing);
    if now < free_at {
        return Action::Wait { holder: holder.to_owned() };
    }
    match fitness {
        Fitness::Blind if now < free_at + timing.lease_duration => Action::StandAside,
        Fitness::Unready | Fitness::Unfenced => Action::StandAside,
        Fitness::Fit | Fitness::Blind if observed.is_absent() => Action::Create,
        Fitness::Fit | Fitness::Blind => Action::TakeOver { from: holder.to_owned() },
    }
}

/// A Lease to create.
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
pub fn renewal(
    observed: &Observed,
    identity: &str,
    timing: &Timing,
    notes: Notes,
    wall: Timestamp,
) -> Option<Value> {
    let ours = observed.holder() == identity;
    let transitions = observed.transitions();
    // Others go by its change: with a wall clock that stands still the same content would be no write at all.
    let is_known = |time: &str| observed.renewed() == Some(time);
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

/// The spec of a Lease that was given up. In a cluster that no process has led yet, such a Lease is won at once; where
/// there is none, it may have been deleted under a leader.
pub fn given_up() -> Value {
    json!({ "holderIdentity": "", "leaseDurationSeconds": GIVEN_UP.as_secs() })
}

/// The observed Lease, given up; who seeks a successor seeks it no longer. `None` unless it is ours.
///
/// client-go: tools/leaderelection/leaderelection.go, release. The server refuses a duration of
/// zero, hence one second.
pub fn released(observed: &Observed, identity: &str, notes: Notes, wall: Timestamp) -> Option<Value> {
    if observed.holder() != identity {
        return None;
    }
    let mut object = changed(observed, |spec| {
        spec.insert("holderIdentity".to_owned(), "".into());
        spec.insert("leaseDurationSeconds".to_owned(), GIVEN_UP.as_secs().into());
        spec.insert("acquireTime".to_owned(), micro_time(wall).into());
        spec.insert("renewTime".to_owned(), micro_time(wall).into());
    })?;
    write_notes(&mut object, identity, Notes { seeks_successor: false, ..notes });
    Some(object)
}

/// The observed Lease of another holder with our answer to its question for a successor.
pub fn answered(observed: &Observed, identity: &str) -> Option<Value> {
    let mut object = observed.object.clone()?;
    write_note(&mut object, note::SUCCESSOR, Some(identity.to_owned()));
    Some(object)
}

/// The observed Lease with what is left of a grace that its holder may know nothing of. `None` if it says so
/// already.
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
    if let Some((annotation, text)) = notes.for_successor {
        let term = object.pointer("/spec/leaseTransitions").and_then(Value::as_i64).unwrap_or_default();
        let text = (!text.is_empty()).then(|| format!("{term} {text}"));
        write_note(object, annotation, text);
    }
}

fn write_grace(object: &mut Value, identity: &str, grace: Option<Duration>) {
    let seconds = grace.map(|grace| grace.as_secs_f64().ceil().to_string());
    write_note(object, note::RESTORE_GRACE, seconds);
    write_note(object, note::RESTORE_GRACE_BY, grace.map(|_| identity.to_owned()));
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
mod tests;
