//! The controller: it looks at one object after the other, and asks for patches and lists.
//!
//! In: protected objects and their users as they change. Out: patches, and the live lists that have to show that
//! nothing uses an object. Of each list one is under way at a time. An object that comes to wait meanwhile waits for the
//! next one: this one was asked for before it was seen to be deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    ids::Uid,
    kinds::{Narrow, ObjectRef},
    tables::{Objects, Stored as _},
};
use educe::Educe;
use tokio::time::Instant;

use super::{
    Protected, Users,
    calls::{Answer, Call, ListOf},
    reasons::ProtectionReason,
    step::{FinalizerStep, patch},
};
use crate::controller::{Controller, Identity, Plan, keys::Keys, undone::Undone};

/// Objects that wait for one list, and since when the first of them does.
type WaitingForList<K> = (Instant, BTreeSet<(K, Uid)>);

/// The controller.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Protection<K: Protected> {
    objects: Arc<Objects>,
    pub(crate) keys: Keys<K, ProtectionReason>,
    /// Of those whose finalizer was put on: how often others have taken it off again (S46).
    undone: BTreeMap<K, Undone>,
    pub(crate) users: K::Users,
    /// Objects that wait for a list, or for the end of the one that is under way.
    to_list: BTreeMap<ListOf<K>, WaitingForList<K>>,
    /// Lists that are under way.
    listing: BTreeSet<ListOf<K>>,
    /// Objects that nothing uses, as a live list has just shown.
    unused: BTreeMap<K, Uid>,
}

impl<K: Protected> Protection<K> {
    /// The controller over the shared tables.
    pub fn new(objects: Arc<Objects>) -> Self {
        Self { objects, ..Self::default() }
    }

    /// One turn of a key, in the order that is safety.
    fn look(&mut self, key: &K, now: Instant) -> Option<Call<K>> {
        // What a list has shown counts for one look.
        let unused = self.unused.remove(key);
        let Some(object) = self.objects.get::<K::Object>(key) else {
            self.undone.remove(key);
            self.keys.gone(key);
            return None;
        };
        let meta = object.metadata();
        let step = FinalizerStep::of(meta, K::FINALIZER);
        match step {
            FinalizerStep::Nothing => {
                self.keys.settled(key, ProtectionReason::Settled);
                return None;
            }
            _ if self.objects.unreadable::<K::Object>(key).is_some() => {
                self.keys.stands(key, ProtectionReason::Unreadable);
                return None;
            }
            FinalizerStep::Add if self.is_undone(key, now) => return None,
            FinalizerStep::Add => {}
            FinalizerStep::Remove => {
                // 1. The tables show no use.
                if let Some(user) = self.users.user(&object, &self.objects) {
                    self.keys.stands(key, ProtectionReason::InUse(user));
                    return None;
                }
                // 2. No restore of etcd holds it up (E11).
                if self.is_held(key, now) {
                    return None;
                }
                // 3. A live list that was asked for after the deletion was seen shows none either.
                if let Some(list) = self.users.list_of(key).filter(|_| unused.as_ref() != Some(&meta.uid)) {
                    let (_, waiting) = self.to_list.entry(list).or_insert_with(|| (now, BTreeSet::new()));
                    waiting.insert((key.clone(), meta.uid.clone()));
                    return None;
                }
            }
        }
        self.keys.begins(key);
        if step == FinalizerStep::Add {
            self.undone.entry(key.clone()).or_default().sent(now);
        }
        let request = patch(K::Object::path(key), meta, K::FINALIZER, step);
        Some(Call::Patch(key.clone(), step, request))
    }

    /// What is listed next: no list keeps another waiting for ever (L15).
    fn next_list(&self) -> Option<ListOf<K>> {
        let waiting = self.to_list.iter().filter(|(list, _)| !self.listing.contains(*list));
        waiting.min_by_key(|(_, (since, _))| *since).map(|(list, _)| list.clone())
    }

    /// The finalizer is to be put on. Whether that has to wait, as others have taken it off at once (S46).
    fn is_undone(&mut self, key: &K, now: Instant) -> bool {
        let Some(undone) = self.undone.get_mut(key) else { return false };
        undone.undone(now);
        let Some(at) = undone.pending(now) else { return false };
        self.keys.retries.wait_until(key, at);
        self.keys.stands(key, ProtectionReason::Undone(at));
        true
    }

