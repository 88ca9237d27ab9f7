//! Keys of a protection controller: beside what every small controller has, what others do to the finalizers, and whether
//! one may be changed now.

use std::{collections::BTreeMap, hash::Hash};

use apiserver::{call::CallError, ids::Uid, tables::Objects};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call},
    finalizer::FinalizerStep,
    reasons::ProtectionReason,
    second_writer::{Protected, SecondWriter},
};
use crate::controller::{Controller, Plan, keys::Keys, report::ReportKey, undone::Undone};

/// Keys, second writers, and what others undo.
#[derive(Debug)]
pub(super) struct FinalizerKeys<K> {
    pub(super) keys: Keys<K, ProtectionReason>,
    pub(super) others: SecondWriter<K>,
    /// Of those whose finalizer was put on: how often others have taken it off again (S46).
    undone: BTreeMap<K, Undone>,
}

impl<K> Default for FinalizerKeys<K> {
    fn default() -> Self {
        Self { keys: Keys::default(), others: SecondWriter::default(), undone: BTreeMap::new() }
    }
}

impl<K: Hash + Protected + ReportKey> FinalizerKeys<K> {
    /// The object that has to be read before anything is written to it, which would hide who changed it (S14).
    pub(super) fn reads_first(&mut self, key: &K) -> Option<Uid> {
        if !self.others.writers.has_to_read(key) {
            return None;
        }
        let (_, uid) = self.others.writers.take_read(|target| target == key)?;
        self.keys.begins_to_read(key);
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
        match result {
            Ok(Answer::Owners(managers)) => {
                self.others.writers.learn(&key, &managers, now);
            }
            Ok(_) | Err(CallError::NotFound(_)) => {}
            Err(error) => {
                self.keys.pause(&key, &error, now, jitter);
                self.others.writers.not_read(key.clone(), uid);
            }
        }
        self.keys.ends(&key, now);
    }

    /// The finalizer is to be put on. Whether that has to wait, as others have taken it off at once (S46).
    pub(super) fn is_undone(&mut self, key: &K, now: Instant) -> bool {
        let Some(undone) = self.undone.get_mut(key) else { return false };
        undone.undone(now);
        let Some(at) = undone.pending(now) else { return false };
        self.keys.retries.wait_until(key, at);
        self.keys.stands(key, ProtectionReason::Undone(at));
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
        self.keys.retries.wait_until(key, until);
        self.keys.stands(key, reason);
        true
    }

    /// A patch is sent.
    pub(super) fn sends(&mut self, key: &K, step: FinalizerStep, now: Instant) {
        self.keys.begins(key);
        self.others.patched(key);
        if step == FinalizerStep::Add {
            self.undone.entry(key.clone()).or_default().sent(now);
        }
    }

    /// The object is gone.
    pub(super) fn gone(&mut self, key: &K) {
        self.undone.remove(key);
        self.keys.gone(key);
    }

    /// A plan with these requests, when so many others are under way.
    pub(super) fn plan<C>(&mut self, calls: Vec<Call>, under_way: usize, now: Instant) -> Plan<C>
    where
        C: Controller<Call = Call, Key = K, Reason = ProtectionReason, Measures = ()>,
    {
        self.others.writers.settle(now);
        let plan = self.keys.plan(calls, Vec::new(), under_way, now);
        let wake_at = plan.wake_at.into_iter().chain(self.others.writers.ends_at()).min();
        Plan { others: self.others.writers.take_news(), wake_at, ..plan }
    }

    /// A patch was answered.
    pub(super) fn patched<T>(&mut self, key: &K, result: &Result<T, CallError>, now: Instant, jitter: f64) {
        if result.as_ref().is_err_and(CallError::is_certain) {
            self.others.refused(key);
        }
        if let Some(undone) = self.undone.get_mut(key) {
            match result {
                Ok(_) => undone.landed(now, jitter),
                Err(_) => undone.withdrawn(now),
            }
        }
        if let Some(error) = self.keys.written(key, result, now, jitter) {
            self.keys.failed(key, ProtectionReason::Failed(error.to_string()));
        }
    }
}
