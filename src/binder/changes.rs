//! Whom a change concerns.
//!
//! In: an object that changed, as the tables show it now. Out: indexes brought up to it, and the keys to
//! look at again: few, found through the indexes, however large the cluster is.

use std::{cmp::Reverse, mem, time::Duration};

use apiserver::{
    backoff::retry_pause,
    ids::{ClaimKey, ClassName, PodKey, VolumeName},
    kinds::{ClaimPhase, ClaimRef, ObjectRef},
};
use tokio::time::Instant;

use super::{
    annotations::HOST_PATH_PLUGIN,
    calls::{Shown, Target},
    controller::Planner,
    matching::predicate::was_bound,
};

/// What was refused so long ago is tried first for a volume that comes: longer than the pauses in which the other is tried again.
const LONG_REFUSED: Duration = Duration::from_mins(1);

impl Planner {
    /// Takes in every object there is.
    pub fn load(&mut self, now: Instant) {
        self.state.load(now);
        self.unreadable_claims = self.state.objects.claims.unreadable_count();
        for key in self.state.objects.pods.snapshot().into_keys() {
            self.pod_changed(&key, now);
        }
    }

    /// This process leads from now on: each claim and volume is looked at in turn, claims whose bind has begun first (L12), then
    /// those that keep a pod from being scheduled, then all that are not bound. As each claim looks for a volume, none is
    /// offered to claims.
    pub fn lead(&mut self, now: Instant) {
        self.queue.open();
        for (key, claim) in self.state.objects.claims.snapshot() {
            let is_bound = claim.status.phase == ClaimPhase::Bound;
            // One that is Lost has ended.
            let has_begun = claim.status.phase != ClaimPhase::Lost
                && (!claim.spec.volume_name.is_empty() || self.state.is_held(&claim));
            let is_wanted = self.state.pods.of(&key).next().is_some();
            if !is_bound && has_begun {
                self.queue.add_urgent(Target::Claim(key), now);
            } else if is_wanted && !is_bound {
                self.queue.add(Target::Claim(key), now);
            } else {
                self.queue.add_slowly(Target::Claim(key), is_bound, now);
            }
        }
        for name in self.state.objects.volumes.snapshot().into_keys() {
            self.queue.add_slowly(Target::Volume(name), false, now);
        }
    }

