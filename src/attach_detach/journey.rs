//! Journey: how long an attach or a detach takes from the wish to its fulfilment, and in which phase. Pure.
//!
//! In: the pair each time it is judged. Out: the phases that ended since. What was under way when this process
//! started is not measured, because nobody saw it begin.

use std::time::Duration;

use tokio::time::Instant;

use super::actual_state::{Operation, Pair, PairCall};

/// Part of an attach or a detach. A label of the histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Attach: wanted, and nothing asked for yet, because another node holds the volume or after a failure.
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

    /// The phase of a pair that is wanted, or is not.
    #[must_use]
    pub fn of(pair: &Pair, wanted: bool, withdraws: bool) -> Self {
        let attachment = pair.attachment.as_deref();
        let going = pair.is_going();
        match (wanted, attachment) {
            (true, Some(_)) if going => Self::Queue,
            (true, Some(attachment)) if attachment.status.attached => {
                if pair.listed {
                    Self::Done
                } else {
                    Self::Publish
                }
            }
            (true, Some(_)) => Self::Attacher,
            (true, None) if pair.call == Some(PairCall::Create) => Self::Api,
            (true, None) => Self::Queue,
            (false, None) => Self::Done,
            (false, Some(_)) if going => Self::Attacher,
            (false, Some(_)) if pair.call == Some(PairCall::Delete) => Self::Api,
            (false, Some(_)) if withdraws => Self::Unpublish,
            (false, Some(_)) => Self::Unmount,
        }
    }
}

/// One under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Journey {
    operation: Operation,
    began: Instant,
    phase: Phase,
    phase_began: Instant,
    forced: bool,
}

/// What ended: of which operation, which phase, how long it took, and whether it was forced.
pub type Lap = (Operation, Phase, Duration, bool);

impl Journey {
    /// Whether it is one of this operation.
    #[must_use]
    pub fn is_of(&self, operation: Operation) -> bool {
        self.operation == operation
    }

