//! Proofs that the cluster's history was set back: etcd was restored from a backup (E11).
//!
//! Revisions only grow, and a list at a revision shows everything up to it. So each of these proves a
//! restore: a list older than what the watch has told; an object in a list at an older revision than one
//! that was known and that the list should show; a live read, sent after a revision was known, that
//! answers with an older one. Only the same object counts, by UID: of a later one of its name nothing
//! can be said.
//!
//! An answer older than what is known may merely have been overtaken by the watch, so it only raises a
//! [`Suspicion`], which the watch loop settles by a read of its own.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    ids::{ResourceVersion, Uid},
    kinds::Narrow,
};

/// Why a list of a kind proves a restore.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Regression {
    /// The list is older than what the watch has told.
    #[error("{kind} are listed at revision {listed}, after the watch had told of revision {observed}")]
    List {
        /// Resource name of the kind.
        kind: &'static str,
        /// Revision of the list.
        listed: ResourceVersion,
        /// Revision told of before.
        observed: ResourceVersion,
    },
    /// An object is older than it was.
    #[error("{kind} {key} is at revision {now}, after it had been at revision {before}")]
    Object {
        /// Resource name of the kind.
        kind: &'static str,
        /// The object.
        key: String,
        /// Its revision now.
        now: ResourceVersion,
        /// Its revision before.
        before: ResourceVersion,
    },
}

/// An object of which an answer was older than what was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect<T: Narrow> {
    /// The object.
    pub key: T::Key,
    /// Its UID.
    pub uid: Uid,
    /// The revision that was known.
    pub known: ResourceVersion,
}

impl<T: Narrow> Suspect<T> {
    /// What a live read, sent after the suspicion was raised, proves.
    #[must_use]
    pub fn judge(&self, uid: &Uid, revision: ResourceVersion) -> Option<Regression> {
        let is_older = *uid == self.uid && revision < self.known;
        is_older.then(|| Regression::Object {
            kind: T::PLURAL,
            key: self.key.to_string(),
            now: revision,
            before: self.known,
        })
    }
}

/// The last suspect, until it is taken.
#[derive(Debug, educe::Educe)]
#[educe(Default(bound(false)))]
pub(super) struct Suspicion<T: Narrow> {
    suspect: Mutex<Option<Suspect<T>>>,
    raised: Notify,
}

impl<T: Narrow> Suspicion<T> {
    pub(super) fn raise(&self, key: T::Key, uid: &Uid, known: ResourceVersion) {
        let suspect = Suspect { key, uid: uid.clone(), known };
        *self.suspect.lock() = Some(suspect);
        self.raised.notify_one();
    }

    /// Waits for a suspect. Cancel safe.
    pub(super) async fn next(&self) -> Suspect<T> {
        loop {
            if let Some(suspect) = self.suspect.lock().take() {
                return suspect;
            }
            self.raised.notified().await;
        }
    }
}
