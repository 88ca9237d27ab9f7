//! Metrics: one struct per part, all in one registry, served in the Prometheus text format.
//!
//! Names and labels that kube-controller-manager also has are kept exactly, so that existing
//! dashboards work (`spec/user-experience.md` §5); ours begin with `mooring_`.

mod alarm;
mod api;
mod election;
mod foreign_writes;
pub mod process;
mod watch;
mod work_queue;

pub use alarm::Alarms;
pub use api::ApiMetrics;
pub use election::ElectionMetrics;
pub use foreign_writes::ForeignWrites;
pub use watch::{KindMetrics, ListCause, ReopenCause, WatchMetrics, WatchReport};
pub use work_queue::WorkQueueMetrics;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Registry, TextEncoder, core::Collector};

/// Buckets of KCM's storage operation histograms, in seconds.
pub const STORAGE_OPERATION_BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Where every part registers its metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Registry,
    /// What is counted when scraped is filled in by the scrape itself, so two must not do that at once.
    scraping: Arc<Mutex<()>>,
}

impl Metrics {
    /// Registers a metric.
    ///
    /// # Errors
    /// A name registered twice, or not a valid name: a mistake in this program.
    pub fn register<C: Collector + Clone + 'static>(&self, metric: &C) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))
    }

    /// Everything, in the text format 0.0.4.
    ///
    /// # Errors
    /// A collector returned a family that cannot be written.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let families = {
            let _only = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
            self.registry.gather()
        };
        let mut text = TextEncoder::new().encode_to_string(&families)?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use prometheus::{IntGauge, core::Desc, proto::MetricFamily};

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
            begun: Arc::default(),
            inside: Arc::default(),
            most: Arc::default(),
        };
        let metrics = Metrics::default();
        metrics.register(&crowd).unwrap();
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
