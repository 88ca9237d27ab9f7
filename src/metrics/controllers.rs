//! Which of kube-controller-manager's controllers run here, under its name.

use prometheus::{IntGaugeVec, Opts};

use super::Metrics;

/// Value of the label `manager`.
const MANAGER: &str = "mooring";

/// `running_managed_controllers` of one controller. Those of several differ in the label `name` alone.
///
/// A replica that has never led shows nothing of it, like a kube-controller-manager that stands by. KCM shows only the
/// controllers of clouds and nodes in it, none of ours.
// component-base: metrics/prometheus/controllers/metrics.go.
#[derive(Clone, Debug)]
pub struct RunningController(IntGaugeVec);

impl RunningController {
    /// Registers the gauge of the controller of that name.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, name: &str) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "running_managed_controllers",
            "Indicates where instances of a controller are currently running",
        );
        let gauge = IntGaugeVec::new(opts.const_label("name", name), &["manager"])?;
        metrics.register(&gauge)?;
        Ok(Self(gauge))
    }

    /// It begins to decide.
    pub fn started(&self) {
        self.0.with_label_values(&[MANAGER]).set(1);
    }
}
