//! Counters that several loops feed.

use std::collections::BTreeMap;

use prometheus::{IntCounter, Opts};

use super::Metrics;

/// Counters of one family, of one subsystem. Those of several subsystems differ in the value of the label alone.
#[derive(Clone, Debug)]
pub struct FedCounters(BTreeMap<&'static str, IntCounter>);

impl FedCounters {
    /// `mooring_write_conflicts_total` of these operations.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn write_conflicts(metrics: &Metrics, writes: &[&'static str]) -> Result<Self, prometheus::Error> {
        let help = "Writes that the API server refused because the object had changed meanwhile, by purpose";
        Self::new(metrics, ("mooring_write_conflicts_total", help), "op", writes)
    }

    /// `mooring_foreign_writes_total` of these kinds.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn foreign_writes(metrics: &Metrics, kinds: &[&'static str]) -> Result<Self, prometheus::Error> {
        let help = "Changes by others to fields that only the running controllers should change, by kind";
        Self::new(metrics, ("mooring_foreign_writes_total", help), "kind", kinds)
    }

    fn new(
        metrics: &Metrics,
        (name, help): (&str, &str),
        label: &str,
        values: &[&'static str],
    ) -> Result<Self, prometheus::Error> {
        let mut counters = BTreeMap::new();
        for value in values {
            let counter = IntCounter::with_opts(Opts::new(name, help).const_label(label, *value))?;
            metrics.register(&counter)?;
            counters.insert(*value, counter);
        }
        Ok(Self(counters))
    }

    /// Counts so many.
    pub fn add(&self, value: &str, count: u64) {
        if let Some(counter) = self.0.get(value) {
            counter.inc_by(count);
        }
    }
}
