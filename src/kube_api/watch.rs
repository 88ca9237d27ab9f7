//! One watch per kind, from the API server into the tables.
//!
//! A complete list comes first, at the most recent revision (a list from the server's cache may be
//! older than what we have seen); then events in order. After a gap too long to resume, the list
//! comes again and the table computes what was deleted meanwhile (L8).

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::{Instant, sleep_until};

use super::{backoff::Backoff, error_chain, kinds::Watched};
use crate::state::{Objects, Stored};

/// Objects per page of a list. Larger than the usual 500, because narrow objects are small once
/// parsed and each page costs a round trip.
const PAGE_SIZE: u32 = 2_000;

/// Longest pause between two attempts to list or watch. kube's default goes to 30 s, but work has
/// to resume within 5 s of the end of an outage (L16).
pub const LONGEST_PAUSE: Duration = Duration::from_millis(2_500);

/// After this long without another error a watch is taken to be well again. A watch that resumes
/// does not say so before its first event, which for a quiet kind may be days away; a watch that
/// fails does so again after a connect timeout (5 s) and a pause.
const ERROR_LIFETIME: Duration = Duration::from_secs(15);

/// Watches one kind for ever. Errors are kept for `/readyz`, and retried with backoff.
pub async fn watch<T: Stored>(client: Client, objects: Arc<Objects>) {
    let api: Api<Watched<T>> = Api::all_with(client, &());
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let mut events = watcher(api, config).backoff(Backoff::new(LONGEST_PAUSE)).boxed();
    let mut listing = Vec::new();
    let mut error_fades: Option<Instant> = None;
    let mut last_reason: Option<String> = None;
    loop {
        let event = tokio::select! {
            event = events.try_next() => event,
            () = sleep_until(error_fades.unwrap_or_else(Instant::now)), if error_fades.is_some() => {
                error_fades = None;
                last_reason = None;
                objects.set_error::<T>(None);
                continue;
            }
        };
        if event.is_ok() {
            last_reason = None;
        }
        match event {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(watched))) => listing.push(watched.object),
            Ok(Some(Event::InitDone)) => objects.reset(std::mem::take(&mut listing)),
            Ok(Some(Event::Apply(watched))) => {
                objects.set_error::<T>(None);
                objects.apply(watched.object);
            }
            Ok(Some(Event::Delete(watched))) => {
                objects.set_error::<T>(None);
                objects.delete(watched.object);
            }
            Ok(None) => return,
            Err(error) => {
                let reason = error_chain(&error);
                // An outage may last for hours: a line per reason, not per attempt.
                if last_reason.as_deref() != Some(&*reason) {
                    tracing::warn!(kind = T::PLURAL, error = %reason, "watch failed, retrying");
                }
                last_reason = Some(reason.clone());
                objects.set_error::<T>(Some(reason));
                // Before the first list the last error is the reason why there is none.
                error_fades = objects.is_listed::<T>().then(|| Instant::now() + ERROR_LIFETIME);
            }
        }
    }
}

/// Reads a complete list, at the most recent revision, and takes what is newer than what we have.
///
/// For a new leader: what its predecessor wrote last may not have come through the watch yet. An
/// object that is missing from the list stays, for the watch will deliver its deletion.
///
/// # Errors
/// Any page that cannot be read. What was read before it has been taken.
pub async fn refresh<T: Stored>(client: &Client, objects: &Objects) -> Result<(), kube::Error> {
    let api: Api<Watched<T>> = Api::all_with(client.clone(), &());
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api.list(&page).await?;
        for watched in list.items {
            objects.absorb(watched.object);
        }
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            _ => return Ok(()),
        }
    }
}
