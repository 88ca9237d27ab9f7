//! Since when each volume on a node has waited for what it waits for: what events and failures of operations rest on.
//!
//! In: what each verdict waits for. Out: the wait before, and since when there is one for a reason of that code. The
//! debug page keeps the same for readers; nothing is decided by that.

use std::collections::HashMap;

use apiserver::{ids::NodeName, tables::give_back_room};
use tokio::time::Instant;

use crate::attach_detach::{decide::verdict::Waiting, desired::volume_name::VolumeId};

/// The waits of all volumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(HashMap<(VolumeId, NodeName), (Waiting, Instant)>);

impl Waits {
    /// Takes what the last verdict waits for, if it does. Returns what the one before waited for.
    pub(super) fn judged(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        waiting: Option<&Waiting>,
        now: Instant,
    ) -> Option<Waiting> {
        let key = (volume.clone(), node.clone());
        let Some(waiting) = waiting else {
            let (before, _) = self.0.remove(&key)?;
            give_back_room(&mut self.0);
            return Some(before);
        };
        let Some((before, since)) = self.0.get_mut(&key) else {
            self.0.insert(key, (waiting.clone(), now));
            return None;
        };
        if before.code() != waiting.code() {
            *since = now;
        }
        Some(std::mem::replace(before, waiting.clone()))
    }

    /// Since when there is a wait.
    pub(super) fn since(&self, volume: &VolumeId, node: &NodeName) -> Option<Instant> {
        self.0.get(&(volume.clone(), node.clone())).map(|(_, since)| *since)
    }
}