    /// The finalizer is to be taken off. Whether that has to wait, as etcd was restored a short while ago (E11).
    fn is_held(&mut self, key: &K, now: Instant) -> bool {
        let Some(left) = self.objects.restore_grace().left(now) else { return false };
        let until = now + left;
        self.keys.retries.wait_until(key, until);
        self.keys.stands(key, ProtectionReason::RestoreGrace(until));
        true
    }

    /// A patch was answered. What a list has shown meanwhile would be old after the pause that may follow.
    fn patched(&mut self, key: &K, result: &Result<Answer<K>, CallError>, now: Instant, jitter: f64) {
        self.unused.remove(key);
        if let Some(undone) = self.undone.get_mut(key) {
            match result {
                Ok(_) => undone.landed(now, jitter),
                Err(_) => undone.withdrawn(now),
            }
        }
        if let Some(error) = self.keys.answered(key, result, false, now, jitter) {
            self.keys.failed(key, ProtectionReason::Failed(error.to_string()));
        }
    }

    /// Takes a live list, for the objects that it was asked for.
    fn listed(
        &mut self,
        waiting: Vec<(K, Uid)>,
        result: Result<Answer<K>, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        let shown = match result {
            Ok(Answer::Users(shown)) => shown,
            Ok(Answer::Object(_)) => return,
            Err(error) => {
                for (key, _) in &waiting {
                    self.keys.pause(key, &error, true, now, jitter);
                    self.keys.failed(key, ProtectionReason::Failed(error.to_string()));
                }
                return;
            }
        };
        for (key, uid) in waiting {
            let Some(object) = self.objects.get::<K::Object>(&key) else { continue };
            // One made anew under the name may have a user that began after the list did: it asks for its own.
            if object.metadata().uid != uid {
                continue;
            }
            if let Some(user) = K::Users::shown_user(&shown, &object) {
                // The watch is about to tell of that user, and tells of its end.
                self.keys.retries.failed(&key, now, jitter);
                self.keys.stands(&key, ProtectionReason::InUse(user));
            } else if !self.keys.retries.waits(&key) {
                self.unused.insert(key.clone(), uid);
                self.keys.push(key, now);
            }
        }
    }
}

impl<K: Protected> Controller for Protection<K> {
    const IDENTITY: Identity = Identity { name: K::NAME, component: K::NAME, queues: K::QUEUES, role: None };
    type Key = K;
    type Reason = ProtectionReason;
    type Call = Call<K>;
    type Answer = Answer<K>;
    type Measures = ();

    fn load(&mut self, _: Instant) {
        self.users.load(&self.objects);
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            let mut keys = self.users.changed(&object, &self.objects);
            keys.extend(K::Object::key_in(&object).cloned());
            for key in keys {
                self.keys.changed(key, now);
            }
        }
    }

    fn answered(&mut self, call: Call<K>, result: Result<Answer<K>, CallError>, now: Instant, jitter: f64) {
        match call {
            Call::Patch(key, step, _) => {
                self.patched(&key, &result, now, jitter);
                if let (FinalizerStep::Add, Ok(Answer::Object(object))) = (step, result) {
                    self.objects.observe_response(object);
                }
            }
            Call::Users(list, waiting) => {
                self.listing.remove(&list);
                self.listed(waiting, result, now, jitter);
            }
        }
    }

    fn lead(&mut self, now: Instant) {
        self.keys.lead(now);
        // All others are as they are to be.
        K::Object::table(&self.objects).for_each(|object| {
            if FinalizerStep::of(object.metadata(), K::FINALIZER) != FinalizerStep::Nothing {
                self.keys.queue.push(object.key());
            }
        });
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = Vec::new();
        while let Some(key) = self.keys.next(self.listing.len(), now) {
            calls.extend(self.look(&key, now));
        }
        // What lists have shown is used first, as it gets old.
        while self.keys.has_room(self.listing.len())
            && let Some(list) = self.next_list()
            && let Some((_, waiting)) = self.to_list.remove(&list)
        {
            self.listing.insert(list.clone());
            calls.push(Call::Users(list, waiting.into_iter().collect()));
        }
        self.keys.plan(calls, self.listing.len(), now)
    }
}
