//! Room: how many requests may be under way at once, and for what. Pure.
//!
//! In: requests sent and answered. Out: how many more may be sent. What has no room is not decided yet: it is
//! judged when there is, so nothing waits in a queue and goes stale there (S15).

use crate::attach_detach::actual::state::PairCall;

/// Requests for pairs in flight at once, at most.
pub const PAIR_CALLS: usize = 48;
/// Requests for nodes in flight at once; at most one per node.
pub const NODE_CALLS: usize = 32;

/// One in so many requests for pairs is for what takes away or looks only. Creates pass admission, where one slow
/// webhook holds each of them up for seconds; a detach must not wait for that.
const KEPT: usize = 8;

/// Requests for pairs under way.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) struct Room {
    most: usize,
    creates: usize,
    others: usize,
}

impl Room {
    /// Room for so many requests, [`PAIR_CALLS`] if nothing is said.
    pub(in crate::attach_detach) fn new(most: Option<usize>) -> Self {
        Self { most: most.unwrap_or(PAIR_CALLS), creates: 0, others: 0 }
    }

    /// How many are under way.
    pub(in crate::attach_detach) fn taken(&self) -> usize {
        self.creates + self.others
    }

    /// How many more may be sent, if they are no creates.
    pub(in crate::attach_detach) fn left(&self) -> usize {
        self.most.saturating_sub(self.taken())
    }

    /// How many more creates may be sent.
    pub(in crate::attach_detach) fn left_for_creates(&self) -> usize {
        let most = self.most - self.most / KEPT;
        most.saturating_sub(self.creates).min(self.left())
    }

    /// Whether such a request may be sent.
    pub(in crate::attach_detach) fn has(&self, call: PairCall) -> bool {
        let left = if call == PairCall::Create { self.left_for_creates() } else { self.left() };
        left > 0
    }

    /// A request is sent.
    pub(in crate::attach_detach) fn take(&mut self, call: PairCall) {
        *self.count(call) += 1;
    }

    /// A request is answered, or given up.
    pub(in crate::attach_detach) fn give_back(&mut self, call: PairCall) {
        *self.count(call) -= 1;
    }

    fn count(&mut self, call: PairCall) -> &mut usize {
        if call == PairCall::Create { &mut self.creates } else { &mut self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_creates_leave_room_for_deletes_and_all_together_stay_within_the_limit() {
        // limit, so many creates fit, and then so many deletes
        for (most, creates, deletes) in [(48, 42, 6), (8, 7, 1), (7, 7, 0), (1, 1, 0)] {
            let mut room = Room::new(Some(most));
            let mut fill = |call| {
                let mut count = 0;
                while room.has(call) {
                    room.take(call);
                    count += 1;
                }
                count
            };
            assert_eq!((fill(PairCall::Create), fill(PairCall::Delete)), (creates, deletes), "{most}");
            assert_eq!(fill(PairCall::Read), 0);
            room.give_back(PairCall::Create);
            assert_eq!((room.left(), room.left_for_creates(), room.taken()), (1, 1, most - 1));
        }
        let mut room = Room::new(None);
        (0..PAIR_CALLS).for_each(|_| room.take(PairCall::Delete));
        assert!(!room.has(PairCall::Create), "deletes may take all of it");
    }
}
