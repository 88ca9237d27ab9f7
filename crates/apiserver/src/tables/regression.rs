//! Proofs that the cluster's history was set back: etcd was restored from a backup (E11).
//!
//! Revisions only grow, and a list at a revision shows everything up to it. So each of these proves a
//! restore: a list older than what the watch has told; an object in a list at an older revision than one
//! that was known and that the list should show. Only the same object counts, by UID: of a later one of its
//! name nothing can be said. An answer to a request of our own that is older than what is known proves nothing:
//! the watch may have overtaken it.

use crate::ids::ResourceVersion;

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
