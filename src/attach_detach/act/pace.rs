//! Pace: how long the API server takes to answer us, and what follows for the next patch of a node. Pure.
//!
//! In: how long each request took that was answered. Out: the window in which the changes of one node are
//! gathered. A status patch rewrites the whole Node and goes to everyone who watches it, so each one saved is
//! worth a moment, and the more so the busier the server is. A server that answers at once is worth none.

use std::time::Duration;

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
    #[must_use]
    pub fn window(self) -> Duration {
        (self.0 * EVERY).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
