//! What the daemon makes of one look at the fence after another. Pure.
//!
//! In: looks, each on a fresh connection. Out: a [`VigilState`]. It waits until the fence is proven; from then on a fence that
//! is gone is lost, until it is proven anew. That nothing can be told for a minute counts as gone, too. Beside, it says what is
//! not begun: behind a fence that this process has seen open, and while a switch asks for it.

use std::time::Duration;

use educe::Educe;
use tokio::time::Instant;

use super::{
    probe::{LONGEST_HEARING, LONGEST_LOOK},
    state::{FenceLook, FenceProof, FenceState, LONGEST_REQUEST, Proven},
};

/// An API server that cannot be asked for so long tells nothing of the fence any more.
const LONGEST_DOUBT: Duration = Duration::from_mins(1);

/// Between two looks, once the fence is proven.
pub const WATCHING: Duration = Duration::from_secs(5);

/// How long a look may take for loops that nobody runs: the next look at the fence waits for it.
pub const UNNEEDED_LOOK: Duration = Duration::from_secs(5);

/// By then a daemon has heard a word: one look may be under way, loops that nobody runs are looked for, some seconds pass, and the
/// next look begins with the policies.
pub const HEARD_WITHIN: Duration = Duration::from_secs(
    LONGEST_LOOK.as_secs() + UNNEEDED_LOOK.as_secs() + WATCHING.as_secs() + LONGEST_HEARING.as_secs(),
);

/// A switch that has not said for so long that nothing new is to be begun is gone.
pub const DRAIN_LASTS: Duration = Duration::from_mins(1);

/// What a replica waits for that has never seen the fence proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceWait {
    /// That the fence is raised: there is nothing of it, so nobody is kept from ruling.
    Switch,
    /// Before that, that nothing refuses the probe or a write of mooring's any more.
    Right,
    /// That the fence is proven, or that it is the one of this version.
    Proof,
}

/// How the fence stands to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Educe)]
#[educe(Default(expression = Self::Waiting("it has not been looked at".to_owned(), FenceWait::Proof)))]
pub enum VigilState {
    /// It has never been proven: why not.
    Waiting(String, FenceWait),
    /// It is proven.
    Enforced(Proven),
    /// It was, and is not any more: why.
    Lost(String),
}

/// The looks of one process.
#[derive(Clone, Debug, Educe)]
#[educe(Default)]
pub struct Vigil {
    proof: FenceProof,
    standing: VigilState,
    in_doubt_since: Option<Instant>,
    /// Whether it was seen open since it was proven last.
    was_open: bool,
    /// Until when requests may be carried out that were admitted while it was open.
    settles: Option<Instant>,
    /// What asks for nothing new to be begun, and when it was seen to change. A first word may be left over from a switch that
    /// is gone.
    #[educe(Default = (Some(String::new()), None))]
    drain: (Option<String>, Option<Instant>),
}

impl Vigil {
    /// Takes a look that began then, and has ended. Returns how it stands, and whether that has changed.
    pub fn take(&mut self, look: &FenceLook, began: Instant, now: Instant) -> (&VigilState, bool) {
        let proven = self.proof.note(look.is_enforced(), look, now);
        let was_proven = !matches!(self.standing, VigilState::Waiting(..));
        let was_enforced = matches!(self.standing, VigilState::Enforced(_));
        let is_untold = look.wrong().is_some_and(FenceState::is_untold);
        self.was_open |= look.wrong().is_some() && !is_untold;
        let doubt = is_untold.then(|| *self.in_doubt_since.get_or_insert(began));
        self.in_doubt_since = doubt;
        let standing = match look.wrong() {
            Some(_) if was_proven && doubt.is_some_and(|since| now < since + LONGEST_DOUBT) => None,
            Some(wrong) if was_proven => Some(VigilState::Lost(wrong.why().to_owned())),
            Some(wrong) => {
                let waits_for = match look.refused {
                    None if look.is_absent() => FenceWait::Switch,
                    _ if look.is_down() => FenceWait::Right,
                    _ => FenceWait::Proof,
                };
                Some(VigilState::Waiting(
                    look.refused.as_deref().unwrap_or(wrong.why()).to_owned(),
                    waits_for,
                ))
            }
            None if proven != Proven::No => Some(VigilState::Enforced(proven)),
            None if was_proven => None,
            None => Some(VigilState::Waiting(
                "it is not proven for each API server yet".to_owned(),
                FenceWait::Proof,
            )),
        };
        let changed = standing.filter(|standing| *standing != self.standing);
        let is_news = changed.is_some();
        if let Some(changed) = changed {
            self.standing = changed;
        }
        if !was_enforced && matches!(self.standing, VigilState::Enforced(_)) {
            let was_open = std::mem::take(&mut self.was_open) || look.is_new();
            self.settles = was_open.then(|| now + LONGEST_REQUEST.unsigned_abs()).or(self.settles);
        }
        (&self.standing, is_news)
    }

