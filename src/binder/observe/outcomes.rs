//! What the planner makes of the outcome of a request.
//!
//! In: a request and what became of it. Out: tables, proofs and waits brought up to it, and what it
//! held freed. An outcome that is not known is read before anything else is decided about the pair.

use tokio::time::Instant;

use crate::{
    binder::{
        act::op::{Answer, Call, Op, Purpose},
        decide::{
            decision::{Object, Target, Write, WriteKind},
            view::{ClaimProof, Seen, VolumeProof},
        },
        planner::Planner,
    },
    kube_api::{
        call::CallError,
        events::Event,
        ids::{ResourceVersion, Uid, VolumeName},
        kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod},
    },
    traces::End,
};

impl Planner {
    /// Goes on from the outcome of a request.
    pub(crate) fn take_outcome(
        &mut self,
        op: Op,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        self.note_outcome(&op, &result, now);
        if op.call.is_of_a_run() {
            return self.run_outcome(op, result, now, jitter);
        }
        if let Call::ReadClass(class) = &op.call {
            return self.class_read(&op, class, result, now, jitter);
        }
        match (&op.call, result) {
            (Call::ReadOwner(_), result) => self.owner_read(&op, result, now),
            // Somebody on the way took our change out of it: the next try would change nothing, either.
            (Call::Write(_), Ok(answer)) if op.changed_nothing(&answer) => {
                self.absorb(answer, now);
                self.retries.failed(&op.subject, now, jitter);
                self.release(&op, now);
            }
            (Call::Write(write), Ok(answer)) => {
                self.absorb(answer, now);
                self.say(&op.subject, &write.then, now);
                // What a claim was given up for still explains why it is Lost.
                if let Target::Claim(key) = &op.subject
                    && write.kind != WriteKind::ClaimLost
                {
                    self.proofs.forget_claim(key);
                }
                self.retries.clear(&op.subject);
                self.release(&op, now);
            }
            // It went away first, which is no failure: what is left is looked at again.
            (Call::Write(_), Err(CallError::NotFound(_))) => {
                if self.known(&op.subject.clone().into()).is_some() {
                    self.retries.conflicted(&op.subject, now, jitter);
                }
                self.release(&op, now);
            }
            // What the object looks like now is not known: it is read before anything else is
            // decided about the pair.
            (Call::Write(write), Err(error @ (CallError::Conflict(_) | CallError::Unknown(_)))) => {
                if let CallError::Unknown(_) = error {
                    self.doubt(&op, write, now);
                }
                let call = Call::Read { target: write.target.clone(), purpose: Purpose::Refresh };
                let known = self.known(&write.target);
                let op = Op { call, known, ..op };
                match self.retries.conflicted(&op.subject, now, jitter) {
                    Some(_) => {
                        self.parked.insert(op.subject.clone(), op);
                    }
                    None => self.ready.push_back(op),
                }
            }
            (Call::Read { purpose: Purpose::Refresh, .. }, Ok(answer)) => {
                self.absorb(answer, now);
                self.release(&op, now);
            }
            (Call::Read { purpose: Purpose::Refresh, .. }, Err(error)) => {
                if let CallError::NotFound(_) = error {
                    return self.release(&op, now);
                }
                self.wait_for_read(&op.subject, &error, now, jitter);
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
                Call::Read { target: Object::Volume(name), purpose: Purpose::ProveVolume },
                Ok(Answer::Volume(volume)),
            ) => {
                let name = name.clone();
                self.volume_read(&op, &name, Some(volume), now, jitter);
            }
            (
                Call::Read { target: Object::Volume(name), purpose: Purpose::ProveVolume },
                Err(CallError::NotFound(_)),
            ) => {
                let name = name.clone();
                self.volume_read(&op, &name, None, now, jitter);
            }
            (Call::Read { .. }, Err(error)) => {
                self.wait_for_read(&op.subject, &error, now, jitter);
                self.release(&op, now);
            }
            (_, Err(error)) => {
                self.wait(&op.subject, &error, now, jitter);
                self.release(&op, now);
            }
            (_, Ok(answer)) => {
                // An answer of another kind than asked for proves nothing.
                self.absorb(answer, now);
                self.retries.failed(&op.subject, now, jitter);
                self.release(&op, now);
            }
        }
    }

