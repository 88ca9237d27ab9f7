//! Metrics of the attach/detach subsystem, KCM's by name, and its log lines that are no change of a key's state.
//!
//! In: reports with the reason before each, and the facts of plans. Out: effects, and no decision: nothing that is decided
//! rests on what is counted here.

use apiserver::call::CallError;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGaugeVec};
use strum::VariantNames as _;
use tokio::time::Instant;

use super::{
    calls::{AttachmentRequest, Call},
    decide::verdict::Waiting,
    durations::{Durations, plugin_name},
    facts::{Fact, Forced, PlanFacts, Planned},
    reasons::{AttachDetachKey, AttachDetachReason, NodeVolumeKey, Report},
    state::{
        actual::{ForceReason, Operation},
        desired::{WhyUnresolved, volume_name::VolumeKind},
    },
};
use crate::{
    controller::report::{Reason as _, ReportKey as _},
    metrics::{Metrics, float, write_conflicts},
    telemetry::transition::Named,
};

/// The subsystem's metrics.
#[derive(Clone, Debug)]
pub struct AttachDetachMetrics {
    totals: IntGaugeVec,
    forced: IntCounterVec,
    unresolved: IntCounterVec,
    planned: IntCounterVec,
    refusals: IntCounterVec,
    pub(crate) durations: Durations,
    conflicts: IntCounterVec,
    patches: Histogram,
    in_use: IntGaugeVec,
}

/// Volumes in one patch: from a lone one to what a node may have attached.
const PATCH_BUCKETS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// What a write is for, as a label value: all that name a UID or a revision; what is created names none.
const WRITES: [&str; 2] = ["delete_attachment", "patch_node_status"];

