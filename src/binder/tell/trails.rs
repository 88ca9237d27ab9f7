//! Binds as traces: from when a bind was possible to the answer to the last write, a phase for each write.

use tokio::time::Instant;

use crate::{
    binder::act::write::WriteKind,
    kube_api::{ids::ClaimKey, kinds::PersistentVolumeClaim},
    metrics::exemplar::TraceId,
    traces::{End, Traces, Trails},
};

/// Name of the span.
const BIND: &str = "bind claim";

/// The phase before the first write.
const QUEUE: &str = "queue";

/// Binds that are traced.
#[derive(Debug, Default)]
pub(crate) struct BindTrails(Trails<ClaimKey>);

impl BindTrails {
    /// Traces binds from now on.
    pub(crate) fn of(traces: Traces) -> Self {
        Self(Trails::of(traces))
    }

    pub(crate) fn id(&self, key: &ClaimKey) -> Option<TraceId> {
        self.0.id(key)
    }

    /// This write of a bind is next, or the class has to be read first. A bind that begins so could have begun at the
    /// first time.
    pub(crate) fn follow(
        &mut self,
        key: &ClaimKey,
        step: Option<WriteKind>,
        has_begun: bool,
        since: Instant,
        now: Instant,
    ) {
        if !has_begun && self.0.id(key).is_none() {
            self.0.begin(key, BIND, QUEUE, since);
        }
        if let Some(step) = step {
            self.0.reach(key, step.as_str(), now);
        }
    }

    /// A bind has ended.
    pub(crate) fn end(
        &mut self,
        key: &ClaimKey,
        end: End,
        attempts: u32,
        claim: Option<&PersistentVolumeClaim>,
        now: Instant,
    ) {
        if self.0.id(key).is_none() {
            return;
        }
        let volume = claim.map(|claim| claim.spec.volume_name.to_string()).unwrap_or_default();
        self.0.end(key, end, now, || {
            vec![
                ("k8s.namespace.name", key.namespace().to_owned()),
                ("k8s.persistentvolumeclaim.name", key.name().to_owned()),
                ("k8s.persistentvolume.name", volume),
                ("mooring.attempts", attempts.to_string()),
            ]
        });
    }

    pub(crate) fn forget(&mut self, key: &ClaimKey) {
        self.0.forget(key);
    }
}
