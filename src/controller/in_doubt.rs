//! Writes without an answer: how long, and until which sight of the object, such a write may still be carried out.
//!
//! One rule for every write of every controller (S17, S19, S37). A write that was not answered was carried out, or
//! will be, or never will be; which of these, only two things tell:
//!
//! - the object has moved on from the revision that the write names: the write has landed, or is refused;
//! - no request can be that old, *and* a read that was sent after that has shown the object. A read that was sent
//!   before proves nothing, however late its answer is.
//!
//! Until then nothing is decided that would be wrong if the write landed. What that is, each controller knows.

use std::time::Duration;

use apiserver::ids::ResourceVersion;
use tokio::time::Instant;

/// For how long a request that was not answered may still be carried out where nothing else is said: for requests of
/// five seconds. [`Caller::settle_time`](apiserver::call::Caller::settle_time) says it of a client.
pub const SETTLE_TIME: Duration = Duration::from_secs(10);

/// A write of unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InDoubt {
    /// The revision that the write names.
    pub revision: ResourceVersion,
    /// After this it is not carried out any more.
    pub until: Instant,
}

impl InDoubt {
    /// A write that names that revision was found to have no answer.
    pub fn since(now: Instant, settle_time: Duration, revision: ResourceVersion) -> Self {
        Self { revision, until: now + settle_time }
    }

    /// Whether an object at this revision is past the write.
    pub(crate) fn is_settled_at(&self, revision: ResourceVersion) -> bool {
        revision > self.revision
    }

    /// Whether the answer to a read that was sent then shows what became of the write.
    pub(crate) fn is_settled_by_read(&self, sent: Instant) -> bool {
        self.until <= sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s17_a_write_is_settled_by_a_later_revision_or_by_a_read_that_was_sent_after_its_time() {
        let now = Instant::now();
        let write = InDoubt::since(now, SETTLE_TIME, ResourceVersion(5));
        for (revision, is_settled) in [(4, false), (5, false), (6, true)] {
            assert_eq!(write.is_settled_at(ResourceVersion(revision)), is_settled, "{revision}");
        }
        for (second, is_settled) in [(0, false), (9, false), (10, true)] {
            assert_eq!(write.is_settled_by_read(now + Duration::from_secs(second)), is_settled, "{second}");
        }
    }
}
