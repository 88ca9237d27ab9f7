//! Timers: how long what is under way takes, in which phases, and how much of that was ours.
//!
//! In: where each operation stands at each look. Out: a [`Lap`] for each phase that ends, and at the end the whole. The
//! same is a trace, if the operation is sampled: a span for each phase. What was under way before is not measured, as its
//! beginning was not seen; that is for the owner to tell, who begins each timer.

use std::{collections::HashMap, hash::Hash, time::Duration};

use apiserver::tables::give_back_room;
use educe::Educe;
use telemetry::traces::{End, Finished, Step, TraceId, Traces};
use tokio::time::Instant;

/// A phase that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lap {
    /// Its name.
    pub phase: &'static str,
    /// How long it took.
    pub took: Duration,
    /// The trace that it is part of.
    pub trace: Option<TraceId>,
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended<T> {
    /// What is known of it.
    pub of: T,
    /// Its last phase.
    pub last: Lap,
    /// How long it took.
    pub whole: Duration,
    /// How long it was ours to act.
    pub ours: Duration,
}

/// One operation.
#[derive(Clone, Debug)]
struct Timer<T> {
    of: T,
    name: &'static str,
    steps: Vec<Step>,
    ours: Duration,
    looked_at: Instant,
    is_ours: bool,
    trace: Option<TraceId>,
}

impl<T> Timer<T> {
    fn look(&mut self, is_ours: bool, now: Instant) {
        if self.is_ours {
            self.ours += now.saturating_duration_since(self.looked_at);
        }
        (self.looked_at, self.is_ours) = (now, is_ours);
    }

    /// The present phase, as if it ended now.
    fn lap(&self, now: Instant) -> Option<Lap> {
        let Step { name: phase, began } = *self.steps.last()?;
        Some(Lap { phase, took: now.saturating_duration_since(began), trace: self.trace })
    }
}

/// The operations under way, by what they are about. Of each, `T` is known beside its times.
#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Timers<K, T> {
    timers: HashMap<K, Timer<T>>,
    /// Of what begins from now on.
    pub(crate) traces: Traces,
}

