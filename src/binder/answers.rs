//! Answers: what the planner makes of the outcome of a request.
//!
//! In: a request and what became of it. Out: tables, proofs and pauses brought up to it, and what it held freed. An outcome
//! that is not known is read before anything else is decided about the pair.

use std::sync::Arc;

use apiserver::{
    call::CallError,
    ids::{ClaimKey, ClassName, ResourceVersion, Uid, VolumeName},
    kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
    tables::{Objects, Stored},
    with_object,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call, Op, Purpose, Shown, Target, Write, WriteKind},
    controller::Planner,
    decide::proofs::{ClaimProof, Seen, VolumeProof},
    failure::Failure,
    second_writer::content,
    state::Then,
};
use crate::controller::report::events::EventUpdate;

/// So often in a row a claim's requests have failed when a volume is passed over whose reservation fails with an answer that the
/// next try may mend. Of conflicts and silence the first few count for nothing.
const FAILED_TRIES: u32 = 3;

/// If more fail at once, it is the server's fault, and not the volumes'.
const MOST_FAILING: usize = 32;

impl Planner {
    /// Takes the answer to a request, or that there was none. The order is safety.
    pub fn answered(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        let failure = Failure::of(&op, &result);
        let subject = op.subject.clone();
        let is_read = !matches!(op.call, Call::Write(_));
        let works = match &op.call {
            Call::Write(_) => result.is_ok(),
            Call::Read { target, .. } => {
                result.is_ok() && self.recorder.is_read_of(&subject, &target.to_string())
            }
            Call::Directory(_) => false,
        };
        // 1. What it means whatever it was for.
        self.note_outcome(&op, &result, now);
        // 2. What it says: tables, proofs and doubts are brought up to it.
        let next = match (self.plugin_answered(&op, &result, now), &op.call, result) {
            (Some(then), ..) => then,
            (None, Call::Write(write), result) => self.write_answered(&op, write, result, now, jitter),
            (None, Call::Read { target: ObjectRef::Class(class), .. }, result) => {
                self.class_read(class, failure.as_ref(), result, now, jitter)
            }
            (None, Call::Read { target, purpose }, read @ (Ok(_) | Err(CallError::NotFound(_)))) => {
                self.read_answered(&op, (target, purpose), read.ok(), now)
            }
            // Nothing is decided about the pair before these are answered.
            (None, Call::Read { purpose: Purpose::Refresh | Purpose::LearnOwner(_), .. }, Err(error)) => {
                Then::Repeat(error)
            }
            (None, _, Err(error)) => Then::Pause(error),
            (None, Call::Directory(_), Ok(_)) => Then::Failed,
        };
        // 3. Its subject pauses, if it has to.
        match &next {
            Then::Look | Then::Tell(_) | Then::Read(_) => {}
            Then::Failed => drop(self.retries.failed(&subject, now, jitter)),
            Then::Conflicted => self.retries.conflicted(&subject, now, jitter),
            Then::Pause(error) | Then::Repeat(error) => {
                self.retries.failed_by(&subject, error, is_read, now, jitter);
            }
            Then::At(at) => self.retries.wait_until(&subject, *at),
        }
        // 4. Its claim and volume are free again, unless a read comes first.
        match next {
            Then::Repeat(_) => self.state.in_flight.park(op, true),
            Then::Read(purpose) => self.read_again(op, purpose, now, jitter),
            _ => self.release(&op, now),
        }
        // 5. What is reported of it.
        match failure {
            Some(failure) => self.fails(&subject, failure),
            // The look that follows reports it.
            None if works => self.recorder.works(&subject),
            None => {}
        }
    }

    /// How a plugin has its subject go on after its request, if not as usual.
    fn plugin_answered(&mut self, op: &Op, result: &Result<Answer, CallError>, now: Instant) -> Option<Then> {
        match self.state.plugins.answered(op, result, &self.state.objects, now)? {
            Then::Tell(event) => {
                self.recorder.events.push(EventUpdate::Happened(event));
                None
            }
            then => {
                if result.is_ok() {
                    self.retries.clear(&op.subject);
                }
                Some(then)
            }
        }
    }

