//! The objects, their one revision counter, and the latest changes.
//!
//! In: committed writes, one at a time. Out: objects of a kind in the order of their keys, now or at an
//! earlier revision, and the changes after a revision, in order, each once. Each kind keeps a bounded log
//! of changes. A revision before this log can be neither watched nor listed any more (410). The store
//! does not interpret objects.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::{
    json,
    kinds::{
        KINDS,
        kind::{Kind, Neighbours},
    },
};

/// `namespace/name`, or the name alone: the order of keys is the order of lists.
pub type Key = Arc<str>;

/// One revision of an object.
#[derive(Debug)]
pub struct Object {
    /// Revision it was written at.
    pub revision: u64,
    /// The object, its revision included; kind and version are those of its table.
    pub value: Value,
    encoded: OnceLock<Bytes>,
}

impl Object {
    /// An object as it is, or was, at a revision.
    pub fn at(mut value: Value, revision: u64) -> Arc<Self> {
        json::set(&mut value, "/metadata/resourceVersion", revision.to_string());
        Arc::new(Self { revision, value, encoded: OnceLock::new() })
    }

    /// Its JSON, encoded once however many ask for it; without kind and version, as lists show it.
    pub fn bytes(&self) -> Bytes {
        let encode = || Bytes::from(serde_json::to_vec(&self.value).unwrap_or_default());
        self.encoded.get_or_init(encode).clone()
    }

    /// Appends its JSON, with kind and version.
    pub fn write_typed(&self, kind: &Kind, text: &mut Vec<u8>) {
        text.extend_from_slice(
            format!(r#"{{"kind":"{}","apiVersion":"{}","#, kind.kind, kind.api_version()).as_bytes(),
        );
        // Everything but the opening brace: an object always has metadata.
        text.extend_from_slice(self.bytes().get(1..).unwrap_or_default());
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the change.
    pub revision: u64,
    /// Which object.
    pub key: Key,
    /// Before; nothing when it was created.
    pub before: Option<Arc<Object>>,
    /// After; of a deletion the last content, with the revision of the deletion.
    pub after: Arc<Object>,
    /// Was it deleted?
    pub is_deletion: bool,
}

/// The revision asked for is no longer known, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Compacted; the oldest one known.
    Compacted(u64),
    /// In the future; the current one.
    Future(u64),
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Arc<Object>>,
    log: VecDeque<Change>,
    /// Changes up to here have fallen off the log.
    compacted: u64,
    changed: watch::Sender<u64>,
}

/// All objects at one revision.
#[derive(Clone, Debug)]
pub struct Backup {
    revision: u64,
    objects: Vec<(&'static Kind, BTreeMap<Key, Arc<Object>>)>,
}

/// The objects for those who share them: one acts at a time.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<Mutex<Store>>);

impl SharedStore {
    /// Shares them.
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    /// Acts on them.
    pub fn with<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        // A panic while holding the lock is a bug; the objects are still whole.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// All objects.
#[derive(Debug)]
pub struct Store {
    revision: watch::Sender<u64>,
    log_capacity: usize,
    tables: Vec<(&'static Kind, Table)>,
}

impl Store {
    /// An empty store that remembers so many changes per kind.
    pub fn new(log_capacity: usize) -> Self {
        let table = |kind: &&'static Kind| {
            let table = Table {
                objects: BTreeMap::new(),
                log: VecDeque::new(),
                compacted: 0,
                changed: watch::Sender::new(0),
            };
            (*kind, table)
        };
        Self { revision: watch::Sender::new(1), log_capacity, tables: KINDS.iter().map(table).collect() }
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        *self.revision.borrow()
    }

    fn table(&self, kind: &Kind) -> Option<&Table> {
        self.tables.iter().find(|(other, _)| *other == kind).map(|(_, table)| table)
    }

    fn table_mut(&mut self, kind: &Kind) -> Option<&mut Table> {
        self.tables.iter_mut().find(|(other, _)| *other == kind).map(|(_, table)| table)
    }

