//! When the whole client pauses, as the API server is too busy for all its requests (S40).
//!
//! In: answers, with the object asked for. Out: until when nothing is sent. One object whose requests are answered with
//! 429 pauses itself; several in a row, with no other answer in between, are the server speaking for
//! itself. Else each of ten thousand waiting keys would send a request of its own to be refused, and all of them come
//! back at the same moment.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::{CallError, OF_ALL};

/// So many objects in a row are not one webhook's doing.
const SIGNS: u32 = 3;

/// The longest pause of a client: what waits then are requests of every kind.
const LONGEST: Duration = Duration::from_secs(10);

/// Part of the asked time by which a pause is longer at the most, so that not all clients come back at once.
const JITTER: f64 = 0.25;

/// The answer to a write that is not sent as a pause lasts until then. `jitter` is from 0 to 1.
pub(super) fn refusal(until: Instant, jitter: f64) -> CallError {
    let left = until.saturating_duration_since(Instant::now());
    let after = left.mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0));
    CallError::Throttled { message: OF_ALL.to_owned(), after }
}

#[derive(Debug, Default)]
struct State {
    signs: u32,
    /// The object that was last asked to wait.
    last: String,
    until: Option<Instant>,
}

/// The pause of all callers of a client.
#[derive(Debug, Default)]
pub(super) struct Pause(Mutex<State>);

impl Pause {
    /// The server asks to wait for so long. `jitter` is from 0 to 1.
    pub(super) fn throttled(&self, object: &str, asked: Duration, now: Instant, jitter: f64) {
        let mut state = self.0.lock();
        if state.last != object {
            state.signs = state.signs.saturating_add(1);
            object.clone_into(&mut state.last);
        }
        if state.signs >= SIGNS {
            let pause = asked.min(LONGEST).mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0));
            state.until = state.until.max(Some(now + pause));
        }
    }

    /// It answered otherwise.
    pub(super) fn answered(&self) {
        let mut state = self.0.lock();
        state.signs = 0;
        state.last.clear();
    }

    /// Until when nothing is sent.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.0.lock().until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_only_several_objects_in_a_row_pause_the_client_and_never_for_long() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        // The objects answered with 429, `-` for another answer; how long they ask for; the pause.
        let rows = [
            ("ab", 1, None),
            ("aaaaaaaa", 1, None),
            ("ab-cd-ef", 1, None),
            ("abc", 1, Some(second)),
            ("ababa", 1, Some(second)),
            ("abc-", 1, Some(second)),
            ("abc", 60, Some(LONGEST)),
        ];
        for (answers, seconds, expected) in rows {
            let pause = Pause::default();
            for answer in answers.chars() {
                match answer {
                    '-' => pause.answered(),
                    object => pause.throttled(&object.to_string(), second * seconds, now, 0.0),
                }
            }
            assert_eq!(pause.until(now), expected.map(|pause| now + pause), "{answers}");
            assert_eq!(pause.until(now + LONGEST), None, "{answers}");
        }
    }

    #[test]
    fn s40_clients_come_back_one_after_another_and_a_shorter_pause_ends_none() {
        let now = Instant::now();
        let pause = Pause::default();
        for object in ["a", "b", "c"] {
            pause.throttled(object, Duration::from_secs(4), now, 1.0);
        }
        assert_eq!(pause.until(now), Some(now + Duration::from_secs(5)));
        pause.throttled("d", Duration::from_secs(1), now, 0.0);
        assert_eq!(pause.until(now), Some(now + Duration::from_secs(5)));
    }
}
