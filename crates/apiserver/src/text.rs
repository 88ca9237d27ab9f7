//! Texts that repeat among objects, kept once: namespaces, nodes, drivers, classes, annotations, quantities.
//!
//! [`share`] returns the copy that is already there. A copy without a holder is dropped when the store has
//! doubled since it was last cleared, so it never holds more than twice what is in use (and some). [`TextMap`],
//! [`TextList`] and [`TextSet`] hold few texts: a `BTreeMap` allocates room for eleven entries with its first, half a
//! kilobyte for the one capacity of a volume. Maps and lists repeat as a whole (all volumes of a provisioner have the
//! same annotations), and so they are shared as a whole, too.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    hash::Hash,
    ops::Deref,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use ahash::RandomState;
use arcstr::ArcStr;
use dashmap::DashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor, ser::SerializeMap};

/// The store is not cleared before it holds this many texts.
const SMALLEST_STORE: usize = 1024;

/// Something that is kept once.
trait Shared: Clone + Eq + Hash {
    /// How many hold it, the store included.
    fn holders(&self) -> usize;
}

impl Shared for ArcStr {
    fn holders(&self) -> usize {
        Self::strong_count(self).unwrap_or(usize::MAX)
    }
}

/// A list that is held in one word. It has two allocations, but there is one of it for many that hold it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct List<T>(Arc<Box<[T]>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> Borrow<[T]> for List<T> {
    fn borrow(&self) -> &[T] {
        self
    }
}

impl<T: Clone> From<&[T]> for List<T> {
    fn from(values: &[T]) -> Self {
        Self(Arc::new(values.into()))
    }
}

impl<T: Clone + Eq + Hash> Shared for List<T> {
    fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// What is shared: texts, or whole lists of them.
struct Store<P> {
    kept: DashMap<P, (), RandomState>,
    /// Values added since the store was last cleared.
    added: AtomicUsize,
    /// Values that were left then.
    left: AtomicUsize,
}

impl<P: Shared> Default for Store<P> {
    fn default() -> Self {
        Self { kept: DashMap::default(), added: AtomicUsize::new(0), left: AtomicUsize::new(0) }
    }
}

impl<P: Shared> Store<P> {
    fn share<T: Eq + Hash + ?Sized>(&self, value: &T) -> P
    where
        P: Borrow<T> + for<'a> From<&'a T>,
    {
        // The guard is dropped at the end of the statement, before the map is touched again.
        if let Some(shared) = self.kept.get(value).map(|entry| entry.key().clone()) {
            return shared;
        }
        let shared = self.kept.entry(P::from(value)).or_default().key().clone();
        let added = self.added.fetch_add(1, Ordering::Relaxed);
        if added >= self.left.load(Ordering::Relaxed).max(SMALLEST_STORE) {
            self.clear();
        }
        shared
    }