    /// Notes what every outcome means, whatever the request was for.
    fn note_outcome(&mut self, op: &Op, result: &Result<Answer, CallError>, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Call::Write(write) = &op.call {
            self.written(op, write, result, now);
        }
        if let (Err(CallError::NotFound(_)), Some(known), Some(object)) = (result, op.known, op.call.target())
        {
            self.gone(object, known, now);
        }
        // What was proven for it is of the past when it is tried again.
        if let (Target::Volume(name), Err(_), Some(WriteKind::VolumeReleased)) =
            (&op.subject, result, op.call.write_kind())
        {
            self.proofs.forget_volume(name);
        }
    }

    /// Takes who changed what only a binder should.
    fn owner_read(&mut self, op: &Op, result: Result<Answer, CallError>, now: Instant) {
        let managers = if let Ok(Answer::Owners(managers)) = result { managers } else { Vec::new() };
        self.rivals.learn(&op.subject, &managers, now);
        self.release(op, now);
    }

    /// Tells what belongs to a write that was made.
    pub(crate) fn say(&mut self, subject: &Target, events: &[Event], now: Instant) {
        self.told.note(subject, events, now);
        self.pending_events.extend_from_slice(events);
    }

    /// An object that we knew at this revision does not exist. The watch may never tell: if it was cut
    /// meanwhile, the next list just lacks it.
    fn gone(&mut self, object: &Object, known: ResourceVersion, now: Instant) {
        match object {
            Object::Claim(key) => {
                self.objects.prove_gone::<PersistentVolumeClaim>(key, known);
                self.claim_changed(key, now);
            }
            Object::Volume(name) => {
                self.objects.prove_gone::<PersistentVolume>(name, known);
                self.volume_changed(name, now);
            }
            Object::Pod(key) => {
                self.objects.prove_gone::<Pod>(key, known);
                self.changed(&ObjectRef::Pod(key.clone()), now);
            }
        }
    }

    /// A reservation may be made later than we look.
    fn doubt(&mut self, op: &Op, write: &Write, now: Instant) {
        if let (WriteKind::ReserveVolume, Target::Claim(key), Object::Volume(volume), Some(revision)) =
            (write.kind, &op.subject, &write.target, op.known)
            && let Some(claim) = self.objects.claims.get(key)
        {
            self.doubts.note(volume, revision, (key.clone(), claim.metadata.uid.clone()), now);
        }
    }

    /// Notes what a write means for the measures, for who else writes, and for who waits for it.
    fn written(&mut self, op: &Op, write: &Write, result: &Result<Answer, CallError>, now: Instant) {
        match result {
            Ok(Answer::Claim(claim)) => self.rivals.wrote_claim(claim, now),
            Ok(Answer::Volume(volume)) => self.rivals.wrote_volume(volume, now),
            Ok(
                Answer::Pod(_)
                | Answer::Class(_)
                | Answer::Owners(_)
                | Answer::Deleted
                | Answer::Directory(_),
            )
            | Err(_) => {}
        }
        match (&op.subject, write.kind, result) {
            (_, _, Err(CallError::NotLeader)) => {}
            (Target::Claim(key), WriteKind::NameVolume, Ok(Answer::Claim(_))) => {
                // A claim that named the volume itself is told apart by the patch that does not.
                let body = write.request.body.as_ref();
                if body.is_some_and(|body| body.get("spec").is_some()) {
                    self.latency.found(key);
                }
            }
            (Target::Claim(key), WriteKind::ClaimBound, Ok(_)) => {
                self.latency.bound(key, now, self.trails.id(key));
                self.end_bind(key, End::Done, now);
            }
            (Target::Claim(key), kind, Err(_)) if kind.is_bind() || kind == WriteKind::AskProvisioner => {
                self.latency.claim_failed(key);
            }
            _ => {}
        }
    }

    pub(crate) fn wait(&mut self, subject: &Target, error: &CallError, now: Instant, jitter: f64) {
        match error {
            CallError::Throttled { after, .. } => self.retries.wait_until(subject, now + *after),
            CallError::NotSent(_) => self.retries.unanswered(subject, now, jitter),
            _ => {
                self.retries.failed(subject, now, jitter);
            }
        }
    }