impl AttachDetachMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let patches = Histogram::with_opts(
            HistogramOpts::new(
                "mooring_node_status_volumes_per_patch",
                "Volumes that one patch of a node's status adds to its list or removes from it",
            )
            .buckets(PATCH_BUCKETS.to_vec()),
        )?;
        metrics.register(&patches)?;
        Ok(Self {
            totals: metrics.gauges(
                "attachdetach_controller_total_volumes",
                "Number of volumes in A/D Controller",
                &["plugin_name", "state"],
            )?,
            forced: metrics.counters_of(
                "attach_detach_controller_attachdetach_controller_forced_detaches",
                "Number of times the A/D Controller performed a forced detach",
                "reason",
                &[ForceReason::Timeout, ForceReason::OutOfService].map(ForceReason::label),
            )?,
            unresolved: metrics.counters_of(
                "mooring_unresolved_pod_volumes_total",
                "Volumes of pods that could not be attached at the first decision, by reason",
                "reason",
                &[],
            )?,
            planned: metrics.counters_of(
                "mooring_planned_keys_total",
                "Objects reconciled because something changed, by kind",
                "kind",
                Planned::VARIANTS,
            )?,
            refusals: metrics.counters_of(
                "mooring_guard_refusals_total",
                "Actions that a safety rule prevented, by rule",
                "guard",
                &Waiting::GUARDS,
            )?,
            durations: Durations::new(metrics)?,
            conflicts: write_conflicts(metrics, &WRITES)?,
            patches,
            in_use: metrics.gauges(
                "storage_count_attachable_volumes_in_use",
                "Measure number of volumes in use",
                &["node", "volume_plugin"],
            )?,
        })
    }

    /// Takes note of a report, and of what was reported before.
    pub fn reported(&mut self, before: Option<&AttachDetachReason>, report: &Report, now: Instant) {
        let Report { key, reason, attempt, .. } = report;
        match (key, reason) {
            (AttachDetachKey::NodeVolume(key), reason) => {
                self.count(key, before, reason.as_ref());
                let (waited, waits) = (waiting(before), waiting(reason.as_ref()));
                if let Some(guard) = waits.map(<&str>::from).filter(|code| Waiting::GUARDS.contains(code))
                    && waited.map(<&str>::from) != Some(guard)
                {
                    self.refusals.with_label_values(&[guard]).inc();
                }
                // The driver's error is the failure of an operation each time that it says so.
                let failed = match waits.filter(|_| waited != waits) {
                    Some(Waiting::AttachError { .. }) => Some(Operation::Attach),
                    Some(Waiting::DetachError { .. }) => Some(Operation::Detach),
                    _ => None,
                };
                if let Some(operation) = failed {
                    self.durations.failed(key, operation, now);
                }
                match reason {
                    Some(AttachDetachReason::NodeVolume(_, _, progress))
                        if key.volume.kind() == VolumeKind::Csi =>
                    {
                        self.durations.follow(key, progress, *attempt, now);
                    }
                    _ => self.durations.forget(key),
                }
            }
            (AttachDetachKey::PodVolume(_, volume), Some(AttachDetachReason::Unresolved(why, true)))
                if before != reason.as_ref() =>
            {
                self.unresolved.with_label_values(&[<&str>::from(why)]).inc();
                log_unresolved(&key.named(), volume, why);
            }
            _ => {}
        }
    }

    /// Counts where a volume is desired and attached. What the board does not keep counts nothing.
    fn count(
        &self,
        NodeVolumeKey { volume, node }: &NodeVolumeKey,
        before: Option<&AttachDetachReason>,
        now: Option<&AttachDetachReason>,
    ) {
        let counted = |reason: Option<&AttachDetachReason>| match reason {
            Some(kept @ AttachDetachReason::NodeVolume(_, _, progress))
                if !kept.is_settled() || kept.is_shown_settled() =>
            {
                (i64::from(progress.is_attached), i64::try_from(progress.users).unwrap_or(i64::MAX))
            }
            _ => (0, 0),
        };
        let ((was_attached, users_before), (is_attached, users)) = (counted(before), counted(now));
        if (was_attached, users_before) == (is_attached, users) {
            return;
        }
        let plugin = plugin_name(volume);
        let total = |state, change| self.totals.with_label_values(&[plugin.as_str(), state]).add(change);
        total("desired_state_of_world", i64::from(users > 0) - i64::from(users_before > 0));
        total("actual_state_of_world", is_attached - was_attached);
        if users != users_before {
            let labels = [node.as_str(), plugin.as_str()];
            let gauge = self.in_use.with_label_values(&labels);
            gauge.add(users - users_before);
            if gauge.get() == 0 {
                // Nodes come and go; what is not used has no series, as with KCM.
                let _absent = self.in_use.remove_label_values(&labels);
            }
        }
    }

    /// When there is more to measure although nothing happens.
    pub fn next_due(&self) -> Option<Instant> {
        self.durations.next_due()
    }

    /// Counts and logs the facts of a plan. What one event makes of `planned` must not grow with the cluster.
    pub fn take(&mut self, facts: PlanFacts, now: Instant) {
        for (kind, count) in facts.planned {
            self.planned.with_label_values(&[<&str>::from(kind)]).inc_by(count as u64);
        }
        for fact in facts.facts {
            match &fact {
                Fact::Patched(volumes) => self.patches.observe(float(*volumes)),
                Fact::Forced(_, reason, Forced::Begins | Forced::Tainted) => {
                    self.forced.with_label_values(&[reason.label()]).inc();
                }
                Fact::Failed(key, operation) => self.durations.failed(key, *operation, now),
                _ => {}
            }
            log(&fact);
        }
        self.durations.tick(now);
    }

    /// Counts an answer that says that something had changed meanwhile.
    pub fn answered<T>(&self, call: &Call, result: &Result<T, CallError>) {
        let [delete, patch] = WRITES;
        let write = match call {
            Call::Attachment(_, _, AttachmentRequest::Delete(..)) => delete,
            Call::PatchNode(..) => patch,
            _ => return,
        };
        if let Err(CallError::Conflict(_)) = result {
            self.conflicts.with_label_values(&[write]).inc();
        }
    }
}

fn waiting(reason: Option<&AttachDetachReason>) -> Option<&Waiting> {
    if let Some(AttachDetachReason::NodeVolume(_, waiting, _)) = reason { waiting.as_ref() } else { None }
}

fn log_unresolved(Named { object, namespace }: &Named, volume: &str, why: &WhyUnresolved) {
    let reason = <&str>::from(why);
    if why.is_permanent() {
        tracing::warn!(object, namespace, reason, volume, "volume of a pod cannot be attached");
    } else {
        tracing::debug!(object, namespace, reason, volume, "volume of a pod not attachable yet");
    }
}

