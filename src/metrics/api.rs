//! Requests to the API server, under client-go's names where it has one.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};

use super::Metrics;

/// `rest_client_*`.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    timeouts: IntCounterVec,
    host: String,
}

impl ApiMetrics {
    /// Registers the metrics for requests to the given host.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, host: &str) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
            ),
            &["code", "method", "host"],
        )?;
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
            )
            .buckets(vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]),
            &["verb", "host"],
        )?;
        let timeouts = IntCounterVec::new(
            Opts::new(
                "mooring_requests_timed_out_total",
                "Requests that the API server did not answer in time, or answered that it ran out of time, by verb \
                 and resource",
            ),
            &["verb", "resource"],
        )?;
        metrics.register(&timeouts)?;
        metrics.register(&requests)?;
        metrics.register(&duration)?;
        Ok(Self { requests, duration, timeouts, host: host.to_owned() })
    }

    /// Counts one request. `code` is 0 when no answer came, which client-go shows as `<error>`.
    pub fn observe(&self, method: &http::Method, code: u16, took: Duration) {
        let code = if code == 0 { "<error>".to_owned() } else { code.to_string() };
        self.requests.with_label_values(&[code.as_str(), method.as_str(), &self.host]).inc();
        self.duration.with_label_values(&[method.as_str(), &self.host]).observe(took.as_secs_f64());
    }

    /// Counts a request that was not answered in time.
    pub fn count_timeout(&self, verb: &'static str, resource: &'static str) {
        self.timeouts.with_label_values(&[verb, resource]).inc();
    }
}
