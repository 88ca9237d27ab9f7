//! Keys of a small controller, one whose turn of a key is one look: which to look at, which wait, and about which a
//! request is under way.
//!
//! In: keys that changed, looks, and answers. Out: the next key to look at, and a plan with what was reported of each.

use std::{collections::BTreeSet, hash::Hash};

use apiserver::call::CallError;
use educe::Educe;
use tokio::time::Instant;

use super::{
    Controller, Plan,
    queue::Queue,
    report::{Reason, Report, ReportKey, events::EventUpdate},
    retry::RetryMap,
};

/// Requests of one small controller under way at once: KCM works on one object after the other.
pub const CALLS: usize = 16;

/// Keys looked at in one plan, after which what has come in meanwhile goes first (L15).
const LOOKS: usize = 500;

/// Failures in a row after which a conflict is told: what the next try mends is no news.
const PATIENCE: u32 = 3;

/// Keys to look at, those that wait after a failure, and those about which a request is under way.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Keys<K, R> {
    /// To look at.
    pub queue: Queue<K>,
    /// Those that wait.
    pub retries: RetryMap<K>,
    busy: BTreeSet<K>,
    /// Of those, the ones to look at once more when the answer is there.
    again: BTreeSet<K>,
    /// Those of which it was last reported that they wait for something.
    unsettled: BTreeSet<K>,
    reports: Vec<Report<K, R>>,
    /// What users get to read with the next plan.
    pub events: Vec<EventUpdate<K>>,
    /// Whether this process leads: a standby has nothing to look at.
    leads: bool,
    /// How many were looked at since the last plan.
    looks: usize,
}

impl<K: ReportKey + Hash, R: Reason> Keys<K, R> {
    /// From now on there are keys to look at.
    pub fn lead(&mut self, now: Instant) {
        self.leads = true;
        self.queue.at(now);
    }

    /// The key changed: what made a request about it fail may be over.
    pub fn changed(&mut self, key: K, now: Instant) {
        self.retries.changed(&key, now);
        self.push(key, now);
    }

    /// The key is to be looked at.
    pub fn push(&mut self, key: K, now: Instant) {
        if self.leads {
            self.queue.at(now);
            self.queue.push(key);
        }
    }

    /// The next key of this plan that is neither busy nor waiting, as long as there is room for requests: so many others are
    /// under way, about no key.
    pub fn next(&mut self, under_way: usize, now: Instant) -> Option<K> {
        self.queue.at(now);
        for key in self.retries.take_due(now) {
            self.queue.retry(key);
        }
        while self.has_room(under_way)
            && self.looks < LOOKS
            && let Some(key) = self.queue.pop()
        {
            if self.busy.contains(&key) {
                self.again.insert(key);
            } else if !self.retries.waits(&key) {
                self.looks += 1;
                return Some(key);
            }
        }
        None
    }

    /// Whether there is room for another request, when so many others are under way, about no key.
    pub fn has_room(&self, under_way: usize) -> bool {
        under_way + self.busy.len() < CALLS
    }

    /// A request about the key is sent.
    pub fn begins(&mut self, key: &K) {
        self.busy.insert(key.clone());
    }

    /// The same of a request after which the key is looked at again, whatever the answer.
    pub fn begins_to_read(&mut self, key: &K) {
        self.begins(key);
        self.again.insert(key.clone());
    }

    /// A request about the key is answered.
    pub fn ends(&mut self, key: &K, now: Instant) {
        self.busy.remove(key);
        if self.again.remove(key) {
            self.push(key.clone(), now);
        }
    }

    /// A request about the key failed: it waits, longer each time, or as long as the server asks for. That nobody answers a read says
    /// nothing about the key (L16).
    pub fn pause(&mut self, key: &K, error: &CallError, is_read: bool, now: Instant, jitter: f64) {
        // Nothing was tried: it is decided anew when this process may write.
        if let CallError::NotLeader = error {
            self.push(key.clone(), now);
        }
        self.retries.failed_by(key, error, is_read, now, jitter);
    }

