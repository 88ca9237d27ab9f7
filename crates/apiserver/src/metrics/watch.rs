//! Lists and watches: what the tables are fed from.

use std::{fmt, sync::Arc, time::Duration};

use dashmap::DashMap;
use parking_lot::Mutex;
use prometheus::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts};
use strum::{IntoStaticStr, VariantNames};
use telemetry::metrics::{Metrics, float};
use tokio::time::Instant;

use crate::wire::WatchEventKind;

/// Buckets of the duration of lists, in seconds: from a small kind to the largest world.
const LIST_BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// Why a kind is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ListCause {
    /// The process started.
    Start,
    /// The server no longer knows the events since our revision.
    Expired,
    /// An event could not be told which object it is about.
    Gap,
    /// The watch failed again and again at the same revision.
    Failing,
    /// A new leader waits for what the watch has not brought.
    Behind,
}

/// Why a watch is opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ReopenCause {
    /// The server ended it, as it does after some minutes.
    Ended,
    /// Nothing came for longer than the server's bookmarks allow.
    Silent,
    /// It could not be opened or read.
    Failed,
    /// A new leader waits for more than it has brought.
    Behind,
}

/// `mooring_watch_*`, by kind.
#[derive(Clone)]
pub struct WatchMetrics {
    synced: IntGaugeVec,
    lists: IntCounterVec,
    list_duration: HistogramVec,
    listed: IntGaugeVec,
    reopened: IntCounterVec,
    events: IntCounterVec,
    kinds: Arc<DashMap<&'static str, Asked>>,
}

impl WatchMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| metrics.gauges(name, help, &["resource"]);
        let counter = |name: &str, help: &str, label| metrics.counters(name, help, &["resource", label]);
        let watch = Self {
            synced: gauge(
                "mooring_watch_synced",
                "1 once a complete list of the kind has arrived since start, by resource.",
            )?,
            lists: counter(
                "mooring_watch_lists_total",
                "Lists of a kind that were begun, by resource and cause: start, expired (the server no longer \
                 knew the events since our revision), gap (an event about no object that can be named), failing \
                 (the watch failed again and again), behind (a new leader waited for what the watch had not brought).",
                "cause",
            )?,
            list_duration: metrics.histograms(
                "mooring_watch_list_duration_seconds",
                "Duration of complete lists of a kind in seconds, by resource.",
                &["resource"],
                &LIST_BUCKETS,
            )?,
            listed: gauge(
                "mooring_watch_list_objects",
                "Number of objects in the last complete list of the kind, by resource.",
            )?,
            reopened: counter(
                "mooring_watch_reopened_total",
                "Watches opened again, by resource and cause: ended (by the server), silent, failed, behind (a new leader \
                 waited for more than the watch had brought).",
                "cause",
            )?,
            events: counter(
                "mooring_watch_events_total",
                "Watch events read, by resource and type.",
                "type",
            )?,
            kinds: Arc::default(),
        };
        let scraped = |name, help, value: fn(&Asked) -> Option<f64>| {
            let kinds = watch.kinds.clone();
            metrics.register_scraped(GaugeVec::new(Opts::new(name, help), &["resource"])?, move |gauge| {
                for kind in kinds.iter() {
                    if let Some(value) = value(&kind) {
                        gauge.with_label_values(&[*kind.key()]).set(value);
                    }
                }
            })
        };
        scraped(
            "mooring_watch_unreadable_objects",
            "Objects whose newest revision cannot be read, each of which blocks itself, by resource.",
            |kind| Some(float((kind.unreadable)())),
        )?;
        scraped(
            "mooring_watch_silence_seconds",
            "Seconds since the last list, event or bookmark of the kind, by resource. The API server sends a \
             bookmark each minute.",
            |kind| Some(kind.silent()?.as_secs_f64()),
        )?;
        Ok(watch)
    }

    /// How the lists and the watch of a kind have gone, by resource name.
    pub fn report(&self, resource: &str) -> WatchReport {
        let lists = ListCause::VARIANTS
            .iter()
            .map(|cause| (*cause, self.lists.with_label_values(&[resource, cause]).get()));
        WatchReport {
            silent: self.kinds.get(resource).and_then(|kind| kind.silent()),
            lists: lists.filter(|(_, count)| *count > 0).collect(),
            listed: self.listed.with_label_values(&[resource]).get(),
            events: WatchEventKind::VARIANTS
                .iter()
                .map(|kind| self.events.with_label_values(&[resource, kind]).get())
                .sum(),
        }
    }

    /// The metrics of one kind, by resource name; `unreadable` says how many of its objects cannot be read.
    pub fn of(
        &self,
        resource: &'static str,
        unreadable: impl Fn() -> usize + Send + Sync + 'static,
    ) -> KindMetrics {
        self.synced.with_label_values(&[resource]).set(0);
        let heard = Heard::default();
        self.kinds.insert(resource, Asked { heard: Arc::clone(&heard), unreadable: Box::new(unreadable) });
        // One that appears with 1 has no increase.
        for cause in ListCause::VARIANTS {
            self.lists.with_label_values(&[resource, cause]);
        }
        for cause in ReopenCause::VARIANTS {
            self.reopened.with_label_values(&[resource, cause]);
        }
        let event = |kind: &&'static str| (*kind, self.events.with_label_values(&[resource, *kind]));
        let events = WatchEventKind::VARIANTS.iter().map(event).collect();
        KindMetrics { metrics: self.clone(), resource, events, heard }
    }
}

