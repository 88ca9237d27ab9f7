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

impl Timing {
    /// What the renew deadline has to exceed for one failed attempt not to end a term.
    #[must_use]
    pub fn longest_pause(&self) -> Duration {
        self.retry_period.mul_f64(JITTER_FACTOR)
    }
}

/// The Lease as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The object; `None` when there is none.
    object: Option<Value>,
    /// When we saw its spec change, not when we last looked.
    changed: Instant,
}

impl Observed {
    /// Takes what was read (or what the answer to a write showed) at `now`.
    #[must_use]
    pub fn update(previous: Option<&Self>, object: Option<Value>, now: Instant) -> Self {
        let unchanged = previous.filter(|previous| spec(previous.object.as_ref()) == spec(object.as_ref()));
        Self { changed: unchanged.map_or(now, |previous| previous.changed), object }
    }

    /// Who holds the lease; empty for nobody.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.field("holderIdentity").and_then(Value::as_str).unwrap_or_default()
    }

    /// Until when the holder may think that it leads. Its own record says for how long, within the
    /// range of the field.
    #[must_use]
    pub fn expiry(&self, timing: &Timing) -> Instant {
        let recorded = self.field("leaseDurationSeconds").and_then(Value::as_u64);
        let seconds = recorded.and_then(|seconds| u32::try_from(seconds).ok()).map(u64::from);
        self.changed + seconds.map_or(timing.lease_duration, Duration::from_secs)
    }

    fn field(&self, name: &str) -> Option<&Value> {
        spec(self.object.as_ref())?.get(name)
    }
}

fn spec(object: Option<&Value>) -> Option<&Value> {
    object?.get("spec")
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
}

/// Judges the lease.
///
/// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew.
#[must_use]
pub fn evaluate(observed: &Observed, now: Instant, identity: &str, timing: &Timing) -> Action {
    if observed.object.is_none() {
        return Action::Create;
    }
    let holder = observed.holder();
    if holder == identity {
        return Action::Renew;
    }
    if !holder.is_empty() && now < observed.expiry(timing) {
        return Action::Wait { holder: holder.to_owned() };
    }
    Action::TakeOver { from: holder.to_owned() }
}

/// A Lease to create.
#[must_use]
pub fn creation(namespace: &str, name: &str, identity: &str, timing: &Timing, wall: Timestamp) -> Value {
    json!({
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
    })
}

/// The observed Lease, renewed or taken. `None` when there is no object to change.
#[must_use]
pub fn renewal(observed: &Observed, identity: &str, timing: &Timing, wall: Timestamp) -> Option<Value> {
    let ours = observed.holder() == identity;
    let transitions = observed.field("leaseTransitions").and_then(Value::as_i64).unwrap_or_default();
    changed(observed, |spec| {
        spec.insert("renewTime".to_owned(), micro_time(wall).into());
        spec.insert("leaseDurationSeconds".to_owned(), timing.lease_duration.as_secs().into());
        if !ours {
            spec.insert("holderIdentity".to_owned(), identity.into());
            spec.insert("acquireTime".to_owned(), micro_time(wall).into());
            spec.insert("leaseTransitions".to_owned(), transitions.saturating_add(1).into());
        }
    })
}

/// The observed Lease, given up. `None` unless it is ours.
///
/// client-go: tools/leaderelection/leaderelection.go, release. The server refuses a duration of
/// zero, hence one second.
#[must_use]
pub fn released(observed: &Observed, identity: &str, wall: Timestamp) -> Option<Value> {
    if observed.holder() != identity {
        return None;
    }
    changed(observed, |spec| {
        spec.insert("holderIdentity".to_owned(), "".into());
        spec.insert("leaseDurationSeconds".to_owned(), 1.into());
        spec.insert("acquireTime".to_owned(), micro_time(wall).into());
        spec.insert("renewTime".to_owned(), micro_time(wall).into());
    })
}

fn changed(observed: &Observed, change: impl FnOnce(&mut Map<String, Value>)) -> Option<Value> {
    let mut object = observed.object.clone()?;
    let spec = object.as_object_mut()?.entry("spec").or_insert_with(|| json!({}));
    if !spec.is_object() {
        *spec = json!({});
    }
    change(spec.as_object_mut()?);
    Some(object)
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
            ("absent: create", vec![(0, None)], 0, Action::Create),
            ("ours: renew", vec![(0, Some(lease("me", old)))], 0, Action::Renew),
            ("ours after a restart, expired: renew", vec![(0, Some(lease("me", old)))], 60, Action::Renew),
            ("given up: take", vec![(0, Some(lease("", old)))], 0, take("")),
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
            ("deleted: create", vec![(0, Some(lease("other", old))), (1, None)], 1, Action::Create),
        ];
        let start = Instant::now();
        for (name, looks, now, expected) in cases {
            let mut observed = None;
            for (seconds, object) in looks {
                let at = start + Duration::from_secs(seconds);
                observed = Some(Observed::update(observed.as_ref(), object, at));
            }
            let action = evaluate(&observed.unwrap(), start + Duration::from_secs(now), "me", &TIMING);
            assert_eq!(action, expected, "{name}");
        }
    }

    #[test]
    fn the_holders_own_duration_counts() {
        let start = Instant::now();
        let mut short = lease("other", "1999-01-01T00:00:00.000000Z");
        short["spec"]["leaseDurationSeconds"] = json!(1);
        let observed = Observed::update(None, Some(short), start);
        let after = |seconds| evaluate(&observed, start + Duration::from_secs(seconds), "me", &TIMING);
        assert!(matches!(after(0), Action::Wait { .. }));
        assert!(matches!(after(1), Action::TakeOver { .. }));
    }

    #[test]
    fn a_renewal_changes_nothing_but_its_time() {
        let observed =
            Observed::update(None, Some(lease("me", "1999-01-01T00:00:00.000000Z")), Instant::now());
        let mut expected = lease("me", "2026-01-02T03:04:05.000678Z");
        assert_eq!(renewal(&observed, "me", &TIMING, wall()), Some(expected.clone()));

        // Taken by another: holder, acquisition and number of transitions, too.
        expected["spec"]["holderIdentity"] = json!("you");
        expected["spec"]["acquireTime"] = json!("2026-01-02T03:04:05.000678Z");
        expected["spec"]["leaseTransitions"] = json!(4);
        assert_eq!(renewal(&observed, "you", &TIMING, wall()), Some(expected));
    }

    #[test]
    fn a_release_leaves_nobody_and_only_gives_up_what_is_ours() {
        let observed =
            Observed::update(None, Some(lease("me", "1999-01-01T00:00:00.000000Z")), Instant::now());
        let body = released(&observed, "me", wall()).unwrap();
        assert_eq!(body["spec"]["holderIdentity"], json!(""));
        assert_eq!(body["spec"]["leaseDurationSeconds"], json!(1));
        assert_eq!(body["spec"]["leaseTransitions"], json!(3));
        assert_eq!(body["metadata"]["resourceVersion"], json!("7"));
        assert_eq!(released(&observed, "you", wall()), None);
    }

    #[test]
    fn a_lease_without_a_spec_can_be_taken() {
        let observed = Observed::update(None, Some(json!({"metadata": {"name": "mooring"}})), Instant::now());
        assert_eq!(
            evaluate(&observed, Instant::now(), "me", &TIMING),
            Action::TakeOver { from: String::new() }
        );
        let body = renewal(&observed, "me", &TIMING, wall()).unwrap();
        assert_eq!(body["spec"]["holderIdentity"], json!("me"));
        assert_eq!(body["spec"]["leaseTransitions"], json!(1));
    }
}
