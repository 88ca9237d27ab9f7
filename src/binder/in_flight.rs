//! What is under way: the one owner of which claims and volumes may not be touched, and of the requests that are to be
//! sent next or after a pause (S18, S38).
//!
//! In: requests as they are sent, answered and repeated. Out: whether a claim or volume is busy, and how many more
//! requests there is room for. A read that is repeated keeps its claim and volume busy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::act::{op::Op, write::Target};
use crate::kube_api::ids::{ClaimKey, VolumeName};

/// Requests under way at once. Twice what the connection budget lets through, so that it never
/// idles; the rest stays here, where pairs that have begun go first.
const MOST: usize = 128;

/// Requests under way.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    busy: BTreeSet<Target>,
    sent: usize,
    ready: VecDeque<Op>,
    /// Reads to repeat when their subject's pause is over.
    parked: BTreeMap<Target, Op>,
}

impl InFlight {
    pub(crate) fn has_claim(&self, key: &ClaimKey) -> bool {
        self.has(&Target::Claim(key.clone()))
    }

    pub(crate) fn has_volume(&self, name: &VolumeName) -> bool {
        self.has(&Target::Volume(name.clone()))
    }

    pub(crate) fn has(&self, target: &Target) -> bool {
        self.busy.contains(target)
    }

    /// Requests sent and not yet answered.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// For how many more there is room.
    pub(crate) fn room(&self) -> usize {
        MOST.saturating_sub(self.sent)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// A request is sent; from now on its claim and volume are busy.
    pub(crate) fn send(&mut self, op: &Op) {
        self.busy.extend(op.touches());
        self.sent += 1;
    }

    /// A request is answered; its claim and volume stay busy until they are freed.
    pub(crate) fn answered(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }

    pub(crate) fn free(&mut self, target: &Target) {
        self.busy.remove(target);
    }

    /// The next read to repeat, as sent.
    pub(crate) fn send_ready(&mut self) -> Option<Op> {
        let op = self.ready.pop_front()?;
        self.sent += 1;
        Some(op)
    }

    /// Repeats a read as soon as there is room.
    pub(crate) fn repeat(&mut self, op: Op) {
        self.ready.push_back(op);
    }

    /// Repeats a read after the pause of its subject.
    pub(crate) fn park(&mut self, op: Op) {
        self.parked.insert(op.subject.clone(), op);
    }

    /// Whether a read waits for the end of this pause.
    pub(crate) fn is_parked(&self, subject: &Target) -> bool {
        self.parked.contains_key(subject)
    }

    /// The pause of a subject is over. Returns whether a read had waited for that.
    pub(crate) fn unpark(&mut self, subject: &Target) -> bool {
        let parked = self.parked.remove(subject);
        let had_waited = parked.is_some();
        self.ready.extend(parked);
        had_waited
    }
}
