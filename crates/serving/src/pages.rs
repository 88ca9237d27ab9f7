//! Pages as they are sent: made elsewhere, one of a kind at a time, kept for a second.
//!
//! A page may take a second of CPU and tens of megabytes in a large cluster. So it is made on a thread of
//! its own, never twice at once, and those who ask meanwhile share it. A part that a query asks for is shared by
//! nobody: it is made anew, one at a time, and never in place of the page.

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_TYPE};
use hyper::body::Bytes;
use tokio::{
    runtime::Handle,
    sync::Mutex,
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep},
};

use super::answer::Answer;

/// How long a page is the same for all. A second is less than any scrape interval.
const FRESH: Duration = Duration::from_secs(1);

/// Makes a page, or the part of it that a query asks for.
pub type MakeRows = dyn Fn(Option<&str>) -> Answer + Send + Sync;

/// All its readers share the body.
#[derive(Clone)]
struct Edition {
    made: Instant,
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl Edition {
    /// Of what was made now.
    fn of(Answer { status, content_type, body }: Answer) -> Self {
        Self { made: Instant::now(), status, content_type, body: body.into() }
    }
}

impl IntoResponse for Edition {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}

/// A page.
pub(super) struct Page {
    make: Box<MakeRows>,
    latest: Arc<Mutex<Option<Edition>>>,
    part: Arc<Mutex<()>>,
}

impl Page {
    /// One that is made like this.
    pub(super) fn new(make: Box<MakeRows>) -> Self {
        Self { make, latest: Arc::default(), part: Arc::default() }
    }

    /// Makes it, or a part of it, now. May take long.
    pub(super) fn make(&self, part: Option<&str>) -> Answer {
        (self.make)(part)
    }

    /// An edition that is at most a second old, or the part that is asked for.
    pub(super) async fn get(self: &Arc<Self>, part: Option<String>) -> Response {
        if let Some(part) = part {
            return self.part(part).await;
        }
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some(edition) = latest.as_ref().filter(|edition| edition.made.elapsed() < FRESH) {
            return edition.clone().into_response();
        }
        *latest = None;
        let page = Arc::clone(self);
        // The lock goes with it: if the reader is gone, the page is still made only once at a time, and forgotten.
        let runtime = Handle::current();
        let making = spawn_blocking(move || {
            let edition = Edition::of(page.make(None));
            *latest = Some(edition.clone());
            runtime.spawn(forget(Arc::clone(&page.latest), edition.made));
            edition
        });
        sent(making.await)
    }

    async fn part(self: &Arc<Self>, part: String) -> Response {
        let making = Arc::clone(&self.part).lock_owned().await;
        let page = Arc::clone(self);
        let made = spawn_blocking(move || {
            let _making = making;
            Edition::of(page.make(Some(&part)))
        });
        sent(made.await)
    }
}

fn sent(made: Result<Edition, JoinError>) -> Response {
    let failed = |_| {
        let text = "the page could not be made\n".to_owned();
        Answer::text(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    };
    made.map_or_else(failed, Edition::into_response)
}

/// An edition that no client may be given any more need not be kept.
async fn forget(latest: Arc<Mutex<Option<Edition>>>, made: Instant) {
    sleep(FRESH).await;
    latest.lock().await.take_if(|edition| edition.made == made);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use tokio::sync::watch;

    use super::*;

    async fn read(page: &Arc<Page>) -> String {
        let body = page.get(None).await.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_made_once_however_many_ask_and_again_after_a_second() {
        let (made, at_once, most) =
            (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (count, crowd) = (Arc::clone(&made), Arc::clone(&most));
        let page = Page::new(Box::new(move |_| {
            crowd.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            at_once.fetch_sub(1, Ordering::SeqCst);
            Answer::text(StatusCode::OK, count.fetch_add(1, Ordering::SeqCst).to_string())
        }));
        let page = Arc::new(page);
        let readers: Vec<_> = (0..50)
            .map(|_| {
                let page = Arc::clone(&page);
                tokio::spawn(async move { read(&page).await })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap(), "0");
        }
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(read(&page).await, "0");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(read(&page).await, "1");
        assert_eq!((made.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_leaves_does_not_let_the_page_be_made_twice_at_once() {
        let (go, may_go) = watch::channel(false);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let (started, mut has_started) = watch::channel(());
        let page = Page::new(Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            started.send_replace(());
            while !*may_go.borrow() {
                std::thread::yield_now();
            }
            Answer::text(StatusCode::OK, "made".to_owned())
        }));
        let page = Arc::new(page);
        let ask = || {
            let page = Arc::clone(&page);
            tokio::spawn(async move { read(&page).await })
        };
        let leaves = ask();
        has_started.changed().await.unwrap();
        leaves.abort();
        assert!(leaves.await.unwrap_err().is_cancelled());
        let stays = ask();
        tokio::task::yield_now().await;
        go.send_replace(true);
        assert_eq!(stays.await.unwrap(), "made");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
