//! Pairs what mooring would have written with what the ruler did. Pure.
//!
//! In: wishes with the revision up to which mooring had seen the cluster, and acts with theirs. Out: for each act, who was
//! first, and for each wish that the ruler does not fulfil, that it waits. First is who decided on the older revision: a wish
//! that was made before any watch had told of the act's revision. A wish that mooring gives up before the ruler acts is moot.

use std::{collections::BTreeMap, time::Duration};

use apiserver::ids::{ResourceVersion, VolumeName};
use tokio::time::Instant;

use super::mutation::Mutation;

/// How long a wish is held before the controller is asked anew whether it still has it.
pub(super) const HOLD: Duration = Duration::from_secs(2);
/// The same at most, for one that waits for long: the controller may read live each time.
const LONGEST_HOLD: Duration = Duration::from_mins(1);
/// A wish that the controller has not had again for so long after it was released is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);
/// A wait of so long is told: twice the time between two looks of kube-controller-manager's binder.
pub(super) const TOLD_AFTER: Duration = Duration::from_secs(30);

/// Who was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// mooring, by so much.
    Mooring(Duration),
    /// The ruler; by so much, if mooring decided later all the same.
    Ruler(Option<Duration>),
    /// It waited before the observation began.
    NotJudged,
}

/// What mooring wants, and the ruler has not done.
#[derive(Clone, Debug)]
struct OpenWish {
    first: Instant,
    revision: ResourceVersion,
    volume: Option<VolumeName>,
    released: Option<Instant>,
    /// It waited before the observation began.
    is_old: bool,
    is_told: bool,
}

/// All open wishes.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    open: BTreeMap<Mutation, OpenWish>,
    /// Wishes that were given up before the ruler acted.
    pub moot: u64,
}

impl Pairing {
    /// mooring wants this, or wants it again. A wish that it had until now keeps its time. Returns whether it is a new one.
    pub(super) fn wish(
        &mut self,
        wish: &Mutation,
        revision: ResourceVersion,
        made: Instant,
        is_old: bool,
    ) -> bool {
        let is_new = !self.open.contains_key(&wish.key());
        let open = self.open.entry(wish.key()).or_insert_with(|| OpenWish {
            first: made,
            revision,
            volume: wish.volume.clone(),
            released: None,
            is_old,
            is_told: false,
        });
        open.volume.clone_from(&wish.volume);
        open.released = None;
        is_new
    }

    /// For how long to hold a wish. Whether one that is not told yet still waits, is asked often.
    pub(super) fn hold(&self, mutation: &Mutation, now: Instant) -> Duration {
        let age = self.open.get(&mutation.key()).map(|open| now.saturating_duration_since(open.first));
        age.filter(|age| *age > TOLD_AFTER).map_or(HOLD, |age| age.min(LONGEST_HOLD))
    }

    /// The controller decides anew about it.
    pub(super) fn released(&mut self, mutation: &Mutation, now: Instant) {
        if let Some(open) = self.open.get_mut(&mutation.key()) {
            open.released = Some(now);
        }
    }

    /// The ruler has done it at this revision, of which the watch told at this time. Returns who was first, and the volume that
    /// mooring would have chosen, if there was a choice; `None` if mooring has not wanted it so far.
    pub(super) fn act(
        &mut self,
        act: &Mutation,
        revision: ResourceVersion,
        at: Instant,
    ) -> Option<(First, Option<VolumeName>)> {
        let is_wanted = |open: &OpenWish| open.released.is_none_or(|released| at < released + GIVEN_UP_AFTER);
        if !self.open.get(&act.key()).is_some_and(is_wanted) {
            return None;
        }
        let wish = self.open.remove(&act.key())?;
        let first = if wish.is_old {
            First::NotJudged
        } else if wish.revision < revision {
            First::Mooring(at.saturating_duration_since(wish.first))
        } else {
            First::Ruler(Some(wish.first.saturating_duration_since(at)))
        };
        Some((first, wish.volume))
    }

