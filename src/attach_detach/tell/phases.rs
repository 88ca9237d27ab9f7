//! Phases: how long an attach takes from the pod's need to the published volume, or a detach from its end, and where
//! the time goes. Pure.
//!
//! In: the volume on the node each time it is judged. Out: the phases that ended since. What was under way when this
//! process started is not measured, because its beginning was not seen.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{
    attach_detach::{
        actual::state::{AttachmentCall, NodeVolume, Operation},
        decide::verdict::Waiting,
        desired::volume_name::VolumeId,
    },
    kube_api::ids::NodeName,
    state::give_back_room,
};

/// Part of an attach or a detach. A label of the histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Attach: desired, and nothing asked for yet, because another node holds the volume or after a failure.
    Queue,
    /// Detach: the kubelet has not unmounted.
    Unmount,
    /// Detach: the node's status is being written.
    Unpublish,
    /// The API server is being asked.
    Api,
    /// The driver is at work.
    Attacher,
    /// Attach: the node's status is being written.
    Publish,
    /// Over.
    Done,
}

impl Phase {
    /// Value of the label `phase`; that of the end stands for the whole.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Unmount => "unmount",
            Self::Unpublish => "unpublish",
            Self::Api => "api",
            Self::Attacher => "attacher",
            Self::Publish => "publish",
            Self::Done => "total",
        }
    }

    /// The phase of a volume on a node that is desired, or is not.
    #[must_use]
    pub fn of(node_volume: &NodeVolume, wanted: bool, unpublishes: bool) -> Self {
        let attachment = node_volume.attachment();
        let going = node_volume.is_going();
        match (wanted, attachment) {
            (true, Some(_)) if going => Self::Queue,
            (true, Some(attachment)) if attachment.status.attached => {
                if node_volume.is_listed() {
                    Self::Done
                } else {
                    Self::Publish
                }
            }
            (true, Some(_)) => Self::Attacher,
            (true, None) if node_volume.call == Some(AttachmentCall::Create) => Self::Api,
            (true, None) => Self::Queue,
            (false, None) => Self::Done,
            (false, Some(_)) if going => Self::Attacher,
            (false, Some(_)) if node_volume.call == Some(AttachmentCall::Delete) => Self::Api,
            (false, Some(_)) if unpublishes => Self::Unpublish,
            (false, Some(_)) => Self::Unmount,
        }
    }
}

/// Whose turn it is: what lasts is counted as overhead while it is ours.
#[must_use]
pub fn is_ours(phase: Phase, waiting: Option<&Waiting>) -> bool {
    match waiting {
        // The API server and the way to it are on our side of the bargain.
        Some(
            Waiting::WaitingForVolumeAttachment
            | Waiting::Publishing
            | Waiting::DetachWaitingForUnpublish
            | Waiting::DetachWaitingForSettlement
            | Waiting::Uncertain
            | Waiting::RetryBackoff { .. }
            | Waiting::NodeStatusRefused { .. },
        ) => true,
        // The driver, the kubelet, another node, another controller, the owner of an object.
        Some(
            Waiting::WaitingForAttacher
            | Waiting::AttachError { .. }
            | Waiting::WriteUndone { .. }
            | Waiting::HeldByNode { .. }
            | Waiting::WaitingForDeletion
            | Waiting::ClaimOrVolumeChanged
            | Waiting::DetachWaitingForUnmount { .. }
            | Waiting::DetachWaitingForAttacher
            | Waiting::DetachError { .. }
            | Waiting::NodeGone
            | Waiting::DetachWaitingForNode { .. }
            | Waiting::ForeignWriter { .. }
            | Waiting::RestoreGrace { .. }
            | Waiting::Unreadable { .. }
            | Waiting::ForeignAttachment { .. },
        ) => false,
        None => !matches!(phase, Phase::Attacher | Phase::Unmount),
    }
}

/// One under way.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationTimer {
    operation: Operation,
    began: Instant,
    phase: Phase,
    phase_began: Instant,
    forced: bool,
    /// What was ours of it so far, and whether what began with the last look is.
    overhead: Duration,
    looked_at: Instant,
    ours: bool,
}

/// What a time is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// One phase; that of the end stands for the whole.
    Phase(Phase),
    /// All in which neither driver nor kubelet, nor another party, had their turn.
    Overhead,
}

