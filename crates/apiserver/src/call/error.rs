//! Why a request has no result, and whether it is certain that nothing was written.

use std::time::Duration;

use thiserror::Error;

/// What is said of a write that is not sent during a pause.
pub(super) const OF_ALL: &str = "it is too busy for all requests, nothing was sent";

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CallError {
    /// We do not lead: nothing was sent.
    #[error("not the leader: nothing was sent")]
    NotLeader,
    /// Its body never left, without which nothing can be carried out.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The object is no longer at the revision or UID that the request names.
    #[error("{0}")]
    Conflict(String),
    /// An object of that name exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The server is busy and names when to come back.
    #[error("the API server asks to wait {} s: {message}", after.as_secs())]
    Throttled {
        /// What the server said.
        message: String,
        /// `Retry-After`.
        after: Duration,
    },
    /// The server refuses the request as it is (validation, permission).
    #[error("{message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// What the server said.
        message: String,
    },
    /// No answer, or one that does not tell: the request may have been carried out.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

impl CallError {
    /// Whether it is certain that nothing was written.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }

    /// Whether nothing was sent because the server is too busy for all requests of any kind.
    pub fn is_of_all(&self) -> bool {
        matches!(self, Self::Throttled { message, .. } if message == OF_ALL)
    }
}
