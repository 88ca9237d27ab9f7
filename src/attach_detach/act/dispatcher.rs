//! Dispatcher: the requests of this subsystem on their way (kube-scheduler: `APIDispatcher`). Pure.
//!
//! In: calls, and that they were answered. Out: those to send, each with its place in the order of sending; for how
//! many more there is room; and from how long answers take, the window in which the changes of a node are gathered.

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::{
    calls::Call,
    in_flight::{InFlight, NODE_CALLS, Room},
    pace::Pace,
};
use crate::{
    attach_detach::{
        actual::{
            state::{ActualState, AttachmentCall},
            unpublishing::Sequence,
        },
        guard::evidence::Target,
    },
    controller::in_doubt::SETTLE_TIME,
};

/// What is to be sent, and what is under way.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) struct Dispatcher {
    to_send: Vec<(Sequence, Call)>,
    last_sent: Sequence,
    attachments: InFlight,
    nodes: usize,
    others: usize,
    pub(super) pace: Pace,
    /// How long a request of unknown outcome may still be carried out.
    settle_time: Duration,
}

impl Dispatcher {
    /// One that has so many requests for volumes on nodes under way at most; see [`InFlight::new`].
    pub(in crate::attach_detach) fn new(attachment_calls: Option<usize>) -> Self {
        Self {
            to_send: Vec::new(),
            last_sent: Sequence::default(),
            attachments: InFlight::new(attachment_calls),
            nodes: 0,
            others: 0,
            pace: Pace::default(),
            settle_time: SETTLE_TIME,
        }
    }

    /// Requests of unknown outcome may still be carried out for so long.
    pub(in crate::attach_detach) fn with_settle_time(self, settle_time: Duration) -> Self {
        Self { settle_time, ..self }
    }

    /// See [`Self::with_settle_time`].
    pub(in crate::attach_detach) fn settle_time(&self) -> Duration {
        self.settle_time
    }

    /// Sends a request.
    pub(in crate::attach_detach) fn send(&mut self, call: Call) {
        match &call {
            Call::Attachment(_, _, request) => self.attachments.sent(request.kind()),
            other => *self.count(other) += 1,
        }
        self.last_sent.0 += 1;
        self.to_send.push((self.last_sent, call));
    }

    /// A request has ended, maybe with an answer that says how quick the server is.
    pub(in crate::attach_detach) fn ended(
        &mut self,
        call: &Call,
        is_answered: bool,
        actual: &ActualState,
        now: Instant,
    ) {
        self.give_up(call);
        if let Some(asked) = asked_at(call, actual).filter(|_| is_answered) {
            self.pace.note(now.saturating_duration_since(asked));
        }
    }

    /// A request is not counted any more.
    pub(in crate::attach_detach) fn give_up(&mut self, call: &Call) {
        match call {
            Call::Attachment(_, _, request) => self.attachments.answered(request.kind()),
            other => *self.count(other) -= 1,
        }
    }

    /// How many requests of that kind are under way, if they are not for volumes on nodes.
    fn count(&mut self, call: &Call) -> &mut usize {
        match call {
            Call::PatchNode(..) | Call::ReadNode(_) | Call::ReadOwner(Target::Node(_), _) => &mut self.nodes,
            Call::Attachment(..) | Call::ReadOwner(Target::Attachment(..), _) | Call::Timers(_) => {
                &mut self.others
            }
        }
    }

    /// For how many keys there is room.
    pub(in crate::attach_detach) fn room(&self) -> Room {
        Room {
            volumes: self.attachments.left(),
            new_volumes: self.attachments.left_for_creates(),
            nodes: NODE_CALLS.saturating_sub(self.nodes),
        }
    }

    /// Whether such a request may be sent.
    pub(in crate::attach_detach) fn has_room_for(&self, call: AttachmentCall) -> bool {
        self.attachments.has_room_for(call)
    }

    /// How many requests are under way.
    pub(in crate::attach_detach) fn in_flight(&self) -> usize {
        self.attachments.count_all() + self.nodes + self.others
    }

    /// The place of the last request in the order of sending.
    pub(in crate::attach_detach) fn last_sent(&self) -> Sequence {
        self.last_sent
    }

    /// How far apart the status patches of one node are at present.
    pub(in crate::attach_detach) fn window(&self) -> Duration {
        self.pace.window()
    }

    /// Takes what is to be sent.
    pub(in crate::attach_detach) fn take(&mut self) -> Vec<(Sequence, Call)> {
        mem::take(&mut self.to_send)
    }
}

/// When a request was sent.
fn asked_at(call: &Call, actual: &ActualState) -> Option<Instant> {
    match call {
        Call::Attachment(volume, node, _) => {
            actual.node_volume(volume, node).and_then(|node_volume| node_volume.asked_at)
        }
        Call::PatchNode(node, ..) | Call::ReadNode(node) => actual.node(node)?.asked_at,
        Call::Timers(_) | Call::ReadOwner(..) => None,
    }
}
