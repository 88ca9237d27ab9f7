//! Metrics: one struct per part, all in one registry, served as text in two formats.
//!
//! In: measurements. Out: all families in the classic format, and those of our own, which begin with [`OWN`], in
//! OpenMetrics with exemplars.

mod alarm;
pub mod bounded;
mod certificates;
pub mod exemplar;
mod exposition;
pub mod process;
mod work_queue;

pub use alarm::Alarms;
pub use certificates::{CLIENT, Expiry, SERVING, register_expiry};
pub use exposition::{kind, unit};
pub use work_queue::{QueueCounts, WorkQueueMetrics};

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::{MetricFamily, MetricType},
};

use bounded::{Bounded, OTHER};
use exemplar::TracedHistogram;
use exposition::ByLabels;

/// How the names of families of our own begin.
pub const OWN: &str = "mooring_";

/// A count as a gauge has it.
pub fn float(count: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far from 2^53")]
    let float = count as f64;
    float
}

/// Where every part registers its metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Registry,
    /// What was registered, and of which type: a family has no series at first.
    described: Arc<Mutex<Vec<(Desc, MetricType)>>>,
    /// Families that several parts feed, by name.
    fed: Arc<Mutex<HashMap<String, Box<dyn Any + Send>>>>,
    traced: Arc<Mutex<Vec<TracedHistogram>>>,
    /// Values of labels that families share, by what they name.
    shared: Arc<Mutex<BTreeMap<&'static str, Bounded>>>,
    /// What is counted when scraped is filled in by the scrape itself, so two must not do that at once.
    scraping: Arc<Mutex<()>>,
}

impl Metrics {
    /// Registers a metric.
    ///
    /// # Errors
    /// A name registered twice, or not a valid name: a mistake in this program.
    pub fn register<C: Collector + Clone + 'static>(&self, metric: &C) -> Result<(), prometheus::Error> {
        self.add(Box::new(metric.clone()))
    }

    fn registered<C: Collector + Clone + 'static>(
        &self,
        name: &str,
        made: Result<C, prometheus::Error>,
    ) -> Result<C, prometheus::Error> {
        let (mut fed, metric) = (self.fed.lock(), made?);
        // One with other labels is refused as any second family of its name.
        let labels = |metric: &C| metric.desc().first().map(|desc| desc.variable_labels.clone());
        if let Some(known) = fed.get(name).and_then(|known| known.downcast_ref::<C>())
            && labels(known) == labels(&metric)
        {
            return Ok(known.clone());
        }
        self.register(&metric)?;
        fed.insert(name.to_owned(), Box::new(metric.clone()));
        Ok(metric)
    }

    /// Makes and registers counters by these labels, once for all that feed them.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.registered(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Makes and registers one counter without labels.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        Ok(self.counters(name, help, &[])?.with_label_values::<&str>(&[]))
    }

    /// The same by one label, of which these values are shown from the start.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn counters_of(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        let counters = self.counters(name, help, &[label])?;
        for value in values {
            drop(counters.with_label_values(&[value]));
        }
        Ok(counters)
    }

    /// Makes and registers gauges by these labels, once for all that feed them.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.registered(name, IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Makes and registers histograms by these labels, with these upper bounds.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        let opts = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.registered(name, HistogramVec::new(opts, labels))
    }

    /// Registers histograms whose exemplars are shown where the format has room for them.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn register_traced(&self, histogram: &TracedHistogram) -> Result<(), prometheus::Error> {
        self.register(histogram)?;
        self.traced.lock().push(histogram.clone());
        Ok(())
    }

    /// Registers a metric that is filled in when it is scraped.
    ///
    /// # Errors
    /// See [`Self::register`].
    pub fn register_scraped<C: Collector + 'static>(
        &self,
        metric: C,
        fill: impl Fn(&C) + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        self.add(Box::new(Scraped { metric, fill }))
    }

    fn add(&self, collector: Box<dyn Collector>) -> Result<(), prometheus::Error> {
        let kinds: HashMap<String, MetricType> = collector
            .collect()
            .iter()
            .map(|family| (family.name().to_owned(), family.get_field_type()))
            .collect();
        let kind = |desc: &Desc| kinds.get(&desc.fq_name).copied().unwrap_or(MetricType::GAUGE);
        self.described.lock().extend(collector.desc().into_iter().map(|desc| (desc.clone(), kind(desc))));
        self.registry.register(collector)
    }

    /// Everything that was registered, whether or not it has a series yet.
    pub fn described(&self) -> Vec<(Desc, MetricType)> {
        self.described.lock().clone()
    }

    /// Names that families of ours show alike, of which the first caller says how many there may be.
    pub fn shared_names(&self, of: &'static str, most: usize) -> Bounded {
        let mut shared = self.shared.lock();
        shared.entry(of).or_insert_with(|| Bounded::new(most, OTHER)).clone()
    }

    /// Everything, in the text format 0.0.4.
    ///
    /// # Errors
    /// A collector returned a family that cannot be written.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        exposition::classic(&self.gather())
    }

    /// What is ours, in OpenMetrics 1.0 with exemplars. KCM's names do not fit into that format.
    ///
    /// # Errors
    /// See [`Self::text`].
    pub fn openmetrics(&self) -> Result<String, prometheus::Error> {
        let mut families = self.gather();
        families.retain(|family| family.name().starts_with(OWN));
        let traced = self.traced.lock().clone();
        let exemplars: HashMap<String, ByLabels> = traced
            .iter()
            .map(|histogram| {
                let series = histogram.exemplars().into_iter();
                let series = series.map(|(pairs, exemplars)| (exposition::labels(&pairs), exemplars));
                (histogram.name().to_owned(), series.collect())
            })
            .collect();
        exposition::openmetrics(&families, |name| exemplars.get(name))
    }

    fn gather(&self) -> Vec<MetricFamily> {
        let _only = self.scraping.lock();
        self.registry.gather()
    }
}

/// A metric that is filled in when it is scraped.
struct Scraped<C, F> {
    metric: C,
    fill: F,
}

impl<C: Collector, F: Fn(&C) + Send + Sync> Collector for Scraped<C, F> {
    fn desc(&self) -> Vec<&Desc> {
        self.metric.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.fill)(&self.metric);
        self.metric.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use prometheus::IntGauge;

    use super::*;

    /// Counts how many scrapes are in it at once.
    #[derive(Clone)]
    struct Crowd {
        gauge: IntGauge,
        begun: Arc<AtomicUsize>,
        inside: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Collector for Crowd {
        fn desc(&self) -> Vec<&Desc> {
            self.gauge.desc()
        }

        fn collect(&self) -> Vec<MetricFamily> {
            self.most.fetch_max(self.inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while self.begun.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            for _ in 0..1_000 {
                thread::yield_now();
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            self.gauge.collect()
        }
    }

    #[test]
    fn two_scrapes_do_not_fill_in_the_same_numbers_at_once() {
        let crowd = Crowd {
            gauge: IntGauge::new("crowd", "of scrapes").unwrap(),
            // It is looked at when it is registered.
            begun: Arc::new(AtomicUsize::new(2)),
            inside: Arc::default(),
            most: Arc::default(),
        };
        let metrics = Metrics::default();
        metrics.register(&crowd).unwrap();
        crowd.begun.store(0, Ordering::SeqCst);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    crowd.begun.fetch_add(1, Ordering::SeqCst);
                    metrics.text().unwrap();
                });
            }
        });
        assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
    }
}
