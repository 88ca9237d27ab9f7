//! Dispatcher: the requests of this subsystem on their way (kube-scheduler: `APIDispatcher`). Pure.
//!
//! In: calls, and that they were answered. Out: those to send, each with its place in the order of sending; for how
//! many more there is room; and from how long answers take, the window in which the changes of a node are gathered. A status
//! patch rewrites the whole Node and goes to everyone who watches it, so each one saved is worth a moment, and the more so the
//! busier the server is. A server that answers at once is worth none.

use std::{collections::BTreeMap, mem, time::Duration};

use tokio::time::Instant;

use super::{
    calls::Call,
    guard::second_writer_role::ActTarget,
    state::actual::{AttachmentCall, unpublishing::Sequence},
};

/// Requests for volumes on nodes under way at once, at most.
pub const ATTACHMENT_CALLS: usize = 48;
/// Requests for nodes under way at once; at most one per node.
pub const NODE_CALLS: usize = 32;

/// One in so many requests for volumes on nodes is for what takes away or looks only, and while new volumes wait, one in so many
/// is for creates. Both pass admission, where one slow webhook holds each of its kind up for seconds; the other must not wait for
/// that (L15).
const KEPT: usize = 8;

/// For how many keys there is room, each of which may need a request. What has no room is not decided yet: it is judged
/// when there is, so nothing waits in a queue and goes stale there (S15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Volumes on nodes with which something has begun.
    pub volumes: usize,
    /// Of these, while new ones wait.
    pub beside_new: usize,
    /// Those that are new: their requests are creates.
    pub new_volumes: usize,
    /// Nodes.
    pub nodes: usize,
}

/// What is to be sent, and what is under way.
#[derive(Clone, Debug, Default)]
pub struct Dispatcher {
    to_send: Vec<(Sequence, Call)>,
    /// The place of the last request in the order of sending.
    pub(super) last_sent: Sequence,
    /// When each that is under way was sent: what a read shows may be as old as that, however late its answer.
    under_way: BTreeMap<Sequence, Instant>,
    most: usize,
    creates: usize,
    other_attachment_calls: usize,
    node_calls: usize,
    pub(super) pace: Pace,
}

impl Dispatcher {
    /// One that has so many requests for volumes on nodes under way at most, [`ATTACHMENT_CALLS`] if nothing is said.
    pub(crate) fn new(attachment_calls: Option<usize>) -> Self {
        Self { most: attachment_calls.unwrap_or(ATTACHMENT_CALLS), ..Self::default() }
    }

    /// Sends a request.
    pub fn send(&mut self, call: Call, now: Instant) {
        if let Some(count) = self.count(&call) {
            *count += 1;
        }
        self.last_sent.0 += 1;
        self.under_way.insert(self.last_sent, now);
        self.to_send.push((self.last_sent, call));
    }

    /// A request has ended, maybe with an answer that says how quick the server is. Returns when it was sent.
    pub fn ended(&mut self, call: &Call, sent: Sequence, is_answered: bool, now: Instant) -> Instant {
        let asked = self.give_up(call, sent).unwrap_or(now);
        if is_answered && matches!(call, Call::Attachment(..) | Call::PatchNode(..) | Call::ReadNode(_)) {
            self.pace.note(now.saturating_duration_since(asked));
        }
        asked
    }

    /// A request is not waited for any more. Returns when it was sent.
    pub fn give_up(&mut self, call: &Call, sent: Sequence) -> Option<Instant> {
        let asked = self.under_way.remove(&sent)?;
        if let Some(count) = self.count(call) {
            *count -= 1;
        }
        Some(asked)
    }

    /// What counts such requests, if their number is limited.
    fn count(&mut self, call: &Call) -> Option<&mut usize> {
        match call {
            Call::Attachment(_, _, request) if request.kind() == AttachmentCall::Create => {
                Some(&mut self.creates)
            }
            Call::Attachment(..) => Some(&mut self.other_attachment_calls),
            Call::PatchNode(..) | Call::ReadNode(_) | Call::ReadOwner(ActTarget::Node(_), _) => {
                Some(&mut self.node_calls)
            }
            Call::ReadOwner(ActTarget::Attachment(..), _) => None,
        }
    }

