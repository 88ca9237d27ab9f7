//! How long attaches and detaches take, as histograms.
//!
//! In: what the planner says has ended. Observed where it is carried out, not where it is planned, for that is where
//! the trace of an operation is known.

use super::phases::{PhaseDuration, Span};
use crate::{
    attach_detach::{actual::state::Operation, desired::volume_name::VolumeId},
    metrics::{
        Metrics,
        bounded::Bounded,
        exemplar::{TraceId, TracedHistogram},
    },
};

/// From a pod's need to its fulfilment: from what an API server needs for its answers to what a driver may
/// take, in seconds. SLOs are measured at 1.
const BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 120.0, 600.0];

/// `mooring_{attach,detach}_{e2e,overhead}_seconds`.
#[derive(Clone, Debug)]
pub struct EndToEnd {
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
            drivers: metrics.drivers(),
        })
    }

    /// Notes what has ended on the way of a volume, during that trace.
    pub fn observe(&self, volume: &VolumeId, duration: PhaseDuration, trace: Option<TraceId>) {
        let driver = self.drivers.shown(volume.driver_and_handle().0);
        let took = duration.took.as_secs_f64();
        match (duration.operation, duration.span) {
            (Operation::Attach, Span::Phase(phase)) => {
                self.attach.observe(&[driver, phase.label()], took, trace);
            }
            (Operation::Attach, Span::Overhead) => self.attach_overhead.observe(&[driver], took, trace),
            (Operation::Detach, Span::Phase(phase)) => {
                let forced = if duration.forced { "true" } else { "false" };
                self.detach.observe(&[driver, phase.label(), forced], took, trace);
            }
            (Operation::Detach, Span::Overhead) => self.detach_overhead.observe(&[driver], took, trace),
        }
    }
}