    /// Forgets what was given up before that time, as far as the acts are known until then. Returns what the ruler has not
    /// done for long, each once, with the time since when.
    pub(super) fn due(&mut self, now: Instant, known_until: Instant) -> Vec<(Mutation, Instant)> {
        let before = self.open.len();
        self.open
            .retain(|_, open| open.released.is_none_or(|released| known_until < released + GIVEN_UP_AFTER));
        self.moot += u64::try_from(before - self.open.len()).unwrap_or_default();
        let mut late = Vec::new();
        for (mutation, open) in &mut self.open {
            let is_late = open.first + TOLD_AFTER <= now && open.released.is_none();
            if is_late && !open.is_old && !open.is_told {
                open.is_told = true;
                late.push((mutation.clone(), open.first));
            }
        }
        late
    }

    /// How many wishes waited before the observation began, and still do.
    pub(super) fn old(&self) -> usize {
        self.open.values().filter(|open| open.is_old).count()
    }
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::ObjectRef;

    use super::{super::mutation::MutationKind, *};

    fn attach() -> Mutation {
        Mutation::new(MutationKind::Attach, ObjectRef::Attachment("csi-1".into()), &"".into(), "")
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn first_is_who_decided_on_the_older_revision() {
        let start = Instant::now();
        // revision and second of the wish, whether it was there at the start, revision and second of the act; who is first
        let cases = [
            (10, 1, false, 11, 3, First::Mooring(2 * SECOND)),
            (11, 1, false, 11, 3, First::Ruler(Some(Duration::ZERO))),
            (12, 4, false, 11, 3, First::Ruler(Some(SECOND))),
            (10, 1, true, 11, 3, First::NotJudged),
        ];
        for (seen, made, is_old, revision, at, expected) in cases {
            let mut pairing = Pairing::default();
            pairing.wish(&attach(), ResourceVersion(seen), start + made * SECOND, is_old);
            let pair = pairing.act(&attach(), ResourceVersion(revision), start + at * SECOND);
            assert_eq!(pair, Some((expected, None)), "{seen} {made} {revision} {at}");
            let again = pairing.act(&attach(), ResourceVersion(20), start + 9 * SECOND);
            assert_eq!(again, None);
        }
    }

    #[test]
    fn what_waits_for_long_is_asked_seldom() {
        let start = Instant::now();
        let mut pairing = Pairing::default();
        assert_eq!(pairing.hold(&attach(), start), HOLD);
        pairing.wish(&attach(), ResourceVersion(10), start, false);
        for (age, hold) in [(0, 2), (30, 2), (32, 32), (64, 60), (3600, 60)] {
            let held = pairing.hold(&attach(), start + age * SECOND);
            assert_eq!(held, hold * SECOND, "{age}");
        }
    }

    #[test]
    fn a_wish_that_is_had_again_at_once_is_the_same_and_one_that_is_not_is_moot() {
        let start = Instant::now();
        let mut pairing = Pairing::default();
        pairing.wish(&attach(), ResourceVersion(10), start, false);
        for second in 1..=TOLD_AFTER.as_secs() {
            let now = start + Duration::from_secs(second);
            pairing.released(&attach(), now);
            pairing.wish(&attach(), ResourceVersion(10 + second), now, false);
            let late = pairing.due(now, now);
            assert_eq!(late.len(), usize::from(second == TOLD_AFTER.as_secs()), "{second}");
        }
        let end = start + TOLD_AFTER;
        assert_eq!(pairing.due(end + SECOND, end + SECOND), [], "it is told once");
        pairing.released(&attach(), end);
        let act = |pairing: &mut Pairing, at| pairing.act(&attach(), ResourceVersion(99), at);
        assert_eq!(act(&mut pairing, end + 2 * SECOND), None, "it was given up");
        assert_eq!(
            (pairing.due(end + 2 * SECOND, end), pairing.moot),
            (vec![], 0),
            "an act may come to light"
        );
        assert_eq!((pairing.due(end + 2 * SECOND, end + SECOND), pairing.moot), (vec![], 1));
    }
}