    /// A request about a claim or volume failed. It has its pause by now.
    fn fails(&mut self, subject: &Target, failure: Failure) {
        let next = self.retries.until(subject);
        if self.recorder.fails(subject, failure, next, &self.state.objects)
            && let Some(shown) = Shown::of(subject, &self.state.objects)
        {
            self.recorder.stands_still(&shown, self.attempt(subject));
        }
    }

    /// Which attempt is the next one about a claim or volume, from 1.
    pub fn attempt(&self, target: &Target) -> u32 {
        self.retries.failures(target).saturating_add(1)
    }

    /// A write was answered, or was not.
    fn write_answered(
        &mut self,
        op: &Op,
        write: &Write,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) -> Then {
        if let Err(CallError::Conflict(_) | CallError::Unknown(_) | CallError::Throttled { .. }) = &result {
            self.note_failing(op, write);
        }
        // A plugin knows by itself what its write has changed.
        let is_of_plugin =
            matches!(write.kind, WriteKind::CreateVolume | WriteKind::DeleteVolume | WriteKind::Reschedule);
        match result {
            // Something on the way took our change out of it: the next try would change nothing, either. As upstream, what
            // is only put right first does not hold up the rest.
            Ok(answer) if op.changed_nothing(&answer) => {
                self.observe_response(answer, now);
                if write.kind != WriteKind::Annotate {
                    self.note_unreservable(op, write, now);
                    return Then::Failed;
                }
                self.state.stripped.insert(op.subject.clone(), (content(write), op.known));
                self.own_writes.made(op.subject.clone(), write, now, jitter);
                Then::Look
            }
            Ok(answer) => {
                if let Some(target) = Target::of(&write.target).filter(|_| !is_of_plugin) {
                    // Not changed by another: what is taken out is not tried again.
                    if let Some((_, revision)) = self.state.stripped.get_mut(&target)
                        && *revision == op.known
                    {
                        *revision = answer.revision();
                    }
                    self.own_writes.made(target, write, now, jitter);
                }
                self.observe_response(answer, now);
                self.recorder.caused(&op.subject, &write.then);
                if let Target::Claim(key) = &op.subject {
                    match (write.kind, &op.volume, op.known) {
                        // It is a try like others until it has come to its end: it may be reverted.
                        (WriteKind::ReserveVolume, Some(name), Some(known))
                            if self.state.tried.contains_key(key) =>
                        {
                            self.state.note_tried(key, name, known);
                        }
                        (WriteKind::NameVolume | WriteKind::ClaimBound, ..) => {
                            self.state.tried.remove(key);
                        }
                        _ => {}
                    }
                    // What a claim was given up for still explains why it is Lost.
                    if write.kind != WriteKind::ClaimLost {
                        self.state.proofs.forget_claim(key);
                    }
                }
                self.retries.clear(&op.subject);
                Then::Look
            }
            // It went away first, which is no failure: what is left is looked at again.
            Err(CallError::NotFound(_)) if op.subject.uid(&self.state.objects).is_some() => Then::Conflicted,
            Err(CallError::NotFound(_)) => Then::Look,
            // What the object looks like now is not known.
            Err(CallError::Conflict(_)) => Then::Read(Purpose::Refresh),
            Err(CallError::Unknown(_)) => {
                self.note_unknown(op, write, now);
                Then::Read(Purpose::Refresh)
            }
            // What a creation met is there.
            Err(CallError::AlreadyExists(_)) => Then::Read(Purpose::SeeWhose),
            Err(error) => {
                if matches!(error, CallError::Refused { .. }) {
                    self.note_unreservable(op, write, now);
                }
                Then::Pause(error)
            }
        }
    }

