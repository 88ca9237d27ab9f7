//! Who counts the objects of a table as they come and go, so that nobody who asks how many there are has to look at all.

use parking_lot::RwLock;

/// Counts an object that is there from now on, or no more.
type Counter<T> = Box<dyn Fn(&T, bool) + Send + Sync>;

/// Those who count.
#[derive(derive_more::Debug, educe::Educe)]
#[debug("Counters")]
#[educe(Default(bound(false)))]
pub(super) struct Counters<T>(RwLock<Vec<Counter<T>>>);

impl<T> Counters<T> {
    pub(super) fn add(&self, counter: Counter<T>) {
        self.0.write().push(counter);
    }

    /// An object is there from now on.
    pub(super) fn come(&self, object: &T) {
        self.0.read().iter().for_each(|counter| counter(object, true));
    }

    /// An object is there no more, as it was.
    pub(super) fn gone(&self, object: &T) {
        self.0.read().iter().for_each(|counter| counter(object, false));
    }
}
