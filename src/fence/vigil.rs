//! What the daemon makes of one look at the fence after another. Pure.
//!
//! In: looks, each on a fresh connection. Out: a [`VigilState`]. It waits until the fence is proven; from then on a fence that
//! is gone is lost, until it is proven anew. That nothing can be told for a minute counts as gone, too.

use std::time::Duration;

use tokio::time::Instant;

use super::state::{FenceLook, FenceProof, FenceState, Proven};

/// An API server that cannot be asked for so long tells nothing of the fence any more.
const LONGEST_DOUBT: Duration = Duration::from_mins(1);

/// How the fence stands to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VigilState {
    /// It has never been proven: why not.
    Waiting(String),
    /// It is proven.
    Enforced(Proven),
    /// It was, and is not any more: why.
    Lost(String),
}

impl Default for VigilState {
    fn default() -> Self {
        Self::Waiting("it has not been looked at".to_owned())
    }
}

/// The looks of one process.
#[derive(Clone, Debug, Default)]
pub struct Vigil {
    proof: FenceProof,
    standing: VigilState,
    in_doubt_since: Option<Instant>,
}

impl Vigil {
    /// Takes a look. Returns how it stands, and whether that has changed.
    pub fn take(&mut self, look: &FenceLook, now: Instant) -> (&VigilState, bool) {
        let proven = self.proof.note(look.is_enforced(), look, now);
        let was_proven = !matches!(self.standing, VigilState::Waiting(_));
        let is_unknown = matches!(look.wrong(), Some(FenceState::Unknown(_)));
        let doubt = is_unknown.then(|| *self.in_doubt_since.get_or_insert(now));
        self.in_doubt_since = doubt;
        let standing = match look.wrong() {
            Some(FenceState::Unknown(_))
                if was_proven && doubt.is_some_and(|since| now < since + LONGEST_DOUBT) =>
            {
                None
            }
            Some(wrong) if was_proven => Some(VigilState::Lost(wrong.why().to_owned())),
            Some(wrong) => Some(VigilState::Waiting(wrong.why().to_owned())),
            None if proven != Proven::No => Some(VigilState::Enforced(proven)),
            None if was_proven => None,
            None => Some(VigilState::Waiting("it is not proven for each API server yet".to_owned())),
        };
        let changed = standing.filter(|standing| *standing != self.standing);
        let is_news = changed.is_some();
        if let Some(changed) = changed {
            self.standing = changed;
        }
        (&self.standing, is_news)
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
            server: Some(server.to_owned()),
            leases: Some(leases),
        }
    }

    #[test]
    fn s14_a_fence_is_lost_when_it_is_gone_or_in_doubt_for_a_minute() {
        let (gone, unknown) = (|| FenceState::Gone("g".to_owned()), || FenceState::Unknown("u".to_owned()));
        let (waits, lost) =
            (|why: &str| VigilState::Waiting(why.into()), |why: &str| VigilState::Lost(why.into()));
        let enforced = || VigilState::Enforced(Proven::ByEachServer);
        // Second, what is seen, how it stands then.
        let course = [
            (0, unknown(), waits("u")),
            (1, gone(), waits("g")),
            (2, FenceState::Enforced, enforced()),
            (3, FenceState::Leaving, enforced()),
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
            let (standing, _) =
                vigil.take(&look(second, "a", &["x"], seen), start + Duration::from_secs(second));
            assert_eq!(*standing, expected, "{second}");
        }
    }

    #[test]
    fn s14_one_server_of_two_proves_nothing() {
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        let course = [("a", false), ("a", false), ("b", false), ("a", true)];
        for (second, (server, is_proven)) in (0..).zip(course) {
            let look = look(second, server, &["x", "y"], FenceState::Enforced);
            let (standing, _) = vigil.take(&look, start + Duration::from_secs(second));
            assert_eq!(*standing == VigilState::Enforced(Proven::ByEachServer), is_proven, "{second}");
        }
    }
}