    /// Notes that an object changed, and whom that concerns.
    pub fn changed(&mut self, object: &ObjectRef, now: Instant) {
        self.table_changed(object, now);
        match object {
            ObjectRef::Volume(name) => {
                self.state.unprove_claims_of(name);
                let volume = self.state.objects.volumes.get(name);
                let reference =
                    volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref().map(ClaimRef::key));
                // It may be the one whose reservation was refused, or do in its place: for one that was not tried of late, if
                // there is one, so that one that is always refused does not keep it from the others.
                let free = volume.filter(|_| self.state.volumes.is_free(name));
                let seeking = free.and_then(|volume| {
                    let candidate = |least: Option<Duration>| {
                        let current = |key: &ClaimKey| {
                            let target = Target::Claim(key.clone());
                            let is_busy = self.state.in_flight.busy.contains(&target);
                            let has_waited = |least| self.retries.has_waited(&target, least, now);
                            let is_tried = !is_busy && least.is_none_or(has_waited);
                            if is_tried { self.state.objects.claims.get(key) } else { None }
                        };
                        let (_, Reverse((_, key))) = self.seeking.candidate(&volume, &current, None)?;
                        Some(key.clone())
                    };
                    let pauses = [Some(LONG_REFUSED), Some(retry_pause(1, 0.0)), None];
                    pauses.into_iter().find_map(candidate)
                });
                // Those that were refused it take another if it is not to be had; else the one that is next tries it.
                let until =
                    |key: &ClaimKey| Some((self.retries.until(&Target::Claim(key.clone()))?, key.clone()));
                let mut refused: Vec<_> = self.seeking.trying(name).filter_map(until).collect();
                if self.state.volumes.is_free(name) {
                    refused.sort();
                    refused.truncate(1);
                }
                let seeking: Vec<ClaimKey> =
                    seeking.into_iter().chain(refused.into_iter().map(|(_, key)| key)).collect();
                self.queue.extend(seeking.iter().cloned().map(Target::Claim), now);
                let claims = self.state.claims.naming(name).cloned();
                let claims: Vec<ClaimKey> = claims.chain(reference).chain(seeking).collect();
                self.try_again(claims.into_iter().map(Target::Claim), now);
                self.try_again([Target::Volume(name.clone())], now);
            }
            ObjectRef::Claim(key) => {
                let volumes: Vec<VolumeName> = self.state.volumes.referring_to(key).cloned().collect();
                self.try_again(volumes.into_iter().map(Target::Volume), now);
                self.try_again([Target::Claim(key.clone())], now);
            }
            // A class may name another provisioner than the one that a claim was handed to, whose driver was there.
            ObjectRef::Driver(name) if self.state.objects.drivers.get(name).is_none() => {
                for class in self.state.objects.classes.snapshot().into_keys() {
                    self.wake_class(&class, now);
                }
            }
            _ => {}
        }
    }

    /// Brings the indexes up to what the tables show of an object, and queues the keys that this concerns.
    pub(super) fn table_changed(&mut self, object: &ObjectRef, now: Instant) {
        match object {
            ObjectRef::Claim(key) => self.claim_changed(key, now),
            ObjectRef::Volume(name) => self.volume_changed(name, now),
            ObjectRef::Pod(key) => self.pod_changed(key, now),
            ObjectRef::Class(name) => self.class_changed(name, now),
            ObjectRef::Node(_) => self.wake_provisioned(now),
            _ => {}
        }
    }

    /// What made a request about these fail may have changed. A read that failed keeps its pause: it has to be
    /// answered before anything is decided.
    fn try_again(&mut self, targets: impl IntoIterator<Item = Target>, now: Instant) {
        for target in targets {
            if !self.state.in_flight.pauses(&target) {
                self.retries.changed(&target, now);
            }
        }
    }

    fn volume_changed(&mut self, name: &VolumeName, now: Instant) {
        let volume = self.state.objects.volumes.get(name);
        let before = self.state.volumes.update(name, volume.as_deref());
        let revision = volume.as_ref().map(|volume| &volume.metadata.resource_version);
        if self.state.unreservable.get(name).map(|(refused, _)| refused) != revision {
            self.state.unreservable.remove(name);
        }
        if self.state.failing.get(name) != revision {
            self.state.failing.remove(name);
        }
        self.queue.extend(before.map(Target::Claim), now);
        self.plugins_changed(&ObjectRef::Volume(name.clone()), now);
        match volume {
            Some(volume) => self.look_for_others(&*volume, now),
            None => {
                self.state.proofs.forget_volume(name);
                self.forget(&Target::Volume(name.clone()), now);
                self.wake_provisioned(now);
            }
        }
        self.wake_about(name, now);
    }

    /// Looks again at a volume, and at the claims that it refers to, that name it, or may yet get it; offers it if it is
    /// free.
    pub(super) fn wake_about(&mut self, name: &VolumeName, now: Instant) {
        let volume = self.state.objects.volumes.get(name);
        let refers = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()).map(ClaimRef::key);
        let claims = self.state.claims.naming(name).chain(self.state.doubts.about(name)).cloned();
        let claims = refers.into_iter().chain(claims);
        self.queue.extend(claims.map(Target::Claim), now);
        if volume.is_some() {
            self.queue.add(Target::Volume(name.clone()), now);
            if self.state.volumes.is_free(name) && !self.state.is_busy(name) {
                self.queue.offer(name.clone(), now);
            }
        }
    }

    fn pod_changed(&mut self, key: &PodKey, now: Instant) {
        let pod = self.state.objects.pods.get(key);
        let waits = pod.as_deref().filter(|pod| !pod.is_terminated() && pod.spec.node_name.is_empty());
        let [before, after] = self.state.pods.update(key, waits);
        for claim in before.symmetric_difference(&after).filter(|key| self.recorder.is_waiting_for_pods(key))
        {
            self.queue.add(Target::Claim(claim.clone()), now);
        }
        self.plugins_changed(&ObjectRef::Pod(key.clone()), now);
    }

    /// Tells the plugins of a change, and looks at what they say.
    fn plugins_changed(&mut self, object: &ObjectRef, now: Instant) {
        for target in self.state.plugins.changed(object, &self.state.objects, now) {
            match target {
                Target::Volume(name) => self.volume_changed(&name, now),
                Target::Claim(key) => {
                    self.queue
                        .extend(self.state.volumes.referring_to(&key).cloned().map(Target::Volume), now);
                    self.queue.add(Target::Claim(key), now);
                }
            }
        }
    }

    fn claim_changed(&mut self, key: &ClaimKey, now: Instant) {
        let claim = self.state.objects.claims.get(key);
        let unreadable = self.state.objects.claims.unreadable_count();
        if mem::replace(&mut self.unreadable_claims, unreadable) > unreadable {
            // It may have been what others wait for.
            (self.resync_at, self.resynced_to) = (Some(now), None);
        }
        if let Some(volume) = self.state.claims.update(key, claim.as_deref()) {
            // It may have been the claim's without naming it (S45), and is free or another's now.
            self.volume_changed(&volume, now);
        }
        let target = Target::Claim(key.clone());
        match claim {
            None => {
                self.state.claims.forget(key);
                self.seeking.forget(key);
                self.state.proofs.forget_claim(key);
                self.state.doubts.forget(key);
                self.state.tried.remove(key);
                self.forget(&target, now);
                self.plugins_changed(&ObjectRef::Claim(key.clone()), now);
            }
            Some(claim) => {
                if claim.status.phase != ClaimPhase::Lost {
                    // It may have been Lost, and its volume be back: what was proven for the loss is of the past.
                    self.state.proofs.forget_claim(key);
                }
                self.look_for_others(&*claim, now);
                self.queue.add(target, now);
                // Whose a volume is, the phase of a claim that names it says, too (S45).
                let name = &claim.spec.volume_name;
                if was_bound(&claim) && self.state.objects.volumes.get(name).is_some() {
                    self.queue.add(Target::Volume(name.clone()), now);
                }
            }
        }
        self.queue.extend(self.state.volumes.referring_to(key).cloned().map(Target::Volume), now);
    }

    fn class_changed(&mut self, name: &ClassName, now: Instant) {
        if self.state.objects.classes.get(name).is_some() {
            self.state.proofs.forget_class(name);
        }
        self.state.observe_delay(name, now);
        let is_for_all = self.state.observe_default_class();
        for name in [Some(name.clone()), is_for_all.then(|| "".into())].into_iter().flatten() {
            let claims = self.state.claims.open_in_class(name.as_str()).cloned().map(Target::Claim);
            self.try_again(claims.collect::<Vec<_>>(), now);
            self.wake_class(&name, now);
        }
    }

    /// Looks again at every open claim of a class: there may be as many as there are in the cluster (L15).
    pub(super) fn wake_class(&mut self, name: &ClassName, now: Instant) {
        for key in self.state.claims.open_in_class(name.as_str()) {
            self.queue.add_slowly(Target::Claim(key.clone()), false, now);
        }
    }

    /// Looks again at the open claims that are provisioned here: they may have waited for a node, or for the name of a
    /// volume that is gone.
    fn wake_provisioned(&mut self, now: Instant) {
        if !self.state.plugins.provisions(HOST_PATH_PLUGIN) {
            return;
        }
        for (name, class) in self.state.objects.classes.snapshot() {
            if self.state.plugins.provisions(&class.provisioner) {
                self.wake_class(&name, now);
            }
        }
    }

    /// Notes that another has changed what we wrote of late, if so (S14).
    fn look_for_others(&mut self, object: impl Into<Shown>, now: Instant) {
        let shown = object.into();
        if self.own_writes.take_changed_by_another(&shown, now) {
            self.state.writers.note(&shown.target, &shown.uid, now);
        }
    }

    /// The object is gone.
    fn forget(&mut self, target: &Target, now: Instant) {
        // A standby has reported nothing of it.
        if self.queue.is_open() {
            self.recorder.gone(target, now);
        }
        self.own_writes.gone(target);
        self.state.stripped.remove(target);
        self.state.writers.gone(target);
        // A read that failed keeps its wait: it still holds its claim and volume.
        if !self.state.in_flight.pauses(target) {
            self.retries.clear(target);
        }
    }
}