    /// A read of the key, or a write to it, was answered; of what it changed the watch tells. Returns the error if it is to be
    /// reported: not one that another look settles.
    pub fn answered<'a, T>(
        &mut self,
        key: &K,
        result: &'a Result<T, CallError>,
        is_read: bool,
        now: Instant,
        jitter: f64,
    ) -> Option<&'a CallError> {
        let failure = match result {
            Ok(_) => {
                self.retries.clear(key);
                None
            }
            // The watch is about to tell, which may take a while: another look before that would send the same.
            Err(CallError::NotFound(_)) => {
                self.retries.failed(key, now, jitter);
                None
            }
            Err(error) => {
                self.pause(key, error, is_read, now, jitter);
                let is_told = match error {
                    CallError::NotLeader => false,
                    CallError::Throttled { .. } => !error.is_of_all(),
                    CallError::Conflict(_) => self.retries.failures(key) >= PATIENCE,
                    _ => true,
                };
                is_told.then_some(error)
            }
        };
        self.ends(key, now);
        failure
    }

    /// Reports where a key stands by a decision, and when it is looked at again.
    pub fn stands(&mut self, key: &K, reason: R) {
        self.report(key, reason, true);
    }

    /// Reports that a request about a key failed.
    pub fn failed(&mut self, key: &K, reason: R) {
        self.report(key, reason, false);
    }

    fn report(&mut self, key: &K, reason: R, is_decision: bool) {
        if reason.is_settled() {
            self.unsettled.remove(key);
        } else {
            self.unsettled.insert(key.clone());
        }
        let next = self.retries.until(key);
        self.reports.push(Report { next, is_decision, ..Report::of(key.clone(), reason) });
    }

    /// Nothing is left to do about the key, which is so reported.
    pub fn settled(&mut self, key: &K, reason: R) {
        self.retries.clear(key);
        self.stands(key, reason);
    }

    /// Whether it was reported that the key waits for something, and not since that it does no longer.
    pub(crate) fn is_unsettled(&self, key: &K) -> bool {
        self.unsettled.contains(key)
    }

    /// The object is gone.
    pub fn gone(&mut self, key: &K) {
        self.unsettled.remove(key);
        self.retries.clear(key);
        self.reports.push(Report::gone(key.clone()));
    }

    /// A plan with these requests, when so many others are under way.
    pub fn plan<C: Controller<Key = K, Reason = R, Measures = ()>>(
        &mut self,
        calls: Vec<C::Call>,
        under_way: usize,
        now: Instant,
    ) -> Plan<C> {
        self.looks = 0;
        let more = (!self.queue.is_empty() && self.has_room(under_way)).then_some(now);
        Plan {
            calls,
            events: std::mem::take(&mut self.events),
            reports: std::mem::take(&mut self.reports),
            others: None,
            counts: vec![self.queue.take_counts()],
            measures: (),
            wake_at: self.retries.next_due().into_iter().chain(more).min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ephemeral::reasons::EphemeralReason;
    use apiserver::{
        backoff::{retry_pause, silence_pause},
        ids::PodKey,
    };

    #[test]
    fn after_what_was_not_tried_a_key_is_looked_at_again_and_after_a_failure_it_pauses() {
        let now = Instant::now();
        let busy = |message: &str| {
            Err(CallError::Throttled { message: message.to_owned(), after: Duration::from_secs(1) })
        };
        // the answer, whether the key comes again at once, whether the answer is told
        let cases = [
            (Ok(()), false, false),
            (Err(CallError::NotLeader), true, false),
            (Err(CallError::Unknown("cut".to_owned())), false, true),
            (Err(CallError::NotFound("gone".to_owned())), false, false),
            (busy("a webhook is busy"), false, true),
            (busy("it is too busy for all requests, nothing was sent"), false, false),
        ];
        for (answer, comes, is_told) in cases {
            let mut keys: Keys<PodKey, EphemeralReason> = Keys::default();
            let key = PodKey::new("ns", "p");
            keys.lead(now);
            keys.begins(&key);
            assert_eq!(keys.answered(&key, &answer, false, now, 0.5).is_some(), is_told, "{answer:?}");
            assert_eq!(keys.next(0, now), comes.then_some(key), "{answer:?}");
        }
    }

    #[test]
    fn s48_conflicts_are_told_when_there_are_more_in_a_row_than_the_next_try_mends() {
        let (mut keys, key) = (Keys::<PodKey, EphemeralReason>::default(), PodKey::new("ns", "p"));
        let conflict: Result<(), _> = Err(CallError::Conflict("modified".to_owned()));
        let told = [(); 3].map(|()| keys.answered(&key, &conflict, false, Instant::now(), 0.5).is_some());
        assert_eq!(told, [false, false, true]);
    }

    /// After an outage of the API server work resumes within seconds.
    #[test]
    fn l16_a_key_waits_no_longer_for_silence_however_often_it_met_it() {
        let (now, silent) = (Instant::now(), || CallError::Unknown("cut".to_owned()));
        let unsent = || CallError::NotSent("no 100 Continue".to_owned());
        let refused = || CallError::Refused { code: 403, message: "no".to_owned() };
        // whether it was a read, the error, the pause after the twentieth in a row
        let cases = [
            (true, silent(), silence_pause(20, 0.0)),
            (true, unsent(), silence_pause(20, 0.0)),
            (true, refused(), retry_pause(20, 0.0)),
            (false, silent(), retry_pause(20, 0.0)),
            (false, unsent(), silence_pause(20, 0.0)),
        ];
        for (is_read, error, pause) in cases {
            let mut keys: Keys<PodKey, EphemeralReason> = Keys::default();
            let key = PodKey::new("ns", "p");
            for _ in 0..20 {
                if is_read {
                    keys.pause(&key, &error, true, now, 0.0);
                } else {
                    keys.answered::<()>(&key, &Err(error.clone()), false, now, 0.0);
                }
            }
            assert_eq!(keys.retries.until(&key), Some(now + pause), "{is_read} {error}");
        }
    }
}
