//! KCM's lease while the way back holds it. Its old leader exits when it cannot renew it.
//!
//! In: the lease as it was read. Out: since when it is held without a break, and writes, each on the revision that was read. A
//! task of its own renews it: a look at many volumes, or one that waits for answers, may take longer than it lasts.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::{
    fence::ask::{NoAnswer, patch, read, text},
    preflight::facts::MANAGER_LEASE,
};

/// The lease that keeps a second switch out.
pub(super) const LOCK: &str = "/apis/coordination.k8s.io/v1/namespaces/mooring-system/leases/mooring-switch";
/// Who held KCM's lease when mooring had stopped, an annotation of the lock.
pub(super) const LED_AT_STOP: &str = "mooring.dev/manager-at-stop";
/// The same when the fence was taken down: whatever process of KCM leads from then on is denied nothing.
pub(super) const FREED: &str = "mooring.dev/manager-freed";
/// The same before the first binding goes: a run that is cut off here goes on in the next one.
pub(super) const FREEING: &str = "mooring.dev/manager-being-freed";
/// Between two renewals, as leaders do it.
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Who holds a lease.
pub(super) fn holder(lease: &Value) -> &str {
    text(lease, "/spec/holderIdentity")
}

/// What a lease says that is held from now on.
pub(super) fn held(identity: &str, lasts: Duration) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    json!({ "holderIdentity": identity, "leaseDurationSeconds": lasts.as_secs(), "renewTime": now })
}

/// Since when the lease is ours. Pure.
///
/// It has been so without a break, even if it ran out: whoever takes it writes it, and is found as its holder by the next
/// read. Each of our writes is made of the revision that was read.
#[derive(Debug, Default)]
pub(super) struct ManagerHold {
    since: Option<Instant>,
}

impl ManagerHold {
    /// Takes note of the lease as it was read. Returns since when it is ours.
    pub(super) fn note(&mut self, lease: &Value, identity: &str, now: Instant) -> Option<Instant> {
        let is_ours = !identity.is_empty() && holder(lease) == identity;
        self.since = is_ours.then(|| self.since.unwrap_or(now));
        self.since
    }

    /// Whether it may be written as it was read. A take has it from whoever holds it; for each other write it has to be ours
    /// still: a process of KCM that leads meanwhile was denied writes, or has begun to rule.
    pub(super) fn may_write(&mut self, is_take: bool, lease: &Value, identity: &str, now: Instant) -> bool {
        self.note(lease, identity, now).is_some() || is_take
    }
}

/// Writes it.
#[derive(Clone)]
pub(super) struct ManagerLease {
    client: Client,
    identity: String,
    /// Locked from the read to the write.
    hold: Arc<Mutex<ManagerHold>>,
}

impl ManagerLease {
    pub(super) fn new(client: Client, identity: String) -> Self {
        Self { client, identity, hold: Arc::default() }
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// See [`ManagerHold::note`].
    pub(super) async fn note(&self, lease: &Value, now: Instant) -> Option<Instant> {
        self.hold.lock().await.note(lease, &self.identity, now)
    }

    /// For how long it has been ours.
    pub(super) async fn held(&self) -> Option<Duration> {
        self.hold.lock().await.since.map(|since| since.elapsed())
    }

    /// Takes, renews or gives up the lease, if that [may](ManagerHold::may_write) be. Returns whether it was written.
    pub(super) async fn write(&self, is_take: bool, spec: &Value) -> Result<bool, NoAnswer> {
        let mut hold = self.hold.lock().await;
        let lease = read(&self.client, MANAGER_LEASE).await?.ok_or_else(|| {
            let why = "kube-controller-manager has no lease: restart it by hand while it is fenced (docs/adopting.md)";
            NoAnswer::Refused(404, why.to_owned())
        })?;
        if !hold.may_write(is_take, &lease, &self.identity, Instant::now()) {
            return Ok(false);
        }
        match patch(&self.client, MANAGER_LEASE, &lease, json!({ "spec": spec })).await {
            Ok(()) => {
                hold.note(&json!({ "spec": spec }), &self.identity, Instant::now());
                Ok(true)
            }
            // Somebody has written it in between.
            Err(NoAnswer::Refused(409, _)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews it for as long as it is ours.
    pub(super) async fn keep(self, lasts: Duration) {
        loop {
            sleep(RENEW_EVERY).await;
            let is_ours = self.hold.lock().await.since.is_some();
            if is_ours {
                // The next read shows what became of it.
                let _ = self.write(false, &held(&self.identity, lasts)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_managers_lease_is_taken_once_then_only_kept_and_held_anew_when_it_was_anothers() {
        let held_by = |holder: &str| json!({ "spec": { "holderIdentity": holder } });
        let (mut hold, start) = (ManagerHold::default(), Instant::now());
        // Second, holder, whether it is a take, whether it may be written, and for how long it has been held then.
        let course = [
            (0, "kcm-1", false, false, None),
            (1, "kcm-1", true, true, None),
            (2, "us", false, true, Some(0)),
            (30, "us", false, true, Some(28)),
            (31, "kcm-2", false, false, None),
            (32, "us", true, true, Some(0)),
            (40, "kcm-2", true, true, None),
            (41, "us", false, true, Some(0)),
            (42, "", false, false, None),
            (43, "", true, true, None),
        ];
        for (second, holder, is_take, may, seconds) in course {
            let now = start + Duration::from_secs(second);
            assert_eq!(hold.may_write(is_take, &held_by(holder), "us", now), may, "{second}");
            let since = hold.note(&held_by(holder), "us", now);
            assert_eq!(since.map(|since| now.duration_since(since).as_secs()), seconds, "{second}");
        }
        assert_eq!(hold.note(&held_by(""), "", start), None, "a plan holds nothing");
    }
}