    /// Drops what has no other holder.
    fn clear(&self) {
        self.added.store(0, Ordering::Relaxed);
        self.kept.retain(|value, ()| value.holders() > 1);
        self.left.store(self.kept.len(), Ordering::Relaxed);
    }
}

static TEXTS: LazyLock<Store<ArcStr>> = LazyLock::new(Store::default);
static LISTS: LazyLock<Store<List<Text>>> = LazyLock::new(Store::default);
static MAPS: LazyLock<Store<List<(Text, Text)>>> = LazyLock::new(Store::default);
static EMPTY_LIST: LazyLock<List<Text>> = LazyLock::new(List::default);
static EMPTY_MAP: LazyLock<List<(Text, Text)>> = LazyLock::new(List::default);

/// Drops what has no holder any more, with its room. By itself that waits until as much has come again: after
/// thousands of objects have gone, for long.
pub fn give_back_room() {
    fn shrink<P: Shared>(store: &Store<P>) {
        store.clear();
        store.kept.shrink_to_fit();
    }
    shrink(&TEXTS);
    shrink(&LISTS);
    shrink(&MAPS);
}

/// Whether a text is in the store.
#[cfg(test)]
pub(crate) fn is_kept(text: &str) -> bool {
    TEXTS.kept.contains_key(text)
}

/// The one copy of a text that is likely to repeat.
#[must_use]
pub fn share(text: &str) -> ArcStr {
    if text.is_empty() { empty() } else { TEXTS.share(text) }
}

/// The empty text, which costs nothing.
#[must_use]
pub fn empty() -> ArcStr {
    ArcStr::new()
}

/// A text that is likely to repeat, kept once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(ArcStr);

impl Text {
    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Text {
    fn default() -> Self {
        Self(empty())
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(share(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(share(&text))
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Self(share(text))
    }
}

impl From<Text> for ArcStr {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        &*self.0 == other.as_str()
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        shared(deserializer).map(Self)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Reads a text without a copy of its own, and shares it.
///
/// # Errors
/// If it is no text.
pub fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ArcStr, D::Error> {
    struct Shared;
    impl Visitor<'_> for Shared {
        type Value = ArcStr;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E>(self, text: &str) -> Result<ArcStr, E> {
            Ok(share(text))
        }
    }
    deserializer.deserialize_str(Shared)
}

/// A map of few texts, in order, that is likely to repeat and kept once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextMap(List<(Text, Text)>);

impl Default for TextMap {
    fn default() -> Self {
        Self(EMPTY_MAP.clone())
    }
}

impl TextMap {
    /// The map of these entries, which are in order.
    fn of(entries: &[(Text, Text)]) -> Self {
        if entries.is_empty() { Self::default() } else { Self(MAPS.share(entries)) }
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.as_str().cmp(key))
    }

    /// The value under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Text> {
        self.find(key).ok().and_then(|index| self.0.get(index)).map(|(_, value)| value)
    }

    /// Whether there is a value under a key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in order of their keys.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Text)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys, in order.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Puts a value under a key, at the cost of a new map.
    pub fn insert(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        let (key, value) = (key.into(), value.into());
        let mut entries = self.0.to_vec();
        match entries.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(index) => {
                if let Some(entry) = entries.get_mut(index) {
                    entry.1 = value;
                }
            }
            Err(index) => entries.insert(index, (key, value)),
        }
        *self = Self::of(&entries);
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for TextMap {
    /// Of two values under one key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(Text, Text)> =
            entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        // Stable, so the last of equal keys is the last that came.
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.reverse();
        entries.dedup_by(|(one, _), (other, _)| one == other);
        entries.reverse();
        Self::of(&entries)
    }
}

impl<K: Into<Text>, V: Into<Text>, const N: usize> From<[(K, V); N]> for TextMap {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl fmt::Debug for TextMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for TextMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<Text, Text>::deserialize(deserializer).map(|map| map.into_iter().collect())
    }
}

/// A list of few texts that is likely to repeat and kept once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextList(List<Text>);

impl TextList {
    /// Adds a text, at the cost of a new list.
    pub fn push(&mut self, text: impl Into<Text>) {
        *self = self.iter().cloned().chain([text.into()]).collect();
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Default for TextList {
    fn default() -> Self {
        Self(EMPTY_LIST.clone())
    }
}

impl Deref for TextList {
    type Target = [Text];

    fn deref(&self) -> &[Text] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a TextList {
    type Item = &'a Text;
    type IntoIter = std::slice::Iter<'a, Text>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Into<Text>> FromIterator<T> for TextList {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let texts: Vec<Text> = texts.into_iter().map(Into::into).collect();
        if texts.is_empty() { Self::default() } else { Self(LISTS.share(texts.as_slice())) }
    }
}

impl<T: Into<Text>, const N: usize> From<[T; N]> for TextList {
    fn from(texts: [T; N]) -> Self {
        texts.into_iter().collect()
    }
}

impl fmt::Debug for TextList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for TextList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for TextList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Text>::deserialize(deserializer).map(|texts| texts.into_iter().collect())
    }
}

/// A set of texts, in order.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextSet(Box<[Text]>);

impl TextSet {
    /// Whether it holds the text.
    #[must_use]
    pub fn contains(&self, text: &str) -> bool {
        self.0.binary_search_by(|other| other.as_str().cmp(text)).is_ok()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Text> {
        self.0.iter()
    }

    /// Adds a text, at the cost of a new set.
    pub fn insert(&mut self, text: impl Into<Text>) {
        let texts = std::mem::take(&mut self.0).into_vec();
        *self = texts.into_iter().chain([text.into()]).collect();
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<'a> IntoIterator for &'a TextSet {
    type Item = &'a Text;
    type IntoIter = std::slice::Iter<'a, Text>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Into<Text>> FromIterator<T> for TextSet {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut texts: Vec<Text> = texts.into_iter().map(Into::into).collect();
        texts.sort();
        texts.dedup();
        Self(texts.into_boxed_slice())
    }
}

impl fmt::Debug for TextSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl Serialize for TextSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for TextSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Text>::deserialize(deserializer).map(|texts| texts.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
