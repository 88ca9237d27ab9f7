//! One kind's objects by key.
//!
//! Three sources write here: the watch, its relists, and the answers to our own writes. The rule
//! that keeps them in agreement is "the newer revision wins", checked under the key's shard lock.
//! The one thing revisions of present objects cannot tell is whether an *absent* key was deleted
//! after or created after a given answer; [`Table::observed`], the newest revision the watch has
//! delivered, decides that: an answer older than it is history (no phantom objects, kubernetes
//! #124224), a newer one is ahead of the watch, which will deliver any deletion later.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use ahash::RandomState;
use dashmap::{DashMap, Entry, VacantEntry};
use parking_lot::{Mutex, RwLock};

use super::{counters::Counters, room::has_much_room, unreadable::Unreadable};
use crate::{ids::ResourceVersion, kinds::Narrow};

/// So many parts, each with a lock of its own: a large map takes long to go through, and to grow. They grow at about the same
/// time; of two million objects one has 7 800, less than two milliseconds.
const PARTS: usize = 256;

/// Objects of one kind.
#[derive(Debug, educe::Educe)]
#[educe(Default(bound(false)))]
pub struct Table<T: Narrow> {
    /// The keys are of people who may choose them, so the hasher is seeded.
    #[educe(Default = DashMap::with_hasher_and_shard_amount(RandomState::default(), PARTS))]
    pub(super) objects: DashMap<T::Key, Row<T>, RandomState>,
    /// Who counts them.
    pub(super) counters: Counters<T>,
    /// Only if somebody takes them.
    final_states: OnceLock<Mutex<BTreeMap<T::Key, FinalState<T>>>>,
    /// Objects whose newest revision cannot be read. Hardly ever any.
    pub(super) unreadable: RwLock<BTreeMap<T::Key, Unreadable>>,
    /// Up to here everything has been told.
    observed: AtomicU64,
    /// Number of the last list.
    pub(super) generation: AtomicU32,
}

/// An object, and the last list that had it.
#[derive(Clone, Debug)]
pub(super) struct Row<T> {
    pub(super) object: Arc<T>,
    pub(super) listed: u32,
}

/// How an object looked when it was deleted. Between two looks of a reader it may have changed and gone.
#[derive(Clone, Debug, PartialEq)]
pub enum FinalState<T> {
    /// As the watch told.
    Known(Arc<T>),
    /// It was missing from a list, or another one of that name went before, so how it looked last is not known.
    Unknown,
}

/// A copy as of now, which goes its own way and shares the objects. Nobody counts it.
impl<T: Narrow> Clone for Table<T> {
    fn clone(&self) -> Self {
        let copy = |kept: &Mutex<_>| Mutex::new(BTreeMap::clone(&kept.lock())).into();
        Self {
            objects: self.objects.clone(),
            counters: Counters::default(),
            final_states: self.final_states.get().map_or_else(OnceLock::new, copy),
            unreadable: RwLock::new(self.unreadable.read().clone()),
            observed: AtomicU64::new(self.observed.load(Ordering::Acquire)),
            generation: AtomicU32::new(self.generation.load(Ordering::Acquire)),
        }
    }
}

impl<T: Narrow> Table<T> {
    /// The object, if it exists as far as we know. Of one whose newest revision cannot be read, the last
    /// revision that could ([`Table::unreadable`]).
    pub fn get(&self, key: &T::Key) -> Option<Arc<T>> {
        self.objects.get(key).map(|row| Arc::clone(&row.object))
    }

    /// Keeps from now on how objects looked when they were deleted, for one reader that learns of the deletion later and
    /// takes each ([`Table::take_final_state`]).
    pub fn keep_final_states(&self) {
        self.final_states.get_or_init(Mutex::default);
    }

    pub(super) fn note_final_state(&self, key: &T::Key, state: impl FnOnce() -> FinalState<T>) {
        if let Some(kept) = self.final_states.get() {
            // Of two objects of that name nobody has seen the end of the first: how the second looked says nothing of it.
            let state = state();
            kept.lock().entry(key.clone()).and_modify(|kept| *kept = FinalState::Unknown).or_insert(state);
        }
    }

    /// How an object looked when it was deleted, if it was since this was last asked.
    pub fn take_final_state(&self, key: &T::Key) -> Option<FinalState<T>> {
        self.final_states.get()?.lock().remove(key)
    }