    /// For how many keys there is room.
    pub(crate) fn room(&self) -> Room {
        let volumes = self.most.saturating_sub(self.creates + self.other_attachment_calls);
        let of_one_kind = self.most - self.most / KEPT;
        Room {
            volumes,
            beside_new: of_one_kind.saturating_sub(self.other_attachment_calls).min(volumes),
            new_volumes: of_one_kind.saturating_sub(self.creates).min(volumes),
            nodes: NODE_CALLS.saturating_sub(self.node_calls),
        }
    }

    /// How many requests are under way.
    pub fn in_flight(&self) -> usize {
        self.under_way.len()
    }

    /// Takes what is to be sent.
    pub fn take(&mut self) -> Vec<(Sequence, Call)> {
        mem::take(&mut self.to_send)
    }
}

/// Weight of the latest answer: one in so many. Of what was before the last 32 nothing much is left, a fraction
/// of a second under load.
const WEIGHT: u32 = 8;

/// A node is written to once in so many times that a request takes. Of the requests under way for 48 volumes at
/// once, patches of 50 nodes are then one in thirteen. Where the server is quick, some 8 ms a request, that is
/// within what a volume may wait to be listed (L4).
const EVERY: u32 = 12;

/// The longest window. What is stuck must not keep others waiting for more than a second (L15); the rest of
/// that is for the patch itself.
const LONGEST: Duration = Duration::from_millis(900);

/// The mean time to an answer, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace(Duration);

impl Pace {
    /// Takes note of how long a request took that was answered.
    pub fn note(&mut self, took: Duration) {
        self.0 = (self.0 * (WEIGHT - 1) + took) / WEIGHT;
    }

    /// How far apart the patches of one node are.
    pub(crate) fn window(self) -> Duration {
        (self.0 * EVERY).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use apiserver::{
        call::{Request, Verb},
        ids::ResourceVersion,
    };

    use super::*;
    use crate::attach_detach::{calls::AttachmentRequest, state::desired::volume_name::VolumeId};

    #[test]
    fn s40_a_request_counts_until_it_has_ended_and_only_once() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let volume = VolumeId::csi(&"d".into(), "h");
        // what is limited of it, whether its answer says how quick the server is
        let calls = [
            (
                Call::ReadOwner(ActTarget::Attachment("n1".into(), "va".into()), "u".into()),
                [8, NODE_CALLS],
                false,
            ),
            (Call::ReadOwner(ActTarget::Node("n1".into()), "u".into()), [8, NODE_CALLS - 1], false),
            (Call::ReadNode("n1".into()), [8, NODE_CALLS - 1], true),
            (
                Call::Attachment(volume, "n1".into(), AttachmentRequest::Read("va".into())),
                [7, NODE_CALLS],
                true,
            ),
        ];
        for (call, room, sets_pace) in calls {
            let mut dispatcher = Dispatcher::new(Some(8));
            let left = |dispatcher: &Dispatcher| [dispatcher.room().volumes, dispatcher.room().nodes];
            dispatcher.send(call.clone(), second(1));
            let sent = dispatcher.take().into_iter().map(|(sent, _)| sent).collect::<Vec<_>>();
            assert_eq!((sent, dispatcher.take().len()), (vec![Sequence(1)], 0), "{call:?}");
            assert_eq!((dispatcher.in_flight(), left(&dispatcher)), (1, room), "{call:?}");
            assert_eq!(dispatcher.ended(&call, Sequence(1), true, second(3)), second(1), "{call:?}");
            assert_eq!(dispatcher.give_up(&call, Sequence(1)), None, "{call:?}");
            assert_eq!((dispatcher.in_flight(), left(&dispatcher)), (0, [8, NODE_CALLS]), "{call:?}");
            assert_eq!(!dispatcher.pace.window().is_zero(), sets_pace, "{call:?}");
        }
    }

