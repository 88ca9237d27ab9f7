//! Metrics of the attach/detach subsystem: KCM's by name, and how many pairs wait for what.

use std::{collections::HashMap, time::Duration};

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

use super::{
    actual_state::Operation,
    force::ForceReason,
    second_controller::ForeignAct,
    volume_name::{VolumeId, VolumeKind},
};
use crate::metrics::{Alarms, Metrics, STORAGE_OPERATION_BUCKETS};

/// The alarm that another attach/detach controller is at work (S14).
const SECOND_CONTROLLER: &str = "second_attach_detach_controller";

/// How an operation ended, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did what it should.
    Success,
    /// It did not; KCM knows no other failure.
    Failure,
}

/// What is looked at, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// A pod, for what it wishes.
    Pod,
    /// A VolumeAttachment, for what it is about.
    Attachment,
    /// A volume, on all its nodes.
    Volume,
    /// A node, for what its status should say.
    Node,
}

impl Planned {
    fn label(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Attachment => "attachment",
            Self::Volume => "volume",
            Self::Node => "node",
        }
    }
}

/// The subsystem's metrics.
#[derive(Clone, Debug)]
pub struct AttachDetachMetrics {
    operations: HistogramVec,
    totals: IntGaugeVec,
    waiting: IntGaugeVec,
    forced: IntCounterVec,
    unresolved: IntCounterVec,
    foreign: IntCounterVec,
    alarms: Alarms,
    planned: IntCounterVec,
    counted: HashMap<VolumeId, (i64, i64)>,
}

impl AttachDetachMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, alarms: Alarms) -> Result<Self, prometheus::Error> {
        let operations = HistogramVec::new(
            HistogramOpts::new("storage_operation_duration_seconds", "Storage operation duration")
                .buckets(STORAGE_OPERATION_BUCKETS.to_vec()),
            &["volume_plugin", "operation_name", "status", "migrated"],
        )?;
        let totals = IntGaugeVec::new(
            Opts::new("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller"),
            &["plugin_name", "state"],
        )?;
        let waiting = IntGaugeVec::new(
            Opts::new("mooring_waiting_objects", "Objects that wait, by what they wait for"),
            &["kind", "reason"],
        )?;
        let forced = IntCounterVec::new(
            Opts::new(
                "attach_detach_controller_attachdetach_controller_forced_detaches",
                "Number of times the A/D Controller performed a forced detach",
            ),
            &["reason"],
        )?;
        for reason in [ForceReason::Timeout, ForceReason::OutOfService] {
            forced.with_label_values(&[reason.label()]);
        }
        let unresolved = IntCounterVec::new(
            Opts::new(
                "mooring_unresolved_pod_volumes_total",
                "Volumes of pods that could not be attached when first looked at, by reason",
            ),
            &["reason"],
        )?;
        let foreign = IntCounterVec::new(
            Opts::new(
                "mooring_foreign_writes_total",
                "Writes of others to what only an attach/detach controller writes, by kind",
            ),
            &["kind"],
        )?;
        for act in [ForeignAct::ListChanged, ForeignAct::AttachmentCreated, ForeignAct::AttachmentDeleted] {
            foreign.with_label_values(&[act.label()]);
        }
        alarms.set(SECOND_CONTROLLER, None);
        metrics.register(&foreign)?;
        let planned = IntCounterVec::new(
            Opts::new("mooring_planned_keys_total", "Objects looked at because something changed, by kind"),
            &["kind"],
        )?;
        for kind in [Planned::Pod, Planned::Attachment, Planned::Volume, Planned::Node] {
            planned.with_label_values(&[kind.label()]);
        }
        metrics.register(&planned)?;
        metrics.register(&unresolved)?;
        metrics.register(&forced)?;
        metrics.register(&operations)?;
        metrics.register(&totals)?;
        metrics.register(&waiting)?;
        let counted = HashMap::new();
        Ok(Self { operations, totals, waiting, forced, unresolved, foreign, alarms, planned, counted })
    }

    /// Counts a key that is looked at. What one event makes of these must not grow with the cluster.
    pub fn planned(&self, kind: Planned) {
        self.planned.with_label_values(&[kind.label()]).inc();
    }

    /// Notes the end of an operation.
    pub fn observe(&self, volume: &VolumeId, operation: Operation, ending: Ending, took: Duration) {
        let status = match ending {
            Ending::Success => "success",
            Ending::Failure => "fail-unknown",
        };
        self.operations
            .with_label_values(&[plugin_name(volume).as_str(), operation_name(operation), status, "false"])
            .observe(took.as_secs_f64());
    }

    /// Counts a volume of a pod that is not in the desired state, and why.
    pub fn unresolved(&self, reason: &'static str) {
        self.unresolved.with_label_values(&[reason]).inc();
    }

    /// Counts a write of somebody else.
    pub fn foreign(&self, act: ForeignAct) {
        self.foreign.with_label_values(&[act.label()]).inc();
    }

    /// Raises or ends the alarm about another controller.
    pub fn alarm(&self, text: Option<&str>) {
        self.alarms.set(SECOND_CONTROLLER, text.map(str::to_owned));
    }

    /// Counts a detach although the volume was, or may have been, in use.
    pub fn forced(&self, reason: ForceReason) {
        self.forced.with_label_values(&[reason.label()]).inc();
    }

    /// Sets on how many nodes a volume is wanted and held.
    pub fn count(&mut self, volume: &VolumeId, wanted: usize, held: usize) {
        let now = (i64::try_from(wanted).unwrap_or(i64::MAX), i64::try_from(held).unwrap_or(i64::MAX));
        let before = if now == (0, 0) {
            self.counted.remove(volume)
        } else {
            self.counted.insert(volume.clone(), now)
        };
        let before = before.unwrap_or_default();
        if now == before {
            return;
        }
        let plugin = plugin_name(volume);
        self.totals.with_label_values(&[plugin.as_str(), "desired_state_of_world"]).add(now.0 - before.0);
        self.totals.with_label_values(&[plugin.as_str(), "actual_state_of_world"]).add(now.1 - before.1);
    }

    /// Notes that a pair began or ceased to wait for a reason.
    pub fn waits(&self, reason: &'static str, change: i64) {
        self.waiting.with_label_values(&["attachment", reason]).add(change);
    }
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => "volume_attach",
        Operation::Detach => "volume_detach",
    }
}

/// KCM: a CSI volume's plugin has the driver behind a colon (volume/util/metrics.go,
/// `GetFullQualifiedPluginNameForVolume`).
fn plugin_name(volume: &VolumeId) -> String {
    match volume.kind() {
        VolumeKind::Csi => format!("{}:{}", volume.plugin(), volume.driver_and_handle().0),
        VolumeKind::NoOp => volume.plugin().to_owned(),
    }
}
