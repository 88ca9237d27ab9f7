//! What is counted about serving.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};

use super::connections::Phase;
use crate::metrics::Metrics;

/// What the API server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// Whose token it is.
    Token,
    /// Whether a user may read a path.
    Access,
    /// The authorities of client certificates.
    Authorities,
}

impl Review {
    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Access => "access",
            Self::Authorities => "authorities",
        }
    }
}

/// What became of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer came.
    Answered,
    /// None came, or one that says nothing.
    Failed,
    /// It was not asked for: too many others were.
    Busy,
}

/// Why a connection was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It made room for another one.
    Crowded,
    /// Its time was over.
    Overdue(Phase),
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::Overdue(Phase::Opening) => "opening",
            Self::Overdue(Phase::Idle) => "idle",
            Self::Overdue(Phase::Head) => "head",
            Self::Overdue(Phase::Answering) => "answering",
        }
    }
}

/// `mooring_http_*`.
#[derive(Clone, Debug)]
pub struct Measures {
    connections: IntGauge,
    accepted: IntCounter,
    ended: IntCounterVec,
    requests: IntCounterVec,
    reviews: IntCounterVec,
}

impl Measures {
    /// Registers them.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            metrics.register(&counters)?;
            Ok::<_, prometheus::Error>(counters)
        };
        let connections = IntGauge::new("mooring_http_connections", "Open connections")?;
        metrics.register(&connections)?;
        let accepted = IntCounter::new("mooring_http_connections_total", "Accepted connections")?;
        metrics.register(&accepted)?;
        let ended = counters(
            "mooring_http_connections_ended_total",
            "Connections that were ended here: too many (crowded), or too long at something",
            &["reason"],
        )?;
        let requests = counters("mooring_http_requests_total", "Requests, by status", &["code"])?;
        let reviews = counters(
            "mooring_http_reviews_total",
            "Questions to the API server about visitors, by what became of them",
            &["review", "outcome"],
        )?;
        Ok(Self { connections, accepted, ended, requests, reviews })
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
        self.ended.with_label_values(&[end.as_str()]).inc();
    }

    /// Counts a request.
    pub fn requested(&self, status: http::StatusCode) {
        self.requests.with_label_values(&[status.as_str()]).inc();
    }

    /// Counts a review.
    pub fn reviewed(&self, review: Review, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::Busy => "busy",
        };
        self.reviews.with_label_values(&[review.as_str(), outcome]).inc();
    }
}
