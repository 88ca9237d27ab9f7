//! Label values that others choose, of which only so many are shown.
//!
//! In: names as they come. Out: the name itself, or one that stands for all that came too
//! late, so that no number of them makes a page large. Who is shown once stays so, as a series must not go on under
//! another name.

use parking_lot::Mutex;

use std::{collections::BTreeSet, sync::Arc};

/// Stands for what is not shown.
pub const OTHER: &str = "other";

/// Stands for what is not shown of what users name freely: no name of an object has a `_`.
pub const OTHERS: &str = "_other";

/// The first names of a kind.
#[derive(Clone, Debug)]
pub struct Bounded {
    known: Arc<Mutex<BTreeSet<String>>>,
    most: usize,
    rest: &'static str,
}

impl Bounded {
    /// Shows so many, and one for the rest.
    pub fn new(most: usize, rest: &'static str) -> Self {
        Self { known: Arc::default(), most, rest }
    }

    /// The label value of a name.
    pub fn shown<'a>(&self, name: &'a str) -> &'a str {
        let mut known = self.known.lock();
        if known.contains(name) {
            return name;
        }
        if known.len() >= self.most {
            return self.rest;
        }
        known.insert(name.to_owned());
        name
    }

    /// The names that are shown so far.
    pub fn seen(&self) -> Vec<String> {
        self.known.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_first_stays_and_the_rest_are_one() {
        let bounded = Bounded::new(2, OTHER);
        let shown: Vec<_> = ["a", "b", "c", "a", "d", "b"].map(|name| bounded.shown(name)).into();
        assert_eq!(shown, ["a", "b", "other", "a", "other", "b"]);
    }
}