    /// An object.
    pub fn get(&self, kind: &Kind, key: &str) -> Option<Arc<Object>> {
        self.table(kind)?.objects.get(key).cloned()
    }

    /// Writes an object, new or changed.
    pub fn put(&mut self, kind: &Kind, key: &str, value: Value) -> Arc<Object> {
        let (revision, capacity) = (self.revision() + 1, self.log_capacity);
        let object = Object::at(value, revision);
        if let Some(table) = self.table_mut(kind) {
            let key: Key = key.into();
            let before = table.objects.insert(Arc::clone(&key), Arc::clone(&object));
            let after = Arc::clone(&object);
            table.record(Change { revision, key, before, after, is_deletion: false }, capacity);
        }
        self.revision.send_replace(revision);
        object
    }

    /// Puts an object there as it was at an earlier revision. That is no change.
    pub fn adopt(&mut self, kind: &Kind, key: &str, mut value: Value, revision: u64) {
        if let (Some(table), Some(fields)) = (self.table_mut(kind), value.as_object_mut()) {
            fields.retain(|field, _| !matches!(field.as_str(), "kind" | "apiVersion"));
            table.objects.insert(key.into(), Object::at(value, revision));
        }
    }

    /// Takes an object away, and returns its last content with the revision of the deletion.
    pub fn delete(&mut self, kind: &Kind, key: &str) -> Option<Arc<Object>> {
        let (revision, capacity) = (self.revision() + 1, self.log_capacity);
        let table = self.table_mut(kind)?;
        let (key, before) = table.objects.remove_entry(key)?;
        let after = Object::at(before.value.clone(), revision);
        let change =
            Change { revision, key, before: Some(before), after: Arc::clone(&after), is_deletion: true };
        table.record(change, capacity);
        self.revision.send_replace(revision);
        Some(after)
    }