    /// Hears what a policy asks for, if one does.
    pub fn hear(&mut self, word: Option<&str>, now: Instant) {
        let (known, changed) = &mut self.drain;
        if known.as_deref() == word {
            return;
        }
        let is_left_over = *known == Some(String::new());
        *changed = word.is_some().then_some(now).filter(|_| !is_left_over);
        *known = word.map(str::to_owned);
    }

    /// How it stands.
    pub fn standing(&self) -> &VigilState {
        &self.standing
    }

    /// Until when requests may be carried out that were admitted before the fence.
    pub fn settles(&self) -> Option<Instant> {
        self.settles
    }

    /// Whether a switch asks for nothing new to be begun.
    pub fn drains(&self, now: Instant) -> bool {
        self.drain.1.is_some_and(|changed| now < changed + DRAIN_LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a server that answers at this second, when each lease is renewed.
    fn look(second: u64, server: &str, leases: &[&str], state: FenceState) -> FenceLook {
        let leases = leases.iter().map(|name| ((*name).to_owned(), second.to_string())).collect();
        FenceLook {
            states: vec![FenceState::Enforced, state],
            drain: None,
            server: Some(server.to_owned()),
            leases: Some(leases),
            raised: None,
            refused: None,
        }
    }

    #[test]
    fn s14_a_fence_is_lost_when_it_is_gone_or_in_doubt_for_a_minute() {
        let (gone, unknown) = (|| FenceState::Gone("g".to_owned()), || FenceState::Unknown("u".to_owned()));
        let (waits, lost) = (
            |why: &str| VigilState::Waiting(why.into(), FenceWait::Proof),
            |why: &str| VigilState::Lost(why.into()),
        );
        let enforced = || VigilState::Enforced(Proven::ByEachServer);
        // Second, what is seen, how it stands then.
        let course = [
            (0, unknown(), waits("u")),
            (1, gone(), waits("g")),
            (2, FenceState::Enforced, enforced()),
            (4, unknown(), enforced()),
            (60, unknown(), enforced()),
            (61, FenceState::Enforced, enforced()),
            (62, unknown(), enforced()),
            (122, unknown(), lost("u")),
            (123, FenceState::Enforced, enforced()),
            (124, gone(), lost("g")),
            (125, unknown(), lost("g")),
            (126, FenceState::Enforced, enforced()),
        ];
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        for (second, seen, expected) in course {
            let now = start + Duration::from_secs(second);
            let (standing, _) = vigil.take(&look(second, "a", &["x"], seen), now, now);
            assert_eq!(*standing, expected, "{second}");
        }
        // That another cannot be told hides nothing.
        let now = start + Duration::from_secs(127);
        let hides = FenceLook { states: vec![unknown(), gone()], ..look(127, "a", &["x"], gone()) };
        assert_eq!(*vigil.take(&hides, now, now).0, lost("g"));
    }

    #[test]
    fn s1_who_may_not_write_waits_for_its_rights_and_not_for_a_fence() {
        let (mut vigil, now) = (Vigil::default(), Instant::now());
        let absent =
            || FenceLook { states: vec![FenceState::Absent; 2], ..look(0, "a", &["x"], FenceState::Absent) };
        let refused = FenceLook { refused: Some("no patch".to_owned()), ..absent() };
        let mut standing = |look| vigil.take(&look, now, now).0.clone();
        assert_eq!(standing(refused), VigilState::Waiting("no patch".into(), FenceWait::Right));
        assert!(matches!(standing(absent()), VigilState::Waiting(_, FenceWait::Switch)));
        let unprobed = FenceState::Unprobed("a webhook".to_owned());
        let states = vec![unprobed.clone(); 2];
        let waits = VigilState::Waiting("a webhook".into(), FenceWait::Right);
        assert_eq!(
            standing(FenceLook { states, ..absent() }),
            waits,
            "the one that rules is not kept from it"
        );
        let states = vec![FenceState::NotEnforced, unprobed];
        assert!(matches!(
            standing(FenceLook { states, ..absent() }),
            VigilState::Waiting(_, FenceWait::Proof)
        ));
    }

    #[test]
    fn s1_requests_settle_behind_a_fence_that_was_seen_open() {
        let gone = || FenceState::Gone("g".to_owned());
        let (enforced, unknown) = (FenceState::Enforced, FenceState::Unknown("u".to_owned()));
        let minute = |second: u64| Some(second + 60);
        // What is seen second by second, and until when requests settle then.
        let courses = [
            vec![(enforced.clone(), None), (enforced.clone(), None)],
            vec![(unknown, None), (enforced.clone(), None)],
            vec![(FenceState::Absent, None), (FenceState::NotEnforced, None), (enforced.clone(), minute(2))],
            vec![(enforced.clone(), None), (gone(), None), (enforced, minute(2))],
        ];
        for course in courses {
            let (mut vigil, start) = (Vigil::default(), Instant::now());
            for (second, (seen, expected)) in (0..).zip(course) {
                let now = start + Duration::from_secs(second);
                vigil.take(&look(second, "a", &["x"], seen), now, now);
                let settles = vigil.settles().map(|until| until.duration_since(start).as_secs());
                assert_eq!(settles, expected, "{second}");
            }
        }
    }

    #[test]
    fn s1_requests_settle_behind_a_fence_that_was_raised_within_the_minute_before_its_proof() {
        let (now, minute) = (Instant::now(), Some(Duration::from_mins(1)));
        let lease = |renewed: &str| Some([("x".to_owned(), renewed.to_owned())].into());
        let raised = "2026-01-01T00:00:00Z".parse().ok();
        // The newest object, the lease of the server, and for how long requests settle.
        let cases = [
            (raised, lease("2026-01-01T00:00:20.123456Z"), minute),
            (raised, lease("2026-01-01T00:01:09.999999Z"), minute),
            (raised, lease("2026-01-01T00:01:10.000000Z"), None),
            (raised, lease("2025-12-31T23:59:55.000000Z"), minute),
            (raised, lease("soon"), None),
            (raised, None, None),
            (None, lease("2026-01-01T00:00:20.123456Z"), None),
        ];
        for (raised, leases, expected) in cases {
            let seen = FenceLook { leases, raised, ..look(0, "a", &[], FenceState::Enforced) };
            let mut vigil = Vigil::default();
            // Without leases, time alone proves it.
            for seconds in [0, 120] {
                vigil.take(&seen, now, now + Duration::from_secs(seconds));
            }
            assert!(matches!(vigil.standing(), VigilState::Enforced(_)), "{seen:?}");
            assert_eq!(vigil.settles().map(|until| until - now), expected, "{seen:?}");
        }
    }

    #[test]
    fn s1_a_switch_is_believed_while_it_says_so_anew() {
        let course = [
            (0, Some("left over"), false),
            (5, Some("left over"), false),
            (10, Some("1"), true),
            (15, Some("2"), true),
            (74, Some("2"), true),
            (75, Some("2"), false),
            (80, None, false),
            (85, Some("3"), true),
            (86, None, false),
        ];
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        for (second, drain, expected) in course {
            let now = start + Duration::from_secs(second);
            vigil.hear(drain, now);
            assert_eq!(vigil.drains(now), expected, "{second}");
        }
    }

    #[test]
    fn s14_one_server_of_two_proves_nothing() {
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        let course = [("a", false), ("a", false), ("b", false), ("a", true)];
        for (second, (server, is_proven)) in (0..).zip(course) {
            let look = look(second, server, &["x", "y"], FenceState::Enforced);
            let now = start + Duration::from_secs(second);
            let (standing, _) = vigil.take(&look, now, now);
            assert_eq!(*standing == VigilState::Enforced(Proven::ByEachServer), is_proven, "{second}");
        }
    }
}