    /// Notes a volume that is not to be reserved: it may be the volume, and keeps no claim from another (L15); or the claim that
    /// names it, and keeps it from no other.
    fn note_unreservable(&mut self, op: &Op, write: &Write, now: Instant) {
        let (Target::Claim(key), WriteKind::ReserveVolume | WriteKind::Annotate) = (&op.subject, write.kind)
        else {
            return;
        };
        let is_its = |claim: &Arc<PersistentVolumeClaim>| op.uid.as_ref() == Some(&claim.metadata.uid);
        let Some(claim) = self.state.objects.claims.get(key).filter(is_its) else { return };
        let name = op.volume.clone().unwrap_or_else(|| claim.spec.volume_name.clone());
        let is_as_it_was = |volume: &PersistentVolume| {
            write.kind != WriteKind::ReserveVolume || op.known == Some(volume.metadata.resource_version)
        };
        let volume = self.state.volume(&name).filter(|volume| volume.spec.claim_ref.is_none());
        if let Some(volume) = volume.filter(|volume| is_as_it_was(volume)) {
            self.state.note_refused(&name, &claim);
            if claim.spec.volume_name.is_empty() {
                self.state.note_tried(key, &name, volume.metadata.resource_version);
            }
            self.queue.offer(name, now);
        }
    }

    /// Notes a volume whose reservation fails again and again with an answer that the next try may mend (L15).
    fn note_failing(&mut self, op: &Op, write: &Write) {
        if let (Target::Claim(key), Some(name), Some(known)) = (&op.subject, &op.volume, op.known)
            && write.kind == WriteKind::ReserveVolume
            && self.attempt(&op.subject) > FAILED_TRIES
        {
            if self.state.failing.len() >= MOST_FAILING {
                self.state.failing.clear();
            }
            self.state.failing.insert(name.clone(), known);
            self.state.note_tried(key, name, known);
        }
    }

    /// A read was answered with what was found, if that was there.
    fn read_answered(
        &mut self,
        op: &Op,
        (target, purpose): (&ObjectRef, &Purpose),
        found: Option<Answer>,
        now: Instant,
    ) -> Then {
        match (target, purpose, found) {
            (_, Purpose::LearnOwner(_), found) => {
                let managers = if let Some(Answer::Owners(managers)) = found { managers } else { Vec::new() };
                self.state.writers.learn(&op.subject, &managers, now);
                Then::Look
            }
            (_, Purpose::ProveClaim(uid), None) => self.claim_read(op, uid, None, now),
            (_, Purpose::ProveClaim(uid), Some(Answer::Claim(claim))) => {
                self.claim_read(op, uid, Some(claim), now)
            }
            (ObjectRef::Volume(name), Purpose::ProveVolume, None) => self.volume_read(op, name, None, now),
            (ObjectRef::Volume(name), Purpose::ProveVolume, Some(Answer::Volume(volume))) => {
                self.volume_read(op, name, Some(volume), now)
            }
            (_, Purpose::Refresh, Some(answer))
            | (_, Purpose::ProveReleased | Purpose::SeeWhose, Some(answer @ Answer::Volume(_))) => {
                self.observe_response(answer, now);
                Then::Look
            }
            (_, _, None) => Then::Look,
            // An answer of another kind than asked for proves nothing.
            (_, _, Some(answer)) => {
                self.observe_response(answer, now);
                Then::Failed
            }
        }
    }

    /// Reads the object of a write, while its claim and volume stay held; its subject pauses if that happens again and again:
    /// a volume before the read, and a claim after it, so that it does not hold a volume meanwhile.
    fn read_again(&mut self, op: Op, purpose: Purpose, now: Instant, jitter: f64) {
        let Some(target) = op.call.target().cloned() else { return self.release(&op, now) };
        let again = Op::new(op.subject, op.volume, Call::read(target, purpose), &self.state.objects);
        let op = Op { uid: op.uid, ..again };
        self.retries.conflicted(&op.subject, now, jitter);
        self.queue.add_urgent(op.subject.clone(), now);
        let is_alone = matches!(op.subject, Target::Volume(_));
        self.state.in_flight.park(op, is_alone);
    }

