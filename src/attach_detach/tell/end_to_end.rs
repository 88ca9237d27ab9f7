//! How long attaches and detaches take, as histograms and traces; and kube-controller-manager's operations, from the first
//! request to the driver's answer.
//!
//! In: how far each is, at each look. Out: phases and wholes as they end. Measured where a plan is carried out, not where it
//! is made, for that is where the trace of an operation is known.

use apiserver::ids::NodeName;
use prometheus::{HistogramOpts, HistogramVec};
use telemetry::traces::{End, Traces};
use tokio::time::Instant;

use super::{
    announcer::LONG,
    phases::{Phase, Progress},
};
use crate::{
    attach_detach::{
        actual::state::Operation,
        desired::volume_name::{VolumeId, VolumeKind},
    },
    controller::timers::{Lap, Timers},
    metrics::{
        self, Metrics, PLUGINS, STORAGE_OPERATION_BUCKETS,
        bounded::{Bounded, OTHER},
        exemplar::TracedHistogram,
    },
};

/// From a pod's need to its fulfilment: from what an API server needs for its answers to what a driver may
/// take, in seconds. SLOs are measured at 1.
const BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 120.0, 600.0];

/// Value of the label `phase` that stands for the whole.
pub const TOTAL: &str = "total";

/// Name of an operation's span.
fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => "attach volume",
        Operation::Detach => "detach volume",
    }
}

/// What is known of an operation that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Which one.
    pub operation: Operation,
    /// Whether it was forced at any time.
    pub forced: bool,
    reached: Phase,
    /// When the API server was asked first, or the last try failed, and whether the volume was in-tree.
    asked: Option<(Instant, bool)>,
}

/// How an operation ended, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did what it should.
    Success,
    /// It did not; KCM knows no other failure.
    Failure,
}

/// `storage_operation_duration_seconds`, `mooring_{attach,detach}_{e2e,overhead}_seconds`, and the traces.
#[derive(Clone, Debug)]
pub struct EndToEnd {
    timers: Timers<(VolumeId, NodeName), Measured>,
    attach: TracedHistogram,
    detach: TracedHistogram,
    attach_overhead: TracedHistogram,
    detach_overhead: TracedHistogram,
    drivers: Bounded,
    operations: HistogramVec,
    plugins: Bounded,
}

impl EndToEnd {
    /// Registers them.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let histogram = TracedHistogram::new(name, help, labels, &BUCKETS)?;
            metrics.register_traced(&histogram)?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let operations = HistogramVec::new(
            HistogramOpts::new("storage_operation_duration_seconds", "Storage operation duration")
                .buckets(STORAGE_OPERATION_BUCKETS.to_vec()),
            &["volume_plugin", "operation_name", "status", "migrated"],
        )?;
        metrics.register(&operations)?;
        Ok(Self {
            timers: Timers::default(),
            attach: histogram(
                "mooring_attach_e2e_seconds",
                "Time in seconds from when a pod needs a volume to when the node's status lists it, by phase",
                &["driver", "phase"],
            )?,
            detach: histogram(
                "mooring_detach_e2e_seconds",
                "Time in seconds from the end of the last pod that needs a volume to the end of its \
                 attachment, by phase",
                &["driver", "phase", "forced"],
            )?,
            attach_overhead: histogram(
                "mooring_attach_overhead_seconds",
                "Time in seconds of an attach without that of the driver and of another node with the volume",
                &["driver"],
            )?,
            detach_overhead: histogram(
                "mooring_detach_overhead_seconds",
                "Time in seconds of a detach without the time of the driver and the kubelet's unmounting",
                &["driver"],
            )?,
            drivers: metrics::drivers(metrics),
            operations,
            plugins: Bounded::new(PLUGINS, OTHER),
        })
    }

    /// Traces attaches and detaches from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.timers.trace(traces);
    }

    /// Takes how far an operation is.
    pub fn follow(&mut self, volume: &VolumeId, node: &NodeName, progress: Progress, now: Instant) {
        let Progress { operation, stands, may_begin, forced, attempt, is_done, asks_migrated } = progress;
        let key = (volume.clone(), node.clone());
        let attributes = |measured: &Measured| {
            vec![
                ("mooring.volume", volume.as_str().to_owned()),
                ("mooring.driver", volume.driver_and_handle().0.to_owned()),
                ("k8s.node.name", node.to_string()),
                ("mooring.forced", measured.forced.to_string()),
                ("mooring.attempts", attempt.to_string()),
            ]
        };
        if self.timers.get_mut(&key).is_some_and(|measured| measured.operation != operation) {
            self.timers.end(&key, End::Superseded, now, attributes);
        }
        if is_done {
            self.answered(volume, node, operation, Ending::Success, now);
        }
        let Some((phase, is_ours)) = stands else {
            if let Some(ended) = self.timers.end(&key, End::Done, now, attributes) {
                self.observe(volume, ended.of, ended.last);
                self.observe(volume, ended.of, Lap { phase: TOTAL, took: ended.whole, ..ended.last });
                self.observe_ours(volume, operation, Lap { took: ended.ours, ..ended.last });
            }
            return;
        };
        let Some(measured) = self.timers.get_mut(&key) else {
            if may_begin {
                let asked = asks_migrated.map(|is_migrated| (now, is_migrated));
                let measured = Measured { operation, forced, reached: phase, asked };
                self.timers.begin(key, measured, (name(operation), phase.label()), is_ours, now);
            }
            return;
        };
        measured.forced |= forced;
        // A phase that comes again, after a failure or a change of mind, belongs to the one reached.
        measured.reached = measured.reached.max(phase);
        if let Some(is_migrated) = asks_migrated {
            measured.asked.get_or_insert((now, is_migrated));
        }
        let is_silent = measured.asked.map(|(asked, _)| asked + LONG).filter(|silent| now >= *silent);
        let measured = *measured;
        if let Some(lap) = self.timers.look(&key, measured.reached.label(), is_ours, now) {
            self.observe(volume, measured, lap);
        }
        if let Some(silent) = is_silent.filter(|_| phase == Phase::Attacher) {
            self.answered(volume, node, operation, Ending::Failure, silent);
        }
    }

    /// An operation has failed. The driver tries again, and that is an operation of its own.
    pub fn failed(&mut self, volume: &VolumeId, node: &NodeName, operation: Operation, now: Instant) {
        self.answered(volume, node, operation, Ending::Failure, now);
    }

    /// Measures an operation that was asked for, if it is the one under way.
    fn answered(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        operation: Operation,
        ending: Ending,
        now: Instant,
    ) {
        let measured = self.timers.get_mut(&(volume.clone(), node.clone()));
        let Some(measured) = measured.filter(|measured| measured.operation == operation) else { return };
        let Some((asked, is_migrated)) = measured.asked.take() else { return };
        let status = match ending {
            Ending::Success => "success",
            Ending::Failure => {
                measured.asked = Some((now, is_migrated));
                "fail-unknown"
            }
        };
        let name = match operation {
            Operation::Attach => "volume_attach",
            Operation::Detach => "volume_detach",
        };
        let plugin = plugin_name(volume);
        let migrated = if is_migrated { "true" } else { "false" };
        self.operations
            .with_label_values(&[self.plugins.shown(&plugin), name, status, migrated])
            .observe(now.saturating_duration_since(asked).as_secs_f64());
    }

    /// Nothing is known any more of the volume on that node.
    pub(super) fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        self.timers.forget(&(volume.clone(), node.clone()));
    }

    /// What was under way before this process led was not seen to begin.
    pub(super) fn forget_all(&mut self) {
        self.timers.forget_all();
    }

    fn observe(&self, volume: &VolumeId, measured: Measured, lap: Lap) {
        let driver = self.drivers.shown(volume.driver_and_handle().0);
        let Lap { phase, took, trace } = lap;
        let forced = if measured.forced { "true" } else { "false" };
        match measured.operation {
            Operation::Attach => self.attach.observe(&[driver, phase], took.as_secs_f64(), trace),
            Operation::Detach => self.detach.observe(&[driver, phase, forced], took.as_secs_f64(), trace),
        }
    }

    fn observe_ours(&self, volume: &VolumeId, operation: Operation, lap: Lap) {
        let driver = self.drivers.shown(volume.driver_and_handle().0);
        let overhead = match operation {
            Operation::Attach => &self.attach_overhead,
            Operation::Detach => &self.detach_overhead,
        };
        overhead.observe(&[driver], lap.took.as_secs_f64(), lap.trace);
    }
}

