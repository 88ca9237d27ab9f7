//! What shows that kube-controller-manager's controller of the same finalizer is at work beside this one (S14).
//!
//! In: objects as the tables show them, and our own patches. Out: finalizers that others have put on, from which
//! [`crate::controller::second_writer`] draws its signal: while that lasts, none is taken off. One that was taken off has
//! no owner in `managedFields`, so that is counted and logged, and nothing follows from it. Of an object that went with
//! its last finalizer nothing is seen.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{ids::Uid, kinds::Meta};
use tokio::time::Instant;

use super::Protected;
use crate::controller::second_writer::SecondWriters;

/// What others do to the finalizers of one kind.
#[derive(Debug)]
pub(crate) struct FinalizerWriters<K> {
    /// Objects that have no finalizer of ours.
    without: BTreeMap<K, Uid>,
    /// Objects about which a patch was sent whose effect has not been seen.
    patched: BTreeSet<K>,
    pub(crate) writers: SecondWriters<K>,
}

impl<K> Default for FinalizerWriters<K> {
    fn default() -> Self {
        Self { without: BTreeMap::new(), patched: BTreeSet::new(), writers: SecondWriters::default() }
    }
}

impl<K: Protected> FinalizerWriters<K> {
    /// Takes an object as the tables show it; `leads` says whether its finalizer is this process' to change.
    pub(crate) fn observed(&mut self, key: &K, meta: Option<&Meta>, leads: bool, now: Instant) {
        let Some(meta) = meta else {
            self.without.remove(key);
            self.patched.remove(key);
            self.writers.gone(key);
            return;
        };
        let has = meta.finalizers.iter().any(|known| known.as_str() == K::FINALIZER);
        let before =
            if has { self.without.remove(key) } else { self.without.insert(key.clone(), meta.uid.clone()) };
        let was_without = before.as_ref() == Some(&meta.uid);
        if has != was_without || self.patched.remove(key) || !leads {
            return;
        }
        if has {
            self.writers.note(key, &meta.uid, now);
        } else if meta.is_terminating() {
            // One that lives may have been made without it.
            self.writers.note_unsigned(key, K::REMOVED);
        }
    }

    /// A patch of ours is sent.
    pub(crate) fn patched(&mut self, key: &K) {
        self.patched.insert(key.clone());
    }

    /// The server has refused it.
    pub(crate) fn refused(&mut self, key: &K) {
        self.patched.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use apiserver::ids::ClaimKey;

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
        let (added, removed) = ("claim_finalizer_added", ClaimKey::REMOVED);
        // name, before, whether we patched it, after, whether it leads, what is seen
        let cases = [
            ("put on by another", meta("u", false, false), false, meta("u", true, false), true, Some(added)),
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
                Some(removed),
            ),
            ("taken off by us", meta("u", true, true), true, meta("u", false, true), true, None),
            ("made without it", meta("old", true, false), false, meta("u", false, false), true, None),
            ("made anew with it", meta("old", false, true), false, meta("u", true, false), true, None),
            ("unchanged", meta("u", true, true), false, meta("u", true, true), true, None),
        ];
        for (name, before, is_ours, after, leads, expected) in cases {
            let (mut others, now) = (FinalizerWriters::default(), Instant::now());
            let key = ClaimKey::new("ns", "c");
            others.observed(&key, Some(&before), false, now);
            if is_ours {
                others.patched(&key);
            }
            others.observed(&key, Some(&after), leads, now);
            // Who has put it on is asked for.
            if others.writers.take_read(|_| true).is_some() {
                others.writers.learn(&key, &[], now);
            }
            let news = others.writers.take_news();
            let counted = [added, removed].map(|kind| news.as_ref().map_or(0, |news| news.counted(kind)));
            assert_eq!(counted, [added, removed].map(|kind| u64::from(expected == Some(kind))), "{name}");
        }
    }
}
