//! Operations as kube-controller-manager measures them: from the first request to the driver's answer.
//!
//! In: requests as they are sent, and ends as they are learnt. Out: what ended, how, and how long it took. What was under
//! way when this process started is not measured, because its beginning was not seen.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{
    attach_detach::{
        actual::state::{AttachmentCall, Operation},
        desired::volume_name::VolumeId,
    },
    kube_api::ids::NodeName,
    state::give_back_room,
};

/// How an operation ended, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did what it should.
    Success,
    /// It did not; KCM knows no other failure.
    Failure,
}

/// How an operation ended, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::attach_detach) struct Ended {
    pub(super) operation: Operation,
    pub(super) ending: Ending,
    /// Whether the volume was in-tree before it was translated.
    pub(super) migrated: bool,
    pub(super) took: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    operation: Operation,
    began: Instant,
    migrated: bool,
}

/// Those in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(HashMap<(VolumeId, NodeName), Running>);

impl Operations {
    /// A request is sent.
    pub(super) fn sent(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        call: AttachmentCall,
        migrated: bool,
        now: Instant,
    ) {
        let operation = match call {
            AttachmentCall::Create => Operation::Attach,
            AttachmentCall::Delete => Operation::Detach,
            AttachmentCall::Read => return,
        };
        let begun = Running { operation, began: now, migrated };
        let running = self.0.entry((volume.clone(), node.clone())).or_insert(begun);
        if running.operation != operation {
            *running = begun;
        }
    }

    /// An operation ended, if it is the one in progress. What failed goes on: the driver tries again, and that is an
    /// operation of its own.
    pub(super) fn ended(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        operation: Operation,
        ending: Ending,
        now: Instant,
    ) -> Option<Ended> {
        let running = self.0.get_mut(&(volume.clone(), node.clone()))?;
        let Running { began, migrated, .. } = *running;
        if running.operation != operation {
            return None;
        }
        running.began = now;
        if ending == Ending::Success {
            self.forget(volume, node);
        }
        Some(Ended { operation, ending, migrated, took: now - began })
    }

    /// Since when an operation has been in progress.
    pub(super) fn since(&self, volume: &VolumeId, node: &NodeName) -> Option<Instant> {
        self.0.get(&(volume.clone(), node.clone())).map(|running| running.began)
    }

    /// Nothing is known any more of the volume on that node.
    pub(super) fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        if self.0.remove(&(volume.clone(), node.clone())).is_some() {
            give_back_room(&mut self.0);
        }
    }

    /// What was under way before this process led was not seen to begin.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}
