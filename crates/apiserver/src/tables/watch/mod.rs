//! One reflector per kind, from the API server into the tables: a list, then a watch from its revision on.
//!
//! The list comes at the most recent revision (one from the server's cache may be older than what we have
//! seen), page by page, each object decoded by itself and put into the table as it comes. Then events in
//! order. After a gap too long to resume (410), the list comes again and sweeps what it lacks (L8). An
//! object that cannot be read is marked and blocks itself alone (S42). A list may prove
//! that etcd was restored (E11); then nothing more is taken into these tables.
//!
//! client-go: tools/cache/reflector.go. Unlike there, silence of a watch costs one reopening on a new
//! connection: the server sends bookmarks, so a server that froze is noticed by their absence. Where it sends none, the end
//! of a short watch tells an idle kind from a connection that brings nothing.

mod catch_up;
mod fetch;
mod pace;
mod pages;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

pub use catch_up::{CatchUp, CatchUps, catch_up};
pub use fetch::{Fetcher, Stream, Trouble, page_uri};
pub use pace::Pace;

use self::{
    catch_up::{HURRIED_LIFETIME, SOON},
    fetch::PAGE_DEADLINE,
};
use super::{Listing, Objects, Regression, Stored};
use crate::{
    ids::ResourceVersion,
    kinds::api_root,
    metrics::{KindMetrics, ListCause, ReopenCause},
    wire::{DecodeError, Encoding, Head, WatchEvent, WatchEventKind},
};

/// Objects on the first page of a list, whose size is not known yet.
const FIRST_PAGE: usize = 100;
/// So many objects are listed sooner than the server sends a bookmark.
const FEW: usize = 500;
/// How long a list may take with all its pages. etcd forgets the revision of the first page after about as
/// long.
const LIST_DEADLINE: Duration = Duration::from_mins(5);
/// A watch lives at least so long, and up to twice that: client-go's five to ten minutes, so that the
/// watches of many clients do not end together.
const WATCH_LIFETIME: Duration = Duration::from_mins(5);
/// A server may count the end of a watch's life from a little earlier than we do.
const WATCH_MARGIN: Duration = Duration::from_secs(5);
/// A watch that lived so long was well, with or without events.
const WELL_AFTER: Duration = Duration::from_secs(10);
/// Failures of a watch that speak against its revision, or watches that end at once and bring nothing, until a list is
/// taken to get beyond it.
const FAILURES_BEFORE_LIST: u32 = 5;
/// Refusals in a row by a server that is not well, until another one is looked for.
const REFUSALS_BEFORE_ANOTHER: u32 = 3;
/// How long a watch may take to open, with the question that may come before it.
const OPEN_DEADLINE: Duration = Duration::from_secs(15);
/// Pause before a kind is asked for again that the server does not have.
const NOT_SERVED: Duration = Duration::from_mins(5);
/// A watch that is silent for so long is opened anew: the API server sends a bookmark each minute, give or take some
/// seconds.
const LONGEST_SILENCE: Duration = Duration::from_secs(75);

/// Watches one kind until the tables are proven wrong by a restore; then waits for ever.
pub async fn watch<T: Stored>(
    fetcher: Fetcher,
    objects: Arc<Objects>,
    metrics: KindMetrics,
    catch_up: CatchUp,
) {
    let mut reflector = Reflector::<T> {
        fetcher,
        objects,
        metrics,
        catch_up,
        pace: Pace::default(),
        revision: ResourceVersion::default(),
        is_doubted: false,
        last_reason: None,
        refusals: 0,
        page_limit: FIRST_PAGE,
        listed: 0,
        kind: PhantomData,
    };
    let proof = reflector.run().await;
    tracing::error!(kind = T::PLURAL, %proof, "etcd was restored from a backup: everything is listed again");
    reflector.objects.restore_grace().begin(Instant::now());
    std::future::pending::<()>().await;
}

/// Why a watch cannot be read further.
enum WatchEnd {
    /// The server ended it.
    Ended,
    /// Nothing came for too long.
    Silent,
    /// A reader waits for more than it has brought.
    Behind,
    /// Only a list helps.
    List(ListCause, Trouble),
    /// To be opened anew after a pause.
    Failed(Trouble),
    /// The server's revision is below ours.
    Restored(Regression),
}