    pub(crate) fn wait_for_read(&mut self, subject: &Target, error: &CallError, now: Instant, jitter: f64) {
        match error {
            CallError::Unknown(_) => self.retries.unanswered(subject, now, jitter),
            _ => self.wait(subject, error, now, jitter),
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
        let Target::Volume(name) = &op.subject else { return self.release(op, now) };
        let proof = match &found {
            Some(claim) if claim.metadata.uid == *uid => {
                let elsewhere = !claim.spec.volume_name.is_empty() && claim.spec.volume_name != *name;
                elsewhere.then_some(ClaimProof::BoundElsewhere)
            }
            _ => Some(ClaimProof::Gone),
        };
        let news = found.is_some_and(|claim| self.absorb(Answer::Claim(claim), now));
        if let Some(volume) = self.objects.volumes.get(name)
            && let Some(proof) = proof
        {
            self.proofs.note_claim(&volume, uid, proof);
        } else if !news {
            // The claim is there, and our table does not show it as it is: the watch is about to.
            self.retries.failed(&op.subject, now, jitter);
        }
        self.release(op, now);
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
        let Target::Claim(key) = &op.subject else { return self.release(op, now) };
        let Some(claim) = self.objects.claims.get(key) else { return self.release(op, now) };
        let proof = match &found {
            None => Some(VolumeProof::Gone),
            Some(volume) => match &volume.spec.claim_ref {
                Some(reference) if reference.uid != claim.metadata.uid => {
                    Some(VolumeProof::OtherClaim(reference.uid.clone()))
                }
                _ => None,
            },
        };
        let news = found.is_some_and(|volume| self.absorb(Answer::Volume(volume), now));
        match proof {
            Some(proof) => {
                let seen = Seen::of(&self.objects, name);
                self.proofs.note_volume((key, &claim.metadata.uid), seen, proof);
            }
            None if !news => {
                self.retries.failed(&op.subject, now, jitter);
            }
            None => {}
        }
        self.release(op, now);
    }

    /// Puts an answer into the table and its consequences into the indexes, at once. Returns
    /// whether the answer said anything new.
    pub(crate) fn absorb(&mut self, answer: Answer, now: Instant) -> bool {
        match answer {
            Answer::Claim(claim) => {
                let key = claim.key();
                let was_known = self.objects.claims.get(&key).is_some();
                let news = self.objects.absorb(claim);
                // A list may have lacked it meanwhile, and then no watch tells of its end.
                if news && !was_known {
                    self.unconfirmed.insert(Object::Claim(key.clone()));
                }
                self.claim_changed(&key, now);
                news
            }
            Answer::Volume(volume) => {
                let name = volume.key();
                let was_known = self.objects.volumes.get(&name).is_some();
                let news = self.objects.absorb(volume);
                if news && !was_known {
                    self.unconfirmed.insert(Object::Volume(name.clone()));
                }
                if news {
                    self.unprove_claims_of(&name);
                }
                self.volume_changed(&name, now);
                news
            }
            Answer::Pod(pod) => {
                let key = pod.key();
                let news = self.objects.absorb(pod);
                self.pod_changed(&key, now);
                news
            }
            Answer::Class(class) => {
                let name = class.key();
                let news = self.objects.absorb(class);
                self.class_changed(&name);
                news
            }
            Answer::Deleted | Answer::Owners(_) | Answer::Directory(_) => false,
        }
    }

    /// Frees what a request touched, and looks at it again before anything else.
    pub(crate) fn release(&mut self, op: &Op, now: Instant) {
        for target in op.touches() {
            match &target {
                Target::Claim(key) => {
                    self.busy_claims.remove(key);
                    self.doubts.freed(key);
                    self.queue.extend(self.volumes.referring_to(key).cloned().map(Target::Volume), now);
                }
                Target::Volume(name) => {
                    self.busy_volumes.remove(name);
                    self.volumes.show(name);
                    self.volume_changed(name, now);
                }
            }
            self.queue.add_urgent(target, now);
        }
    }
}