fn log(fact: &Fact) {
    match fact {
        Fact::Loaded { attachments, pods } => {
            tracing::info!(attachments, pods, "attach/detach state loaded");
        }
        Fact::Forced(key, reason, forced @ (Forced::Begins | Forced::Done)) => {
            let (Named { object, .. }, NodeVolumeKey { volume, node }) = (key.named(), key);
            let (because, what) = (
                reason.label(),
                if *forced == Forced::Begins {
                    "forcing the detach of a volume that may be in use"
                } else {
                    "the forced detach is done"
                },
            );
            tracing::warn!(object, reason = "ForcedDetach", because, %volume, %node, "{what}");
        }
        Fact::GraceOver => tracing::warn!("the grace after the restore is over: detaching again"),
        Fact::ForceWaits(None) => tracing::warn!(
            "what the lease says of nodes that are not Ready is ignored, as it cannot be read: the six minutes of all of \
             them begin anew"
        ),
        Fact::ForceWaits(Some([go_on, begin_anew])) => tracing::info!(
            go_on,
            begin_anew,
            "nodes that are not Ready: the lease says how long volumes have waited there"
        ),
        Fact::Patched(_) | Fact::Failed(..) | Fact::Forced(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::{DriverName, NodeName};

    use super::*;
    use crate::attach_detach::{
        phases::{Phase, Progress},
        reasons::AttachState,
        state::desired::volume_name::VolumeId,
    };

    #[test]
    fn names_helps_labels_and_buckets_are_those_of_kcm() {
        let registry = Metrics::default();
        let mut metrics = AttachDetachMetrics::new(&registry).unwrap();
        let (volume, start) = (VolumeId::csi(&DriverName::from("d"), "h"), Instant::now());
        let minute = start + Duration::from_mins(1);
        let key = |node: &str| NodeVolumeKey::new(&volume, &NodeName::from(node));
        let asks = Progress {
            operation: Operation::Attach,
            stands: Some((Phase::Api, true)),
            may_begin: true,
            forced: false,
            is_done: false,
            is_migrated: false,
            is_attached: true,
            users: 1,
        };
        let durations = &mut metrics.durations;
        durations.follow(&key("n1"), &asks, 1, start);
        durations.follow(&key("n1"), &Progress { stands: None, is_done: true, ..asks }, 1, minute);
        let detaches = Progress { operation: Operation::Detach, is_migrated: true, ..asks };
        durations.follow(&key("n2"), &detaches, 1, start);
        durations.failed(&key("n2"), Operation::Detach, minute);
        metrics.forced.with_label_values(&[ForceReason::Timeout.label()]).inc();
        let reason =
            |users| AttachDetachReason::NodeVolume(AttachState::Attached, None, Progress { users, ..asks });
        metrics.count(&key("n1"), None, Some(&reason(1)));
        metrics.count(&key("n2"), None, Some(&reason(3)));
        metrics.count(&key("n3"), None, Some(&reason(1)));
        metrics.count(&key("n1"), Some(&reason(1)), Some(&reason(2)));
        assert_eq!(
            metrics.totals.with_label_values(&["kubernetes.io/csi:d", "desired_state_of_world"]).get(),
            3
        );
        metrics.count(&key("n2"), Some(&reason(3)), None);
        metrics.count(&key("n3"), Some(&reason(1)), None);
        let text = registry.text().unwrap();
        let operation = |name: &str, status: &str, migrated: &str| {
            format!(
                "migrated=\"{migrated}\",operation_name=\"{name}\",status=\"{status}\",volume_plugin=\"kubernetes.io/csi:d\""
            )
        };
        let attach = operation("volume_attach", "success", "false");
        let mut expected = vec![
            "# HELP storage_operation_duration_seconds Storage operation duration".to_owned(),
            format!("storage_operation_duration_seconds_sum{{{attach}}} 60"),
            format!(
                "storage_operation_duration_seconds_count{{{}}} 1",
                operation("volume_detach", "fail-unknown", "true")
            ),
            "# HELP attachdetach_controller_total_volumes Number of volumes in A/D Controller".to_owned(),
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:d\",state=\"desired_state_of_world\"} 1".to_owned(),
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:d\",state=\"actual_state_of_world\"} 1".to_owned(),
            "# HELP attach_detach_controller_attachdetach_controller_forced_detaches Number of times the A/D Controller performed a forced detach".to_owned(),
            "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"timeout\"} 1".to_owned(),
            "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"out-of-service\"} 0".to_owned(),
            "# HELP storage_count_attachable_volumes_in_use Measure number of volumes in use".to_owned(),
            "storage_count_attachable_volumes_in_use{node=\"n1\",volume_plugin=\"kubernetes.io/csi:d\"} 2".to_owned(),
        ];
        for bound in
            ["0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50", "120", "300", "600", "+Inf"]
        {
            let count =
                u8::from(!["0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50"].contains(&bound));
            expected.push(format!(
                "storage_operation_duration_seconds_bucket{{{attach},le=\"{bound}\"}} {count}"
            ));
        }
        let lines: Vec<&str> = text.lines().collect();
        for line in &expected {
            assert!(lines.contains(&line.as_str()), "{line}\nis missing in\n{text}");
        }
        assert_eq!(text.matches(&format!("_bucket{{{attach}")).count(), 14);
    }
}