struct Reflector<T: Stored> {
    fetcher: Fetcher,
    objects: Arc<Objects>,
    metrics: KindMetrics,
    catch_up: CatchUp,
    pace: Pace,
    /// Up to here everything is in the table.
    revision: ResourceVersion,
    /// Whether the last watch that opened may not have shown what happened: it brought nothing, and did not end in its time.
    is_doubted: bool,
    last_reason: Option<String>,
    /// How often the server has refused in a row because it is not well.
    refusals: u32,
    /// How many objects to ask for at once.
    page_limit: usize,
    /// How many objects the last list had, also of those that are not kept.
    listed: usize,
    kind: PhantomData<T>,
}

impl<T: Stored> Reflector<T> {
    /// Lists and watches until a restore is proven.
    async fn run(&mut self) -> Regression {
        let mut cause = ListCause::Start;
        loop {
            if let Err(proof) = self.list_until_done(cause).await {
                return proof;
            }
            cause = match self.follow().await {
                Ok(cause) => cause,
                Err(proof) => return proof,
            };
        }
    }

    async fn list_until_done(&mut self, cause: ListCause) -> Result<(), Regression> {
        loop {
            sleep_until(self.pace.next_list(Instant::now(), fastrand::f64())).await;
            let started = Instant::now();
            self.pace.list_begun(started);
            self.metrics.listing(cause);
            let listed = timeout_at(started + LIST_DEADLINE, self.list()).await;
            match listed.unwrap_or(Err(Trouble::Late(LIST_DEADLINE))) {
                Ok(count) => {
                    self.listed = count;
                    self.metrics.listed(count, started.elapsed());
                    self.pace.listed();
                    self.is_doubted = false;
                    self.well();
                    return Ok(());
                }
                Err(Trouble::Restored(proof)) => return Err(proof),
                Err(trouble) if is_not_served::<T>(&trouble) => self.not_served(&trouble).await,
                Err(trouble) => {
                    if self.objects.is_listed::<T>() {
                        self.objects.blind_from::<T>(started);
                    }
                    self.pause_after(&trouble, started).await;
                }
            }
        }
    }

    fn note_unreadable(
        &self,
        listing: Option<&Listing>,
        (encoding, raw): (Encoding, &Bytes),
        head: Head,
        error: &DecodeError,
    ) {
        let (key, error) = (head.key::<T>(), error.to_string());
        let known = (head.uid, head.resource_version, encoding.attachment_names(raw));
        if self.objects.note_unreadable::<T>(listing, &key, known, error.clone()) {
            tracing::warn!(kind = T::PLURAL, object = %key, error, "object cannot be read: only what concerns it waits");
        }
    }

