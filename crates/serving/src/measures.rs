//! What is counted about serving.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge};
use strum::IntoStaticStr;
use telemetry::metrics::Metrics;

/// What the API server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Review {
    /// Whose token it is.
    Token,
    /// Whether a user may read a path.
    Access,
    /// The authorities of client certificates.
    Authorities,
}

/// Why a connection was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum End {
    /// It made room for another one.
    Crowded,
    /// Its time was over.
    Overdue,
}

/// Upper bounds in seconds of what a review takes.
// apiserver: pkg/authentication/authenticatorfactory/metrics.go.
const BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Requests of one sort to the API server, by status; `<error>` without one.
#[derive(Clone, Debug)]
struct Reviews {
    total: IntCounterVec,
    duration: HistogramVec,
}

impl Reviews {
    fn new(metrics: &Metrics, name: &str) -> Result<Self, prometheus::Error> {
        let help = "Number of HTTP requests partitioned by status code.";
        let total = metrics.counters(&format!("{name}_total"), help, &["code"])?;
        let help = "Request latency in seconds. Broken down by status code.";
        let duration = metrics.histograms(&format!("{name}_duration_seconds"), help, &["code"], &BUCKETS)?;
        Ok(Self { total, duration })
    }
}

/// `mooring_http_*`, and the API server's names for what is asked about clients.
#[derive(Clone, Debug)]
pub struct Measures {
    connections: IntGauge,
    accepted: IntCounter,
    ended: IntCounterVec,
    requests: IntCounterVec,
    authentications: Reviews,
    authorizations: Reviews,
}

impl Measures {
    /// Registers them.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let connections = IntGauge::new("mooring_http_connections", "Open connections")?;
        metrics.register(&connections)?;
        let accepted = metrics.counter("mooring_http_accepted_connections_total", "Accepted connections")?;
        let ended = metrics.counters(
            "mooring_http_connections_ended_total",
            "Connections that the server ended, by reason: too many (crowded), or idle, slow or old (overdue)",
            &["reason"],
        )?;
        let requests = metrics.counters("mooring_http_requests_total", "Requests, by status", &["code"])?;
        let authentications = Reviews::new(metrics, "apiserver_delegated_authn_request")?;
        let authorizations = Reviews::new(metrics, "apiserver_delegated_authz_request")?;
        Ok(Self { connections, accepted, ended, requests, authentications, authorizations })
    }

    /// Counts a connection and sets how many there are.
    pub fn accepted(&self, open: usize) {
        self.accepted.inc();
        self.open(open);
    }

    /// Sets how many connections there are.
    pub fn open(&self, open: usize) {
        self.connections.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Counts a connection that was ended.
    pub fn ended(&self, end: End) {
        self.ended.with_label_values(&[<&str>::from(end)]).inc();
    }

    /// Counts a request.
    pub fn requested(&self, status: http::StatusCode) {
        self.requests.with_label_values(&[status.as_str()]).inc();
    }

    /// Counts a review that was sent, and what it took until the answer with this status came, if one did.
    pub fn reviewed(&self, review: Review, status: Option<http::StatusCode>, took: Duration) {
        let reviews = match review {
            Review::Token => &self.authentications,
            Review::Access => &self.authorizations,
            // KCM counts reads of its ConfigMap among its client's other requests.
            Review::Authorities => return,
        };
        let code = status.as_ref().map_or("<error>", http::StatusCode::as_str);
        reviews.total.with_label_values(&[code]).inc();
        reviews.duration.with_label_values(&[code]).observe(took.as_secs_f64());
    }
}
