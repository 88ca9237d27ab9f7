//! Whether kube-controller-manager's protection controller is at work beside this one (S14).
//!
//! In: objects as the tables show them, our own patches, and what a live read says of who put a finalizer on. Out:
//! objects to read, what was seen, and the alarm. Nothing is held up by it: each patch names UID and revision, so two
//! of these controllers do no harm. A finalizer that was put on has an owner in `managedFields`, who may be proven to be
//! kube-controller-manager; one that was taken off has none, so that is counted and logged, and raises no alarm. Of an
//! object that went with its last finalizer nothing is seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    mem,
};

use tokio::time::Instant;

use crate::{
    controller::second_writer::{MEMORY, Owner},
    kube_api::{ids::Uid, kinds::Meta},
};

/// So many objects wait to be read, at most: one proof is enough.
const READS: usize = 16;

/// A change of a finalizer that this process did not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// It was put on the object of this name.
    Added(String),
    /// It was taken off.
    Removed(String),
    /// It was put on by this manager, as a live read says.
    Owned(String, Owner),
}

/// What there is to report of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Changes, in order.
    pub sightings: Vec<Sighting>,
    /// What becomes of the alarm.
    pub alarm: Alarm,
}

/// What becomes of the alarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Alarm {
    /// It is as it was.
    #[default]
    Same,
    /// It begins, with this text.
    Begins(String),
    /// It ends.
    Ends,
}

/// What others do to the finalizers of one kind.
#[derive(Debug)]
pub(super) struct SecondWriter<K> {
    /// Objects that have no finalizer of ours.
    without: BTreeMap<K, Uid>,
    /// Objects about which a patch was sent whose effect has not been seen.
    patched: BTreeSet<K>,
    to_read: BTreeMap<K, Uid>,
    reading: Option<K>,
    /// When the alarm ends, unless there is another proof.
    alarm_until: Option<Instant>,
    seen: Seen,
}

impl<K> Default for SecondWriter<K> {
    fn default() -> Self {
        Self {
            without: BTreeMap::new(),
            patched: BTreeSet::new(),
            to_read: BTreeMap::new(),
            reading: None,
            alarm_until: None,
            seen: Seen::default(),
        }
    }
}

impl<K: Clone + Display + Ord> SecondWriter<K> {
    /// Takes an object as the tables show it; `leads` says whether its finalizer is this process' to change.
    pub(super) fn observed(&mut self, key: &K, meta: Option<&Meta>, finalizer: &str, leads: bool) {
        let Some(meta) = meta else {
            self.without.remove(key);
            self.patched.remove(key);
            self.to_read.remove(key);
            return;
        };
        let has = meta.finalizers.iter().any(|known| known.as_str() == finalizer);
        let before =
            if has { self.without.remove(key) } else { self.without.insert(key.clone(), meta.uid.clone()) };
        let was_without = before.as_ref() == Some(&meta.uid);
        if has != was_without || self.patched.remove(key) || !leads {
            return;
        }
        if has {
            self.seen.sightings.push(Sighting::Added(key.to_string()));
            if self.to_read.len() < READS {
                self.to_read.insert(key.clone(), meta.uid.clone());
            }
        } else if meta.is_terminating() {
            // One that lives may have been made without it.
            self.seen.sightings.push(Sighting::Removed(key.to_string()));
        }
    }

    /// A patch of ours is sent.
    pub(super) fn patched(&mut self, key: &K) {
        self.patched.insert(key.clone());
    }

    /// The server has refused it.
    pub(super) fn refused(&mut self, key: &K) {
        self.patched.remove(key);
    }

    /// The next object to read, one at a time.
    pub(super) fn take_read(&mut self) -> Option<(K, Uid)> {
        if self.reading.is_some() {
            return None;
        }
        let (key, uid) = self.to_read.pop_first()?;
        self.reading = Some(key.clone());
        Some((key, uid))
    }

    /// Takes the managers that own the finalizer; none if they could not be read.
    pub(super) fn learn(&mut self, key: &K, managers: &[String], now: Instant) {
        self.reading = None;
        let owner = Owner::of(managers);
        if let Owner::Controller(manager) = &owner {
            if self.alarm_until.is_none() {
                let text = format!("{manager} put the finalizer on {key}, as mooring does");
                self.seen.alarm = Alarm::Begins(text);
            }
            self.alarm_until = Some(now + MEMORY);
            self.to_read.clear();
        }
        self.seen.sightings.push(Sighting::Owned(key.to_string(), owner));
    }

    /// Ends the alarm if it is time.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.alarm_until.is_some_and(|until| until <= now) {
            self.alarm_until = None;
            self.seen.alarm = Alarm::Ends;
        }
    }

    /// When that is.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.alarm_until
    }

    /// What there is to report.
    pub(super) fn take_seen(&mut self) -> Seen {
        mem::take(&mut self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "kubernetes.io/pvc-protection";

    fn meta(uid: &str, has: bool, is_going: bool) -> Meta {
        let finalizers = if has { vec!["a", OURS] } else { vec!["a"] };
        Meta {
            uid: uid.into(),
            finalizers: finalizers.into_iter().collect(),
            deletion_timestamp: is_going.then(Box::default),
            ..Meta::default()
        }
    }

    #[test]
    fn s14_only_what_this_process_did_not_do_is_seen_and_only_while_it_leads() {
        let (added, removed) = (|| Sighting::Added("c".to_owned()), || Sighting::Removed("c".to_owned()));
        // name, before, whether we patched it, after, whether it leads, what is seen
        let cases = [
            (
                "put on by another",
                meta("u", false, false),
                false,
                meta("u", true, false),
                true,
                Some(added()),
            ),
            ("put on by us", meta("u", false, false), true, meta("u", true, false), true, None),
            (
                "put on while it stands by",
                meta("u", false, false),
                false,
                meta("u", true, false),
                false,
                None,
            ),
            (
                "taken off by another",
                meta("u", true, true),
                false,
                meta("u", false, true),
                true,
                Some(removed()),
            ),
            ("taken off by us", meta("u", true, true), true, meta("u", false, true), true, None),
            ("made without it", meta("old", true, false), false, meta("u", false, false), true, None),
            ("made anew with it", meta("old", false, true), false, meta("u", true, false), true, None),
            ("unchanged", meta("u", true, true), false, meta("u", true, true), true, None),
        ];
        for (name, before, is_ours, after, leads, expected) in cases {
            let mut others = SecondWriter::default();
            others.observed(&"c", Some(&before), OURS, false);
            if is_ours {
                others.patched(&"c");
            }
            others.observed(&"c", Some(&after), OURS, leads);
            assert_eq!(others.take_seen().sightings, expected.into_iter().collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn s14_the_alarm_stands_only_for_kube_controller_manager_and_ends() {
        let now = Instant::now();
        for (manager, is_alarm) in [("kube-controller-manager", true), ("kubectl-edit", false)] {
            let mut others = SecondWriter::default();
            others.observed(&"c", Some(&meta("u", false, false)), OURS, false);
            others.observed(&"c", Some(&meta("u", true, false)), OURS, true);
            assert_eq!(others.take_read(), Some(("c", "u".into())), "who it was is asked for");
            assert_eq!(others.take_read(), None);
            others.learn(&"c", &[manager.to_owned()], now);
            assert_eq!(matches!(others.take_seen().alarm, Alarm::Begins(_)), is_alarm, "{manager}");
            others.settle(now + MEMORY);
            assert_eq!(others.take_seen().alarm == Alarm::Ends, is_alarm, "{manager}");
            assert_eq!(others.ends_at(), None);
        }
    }
}
