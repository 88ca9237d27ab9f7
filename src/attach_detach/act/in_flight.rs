//! In flight: how many requests are under way, and how many more may be, of which kind. Pure.
//!
//! In: requests sent and answered. Out: how many more may be sent. What has no room is not decided yet: it is
//! judged when there is, so nothing waits in a queue and goes stale there (S15).

use crate::attach_detach::actual::state::AttachmentCall;

/// Requests for volumes on nodes in flight at once, at most.
pub const ATTACHMENT_CALLS: usize = 48;
/// Requests for nodes in flight at once; at most one per node.
pub const NODE_CALLS: usize = 32;

/// One in so many requests for volumes on nodes is for what takes away or looks only. Creates pass admission, where one
/// slow webhook holds each of them up for seconds; a detach must not wait for that.
const KEPT: usize = 8;

/// For how many keys there is room, each of which may need a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::attach_detach) struct Room {
    /// Volumes on nodes with which something has begun.
    pub(in crate::attach_detach) volumes: usize,
    /// Those that are new: their requests are creates.
    pub(in crate::attach_detach) new_volumes: usize,
    /// Nodes.
    pub(in crate::attach_detach) nodes: usize,
}

/// Requests for volumes on nodes under way.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) struct InFlight {
    most: usize,
    creates: usize,
    others: usize,
}

impl InFlight {
    /// At most so many requests, [`ATTACHMENT_CALLS`] if nothing is said.
    pub(in crate::attach_detach) fn new(most: Option<usize>) -> Self {
        Self { most: most.unwrap_or(ATTACHMENT_CALLS), creates: 0, others: 0 }
    }

    /// How many are under way.
    pub(in crate::attach_detach) fn count_all(&self) -> usize {
        self.creates + self.others
    }

    /// How many more may be sent, if they are no creates.
    pub(in crate::attach_detach) fn left(&self) -> usize {
        self.most.saturating_sub(self.count_all())
    }

    /// How many more creates may be sent.
    pub(in crate::attach_detach) fn left_for_creates(&self) -> usize {
        let most = self.most - self.most / KEPT;
        most.saturating_sub(self.creates).min(self.left())
    }

    /// Whether such a request may be sent.
    pub(in crate::attach_detach) fn has_room_for(&self, call: AttachmentCall) -> bool {
        let left = if call == AttachmentCall::Create { self.left_for_creates() } else { self.left() };
        left > 0
    }

    /// A request is sent.
    pub(in crate::attach_detach) fn sent(&mut self, call: AttachmentCall) {
        *self.count(call) += 1;
    }

    /// A request is answered, or given up.
    pub(in crate::attach_detach) fn answered(&mut self, call: AttachmentCall) {
        *self.count(call) -= 1;
    }

    fn count(&mut self, call: AttachmentCall) -> &mut usize {
        if call == AttachmentCall::Create { &mut self.creates } else { &mut self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_creates_leave_room_for_deletes_and_all_together_stay_within_the_limit() {
        // limit, so many creates fit, and then so many deletes
        for (most, creates, deletes) in [(48, 42, 6), (8, 7, 1), (7, 7, 0), (1, 1, 0)] {
            let mut in_flight = InFlight::new(Some(most));
            let mut fill = |call| {
                let mut count = 0;
                while in_flight.has_room_for(call) {
                    in_flight.sent(call);
                    count += 1;
                }
                count
            };
            assert_eq!(
                (fill(AttachmentCall::Create), fill(AttachmentCall::Delete)),
                (creates, deletes),
                "{most}"
            );
            assert_eq!(fill(AttachmentCall::Read), 0);
            in_flight.answered(AttachmentCall::Create);
            assert_eq!(
                (in_flight.left(), in_flight.left_for_creates(), in_flight.count_all()),
                (1, 1, most - 1)
            );
        }
        let mut in_flight = InFlight::new(None);
        (0..ATTACHMENT_CALLS).for_each(|_| in_flight.sent(AttachmentCall::Delete));
        assert!(!in_flight.has_room_for(AttachmentCall::Create), "deletes may take all of it");
    }
}