/// How the lists and the watch of a kind have gone since start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchReport {
    /// How long nothing has been heard; `None` before the first list.
    pub silent: Option<Duration>,
    /// Lists begun, by cause.
    pub lists: Vec<(&'static str, u64)>,
    /// Objects in the last complete list.
    pub listed: i64,
    /// Events and bookmarks read.
    pub events: u64,
}

impl fmt::Display for WatchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects listed, {} events", self.listed, self.events)?;
        if let Some(silent) = self.silent {
            write!(f, ", heard {} s ago", silent.as_secs())?;
        }
        for (cause, count) in self.lists.iter().filter(|(cause, _)| *cause != <&str>::from(ListCause::Start))
        {
            write!(f, ", listed again {count} times ({cause})")?;
        }
        Ok(())
    }
}

/// What is counted of one kind.
#[derive(Clone)]
pub struct KindMetrics {
    metrics: WatchMetrics,
    resource: &'static str,
    events: Arc<[(&'static str, IntCounter)]>,
    heard: Heard,
}

impl KindMetrics {
    /// A list begins.
    pub fn listing(&self, cause: ListCause) {
        self.metrics.lists.with_label_values(&[self.resource, cause.into()]).inc();
    }

    /// A list is complete.
    pub fn listed(&self, objects: usize, took: Duration) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.metrics.synced.with_label_values(&[self.resource]).set(1);
        self.metrics.listed.with_label_values(&[self.resource]).set(objects);
        self.metrics.list_duration.with_label_values(&[self.resource]).observe(took.as_secs_f64());
        *self.heard.lock() = Some(Instant::now());
    }

    /// The server does not have the kind.
    pub(crate) fn not_served(&self) {
        self.metrics.synced.with_label_values(&[self.resource]).set(1);
    }

    /// A watch is opened anew.
    pub(crate) fn reopened(&self, cause: ReopenCause) {
        self.metrics.reopened.with_label_values(&[self.resource, cause.into()]).inc();
    }

    /// An event or bookmark was read; `kind` is its type in lower case.
    pub fn event(&self, kind: &'static str) {
        if let Some((_, counter)) = self.events.iter().find(|(of, _)| *of == kind) {
            counter.inc();
        }
        *self.heard.lock() = Some(Instant::now());
    }
}

/// When a kind was last heard of, if ever.
type Heard = Arc<Mutex<Option<Instant>>>;

/// What is asked of a kind when the metrics are scraped.
struct Asked {
    heard: Heard,
    unreadable: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Asked {
    /// How long nothing has been heard.
    fn silent(&self) -> Option<Duration> {
        self.heard.lock().map(|heard| heard.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_what_was_heard_last() {
        let metrics = Metrics::default();
        let kind = WatchMetrics::new(&metrics).unwrap().of("pods", || 5);
        let shown = || metrics.text().unwrap();
        assert!(!shown().contains("mooring_watch_silence_seconds{"));
        kind.listed(3, Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(70)).await;
        assert!(shown().contains("mooring_watch_silence_seconds{resource=\"pods\"} 70\n"), "{}", shown());
        kind.event("bookmark");
        assert!(shown().contains("mooring_watch_silence_seconds{resource=\"pods\"} 0\n"));
        assert!(shown().contains("mooring_watch_list_objects{resource=\"pods\"} 3\n"));
        assert!(shown().contains("mooring_watch_unreadable_objects{resource=\"pods\"} 5\n"));
        assert!(shown().contains("mooring_watch_synced{resource=\"pods\"} 1\n"));
    }
}
