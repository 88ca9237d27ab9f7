//! Changes that others made to what only one of our loops changes, for all loops.

use std::collections::BTreeMap;

use prometheus::{IntCounter, Opts};

use super::Metrics;

/// Counters of one subsystem, by kind. Those of several subsystems differ in the label `kind` alone.
#[derive(Clone, Debug)]
pub struct ForeignWrites(BTreeMap<&'static str, IntCounter>);

impl ForeignWrites {
    /// Registers the counters of these kinds.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, kinds: &[&'static str]) -> Result<Self, prometheus::Error> {
        let mut counters = BTreeMap::new();
        for kind in kinds {
            let opts = Opts::new(
                "mooring_foreign_writes_total",
                "Changes by others to fields that only the running controllers should change, by kind",
            );
            let counter = IntCounter::with_opts(opts.const_label("kind", *kind))?;
            metrics.register(&counter)?;
            counters.insert(*kind, counter);
        }
        Ok(Self(counters))
    }

    /// Counts changes of a kind.
    pub fn add(&self, kind: &str, count: u64) {
        if let Some(counter) = self.0.get(kind) {
            counter.inc_by(count);
        }
    }
}