    /// Watches from the revision on, until only a list helps.
    async fn follow(&mut self) -> Result<ListCause, Regression> {
        let mut failures = 0;
        let mut was_cut = false;
        loop {
            let begun_at = self.revision;
            let opened = Instant::now();
            let mut asked = opened;
            let is_hurried = self.catch_up.is_behind(self.revision);
            if is_hurried && self.are_few() {
                return Ok(ListCause::Behind);
            }
            let regular = WATCH_LIFETIME.mul_f64(1.0 + fastrand::f64());
            let is_proof = self.is_doubted;
            let lifetime = if is_hurried || is_proof { HURRIED_LIFETIME } else { regular };
            let open = async {
                // A watch from the future would open, and stay silent.
                if std::mem::take(&mut was_cut) || is_proof {
                    self.fetcher.revision_of_now::<T>(self.revision, PAGE_DEADLINE).await?;
                }
                asked = Instant::now();
                self.fetcher.open(&watch_uri::<T>(self.revision, lifetime)).await
            };
            let opening = timeout(OPEN_DEADLINE, open).await;
            let end = match opening.unwrap_or(Err(Trouble::Late(OPEN_DEADLINE))) {
                Ok(stream) => {
                    self.is_doubted = true;
                    if !is_proof {
                        self.objects.set_blind_since::<T>(None);
                    }
                    self.read(stream, is_hurried, is_proof).await
                }
                Err(Trouble::Restored(proof)) => WatchEnd::Restored(proof),
                Err(trouble @ Trouble::Expired(_)) => WatchEnd::List(ListCause::Expired, trouble),
                Err(trouble) if is_not_served::<T>(&trouble) => WatchEnd::List(ListCause::Failing, trouble),
                Err(trouble) => {
                    self.objects.blind_from::<T>(opened);
                    WatchEnd::Failed(trouble)
                }
            };
            let is_well = asked.elapsed() >= WELL_AFTER.min(lifetime);
            let is_early = asked.elapsed() + WATCH_MARGIN < lifetime;
            if self.revision > begun_at || (is_well && matches!(end, WatchEnd::Ended)) {
                failures = 0;
                // A proxy may end what brings nothing sooner.
                self.is_doubted &= is_early;
            }
            // An API server that ended is perhaps one whose etcd was restored.
            let was_ours = matches!(end, WatchEnd::Silent | WatchEnd::Behind);
            was_cut = is_early && !was_ours;
            match end {
                WatchEnd::Restored(proof) => return Err(proof),
                WatchEnd::List(cause, trouble) => {
                    tracing::info!(kind = T::PLURAL, reason = %trouble, "listing again");
                    return Ok(cause);
                }
                WatchEnd::Silent => {
                    self.metrics.reopened(ReopenCause::Silent);
                    self.fetcher.reconnect();
                    self.is_doubted = true;
                }
                WatchEnd::Behind => {
                    self.metrics.reopened(ReopenCause::Behind);
                    self.is_doubted = is_proof || is_hurried;
                    // It should have ended by itself.
                    if is_hurried {
                        self.fetcher.reconnect();
                    }
                }
                WatchEnd::Ended if is_hurried && self.catch_up.is_behind(self.revision) => {
                    self.metrics.reopened(ReopenCause::Behind);
                    if self.revision == begun_at {
                        return Ok(ListCause::Behind);
                    }
                }
                WatchEnd::Ended => {
                    self.metrics.reopened(ReopenCause::Ended);
                    // One that ends as soon as it is open is not well, and a proxy that cannot stream ends all so.
                    if !is_well && self.revision == begun_at {
                        failures += 1;
                        if failures >= FAILURES_BEFORE_LIST {
                            return Ok(ListCause::Failing);
                        }
                        sleep(self.pace.failed(opened.elapsed(), None, fastrand::f64())).await;
                    }
                }
                WatchEnd::Failed(trouble) => {
                    self.metrics.reopened(ReopenCause::Failed);
                    // One that was cut after a while is followed by one that proves it.
                    if self.is_doubted && (is_proof || !is_well) {
                        self.objects.blind_from::<T>(opened);
                    }
                    // An outage says nothing against the revision, nor does a right that is missing: a list
                    // every few seconds would be no help.
                    let speaks_against = match trouble {
                        Trouble::Unreadable(_) => true,
                        Trouble::Refused { code, .. } => matches!(code, 400 | 422),
                        _ => false,
                    };
                    failures += u32::from(speaks_against);
                    // What an open watch brought was no work in vain.
                    self.pause_after(&trouble, Instant::now()).await;
                    if failures >= FAILURES_BEFORE_LIST {
                        return Ok(ListCause::Failing);
                    }
                }
            }
        }
    }

    /// Takes events until the watch ends, or is too slow for who waits for them. One that is a proof has to bring something, or
    /// to end in its time.
    async fn read(&mut self, mut stream: Stream, is_hurried: bool, is_proof: bool) -> WatchEnd {
        let opened = Instant::now();
        let silence = if is_proof { HURRIED_LIFETIME + WATCH_MARGIN } else { LONGEST_SILENCE };
        let (mut heard, mut is_well) = (opened, false);
        loop {
            let event = tokio::select! {
                biased;
                event = timeout_at(heard + silence, stream.next()) => event,
                () = self.too_slow(opened, is_hurried) => return WatchEnd::Behind,
                () = sleep_until(opened + WELL_AFTER), if !is_well => {
                    is_well = true;
                    self.watched_well();
                    continue;
                }
            };
            let event = match event {
                Err(_) if is_proof => return WatchEnd::Failed(Trouble::Late(silence)),
                Err(_) => return WatchEnd::Silent,
                Ok(Ok(None)) => return WatchEnd::Ended,
                Ok(Ok(Some(event))) => event,
                Ok(Err(trouble)) => return WatchEnd::Failed(trouble),
            };
            heard = Instant::now();
            if let Err(end) = self.take(&stream, &event) {
                return end;
            }
            self.is_doubted = false;
            self.catch_up.reached(self.revision);
            if !is_well {
                is_well = true;
                self.watched_well();
            }
        }
    }

    fn watched_well(&mut self) {
        self.objects.set_blind_since::<T>(None);
        self.well();
        self.pace.watched();
    }

