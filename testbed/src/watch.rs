//! Watches: every change after a revision, in order, exactly once.
//!
//! In: the store's log and a wake-up per change. Out: a stream of lines, one event each. A watcher holds
//! only its position in the log, so a slow watcher costs nothing, and detects a gap when its position is
//! gone (410, in-band). Bookmarks report its position.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep_until},
};

use super::{
    clock::Clock,
    json,
    list::ListOptions,
    negotiate::View,
    request::Place,
    schema::{decode::decode, types},
    status::Refusal,
    store::{Change, Object, SharedStore, Store, Unknown},
};

/// How long a watch lives that does not say: half an hour to an hour, as upstream.
const LIFETIME_SECONDS: u64 = 1800;
/// Time between two bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// The last bookmark comes so long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// One watch.
#[derive(Debug)]
pub struct Watch {
    objects: SharedStore,
    clock: Clock,
    place: Place,
    prefix: String,
    options: ListOptions,
    view: View,
    position: u64,
    /// Up to which revision it tells; without it, all there is.
    told: Option<Receiver<u64>>,
    changed: Option<Receiver<u64>>,
    lines: VecDeque<Bytes>,
    end: Instant,
    bookmark: Instant,
    has_ended: bool,
}

impl Watch {
    /// Begins a watch: with what there is, or after a revision. It tells what was written up to `told`, if that is given.
    ///
    /// # Errors
    /// The revision cannot be read.
    pub fn begin(
        (objects, store): (&SharedStore, &Store),
        told: Option<Receiver<u64>>,
        clock: Clock,
        place: &Place,
        options: ListOptions,
        view: View,
    ) -> Result<Self, Refusal> {
        let revision = options.revision_number()?;
        let lifetime =
            options.timeout.unwrap_or_else(|| LIFETIME_SECONDS + fastrand::u64(..LIFETIME_SECONDS));
        let now = Instant::now();
        let end = now + Duration::from_secs(lifetime);
        let mut watch = Self {
            objects: objects.clone(),
            clock,
            place: place.clone(),
            prefix: place.prefix(),
            view,
            position: revision,
            changed: told.clone().or_else(|| store.subscribe(place.kind)),
            told,
            lines: VecDeque::new(),
            end,
            bookmark: next_bookmark(now, end),
            has_ended: false,
            options,
        };
        let is_initial = watch.options.sends_initial.unwrap_or(revision == 0);
        if is_initial {
            watch.send_initial(store);
        } else if revision == 0 {
            watch.position = store.revision();
        }
        Ok(watch)
    }

    fn send_initial(&mut self, store: &Store) {
        self.position = store.revision();
        // The current revision is always known.
        let objects = store.list(self.place.kind, &self.prefix, "", self.position).unwrap_or_default();
        for (_, object) in objects {
            if self.options.selector.matches(&object.value) {
                self.send("ADDED", &object);
            }
        }
        if self.options.sends_initial == Some(true) && self.options.allows_bookmarks {
            self.send_bookmark(true);
        }
    }

    /// The next line; nothing when the watch has ended.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.has_ended {
                return None;
            }
            if let Some(changed) = &mut self.changed {
                changed.borrow_and_update();
            }
            self.read_changes();
            if !self.lines.is_empty() || self.has_ended {
                continue;
            }
            let changed = async {
                match &mut self.changed {
                    Some(changed) => changed.changed().await.is_ok(),
                    None => false,
                }
            };
            tokio::select! {
                is_open = changed => self.has_ended = !is_open,
                () = sleep_until(self.bookmark), if self.options.allows_bookmarks => {
                    self.bookmark = next_bookmark(Instant::now(), self.end);
                    self.send_bookmark(false);
                }
                () = sleep_until(self.end) => self.has_ended = true,
            }
        }
    }

    fn read_changes(&mut self) {
        let (changes, written) =
            self.objects.with(|store| (store.changes(self.place.kind, self.position), store.revision()));
        let revision = self.told.as_ref().map_or(written, |told| *told.borrow());
        match changes {
            Ok(changes) => {
                // A watch from a future revision shows nothing before it.
                self.position = self.position.max(revision);
                for change in changes.into_iter().take_while(|change| change.revision <= revision) {
                    self.show(&change);
                }
            }
            Err(Unknown::Compacted(oldest) | Unknown::Future(oldest)) => {
                let message = format!("too old resource version: {} ({oldest})", self.position);
                self.send_value("ERROR", &Refusal::expired(message).body());
                self.has_ended = true;
            }
        }
    }

    /// An object that a selector stops matching looks deleted, one that it begins to match new.
    fn show(&mut self, change: &Change) {
        if !change.key.starts_with(&self.prefix) {
            return;
        }
        let matches = |object: &Arc<Object>| self.options.selector.matches(&object.value);
        let was_shown = change.before.as_ref().is_some_and(matches);
        let is_shown = !change.is_deletion && matches(&change.after);
        match (was_shown, is_shown) {
            (false, true) => self.send("ADDED", &change.after),
            (true, true) => self.send("MODIFIED", &change.after),
            (true, false) => {
                let before = change.before.as_ref().unwrap_or(&change.after);
                let last = Object::at(before.value.clone(), change.revision);
                self.send("DELETED", &last);
            }
            (false, false) => {}
        }
    }

    fn send(&mut self, event: &str, object: &Arc<Object>) {
        let mut line = format!(r#"{{"type":"{event}","object":"#).into_bytes();
        match self.view {
            View::Object => object.write_typed(self.place.kind, &mut line),
            View::Table(_) | View::Metadata => {
                let value = self.view.one(self.place.kind, object, &self.clock);
                line.extend(serde_json::to_vec(&value).unwrap_or_default());
            }
        }
        line.extend_from_slice(b"}\n");
        self.lines.push_back(line.into());
    }

    fn send_bookmark(&mut self, ends_initial: bool) {
        let kind = self.place.kind;
        let empty = decode(types(), kind.type_name, json!({})).map(|decoded| decoded.value);
        let mut object = empty.unwrap_or_default();
        if ends_initial {
            json::set(&mut object, "/metadata/annotations", json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = Object::at(object, self.position);
        if self.view == View::Object {
            self.send("BOOKMARK", &object);
            return;
        }
        let value = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.value.pointer("/metadata"),
        });
        self.send_value("BOOKMARK", &value);
    }

    fn send_value(&mut self, event: &str, object: &Value) {
        let mut line = json!({"type": event, "object": object}).to_string();
        line.push('\n');
        self.lines.push_back(line.into());
    }
}

fn next_bookmark(now: Instant, end: Instant) -> Instant {
    let regular = now + BOOKMARK_INTERVAL;
    let last = end.checked_sub(LAST_BOOKMARK).unwrap_or(end);
    // After the last one there is none: the watch ends before.
    if now < last { regular.min(last) } else { end + BOOKMARK_INTERVAL }
}
