//! Reporter: turns what a plan reports into metrics, log lines, traces and the debug page.
//!
//! In: [`Reports`]. Out: effects, and no decision: nothing that is decided rests on what is counted or shown here.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    diagnostics::{Diagnostics, NodeVolumeWait, State},
    end_to_end::EndToEnd,
    metrics::{AttachDetachMetrics, Planned},
    report::{Forced, Judged, Line, Report, Reports},
    transitions::{Stood, log_change, named, named_pod},
};
use crate::{
    attach_detach::{
        actual::state::ForceReason,
        decide::verdict::Waiting,
        desired::{state::Unresolved, volume_name::VolumeId},
        guard::force_waits::Said,
    },
    controller::diagnostics::Reason,
    kube_api::{
        ids::{AttachmentName, NodeName, PodKey},
        kinds::{Narrow, Node, VolumeAttachment},
    },
    telemetry::{history::History, transition::Named},
    traces::Traces,
};

/// Counts, logs, traces and shows.
#[derive(Debug)]
pub struct Reporter {
    metrics: AttachDetachMetrics,
    end_to_end: EndToEnd,
    diagnostics: Arc<Diagnostics>,
    history: History,
}

/// A copy that goes its own way, but for the metrics.
impl Clone for Reporter {
    fn clone(&self) -> Self {
        Self {
            metrics: self.metrics.clone(),
            end_to_end: self.end_to_end.clone(),
            diagnostics: Arc::new(Diagnostics::clone(&self.diagnostics)),
            history: self.history.clone(),
        }
    }
}

impl Reporter {
    /// Reports with these metrics.
    #[must_use]
    pub fn new(metrics: AttachDetachMetrics) -> Self {
        let end_to_end = metrics.end_to_end();
        Self { metrics, end_to_end, diagnostics: Arc::default(), history: History::default() }
    }

    /// Traces attaches and detaches from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.end_to_end.trace(traces);
    }

    /// Remembers changes there from now on.
    pub fn remember(&mut self, history: History) {
        self.history = history;
    }

    /// What every volume on every node waits for.
    #[must_use]
    pub fn diagnostics(&self) -> Arc<Diagnostics> {
        Arc::clone(&self.diagnostics)
    }

    /// Reports.
    pub fn take(&mut self, reports: Reports, now: Instant) {
        for (kind, count) in Planned::ALL.into_iter().zip(reports.planned).filter(|(_, count)| *count > 0) {
            self.metrics.planned_many(kind, count);
        }
        for report in reports.reports {
            self.report(report, now);
        }
    }

    fn report(&mut self, report: Report, now: Instant) {
        match report {
            Report::Leads => {
                self.diagnostics.lead(now);
                self.end_to_end.forget_all();
            }
            Report::Ended(volume, ended) => {
                self.metrics.observe(&volume, ended.operation, ended.ending, ended.migrated, ended.took);
            }
            Report::Patched(volumes) => self.metrics.patches(volumes),
            Report::Counted { volume, scope, nodes } => self.metrics.count(&volume, &scope, &nodes),
            Report::Decided(reason) => self.metrics.decided(reason),
            Report::Judged(volume, node, judged) => self.judged(&volume, &node, judged, now),
            Report::Progress(volume, node, progress) => self.end_to_end.follow(&volume, &node, progress, now),
            Report::Forgotten(volume, node) => self.end_to_end.forget(&volume, &node),
            Report::Foreign { name, volume, node } => {
                self.foreign(&name, volume.as_ref(), node.as_ref(), now);
            }
            Report::Unresolved { pod, before, found, new } => {
                if before != found {
                    self.diagnostics.set_unresolved(&pod, &before, &found, now);
                }
                self.unresolved(&pod, &new);
            }
            Report::Forced(volume, node, reason, forced) => self.forced(&volume, &node, reason, forced),
            Report::SecondWriters(news) => {
                self.diagnostics.set_second_writers(self.metrics.second_writers.tell(&news));
            }
            Report::Line(line) => log(&line),
        }
    }

    fn judged(&self, volume: &VolumeId, node: &NodeName, judged: Judged, now: Instant) {
        let Judged { state, waiting, next, attempt, revision } = judged;
        let settled = if waiting.is_none() { state } else { State::default() };
        let rest = self.diagnostics.settle(volume, node, settled, now);
        let to = waiting.as_ref().map(Waiting::code);
        let wait = waiting.map(|waiting| (NodeVolumeWait { state, waiting }, next));
        let before = self.diagnostics.set(volume, node, wait, now);
        let from = before.as_ref().map(|before| before.reason.code());
        if from != to
            && let Some(to) = to.filter(|to| Waiting::GUARDS.contains(to))
        {
            self.metrics.refused(to);
        }
        let before = match &before {
            Some(wait) => {
                Stood { state: wait.reason.state, reason: wait.reason.code(), since: Some(wait.since) }
            }
            None => Stood::at_rest(rest),
        };
        log_change(
            &self.history,
            (volume, node),
            before,
            (state, to.unwrap_or(state.code())),
            (attempt, revision),
            now,
        );
    }

    fn foreign(
        &self,
        name: &AttachmentName,
        volume: Option<&VolumeId>,
        node: Option<&NodeName>,
        now: Instant,
    ) {
        let change = self.diagnostics.set_foreign(name, volume, node, now);
        if change == 0 {
            return;
        }
        self.metrics.foreign_attachments(change);
        let node = node.map(NodeName::as_str);
        let Named { object, .. } = Named::in_cluster(VolumeAttachment::KIND, name.as_str());
        let volume = volume.map(VolumeId::as_str);
        let (from, to) = if change > 0 { ("", "Foreign") } else { ("Foreign", "") };
        tracing::info!(
            object,
            reason = "ForeignAttachment",
            from,
            to,
            volume,
            node,
            "VolumeAttachment that is not ours"
        );
    }

    fn unresolved(&self, pod: &PodKey, new: &[Unresolved]) {
        for unresolved in new {
            let reason = unresolved.why.code();
            self.metrics.unresolved(reason);
            let volume = &unresolved.pod_volume;
            let Named { object, namespace } = named_pod(pod);
            if unresolved.why.is_permanent() {
                tracing::warn!(object, namespace, reason, volume, "volume of a pod cannot be attached");
            } else {
                tracing::debug!(object, namespace, reason, volume, "volume of a pod not attachable yet");
            }
        }
    }

    fn forced(&self, volume: &VolumeId, node: &NodeName, reason: ForceReason, forced: Forced) {
        let because = reason.label();
        let Named { object, .. } = named(volume, node);
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
            let Named { object, .. } = named(volume, node);
            tracing::warn!(object, reason = "RetryBackoff", attempt, %volume, %node, %error, "{what}");
        }
        Line::NodeFailed { node, attempt, error } => {
            let Named { object, .. } = Named::in_cluster(Node::KIND, node.as_str());
            tracing::warn!(object, reason = "RetryBackoff", attempt, %error, "request for the node failed");
        }
        Line::NameTaken { volume, node, attempt } => {
            let Named { object, .. } = named(volume, node);
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
