//! Gauges that are counted together, anew each time that they are scraped.

use prometheus::{
    GaugeVec,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::Metrics;

struct Together<const N: usize>([GaugeVec; N]);

impl<const N: usize> Collector for Together<N> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().flat_map(Collector::collect).collect()
    }
}

/// Registers gauges that a scrape counts. A series that it does not set is not shown.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register_counted<const N: usize>(
    metrics: &Metrics,
    gauges: [GaugeVec; N],
    count: impl Fn(&[GaugeVec; N]) + Send + Sync + 'static,
) -> Result<(), prometheus::Error> {
    metrics.register_scraped(Together(gauges), move |Together(gauges)| {
        gauges.iter().for_each(GaugeVec::reset);
        count(gauges);
    })
}