/// KCM: a CSI volume's plugin has the driver behind a colon (volume/util/metrics.go,
/// `GetFullQualifiedPluginNameForVolume`).
pub(super) fn plugin_name(volume: &VolumeId) -> String {
    match volume.kind() {
        VolumeKind::Csi => format!("{}:{}", volume.plugin(), volume.driver_and_handle().0),
        VolumeKind::NoOp => volume.plugin().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::DriverName;

    use super::*;
    /// Lines of `/metrics` about seconds in all, after these looks: second, operation, phase, may it begin, forced.
    fn sums(looks: &[(u64, Operation, Option<Phase>, bool, bool)]) -> Vec<String> {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let mut end_to_end = EndToEnd::new(&metrics).unwrap();
        let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n"));
        for (second, operation, phase, may_begin, forced) in looks.iter().copied() {
            let is_ours = phase != Some(Phase::Attacher) && phase != Some(Phase::Unmount);
            let stands = phase.map(|phase| (phase, is_ours));
            let (attempt, is_done, asks_migrated) = (1, stands.is_none(), None);
            let progress = Progress { operation, stands, may_begin, forced, attempt, is_done, asks_migrated };
            end_to_end.follow(&volume, &node, progress, start + Duration::from_secs(second));
        }
        let text = metrics.text().unwrap();
        let sums = text.lines().filter(|line| line.starts_with("mooring_") && line.contains("_sum{"));
        sums.map(|line| line.replace("_seconds_sum", "").replace("driver=\"d\",", "")).collect()
    }

    #[test]
    fn another_operation_begins_anew_and_what_was_forced_once_is_forced() {
        let detach = Operation::Detach;
        let looks = [
            (0, Operation::Attach, Some(Phase::Api), true, false),
            (9, detach, Some(Phase::Unmount), true, false),
            (14, detach, Some(Phase::Api), true, true),
            (15, detach, Some(Phase::Unmount), true, false),
            (16, detach, Some(Phase::Attacher), false, false),
            (18, detach, None, true, false),
            (19, detach, None, true, false),
        ];
        let expected = [
            "mooring_detach_e2e{forced=\"true\",phase=\"api\"} 2",
            "mooring_detach_e2e{forced=\"true\",phase=\"attacher\"} 2",
            "mooring_detach_e2e{forced=\"true\",phase=\"total\"} 9",
            "mooring_detach_e2e{forced=\"true\",phase=\"unmount\"} 5",
            "mooring_detach_overhead{driver=\"d\"} 1",
        ];
        assert_eq!(sums(&looks), expected);
    }

    #[test]
    fn what_was_not_seen_to_begin_is_not_measured() {
        let attach = Operation::Attach;
        let looks = [(0, Some(Phase::Attacher)), (5, Some(Phase::Publish)), (6, None)];
        let looks = looks.map(|(second, phase)| (second, attach, phase, false, false));
        assert_eq!(sums(&looks), Vec::<String>::new());
    }
}