    /// Notes what an outcome means for requests of every kind.
    fn note_outcome(&mut self, op: &Op, result: &Result<Answer, CallError>, now: Instant) {
        self.state.in_flight.sent = self.state.in_flight.sent.saturating_sub(1);
        let is_made = result.as_ref().is_ok_and(|answer| !op.changed_nothing(answer));
        if let Call::Write(write) = &op.call {
            match result {
                Ok(Answer::Claim(claim)) => self.own_writes.shown(claim, now),
                Ok(Answer::Volume(volume)) => self.own_writes.shown(volume, now),
                _ => {}
            }
            if let Target::Claim(key) = &op.subject
                && !matches!(result, Err(CallError::NotLeader))
            {
                let claim = self.state.objects.claims.get(key);
                let of_claim = (claim.as_deref(), self.attempt(&op.subject));
                self.recorder.durations.written(key, write, is_made, of_claim, now);
            }
        }
        if let (Err(CallError::NotFound(_)), Some(known), Some(object)) = (result, op.known, op.call.target())
        {
            self.gone(object, known, now);
        }
        // What was proven for it is of the past when it is tried again.
        match (&op.subject, op.call.write_kind()) {
            (Target::Volume(name), Some(WriteKind::VolumeReleased)) if !is_made => {
                self.state.proofs.forget_volume(name);
            }
            (Target::Claim(key), Some(WriteKind::ClaimLost | WriteKind::ClaimPending)) if !is_made => {
                self.state.proofs.forget_claim(key);
            }
            _ => {}
        }
    }

    /// An object that we knew at this revision does not exist. The watch may never tell: if it was cut
    /// meanwhile, the next list just lacks it.
    fn gone(&mut self, object: &ObjectRef, known: ResourceVersion, now: Instant) {
        with_object!(object, |key: Kind| self.state.objects.prove_gone::<Kind>(key, known));
        self.table_changed(object, now);
    }

    /// A write of unknown outcome that gives a volume to a claim may be made later than we look.
    fn note_unknown(&mut self, op: &Op, write: &Write, now: Instant) {
        if let (WriteKind::ReserveVolume | WriteKind::NameVolume, Target::Claim(key)) =
            (write.kind, &op.subject)
            && let (Some(volume), Some(revision)) = (&op.volume, op.known)
            && let Some(claim) = self.state.objects.claims.get(key)
        {
            self.state.doubts.note(&claim, volume, (&write.target, revision), now);
        }
    }

    /// Notes what a live read said about the claim a volume refers to.
    fn claim_read(&mut self, op: &Op, uid: &Uid, found: Option<PersistentVolumeClaim>, now: Instant) -> Then {
        let Target::Volume(name) = &op.subject else { return Then::Look };
        let volume = self.state.objects.volumes.get(name);
        let proof = volume.as_ref().and_then(|volume| ClaimProof::of(found.as_ref(), uid, volume));
        let living = found.as_ref().filter(|claim| claim.metadata.uid == *uid).map(Narrow::key);
        let news = found.is_some_and(|claim| self.observe_response(Answer::Claim(claim), now));
        if let (Some(volume), Some(proof)) = (&volume, proof) {
            self.state.proofs.note_claim(volume, uid, proof);
        }
        let claims = &self.state.objects.claims;
        let is_shown = |key: &ClaimKey| claims.get(key).is_some_and(|claim| claim.metadata.uid == *uid);
        if (proof.is_none() && !news) || living.is_some_and(|key| !is_shown(&key)) {
            // The claim is there, and our table does not show it as it is: the watch is about to.
            return Then::Failed;
        }
        Then::Look
    }

