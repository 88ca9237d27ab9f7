//! Pages as they are sent: made elsewhere, one of a kind at a time, kept for a second.
//!
//! A page may take a second of CPU and tens of megabytes in a large cluster. So it is made on a thread of
//! its own, never twice at once, and those who ask meanwhile share it; of a large one there are only so many
//! editions at once, so that readers who do not read cannot make the memory full.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    sync::{Mutex, Semaphore},
    task::spawn_blocking,
    time::Instant,
};

use super::{
    answer::{Answer, Page, Sent},
    router::Router,
};

/// How long a page is the same for all. A second is less than any scrape interval.
const FRESH: Duration = Duration::from_secs(1);
/// Pages up to this size are kept by as many readers as there may be.
const SMALL: usize = 64 * 1024;
/// Editions of a larger one at once. One may be on its way to a client that reads slowly, until its time is over:
/// that must not keep all others from the page.
const EDITIONS: usize = 2;

#[derive(Debug)]
struct Edition {
    made: Instant,
    /// Which part of the page it is, if it is a part.
    of: Option<String>,
    page: Arc<Page>,
}

#[derive(Debug)]
struct Kind {
    latest: Arc<Mutex<Option<Edition>>>,
    editions: Arc<Semaphore>,
}

/// The pages of a router.
#[derive(Debug)]
pub struct Pages {
    router: Arc<Router>,
    kinds: Vec<Kind>,
}

impl Pages {
    /// Those of this router.
    #[must_use]
    pub fn new(router: Arc<Router>) -> Self {
        let kind = || Kind { latest: Arc::default(), editions: Arc::new(Semaphore::new(EDITIONS)) };
        let kinds = (0..router.count()).map(|_| kind()).collect();
        Self { router, kinds }
    }

