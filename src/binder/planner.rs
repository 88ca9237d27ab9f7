//! What to look at next, and which decisions may run now.
//!
//! In: changes of objects, outcomes of requests, the time. Out: [`Plan`]s of independent requests.
//! It owns everything the binder remembers between decisions: the indexes, the keys still to be
//! looked at, who has a request under way, the proofs and the waits. Two rules keep S18 to S22:
//! never two requests at once about one claim or one volume, and no decision about either before
//! the answer to the last request has been taken in (S38).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    annotations,
    claim::{ClaimDecision, sync_claim},
    decision::Target,
    index::VolumeIndex,
    matching::Wish,
    op::{Answer, Call, Op, Purpose},
    reason::ClaimReason,
    retry::Retries,
    standing::Standing,
    view::{BinderOptions, ClaimProof, Proofs, View, VolumeProof},
    volume::{VolumeDecision, sync_volume},
    waiting::{ClaimIndex, PodIndex},
};
use crate::{
    kube_api::{
        call::CallError,
        events::Event,
        ids::{ClaimKey, ClassName, Uid, VolumeName},
        kinds::{ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, StorageClass},
    },
    state::Objects,
};

/// Requests under way at once. Twice what the connection budget lets through, so that it never
/// idles; the rest stays here, where pairs that have begun go first.
const MAX_IN_FLIGHT: usize = 128;

/// What to do now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Requests to send; none touches what another touches.
    pub ops: Vec<Op>,
    /// What to tell users.
    pub events: Vec<Event>,
    /// Decisions made, by kind and reason.
    pub decisions: BTreeMap<(&'static str, &'static str), u64>,
    /// When to plan again if nothing happens.
    pub wake_at: Option<Instant>,
}

/// Owner of the binder's memory.
#[derive(Debug)]
pub struct Planner {
    objects: Arc<Objects>,
    options: BinderOptions,
    volumes: VolumeIndex,
    claims: ClaimIndex,
    pods: PodIndex,
    default_class: Option<ClassName>,
    proofs: Proofs,
    /// Keys of pairs that have begun.
    urgent: BTreeSet<Target>,
    dirty: BTreeSet<Target>,
    /// Free volumes that no waiting claim has been offered yet.
    offers: BTreeSet<VolumeName>,
    busy_claims: BTreeSet<ClaimKey>,
    busy_volumes: BTreeSet<VolumeName>,
    in_flight: usize,
    ready: VecDeque<Op>,
    /// Live reads to repeat when their subject's wait is over; they keep their claim and volume.
    parked: BTreeMap<Target, Op>,
    retries: Retries<Target>,
    /// Events of each key's last decision, which are not repeated.
    told: BTreeMap<Target, Vec<Event>>,
    pending_events: Vec<Event>,
    standing: Arc<Standing>,
}

