//! What becomes of the facts of a plan: metrics, log lines and traces.
//!
//! In: [`PlanFacts`]. Out: effects, and no decision: nothing that is decided rests on what is counted here.

use apiserver::{
    ids::PodKey,
    kinds::{Narrow, Node},
};
use telemetry::traces::Traces;
use tokio::time::Instant;

use super::{
    end_to_end::EndToEnd,
    facts::{Fact, Forced, Line, PlanFacts},
    metrics::{AttachDetachMetrics, Planned},
    state::{AttachDetachKey, NodeVolumeKey},
};
use crate::{
    attach_detach::{actual::state::ForceReason, desired::state::Unresolved, guard::force_waits::Said},
    controller::report::ReportKey,
    telemetry::transition::Named,
};

/// Counts, logs and traces. A copy shares the metrics.
#[derive(Clone, Debug)]
pub struct AttachDetachReporter {
    metrics: AttachDetachMetrics,
    end_to_end: EndToEnd,
}

impl AttachDetachReporter {
    /// Reports with these metrics.
    #[must_use]
    pub fn new(metrics: AttachDetachMetrics) -> Self {
        Self { end_to_end: metrics.end_to_end(), metrics }
    }

    /// Traces attaches and detaches from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.end_to_end.trace(traces);
    }

    /// Reports.
    pub fn take(&mut self, facts: PlanFacts, now: Instant) {
        for (kind, count) in Planned::ALL.into_iter().zip(facts.planned).filter(|(_, count)| *count > 0) {
            self.metrics.planned_many(kind, count);
        }
        for fact in facts.facts {
            self.report(fact, now);
        }
    }

    fn report(&mut self, fact: Fact, now: Instant) {
        match fact {
            Fact::Leads => self.end_to_end.forget_all(),
            Fact::OperationFailed(volume, node, operation) => {
                self.end_to_end.failed(&volume, &node, operation, now);
            }
            Fact::Patched(volumes) => self.metrics.patches(volumes),
            Fact::Counted { volume, scope, nodes } => self.metrics.count(&volume, &scope, &nodes),
            Fact::Refused(guard) => self.metrics.refused(guard),
            Fact::Progress(volume, node, progress) => self.end_to_end.follow(&volume, &node, progress, now),
            Fact::Forgotten(volume, node) => self.end_to_end.forget(&volume, &node),
            Fact::Unresolved(pod, new) => new.iter().for_each(|new| self.unresolved(&pod, new)),
            Fact::Forced(volume, node, reason, forced) => {
                self.forced(&NodeVolumeKey { volume, node }, reason, forced);
            }
            Fact::Line(line) => log(&line),
        }
    }

    fn unresolved(&self, pod: &PodKey, Unresolved { pod_volume: volume, why }: &Unresolved) {
        let reason = why.code();
        self.metrics.unresolved(reason);
        let Named { object, namespace } = AttachDetachKey::PodVolume(pod.clone(), volume.clone()).named();
        if why.is_permanent() {
            tracing::warn!(object, namespace, reason, volume, "volume of a pod cannot be attached");
        } else {
            tracing::debug!(object, namespace, reason, volume, "volume of a pod not attachable yet");
        }
    }

    fn forced(&self, key: &NodeVolumeKey, reason: ForceReason, forced: Forced) {
        let because = reason.label();
        let NodeVolumeKey { volume, node } = key;
        let Named { object, .. } = key.named();
        match forced {
            Forced::Tainted => self.metrics.forced(reason),
            Forced::Begins => {
                self.metrics.forced(reason);
                tracing::warn!(object, reason = "ForcedDetach", because, %volume, %node, "forcing the detach of a volume that may be in use");
            }
            Forced::Done => {
                tracing::warn!(object, reason = "ForcedDetach", because, %volume, %node, "the forced detach is done");
            }
        }
    }
}

fn log(line: &Line) {
    match line {
        Line::Loaded { attachments, pods } => {
            tracing::info!(attachments, pods, "attach/detach state loaded");
        }
        Line::Failed { volume, node, attempt, error, what } => {
            let Named { object, .. } = NodeVolumeKey::new(volume, node).named();
            tracing::warn!(object, reason = "RetryBackoff", attempt, %volume, %node, %error, "{what}");
        }
        Line::NodeFailed { node, attempt, error } => {
            let Named { object, .. } = Named::in_cluster(Node::KIND, node.as_str());
            tracing::warn!(object, reason = "RetryBackoff", attempt, %error, "request for the node failed");
        }
        Line::NameTaken { volume, node, attempt } => {
            let Named { object, .. } = NodeVolumeKey::new(volume, node).named();
            tracing::warn!(object, reason = "ForeignAttachment", attempt, %volume, %node, "the name of the attachment is taken");
        }
        Line::GraceOver => tracing::warn!("the grace after the restore is over: detaching again"),
        Line::ForceWaits(said) => log_waits(*said),
    }
}

fn log_waits(said: Said) {
    match said {
        Said::Unreadable => tracing::warn!(
            "what the lease says of nodes that are not Ready is ignored, as it cannot be read: the six minutes of all of \
             them begin anew"
        ),
        Said::TakenOver { go_on, begin_anew } => tracing::info!(
            go_on,
            begin_anew,
            "nodes that are not Ready: the lease says how long volumes have waited there"
        ),
        Said::LeftOut(left_out) => tracing::warn!(
            left_out,
            "volumes wait on more nodes that are not Ready than the lease has room for: a successor begins the latest anew"
        ),
    }
}
