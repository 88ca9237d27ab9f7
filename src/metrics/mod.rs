//! Metrics: one struct per part, all in one registry, served in the Prometheus text format.
//!
//! Names and labels that kube-controller-manager also has are kept exactly, so that existing
//! dashboards work (`spec/user-experience.md` §5); ours begin with `mooring_`.

mod alarm;
mod api;
mod election;
pub mod process;
mod work_queue;

pub use alarm::Alarms;
pub use api::ApiMetrics;
pub use election::ElectionMetrics;
pub use work_queue::WorkQueueMetrics;

use prometheus::{Registry, TextEncoder, core::Collector};

/// Buckets of KCM's storage operation histograms, in seconds.
pub const STORAGE_OPERATION_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Where every part registers its metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Registers a metric.
    ///
    /// # Errors
    /// A name registered twice, or not a valid name: a mistake in this program.
    pub fn register<C: Collector + Clone + 'static>(&self, metric: &C) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))
    }

    /// Everything, in the text format 0.0.4.
    ///
    /// # Errors
    /// A collector returned a family that cannot be written.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = TextEncoder::new().encode_to_string(&self.registry.gather())?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}
