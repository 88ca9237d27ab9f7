//! Binds as traces: from the first look that found a volume to the answer to the last write, a phase for each write.

use tokio::time::Instant;

use super::{
    decision::{Target, WriteKind},
    planner::Planner,
    reason::ClaimReason,
};
use crate::{
    kube_api::ids::ClaimKey,
    traces::{End, Traces, Trails},
};

/// Name of the span.
const BIND: &str = "bind claim";

impl Planner {
    /// Traces binds from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.trails = Trails::of(traces);
    }

    /// A look at a claim found this write of a bind to be next.
    pub(super) fn follow_bind(&mut self, key: &ClaimKey, step: WriteKind, now: Instant) {
        let goes_on = matches!(self.standing.claim(key), Some(ClaimReason::Binding(..)));
        if self.trails.id(key).is_some() {
            self.trails.reach(key, step.as_str(), now);
        } else if !goes_on {
            self.trails.begin(key, BIND, step.as_str(), now);
        }
    }

    /// A bind has ended.
    pub(super) fn end_bind(&mut self, key: &ClaimKey, end: End, now: Instant) {
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