    #[test]
    fn what_has_failed_says_nothing_of_how_quick_the_server_is() {
        let start = Instant::now();
        let mut dispatcher = Dispatcher::new(None);
        let call = Call::ReadNode("n1".into());
        dispatcher.send(call.clone(), start);
        dispatcher.ended(&call, Sequence(1), false, start + Duration::from_secs(1));
        assert!(dispatcher.pace.window().is_zero());
    }

    #[test]
    fn s40_l15_creates_leave_room_for_deletes_deletes_for_creates_and_all_together_stay_within_the_limit() {
        let now = Instant::now();
        let request = || Request { verb: Verb::Create, path: String::new(), body: None };
        let call = |kind: AttachmentCall| {
            let request = match kind {
                AttachmentCall::Create => AttachmentRequest::Create(request()),
                AttachmentCall::Delete => {
                    AttachmentRequest::Delete("u".into(), ResourceVersion(1), request())
                }
                AttachmentCall::Read => AttachmentRequest::Read("va".into()),
            };
            Call::Attachment(VolumeId::csi(&"d".into(), "h"), "n1".into(), request)
        };
        let fill = |dispatcher: &mut Dispatcher, kind| {
            let mut count = 0;
            let has_room = |room: Room| match kind {
                AttachmentCall::Create => room.new_volumes > 0,
                AttachmentCall::Delete | AttachmentCall::Read => room.volumes > 0,
            };
            while has_room(dispatcher.room()) {
                dispatcher.send(call(kind), now);
                count += 1;
            }
            count
        };
        // limit, so many creates fit, and then so many deletes
        for (most, creates, deletes) in [(Some(48), 42, 6), (Some(8), 7, 1), (Some(7), 7, 0), (Some(1), 1, 0)]
        {
            let mut dispatcher = Dispatcher::new(most);
            assert_eq!(fill(&mut dispatcher, AttachmentCall::Create), creates, "{most:?}");
            assert_eq!(fill(&mut dispatcher, AttachmentCall::Delete), deletes, "{most:?}");
            assert_eq!(fill(&mut dispatcher, AttachmentCall::Read), 0, "{most:?}");
            dispatcher.give_up(&call(AttachmentCall::Create), Sequence(1));
            let room = Room { volumes: 1, beside_new: 1, new_volumes: 1, nodes: NODE_CALLS };
            assert_eq!(dispatcher.room(), room, "{most:?}");
        }
        let mut dispatcher = Dispatcher::new(None);
        while dispatcher.room().beside_new > 0 {
            dispatcher.send(call(AttachmentCall::Delete), now);
        }
        assert_eq!(
            dispatcher.room().new_volumes,
            6,
            "while new volumes wait, deletes leave room for creates"
        );
        assert_eq!(fill(&mut dispatcher, AttachmentCall::Delete), 6, "else they may take all of it");
        assert_eq!(dispatcher.room().new_volumes, 0);
    }

    const MS: Duration = Duration::from_millis(1);

    fn window_after(answers: &[(u32, u32)]) -> Duration {
        let mut pace = Pace::default();
        for (count, millis) in answers {
            (0..*count).for_each(|_| pace.note(MS * *millis));
        }
        pace.window()
    }

    #[test]
    fn the_window_follows_what_the_server_needs() {
        // name, so many answers after so many milliseconds each, the window is between
        type Case = (&'static str, &'static [(u32, u32)], [u32; 2]);
        let cases: [Case; 7] = [
            ("nothing known", &[], [0, 0]),
            ("L4 an idle server", &[(100, 4)], [44, 48]),
            ("a busy server", &[(100, 60)], [710, 720]),
            ("L15 a server that hardly answers", &[(100, 5_000)], [900, 900]),
            ("one slow answer among quick ones", &[(100, 4), (1, 60)], [125, 135]),
            ("the load has come", &[(100, 4), (32, 60)], [690, 720]),
            ("the load has gone", &[(100, 60), (32, 4)], [45, 75]),
        ];
        for (name, answers, [least, most]) in cases {
            let window = window_after(answers);
            assert!((MS * least..=MS * most).contains(&window), "{name}: {window:?}");
        }
    }
}