    /// The router.
    #[must_use]
    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// A page that is at most a second old; or a part of it, if it has any, for who asks for that.
    pub async fn get(&self, index: usize, query: Option<&str>) -> Sent {
        let of = query.filter(|query| !query.is_empty() && self.router.has_parts(index)).map(str::to_owned);
        let Some(kind) = self.kinds.get(index) else { return Sent::of(Router::not_found()) };
        let mut latest = Arc::clone(&kind.latest).lock_owned().await;
        let is_the_same = |edition: &&Edition| edition.made.elapsed() < FRESH && edition.of == of;
        if let Some(edition) = latest.as_ref().filter(is_the_same) {
            return Sent::from(Arc::clone(&edition.page));
        }
        *latest = None;
        let Ok(permit) = Arc::clone(&kind.editions).try_acquire_owned() else {
            let text = "too many slow readers of this page: try later\n".to_owned();
            return Sent::of(Answer::text(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let router = Arc::clone(&self.router);
        // The lock goes with it: if the reader is gone, the page is still made only once at a time.
        let making = spawn_blocking(move || {
            let answer = router.make(index, of.as_deref());
            let permit = (answer.body.len() > SMALL).then_some(permit);
            let page = Arc::new(Page::new(answer, permit));
            *latest = Some(Edition { made: Instant::now(), of, page: Arc::clone(&page) });
            page
        });
        let Ok(page) = making.await else {
            let text = "the page could not be made\n".to_owned();
            return Sent::of(Answer::text(StatusCode::INTERNAL_SERVER_ERROR, text));
        };
        forget_later(Arc::clone(&kind.latest), Arc::downgrade(&page));
        Sent::from(page)
    }
}

/// A page that no client may be given any more need not be kept.
fn forget_later(latest: Arc<Mutex<Option<Edition>>>, page: Weak<Page>) {
    tokio::spawn(async move {
        tokio::time::sleep(FRESH).await;
        let mut latest = latest.lock().await;
        if latest.as_ref().is_some_and(|edition| Weak::ptr_eq(&Arc::downgrade(&edition.page), &page)) {
            *latest = None;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use hyper::body::Body;
    use tokio::sync::watch;

    use super::{super::answer::PIECE, *};

    #[tokio::test(start_paused = true)]
    async fn a_page_is_made_once_however_many_ask_and_again_after_a_second() {
        let (made, at_once, most) =
            (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (count, crowd) = (Arc::clone(&made), Arc::clone(&most));
        let router = Router::default().page("/metrics", move || {
            crowd.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            at_once.fetch_sub(1, Ordering::SeqCst);
            Answer::text(StatusCode::OK, count.fetch_add(1, Ordering::SeqCst).to_string())
        });
        let pages = Arc::new(Pages::new(Arc::new(router)));
        let readers: Vec<_> = (0..50)
            .map(|_| {
                let pages = Arc::clone(&pages);
                tokio::spawn(async move { pages.get(0, None).await.answer().body.clone() })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap(), "0");
        }
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(pages.get(0, None).await.answer().body, "0");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(pages.get(0, None).await.answer().body, "1");
        assert_eq!((made.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_a_part_gets_it_and_a_page_without_parts_is_one_whatever_is_asked() {
        let made = Arc::new(AtomicUsize::new(0));
        let (count, counted) = (Arc::clone(&made), Arc::clone(&made));
        let told = |query: Option<&str>| Answer::text(StatusCode::OK, format!("{query:?}"));
        let rows = move |query: Option<&str>| {
            counted.fetch_add(1, Ordering::SeqCst);
            told(query)
        };
        let page = move || Answer::text(StatusCode::OK, count.fetch_add(1, Ordering::SeqCst).to_string());
        let pages = Pages::new(Arc::new(Router::default().rows("/rows", Box::new(rows)).page("/page", page)));
        for (query, expected, times) in [
            (None, "None", 1),
            (Some(""), "None", 1),
            (Some("a=1"), "Some(\"a=1\")", 2),
            (Some("a=1"), "Some(\"a=1\")", 2),
            (Some("a=2"), "Some(\"a=2\")", 3),
        ] {
            assert_eq!(pages.get(0, query).await.answer().body, expected);
            assert_eq!(made.load(Ordering::SeqCst), times, "{query:?}");
        }
        assert_eq!(pages.get(1, Some("a=1")).await.answer().body, "3");
        assert_eq!(pages.get(1, Some("a=2")).await.answer().body, "3");
    }

    #[tokio::test(start_paused = true)]
    async fn of_large_pages_there_are_two_editions_at_once_sent_in_pieces() {
        let large = "x".repeat(SMALL + 1);
        let expected = large.clone();
        let router = Router::default().page("/debug", move || Answer::text(StatusCode::OK, large.clone()));
        let pages = Pages::new(Arc::new(router));
        let mut stalled = Vec::new();
        for _ in 0..EDITIONS {
            // However many read an edition, it is there once.
            stalled.push([pages.get(0, None).await, pages.get(0, None).await, pages.get(0, None).await]);
            tokio::time::advance(FRESH).await;
        }
        let refused = pages.get(0, None).await;
        assert_eq!(refused.answer().status, StatusCode::SERVICE_UNAVAILABLE);
        drop(stalled.pop());
        let mut sent = pages.get(0, None).await;
        let mut text = String::new();
        assert_eq!(sent.size_hint().exact(), Some(expected.len() as u64));
        while let Some(frame) = sent.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        assert!(text == expected && sent.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_leaves_does_not_let_the_page_be_made_twice_at_once() {
        let (go, may_go) = watch::channel(false);
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let (started, mut has_started) = watch::channel(());
        let router = Router::default().page("/metrics", move || {
            count.fetch_add(1, Ordering::SeqCst);
            started.send_replace(());
            while !*may_go.borrow() {
                std::thread::yield_now();
            }
            Answer::text(StatusCode::OK, "made".to_owned())
        });
        let pages = Arc::new(Pages::new(Arc::new(router)));
        let ask = || {
            let pages = Arc::clone(&pages);
            tokio::spawn(async move { pages.get(0, None).await.answer().body.clone() })
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
