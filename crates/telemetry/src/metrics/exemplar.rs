//! Histograms whose buckets remember one observation each, with the trace it belongs to.
//!
//! In: a value, and the trace during which it was measured, if there is one. Out: classic buckets for `/metrics`, and
//! beside them for `/metrics/openmetrics` the latest [`Exemplar`] of each bucket. The client library has no
//! exemplars.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use prometheus::{
    Error,
    core::{Collector, Desc},
    proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType},
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

#[derive(Debug)]
struct Series {
    /// Observations of each bucket alone, that of `+Inf` last.
    counts: Vec<u64>,
    sum: f64,
    exemplars: Exemplars,
}

#[derive(Debug)]
struct Inner {
    desc: Desc,
    bounds: Vec<f64>,
    series: Mutex<BTreeMap<Vec<String>, Series>>,
}

/// Histograms of one family, by the values of its labels.
#[derive(Clone, Debug)]
pub struct TracedHistogram(Arc<Inner>);

impl TracedHistogram {
    /// A family of histograms with these upper bounds, which ascend; that of `+Inf` is added.
    ///
    /// # Errors
    /// The name or a label is not valid: a mistake in this program.
    pub fn new(name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> Result<Self, Error> {
        if !bounds.is_sorted_by(|one, next| one < next) {
            return Err(Error::Msg(format!("the bounds of {name} do not ascend")));
        }
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        Ok(Self(Arc::new(Inner { desc, bounds: bounds.to_vec(), series: Mutex::default() })))
    }

    /// Makes a series appear before anything is observed: one that appears with 1 has no increase.
    pub fn expect(&self, values: &[&str]) {
        self.with(values, |_| ());
    }

    /// Notes a value of the series with these label values, in the order of the labels.
    pub fn observe(&self, values: &[&str], value: f64, trace: Option<TraceId>) {
        let bucket = self.0.bounds.partition_point(|bound| *bound < value);
        self.with(values, |series| {
            series.sum += value;
            if let Some(count) = series.counts.get_mut(bucket) {
                *count += 1;
            }
            if let (Some(trace), Some(exemplar)) = (trace, series.exemplars.get_mut(bucket)) {
                *exemplar = Some(Exemplar { trace, value, at: SystemTime::now() });
            }
        });
    }

    /// The exemplars of each series that has some, by its labels in the order of their names.
    #[must_use]
    pub fn exemplars(&self) -> Vec<(Vec<LabelPair>, Exemplars)> {
        let all = self.0.series.lock();
        let some = all.iter().filter(|(_, series)| series.exemplars.iter().any(Option::is_some));
        some.map(|(values, series)| (self.labels(values), series.exemplars.clone())).collect()
    }

    /// Name of the family.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.desc.fq_name
    }

    fn with(&self, values: &[&str], change: impl FnOnce(&mut Series)) {
        let key = values.iter().map(|value| (*value).to_owned()).collect();
        let buckets = self.0.bounds.len() + 1;
        let empty = || Series { counts: vec![0; buckets], sum: 0.0, exemplars: vec![None; buckets] };
        change(self.0.series.lock().entry(key).or_insert_with(empty));
    }

    fn labels(&self, values: &[String]) -> Vec<LabelPair> {
        let pair = |(name, value): (&String, &String)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.clone());
            pair
        };
        let mut pairs: Vec<LabelPair> = self.0.desc.variable_labels.iter().zip(values).map(pair).collect();
        pairs.sort_by(|one, other| one.name().cmp(other.name()));
        pairs
    }
}

impl Collector for TracedHistogram {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all = self.0.series.lock();
        let series = all.iter().map(|(values, series)| {
            let bounds = self.0.bounds.iter().copied();
            (self.labels(values), histogram(bounds, &series.counts, series.sum))
        });
        vec![family(&self.0.desc, series)]
    }
}

/// A histogram of observations that were counted for each bucket alone, that of `+Inf` last.
pub(super) fn histogram(bounds: impl Iterator<Item = f64>, counts: &[u64], sum: f64) -> Histogram {
    let mut total = 0;
    let buckets = bounds.zip(counts).map(|(bound, count)| {
        total += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(total);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(counts.iter().sum());
    histogram.set_sample_sum(sum);
    histogram
}

/// A family of histograms, each with its labels.
pub(super) fn family(desc: &Desc, series: impl Iterator<Item = (Vec<LabelPair>, Histogram)>) -> MetricFamily {
    let metric = |(labels, histogram)| {
        let mut metric = Metric::from_label(labels);
        metric.set_histogram(histogram);
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(series.map(metric).collect());
    family
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
        let family = histogram.collect().pop().unwrap();
        let [api, queue] = family.get_metric() else { panic!("{family:?}") };
        let labels: Vec<_> = api.get_label().iter().map(|pair| (pair.name(), pair.value())).collect();
        assert_eq!(labels, [("driver", "d"), ("phase", "api")]);
        let counts: Vec<_> = api.get_histogram().get_bucket().iter().map(Bucket::cumulative_count).collect();
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
