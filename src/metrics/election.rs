//! Leader election, under client-go's names.

use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::Metrics;

/// `leader_election_*`.
#[derive(Clone, Debug)]
pub struct ElectionMetrics {
    leading: IntGaugeVec,
    slow_path: IntCounterVec,
    name: String,
}

impl ElectionMetrics {
    /// Registers the metrics for the lease of the given name.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, name: &str) -> Result<Self, prometheus::Error> {
        let leading = IntGaugeVec::new(
            Opts::new(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 \
                 indicates master. 'name' is the string used to identify the lease. Please make sure to group \
                 by name.",
            ),
            &["name"],
        )?;
        let slow_path = IntCounterVec::new(
            Opts::new(
                "leader_election_slowpath_total",
                "Total number of slow path exercised in renewing leader leases. 'name' is the string used to \
                 identify the lease. Please make sure to group by name.",
            ),
            &["name"],
        )?;
        metrics.register(&leading)?;
        metrics.register(&slow_path)?;
        let election = Self { leading, slow_path, name: name.to_owned() };
        election.set_leading(false);
        Ok(election)
    }

    /// Whether this process leads.
    pub fn set_leading(&self, leading: bool) {
        self.leading.with_label_values(&[&self.name]).set(i64::from(leading));
    }

    /// A renewal had to read the lease first.
    pub fn count_slow_path(&self) {
        self.slow_path.with_label_values(&[&self.name]).inc();
    }
}