impl<K: Eq + Hash, T> Timers<K, T> {
    /// What is known of the operation under way.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        self.timers.get_mut(key).map(|timer| &mut timer.of)
    }

    /// An operation begins, with this phase.
    pub fn begin(
        &mut self,
        key: K,
        of: T,
        (name, phase): (&'static str, &'static str),
        is_ours: bool,
        since: Instant,
    ) {
        let (steps, trace) = (vec![Step { name: phase, began: since }], self.traces.sample());
        let timer = Timer { of, name, steps, ours: Duration::ZERO, looked_at: since, is_ours, trace };
        self.timers.insert(key, timer);
    }

    /// An operation stands in this phase, and from now on it is ours to act, or is not. Returns the phase that has ended
    /// thereby. What is tried again belongs to the phase that was reached, so none comes twice.
    pub fn look(&mut self, key: &K, phase: &'static str, is_ours: bool, now: Instant) -> Option<Lap> {
        let timer = self.timers.get_mut(key)?;
        timer.look(is_ours, now);
        if timer.steps.iter().any(|step| step.name == phase) {
            return None;
        }
        let lap = timer.lap(now);
        timer.steps.push(Step { name: phase, began: now });
        lap
    }

    /// An operation ends.
    pub fn end(
        &mut self,
        key: &K,
        end: End,
        now: Instant,
        attributes: impl FnOnce(&T) -> Vec<(&'static str, String)>,
    ) -> Option<Ended<T>> {
        let mut timer = self.take(key)?;
        timer.look(false, now);
        let last = timer.lap(now)?;
        let whole = now.saturating_duration_since(timer.steps.first()?.began);
        let Timer { of, name, steps, ours, trace, .. } = timer;
        if let Some(id) = trace {
            let attributes = attributes(&of);
            self.traces.end(Finished { id, name, steps, ended: now, end, attributes });
        }
        Some(Ended { of, last, whole, ours })
    }

    /// Forgets an operation that does not come to an end here.
    pub fn forget(&mut self, key: &K) {
        self.take(key);
    }

    fn take(&mut self, key: &K) -> Option<Timer<T>> {
        let timer = self.timers.remove(key)?;
        give_back_room(&mut self.timers);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use telemetry::traces::lengths;

    use super::*;
    use crate::metrics::Metrics;

    /// Phases that ended, and at the end the whole and what was ours of it, in seconds.
    fn laps(seen: &[(u64, &'static str, bool)]) -> Vec<(&'static str, u64)> {
        let start = Instant::now();
        let (mut timers, mut laps) = (Timers::default(), Vec::new());
        for (second, phase, is_ours) in seen {
            let now = start + Duration::from_secs(*second);
            if timers.get_mut(&"a").is_none() {
                timers.begin("a", (), ("attach volume", phase), *is_ours, now);
            }
            if *phase != "done" {
                let lap = timers.look(&"a", phase, *is_ours, now);
                laps.extend(lap.map(|lap| (lap.phase, lap.took.as_secs())));
            } else if let Some(ended) = timers.end(&"a", End::Done, now, |()| Vec::new()) {
                let last = (ended.last.phase, ended.last.took.as_secs());
                laps.extend([last, ("total", ended.whole.as_secs()), ("ours", ended.ours.as_secs())]);
            }
        }
        laps
    }

    #[test]
    fn phases_add_up_to_the_whole() {
        let attach = [
            (0, "queue", true),
            (1, "api", true),
            (3, "attacher", false),
            (3, "attacher", false),
            (7, "publish", true),
            (8, "done", true),
        ];
        let expected = [("queue", 1), ("api", 2), ("attacher", 4), ("publish", 1), ("total", 8), ("ours", 4)];
        assert_eq!(laps(&attach), expected);
    }

    #[test]
    fn what_is_tried_again_belongs_to_the_phase_that_was_reached() {
        let again = [
            (0, "queue", true),
            (0, "api", true),
            (1, "queue", true),
            (4, "api", true),
            (5, "attacher", false),
            (6, "done", true),
        ];
        assert_eq!(laps(&again), [("queue", 0), ("api", 5), ("attacher", 1), ("total", 6), ("ours", 5)]);
    }

    /// S-1, S-3: within a phase it may be ours to act, and then another's.
    #[test]
    fn ours_is_what_was_ours_whatever_the_phase() {
        let seen = [
            (0, "unmount", false),
            (60, "unpublish", true),
            (61, "api", true),
            (63, "unmount", true),
            (66, "unmount", false),
            (70, "attacher", false),
            (99, "done", true),
        ];
        assert_eq!(laps(&seen).last(), Some(&("ours", 1 + 2 + 3)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_one_trace_across_its_tries() {
        let metrics = Metrics::default();
        let (traces, mut finished) = Traces::new(1_000_000, &metrics).unwrap();
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut timers = Timers { traces, ..Timers::default() };
        timers.begin("a", 7, ("attach volume", "queue"), true, start);
        let laps: Vec<_> = [(1, "api"), (2, "queue"), (3, "api"), (5, "attacher")]
            .into_iter()
            .filter_map(|(at, phase)| timers.look(&"a", phase, true, second(at)))
            .collect();
        let ended = timers.end(&"a", End::Done, second(9), |of| vec![("of", of.to_string())]).unwrap();
        let sent = finished.try_recv().unwrap();
        assert_eq!((sent.end, &sent.attributes[..]), (End::Done, &[("of", "7".to_owned())][..]));
        assert!(laps.iter().chain([&ended.last]).all(|lap| lap.trace == Some(sent.id)), "{laps:?} {ended:?}");
        let whole: Vec<_> = lengths(&sent).into_iter().map(|(name, took)| (name, took.as_secs())).collect();
        assert_eq!(whole, [("queue", 1), ("api", 4), ("attacher", 4)]);
        assert_eq!(timers.end(&"a", End::Done, second(9), |_| Vec::new()), None);
        timers.begin("b", 1, ("attach volume", "queue"), true, start);
        timers.begin("c", 1, ("attach volume", "queue"), true, start);
        timers.forget(&"b");
        timers.forget(&"c");
        assert!(["b", "c"].iter().all(|key| timers.get_mut(key).is_none()));
        assert!(finished.try_recv().is_err(), "what is forgotten is no trace");
    }
}