    /// Objects whose keys begin with the prefix and come after `start`, as they were at a revision.
    ///
    /// # Errors
    /// The revision is compacted or in the future.
    pub fn list(
        &self,
        kind: &Kind,
        prefix: &str,
        start: &str,
        revision: u64,
    ) -> Result<Vec<(Key, Arc<Object>)>, Unknown> {
        if revision > self.revision() {
            return Err(Unknown::Future(self.revision()));
        }
        let Some(table) = self.table(kind) else { return Ok(Vec::new()) };
        if revision < table.compacted {
            return Err(Unknown::Compacted(table.compacted));
        }
        let from = if start.is_empty() { Bound::Included(prefix) } else { Bound::Excluded(start) };
        let is_wanted = |key: &str| key.starts_with(prefix) && (start.is_empty() || key > start);
        let mut undone: BTreeMap<&Key, Option<&Arc<Object>>> = BTreeMap::new();
        for change in table.log.iter().rev().take_while(|change| change.revision > revision) {
            if is_wanted(&change.key) {
                undone.insert(&change.key, change.before.as_ref());
            }
        }
        let mut found = Vec::new();
        for (key, object) in table.objects.range::<str, _>((from, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            if !undone.contains_key(key) {
                found.push((Arc::clone(key), Arc::clone(object)));
            }
        }
        if !undone.is_empty() {
            for (key, before) in undone {
                if let Some(before) = before {
                    found.push((Arc::clone(key), Arc::clone(before)));
                }
            }
            found.sort_by(|left, right| left.0.cmp(&right.0));
        }
        Ok(found)
    }

    /// Changes of a kind after a revision.
    ///
    /// # Errors
    /// Some of them have been forgotten.
    pub fn changes(&self, kind: &Kind, after: u64) -> Result<Vec<Change>, Unknown> {
        let Some(table) = self.table(kind) else { return Ok(Vec::new()) };
        if after < table.compacted {
            return Err(Unknown::Compacted(table.compacted));
        }
        let first = table.log.partition_point(|change| change.revision <= after);
        Ok(table.log.range(first..).cloned().collect())
    }

    /// Changes of all kinds after a revision.
    ///
    /// # Errors
    /// Some of them have been forgotten.
    pub fn history(&self, after: u64) -> Result<Vec<(&'static Kind, Change)>, Unknown> {
        let mut all = Vec::new();
        for (kind, _) in &self.tables {
            all.extend(self.changes(kind, after)?.into_iter().map(|change| (*kind, change)));
        }
        all.sort_by_key(|(_, change)| change.revision);
        Ok(all)
    }

    /// Wakes when something of the kind changes.
    pub fn subscribe(&self, kind: &Kind) -> Option<watch::Receiver<u64>> {
        self.table(kind).map(|table| table.changed.subscribe())
    }

    /// Tells the revision of every write, of any kind.
    pub fn subscribe_revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// All objects as they are now.
    pub fn backup(&self) -> Backup {
        let objects = self.tables.iter().map(|(kind, table)| (*kind, table.objects.clone())).collect();
        Backup { revision: self.revision(), objects }
    }

    /// Puts all objects back as they were, and ends all watches, as a restart of the server on a restored etcd
    /// does: at the revision of then, or with revisions that go on `bump` above it.
    pub fn restore(&mut self, backup: &Backup, bump: u64) {
        let revision = backup.revision + bump;
        for (kind, objects) in &backup.objects {
            if let Some(table) = self.table_mut(kind) {
                table.objects.clone_from(objects);
                table.log.clear();
                table.compacted = revision;
                // A subscriber finds the sender gone.
                table.changed = watch::Sender::new(revision);
            }
        }
        self.revision.send_replace(revision);
    }

    /// Forgets all changes, as a compaction of etcd does.
    pub fn compact(&mut self) {
        let revision = self.revision();
        for (_, table) in &mut self.tables {
            table.log.clear();
            table.compacted = revision;
        }
    }
}

impl Table {
    fn record(&mut self, change: Change, capacity: usize) {
        let revision = change.revision;
        self.log.push_back(change);
        while self.log.len() > capacity {
            if let Some(forgotten) = self.log.pop_front() {
                self.compacted = forgotten.revision;
            }
        }
        self.changed.send_replace(revision);
    }
}

impl Neighbours for Store {
    fn all(&self, kind: &Kind) -> Vec<&Value> {
        self.table(kind)
            .into_iter()
            .flat_map(|table| table.objects.values())
            .map(|object| &object.value)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{node, pod};

    fn names(store: &Store, revision: u64) -> Result<Vec<String>, Unknown> {
        let list = store.list(&pod::KIND, "a/", "", revision)?;
        Ok(list.iter().map(|(key, object)| format!("{key}@{}", object.revision)).collect())
    }

    #[test]
    fn a_list_at_an_earlier_revision_is_what_it_was() {
        let mut store = Store::new(100);
        store.put(&pod::KIND, "a/x", json!({}));
        store.put(&pod::KIND, "a/y", json!({}));
        let then = store.revision();
        store.put(&pod::KIND, "a/w", json!({}));
        store.put(&pod::KIND, "a/x", json!({"changed": true}));
        store.delete(&pod::KIND, "a/y");
        store.put(&node::KIND, "n", json!({}));
        assert_eq!(names(&store, then).unwrap(), ["a/x@2", "a/y@3"]);
        assert_eq!(names(&store, store.revision()).unwrap(), ["a/w@4", "a/x@5"]);
        assert_eq!(names(&store, 99).unwrap_err(), Unknown::Future(7));
    }

    #[test]
    fn what_fell_off_the_log_is_gone() {
        let mut store = Store::new(2);
        for _ in 0..4 {
            store.put(&pod::KIND, "a/x", json!({}));
        }
        assert_eq!(names(&store, 2).unwrap_err(), Unknown::Compacted(3));
        assert_eq!(store.changes(&pod::KIND, 3).unwrap().len(), 2);
        assert!(store.changes(&pod::KIND, 2).is_err());
    }
}
