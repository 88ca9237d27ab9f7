//! The pages of one list, into the table as they come.
//!
//! In: a reflector that is to list. Out: how many objects there are, once the last page has been taken at the revision
//! of the first; then what the list lacks is swept. Pages are sized by bytes. One that fails is asked for again with its
//! token, which leads to the same revision; a token that expired ends the list.

use bytes::Bytes;

use super::{ListFailure, Reflector, Trouble, catch_up::AWAITED_ANSWER, fetch::PAGE_DEADLINE, list_uri};
use crate::{
    kube_api::wire::{DecodeError, Encoding},
    state::{Listing, Stored},
};

/// What a page is to have, in bytes: enough that the server's work on a page does not count beside that on its
/// objects, and little to hold in memory.
const PAGE_BYTES: usize = 2 << 20;
/// Most objects on a page, however small they are.
const LARGEST_PAGE: usize = 5_000;
/// Objects that are decoded between two looks at what else there is to do: half a millisecond.
const AT_A_TIME: usize = 64;
/// A page that fails is asked for again so often, before the list begins anew: one of hundreds must not cost all
/// others.
const PAGE_ATTEMPTS: u32 = 4;

impl<T: Stored> Reflector<T> {
    /// Takes a complete list into the table. Returns how many objects it had.
    pub(super) async fn list(&mut self) -> Result<usize, ListFailure> {
        let mut list: Option<Listing> = None;
        let mut count = 0;
        let (mut encoding, mut body) = self.page(None).await?;
        loop {
            let page = encoding.list_page(&body).map_err(Trouble::from)?;
            self.page_limit = limit_after(body.len(), page.items.len());
            drop(std::mem::take(&mut body));
            let listing = match list {
                Some(listing) => listing,
                None => T::table(&self.objects).begin_list(page.revision)?,
            };
            list = Some(listing);
            if page.revision != listing.revision() {
                let (list, page) = (listing.revision().0, page.revision.0);
                return Err(Trouble::TwoRevisions { list, page }.into());
            }
            count += page.items.len();
            let taking = self.take_page(&listing, encoding, &page.items);
            let Some(token) = &page.next else {
                taking.await?;
                self.objects.sweep::<T>(&listing);
                self.revision = listing.revision();
                self.catch_up.reached(self.revision);
                return Ok(count);
            };
            // The server makes the next page while this one is read.
            let (ahead, result) = tokio::join!(self.page_ahead(token), taking);
            result?;
            (encoding, body) = match ahead {
                Ok(page) => page,
                Err(trouble @ Trouble::Expired(_)) => return Err(trouble.into()),
                Err(_) => self.page(Some(token)).await?,
            };
        }
    }

    async fn page_ahead(&self, token: &str) -> Result<(Encoding, Bytes), Trouble> {
        let is_awaited = self.catch_up.is_behind(self.revision);
        let limit = if is_awaited { AWAITED_ANSWER } else { PAGE_DEADLINE };
        let page = self.fetcher.get_within(&list_uri::<T>(self.page_limit, Some(token)), limit).await?;
        self.catch_up.step();
        Ok(page)
    }

    /// Takes the objects of a page, some at a time, so that a thread is not kept from its other tasks.
    async fn take_page(
        &self,
        listing: &Listing,
        encoding: Encoding,
        items: &[Bytes],
    ) -> Result<(), ListFailure> {
        for some in items.chunks(AT_A_TIME) {
            for item in some {
                self.take_listed(listing, encoding, item)?;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Asks for a page until it comes. A later one that fails is asked for again with the same token: it shows the
    /// same revision.
    async fn page(&mut self, next: Option<&str>) -> Result<(Encoding, Bytes), Trouble> {
        let mut attempts = 1;
        loop {
            let trouble = match self.hurried_page(&list_uri::<T>(self.page_limit, next)).await {
                Err(trouble) => trouble,
                page => return page,
            };
            match &trouble {
                Trouble::TooLarge(_) if self.page_limit > 1 => {
                    self.page_limit = self.page_limit.div_ceil(8);
                    continue;
                }
                Trouble::Refused { code: 429 | 500.., .. } | Trouble::Late(_) | Trouble::Broken(_)
                    if next.is_some() && attempts < PAGE_ATTEMPTS => {}
                _ => return Err(trouble),
            }
            attempts += 1;
            self.pause_after(&trouble).await;
        }
    }

    /// Reads a page. If somebody waits for it, the same page is soon asked for on another connection.
    async fn hurried_page(&mut self, uri: &str) -> Result<(Encoding, Bytes), Trouble> {
        let mut limit = AWAITED_ANSWER;
        while limit < PAGE_DEADLINE && self.catch_up.is_behind(self.revision) {
            match self.fetcher.get_within(uri, limit).await {
                Err(Trouble::Late(_)) => self.fetcher.reconnect(),
                Ok(page) => {
                    self.catch_up.step();
                    return Ok(page);
                }
                Err(trouble) => return Err(trouble),
            }
            limit *= 2;
        }
        self.fetcher.get(uri).await
    }

    fn take_listed(&self, listing: &Listing, encoding: Encoding, item: &Bytes) -> Result<(), ListFailure> {
        // Without its name nobody knows what it blocks, so the list tells nothing.
        let head = encoding.head(item).map_err(Trouble::from)?;
        let key = head.key::<T>();
        let (Some(uid), Some(revision)) = (&head.uid, head.resource_version) else {
            let error =
                DecodeError::Value { field: "metadata", what: "uid or resourceVersion cannot be read" };
            self.note_unreadable(Some(listing), &key, head, &error);
            return Ok(());
        };
        let table = T::table(&self.objects);
        if table.is_listed_as_known(listing, &key, uid, revision)? {
            return Ok(());
        }
        match encoding.object::<T>(item) {
            Ok(object) => self.objects.list(listing, object),
            Err(error) => self.note_unreadable(Some(listing), &key, head, &error),
        }
        Ok(())
    }
}

/// How many objects to ask for after a page of so many bytes.
pub(super) fn limit_after(bytes: usize, objects: usize) -> usize {
    let mean = bytes.div_ceil(objects.max(1)).max(1);
    (PAGE_BYTES / mean).clamp(1, LARGEST_PAGE)
}