/// What ended, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseDuration {
    /// Of which operation.
    pub operation: Operation,
    /// What of it.
    pub span: Span,
    /// How long it took.
    pub took: Duration,
    /// Whether the detach was forced.
    pub forced: bool,
}

/// A look at a volume on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What is to become of it.
    pub operation: Operation,
    /// How far that has come.
    pub phase: Phase,
    /// Whether it is our turn ([`is_ours`]).
    pub ours: bool,
    /// Whether the detach is forced.
    pub forced: bool,
}

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
    pub(super) migrated: bool,
    pub(super) took: Duration,
}

/// A look at a volume on a node whose phases are measured.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) struct Progress {
    /// What was seen.
    pub(super) look: Look,
    /// Whether this operation was under way before.
    pub(super) was_under_way: bool,
    /// Whether it is now.
    pub(super) is_under_way: bool,
    /// The phases that ended.
    pub(super) durations: Vec<PhaseDuration>,
}

impl OperationTimer {
    /// Whether it is one of this operation.
    #[must_use]
    pub fn is_of(&self, operation: Operation) -> bool {
        self.operation == operation
    }

    /// The timer after another look, and the phases that have ended.
    #[must_use]
    pub fn proceed(before: Option<Self>, look: Look, now: Instant) -> (Option<Self>, Vec<PhaseDuration>) {
        let Look { operation, phase, ours, forced } = look;
        let begun = before.filter(|timer| timer.operation == operation);
        let Some(mut timer) = begun else {
            let at_its_beginning =
                matches!(phase, Phase::Queue | Phase::Unmount | Phase::Unpublish | Phase::Api);
            let timer = Self {
                operation,
                began: now,
                phase,
                phase_began: now,
                forced,
                overhead: Duration::ZERO,
                looked_at: now,
                ours,
            };
            return (at_its_beginning.then_some(timer), Vec::new());
        };
        if timer.ours {
            timer.overhead += now - timer.looked_at;
        }
        (timer.looked_at, timer.ours) = (now, ours);
        timer.forced |= forced;
        // A phase that comes again, after a failure or a change of mind, belongs to the one reached.
        if phase <= timer.phase {
            return (Some(timer), Vec::new());
        }
        let duration = |span, took| PhaseDuration { operation, span, took, forced: timer.forced };
        let mut durations = vec![duration(Span::Phase(timer.phase), now - timer.phase_began)];
        if phase == Phase::Done {
            durations.push(duration(Span::Phase(phase), now - timer.began));
            durations.push(duration(Span::Overhead, timer.overhead));
            return (None, durations);
        }
        (Some(Self { phase, phase_began: now, ..timer }), durations)
    }
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
struct Running {
    operation: Operation,
    began: Instant,
    /// Whether the volume was in-tree before it was translated.
    migrated: bool,
}

/// What is measured of a volume on a node.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// From the first request to the driver's answer.
    running: Option<Running>,
    /// From the desire to its fulfilment, if it was seen to begin.
    timer: Option<OperationTimer>,
}

/// The operations and phases under way, of all volumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    measured: HashMap<(VolumeId, NodeName), Measured>,
}

impl Phases {
    /// A request is sent.
    pub(super) fn sent(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        call: AttachmentCall,
        migrated: bool,
        now: Instant,
    ) {
        let begins = match call {
            AttachmentCall::Create => Some(Operation::Attach),
            AttachmentCall::Delete => Some(Operation::Detach),
            AttachmentCall::Read => None,
        };
        let running = self.measured.get(&(volume.clone(), node.clone())).and_then(|known| known.running);
        let next = match (running, begins) {
            (Some(running), None) => Running { migrated, ..running },
            (Some(running), Some(operation)) if running.operation == operation => {
                Running { migrated, ..running }
            }
            (_, Some(operation)) => Running { operation, began: now, migrated },
            (None, None) => return,
        };
        self.measured.entry((volume.clone(), node.clone())).or_default().running = Some(next);
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
        let measured = self.measured.get_mut(&(volume.clone(), node.clone()))?;
        let running = measured.running.filter(|running| running.operation == operation)?;
        measured.running = (ending == Ending::Failure).then_some(Running { began: now, ..running });
        self.drop_if_over(volume, node);
        Some(Ended { operation, ending, migrated: running.migrated, took: now - running.began })
    }

