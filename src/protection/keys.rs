//! Keys of a protection controller: which to look at, which wait, and about which a request is under way.
//!
//! In: keys that changed, looks, and answers. Out: the next key, whether its finalizer may be changed now, and reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
};

use apiserver::{call::CallError, ids::Uid, tables::Objects};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call},
    finalizer::FinalizerStep,
    reasons::{ProtectionReason, Report},
    second_writer::{Protected, SecondWriter},
};
use crate::controller::{Controller, Plan, queue::Queue, retry::RetryMap, undone::Undone};

/// Requests of one of the two under way at once: KCM works on one object after the other.
pub(super) const CALLS: usize = 16;

/// Keys looked at in one plan, after which what has come in meanwhile goes first (L15).
pub(super) const LOOKS: usize = 500;

/// Keys to look at, those that wait after a failure, and those about which a request is under way.
#[derive(Debug)]
pub(super) struct Keys<K> {
    pub(super) queue: Queue<K>,
    pub(super) retries: RetryMap<K>,
    busy: BTreeSet<K>,
    /// Of those, the ones that changed meanwhile.
    again: BTreeSet<K>,
    pub(super) others: SecondWriter<K>,
    /// Of those whose finalizer was put on: how often others have taken it off again (S46).
    undone: BTreeMap<K, Undone>,
    reports: Vec<Report<K>>,
}

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self {
            queue: Queue::default(),
            retries: RetryMap::default(),
            busy: BTreeSet::new(),
            again: BTreeSet::new(),
            others: SecondWriter::default(),
            undone: BTreeMap::new(),
            reports: Vec::new(),
        }
    }
}

impl<K: Hash + Protected> Keys<K> {
    /// Reports why the finalizer of a key is as it is, and when it is looked at again.
    pub(super) fn stands(&mut self, key: &K, reason: ProtectionReason) {
        let (next, is_decision) = (self.retries.until(key), !matches!(reason, ProtectionReason::Failed(_)));
        self.reports.push(Report { next, is_decision, ..Report::of(key.clone(), reason) });
    }

    /// The key changed: what made a request about it fail may be over.
    pub(super) fn changed(&mut self, key: K, now: Instant) {
        self.queue.at(now);
        self.retries.changed(&key, now);
        self.queue.push(key);
    }

    /// The next key that is neither busy nor waiting, as long as there is room for requests.
    pub(super) fn next(&mut self, under_way: usize, now: Instant) -> Option<K> {
        self.queue.at(now);
        for key in self.retries.take_due(now) {
            self.queue.retry(key);
        }
        while under_way + self.busy.len() < CALLS
            && let Some(key) = self.queue.pop()
        {
            if self.busy.contains(&key) {
                self.again.insert(key);
            } else if !self.retries.waits(&key) {
                return Some(key);
            }
        }
        None
    }

    /// The object that has to be read before anything is written to it, which would hide who changed it (S14).
    pub(super) fn reads_first(&mut self, key: &K) -> Option<Uid> {
        if !self.others.writers.has_to_read(key) {
            return None;
        }
        let (_, uid) = self.others.writers.take_read(|target| target == key)?;
        self.busy.insert(key.clone());
        self.again.insert(key.clone());
        Some(uid)
    }

    /// Takes the answer to the question who wrote it. It is asked again until there is one.
    pub(super) fn owner_read(
        &mut self,
        (key, uid): (K, Uid),
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        self.busy.remove(&key);
        match result {
            Ok(Answer::Owners(managers)) => {
                self.others.writers.learn(&key, &managers, now);
            }
            Ok(_) | Err(CallError::NotFound(_)) => {}
            Err(error) => {
                if let CallError::Throttled { after, .. } = error {
                    self.retries.wait_until(&key, now + after);
                } else {
                    self.retries.failed(&key, now, jitter);
                }
                self.others.writers.not_read(key.clone(), uid);
            }
        }
        self.look_again(key, now);
    }

