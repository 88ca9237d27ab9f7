//! Texts that repeat among objects, kept once: namespaces, nodes, drivers, classes, annotations, quantities.
//!
//! [`share`] returns the copy that is already there. A copy without a holder is dropped when its part of the store is
//! full, and before it grows, so the store never holds more than four times what is in use (and some). Maps and lists of
//! texts repeat as a whole (all volumes of a provisioner have the same annotations), and so they are shared as a whole,
//! too: an object has one word for each.

use std::{
    borrow::{Borrow, Cow},
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::Hash,
    sync::{Arc, LazyLock},
    thread,
};

use ahash::RandomState;
use arcstr::ArcStr;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};

use crate::tables::has_much_room;

/// So many parts has a store, each with a lock of its own. A cluster of 100 000 nodes has some six million names: to clear or to
/// grow a set of all takes a fifth of a second, and whoever reads an object waits for it.
const PARTS: usize = 256;
/// The part of a value is chosen by a number below this.
const END: u64 = 1 << 16;

/// Something that is kept once, and counts who holds it.
trait Shared: Clone + Default + Eq + Hash {
    /// How many hold it, the store included.
    fn holders(&self) -> usize;
}

impl Shared for ArcStr {
    fn holders(&self) -> usize {
        Self::strong_count(self).unwrap_or(usize::MAX)
    }
}

impl<T: Default + Eq + Hash> Shared for Arc<T> {
    fn holders(&self) -> usize {
        Self::strong_count(self)
    }
}

/// What is shared: texts, or whole collections of them.
#[derive(educe::Educe)]
#[educe(Default(bound(P: Default)))]
struct Store<P> {
    /// What nothing is put in for.
    empty: P,
    /// Which part has a value: not by what the part itself makes of it.
    hasher: RandomState,
    #[educe(Default = std::array::from_fn(|_| Mutex::default()))]
    parts: [Mutex<HashSet<P, RandomState>>; PARTS],
}

impl<P: Shared> Store<P> {
    /// The one copy of a value.
    fn share<T: Eq + Hash + ?Sized>(&self, value: &T, make: impl FnOnce(&T) -> P) -> P
    where
        P: Borrow<T>,
    {
        if self.empty.borrow() == value {
            return self.empty.clone();
        }
        let mut kept = self.part(value).lock();
        if let Some(shared) = kept.get(value) {
            return shared.clone();
        }
        if kept.len() == kept.capacity() {
            clear(&mut kept);
            // As many again are added before the next time.
            let left = kept.len();
            kept.reserve(left);
        }
        let shared = make(value);
        kept.insert(shared.clone());
        shared
    }

    /// The first part gets twice as many as the last: equal parts would be full, and grow, all at the same time.
    fn part<T: Hash + ?Sized>(&self, value: &T) -> &Mutex<HashSet<P, RandomState>> {
        let [first, others @ ..] = &self.parts;
        let at = self.hasher.hash_one(value) % END;
        let number = PARTS as u64 * at * (2 * END + at) / (3 * END * END);
        others.get(usize::try_from(number).unwrap_or_default()).unwrap_or(first)
    }

    fn give_back_room(&self) {
        for part in &self.parts {
            let mut kept = part.lock();
            clear(&mut kept);
            if has_much_room(kept.capacity(), kept.len()) {
                kept.shrink_to_fit();
            }
            drop(kept);
            // Whoever has waited for this part goes before the next one is held.
            thread::yield_now();
        }
    }
}

/// Drops what has no other holder.
fn clear<P: Shared>(kept: &mut HashSet<P, RandomState>) {
    kept.retain(|value| value.holders() > 1);
}

static TEXTS: LazyLock<Store<ArcStr>> = LazyLock::new(Store::default);
static LISTS: LazyLock<Store<Arc<Vec<Text>>>> = LazyLock::new(Store::default);
static MAPS: LazyLock<Store<Arc<BTreeMap<Text, Text>>>> = LazyLock::new(Store::default);

