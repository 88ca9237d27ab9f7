//! Whom a change concerns.
//!
//! In: an object that changed, as the tables show it now. Out: indexes brought up to it, and the keys to
//! look at again: few, found through the indexes, however large the cluster is.

use tokio::time::Instant;

use crate::{
    binder::{
        act::write::{Object, Target},
        planner::Planner,
    },
    kube_api::{
        ids::{ClaimKey, ClassName, PodKey, VolumeName},
        kinds::{ClaimPhase, ClaimRef, ObjectRef, StorageClass},
    },
    state::Objects,
};

impl Planner {
    /// Takes in every object there is.
    pub fn load(&mut self, now: Instant) {
        self.known.load(now);
        for key in self.known.objects.pods.snapshot().into_keys() {
            self.pod_changed(&key, now);
        }
    }

    /// This process leads from now on: each claim and volume is looked at in turn, claims that keep a pod from being
    /// scheduled first, then all that are not bound. As each claim looks for a volume, none is offered to claims.
    pub fn lead(&mut self, now: Instant) {
        self.queue.open();
        for (key, claim) in self.known.objects.claims.snapshot() {
            let is_bound = claim.status.phase == ClaimPhase::Bound;
            let is_wanted = self.known.pods.of(&key).next().is_some();
            if is_wanted && !is_bound {
                self.queue.add(Target::Claim(key), now);
            } else {
                self.queue.add_slowly(Target::Claim(key), is_bound, now);
            }
        }
        for name in self.known.objects.volumes.snapshot().into_keys() {
            self.queue.add_slowly(Target::Volume(name), false, now);
        }
    }

    /// Notes that an object changed, and whom that concerns.
    pub fn changed(&mut self, object: &ObjectRef, now: Instant) {
        let Objects { claims, volumes, pods, .. } = &*self.known.objects;
        self.unconfirmed.extend(match object {
            ObjectRef::Claim(key) if claims.is_missing(key) => Some(Object::Claim(key.clone())),
            ObjectRef::Volume(name) if volumes.is_missing(name) => Some(Object::Volume(name.clone())),
            ObjectRef::Pod(key) if pods.is_missing(key) => Some(Object::Pod(key.clone())),
            _ => None,
        });
        match object {
            ObjectRef::Volume(name) => {
                self.volume_changed(name, now);
                self.known.unprove_claims_of(name);
                let reference =
                    self.known.objects.volumes.get(name).and_then(|volume| volume.spec.claim_ref.clone());
                let claims =
                    self.known.claims.naming(name).cloned().chain(reference.map(|reference| reference.key()));
                let claims: Vec<Target> = claims.map(Target::Claim).collect();
                self.try_again(claims.into_iter().chain([Target::Volume(name.clone())]), now);
            }
            ObjectRef::Claim(key) => {
                self.claim_changed(key, now);
                let volumes: Vec<Target> =
                    self.known.volumes.referring_to(key).cloned().map(Target::Volume).collect();
                self.try_again(volumes.into_iter().chain([Target::Claim(key.clone())]), now);
            }
            ObjectRef::Class(name) => {
                // One of which the watch is about to tell stays: its claims would ask for it without end.
                self.known.objects.forget_unlisted::<StorageClass>(name);
                self.class_changed(name, now);
            }
            ObjectRef::Pod(key) => self.pod_changed(key, now),
            // A class may name another provisioner than the one that a claim was handed to, whose driver was there.
            ObjectRef::Driver(name) if self.known.objects.drivers.get(name).is_none() => {
                for class in self.known.objects.classes.snapshot().into_keys() {
                    self.wake_class(&class, now);
                }
            }
            _ => {}
        }
    }

    /// What made a request about these fail may have changed. A parked read keeps its pause: it has to be
    /// answered before anything is decided.
    fn try_again(&mut self, targets: impl Iterator<Item = Target>, now: Instant) {
        for target in targets.filter(|target| !self.in_flight.is_parked(target)).collect::<Vec<_>>() {
            self.retries.changed(&target, now);
        }
    }

    pub(crate) fn volume_changed(&mut self, name: &VolumeName, now: Instant) {
        let volume = self.known.objects.volumes.get(name);
        let before = self.known.volumes.update(name, volume.as_deref());
        self.queue.extend(before.map(Target::Claim), now);
        self.plugins_changed(&ObjectRef::Volume(name.clone()), now);
        match volume {
            Some(volume) => self.second_writer.look_at(&*volume, now),
            None => {
                self.known.proofs.forget_volume(name);
                self.forget(&Target::Volume(name.clone()), now);
            }
        }
        self.wake_about(name, now);
    }

