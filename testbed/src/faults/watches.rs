//! Watches: cut, delayed per kind, begun again from an older revision.
//!
//! In: the requests of watches and the streams of their answers. A kind is named by its plural, as
//! paths name it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::stream;
use http::{Method, Uri, request::Parts};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Bytes;
use tokio::sync::watch;
use tower::BoxError;

/// The watches that have come by, and what is to happen to them.
#[derive(Debug, Default)]
pub struct Watches {
    kinds: Mutex<BTreeMap<String, Kind>>,
}

/// What happens to the watches of one kind.
#[derive(Debug)]
struct Kind {
    control: watch::Sender<Control>,
    /// The next watch begins that many revisions earlier than asked for.
    earlier_by: u64,
    begun: watch::Sender<usize>,
}

impl Default for Kind {
    fn default() -> Self {
        Self { control: watch::Sender::new(Control::default()), earlier_by: 0, begun: watch::Sender::new(0) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Control {
    /// Watches begun in an earlier generation have been cut.
    generation: u64,
    is_delayed: bool,
}

/// A watch and its orders.
#[derive(Debug)]
pub(super) struct Orders {
    control: watch::Receiver<Control>,
    generation: u64,
}

impl Watches {
    fn kinds(&self) -> MutexGuard<'_, BTreeMap<String, Kind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, plural: &str, change: impl FnOnce(&mut Control)) {
        self.kinds().entry(plural.to_owned()).or_default().control.send_modify(change);
    }

    /// Breaks the connections of all watches of a kind that are open now.
    pub fn cut(&self, plural: &str) {
        self.change(plural, |control| control.generation += 1);
    }

    /// The same for those of all kinds.
    pub(super) fn cut_all(&self) {
        for kind in self.kinds().values() {
            kind.control.send_modify(|control| control.generation += 1);
        }
    }

    /// Holds back everything that watches of a kind say, until [`Self::resume`].
    pub fn delay(&self, plural: &str) {
        self.change(plural, |control| control.is_delayed = true);
    }

    /// Delivers what was held back.
    pub fn resume(&self, plural: &str) {
        self.change(plural, |control| control.is_delayed = false);
    }

    /// Cuts the watches of a kind, and lets the next one begin so many revisions earlier than it asks
    /// for, as an API server does that lags behind.
    pub fn rewind(&self, plural: &str, revisions: u64) {
        self.kinds().entry(plural.to_owned()).or_default().earlier_by = revisions;
        self.cut(plural);
    }

    /// How many watches of a kind have begun.
    pub fn begun(&self, plural: &str) -> usize {
        self.kinds().get(plural).map_or(0, |kind| *kind.begun.borrow())
    }

    /// Waits until so many watches of a kind have begun.
    pub async fn began(&self, plural: &str, count: usize) {
        let mut begun = self.kinds().entry(plural.to_owned()).or_default().begun.subscribe();
        // The sender is never taken away.
        let _ = begun.wait_for(|begun| *begun >= count).await;
    }

    /// Takes note of a watch that begins, and may change what it asks for.
    pub(super) fn begin(&self, head: &mut Parts) -> Option<Orders> {
        let query = head.uri.query().unwrap_or_default();
        let is_watch = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
        if head.method != Method::GET || !is_watch {
            return None;
        }
        let plural = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let mut kinds = self.kinds();
        let kind = kinds.entry(plural).or_default();
        kind.begun.send_modify(|begun| *begun += 1);
        let earlier_by = std::mem::take(&mut kind.earlier_by);
        if earlier_by > 0
            && let Some(uri) = earlier(&head.uri, earlier_by)
        {
            head.uri = uri;
        }
        let control = kind.control.subscribe();
        let generation = control.borrow().generation;
        Some(Orders { control, generation })
    }
}

/// The same request from an older revision, but never from the beginning, which has another meaning.
fn earlier(uri: &Uri, by: u64) -> Option<Uri> {
    let pairs = uri.query()?.split('&').map(|pair| match pair.split_once('=') {
        Some(("resourceVersion", revision)) => match revision.parse::<u64>() {
            Ok(revision) => format!("resourceVersion={}", revision.saturating_sub(by).max(1)),
            Err(_) => pair.to_owned(),
        },
        _ => pair.to_owned(),
    });
    format!("{}?{}", uri.path(), pairs.collect::<Vec<_>>().join("&")).parse().ok()
}

/// What a watch says, as its orders want it.
pub(super) fn disturbed(
    body: UnsyncBoxBody<Bytes, BoxError>,
    orders: Orders,
    lifetime: Option<Duration>,
) -> UnsyncBoxBody<Bytes, BoxError> {
    let end = lifetime.map(|lifetime| tokio::time::Instant::now() + lifetime);
    let frames = stream::unfold(Some((body, orders)), move |watch| async move {
        let (mut body, mut orders) = watch?;
        let next = orders.next(&mut body);
        let next = match end {
            Some(end) => tokio::time::timeout_at(end, next).await.unwrap_or_else(|_| Some(Err(cut()))),
            None => next.await,
        };
        let frame = next?;
        let goes_on = frame.is_ok();
        Some((frame, goes_on.then_some((body, orders))))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn cut() -> BoxError {
    "the watch was cut".into()
}

impl Orders {
    async fn next(
        &mut self,
        body: &mut UnsyncBoxBody<Bytes, BoxError>,
    ) -> Option<Result<hyper::body::Frame<Bytes>, BoxError>> {
        let mut frame = None;
        loop {
            let Control { generation, is_delayed } = *self.control.borrow_and_update();
            if generation != self.generation {
                return Some(Err(cut()));
            }
            if !is_delayed && let Some(frame) = frame.take() {
                return frame;
            }
            // A frame that has come while they are delayed waits here.
            tokio::select! {
                biased;
                changed = self.control.changed() => if changed.is_err() {
                    return frame.unwrap_or(None);
                },
                next = body.frame(), if frame.is_none() => frame = Some(next),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_revision_is_asked_for_and_nothing_else_changes() {
        let uri: Uri = "/api/v1/nodes?watch=true&resourceVersion=40&timeoutSeconds=290".parse().unwrap();
        let changed = earlier(&uri, 30).unwrap();
        assert_eq!(changed, "/api/v1/nodes?watch=true&resourceVersion=10&timeoutSeconds=290");
        assert!(earlier(&uri, 100).unwrap().query().unwrap().contains("resourceVersion=1&"));
    }
}