/// Drops what has no holder any more, with its room. By itself that waits until as much has come again: after
/// thousands of objects have gone, for long.
pub fn give_back_room() {
    TEXTS.give_back_room();
    LISTS.give_back_room();
    MAPS.give_back_room();
}

/// Whether a text is in the store.
#[cfg(test)]
pub(crate) fn is_kept(text: &str) -> bool {
    TEXTS.part(text).lock().contains(text)
}

/// The one copy of a text that is likely to repeat.
pub fn share(text: &str) -> ArcStr {
    TEXTS.share(text, |text| text.into())
}

/// A type of texts that are read shared, and printed and written as they are.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize)]
        #[derive(derive_more::Debug, derive_more::Display)]
        #[debug("{_0:?}")]
        #[serde(transparent)]
        pub struct $name(#[serde(deserialize_with = "crate::text::shared")] arcstr::ArcStr);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}
pub(crate) use text_type;

text_type!(
    /// A text that is likely to repeat, kept once.
    #[derive(derive_more::AsRef, derive_more::Deref, derive_more::Into)]
    #[as_ref(str)]
    #[deref(forward)]
    Text
);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(share(text))
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Self(share(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(share(&text))
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

/// Reads a text, and shares it.
///
/// # Errors
/// If it is no text.
pub fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ArcStr, D::Error> {
    Cow::<'de, str>::deserialize(deserializer).map(|text| share(&text))
}

/// A collection of few texts that is likely to repeat, kept once. A change makes another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, derive_more::Debug, derive_more::Deref)]
#[debug("{_0:?}")]
#[deref(forward)]
#[serde(transparent)]
pub struct Once<T>(Arc<T>);

/// A list of texts.
pub type TextList = Once<Vec<Text>>;

/// A map of texts, in order.
pub type TextMap = Once<BTreeMap<Text, Text>>;

/// A set of texts, in order. Each object has another one, so it is not shared.
pub type TextSet = BTreeSet<Text>;

/// A collection that has a store.
pub trait Repeating: Clone + Default + Eq + Hash + 'static {
    /// The one copy of it.
    fn kept(&self) -> Arc<Self>;
}

impl Repeating for Vec<Text> {
    fn kept(&self) -> Arc<Self> {
        LISTS.share(self, |list| Arc::new(list.clone()))
    }
}

impl Repeating for BTreeMap<Text, Text> {
    fn kept(&self) -> Arc<Self> {
        MAPS.share(self, |map| Arc::new(map.clone()))
    }
}

impl<T: Repeating> Once<T> {
    /// Changes a copy of it.
    fn change(&mut self, change: impl FnOnce(&mut T)) {
        let mut changed = (*self.0).clone();
        change(&mut changed);
        self.0 = changed.kept();
    }
}

impl TextList {
    /// Removes all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl TextMap {
    /// Puts a value under a key.
    pub fn insert(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        self.change(|map| drop(map.insert(key.into(), value.into())));
    }
}

impl<T: Repeating> Default for Once<T> {
    fn default() -> Self {
        Self(T::default().kept())
    }
}

impl<'de, T: Repeating + Deserialize<'de>> Deserialize<'de> for Once<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|read| Self(read.kept()))
    }
}

impl<T: Into<Text>> FromIterator<T> for TextList {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        Self(texts.into_iter().map(Into::into).collect::<Vec<Text>>().kept())
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for TextMap {
    /// Of two values under one key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into()));
        Self(entries.collect::<BTreeMap<Text, Text>>().kept())
    }
}

impl<T: Into<Text>, const N: usize> From<[T; N]> for TextList {
    fn from(texts: [T; N]) -> Self {
        texts.into_iter().collect()
    }
}

impl<K: Into<Text>, V: Into<Text>, const N: usize> From<[(K, V); N]> for TextMap {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