    /// Looks again at a volume, and at the claims that it refers to, that name it, or may yet get it; offers it if it is
    /// free.
    pub(crate) fn wake_about(&mut self, name: &VolumeName, now: Instant) {
        let volume = self.known.objects.volumes.get(name);
        let refers = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()).map(ClaimRef::key);
        let claims = self.known.claims.naming(name).chain(self.known.doubts.about(name)).cloned();
        let claims = refers.into_iter().chain(claims);
        self.queue.extend(claims.map(Target::Claim), now);
        if volume.is_some() {
            self.queue.add(Target::Volume(name.clone()), now);
            if self.known.volumes.is_free(name) && !self.is_busy(name) {
                self.queue.offer(name.clone(), now);
            }
        }
    }

    pub(crate) fn pod_changed(&mut self, key: &PodKey, now: Instant) {
        let pod = self.known.objects.pods.get(key);
        let waits = pod.as_deref().filter(|pod| !pod.is_terminated() && pod.spec.node_name.is_empty());
        let [before, after] = self.known.pods.update(key, waits);
        for claim in before.symmetric_difference(&after).filter(|key| self.reasons.is_waiting_for_pods(key)) {
            self.queue.add(Target::Claim(claim.clone()), now);
        }
        self.plugins_changed(&ObjectRef::Pod(key.clone()), now);
    }

    /// Tells the plugins of a change, and looks at what they say.
    fn plugins_changed(&mut self, object: &ObjectRef, now: Instant) {
        for target in self.known.plugins.changed(object, &self.known.objects, now) {
            match target {
                Target::Volume(name) => self.volume_changed(&name, now),
                Target::Claim(key) => {
                    self.queue
                        .extend(self.known.volumes.referring_to(&key).cloned().map(Target::Volume), now);
                    self.queue.add(Target::Claim(key), now);
                }
            }
        }
    }

    pub(crate) fn claim_changed(&mut self, key: &ClaimKey, now: Instant) {
        let claim = self.known.objects.claims.get(key);
        if let Some(volume) = self.known.claims.update(key, claim.as_deref()) {
            // It may have been the claim's without naming it (S45), and is free now.
            self.volume_changed(&volume, now);
        }
        let target = Target::Claim(key.clone());
        match claim {
            None => {
                self.known.claims.forget(key);
                self.known.proofs.forget_claim(key);
                self.known.doubts.forget(key);
                self.forget(&target, now);
                self.plugins_changed(&ObjectRef::Claim(key.clone()), now);
            }
            Some(claim) => {
                self.second_writer.look_at(&*claim, now);
                self.queue.add(target, now);
                // Whose a volume without claimRef is, the phase of a claim that names it says, too (S45).
                let name = &claim.spec.volume_name;
                if self.known.objects.volumes.get(name).is_some_and(|volume| volume.spec.claim_ref.is_none())
                {
                    self.queue.add(Target::Volume(name.clone()), now);
                }
            }
        }
        self.queue.extend(self.known.volumes.referring_to(key).cloned().map(Target::Volume), now);
    }

    pub(crate) fn class_changed(&mut self, name: &ClassName, now: Instant) {
        if self.known.objects.classes.get(name).is_some() {
            self.known.proofs.forget_class(name);
        }
        if self.known.observe_default_class() {
            self.wake_class(&"".into(), now);
        }
        self.wake_class(name, now);
    }

    /// Looks again at every open claim of a class: there may be as many as there are in the cluster (L15).
    fn wake_class(&mut self, name: &ClassName, now: Instant) {
        for key in self.known.claims.open_in_class(name.as_str()) {
            self.queue.add_slowly(Target::Claim(key.clone()), false, now);
        }
    }

    /// The object is gone.
    fn forget(&mut self, target: &Target, now: Instant) {
        self.recorder.gone(target, self.reasons.gone(target), now);
        self.second_writer.gone(target);
        // A parked read keeps its wait: it still holds its claim and volume.
        if !self.in_flight.is_parked(target) {
            self.retries.clear(target);
        }
    }
}