    /// Every object, in key order. Copies the table's pointers: for start-up and diagnosis, not for
    /// the work of one event.
    pub fn snapshot(&self) -> BTreeMap<T::Key, Arc<T>> {
        self.objects.iter().map(|row| (row.key().clone(), Arc::clone(&row.object))).collect()
    }

    /// The keys of all objects, in no order.
    pub fn keys(&self) -> Vec<T::Key> {
        self.objects.iter().map(|row| row.key().clone()).collect()
    }

    /// Looks at every object, in no order. While it does, `look` must not touch the table.
    pub fn for_each(&self, mut look: impl FnMut(&T)) {
        self.objects.iter().for_each(|row| look(&row.object));
    }

    /// Counts the objects there are and those that come and go: calls with each that is there from now on (`true`), or no
    /// more. One whose content changes is another one. None may come or go before all are counted, so this is for the time
    /// before the watches begin. `count` must not touch the table.
    pub fn count(&self, count: impl Fn(&T, bool) + Send + Sync + 'static) {
        self.for_each(|object| count(object, true));
        self.counters.add(Box::new(count));
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest revision up to which the list and the watch since have told everything.
    pub fn observed(&self) -> ResourceVersion {
        ResourceVersion(self.observed.load(Ordering::Acquire))
    }

    /// Takes an object from the watch. Returns whether its content changed.
    pub fn apply(&self, object: T) -> bool {
        let revision = object.metadata().resource_version;
        self.advance(revision);
        let listed = self.generation.load(Ordering::Acquire);
        self.take(object, listed)
    }

    /// Takes an object that the watch or a list told of.
    pub(super) fn take(&self, object: T, listed: u32) -> bool {
        let key = object.key();
        let revision = object.metadata().resource_version;
        let was_unreadable = self.is_cured(&key, revision);
        if !object.is_relevant() {
            return self.drop_row(&key, revision) || was_unreadable;
        }
        match self.objects.entry(key) {
            Entry::Occupied(mut present) => {
                let row = present.get_mut();
                row.listed = listed;
                if row.object.metadata().resource_version >= revision {
                    return was_unreadable;
                }
                let changed = self.replace(row, object);
                changed || was_unreadable
            }
            Entry::Vacant(vacant) => self.put(vacant, object, listed),
        }
    }

    /// Takes a deletion from the watch: the object as it was, at the revision of the deletion. Returns
    /// whether an object went away.
    pub fn delete(&self, last: T) -> bool {
        let revision = last.metadata().resource_version;
        self.advance(revision);
        let key = last.key();
        self.remove(&key, revision, || FinalState::Known(Arc::new(last)))
    }

    /// Takes a deletion of an object of which nothing else can be read.
    pub(crate) fn delete_unreadable(&self, key: &T::Key, revision: ResourceVersion) -> bool {
        self.advance(revision);
        self.remove(key, revision, || FinalState::Unknown)
    }

    fn remove(
        &self,
        key: &T::Key,
        revision: ResourceVersion,
        final_state: impl FnOnce() -> FinalState<T>,
    ) -> bool {
        let was_unreadable = self.is_cured(key, revision);
        let Entry::Occupied(present) = self.objects.entry(key.clone()) else { return was_unreadable };
        if present.get().object.metadata().resource_version > revision {
            return was_unreadable;
        }
        self.note_final_state(key, final_state);
        self.counters.gone(&present.remove().object);
        true
    }

    /// Takes the answer to a read or write of our own, so that the next decision sees it without
    /// waiting for the watch (S38). Returns whether the content changed.
    pub fn observe_response(&self, object: T) -> bool {
        let key = object.key();
        let revision = object.metadata().resource_version;
        if !object.is_relevant() {
            return self.drop_row(&key, revision);
        }
        match self.objects.entry(key) {
            Entry::Occupied(mut present) => {
                if present.get().object.metadata().resource_version >= revision {
                    return false;
                }
                let was_unreadable = self.is_cured(present.key(), revision);
                self.replace(present.get_mut(), object) || was_unreadable
            }
            Entry::Vacant(_) if revision <= self.observed() => false,
            Entry::Vacant(vacant) => {
                self.is_cured(vacant.key(), revision);
                self.put(vacant, object, 0)
            }
        }
    }

    /// Takes the mark off an object that could not be read, and can at this revision. Returns whether it had one.
    fn is_cured(&self, key: &T::Key, revision: ResourceVersion) -> bool {
        let mut unreadable = self.unreadable.write();
        let is_cured = unreadable.get(key).is_some_and(|known| known.revision <= revision);
        is_cured && unreadable.remove(key).is_some()
    }

    /// Puts an object where there was none.
    fn put(&self, vacant: VacantEntry<'_, T::Key, Row<T>>, object: T, listed: u32) -> bool {
        self.counters.come(&object);
        vacant.insert(Row { object: Arc::new(object), listed });
        true
    }

    /// Puts a newer object in place of the one that is there. Another UID means that the old one was
    /// deleted meanwhile, in a final state that is unknown.
    fn replace(&self, row: &mut Row<T>, object: T) -> bool {
        let is_another = row.object.metadata().uid != object.metadata().uid;
        if is_another {
            self.note_final_state(&object.key(), || FinalState::Unknown);
        }
        let changed = *row.object != object;
        if changed {
            self.counters.gone(&row.object);
            self.counters.come(&object);
        }
        row.object = Arc::new(object);
        changed
    }

    /// An object of that key does not matter any more.
    fn drop_row(&self, key: &T::Key, revision: ResourceVersion) -> bool {
        let Entry::Occupied(present) = self.objects.entry(key.clone()) else { return false };
        let is_older = present.get().object.metadata().resource_version < revision;
        if is_older {
            self.counters.gone(&present.remove().object);
        }
        is_older
    }

    /// Takes the proof, by a live request, that no object of that key existed any more when we knew it
    /// at this revision. Returns whether an object went away.
    pub fn prove_gone(&self, key: &T::Key, known: ResourceVersion) -> bool {
        let Entry::Occupied(present) = self.objects.entry(key.clone()) else { return false };
        if present.get().object.metadata().resource_version > known {
            return false;
        }
        self.note_final_state(key, || FinalState::Unknown);
        self.unreadable.write().remove(key);
        self.counters.gone(&present.remove().object);
        true
    }

    /// Gives back the room of objects that are gone, if most of it is theirs.
    pub fn give_back_room(&self) {
        if has_much_room(self.objects.capacity(), self.objects.len()) {
            self.objects.shrink_to_fit();
        }
    }

    /// Everything up to this revision has been told of.
    pub fn advance(&self, revision: ResourceVersion) {
        self.observed.fetch_max(revision.0, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ClassName, NodeName},
        kinds::{Node, StorageClass},
    };

    fn class(name: &str, revision: u64, provisioner: &str) -> StorageClass {
        let mut class = StorageClass { provisioner: provisioner.to_owned(), ..StorageClass::default() };
        class.metadata.name = name.into();
        class.metadata.resource_version = ResourceVersion(revision);
        class
    }

    fn provisioner(table: &Table<StorageClass>, name: &str) -> Option<String> {
        table.get(&ClassName::from(name)).map(|class| class.provisioner.clone())
    }

    #[test]
    fn newer_revision_wins_whatever_delivers_it() {
        let table = Table::default();
        assert!(table.apply(class("a", 10, "first")));
        assert!(table.observe_response(class("a", 12, "answer")));
        assert!(!table.apply(class("a", 11, "late echo")));
        assert_eq!(provisioner(&table, "a").as_deref(), Some("answer"));
    }

    #[test]
    fn same_content_at_a_newer_revision_is_no_change_but_is_kept() {
        let table = Table::default();
        table.apply(class("a", 10, "same"));
        assert!(!table.apply(class("a", 11, "same")));
        let kept = table.get(&ClassName::from("a")).map(|class| class.metadata.resource_version);
        assert_eq!(kept, Some(ResourceVersion(11)));
    }

    #[test]
    fn s38_an_answer_the_watch_has_overtaken_makes_no_phantom() {
        let table = Table::default();
        table.apply(class("a", 10, "x"));
        table.delete(class("a", 15, "x"));
        assert!(!table.observe_response(class("a", 12, "late answer")));
        assert!(table.is_empty());
    }

    #[test]
    fn s17_an_answer_ahead_of_the_watch_is_kept_until_the_watch_passes_it() {
        let table = Table::default();
        table.apply(class("b", 10, "x"));
        assert!(table.observe_response(class("a", 20, "created by us")));
        assert!(table.reset(vec![class("b", 10, "x")]).is_empty());
        assert_eq!(provisioner(&table, "a").as_deref(), Some("created by us"));
        assert!(table.delete(class("a", 21, "created by us")));
        assert_eq!(provisioner(&table, "a"), None);
    }

    #[test]
    fn l8_an_answer_that_the_list_lacks_is_kept_until_the_watch_or_the_next_list_passes_it() {
        let table = Table::default();
        let key = ClassName::from("a");
        table.observe_response(class("a", 20, "written by us"));
        table.reset(vec![class("b", 10, "x")]);
        assert_eq!(provisioner(&table, "a").as_deref(), Some("written by us"), "the watch begins before it");
        let told = table.clone();
        told.delete(class("a", 21, "written by us"));
        assert_eq!(provisioner(&told, "a"), None, "and tells of its end");
        assert!(!table.prove_gone(&key, ResourceVersion(19)), "it was made anew since");
        assert!(table.prove_gone(&key, ResourceVersion(20)));
        assert!(!table.prove_gone(&key, ResourceVersion(20)));
        table.observe_response(class("a", 30, "written by us"));
        table.advance(ResourceVersion(30));
        assert_eq!(table.reset(vec![class("b", 10, "x")]), vec![key], "this list should have it");
        assert!(!table.observe_response(class("a", 30, "answered late")), "it is history");
    }

    #[test]
    fn s3_a_node_that_changed_and_went_between_two_looks_leaves_its_last_words() {
        let node = |revision, volumes: &[&str]| {
            let mut node = Node::default();
            node.metadata.name = "n1".into();
            node.metadata.resource_version = ResourceVersion(revision);
            node.status.volumes_in_use = volumes.iter().map(|name| (*name).into()).collect();
            node
        };
        let name = NodeName::from("n1");
        let table = Table::default();
        table.apply(node(9, &[]));
        table.delete(node(9, &[]));
        assert_eq!(table.take_final_state(&name), None, "nobody takes them");
        table.keep_final_states();
        table.apply(node(10, &[]));
        table.apply(node(11, &["v"]));
        table.delete(node(12, &["v"]));
        assert_eq!(table.take_final_state(&name), Some(FinalState::Known(Arc::new(node(12, &["v"])))));
        assert_eq!(table.take_final_state(&name), None);
        table.apply(node(13, &[]));
        table.reset(vec![]);
        assert_eq!(table.take_final_state(&name), Some(FinalState::Unknown));
    }

    #[test]
    fn s3_s43_the_last_words_of_a_node_are_not_lost_to_those_of_another_one_of_its_name() {
        let node = |uid: &str, revision, volumes: &[&str]| {
            let mut node = Node::default();
            node.metadata.name = "n1".into();
            node.metadata.uid = uid.into();
            node.metadata.resource_version = ResourceVersion(revision);
            node.status.volumes_in_use = volumes.iter().map(|name| (*name).into()).collect();
            node
        };
        let name = NodeName::from("n1");
        let table = Table::default();
        table.keep_final_states();
        table.apply(node("1", 10, &["v"]));
        table.delete(node("1", 11, &["v"]));
        table.apply(node("2", 12, &[]));
        table.delete(node("2", 13, &[]));
        assert_eq!(table.take_final_state(&name), Some(FinalState::Unknown));
        table.apply(node("3", 14, &[]));
        table.delete(node("3", 15, &[]));
        assert_eq!(table.take_final_state(&name), Some(FinalState::Known(Arc::new(node("3", 15, &[])))));
    }

    #[test]
    fn l8_a_relist_computes_deletions() {
        let table = Table::default();
        table.apply(class("a", 10, "x"));
        table.apply(class("b", 11, "x"));
        assert_eq!(table.reset(vec![class("b", 11, "x")]), vec![ClassName::from("a")]);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_relist_of_an_emptied_kind_removes_what_the_watch_had_delivered() {
        let table = Table::default();
        table.apply(class("a", 10, "x"));
        assert_eq!(table.reset(vec![]), vec![ClassName::from("a")]);
    }
}
