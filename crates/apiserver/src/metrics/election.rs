//! Leader election, under client-go's names.

use prometheus::{IntCounterVec, IntGaugeVec};
use strum::VariantNames as _;
use telemetry::metrics::Metrics;

use crate::lease::Fitness;

/// `leader_election_*`.
#[derive(Clone, Debug)]
pub struct ElectionMetrics {
    leading: IntGaugeVec,
    slow_path: IntCounterVec,
    fitness: IntGaugeVec,
    name: String,
}

impl ElectionMetrics {
    /// Registers the metrics for the lease of the given name.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, name: &str) -> Result<Self, prometheus::Error> {
        let leading = metrics.gauges(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 \
             indicates master. 'name' is the string used to identify the lease. Please make sure to group \
             by name.",
            &["name"],
        )?;
        let slow_path = metrics.counters(
            "leader_election_slowpath_total",
            "Total number of slow path exercised in renewing leader leases. 'name' is the string used to \
             identify the lease. Please make sure to group by name.",
            &["name"],
        )?;
        let fitness = metrics.gauges(
            "mooring_election_fitness",
            "1 for the fitness of this replica to lead: fit, blind (a watch receives nothing, or it cannot connect: it \
             leaves the lease to others), unready (not everything is listed yet: it does not take it), unfenced (the \
             fence is not proven: it does not take it).",
            &["fitness"],
        )?;
        let election = Self { leading, slow_path, fitness, name: name.to_owned() };
        election.set_leading(false);
        Ok(election)
    }

    /// Whether this process leads.
    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.with_label_values(&[&self.name]).set(i64::from(leading));
    }

    /// How fit this process is to lead.
    pub(crate) fn set_fitness(&self, fitness: &str) {
        for label in Fitness::VARIANTS {
            self.fitness.with_label_values(&[label]).set(i64::from(*label == fitness));
        }
    }

    /// A renewal had to read the lease first.
    pub(crate) fn count_slow_path(&self) {
        self.slow_path.with_label_values(&[&self.name]).inc();
    }
}
