//! How long attaches and detaches take, as histograms and traces; and kube-controller-manager's operations, from the first
//! request to the driver's answer.
//!
//! In: how far each is, at each report. Out: phases and wholes as they end. Measured where a plan is carried out, not where it
//! is made, for that is where the trace of an operation is known.

use std::collections::BTreeSet;

use prometheus::HistogramVec;
use telemetry::traces::{End, Traces};
use tokio::time::Instant;

use super::{
    announce::LONG,
    phases::{Phase, Progress},
    reasons::NodeVolumeKey,
    state::{
        actual::Operation,
        desired::volume_name::{VolumeId, VolumeKind},
    },
};
use crate::{
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
struct Measured {
    operation: Operation,
    /// Whether it was forced at any time.
    forced: bool,
    reached: Phase,
    /// Whether it is the driver's turn.
    is_drivers: bool,
    /// When the API server was asked first, or the last try failed, and whether the volume was in-tree.
    asked: Option<(Instant, bool)>,
}

/// `storage_operation_duration_seconds`, `mooring_{attach,detach}_{e2e,overhead}_seconds`, and the traces.
#[derive(Clone, Debug)]
pub struct Durations {
    timers: Timers<NodeVolumeKey, Measured>,
    /// When a driver that is at work has said nothing for as long as KCM waits for it.
    silent_at: BTreeSet<(Instant, NodeVolumeKey)>,
    attach: TracedHistogram,
    detach: TracedHistogram,
    attach_overhead: TracedHistogram,
    detach_overhead: TracedHistogram,
    drivers: Bounded,
    operations: HistogramVec,
    plugins: Bounded,
}

impl Durations {
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
        let operations = metrics.histograms(
            "storage_operation_duration_seconds",
            "Storage operation duration",
            &["volume_plugin", "operation_name", "status", "migrated"],
            &STORAGE_OPERATION_BUCKETS,
        )?;
        Ok(Self {
            timers: Timers::default(),
            silent_at: BTreeSet::new(),
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
        self.timers.traces = traces;
    }

    /// Takes how far an operation is, and which attempt its next request is.
    pub fn follow(&mut self, key: &NodeVolumeKey, progress: &Progress, attempt: u32, now: Instant) {
        let &Progress { operation, stands, may_begin, forced, is_done, is_migrated, .. } = progress;
        let NodeVolumeKey { volume, node } = key;
        let attributes = |measured: &Measured| {
            vec![
                ("mooring.volume", volume.as_str().to_owned()),
                ("mooring.driver", volume.driver_and_handle().0.to_owned()),
                ("k8s.node.name", node.to_string()),
                ("mooring.forced", measured.forced.to_string()),
                ("mooring.attempts", attempt.to_string()),
            ]
        };
        if self.timers.get_mut(key).is_some_and(|measured| measured.operation != operation) {
            self.timers.end(key, End::Superseded, now, attributes);
        }
        if is_done {
            self.answered(key, operation, true, now);
        }
        let Some((phase, is_ours)) = stands else {
            if let Some(ended) = self.timers.end(key, End::Done, now, attributes) {
                self.observe(volume, ended.of, ended.last);
                self.observe(volume, ended.of, Lap { phase: TOTAL, took: ended.whole, ..ended.last });
                self.observe_ours(volume, operation, Lap { took: ended.ours, ..ended.last });
            }
            return;
        };
        let (asked, is_drivers) =
            ((phase == Phase::Api).then_some((now, is_migrated)), phase == Phase::Attacher);
        let Some(measured) = self.timers.get_mut(key) else {
            if may_begin {
                let measured = Measured { operation, forced, reached: phase, is_drivers, asked };
                self.timers.begin(
                    key.clone(),
                    measured,
                    (name(operation), <&str>::from(phase)),
                    is_ours,
                    now,
                );
            }
            return;
        };
        measured.forced |= forced;
        // A phase that comes again, after a failure or a change of mind, belongs to the one reached.
        measured.reached = measured.reached.max(phase);
        measured.is_drivers = is_drivers;
        measured.asked = measured.asked.or(asked);
        let measured = *measured;
        if let Some(lap) = self.timers.look(key, <&str>::from(measured.reached), is_ours, now) {
            self.observe(volume, measured, lap);
        }
        self.count_silence(key, now);
    }

    /// When there is more to measure although nothing happens.
    pub fn next_due(&self) -> Option<Instant> {
        self.silent_at.first().map(|(at, _)| *at)
    }

    /// Measures what is due.
    pub fn tick(&mut self, now: Instant) {
        while self.next_due().is_some_and(|at| at <= now) {
            let Some((_, key)) = self.silent_at.pop_first() else { return };
            self.count_silence(&key, now);
        }
    }

    /// An operation has failed when the driver has said nothing for as long as KCM waits for it, as often as that passes.
    fn count_silence(&mut self, key: &NodeVolumeKey, now: Instant) {
        while let Some(Measured { operation, is_drivers: true, asked: Some((asked, _)), .. }) =
            self.timers.get_mut(key).copied()
        {
            let silent = asked + LONG;
            if silent > now {
                self.silent_at.insert((silent, key.clone()));
                return;
            }
            self.failed(key, operation, silent);
        }
    }

    /// An operation has failed. The driver tries again, and that is an operation of its own.
    pub fn failed(&mut self, key: &NodeVolumeKey, operation: Operation, now: Instant) {
        self.answered(key, operation, false, now);
    }

    /// Measures an operation that was asked for, if it is the one under way.
    fn answered(&mut self, key: &NodeVolumeKey, operation: Operation, is_done: bool, now: Instant) {
        let measured = self.timers.get_mut(key).filter(|measured| measured.operation == operation);
        let Some(measured) = measured else { return };
        let Some((asked, is_migrated)) = measured.asked else { return };
        self.silent_at.remove(&(asked + LONG, key.clone()));
        measured.asked = (!is_done).then_some((now, is_migrated));
        // KCM knows no other failure.
        let status = if is_done { "success" } else { "fail-unknown" };
        let name = match operation {
            Operation::Attach => "volume_attach",
            Operation::Detach => "volume_detach",
        };
        let plugin = plugin_name(&key.volume);
        let migrated = if is_migrated { "true" } else { "false" };
        self.operations
            .with_label_values(&[self.plugins.shown(&plugin), name, status, migrated])
            .observe(now.saturating_duration_since(asked).as_secs_f64());
    }

    /// Nothing is known any more of the volume on that node.
    pub fn forget(&mut self, key: &NodeVolumeKey) {
        self.timers.forget(key);
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

    use apiserver::ids::{DriverName, NodeName};

    use super::*;
    /// Lines of `/metrics` about seconds in all, after these looks: second, operation, phase, may it begin, forced.
    fn sums(looks: &[(u64, Operation, Option<Phase>, bool, bool)]) -> Vec<String> {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let mut durations = Durations::new(&metrics).unwrap();
        let volume = VolumeId::csi(&DriverName::from("d"), "h");
        let key = NodeVolumeKey { volume, node: NodeName::from("n") };
        for (second, operation, phase, may_begin, forced) in looks.iter().copied() {
            let is_ours = phase != Some(Phase::Attacher) && phase != Some(Phase::Unmount);
            let stands = phase.map(|phase| (phase, is_ours));
            let (is_done, is_migrated, is_attached, users) = (stands.is_none(), false, false, 0);
            let progress =
                Progress { operation, stands, may_begin, forced, is_done, is_migrated, is_attached, users };
            durations.follow(&key, &progress, 1, start + Duration::from_secs(second));
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