    /// Waits until a reader needs more than this watch has brought, and it is no use to wait for it; of one that is to
    /// bring it, until it should have ended. Cancel safe.
    async fn too_slow(&self, opened: Instant, is_hurried: bool) {
        self.catch_up.behind(self.revision).await;
        if is_hurried {
            sleep_until(opened + HURRIED_LIFETIME + WATCH_MARGIN).await;
        } else if !self.are_few() {
            sleep(SOON).await;
        }
    }

    /// Whether there are so few that a list tells as much as a watch, and at once.
    fn are_few(&self) -> bool {
        self.listed <= FEW
    }

    fn take(&mut self, stream: &Stream, event: &WatchEvent) -> Result<(), WatchEnd> {
        self.metrics.event(event.kind.into());
        if event.kind == WatchEventKind::Error {
            return Err(match stream.trouble(event) {
                trouble @ Trouble::Expired(_) => WatchEnd::List(ListCause::Expired, trouble),
                trouble => WatchEnd::Failed(trouble),
            });
        }
        let encoding = stream.encoding();
        let is_object = event.kind != WatchEventKind::Bookmark;
        let error = match is_object.then(|| encoding.object::<T>(&event.object)).transpose() {
            Ok(Some(object)) => {
                self.revision = self.revision.max(object.metadata().resource_version);
                match event.kind {
                    WatchEventKind::Deleted => self.objects.delete(object),
                    WatchEventKind::Added => self.objects.add(object, (encoding, &event.object)),
                    _ => self.objects.apply(object),
                }
                return Ok(());
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        let gap = |error| WatchEnd::List(ListCause::Gap, Trouble::Unreadable(error));
        let head = encoding.head(&event.object).map_err(gap)?;
        if let Some(revision) = head.resource_version {
            self.revision = self.revision.max(revision);
            T::table(&self.objects).advance(revision);
        }
        if let Some(error) = error {
            if event.kind == WatchEventKind::Deleted {
                let revision = head.resource_version.unwrap_or(self.revision);
                self.objects.delete_unreadable::<T>(&head.key::<T>(), revision);
            } else {
                self.note_unreadable(None, (encoding, &event.object), head, &error);
            }
        }
        Ok(())
    }

    async fn pause_after(&mut self, trouble: &Trouble, begun: Instant) {
        let took = begun.elapsed();
        let reason = trouble.to_string();
        // An outage may last for hours: a line per reason, not per attempt.
        if self.last_reason.as_deref() != Some(&*reason) {
            tracing::warn!(kind = T::PLURAL, error = %reason, "cannot be listed or watched, retrying");
        }
        self.objects.set_error::<T>(Some(reason.clone()));
        self.last_reason = Some(reason);
        self.refusals = match trouble {
            Trouble::Refused { code: 500.., .. } => self.refusals + 1,
            _ => 0,
        };
        let is_lost = matches!(trouble, Trouble::Late(_) | Trouble::Broken(_));
        if is_lost || self.refusals >= REFUSALS_BEFORE_ANOTHER {
            self.refusals = 0;
            self.fetcher.reconnect();
        }
        sleep(self.pace.failed(took, trouble.retry_after(), fastrand::f64())).await;
    }

    /// The server lacks an optional kind, which is no failure: it is said once, and asked again in a while.
    async fn not_served(&mut self, trouble: &Trouble) {
        let reason = trouble.to_string();
        if self.last_reason.replace(reason.clone()).is_none() {
            tracing::warn!(kind = T::PLURAL, error = %reason, "not served, asked for again every five minutes");
        }
        self.metrics.not_served();
        self.objects.not_served::<T>(reason);
        sleep(NOT_SERVED).await;
    }

    fn well(&mut self) {
        self.pace.succeeded();
        self.refusals = 0;
        self.objects.set_error::<T>(None);
        if self.last_reason.take().is_some() {
            tracing::info!(kind = T::PLURAL, "listed and watched again");
        }
    }
}

/// Whether the server does not have an optional kind.
fn is_not_served<T: Stored>(trouble: &Trouble) -> bool {
    T::IS_OPTIONAL && matches!(trouble, Trouble::Refused { code: 404, .. })
}

fn watch_uri<T: Stored>(revision: ResourceVersion, lifetime: Duration) -> String {
    format!(
        "{}/{}?watch=true&allowWatchBookmarks=true&resourceVersion={revision}&timeoutSeconds={}",
        api_root(T::GROUP),
        T::PLURAL,
        lifetime.as_secs()
    )
}

#[cfg(test)]
mod tests;
