//! The pages of one list, into the table as they come.
//!
//! In: a reflector that is to list. Out: how many objects there are, once the last page has been taken at the revision
//! of the first; then what the list lacks is swept. Objects are taken while their page arrives. A page that fails is
//! asked for again with its token, which leads to the same revision; a token that expired ends the list.
//!
//! Pages are long. An API server that lists from its cache (1.34 on) looks, for each page, at all objects that are
//! still to come: in pages of 400, 150 000 pods cost it seven times what they cost in pages of 10 000.

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use super::{
    FIRST_PAGE, Reflector, Trouble,
    catch_up::AWAITED_ANSWER,
    fetch::{PAGE_DEADLINE, list_uri},
};
use crate::{
    tables::{Listing, Stored},
    wire::{DecodeError, Encoding, ListPart},
};

/// Most objects on a page: as many as the API server asks etcd for at once. (`storage/etcd3/store.go`, `maxLimit`.)
const LARGEST_PAGE: usize = 10_000;
/// Pages are made no shorter than this because of a slow connection.
const SHORT_PAGE: usize = 2 * FIRST_PAGE;
/// What a page of JSON is to have, in bytes: it is held whole.
const JSON_PAGE_BYTES: usize = 2 << 20;
/// Objects that are decoded between two looks at what else there is to do: half a millisecond.
const AT_A_TIME: usize = 64;
/// A page that fails is asked for again so often, before the list begins anew: one of many must not cost all
/// others.
const PAGE_ATTEMPTS: u32 = 4;

/// What is left to know of a page that was taken.
struct Taken {
    objects: usize,
    next: Option<String>,
}

impl<T: Stored> Reflector<T> {
    /// Takes a complete list into the table. Returns how many objects it had.
    pub(super) async fn list(&mut self) -> Result<usize, Trouble> {
        let mut listing = None;
        let mut count = 0;
        let mut next: Option<String> = None;
        loop {
            let taken = self.page(next.as_deref(), &mut listing).await?;
            count += taken.objects;
            next = taken.next;
            if next.is_none() {
                break;
            }
        }
        if let Some(listing) = &listing {
            self.objects.sweep::<T>(listing);
            self.revision = listing.revision();
            self.catch_up.reached(self.revision);
        }
        self.page_limit = (self.page_limit * 2).min(LARGEST_PAGE);
        Ok(count)
    }

    /// Asks for a page until all of it has come. A later one that fails is asked for again with the same token: it
    /// shows the same revision. If a reader waits for it, an answer that stops costs little and another connection
    /// is tried.
    async fn page(&mut self, from: Option<&str>, listing: &mut Option<Listing>) -> Result<Taken, Trouble> {
        let mut attempts = 1;
        let mut patience = AWAITED_ANSWER;
        loop {
            let asked = Instant::now();
            let trouble = match self.take_page(from, listing, patience).await {
                Ok(taken) => return Ok(taken),
                Err(trouble) => trouble,
            };
            self.shorten_pages(&trouble);
            match &trouble {
                Trouble::TooLarge(_) if self.page_limit > 1 => {
                    self.page_limit = self.page_limit.div_ceil(8);
                    continue;
                }
                Trouble::Late(waited) if *waited < PAGE_DEADLINE => {
                    self.fetcher.reconnect();
                    patience *= 2;
                    if from.is_none() {
                        // The next first page is of another revision.
                        *listing = None;
                    }
                    continue;
                }
                Trouble::Refused { code: 429 | 500.., .. } | Trouble::Late(_) | Trouble::Broken(_)
                    if from.is_some() && attempts < PAGE_ATTEMPTS => {}
                _ => return Err(trouble),
            }
            attempts += 1;
            self.pause_after(&trouble, asked).await;
        }
    }

    /// Takes the objects of a page while they arrive, some at a time, so that a thread is not kept from its other
    /// tasks.
    async fn take_page(
        &mut self,
        from: Option<&str>,
        listing: &mut Option<Listing>,
        patience: Duration,
    ) -> Result<Taken, Trouble> {
        let uri = list_uri::<T>(self.page_limit, from);
        let mut page = self.fetcher.list(&uri, self.patience(patience)).await?;
        let mut taken = Taken { objects: 0, next: None };
        let mut current = None;
        while let Some(part) = page.next(self.patience(patience)).await? {
            match (part, &current) {
                (ListPart::Meta { revision, next }, _) => {
                    let listing = match listing {
                        Some(listing) => listing,
                        None => listing.insert(T::table(&self.objects).begin_list(revision)?),
                    };
                    if revision != listing.revision() {
                        let (list, page) = (listing.revision().0, revision.0);
                        return Err(Trouble::TwoRevisions { list, page });
                    }
                    taken.next = next;
                    current = Some(&*listing);
                }
                (ListPart::Item(item), Some(listing)) => {
                    self.take_listed(listing, page.encoding(), &item)?;
                    taken.objects += 1;
                    if taken.objects.is_multiple_of(AT_A_TIME) {
                        self.catch_up.step();
                        tokio::task::yield_now().await;
                    }
                }
                (ListPart::Item(_), None) => {}
            }
        }
        self.catch_up.step();
        self.page_limit = match page.encoding() {
            Encoding::Json => limit_after(page.size(), taken.objects),
            Encoding::Protobuf if self.page_limit > FIRST_PAGE => self.page_limit,
            Encoding::Protobuf => LARGEST_PAGE,
        };
        Ok(taken)
    }

    /// A page that did not come in time, or broke off, may have been too long for a slow connection. Those of the next
    /// list are longer again.
    fn shorten_pages(&mut self, trouble: &Trouble) {
        if let Trouble::Late(_) | Trouble::Broken(_) = trouble
            && self.page_limit > SHORT_PAGE
        {
            self.page_limit = (self.page_limit / 4).max(SHORT_PAGE);
        }
    }

    /// How long to wait for what comes next: that, while it is waited for.
    fn patience(&self, while_awaited: Duration) -> Duration {
        if self.catch_up.is_behind(self.revision) { while_awaited } else { PAGE_DEADLINE }
    }

    fn take_listed(&self, listing: &Listing, encoding: Encoding, item: &Bytes) -> Result<(), Trouble> {
        // Without its name it is not known what it blocks, so the list tells nothing.
        let head = encoding.head(item)?;
        let key = head.key::<T>();
        let (Some(uid), Some(revision)) = (&head.uid, head.resource_version) else {
            let error = DecodeError::value("metadata", "uid or resourceVersion cannot be read");
            self.note_unreadable(Some(listing), (encoding, item), head, &error);
            return Ok(());
        };
        let table = T::table(&self.objects);
        if table.is_listed_as_known(listing, &key, uid, revision)? {
            return Ok(());
        }
        match encoding.object::<T>(item) {
            Ok(object) => self.objects.list(listing, object),
            Err(error) => self.note_unreadable(Some(listing), (encoding, item), head, &error),
        }
        Ok(())
    }
}

/// How many objects to ask for after a page of JSON of so many bytes.
pub(super) fn limit_after(bytes: usize, objects: usize) -> usize {
    let mean = bytes.div_ceil(objects.max(1)).max(1);
    (JSON_PAGE_BYTES / mean).clamp(1, LARGEST_PAGE)
}
