//! The two protection controllers: a claim stays while a pod uses it, a volume while it is bound (pv-binder §15.1, §15.2).
//!
//! In: claims, volumes and pods from the shared tables. Out: patches that put the protection finalizer on, or take it off
//! an object that is being deleted. Off by default: kube-controller-manager runs its own unless its `--controllers`
//! switches them off, and only one of both should. Each patch names UID and revision, so that two of them do no harm.
//!
//! That kube-controller-manager's runs as well is noticed where that shows ([`second_writer`]).
//!
//! [`claims`] and [`volumes`] are controllers of [`crate::controller`]; what they share is here.

mod calls;
pub mod claims;
pub mod reasons;
mod requests;
mod second_writer;
mod users;
pub mod volumes;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
};

use serde_json::json;
use tokio::time::Instant;

use crate::{
    controller::{Controller, Plan, queue::Queue, retry::RetryMap, undone::Undone},
    kube_api::{
        call::{CallError, Request, Verb},
        kinds::Meta,
        text::Text,
    },
    state::Objects,
};

use calls::Call;
use reasons::{ProtectionReason, Report};
pub use requests::{Requests, runner};
use second_writer::{Protected, SecondWriter};

/// Requests of one of the two under way at once: KCM works on one object after the other.
const CALLS: usize = 16;

/// Keys looked at in one plan, after which what has come in meanwhile goes first (L15).
const LOOKS: usize = 500;

/// What to do about the finalizer of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is as it should be.
    Nothing,
    /// Put it on. Admission does so when the object is made; this is for one that was made without.
    Add,
    /// Take it off, unless the object is in use.
    Remove,
}

impl Step {
    // KCM: pkg/util/slice and protectionutil, IsDeletionCandidate and NeedToAddFinalizer.
    fn of(meta: &Meta, finalizer: &str) -> Self {
        let has = meta.finalizers.iter().any(|known| known.as_str() == finalizer);
        match (meta.is_terminating(), has) {
            (true, true) => Self::Remove,
            (false, false) => Self::Add,
            (true, false) | (false, true) => Self::Nothing,
        }
    }
}

/// The patch that puts the finalizer on, or takes it off. It replaces the list as a whole, which the revision guards.
fn patch(path: String, meta: &Meta, finalizer: &str, step: Step) -> Request {
    let others = meta.finalizers.iter().map(Text::as_str).filter(|known| *known != finalizer);
    let added = (step == Step::Add).then_some(finalizer);
    let finalizers: Vec<&str> = others.chain(added).collect();
    Request {
        verb: Verb::Patch,
        path,
        body: Some(json!({ "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version.to_string(),
            "finalizers": finalizers,
        }})),
    }
}

/// Keys to look at, those that wait after a failure, and those about which a request is under way.
#[derive(Debug)]
struct Keys<K> {
    queue: Queue<K>,
    retries: RetryMap<K>,
    busy: BTreeSet<K>,
    /// Of those, the ones that changed meanwhile.
    again: BTreeSet<K>,
    others: SecondWriter<K>,
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
    fn stands(&mut self, key: &K, reason: ProtectionReason) {
        let (next, is_decision) = (self.retries.until(key), true);
        self.reports.push(Report { next, is_decision, ..Report::of(key.clone(), reason) });
    }

    /// The key changed: what made a request about it fail may be over.
    fn changed(&mut self, key: K, now: Instant) {
        self.queue.at(now);
        self.retries.changed(&key, now);
        self.queue.push(key);
    }

    /// The next key that is neither busy nor waiting, as long as there is room for requests.
    fn next(&mut self, under_way: usize, now: Instant) -> Option<K> {
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

    /// The finalizer is to be put on. Whether that has to wait, as others have taken it off at once (S46).
    fn is_undone(&mut self, key: &K, now: Instant) -> bool {
        let Some(undone) = self.undone.get_mut(key) else { return false };
        undone.undone(now);
        let Some(at) = undone.pending(now) else { return false };
        self.retries.wait_until(key, at);
        self.stands(key, ProtectionReason::Undone(at));
        true
    }

    /// The finalizer is to be taken off. Whether that has to wait: etcd was restored a short while ago (E11), or another
    /// controller is at work (S14).
    fn is_held(&mut self, key: &K, objects: &Objects, now: Instant) -> bool {
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
    fn sends(&mut self, key: &K, step: Step, now: Instant) {
        self.busy.insert(key.clone());
        self.others.patched(key);
        if step == Step::Add {
            self.undone.entry(key.clone()).or_default().sent(now);
        }
    }

    /// The object is gone.
    fn gone(&mut self, key: &K) {
        self.retries.clear(key);
        self.undone.remove(key);
        self.reports.push(Report::gone(key.clone()));
    }

    /// Nothing is left to do about the finalizer.
    fn settled(&mut self, key: &K) {
        self.retries.clear(key);
        self.stands(key, ProtectionReason::Settled);
    }

    /// A plan with these requests, when so many others are under way.
    fn plan<C>(&mut self, calls: Vec<Call>, under_way: usize, now: Instant) -> Plan<C>
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
    fn patched<T>(&mut self, key: &K, result: &Result<T, CallError>, now: Instant, jitter: f64) {
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
        if self.again.remove(key) {
            self.queue.at(now);
            self.queue.push(key.clone());
        }
    }

    /// When to look again although nothing happens.
    fn wake_at(&self, under_way: usize, now: Instant) -> Option<Instant> {
        let more = (!self.queue.is_empty() && under_way + self.busy.len() < CALLS).then_some(now);
        self.retries.next_due().into_iter().chain(more).chain(self.others.writers.ends_at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "kubernetes.io/pvc-protection";

    #[test]
    fn s34_s35_the_finalizer_goes_on_what_lives_and_off_what_goes_and_no_other_is_touched() {
        // finalizers, whether it is being deleted, what to do, the list that is written
        type Case = (&'static [&'static str], bool, Step, &'static [&'static str]);
        let cases: [Case; 5] = [
            (&["a", OURS], false, Step::Nothing, &["a"]),
            (&["a", OURS, "b"], true, Step::Remove, &["a", "b"]),
            (&[OURS], true, Step::Remove, &[]),
            (&["a"], false, Step::Add, &["a", OURS]),
            (&["a"], true, Step::Nothing, &["a"]),
        ];
        for (finalizers, is_going, step, written) in cases {
            let meta = Meta {
                uid: "u".into(),
                resource_version: crate::kube_api::ids::ResourceVersion(7),
                finalizers: finalizers.iter().copied().collect(),
                deletion_timestamp: is_going.then(Box::default),
                ..Meta::default()
            };
            assert_eq!(Step::of(&meta, OURS), step, "{finalizers:?}");
            let request = patch("/p".to_owned(), &meta, OURS, step);
            let body = json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": written}});
            assert_eq!(request.body, Some(body));
        }
    }
}
