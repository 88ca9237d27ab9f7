//! What an observation shows on `/metrics`: the counts of its summary.

use prometheus::IntCounterVec;
use strum::VariantArray as _;

use super::{
    mutation::MutationKind,
    summary::{DifferenceKind, KindTally, Summary},
};
use crate::metrics::Metrics;

/// Values of the label `outcome`.
const OUTCOMES: [&str; 4] = ["mooring_first", "ruler_first", "not_judged", "different"];

/// The counts.
#[derive(Clone, Debug)]
pub struct ObserveMetrics {
    acts: IntCounterVec,
    differences: IntCounterVec,
}

impl ObserveMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let acts = "Changes that the process that rules made and mooring observe compared, by outcome.";
        let differences = "Differences that mooring observe reported, by kind.";
        let counts = Self {
            acts: metrics.counters("mooring_observe_acts_total", acts, &["operation", "outcome"])?,
            differences: metrics.counters("mooring_observe_differences_total", differences, &["kind"])?,
        };
        for kind in MutationKind::VARIANTS {
            for outcome in OUTCOMES {
                counts.acts.with_label_values(&[<&str>::from(kind), outcome]).reset();
            }
        }
        for kind in DifferenceKind::VARIANTS {
            counts.differences.with_label_values(&[<&str>::from(kind)]).reset();
        }
        Ok(counts)
    }

    /// Shows what a summary has come to.
    pub fn show(&self, summary: &Summary) {
        for (kind, tally) in &summary.mutations {
            let KindTally { acts, mooring_first, ruler_first, not_judged, .. } = *tally;
            let different = acts.saturating_sub(mooring_first + ruler_first + not_judged);
            for (outcome, count) in
                OUTCOMES.into_iter().zip([mooring_first, ruler_first, not_judged, different])
            {
                let counter = self.acts.with_label_values(&[<&str>::from(kind), outcome]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
        for (kind, count) in &summary.difference_counts {
            let counter = self.differences.with_label_values(&[<&str>::from(kind)]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn counts_that_grow_are_shown_as_they_are_and_each_act_has_one_outcome() {
        let metrics = Metrics::default();
        let shown = ObserveMetrics::new(&metrics).unwrap();
        let mut summary = Summary::new(Timestamp::UNIX_EPOCH);
        // Acts, those that mooring or the ruler was first with, those not judged; differences told.
        for (acts, mooring_first, ruler_first, not_judged, waits) in
            [(9, 2, 3, 1, 1), (9, 2, 3, 1, 1), (12, 4, 3, 2, 5)]
        {
            let tally = KindTally { acts, mooring_first, ruler_first, not_judged, ..KindTally::default() };
            summary.mutations.insert(MutationKind::Attach, tally);
            summary.difference_counts.insert(DifferenceKind::Wait, waits);
            shown.show(&summary);
            let outcomes = OUTCOMES.map(|outcome| shown.acts.with_label_values(&["attach", outcome]).get());
            assert_eq!(outcomes, [mooring_first, ruler_first, not_judged, 3]);
            assert_eq!(shown.differences.with_label_values(&["wait"]).get(), waits);
            assert_eq!(shown.differences.with_label_values(&["unsafe"]).get(), 0);
        }
    }
}