    /// Notes what a live read said about the volume a claim is bound to.
    fn volume_read(
        &mut self,
        op: &Op,
        name: &VolumeName,
        found: Option<PersistentVolume>,
        now: Instant,
    ) -> Then {
        let Target::Claim(key) = &op.subject else { return Then::Look };
        let claim = self.state.objects.claims.get(key);
        // A claim that was made anew, or names another volume by now, has its own read.
        let is_same = |claim: &Arc<PersistentVolumeClaim>| {
            op.uid.as_ref() == Some(&claim.metadata.uid) && claim.spec.volume_name == *name
        };
        let Some(claim) = claim.filter(is_same) else { return Then::Look };
        let proof = VolumeProof::of(found.as_ref(), &claim);
        let news = found.is_some_and(|volume| self.observe_response(Answer::Volume(volume), now));
        let Some(proof) = proof else { return if news { Then::Look } else { Then::Failed } };
        let seen = Seen::of(&self.state.objects, name);
        self.state.proofs.note_volume((key, &claim.metadata.uid), seen, proof);
        Then::Look
    }

    /// Takes in what a live read said about a class, for all claims that asked for it, or that it failed.
    fn class_read(
        &mut self,
        class: &ClassName,
        failure: Option<&Failure>,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) -> Then {
        let Some((newest_claim, joined)) = self.class_reads.remove(class) else { return Then::Look };
        let joined: Vec<Target> = joined.into_iter().map(Target::Claim).collect();
        for target in &joined {
            self.queue.add_slowly(target.clone(), false, now);
        }
        match result {
            Err(CallError::NotFound(_)) => {
                self.state.proofs.note_no_class(class, newest_claim);
                Then::Look
            }
            Err(error) => {
                for target in &joined {
                    self.retries.failed_by(target, &error, true, now, jitter);
                    if let Some(failure) = failure {
                        let uid = target.uid(&self.state.objects);
                        self.fails(target, Failure { uid, ..failure.clone() });
                    }
                }
                Then::Pause(error)
            }
            Ok(answer) => {
                self.observe_response(answer, now);
                if self.state.objects.classes.get(class).is_some() {
                    return Then::Look;
                }
                // It is gone again, of which the watch has told: nothing is proven, and asked again later.
                for target in &joined {
                    self.retries.failed(target, now, jitter);
                }
                Then::Failed
            }
        }
    }

    /// Puts an answer into the table and its consequences into the indexes, at once. Returns
    /// whether the answer said anything new.
    fn observe_response(&mut self, answer: Answer, now: Instant) -> bool {
        /// Returns the object, and whether the answer is news.
        fn take<T: Stored>(objects: &Objects, object: T) -> (ObjectRef, bool) {
            let key = object.key();
            let news = objects.observe_response(object);
            (T::object_ref(key), news)
        }
        let objects = &self.state.objects;
        let (object, news) = match answer {
            Answer::Claim(claim) => take(objects, claim),
            Answer::Volume(volume) => take(objects, volume),
            Answer::Pod(pod) => take(objects, pod),
            Answer::Class(class) => take(objects, class),
            Answer::Deleted | Answer::Owners(_) | Answer::Directory(_) => return false,
        };
        if let ObjectRef::Volume(name) = &object
            && news
        {
            self.state.unprove_claims_of(name);
        }
        self.table_changed(&object, now);
        news
    }

    /// Frees what a request touched, and looks at it again before anything else.
    fn release(&mut self, op: &Op, now: Instant) {
        for target in op.touches() {
            self.state.in_flight.busy.remove(&target);
            match &target {
                Target::Claim(key) => {
                    self.queue.extend(self.state.volumes.referring_to(key).cloned().map(Target::Volume), now);
                }
                Target::Volume(name) => {
                    let volume = self.state.objects.volumes.get(name);
                    // The table may be ahead of what was taken of it: the claim that it referred to does not wait for it.
                    let before = self.state.volumes.update(name, volume.as_deref());
                    self.queue.extend(before.map(Target::Claim), now);
                    self.wake_about(name, now);
                }
            }
            self.queue.add_urgent(target, now);
        }
    }
}
