//! How the fence stands, as a metric.

use prometheus::IntGaugeVec;

use super::vigil::{FenceWait, VigilState};
use crate::metrics::Metrics;

/// How it may stand, as labels.
pub const STATES: [&str; 5] = ["absent", "refused", "waiting", "enforced", "lost"];

/// `mooring_fence`.
#[derive(Clone, Debug)]
pub struct FenceMetrics(IntGaugeVec);

impl FenceMetrics {
    /// Registers it.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let help = "1 for how the fence stands to this replica (--fence): absent (no loop of \
                    kube-controller-manager is fenced off, and this replica waits), refused (the same, and \
                    something refuses one of its writes or the probe), waiting (it is not proven yet, or has \
                    another content), enforced, lost (it was enforced before).";
        Ok(Self(metrics.gauges("mooring_fence", help, &["state"])?))
    }

    /// How it stands after a look.
    pub fn set(&self, standing: &VigilState) {
        let state = match standing {
            VigilState::Waiting(_, FenceWait::Switch) => "absent",
            VigilState::Waiting(_, FenceWait::Right) => "refused",
            VigilState::Waiting(_, FenceWait::Proof) => "waiting",
            VigilState::Enforced(_) => "enforced",
            VigilState::Lost(_) => "lost",
        };
        for label in STATES {
            self.0.with_label_values(&[label]).set(i64::from(label == state));
        }
    }
}
