//! Binds as traces: from when a bind was possible to the answer to the last write, a phase for each write.

use tokio::time::Instant;

use super::reason::ClaimReason;
use crate::{
    binder::{
        decide::decision::{Target, WriteKind},
        planner::Planner,
    },
    kube_api::ids::ClaimKey,
    traces::{End, Traces, Trails},
};

/// Name of the span.
const BIND: &str = "bind claim";

/// The phase before the first write.
const QUEUE: &str = "queue";

impl Planner {
    /// Traces binds from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.trails = Trails::of(traces);
    }

    /// A look at a claim found this write of a bind to be next, or that its class has to be read first. If that is
    /// how it begins, it could have begun at the first time.
    pub(crate) fn follow_bind(
        &mut self,
        key: &ClaimKey,
        step: Option<WriteKind>,
        since: Instant,
        now: Instant,
    ) {
        let before = self.standing.claim(key);
        let goes_on = matches!(before, Some(ClaimReason::Binding(..) | ClaimReason::ProvingClass(_)));
        if !goes_on && self.trails.id(key).is_none() {
            self.trails.begin(key, BIND, QUEUE, since);
        }
        if let Some(step) = step {
            self.trails.reach(key, step.as_str(), now);
        }
    }

    /// A bind has ended.
    pub(crate) fn end_bind(&mut self, key: &ClaimKey, end: End, now: Instant) {
        if self.trails.id(key).is_none() {
            return;
        }
        let attempts = self.attempt(&Target::Claim(key.clone()));
        let claim = self.objects.claims.get(key);
        let volume = claim.map(|claim| claim.spec.volume_name.to_string()).unwrap_or_default();
        self.trails.end(key, end, now, || {
            vec![
                ("k8s.namespace.name", key.namespace().to_owned()),
                ("k8s.persistentvolumeclaim.name", key.name().to_owned()),
                ("k8s.persistentvolume.name", volume),
                ("mooring.attempts", attempts.to_string()),
            ]
        });
    }
}
