//! Whether the thread that watches and decides goes on.
//!
//! In: beats from that thread. Out: when the last one was, for liveness; and whether there was none for so long that
//! the elector, which has a thread of its own and would renew the lease for ever, gives it back. Where all threads stood
//! still, as in a process that was stopped, the elector has had no turns either, and concludes nothing.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{lease::Timing, progress::Progress};

/// Longest time between two beats.
const SLOWEST: Duration = Duration::from_secs(1);
/// So many of the elector's turns without a beat are its own evidence that time went by.
const SILENT_TURNS: u32 = 2;

/// Beats for as long as the runtime goes on: some times between two turns of the elector, if there is one.
pub async fn beat(pulse: Progress, timing: Option<Timing>) {
    let pause = timing.map_or(SLOWEST, |timing| (timing.retry_period / 2).min(SLOWEST));
    loop {
        pulse.note();
        sleep(pause).await;
    }
}

/// How the elector listens.
#[derive(Debug)]
pub(super) struct Listener {
    pulse: Progress,
    heard: Instant,
    silent_turns: u32,
}

impl Listener {
    pub(super) fn new(pulse: Progress) -> Self {
        Self { heard: pulse.last(), pulse, silent_turns: 0 }
    }

    /// Takes a turn. Returns since how long there is no beat, if that is too long: some seconds less than the lease lasts,
    /// so that another leads no later than if the process had died.
    pub(super) fn silence(&mut self, timing: &Timing, now: Instant) -> Option<Duration> {
        let last = self.pulse.last();
        self.silent_turns = if last == self.heard { self.silent_turns + 1 } else { 0 };
        self.heard = last;
        let silence = now.saturating_duration_since(last);
        let is_long = self.silent_turns >= SILENT_TURNS && silence >= timing.renew_deadline.mul_f64(0.6);
        is_long.then_some(silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    #[tokio::test(start_paused = true)]
    async fn l14_silence_is_what_turns_have_shown_and_a_process_that_was_stopped_took_none() {
        // seconds after the last beat in which turns are taken, the first turn that finds it silent
        let cases: [(&[u64], Option<u64>); 5] = [
            (&[1, 3, 5, 7, 9], Some(7)),
            (&[2, 4, 6, 8], Some(6)),
            (&[1, 2, 3, 4, 5], None),
            (&[9], None),
            (&[9, 11], None),
        ];
        for (turns, expected) in cases {
            let pulse = Progress::default();
            let mut listener = Listener::new(pulse.clone());
            listener.heard -= Duration::from_secs(1);
            let found = turns
                .iter()
                .find(|turn| listener.silence(&TIMING, pulse.last() + Duration::from_secs(**turn)).is_some());
            assert_eq!(found.copied(), expected, "{turns:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn l14_a_thread_that_goes_on_is_never_silent() {
        let pulse = Progress::default();
        let _beating = tokio::spawn(beat(pulse.clone(), Some(TIMING)));
        let mut listener = Listener::new(pulse);
        for _ in 0..100 {
            sleep(TIMING.retry_period).await;
            assert_eq!(listener.silence(&TIMING, Instant::now()), None);
        }
    }
}
