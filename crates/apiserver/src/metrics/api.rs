//! Requests to the API server, under client-go's names where it has one.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use telemetry::metrics::{Metrics, float};

/// Upper bounds in seconds.
// component-base: metrics/prometheus/restclient/metrics.go, requestLatency; likewise those below.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Upper bounds in bytes.
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// `rest_client_*`.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    throttled: HistogramVec,
    sent: HistogramVec,
    received: HistogramVec,
    retries: IntCounterVec,
    in_flight: IntGaugeVec,
    timeouts: IntCounterVec,
    host: String,
}

impl ApiMetrics {
    /// Registers the metrics for requests to the given host.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, host: &str) -> Result<Self, prometheus::Error> {
        let by_verb = ["verb", "host"];
        let in_flight = metrics.gauges(
            "mooring_api_requests_in_flight",
            "Requests of a subsystem to the API server that are not answered yet",
            &["subsystem"],
        )?;
        Ok(Self {
            requests: metrics.counters(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            )?,
            duration: metrics.histograms(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &by_verb,
                &SECONDS,
            )?,
            throttled: metrics.histograms(
                "rest_client_rate_limiter_duration_seconds",
                "Client side rate limiter latency in seconds. Broken down by verb, and host.",
                &by_verb,
                &SECONDS,
            )?,
            sent: metrics.histograms(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
                &by_verb,
                &BYTES,
            )?,
            received: metrics.histograms(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                &by_verb,
                &BYTES,
            )?,
            retries: metrics.counters(
                "rest_client_request_retries_total",
                "Number of request retries, partitioned by status code, verb, and host.",
                &["code", "verb", "host"],
            )?,
            timeouts: metrics.counters(
                "mooring_requests_timed_out_total",
                "Requests that the API server did not answer in time, or answered with a time-out, by verb \
                 and resource",
                &["verb", "resource"],
            )?,
            in_flight,
            host: host.to_owned(),
        })
    }

    /// The same, with a count for each of these subsystems before it has sent anything.
    #[must_use]
    pub fn with_subsystems(self, subsystems: &[&str]) -> Self {
        for subsystem in subsystems {
            self.in_flight.with_label_values(&[subsystem]);
        }
        self
    }

    /// Notes one request that took so long. `code` is 0 when no answer came, which client-go shows as `<error>`.
    pub fn observe(&self, method: &http::Method, code: u16, took: Duration) {
        self.answered(method, code);
        self.duration.with_label_values(&[method.as_str(), &self.host]).observe(took.as_secs_f64());
    }

    /// Counts an answer alone: client-go does not measure how long it takes to open a watch.
    pub fn answered(&self, method: &http::Method, code: u16) {
        self.requests.with_label_values(&[shown(code).as_str(), method.as_str(), &self.host]).inc();
    }

    /// Notes how long a request waited for the limit on this side.
    pub fn throttled(&self, method: &http::Method, waited: Duration) {
        self.throttled.with_label_values(&[method.as_str(), &self.host]).observe(waited.as_secs_f64());
    }

    /// Notes the size of a request's body, in bytes.
    pub fn sent(&self, method: &http::Method, bytes: usize) {
        observe_size(&self.sent, method, &self.host, bytes);
    }

    /// Notes the size of an answer's body, in bytes.
    pub fn received(&self, method: &http::Method, bytes: usize) {
        observe_size(&self.received, method, &self.host, bytes);
    }

    /// The server asks to come back later, and that is done. client-go sends the same again; here it is decided anew.
    pub fn retried(&self, method: &http::Method, code: u16) {
        self.retries.with_label_values(&[shown(code).as_str(), method.as_str(), &self.host]).inc();
    }

    /// How many requests a subsystem has under way.
    pub fn in_flight(&self, subsystem: &str) -> IntGauge {
        self.in_flight.with_label_values(&[subsystem])
    }

    /// Counts a request that was not answered in time.
    pub(crate) fn count_timeout(&self, verb: &str, resource: &str) {
        self.timeouts.with_label_values(&[verb, resource]).inc();
    }
}

fn shown(code: u16) -> String {
    if code == 0 { "<error>".to_owned() } else { code.to_string() }
}

fn observe_size(sizes: &HistogramVec, method: &http::Method, host: &str, bytes: usize) {
    sizes.with_label_values(&[method.as_str(), host]).observe(float(bytes));
}