impl Planner {
    /// A planner that has yet to be told of every object.
    #[must_use]
    pub fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self {
            objects,
            options,
            volumes: VolumeIndex::default(),
            claims: ClaimIndex::default(),
            pods: PodIndex::default(),
            default_class: None,
            proofs: Proofs::default(),
            urgent: BTreeSet::new(),
            dirty: BTreeSet::new(),
            offers: BTreeSet::new(),
            busy_claims: BTreeSet::new(),
            busy_volumes: BTreeSet::new(),
            in_flight: 0,
            ready: VecDeque::new(),
            parked: BTreeMap::new(),
            retries: Retries::default(),
            told: BTreeMap::new(),
            pending_events: Vec::new(),
            standing: Arc::default(),
        }
    }

    /// Why each key waits.
    #[must_use]
    pub fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.standing)
    }

    /// Requests handed out and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes in every object there is.
    pub fn warm(&mut self) {
        let objects = Arc::clone(&self.objects);
        for key in objects.volumes.snapshot().into_keys() {
            self.changed(&ObjectRef::Volume(key));
        }
        for key in objects.claims.snapshot().into_keys() {
            self.changed(&ObjectRef::Claim(key));
        }
        for key in objects.classes.snapshot().into_keys() {
            self.changed(&ObjectRef::Class(key));
        }
        for key in objects.pods.snapshot().into_keys() {
            self.changed(&ObjectRef::Pod(key));
        }
    }

    /// Notes that an object changed, and whom that concerns.
    pub fn changed(&mut self, object: &ObjectRef) {
        match object {
            ObjectRef::Volume(name) => self.volume_changed(name),
            ObjectRef::Claim(key) => self.claim_changed(key),
            ObjectRef::Class(name) => self.class_changed(name),
            ObjectRef::Pod(key) => {
                let pod = self.objects.pods.get(key);
                for claim in self.pods.update(key, pod.as_deref()) {
                    let waits = matches!(
                        self.standing.claim(&claim),
                        Some(ClaimReason::WaitsForFirstConsumer | ClaimReason::WaitsForPods(_))
                    );
                    if waits {
                        self.dirty.insert(Target::Claim(claim));
                    }
                }
            }
            _ => {}
        }
    }

    fn volume_changed(&mut self, name: &VolumeName) {
        let volume = self.objects.volumes.get(name);
        let before = self.volumes.update(name, volume.as_deref());
        let now = volume.as_ref().and_then(|volume| volume.spec.claim_ref.as_ref()).map(ClaimRef::key);
        let naming: Vec<ClaimKey> = self.claims.naming(name).cloned().collect();
        for key in &naming {
            self.proofs.forget_claim(key);
        }
        self.dirty.extend(before.into_iter().chain(now).chain(naming).map(Target::Claim));
        let target = Target::Volume(name.clone());
        if volume.is_none() {
            self.proofs.forget_volume(name);
            self.forget(&target);
            return;
        }
        self.dirty.insert(target);
        self.offer(name);
    }

    fn claim_changed(&mut self, key: &ClaimKey) {
        let claim = self.objects.claims.get(key);
        self.claims.update(key, claim.as_deref());
        let target = Target::Claim(key.clone());
        if claim.is_none() {
            self.claims.forget(key);
            self.proofs.forget_claim(key);
            self.forget(&target);
        } else {
            self.dirty.insert(target);
        }
        self.dirty.extend(self.volumes.referring_to(key).cloned().map(Target::Volume));
    }

    fn class_changed(&mut self, name: &ClassName) {
        let default = default_class(self.objects.classes.snapshot().values());
        if default != self.default_class {
            self.default_class = default;
            self.dirty.extend(self.claims.open_in_class("").cloned().map(Target::Claim));
        }
        self.dirty.extend(self.claims.open_in_class(name.as_str()).cloned().map(Target::Claim));
    }

    fn forget(&mut self, target: &Target) {
        self.standing.forget(target);
        self.told.remove(target);
        // A parked read keeps its wait: it still holds its claim and volume.
        if !self.parked.contains_key(target) {
            self.retries.clear(target);
        }
    }

    fn offer(&mut self, name: &VolumeName) {
        if self.volumes.is_free(name) && !self.busy_volumes.contains(name) {
            self.offers.insert(name.clone());
        }
    }

    /// Decides about as many keys as may run now.
    pub fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan { events: std::mem::take(&mut self.pending_events), ..Plan::default() };
        for target in self.retries.take_due(now) {
            match self.parked.remove(&target) {
                Some(op) => self.ready.push_back(op),
                None => {
                    self.dirty.insert(target);
                }
            }
        }
        while self.in_flight < MAX_IN_FLIGHT {
            if let Some(op) = self.ready.pop_front() {
                self.in_flight += 1;
                plan.ops.push(op);
            } else if let Some(target) = self.urgent.pop_first().or_else(|| self.dirty.pop_first()) {
                match target {
                    Target::Claim(key) => self.plan_claim(&key, &mut plan),
                    Target::Volume(name) => self.plan_volume(&name, &mut plan),
                }
            } else if let Some(name) = self.offers.pop_first() {
                self.plan_offer(&name, &mut plan);
            } else {
                break;
            }
        }
        plan.wake_at = self.retries.next_due();
        plan
    }

    /// Finds a taker for a volume that has become free.
    fn plan_offer(&mut self, name: &VolumeName, plan: &mut Plan) {
        let mut declined = BTreeSet::new();
        while self.volumes.is_free(name) && !self.busy_volumes.contains(name) {
            let Some(volume) = self.objects.volumes.get(name) else { return };
            let objects = Arc::clone(&self.objects);
            let current = |key: &ClaimKey| objects.claims.get(key);
            let Some(key) = self.claims.taker(&volume, &current, &declined) else { return };
            self.plan_claim(&key, plan);
            declined.insert(key);
        }
    }

    fn plan_claim(&mut self, key: &ClaimKey, plan: &mut Plan) {
        let target = Target::Claim(key.clone());
        self.urgent.remove(&target);
        self.dirty.remove(&target);
        // Whoever is busy or waits is looked at again when that ends.
        if self.busy_claims.contains(key) || self.retries.waits(&target) {
            return;
        }
        self.claims.forget(key);
        let Some(claim) = self.objects.claims.get(key) else { return };
        let decision = self.decide_claim(&claim);
        *plan.decisions.entry(("claim", decision.reason.label())).or_default() += 1;
        if decision.step.is_none()
            && decision.reason.wants_volume()
            && let Ok(wish) = Wish::of(&claim)
        {
            self.claims.wait(&wish);
        }
        self.tell(&target, decision.events, plan);
        if let Some(step) = decision.step {
            let volume = match &decision.reason {
                ClaimReason::Binding(volume, _) => Some(volume.clone()),
                _ => None,
            };
            self.start(Op { subject: target, volume, call: Call::of(step) }, plan);
        }
        self.standing.set_claim(key, decision.reason);
    }

    fn plan_volume(&mut self, name: &VolumeName, plan: &mut Plan) {
        let target = Target::Volume(name.clone());
        let Some(volume) = self.objects.volumes.get(name) else { return };
        if let Some(reference) = &volume.spec.claim_ref {
            // The claim goes first: if it takes the volume, writing "Available" in between would
            // only make its own write fail.
            let key = reference.key();
            let claim = Target::Claim(key.clone());
            if self.urgent.contains(&claim) || self.dirty.contains(&claim) {
                self.plan_claim(&key, plan);
            }
            if self.busy_claims.contains(&key) {
                return;
            }
        }
        if self.busy_volumes.contains(name) || self.retries.waits(&target) {
            return;
        }
        let decision = self.decide_volume(&volume);
        *plan.decisions.entry(("volume", decision.reason.label())).or_default() += 1;
        self.tell(&target, decision.events, plan);
        if let Some(step) = decision.step {
            self.start(Op { subject: target, volume: None, call: Call::of(step) }, plan);
        }
        self.standing.set_volume(name, decision.reason);
    }

    /// The decision about a claim as things are now.
    #[must_use]
    pub fn decide_claim(&self, claim: &PersistentVolumeClaim) -> ClaimDecision {
        sync_claim(claim, &self.view(&|name| self.busy_volumes.contains(name)))
    }

    /// The decision about a volume as things are now.
    #[must_use]
    pub fn decide_volume(&self, volume: &PersistentVolume) -> VolumeDecision {
        sync_volume(volume, &self.view(&|name| self.busy_volumes.contains(name)))
    }

    fn view<'a>(&'a self, busy: &'a dyn Fn(&VolumeName) -> bool) -> View<'a> {
        View {
            objects: &self.objects,
            volumes: &self.volumes,
            pods: &self.pods,
            default_class: self.default_class.as_ref(),
            proofs: &self.proofs,
            busy,
            options: self.options,
        }
    }

    /// Passes on what the user has not just been told.
    fn tell(&mut self, target: &Target, events: Vec<Event>, plan: &mut Plan) {
        let before = self.told.remove(target).unwrap_or_default();
        for event in &events {
            let repeated = before.iter().any(|told| {
                told.involved.uid == event.involved.uid
                    && told.reason == event.reason
                    && told.message == event.message
            });
            if !repeated {
                plan.events.push(event.clone());
            }
        }
        if !events.is_empty() {
            self.told.insert(target.clone(), events);
        }
    }

    /// Hands out a request and marks what it touches.
    pub fn start(&mut self, op: Op, plan: &mut Plan) {
        for target in op.touches() {
            match target {
                Target::Claim(key) => {
                    self.busy_claims.insert(key);
                }
                Target::Volume(name) => {
                    self.offers.remove(&name);
                    self.busy_volumes.insert(name);
                }
            }
        }
        self.in_flight += 1;
        plan.ops.push(op);
    }

    /// Takes in the outcome of a request.
    pub fn outcome(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match (&op.call, result) {
            (Call::Write(write), Ok(answer)) => {
                self.absorb(answer);
                self.pending_events.extend(write.then.clone());
                if let Target::Claim(key) = &op.subject {
                    self.proofs.forget_claim(key);
                }
                self.retries.clear(&op.subject);
                self.release(&op);
            }
            // What the object looks like now is not known: it is read before anything else is
            // decided about the pair.
            (Call::Write(write), Err(CallError::Conflict(_) | CallError::Unknown(_))) => {
                let call = Call::Read { target: write.target.clone(), purpose: Purpose::Refresh };
                let op = Op { call, ..op };
                match self.retries.conflicted(&op.subject, now, jitter) {
                    Some(_) => {
                        self.parked.insert(op.subject.clone(), op);
                    }
                    None => self.ready.push_back(op),
                }
            }
            (Call::Read { purpose: Purpose::Refresh, .. }, Ok(answer)) => {
                self.absorb(answer);
                self.release(&op);
            }
            (Call::Read { purpose: Purpose::Refresh, .. }, Err(error)) => {
                if let CallError::NotFound(_) = error {
                    // Gone; the watch will say so, and until then there is nothing to write to.
                    self.retries.failed(&op.subject, now, jitter);
                    self.release(&op);
                    return;
                }
                self.wait(&op.subject, &error, now, jitter);
                self.parked.insert(op.subject.clone(), op);
            }
            (Call::Read { purpose: Purpose::ProveClaim(uid), .. }, Ok(Answer::Claim(claim))) => {
                let uid = uid.clone();
                self.claim_read(&op, &uid, Some(claim), now, jitter);
            }
            (Call::Read { purpose: Purpose::ProveClaim(uid), .. }, Err(CallError::NotFound(_))) => {
                let uid = uid.clone();
                self.claim_read(&op, &uid, None, now, jitter);
            }
            (
                Call::Read { target: Target::Volume(name), purpose: Purpose::ProveVolume },
                Ok(Answer::Volume(volume)),
            ) => {
                let name = name.clone();
                self.volume_read(&op, &name, Some(volume), now, jitter);
            }
            (
                Call::Read { target: Target::Volume(name), purpose: Purpose::ProveVolume },
                Err(CallError::NotFound(_)),
            ) => {
                let name = name.clone();
                self.volume_read(&op, &name, None, now, jitter);
            }
            (_, Err(error)) => {
                self.wait(&op.subject, &error, now, jitter);
                self.release(&op);
            }
            (_, Ok(answer)) => {
                // An answer of another kind than asked for proves nothing.
                self.absorb(answer);
                self.retries.failed(&op.subject, now, jitter);
                self.release(&op);
            }
        }
    }

    fn wait(&mut self, subject: &Target, error: &CallError, now: Instant, jitter: f64) {
        match error {
            CallError::Throttled { after, .. } => self.retries.wait_until(subject, now + *after),
            _ => {
                self.retries.failed(subject, now, jitter);
            }
        }
    }

    /// Notes what a live read said about the claim a volume refers to.
    fn claim_read(
        &mut self,
        op: &Op,
        uid: &Uid,
        found: Option<PersistentVolumeClaim>,
        now: Instant,
        jitter: f64,
    ) {
        let Target::Volume(name) = &op.subject else { return self.release(op) };
        let proof = match &found {
            Some(claim) if claim.metadata.uid == *uid => {
                let elsewhere = !claim.spec.volume_name.is_empty() && claim.spec.volume_name != *name;
                elsewhere.then_some(ClaimProof::BoundElsewhere)
            }
            _ => Some(ClaimProof::Gone),
        };
        let news = found.is_some_and(|claim| self.absorb(Answer::Claim(claim)));
        if let Some(volume) = self.objects.volumes.get(name)
            && let Some(proof) = proof
        {
            self.proofs.note_claim((name, &volume.metadata.uid), uid, proof);
        } else if !news {
            // The claim is there, and our table does not show it as it is: the watch is about to.
            self.retries.failed(&op.subject, now, jitter);
        }
        self.release(op);
    }

    /// Notes what a live read said about the volume a claim is bound to.
    fn volume_read(
        &mut self,
        op: &Op,
        name: &VolumeName,
        found: Option<PersistentVolume>,
        now: Instant,
        jitter: f64,
    ) {
        let Target::Claim(key) = &op.subject else { return self.release(op) };
        let Some(claim) = self.objects.claims.get(key) else { return self.release(op) };
        let proof = match &found {
            None => Some(VolumeProof::Gone),
            Some(volume) => match &volume.spec.claim_ref {
                Some(reference) if reference.uid != claim.metadata.uid => {
                    Some(VolumeProof::OtherClaim(reference.uid.clone()))
                }
                _ => None,
            },
        };
        let news = found.is_some_and(|volume| self.absorb(Answer::Volume(volume)));
        match proof {
            Some(proof) => {
                let seen = self.objects.volumes.get(name).map(|volume| volume.metadata.resource_version);
                self.proofs.note_volume((key, &claim.metadata.uid), seen, proof);
            }
            None if !news => {
                self.retries.failed(&op.subject, now, jitter);
            }
            None => {}
        }
        self.release(op);
    }

    /// Puts an answer into the table and its consequences into the indexes, at once. Returns
    /// whether the answer said anything new.
    fn absorb(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Claim(claim) => {
                let key = claim.key();
                let news = self.objects.absorb(claim);
                self.claim_changed(&key);
                news
            }
            Answer::Volume(volume) => {
                let name = volume.key();
                let news = self.objects.absorb(volume);
                self.volume_changed(&name);
                news
            }
        }
    }

    /// Frees what a request touched, and looks at it again before anything else.
    fn release(&mut self, op: &Op) {
        for target in op.touches() {
            match &target {
                Target::Claim(key) => {
                    self.busy_claims.remove(key);
                    self.dirty.extend(self.volumes.referring_to(key).cloned().map(Target::Volume));
                }
                Target::Volume(name) => {
                    self.busy_volumes.remove(name);
                    self.volume_changed(name);
                }
            }
            self.urgent.insert(target);
        }
    }
}

/// The class for claims without one: the newest of those marked, the first by name among equals
/// (pv-binder §8).
// KCM: pkg/volume/util/storageclass.go, GetDefaultClass.
fn default_class<'a>(classes: impl Iterator<Item = &'a Arc<StorageClass>>) -> Option<ClassName> {
    let mut best: Option<&Arc<StorageClass>> = None;
    for class in classes.filter(|class| annotations::is_default_class(&class.metadata)) {
        let newer =
            best.is_none_or(|best| class.metadata.creation_timestamp > best.metadata.creation_timestamp);
        if newer {
            best = Some(class);
        }
    }
    best.map(|class| class.key())
}
