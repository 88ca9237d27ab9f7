//! The controller: it looks at one object after the other, and asks for patches and lists.
//!
//! In: protected objects and their users as they change. Out: patches; reads of who has put a finalizer on; and the live
//! lists that have to show that nothing uses an object. Of each list one is under way at a time. An object that comes to
//! wait meanwhile waits for the next one: this one was asked for before it was seen to be deleted.

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
use tokio::time::Instant;

use super::{
    Protected, UserList, Users,
    calls::{Answer, Call, ListOf},
    others::FinalizerWriters,
    reasons::ProtectionReason,
    step::{FinalizerStep, patch},
};
use crate::controller::{
    Controller, Identity, Plan,
    keys::{Keys, LOOKS},
    undone::Undone,
};

/// The controller.
#[derive(Debug)]
pub struct Protection<K: Protected> {
    objects: Arc<Objects>,
    pub(crate) keys: Keys<K, ProtectionReason>,
    pub(crate) others: FinalizerWriters<K>,
    /// Of those whose finalizer was put on: how often others have taken it off again (S46).
    undone: BTreeMap<K, Undone>,
    pub(crate) users: K::Users,
    /// Objects that wait for a list, or for the end of the one that is under way.
    to_list: BTreeMap<ListOf<K>, BTreeSet<(K, Uid)>>,
    /// Lists that are under way.
    listing: BTreeSet<ListOf<K>>,
    /// Objects that nothing uses, as a live list has just shown.
    unused: BTreeMap<K, Uid>,
    leads: bool,
}

impl<K: Protected> Protection<K> {
    /// The controller over the shared tables.
    #[must_use]
    pub fn new(objects: Arc<Objects>) -> Self {
        Self {
            objects,
            keys: Keys::default(),
            others: FinalizerWriters::default(),
            undone: BTreeMap::new(),
            users: K::Users::default(),
            to_list: BTreeMap::new(),
            listing: BTreeSet::new(),
            unused: BTreeMap::new(),
            leads: false,
        }
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
                // 2. Nothing holds up what takes something away (S14, E11).
                if self.is_held(key, now) {
                    return None;
                }
                // 3. A live list that was asked for after the deletion was seen shows none either.
                if let Some(list) = self.users.list_of(key).filter(|_| unused.as_ref() != Some(&meta.uid)) {
                    self.to_list.entry(list).or_default().insert((key.clone(), meta.uid.clone()));
                    return None;
                }
            }
        }
        self.keys.begins(key);
        self.others.patched(key);
        if step == FinalizerStep::Add {
            self.undone.entry(key.clone()).or_default().sent(now);
        }
        let request = patch(K::Object::path(key), meta, K::FINALIZER, step);
        Some(Call::Patch(key.clone(), step, request))
    }

    /// The object has to be read before anything is written to it, which would hide who changed it (S14).
    fn read_first(&mut self, key: &K) -> Option<Call<K>> {
        // What a list has shown would be old when the answer comes.
        self.unused.remove(key);
        let (key, uid) = self.others.writers.take_read(|target| target == key)?;
        self.keys.begins_to_read(&key);
        Some(Call::Owner(key, uid))
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

    /// The finalizer is to be taken off. Whether that has to wait: etcd was restored a short while ago (E11), or another
    /// controller is at work (S14).
    fn is_held(&mut self, key: &K, now: Instant) -> bool {
        let grace_ends = self.objects.restore_grace().left(now).map(|left| now + left);
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

    /// A patch was answered. What a list has shown meanwhile would be old after the pause that may follow.
    fn patched(&mut self, key: &K, result: &Result<Answer<K>, CallError>, now: Instant, jitter: f64) {
        self.unused.remove(key);
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

    /// Takes the answer to the question who wrote it. It is asked again until there is one.
    fn owner_read(
        &mut self,
        (key, uid): (K, Uid),
        result: Result<Answer<K>, CallError>,
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
            Ok(Answer::Object(_) | Answer::Owners(_)) => return,
            Err(error) => {
                for (key, _) in &waiting {
                    self.keys.pause(key, &error, now, jitter);
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
            if let Some(user) = ListOf::<K>::user(&shown, &object) {
                // The watch is about to tell of that user, and tells of its end.
                self.keys.retries.failed(&key, now, jitter);
                self.keys.stands(&key, ProtectionReason::InUse(user));
            } else if !self.keys.retries.waits(&key) {
                self.unused.insert(key.clone(), uid);
                self.keys.queue.push(key);
            }
        }
    }
}

impl<K: Protected> Controller for Protection<K> {
    const IDENTITY: Identity = K::IDENTITY;
    type Key = K;
    type Reason = ProtectionReason;
    type Call = Call<K>;
    type Answer = Answer<K>;
    type Measures = ();

    fn load(&mut self, now: Instant) {
        self.users.load(&self.objects);
        for (key, object) in K::Object::table(&self.objects).snapshot() {
            self.others.observed(&key, Some(object.metadata()), false, now);
        }
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            let mut keys = self.users.changed(&object, &self.objects);
            if let Some(key) = K::of(&object) {
                let known = self.objects.get::<K::Object>(&key);
                self.others.observed(&key, known.as_ref().map(|known| known.metadata()), self.leads, now);
                keys.insert(key);
            }
            for key in keys.into_iter().filter(|_| self.leads) {
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
            Call::Owner(key, uid) => self.owner_read((key, uid), result, now, jitter),
            Call::Users(list, waiting) => {
                self.keys.queue.at(now);
                self.listing.remove(&list);
                self.listed(waiting, result, now, jitter);
            }
        }
    }

    fn lead(&mut self, now: Instant) {
        self.leads = true;
        self.others.writers.lead(now);
        self.keys.queue.at(now);
        self.keys.queue.extend(K::Object::table(&self.objects).snapshot().into_keys());
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = Vec::new();
        for _ in 0..LOOKS {
            let Some(key) = self.keys.next(self.listing.len(), now) else { break };
            let call = if self.others.writers.has_to_read(&key) {
                self.read_first(&key)
            } else {
                self.look(&key, now)
            };
            calls.extend(call);
        }
        for (list, waiting) in std::mem::take(&mut self.to_list) {
            if self.listing.contains(&list) {
                self.to_list.insert(list, waiting);
            } else {
                self.listing.insert(list.clone());
                calls.push(Call::Users(list, waiting.into_iter().collect()));
            }
        }
        self.others.writers.settle(now);
        let plan = self.keys.plan(calls, Vec::new(), self.listing.len(), now);
        let wake_at = plan.wake_at.into_iter().chain(self.others.writers.ends_at()).min();
        Plan { others: self.others.writers.take_news(), wake_at, ..plan }
    }
}
