//! Metrics of the controllers, in the registry of [`telemetry::metrics`].
//!
//! Names and labels that kube-controller-manager also has are kept exactly, so that existing
//! dashboards work (`spec/user-experience.md` §5). `docs/metrics.md` is printed from what is registered.

#[cfg(test)]
mod cardinality;
mod counted;
#[cfg(test)]
mod reference;
mod requester;
mod tally;

pub use ::apiserver::metrics::*;
pub use ::serving::slis;
pub use ::telemetry::metrics::*;
pub use counted::register_counted;
pub use requester::Requester;
pub(crate) use tally::Tally;

use bounded::Bounded;
use prometheus::{Error, IntCounterVec};

/// Buckets of KCM's storage operation histograms, in seconds.
pub const STORAGE_OPERATION_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Drivers shown in families of our own, with up to eleven histograms each. Clusters have a handful.
const DRIVERS: usize = 16;

/// Plugins shown in KCM's histograms of operations, each of which may have four.
pub const PLUGINS: usize = 32;

/// Classes shown in families of our own.
pub const CLASSES: usize = 100;

/// Drivers that families of ours show by name.
pub fn drivers(metrics: &Metrics) -> Bounded {
    metrics.shared_names("driver", DRIVERS)
}

/// `mooring_write_conflicts_total`, in which these operations are shown from the start.
///
/// # Errors
/// See [`Metrics::register`].
pub fn write_conflicts(metrics: &Metrics, writes: &[&str]) -> Result<IntCounterVec, Error> {
    let help = "Writes that the API server refused because the object had changed meanwhile, by purpose";
    metrics.counters_of("mooring_write_conflicts_total", help, "op", writes)
}
