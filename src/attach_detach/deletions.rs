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
