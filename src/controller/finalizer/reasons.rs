//! Why the finalizer of an object is as it is, as reported ([`crate::controller::report`]).

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use tokio::time::Instant;

use crate::controller::report::{Reason, WallClock};

/// Why the finalizer is as it is.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ProtectionReason {
    /// Nothing is left to do about it.
    #[error("")]
    Settled,
    /// The object is being deleted, and something uses it: what.
    #[error("it is being deleted and keeps its finalizer: {0}")]
    InUse(&'static str),
    /// The object cannot be read (S42).
    #[error("the object cannot be read")]
    Unreadable,
    /// No finalizer is taken off until then, as etcd was restored from a backup (E11).
    #[error("etcd was restored from a backup: no finalizer is taken off for now")]
    RestoreGrace(Instant),
    /// Another writer takes it off each time: it is put on again then (S46).
    #[error("another writer takes the finalizer off each time: it is put on again after a pause")]
    Undone(Instant),
    /// A request failed, with the server's words.
    #[error("a request failed and is sent again after a pause: {0}")]
    Failed(String),
}

impl Reason for ProtectionReason {
    fn code(&self) -> &'static str {
        match self {
            Self::Settled => "Protected",
            Self::InUse(_) => "Terminating",
            Self::Unreadable => "ObjectUnreadable",
            Self::RestoreGrace(_) => "RestoreGrace",
            Self::Undone(_) => "WriteUndone",
            Self::Failed(_) => "RetryBackoff",
        }
    }

    fn state(&self) -> &'static str {
        "Protected"
    }

    fn is_settled(&self) -> bool {
        *self == Self::Settled
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        match self {
            Self::RestoreGrace(until) => Some(clock.at(*until)),
            _ => None,
        }
    }
}
