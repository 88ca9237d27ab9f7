//! One watch per kind, from the API server into the tables.
//!
//! A complete list comes first, at the most recent revision (a list from the server's cache may be
//! older than what we have seen); then events in order. After a gap too long to resume, the list
//! comes again and the table computes what was deleted meanwhile (L8).

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};

use super::kinds::Watched;
use crate::state::{Objects, Stored};

/// Objects per page of a list. Larger than the usual 500, because narrow objects are small once
/// parsed and each page costs a round trip.
const PAGE_SIZE: u32 = 2_000;

/// Watches one kind for ever. Errors are kept for `/readyz`, and retried with backoff.
pub async fn watch<T: Stored>(client: Client, objects: Arc<Objects>) {
    let api: Api<Watched<T>> = Api::all_with(client, &());
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listing = Vec::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(watched))) => listing.push(watched.object),
            Ok(Some(Event::InitDone)) => objects.reset(std::mem::take(&mut listing)),
            Ok(Some(Event::Apply(watched))) => {
                objects.set_error::<T>(None);
                objects.apply(watched.object);
            }
            Ok(Some(Event::Delete(watched))) => {
                objects.set_error::<T>(None);
                let metadata = watched.object.metadata();
                objects.delete::<T>(watched.object.key(), metadata.resource_version);
            }
            Ok(None) => return,
            Err(error) => {
                let reason = error_chain(&error);
                tracing::warn!(kind = T::PLURAL, error = %reason, "watch failed, retrying");
                objects.set_error::<T>(Some(reason));
            }
        }
    }
}

/// An error with its causes, on one line.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
