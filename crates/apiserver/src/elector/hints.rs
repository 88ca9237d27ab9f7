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

use futures::stream;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    backoff::Backoff,
    tables::watch::{Fetcher, Stream, Trouble},
    wire::WatchEventKind,
};

/// Longest pause between attempts to watch.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often it is tried although it is not permitted: a right may be given later.
const FORBIDDEN_PAUSE: Duration = Duration::from_mins(1);
/// A lease that is held is renewed every few seconds: a watch that is silent for longer is broken.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// A watch that stayed open for so long was well, with or without events.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// Watches one lease.
pub(super) struct Hints {
    pub fetcher: Fetcher,
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
    open: Option<Open>,
    backoff: Backoff,
    /// The server no longer knows what happened since this revision: of a lease that is not renewed.
    too_old: u64,
    is_forbidden: bool,
}

/// A watch that is open.
struct Open {
    since: u64,
    at: Instant,
    stream: Stream,
}

impl Hints {
    /// One item for each change of the lease, for ever.
    pub(super) fn stream(self) -> impl stream::Stream<Item = ()> + Send {
        let start = Watching {
            hints: self,
            open: None,
            backoff: Backoff::new(LONGEST_PAUSE),
            too_old: 0,
            is_forbidden: false,
        };
        stream::unfold(start, |watching| async { Some(((), watching.next().await)) })
    }

    async fn open(&self, too_old: u64) -> Result<Open, Trouble> {
        let seen = self.seen.load(Ordering::Relaxed);
        let since = if seen == too_old { 0 } else { seen };
        let from = if since == 0 { String::new() } else { format!("&resourceVersion={since}") };
        let (collection, name) = (&self.collection, &self.name);
        let uri = format!("{collection}?watch=true&fieldSelector=metadata.name%3D{name}{from}");
        Ok(Open { since, at: Instant::now(), stream: self.fetcher.open(&uri).await? })
    }
}

impl Watching {
    /// Waits until something has happened.
    async fn next(mut self) -> Self {
        loop {
            let Some(open) = &mut self.open else {
                self.reopen().await;
                continue;
            };
            let heard = timeout(LONGEST_SILENCE, open.stream.next()).await;
            let (since, is_well) = (open.since, open.at.elapsed() >= WELL_AFTER);
            if is_well {
                self.backoff = Backoff::new(LONGEST_PAUSE);
            }
            match heard {
                // The server can say nothing of what was asked.
                Ok(Ok(Some(event))) if event.kind == WatchEventKind::Error => self.too_old = since,
                Ok(Ok(Some(_))) => return self,
                Ok(Ok(None) | Err(_)) | Err(_) => {}
            }
            self.open = None;
            // The server ends a watch after some minutes, and that is well.
            if !is_well {
                sleep(self.backoff.pause()).await;
            }
        }
    }

    async fn reopen(&mut self) {
        let was_forbidden = std::mem::take(&mut self.is_forbidden);
        match self.hints.open(self.too_old).await {
            Ok(open) => self.open = Some(open),
            Err(Trouble::Expired(_)) => {
                self.too_old = self.hints.seen.load(Ordering::Relaxed);
                sleep(self.backoff.pause()).await;
            }
            Err(Trouble::Refused { code: 403, .. }) => {
                self.is_forbidden = true;
                if !was_forbidden {
                    tracing::info!(lease = %self.hints.name, "no permission to watch the lease: polling it instead");
                }
                sleep(FORBIDDEN_PAUSE).await;
            }
            Err(_) => sleep(self.backoff.pause()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::StreamExt;
    use http::{Request, Response, header::CONTENT_TYPE};
    use http_body_util::{BodyExt, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use kube::{Client, client::Body};
    use parking_lot::Mutex;
    use serde_json::json;
    use telemetry::metrics::Metrics;

    use super::*;
    use crate::{connect::ApiServer, metrics::ApiMetrics};

    /// Paths that were asked for, and what is answered: the status, and lines of a watch that stays open or ends.
    type Asked = Arc<Mutex<Vec<String>>>;

    fn hints(answer: impl Fn(&str) -> (u16, Vec<String>, bool) + Send + Sync + 'static) -> (Hints, Asked) {
        let asked = Asked::default();
        let log = Arc::clone(&asked);
        let answer = Arc::new(answer);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            let (status, lines, stays) = answer(&path);
            log.lock().push(path);
            async move {
                let body = if stays {
                    let lines =
                        stream::iter(lines).map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
                    StreamBody::new(lines.chain(stream::pending())).boxed_unsync()
                } else {
                    Full::new(Bytes::from(lines.concat())).boxed_unsync()
                };
                let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let server = ApiServer::in_process(Client::new(service, "default"));
        let hints = Hints {
            fetcher: Fetcher::new(&server, metrics).unwrap(),
            collection: "/leases".to_owned(),
            name: "mooring".to_owned(),
            seen: Arc::new(AtomicU64::new(7)),
        };
        (hints, asked)
    }

    fn event(kind: &str) -> String {
        format!("{}\n", json!({ "type": kind, "object": { "metadata": { "resourceVersion": "7" } } }))
    }

    /// How many hints come in ten minutes.
    async fn count(hints: Hints) -> usize {
        let mut stream = std::pin::pin!(hints.stream());
        let end = Instant::now() + Duration::from_mins(10);
        let mut count = 0;
        while tokio::time::timeout_at(end, stream.next()).await.is_ok() {
            count += 1;
        }
        count
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_nobody_renews_costs_a_watch_in_half_a_minute() {
        for gone in [(410, String::new()), (200, event("ERROR"))] {
            let (hints, asked) = hints(move |path| {
                if path.contains("resourceVersion") {
                    (gone.0, vec![gone.1.clone()], false)
                } else {
                    (200, vec![event("ADDED")], true)
                }
            });
            let hinted = count(hints).await;
            let asked = asked.lock().clone();
            assert!((15..=22).contains(&asked.len()) && hinted <= 20, "{} {hinted}", asked.len());
            assert!(asked[0].ends_with("&resourceVersion=7") && !asked[1].contains("resourceVersion"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_says_something_and_ends_at_once_is_repeated_ever_more_slowly() {
        let (hints, asked) = hints(|_| (200, vec![event("MODIFIED")], false));
        count(hints).await;
        let asked = asked.lock().len();
        assert!(asked < 620, "{asked} in ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn every_event_is_a_hint_as_soon_as_it_is_whole() {
        let text = event("MODIFIED").repeat(3);
        let (half, rest) = text.split_at(text.len() / 2);
        let lines = vec![half.to_owned(), rest.to_owned()];
        let (hints, asked) = hints(move |_| (200, lines.clone(), true));
        let mut stream = std::pin::pin!(hints.stream());
        for _ in 0..3 {
            stream.next().await;
        }
        assert_eq!(asked.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forbidden_is_asked_for_once_a_minute() {
        let (hints, asked) = hints(|_| (403, vec![], false));
        assert_eq!(count(hints).await, 0);
        assert!((10..=11).contains(&asked.lock().len()));
    }
}
