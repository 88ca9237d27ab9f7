//! Credit: whether what the ConfigMap tells of waits is to be believed. Pure.
//!
//! An entry is too long only if its wait was broken off after it was written: a pod needed the volume again. That can
//! be told on the ConfigMap itself only as long as it can be written. So the leader that keeps it counts the waits that
//! were broken off of which it may tell, and says with everything it writes how many those were. The count is on the
//! lease, too, with each renewal ([`crate::kube_api::tally`]). A successor believes a map that knows of all that the
//! lease knows of, of the same process: none of its waits was broken off before the last renewal. However old it is,
//! each has lasted for at least as long, and no clock says so.
//!
//! Where there is no lease, a map is believed that can be written as it was read, by the first request: who came before
//! could write it, too, for all that is known.

use std::collections::{BTreeMap, HashSet};

use super::{MOST, WaitKey};
use crate::kube_api::tally::Tally;

/// Who wrote a map, and how many waits that one had seen broken off, among the data of the map.
pub(super) const STAMPED_BY: &str = "stamped-by";

/// What is known of who kept the map before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Predecessor {
    /// Nothing: there is no election.
    #[default]
    Unknown,
    /// What the lease told.
    OnLease(Option<Tally>),
}

/// What to do with what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    Believed,
    /// If it can be written.
    IfClaimed,
    Disbelieved,
}

impl Predecessor {
    /// Whether what it wrote is believed.
    pub(super) fn belief(&self, data: &BTreeMap<String, String>) -> Belief {
        let stamp = data.get(STAMPED_BY).and_then(|text| Tally::parse(text));
        match (self, stamp) {
            (Self::Unknown, Some(_)) => Belief::IfClaimed,
            (Self::OnLease(Some(told)), Some(stamp)) if stamp.by == told.by && stamp.count >= told.count => {
                Belief::Believed
            }
            _ => Belief::Disbelieved,
        }
    }
}

/// What this process has written, as far as a successor may come to believe it.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit {
    identity: String,
    broken_off: u64,
    /// The waits of which maps may tell that know of all that were broken off.
    told: HashSet<WaitKey>,
}

impl Credit {
    /// That of a process which has written nothing yet.
    pub(super) fn of(identity: String) -> Self {
        Self { identity, ..Self::default() }
    }

    /// How many waits were broken off of which the map may tell.
    pub(super) fn broken_off(&self) -> u64 {
        self.broken_off
    }

    /// What is written with all that is written now.
    pub(super) fn stamp(&self) -> String {
        Tally { by: self.identity.clone(), count: self.broken_off }.to_string()
    }

    /// A map is about to be written.
    pub(super) fn writes(&mut self, data: &BTreeMap<String, String>) {
        self.told.extend(keys(data));
        if self.told.len() > 2 * MOST {
            // As much is written in vain. What none of it may be believed for need not be kept.
            self.break_all_off();
        }
    }

    /// A map has been written: what was written before is written over.
    pub(super) fn has_written(&mut self, data: &BTreeMap<String, String>) {
        if data.get(STAMPED_BY) == Some(&self.stamp()) {
            self.told = keys(data).collect();
        }
    }

    /// Whether nothing that was written tells of any wait.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// A wait does not go on. Returns whether a map has to be written for that.
    pub(super) fn break_off(&mut self, key: &WaitKey) -> bool {
        let is_told = self.told.contains(key);
        if is_told {
            self.break_all_off();
        }
        is_told
    }

    fn break_all_off(&mut self) {
        self.broken_off += 1;
        self.told.clear();
    }
}

fn keys(data: &BTreeMap<String, String>) -> impl Iterator<Item = WaitKey> {
    data.keys().filter(|key| *key != STAMPED_BY).map(|key| WaitKey::from(key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Option<Tally> {
        Tally::parse(text)
    }

    #[test]
    fn s4_a_map_is_believed_that_knows_of_all_that_its_writer_has_told_on_the_lease() {
        use Belief::{Believed, Disbelieved, IfClaimed};
        // What the lease told, if there is an election, what the map says, and whether it is believed.
        let cases = [
            ("it knows of all", Some(tally("2 a")), Some("2 a"), Believed),
            ("and of more, which the lease was not told yet", Some(tally("2 a")), Some("3 a"), Believed),
            ("a wait was broken off since", Some(tally("2 a")), Some("1 a"), Disbelieved),
            ("another's, who led before", Some(tally("0 b")), Some("2 a"), Disbelieved),
            ("the lease tells nothing", Some(None), Some("2 a"), Disbelieved),
            ("the map says nothing", Some(tally("2 a")), None, Disbelieved),
            ("it says something else", Some(tally("2 a")), Some("many"), Disbelieved),
            ("nobody is elected", None, Some("2 a"), IfClaimed),
            ("nor does the map say anything", None, None, Disbelieved),
        ];
        for (name, told, stamp, expected) in cases {
            let predecessor = told.map_or(Predecessor::Unknown, Predecessor::OnLease);
            let stamp = stamp.map(|stamp| (STAMPED_BY.to_owned(), stamp.to_owned()));
            let data = stamp.into_iter().chain([("key".to_owned(), "1 -".to_owned())]).collect();
            assert_eq!(predecessor.belief(&data), expected, "{name}");
        }
    }

    #[test]
    fn s4_counted_is_what_was_broken_off_of_what_a_map_may_tell() {
        let mut credit = Credit::of("a".to_owned());
        let map = |stamp: &str, names: &[&str]| {
            let entries = names.iter().map(|name| ((*name).to_owned(), "1 -".to_owned()));
            entries.chain([(STAMPED_BY.to_owned(), stamp.to_owned())]).collect::<BTreeMap<_, _>>()
        };
        assert!(!credit.break_off(&"x".into()), "nothing was written");
        credit.writes(&map("0 a", &["x", "y"]));
        assert!(!credit.break_off(&"z".into()), "nothing tells of that one");
        assert!(credit.break_off(&"x".into()), "it may have landed");
        assert_eq!((credit.broken_off(), credit.stamp().as_str()), (1, "1 a"));
        assert!(!credit.break_off(&"y".into()), "whatever told of it is not believed any more");
        // What was written before is answered late, and tells nothing of what is told now.
        credit.writes(&map("1 a", &["y"]));
        credit.has_written(&map("0 a", &["x", "y"]));
        assert!(!credit.break_off(&"x".into()));
        credit.has_written(&map("1 a", &["y"]));
        credit.writes(&map("1 a", &["z"]));
        credit.has_written(&map("1 a", &["z"]));
        assert!(!credit.break_off(&"y".into()), "written over");
        assert!(credit.break_off(&"z".into()) && credit.is_empty());
        assert_eq!(credit.broken_off(), 2);
    }

    #[test]
    fn s4_what_is_written_in_vain_is_not_kept_without_end() {
        let mut credit = Credit::of("a".to_owned());
        for number in 0..=2 * MOST {
            credit.writes(&BTreeMap::from([(number.to_string(), String::new())]));
        }
        assert_eq!((credit.broken_off(), credit.is_empty()), (1, true));
    }
}
