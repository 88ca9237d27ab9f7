//! How long attaches and detaches take, as histograms and traces.
//!
//! In: how far each is, at each look. Out: phases and wholes as they end. Measured where a plan is carried out, not where it
//! is made, for that is where the trace of an operation is known.

use tokio::time::Instant;

use super::phases::{Phase, Progress};
use crate::{
    attach_detach::{actual::state::Operation, desired::volume_name::VolumeId},
    controller::timers::{Lap, Timers},
    kube_api::ids::NodeName,
    metrics::{self, Metrics, bounded::Bounded, exemplar::TracedHistogram},
    traces::{End, Traces},
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
}

/// `mooring_{attach,detach}_{e2e,overhead}_seconds`, and the traces.
#[derive(Clone, Debug)]
pub struct EndToEnd {
    timers: Timers<(VolumeId, NodeName), Measured>,
    attach: TracedHistogram,
    detach: TracedHistogram,
    attach_overhead: TracedHistogram,
    detach_overhead: TracedHistogram,
    drivers: Bounded,
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
        Ok(Self {
            timers: Timers::default(),
            attach: histogram(
                "mooring_attach_e2e_seconds",
                "Time in seconds from a pod's need of a volume to its publication, by phase, and in total",
                &["driver", "phase"],
            )?,
            detach: histogram(
                "mooring_detach_e2e_seconds",
                "Time in seconds from the end of the last pod's need to the attachment's absence, by phase, and in total",
                &["driver", "phase", "forced"],
            )?,
            attach_overhead: histogram(
                "mooring_attach_overhead_seconds",
                "What of an attach was not the time of the driver, of another node that held the volume, or of \
                 anybody else outside: time in seconds that mooring and the API server took",
                &["driver"],
            )?,
            detach_overhead: histogram(
                "mooring_detach_overhead_seconds",
                "What of a detach was not the time of the driver, of the kubelet that unmounted, or of anybody else \
                 outside: time in seconds that mooring and the API server took",
                &["driver"],
            )?,
            drivers: metrics::drivers(metrics),
        })
    }

    /// Traces attaches and detaches from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.timers.trace(traces);
    }

    /// Takes how far an operation is.
    pub fn follow(&mut self, volume: &VolumeId, node: &NodeName, progress: Progress, now: Instant) {
        let Progress { operation, stands, may_begin, forced, attempt } = progress;
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
                let measured = Measured { operation, forced, reached: phase };
                self.timers.begin(key, measured, (name(operation), phase.label()), is_ours, now);
            }
            return;
        };
        measured.forced |= forced;
        // A phase that comes again, after a failure or a change of mind, belongs to the one reached.
        measured.reached = measured.reached.max(phase);
        let measured = *measured;
        if let Some(lap) = self.timers.look(&key, measured.reached.label(), is_ours, now) {
            self.observe(volume, measured, lap);
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kube_api::ids::DriverName;

    /// Lines of `/metrics` about seconds in all, after these looks: second, operation, phase, may it begin, forced.
    fn sums(looks: &[(u64, Operation, Option<Phase>, bool, bool)]) -> Vec<String> {
        let (metrics, start) = (Metrics::default(), Instant::now());
        let mut end_to_end = EndToEnd::new(&metrics).unwrap();
        let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n"));
        for (second, operation, phase, may_begin, forced) in looks.iter().copied() {
            let is_ours = phase != Some(Phase::Attacher) && phase != Some(Phase::Unmount);
            let stands = phase.map(|phase| (phase, is_ours));
            let progress = Progress { operation, stands, may_begin, forced, attempt: 1 };
            end_to_end.follow(&volume, &node, progress, start + Duration::from_secs(second));
        }
        let text = metrics.text().unwrap();
        let sums = text.lines().filter(|line| line.contains("_sum{"));
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