    /// The journey after another look at its pair, and the phases that have ended.
    #[must_use]
    pub fn proceed(
        before: Option<Self>,
        operation: Operation,
        phase: Phase,
        forced: bool,
        now: Instant,
    ) -> (Option<Self>, Vec<Lap>) {
        let begun = before.filter(|journey| journey.operation == operation);
        let Some(journey) = begun else {
            let at_its_beginning =
                matches!(phase, Phase::Queue | Phase::Unmount | Phase::Unpublish | Phase::Api);
            let journey = Self { operation, began: now, phase, phase_began: now, forced };
            return (at_its_beginning.then_some(journey), Vec::new());
        };
        let forced = forced || journey.forced;
        // A phase that comes again, after a failure or a change of mind, belongs to the one reached.
        if phase <= journey.phase {
            return (Some(Self { forced, ..journey }), Vec::new());
        }
        let mut laps = vec![(operation, journey.phase, now - journey.phase_began, forced)];
        if phase == Phase::Done {
            laps.push((operation, phase, now - journey.began, forced));
            return (None, laps);
        }
        (Some(Self { phase, phase_began: now, forced, ..journey }), laps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laps(operation: Operation, seen: &[(u64, Phase)]) -> Vec<(&'static str, u64)> {
        let start = Instant::now();
        let (mut journey, mut all) = (None, Vec::new());
        for (second, phase) in seen {
            let now = start + Duration::from_secs(*second);
            let (next, laps) = Journey::proceed(journey, operation, *phase, false, now);
            all.extend(laps.into_iter().map(|(_, phase, took, _)| (phase.label(), took.as_secs())));
            journey = next;
        }
        all
    }

    #[test]
    fn phases_add_up_to_the_whole() {
        use Phase::{Api, Attacher, Done, Publish, Queue, Unmount, Unpublish};
        let attach = [(0, Queue), (1, Api), (3, Attacher), (3, Attacher), (7, Publish), (8, Done), (9, Done)];
        let expected = [("queue", 1), ("api", 2), ("attacher", 4), ("publish", 1), ("total", 8)];
        assert_eq!(laps(Operation::Attach, &attach), expected);
        let detach = [(0, Unmount), (5, Unpublish), (6, Api), (7, Attacher), (9, Done)];
        let expected = [("unmount", 5), ("unpublish", 1), ("api", 1), ("attacher", 2), ("total", 9)];
        assert_eq!(laps(Operation::Detach, &detach), expected);
        let again = [(0, Api), (1, Queue), (4, Api), (5, Attacher), (6, Done)];
        assert_eq!(laps(Operation::Attach, &again), [("api", 5), ("attacher", 1), ("total", 6)]);
        let inherited = [(0, Attacher), (5, Publish), (6, Done)];
        assert_eq!(laps(Operation::Attach, &inherited), [("publish", 1), ("total", 1)][..0]);
    }

    #[test]
    fn another_operation_begins_anew() {
        let start = Instant::now();
        let (attach, _) = Journey::proceed(None, Operation::Attach, Phase::Api, false, start);
        let later = start + Duration::from_secs(9);
        let (detach, laps) = Journey::proceed(attach, Operation::Detach, Phase::Unpublish, true, later);
        assert_eq!(laps, []);
        let (_, laps) = Journey::proceed(detach, Operation::Detach, Phase::Api, false, later);
        assert_eq!(laps, [(Operation::Detach, Phase::Unpublish, Duration::ZERO, true)]);
    }

    #[test]
    fn what_was_forced_once_stays_so() {
        let start = Instant::now();
        let forced_in = |seen: [(Phase, bool); 3]| {
            let (mut journey, mut last) = (None, Vec::new());
            for (phase, forced) in seen {
                (journey, last) = Journey::proceed(journey, Operation::Detach, phase, forced, start);
            }
            last.iter().all(|(.., forced)| *forced)
        };
        assert!(forced_in([(Phase::Unmount, false), (Phase::Unpublish, true), (Phase::Done, false)]));
        assert!(forced_in([(Phase::Unmount, false), (Phase::Unmount, true), (Phase::Done, false)]));
        assert!(!forced_in([(Phase::Unmount, false), (Phase::Unpublish, false), (Phase::Done, false)]));
    }

    #[test]
    fn the_phase_is_that_of_what_is_waited_for() {
        use Phase::{Api, Attacher, Done, Publish, Queue, Unmount, Unpublish};
        let (none, attached) = (Pair::default, || Pair::with_attachment(true, false));
        let accepted = || Pair { deletion_accepted: Some("1".into()), ..attached() };
        let cases = [
            ("not asked for", none(), true, Queue),
            ("being asked for", Pair { call: Some(PairCall::Create), ..none() }, true, Api),
            ("being looked for", Pair { call: Some(PairCall::Read), ..none() }, true, Queue),
            ("made", Pair::with_attachment(false, false), true, Attacher),
            ("attached", attached(), true, Publish),
            ("attached and listed", Pair { listed: true, ..attached() }, true, Done),
            ("wanted again while it goes", Pair::with_attachment(true, true), true, Queue),
            ("wanted again after its deletion", accepted(), true, Queue),
            ("nothing is left", none(), false, Done),
            ("not unmounted", attached(), false, Unmount),
            ("deletion sent", Pair { call: Some(PairCall::Delete), ..attached() }, false, Api),
            ("being looked at", Pair { call: Some(PairCall::Read), ..attached() }, false, Unmount),
            ("deletion accepted", accepted(), false, Attacher),
            ("going", Pair::with_attachment(true, true), false, Attacher),
        ];
        for (name, pair, wanted, expected) in cases {
            assert_eq!(Phase::of(&pair, wanted, false), expected, "{name}");
        }
        assert_eq!(Phase::of(&attached(), false, true), Unpublish, "being taken off the list");
    }
}