    /// Since when an operation has been in progress.
    pub(super) fn running_since(&self, volume: &VolumeId, node: &NodeName) -> Option<Instant> {
        Some(self.measured.get(&(volume.clone(), node.clone()))?.running?.began)
    }

    /// Takes a look.
    pub(super) fn judged(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        look: Look,
        now: Instant,
    ) -> Progress {
        let key = (volume.clone(), node.clone());
        let before = self.measured.get_mut(&key).and_then(|measured| measured.timer.take());
        let was_under_way = before.as_ref().is_some_and(|timer| timer.is_of(look.operation));
        let (timer, durations) = OperationTimer::proceed(before, look, now);
        let is_under_way = timer.is_some();
        if is_under_way {
            self.measured.entry(key).or_default().timer = timer;
        } else {
            self.drop_if_over(volume, node);
        }
        Progress { look, was_under_way, is_under_way, durations }
    }

    /// Nothing is known any more of the volume on that node.
    pub(super) fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        if self.measured.remove(&(volume.clone(), node.clone())).is_some() {
            give_back_room(&mut self.measured);
        }
    }

    /// What was under way before this process led was not seen to begin.
    pub(super) fn forget_all(&mut self) {
        self.measured.clear();
    }

    fn drop_if_over(&mut self, volume: &VolumeId, node: &NodeName) {
        let measured = self.measured.get(&(volume.clone(), node.clone()));
        if measured.is_some_and(|known| known.running.is_none() && known.timer.is_none()) {
            self.forget(volume, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach_detach::actual::state::{Deletion, Listed};

    fn look(operation: Operation, phase: Phase, forced: bool) -> Look {
        Look { operation, phase, ours: is_ours(phase, None), forced }
    }

    fn label(span: Span) -> &'static str {
        match span {
            Span::Phase(phase) => phase.label(),
            Span::Overhead => "overhead",
        }
    }

    fn durations(operation: Operation, seen: &[(u64, Phase)]) -> Vec<(&'static str, u64)> {
        let start = Instant::now();
        let (mut timer, mut all) = (None, Vec::new());
        for (second, phase) in seen {
            let now = start + Duration::from_secs(*second);
            let (next, durations) = OperationTimer::proceed(timer, look(operation, *phase, false), now);
            all.extend(durations.into_iter().map(|duration| (label(duration.span), duration.took.as_secs())));
            timer = next;
        }
        all
    }

    #[test]
    fn phases_add_up_to_the_whole() {
        use Phase::{Api, Attacher, Done, Publish, Queue, Unmount, Unpublish};
        let attach = [(0, Queue), (1, Api), (3, Attacher), (3, Attacher), (7, Publish), (8, Done), (9, Done)];
        let expected =
            [("queue", 1), ("api", 2), ("attacher", 4), ("publish", 1), ("total", 8), ("overhead", 4)];
        assert_eq!(durations(Operation::Attach, &attach), expected);
        let detach = [(0, Unmount), (5, Unpublish), (6, Api), (7, Attacher), (9, Done)];
        let expected =
            [("unmount", 5), ("unpublish", 1), ("api", 1), ("attacher", 2), ("total", 9), ("overhead", 2)];
        assert_eq!(durations(Operation::Detach, &detach), expected);
        let again = [(0, Api), (1, Queue), (4, Api), (5, Attacher), (6, Done)];
        let expected = [("api", 5), ("attacher", 1), ("total", 6), ("overhead", 5)];
        assert_eq!(durations(Operation::Attach, &again), expected);
        let inherited = [(0, Attacher), (5, Publish), (6, Done)];
        assert_eq!(durations(Operation::Attach, &inherited), [("publish", 1), ("total", 1)][..0]);
    }

    /// S-1, S-3: while another node holds the volume, or after a failure, it is not the driver's turn, either.
    #[test]
    fn overhead_is_what_was_ours_whatever_the_phase() {
        let start = Instant::now();
        let unmounting = Waiting::DetachWaitingForUnmount {
            unforced: crate::attach_detach::decide::force::Unforced::NodeReady,
        };
        let pause = Waiting::RetryBackoff { message: None };
        let seen = [
            (0, Phase::Unmount, Some(&unmounting)),
            (60, Phase::Unpublish, None),
            (61, Phase::Api, None),
            (63, Phase::Unmount, Some(&pause)),
            (66, Phase::Unmount, Some(&unmounting)),
            (70, Phase::Attacher, Some(&Waiting::DetachWaitingForAttacher)),
            (99, Phase::Done, None),
        ];
        let (mut timer, mut last) = (None, Vec::new());
        for (second, phase, waiting) in seen {
            let look = Look { ours: is_ours(phase, waiting), ..look(Operation::Detach, phase, false) };
            (timer, last) = OperationTimer::proceed(timer, look, start + Duration::from_secs(second));
        }
        let overhead = last
            .into_iter()
            .find(|duration| duration.span == Span::Overhead)
            .map(|duration| duration.took.as_secs());
        assert_eq!(overhead, Some(1 + 2 + 3));
    }

    #[test]
    fn another_operation_begins_anew() {
        let start = Instant::now();
        let (attach, _) = OperationTimer::proceed(None, look(Operation::Attach, Phase::Api, false), start);
        let later = start + Duration::from_secs(9);
        let (detach, durations) =
            OperationTimer::proceed(attach, look(Operation::Detach, Phase::Unpublish, true), later);
        assert_eq!(durations, []);
        let (_, durations) =
            OperationTimer::proceed(detach, look(Operation::Detach, Phase::Api, false), later);
        let span = Span::Phase(Phase::Unpublish);
        assert_eq!(
            durations,
            [PhaseDuration { operation: Operation::Detach, span, took: Duration::ZERO, forced: true }]
        );
    }

    #[test]
    fn what_was_forced_once_stays_so() {
        let start = Instant::now();
        let forced_in = |seen: [(Phase, bool); 3]| {
            let (mut timer, mut last) = (None, Vec::new());
            for (phase, forced) in seen {
                (timer, last) = OperationTimer::proceed(timer, look(Operation::Detach, phase, forced), start);
            }
            last.iter().all(|duration| duration.forced)
        };
        assert!(forced_in([(Phase::Unmount, false), (Phase::Unpublish, true), (Phase::Done, false)]));
        assert!(forced_in([(Phase::Unmount, false), (Phase::Unmount, true), (Phase::Done, false)]));
        assert!(!forced_in([(Phase::Unmount, false), (Phase::Unpublish, false), (Phase::Done, false)]));
    }

    #[test]
    fn the_phase_is_that_of_what_is_waited_for() {
        use Phase::{Api, Attacher, Done, Publish, Queue, Unmount, Unpublish};
        let (none, attached) = (NodeVolume::default, || NodeVolume::with_attachment(true, false));
        let accepted = || attached().with_deletion(Deletion::Accepted);
        let cases = [
            ("not asked for", none(), true, Queue),
            ("being asked for", NodeVolume { call: Some(AttachmentCall::Create), ..none() }, true, Api),
            ("being looked for", NodeVolume { call: Some(AttachmentCall::Read), ..none() }, true, Queue),
            ("made", NodeVolume::with_attachment(false, false), true, Attacher),
            ("attached", attached(), true, Publish),
            ("attached and listed", NodeVolume { listed: Listed::Yes, ..attached() }, true, Done),
            ("wanted again while it goes", NodeVolume::with_attachment(true, true), true, Queue),
            ("wanted again after its deletion", accepted(), true, Queue),
            ("nothing is left", none(), false, Done),
            ("not unmounted", attached(), false, Unmount),
            ("deletion sent", NodeVolume { call: Some(AttachmentCall::Delete), ..attached() }, false, Api),
            (
                "being looked at",
                NodeVolume { call: Some(AttachmentCall::Read), ..attached() },
                false,
                Unmount,
            ),
            ("deletion accepted", accepted(), false, Attacher),
            ("going", NodeVolume::with_attachment(true, true), false, Attacher),
        ];
        for (name, node_volume, wanted, expected) in cases {
            assert_eq!(Phase::of(&node_volume, wanted, false), expected, "{name}");
        }
        assert_eq!(Phase::of(&attached(), false, true), Unpublish, "being taken off the list");
    }
}