    /// Looks at a key again that was to be looked at while a request about it was under way.
    fn look_again(&mut self, key: K, now: Instant) {
        if self.again.remove(&key) {
            self.queue.at(now);
            self.queue.push(key);
        }
    }

    /// The finalizer is to be put on. Whether that has to wait, as others have taken it off at once (S46).
    pub(super) fn is_undone(&mut self, key: &K, now: Instant) -> bool {
        let Some(undone) = self.undone.get_mut(key) else { return false };
        undone.undone(now);
        let Some(at) = undone.pending(now) else { return false };
        self.retries.wait_until(key, at);
        self.stands(key, ProtectionReason::Undone(at));
        true
    }

    /// The finalizer is to be taken off. Whether that has to wait: etcd was restored a short while ago (E11), or another
    /// controller is at work (S14).
    pub(super) fn is_held(&mut self, key: &K, objects: &Objects, now: Instant) -> bool {
        let grace_ends = objects.restore_grace().left(now).map(|left| now + left);
        let signal = self.others.writers.signal().filter(|by| by.until > now);
        let (until, reason) = match (signal, grace_ends) {
            (Some(by), _) => (by.until, ProtectionReason::ForeignWriter(by.act(), by.until)),
            (None, Some(end)) => (end, ProtectionReason::RestoreGrace(end)),
            (None, None) => return false,
        };
        self.retries.wait_until(key, until);
        self.stands(key, reason);
        true
    }

    /// A patch is sent.
    pub(super) fn sends(&mut self, key: &K, step: FinalizerStep, now: Instant) {
        self.busy.insert(key.clone());
        self.others.patched(key);
        if step == FinalizerStep::Add {
            self.undone.entry(key.clone()).or_default().sent(now);
        }
    }

    /// The object is gone.
    pub(super) fn gone(&mut self, key: &K) {
        self.retries.clear(key);
        self.undone.remove(key);
        self.reports.push(Report::gone(key.clone()));
    }

    /// Nothing is left to do about the finalizer.
    pub(super) fn settled(&mut self, key: &K) {
        self.retries.clear(key);
        self.stands(key, ProtectionReason::Settled);
    }

    /// A plan with these requests, when so many others are under way.
    pub(super) fn plan<C>(&mut self, calls: Vec<Call>, under_way: usize, now: Instant) -> Plan<C>
    where
        C: Controller<Call = Call, Key = K, Reason = ProtectionReason, Measures = ()>,
    {
        self.others.writers.settle(now);
        Plan {
            calls,
            events: Vec::new(),
            reports: std::mem::take(&mut self.reports),
            others: self.others.writers.take_news(),
            counts: vec![self.queue.take_counts()],
            measures: (),
            wake_at: self.wake_at(under_way, now),
        }
    }

    /// A patch was answered. Of what it changed the watch tells.
    pub(super) fn patched<T>(&mut self, key: &K, result: &Result<T, CallError>, now: Instant, jitter: f64) {
        self.busy.remove(key);
        if result.as_ref().is_err_and(CallError::is_certain) {
            self.others.refused(key);
        }
        if let Some(undone) = self.undone.get_mut(key) {
            match result {
                Ok(_) => undone.landed(now, jitter),
                Err(_) => undone.withdrawn(now),
            }
        }
        match result {
            Ok(_) | Err(CallError::NotFound(_)) => self.retries.clear(key),
            Err(CallError::Throttled { after, .. }) => self.retries.wait_until(key, now + *after),
            Err(error) => {
                self.retries.failed(key, now, jitter);
                if !matches!(error, CallError::Conflict(_) | CallError::NotLeader) {
                    self.stands(key, ProtectionReason::Failed(error.to_string()));
                }
            }
        }
        self.look_again(key.clone(), now);
    }

    /// When to look again although nothing happens.
    fn wake_at(&self, under_way: usize, now: Instant) -> Option<Instant> {
        let more = (!self.queue.is_empty() && under_way + self.busy.len() < CALLS).then_some(now);
        self.retries.next_due().into_iter().chain(more).chain(self.others.writers.ends_at()).min()
    }
}
