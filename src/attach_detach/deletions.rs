//! Our DELETEs of VolumeAttachments that other writers undo: they create the attachment again (S46). Pure.
//!
//! In: a DELETE as it is sent and as it lands, our own create, and that an attachment is there that is not of ours. Out: until
//! when it is not deleted again. A DELETE that has stood for a minute is forgotten.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::reasons::NodeVolumeKey;
use crate::controller::undone::{STANDS, Undone};

/// The DELETEs of the last minute, and of those before them the ones that were undone.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletions {
    by_key: BTreeMap<NodeVolumeKey, Undone>,
    swept: Option<Instant>,
}

impl Deletions {
    /// One is sent.
    pub fn sent(&mut self, key: NodeVolumeKey, now: Instant) {
        self.by_key.entry(key).or_default().sent(now);
        if self.swept.is_none_or(|at| at + STANDS <= now) {
            self.swept = Some(now);
            self.by_key.retain(|_, undone| !undone.is_over(now));
        }
    }

    /// It is carried out; `jitter` as for [`Undone::landed`].
    pub fn landed(&mut self, key: &NodeVolumeKey, now: Instant, jitter: f64) {
        if let Some(undone) = self.by_key.get_mut(key) {
            undone.landed(now, jitter);
        }
    }

    /// We create the attachment ourselves.
    pub fn withdrawn(&mut self, key: &NodeVolumeKey) {
        self.by_key.remove(key);
    }

    /// An attachment has come that was gone.
    pub fn undone(&mut self, key: &NodeVolumeKey, now: Instant) {
        if let Some(undone) = self.by_key.get_mut(key) {
            undone.undone(now);
        }
    }

    /// Until when it is not deleted.
    pub fn pending(&self, key: &NodeVolumeKey, now: Instant) -> Option<Instant> {
        self.by_key.get(key)?.pending(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attach_detach::state::desired::volume_name::VolumeId;

    #[test]
    fn s46_a_deletion_that_has_stood_for_a_minute_is_forgotten_and_one_that_is_undone_is_not() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let key = |handle: &str| NodeVolumeKey::new(&VolumeId::csi(&"d".into(), handle), &"n".into());
        let mut deletions = Deletions::default();
        deletions.sent(key("stands"), now);
        for _ in 0..9 {
            deletions.sent(key("undone"), now + 50 * second);
            deletions.landed(&key("undone"), now + 50 * second, 0.0);
            deletions.undone(&key("undone"), now + 50 * second);
        }
        deletions.sent(key("last"), now + 60 * second);
        let kept: Vec<&NodeVolumeKey> = deletions.by_key.keys().collect();
        assert_eq!(kept, [&key("last"), &key("undone")]);
        assert!(deletions.pending(&key("undone"), now + 60 * second).is_some());
    }
}
