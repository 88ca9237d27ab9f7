//! Histograms whose buckets remember one observation each, with the trace it belongs to.
//!
//! In: a value, and the trace during which it was measured, if there is one. Out: a histogram of the client library,
//! which has no exemplars, and for `/metrics/openmetrics` the latest [`Exemplar`] of each bucket.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use prometheus::{
    Error, HistogramOpts, HistogramVec,
    core::{Collector, Desc, Metric as _},
    proto::{LabelPair, MetricFamily},
};

/// Id of a trace, as W3C's Trace Context has it: 16 bytes, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One observation, to be looked up in a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// Its trace.
    pub trace: TraceId,
    /// What was observed.
    pub value: f64,
    /// When.
    pub at: SystemTime,
}

/// The latest exemplar of each bucket of a series, that of `+Inf` last.
pub type Exemplars = Vec<Option<Exemplar>>;

/// Histograms of one family, by the values of its labels.
#[derive(Clone, Debug)]
pub struct TracedHistogram {
    name: String,
    bounds: Arc<[f64]>,
    histograms: HistogramVec,
    latest: Arc<Mutex<BTreeMap<Vec<String>, Exemplars>>>,
}

impl TracedHistogram {
    /// A family of histograms with these upper bounds, which ascend; that of `+Inf` is added.
    ///
    /// # Errors
    /// The name or a label is not valid, or the bounds do not ascend: a mistake in this program.
    pub fn new(name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> Result<Self, Error> {
        // The client library looks at them with the first series, and panics.
        if !bounds.is_sorted_by(|one, next| one < next) {
            return Err(Error::Msg(format!("the bounds of {name} do not ascend")));
        }
        let opts = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        let histograms = HistogramVec::new(opts, labels)?;
        Ok(Self { name: name.to_owned(), bounds: bounds.into(), histograms, latest: Arc::default() })
    }

    /// Makes a series appear before anything is observed: one that appears with 1 has no increase.
    pub fn expect(&self, values: &[&str]) {
        self.histograms.with_label_values(values);
    }

    /// Notes a value of the series with these label values, in the order of the labels.
    pub fn observe(&self, values: &[&str], value: f64, trace: Option<TraceId>) {
        self.histograms.with_label_values(values).observe(value);
        let Some(trace) = trace else { return };
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let mut latest = self.latest.lock();
        let exemplars = latest.entry(values).or_insert_with(|| vec![None; self.bounds.len() + 1]);
        if let Some(exemplar) = exemplars.get_mut(self.bounds.partition_point(|bound| *bound < value)) {
            *exemplar = Some(Exemplar { trace, value, at: SystemTime::now() });
        }
    }

    /// The exemplars of each series that has some, by its labels in the order of their names.
    pub fn exemplars(&self) -> Vec<(Vec<LabelPair>, Exemplars)> {
        let labels = |values| self.histograms.with_label_values(values).metric().get_label().to_vec();
        let latest = self.latest.lock();
        latest.iter().map(|(values, exemplars)| (labels(values), exemplars.clone())).collect()
    }

    /// Name of the family.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Collector for TracedHistogram {
    fn desc(&self) -> Vec<&Desc> {
        self.histograms.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.histograms.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_what_is_at_most_its_bound_and_remembers_the_last_trace() {
        let histogram =
            TracedHistogram::new("waits_seconds", "Waits in seconds", &["phase", "driver"], &[1.0, 5.0])
                .unwrap();
        let trace = |byte| Some(TraceId([byte; 16]));
        for (value, trace) in [(1.0, trace(1)), (0.5, trace(2)), (0.1, None), (3.0, None), (9.0, trace(3))] {
            histogram.observe(&["api", "d"], value, trace);
        }
        histogram.expect(&["queue", "d"]);
        let registry = prometheus::Registry::new();
        registry.register(Box::new(histogram.clone())).unwrap();
        let family = registry.gather().pop().unwrap();
        let [api, queue] = family.get_metric() else { panic!("{family:?}") };
        let labels: Vec<_> = api.get_label().iter().map(|pair| (pair.name(), pair.value())).collect();
        assert_eq!(labels, [("driver", "d"), ("phase", "api")]);
        let counts: Vec<_> = api
            .get_histogram()
            .get_bucket()
            .iter()
            .map(prometheus::proto::Bucket::cumulative_count)
            .collect();
        assert_eq!((counts, api.get_histogram().get_sample_count()), (vec![3, 4], 5));
        assert!((api.get_histogram().get_sample_sum() - 13.6).abs() < 1e-9);
        assert_eq!(queue.get_histogram().get_sample_count(), 0);

        let exemplars = histogram.exemplars();
        let [(labels, exemplars)] = &exemplars[..] else { panic!("{exemplars:?}") };
        assert_eq!(labels, api.get_label());
        let seen: Vec<_> =
            exemplars.iter().map(|exemplar| exemplar.map(|it| (it.trace.to_string(), it.value))).collect();
        let id = |digits: &str| digits.repeat(16);
        assert_eq!(seen, [Some((id("02"), 0.5)), None, Some((id("03"), 9.0))]);
    }

    #[test]
    fn bounds_ascend() {
        TracedHistogram::new("a", "a", &[], &[1.0, 1.0]).unwrap_err();
    }
}
