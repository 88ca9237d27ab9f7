//! Pages as they are sent: made elsewhere, one of a kind at a time.
//!
//! A page may take a second of CPU and tens of megabytes in a large cluster. So it is made on a thread of its own, and never
//! twice at once, nor while a part of it is made that a query asks for.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tokio::{sync::Mutex, task::spawn_blocking};

use super::answer::Answer;

/// Makes a page, or the part of it that a query asks for.
pub type MakeRows = dyn Fn(Option<&str>) -> Answer + Send + Sync;

/// A page.
pub(super) struct Page {
    /// May take long.
    pub(super) make: Box<MakeRows>,
    making: Arc<Mutex<()>>,
}

impl Page {
    /// One that is made like this.
    pub(super) fn new(make: Box<MakeRows>) -> Self {
        Self { make, making: Arc::default() }
    }

    /// The same for one who waits until others are done.
    pub(super) async fn get(self: &Arc<Self>, part: Option<String>) -> Response {
        // The lock goes with it: if the reader is gone, the page is still made only once at a time.
        let (making, page) = (Arc::clone(&self.making).lock_owned().await, Arc::clone(self));
        let made = spawn_blocking(move || {
            let _making = making;
            (page.make)(part.as_deref())
        });
        let failed = |_| {
            let text = "the page could not be made\n".to_owned();
            Answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)
        };
        made.await.unwrap_or_else(failed).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http_body_util::BodyExt;
    use tokio::sync::watch;

    use super::*;

    async fn read(page: &Arc<Page>) -> String {
        let body = page.get(None).await.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_page_is_made_for_each_who_asks_and_never_twice_at_once() {
        let (made, at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let crowd = Arc::clone(&most);
        let page = Arc::new(Page::new(Box::new(move |_| {
            crowd.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            at_once.fetch_sub(1, Ordering::SeqCst);
            Answer::text(StatusCode::OK, made.fetch_add(1, Ordering::SeqCst).to_string())
        })));
        let readers: Vec<_> = (0..50)
            .map(|_| {
                let page = Arc::clone(&page);
                tokio::spawn(async move { read(&page).await.parse().unwrap() })
            })
            .collect();
        let mut seen = BTreeSet::new();
        for reader in readers {
            seen.insert(reader.await.unwrap());
        }
        assert_eq!((seen, most.load(Ordering::SeqCst)), ((0..50).collect(), 1));
    }

    #[tokio::test]
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
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        go.send_replace(true);
        assert_eq!(stays.await.unwrap(), "made");
    }
}
