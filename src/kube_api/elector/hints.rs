//! Tells when the lease has changed, so that a standby need not wait for its next look.
//!
//! Only a hint: what a watch brings is not even read, because the look that follows reads the lease itself. With
//! it a standby sees a release at once and counts a dead leader's lease from its last renewal; without permission
//! to watch, nothing is lost but a few seconds. Each attempt counts in the metrics of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, stream};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use tokio::time::{Instant, sleep, timeout};

use crate::{kube_api::backoff::Backoff, metrics::ApiMetrics};

/// Longest pause between attempts to watch.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often it is tried although it is not permitted: a right may be given later.
const FORBIDDEN_PAUSE: Duration = Duration::from_mins(1);
/// Time to open a watch.
const OPENING: Duration = Duration::from_secs(10);
/// A lease that is held is renewed every few seconds: a watch that is silent for longer is broken.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);

/// Watches one lease.
#[derive(Clone)]
pub(super) struct Hints {
    pub client: Client,
    pub metrics: Arc<ApiMetrics>,
    /// Path of the collection.
    pub collection: String,
    /// Name of the lease.
    pub name: String,
    /// The newest revision that was seen; 0 for none.
    pub seen: Arc<AtomicU64>,
}

/// A watch that is open, or the pause before the next.
struct Watching {
    hints: Hints,
    open: Option<Body>,
    backoff: Backoff,
}

impl Hints {
    /// One item for whatever happens to the lease, for ever.
    pub(super) fn stream(self) -> impl Stream<Item = ()> + Send {
        let start = Watching { hints: self, open: None, backoff: Backoff::new(LONGEST_PAUSE) };
        stream::unfold(start, |watching| async { Some(((), watching.next().await)) })
    }

    async fn open(&self) -> Result<Body, StatusCode> {
        let seen = self.seen.load(Ordering::Relaxed);
        let since = if seen == 0 { String::new() } else { format!("&resourceVersion={seen}") };
        let (collection, name) = (&self.collection, &self.name);
        let path = format!("{collection}?watch=true&fieldSelector=metadata.name%3D{name}{since}");
        // The parts are those of the paths that work for reading it, so there is nothing to go wrong.
        let Ok(request) = Request::get(path).body(Body::empty()) else { return Err(StatusCode::BAD_REQUEST) };
        let started = Instant::now();
        let opened = timeout(OPENING, self.client.send(request)).await;
        let answer = opened.ok().and_then(Result::ok);
        let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        self.metrics.observe(&http::Method::GET, code, started.elapsed());
        match answer {
            Some(answer) if answer.status().is_success() => Ok(answer.into_body()),
            Some(answer) => Err(answer.status()),
            None => Err(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

impl Watching {
    /// Waits until something has happened.
    async fn next(mut self) -> Self {
        loop {
            match &mut self.open {
                None => match self.hints.open().await {
                    Ok(body) => self.open = Some(body),
                    Err(StatusCode::FORBIDDEN) => {
                        tracing::info!(lease = %self.hints.name, "may not watch the lease: polling it only");
                        sleep(FORBIDDEN_PAUSE).await;
                    }
                    Err(_) => sleep(self.backoff.pause()).await,
                },
                Some(body) => {
                    let opened = Instant::now();
                    if let Ok(Some(Ok(_))) = timeout(LONGEST_SILENCE, body.frame()).await {
                        self.backoff = Backoff::new(LONGEST_PAUSE);
                        return self;
                    }
                    self.open = None;
                    // The server ends a watch after some minutes, and that is well.
                    if opened.elapsed() < LONGEST_PAUSE {
                        sleep(self.backoff.pause()).await;
                    }
                }
            }
        }
    }
}
