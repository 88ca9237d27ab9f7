//! The plan: which keys are due, and each one's turn.
//!
//! In: the time; the queue and the state as changes and answers have left them. Out: a [`Plan`] of independent requests.
//! Two rules keep S18 to S22: never two requests at once about one claim or one volume, and no decision about either
//! before the answer to the last request has been taken in (S38). The steps of a turn are in the order that is safe.

use std::{cmp::Reverse, mem, sync::Arc, time::Duration};

use apiserver::{
    ids::{ClaimKey, ClassName, VolumeName},
    kinds::{ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
};
use tokio::time::Instant;

use super::{
    calls::{Call, Purpose, Target, WriteKind},
    controller::{Plan, Planner},
    decide::{
        claim::{sync_claim, sync_upkept_claim},
        decision::{ClaimDecision, Decision, VolumeDecision},
        reclaim::deletion_plugin,
        unreadable,
        volume::{sync_upkept_volume, sync_volume},
    },
    matching::{
        choose_claim::Rank,
        predicate::{Requirements, volume_class},
    },
    queue::Turn,
    reasons::{ClaimReason, HeldBack, VolumeReason, WaitsFor},
    recorder::Recorder,
    reports::Why,
    state::State,
};
use crate::controller::{report::events::EventUpdate, second_writer::UNFENCED};

/// Looks at claims and volumes in one plan, after which what has come in meanwhile goes first (L15). A look takes
/// some ten microseconds, and a tenth of a millisecond at the most.
pub(super) const LOOKS: usize = 500;

/// Volumes and claims held against each other in one plan, after which likewise. It takes some tenths of a microsecond
/// if labels tell them apart. The search of one claim, or for the candidate of one volume, is never cut off, so that
/// none begins anew without end: the last of a plan may go through all there are.
pub(super) const COMPARED: usize = 20_000;

/// So many volumes whose reservations others undo are passed over in one look at a claim: each is a search of its own.
const PASSED_OVER: usize = 8;

/// When a volume is looked at again that is to be recycled once the pods are shown as of now.
///
/// KCM: pkg/controller/volume/persistentvolume/config/v1alpha1/defaults.go, PVClaimBinderSyncPeriod.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

impl Planner {
    /// Decides about as many keys as may run now.
    pub fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan::default();
        self.state.compared.set(0);
        self.wake_due(now);
        self.state.writers.settle(now);
        while !self.state.in_flight.is_full() && !self.is_long(&plan) {
            if let Some((name, declined)) = self.waking.take() {
                self.wake_candidate(&name, Some(declined), (now, now), &mut plan);
                continue;
            }
            match self.queue.pop(now) {
                Some((Turn::Look(Target::Claim(key)), since)) => {
                    self.plan_claim(&key, (since, now), &mut plan);
                }
                Some((Turn::Look(Target::Volume(name)), _)) => self.plan_volume(&name, now, &mut plan),
                Some((Turn::Offer(name), since)) => {
                    self.wake_candidate(&name, None, (since, now), &mut plan);
                }
                None => break,
            }
        }
        let dues = [
            self.retries.next_due(),
            self.state.plugins.next_due(),
            self.queue.next_due(),
            self.state.delaying.next_due(),
            self.state.writers.ends_at(),
            self.resync_at.filter(|_| self.queue.has_no_slow_keys()),
            // There is more to look at, and room for what comes of it.
            (!self.state.in_flight.is_full() && self.is_long(&plan)).then_some(now),
        ];
        plan.measures.compared = self.state.compared.get();
        plan.wake_at = dues.into_iter().flatten().min();
        let Recorder { durations, events, reports, failed, .. } = &mut self.recorder;
        (plan.events, plan.reports) = (mem::take(events), mem::take(reports));
        (plan.measures.samples, plan.measures.failed) =
            (mem::take(&mut durations.samples), mem::take(failed));
        plan.counts = self.queue.take_counts().to_vec();
        plan.others = self.state.writers.take_news();
        plan
    }

    /// Whether a plan goes on with the next: what has come in meanwhile goes first.
    fn is_long(&self, plan: &Plan) -> bool {
        plan.measures.looks >= LOOKS || self.state.compared.get() >= COMPARED
    }

    /// Queues the keys whose time has come.
    fn wake_due(&mut self, now: Instant) {
        for target in self.state.plugins.take_due(now).into_iter().chain(self.retries.take_due(now)) {
            let is_urgent = self.state.in_flight.parked.contains_key(&target);
            self.queue.retry(target, now, is_urgent);
        }
        self.queue.add_due(now);
        for class in self.state.delaying.take_due(now) {
            // What was read meanwhile may be older than one that the watch has not told of yet.
            self.state.proofs.forget_class(&class);
            self.wake_class(&class, now);
        }
        self.resync(now);
    }

    /// The safety net under the wake-ups: what is not settled is looked at again from time to time. Sends nothing if all
    /// is as it was.
    fn resync(&mut self, now: Instant) {
        if self.resync_at.is_some_and(|due| now >= due) && self.queue.has_no_slow_keys() {
            let some = self.recorder.unsettled(self.resynced_to.as_ref(), LOOKS);
            self.resynced_to = some.last().filter(|_| some.len() == LOOKS).cloned();
            for target in some {
                self.queue.add_slowly(target, false, now);
            }
            if self.resynced_to.is_some() {
                // The next come when these have been looked at.
                return;
            }
            self.resync_at = None;
            self.state
                .proofs
                .keep_classes(|class| self.state.claims.open_in_class(class.as_str()).next().is_some());
            self.own_writes.forget_old(now);
        }
        self.resync_at.get_or_insert(now + self.state.options.sync_period);
    }

    /// Looks at the claims for which a volume that has become free is a candidate, until one takes it. It has waited for
    /// that since then.
    fn wake_candidate(
        &mut self,
        name: &VolumeName,
        mut declined: Option<Rank>,
        (since, now): (Instant, Instant),
        plan: &mut Plan,
    ) {
        while self.state.volumes.is_free(name) && !self.state.is_busy(name) {
            if let Some(declined) = &declined
                && (self.is_long(plan) || self.state.in_flight.is_full())
            {
                self.waking = Some((name.clone(), declined.clone()));
                return;
            }
            plan.measures.looks += 1;
            // Its owner takes it back (S45).
            let Some(volume) = self.state.unowned(name) else { return };
            // What is busy or waits is looked at again when that ends.
            let current = |key: &ClaimKey| {
                self.state.compared.update(|count| count + 1);
                let is_free = !self.is_asleep(&Target::Claim(key.clone()));
                self.state.objects.claims.get(key).filter(|_| is_free)
            };
            let Some(rank) = self.state.claims.candidate(&volume, &current, declined.as_ref()) else {
                return;
            };
            let (_, Reverse((_, key))) = declined.insert(rank.clone());
            let key = key.clone();
            let since = self.queue.take(&Target::Claim(key.clone()), now).unwrap_or(since);
            self.plan_claim(&key, (since, now), plan);
        }
    }

    /// Why a step about a claim or volume has to wait, if it has to, and until when. It is looked at again then.
    fn held_back(
        &mut self,
        subject: &Target,
        step: Option<&Call>,
        now: Instant,
    ) -> Option<(HeldBack, Instant)> {
        let step = step?;
        let held = if step.is_destructive()
            && let Some(by) = self.state.writers.signal()
        {
            (HeldBack::ForeignWriter(by.act()), by.until)
        } else if step.is_destructive()
            && let Some(until) = self.state.objects.unfenced().until(now)
        {
            (HeldBack::ForeignWriter(UNFENCED.to_owned()), until)
        } else if step.is_destructive()
            && let Some(left) = self.state.objects.restore_grace().left(now)
        {
            (HeldBack::Restored, now + left)
        } else if let Call::Write(write) = step
            && let Some(target) = Target::of(&write.target)
            && let Some(until) = self.own_writes.until(&target, write, now)
        {
            // Of all that is undone, phases alone show by whom.
            let by = self.state.writers.manager(&target).filter(|_| write.is_of_a_phase());
            (HeldBack::Undone { write: write.kind, by: by.map(str::to_owned) }, until)
        } else {
            return None;
        };
        let look_again = self.state.objects.unfenced().look_again(now).unwrap_or(held.1);
        self.queue.add_at(subject, held.1.min(look_again));
        Some(held)
    }

    /// Whether nothing is decided about a claim or volume for now: it is looked at again when its request is answered,
    /// or its pause is over.
    pub(crate) fn is_asleep(&self, target: &Target) -> bool {
        self.state.in_flight.busy.contains(target) || self.retries.waits(target)
    }

    /// Whether a request about a claim or volume is under way, or has to be sent before anything is decided about it.
    fn is_open(&self, target: &Target) -> bool {
        self.state.in_flight.busy.contains(target) || self.state.writers.has_to_read(target)
    }

    /// Whether a claim or volume has to wait, be it for the read that is sent here, as it comes before every decision.
    fn is_held_up(&mut self, target: &Target, now: Instant, plan: &mut Plan) -> bool {
        let waits = self.retries.waits(target);
        // What a write met, or has come to.
        if !(waits && self.state.in_flight.pauses(target))
            && let Some((op, _)) = self.state.in_flight.parked.remove(target)
        {
            self.state.in_flight.send(&op);
            plan.calls.push(op);
            return true;
        }
        if self.state.in_flight.busy.contains(target) {
            return true;
        }
        let call = if let Some((_, uid)) = self.state.writers.take_read(|known| known == target) {
            // A write of ours would hide who has changed it (S14). That does not wait for the pause after a failure.
            Call::read(target.object(), Purpose::LearnOwner(uid))
        } else if waits {
            return true;
        } else if let Target::Claim(key) = target
            && let Some(object) = self.state.doubts.take_over(key, &self.state.objects, now)
        {
            Call::read(object, Purpose::Refresh)
        } else {
            return false;
        };
        self.start(target.clone(), None, call, plan);
        true
    }

    /// The turn of a claim, for which it, or the volume that it may take, has waited since then. The order is safety.
    fn plan_claim(&mut self, key: &ClaimKey, (since, now): (Instant, Instant), plan: &mut Plan) {
        plan.measures.looks += 1;
        let target = Target::Claim(key.clone());
        // 1. Nothing is decided before what is under way, or has to be read first, is answered (S38).
        if self.is_held_up(&target, now, plan) {
            return;
        }
        self.state.claims.forget(key);
        self.seeking.forget(key);
        if let Some(until) = self.state.doubts.until(key) {
            self.queue.add_at(&target, until);
        }
        // 2. One that is gone leaves nothing to decide; one that cannot be read may be there (S42).
        let Some(claim) = self.state.objects.claims.get(key) else {
            if self.state.objects.unreadable::<PersistentVolumeClaim>(key).is_none() {
                self.retries.clear(&target);
                self.recorder.events.push(EventUpdate::Forget(target));
            }
            return;
        };
        // 3. The decision, and what is reported of it.
        let mut decision = self.judge_claim(&claim, now);
        // What it names, and is not to have, it takes after those that wait for any.
        if !claim.spec.volume_name.is_empty()
            && let Some(name) = reserved(&decision).filter(|name| self.state.is_refused(name, &claim))
        {
            self.wake_candidate(&name, None, (now, now), plan);
            if self.state.is_busy(&name) {
                decision = self.judge_claim(&claim, now);
            }
        }
        let reason = Arc::new(decision.reason);
        self.note_candidate(&claim, &reason, decision.step.as_ref());
        let binds_to = match &*reason {
            ClaimReason::Binding(volume, _) => Some(volume.clone()),
            _ => None,
        };
        let volume = binds_to.as_ref().and_then(|name| self.state.objects.volumes.get(name));
        let before = self.recorder.claim(key).cloned();
        let is_news = before.as_ref() != Some(&reason);
        let attempt = self.attempt(&target);
        let durations = &mut self.recorder.durations;
        durations.claim_looked((&claim, attempt), (&reason, is_news), volume.as_deref(), (since, now));
        let (why, outcome) = (Why::Claim(Arc::clone(&reason)), (decision.events, decision.step.is_some()));
        self.recorder.decided(&(&*claim).into(), why, outcome, attempt);
        // 4. Its step, one at most: its claim and volume are busy from here on.
        if let Some(step) = decision.step
            && !self.joins_read(&step, key)
        {
            self.start(target, binds_to, step, plan);
        }
        // 5. The volumes that were left alone while its class was read, and the one that it kept from others.
        match (before.as_deref(), &*reason) {
            (Some(ClaimReason::ProvingClass(_)), ClaimReason::ProvingClass(_)) => {}
            (Some(ClaimReason::ProvingClass(_)), _) => {
                self.queue.extend(self.state.volumes.referring_to(key).cloned().map(Target::Volume), now);
            }
            (Some(ClaimReason::Binding(..)), ClaimReason::NamedMismatched(volume, _)) => {
                self.queue.offer(volume.clone(), now);
            }
            _ => {}
        }
    }

    /// What to do about a claim, as far as that may be done now.
    fn judge_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> ClaimDecision {
        if let Some(what) = unreadable::for_claim(&self.state.objects, claim) {
            return ClaimDecision::rest(ClaimReason::ObjectUnreadable(what));
        }
        let key = claim.key();
        let target = Target::Claim(key.clone());
        let waiting = |why, until| ClaimDecision::waiting(claim, ClaimReason::HeldBack(why, until));
        let mut passed_over = 0;
        loop {
            let decision = sync_claim(claim, &self.state);
            let decision =
                self.beside_upkeep(&target, decision, waiting, |state| sync_upkept_claim(claim, state), now);
            let held_back = self.held_back(&target, decision.step.as_ref(), now);
            let Some((why, until)) = held_back else { return decision };
            // Another volume that is as good does, if there is one; one that the claim names is kept from no other (L15).
            if let (HeldBack::Undone { .. }, Some(name)) = (&why, reserved(&decision))
                && passed_over < PASSED_OVER
                && let Some(volume) = self.state.volume(&name)
            {
                if self.state.note_refused(&name, claim) {
                    self.queue.offer(name, now);
                } else if claim.spec.volume_name.is_empty() && self.state.is_open(&key, &volume) {
                    self.state.note_tried(&key, &name, volume.metadata.resource_version);
                    passed_over += 1;
                    continue;
                }
            }
            // What was proven is of the past when the step is taken at last.
            self.state.proofs.forget_claim(&key);
            let held = waiting(why, until);
            // What the claim waits for stays what it waits for, whatever its phase says meanwhile.
            if decision.step.as_ref().and_then(Call::write_kind) == Some(WriteKind::ClaimPending) {
                return held.events.into_iter().fold(Decision { step: None, ..decision }, Decision::telling);
            }
            return held;
        }
    }

    /// What is only put right first holds up nothing while others undo it, as upstream: that is told, and the rest decided.
    fn beside_upkeep<R>(
        &mut self,
        target: &Target,
        decision: Decision<R>,
        waiting: impl Fn(HeldBack, Instant) -> Decision<R>,
        rest: impl FnOnce(&State) -> Decision<R>,
        now: Instant,
    ) -> Decision<R> {
        let step = decision.step.as_ref().filter(|step| step.write_kind() == Some(WriteKind::Annotate));
        match self.held_back(target, step, now) {
            Some((why, until)) => {
                waiting(why, until).events.into_iter().fold(rest(&self.state), Decision::telling)
            }
            None => decision,
        }
    }

    /// Has a claim wait for the read of its class, if that is its step and one is under way: it goes on, or pauses, when
    /// that is answered.
    fn joins_read(&mut self, step: &Call, claim: &ClaimKey) -> bool {
        let Call::Read { target: ObjectRef::Class(class), purpose: Purpose::ProveNoClass } = step else {
            return false;
        };
        let Some((_, joined)) = self.class_reads.get_mut(class) else { return false };
        joined.insert(claim.clone());
        true
    }

    /// A claim without volume takes the next free one that fits, also if it has a step, should that fail.
    fn note_candidate(&mut self, claim: &PersistentVolumeClaim, reason: &ClaimReason, step: Option<&Call>) {
        let reserves = step.is_some_and(|step| step.write_kind() == Some(WriteKind::ReserveVolume));
        let undone = [WriteKind::ReserveVolume, WriteKind::AskProvisioner];
        let has_to_wait = undone.into_iter().any(|kind| reason.is_undone(kind));
        if (reason.wants_volume() || (reserves || has_to_wait) && claim.spec.volume_name.is_empty())
            && let Ok(requirements) = Requirements::of(claim)
            && !self.state.is_delayed(&requirements)
        {
            let waiting = if step.is_none() { &mut self.state.claims } else { &mut self.seeking };
            let tries = if let ClaimReason::Binding(volume, _) = reason { volume.clone() } else { "".into() };
            waiting.wait(&requirements, tries);
        }
    }

    /// The turn of a volume. The order is safety.
    fn plan_volume(&mut self, name: &VolumeName, now: Instant, plan: &mut Plan) {
        plan.measures.looks += 1;
        let target = Target::Volume(name.clone());
        let Some(volume) = self.state.objects.volumes.get(name) else {
            self.recorder.events.push(EventUpdate::Forget(target.clone()));
            if !self.is_held_up(&target, now, plan) {
                self.retries.clear(&target);
            }
            return;
        };
        // A read that holds the volume and a claim waits for neither.
        if self.state.in_flight.parked.contains_key(&target) {
            self.is_held_up(&target, now, plan);
            return;
        }
        // 1. The claims go first: if one takes the volume, writing "Available" in between would only make its own write
        //    fail. Of a volume that refers to none, these are those that name it and may take it (S45).
        let reference = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
        let claims: Vec<ClaimKey> = match &reference {
            Some(key) => vec![key.clone()],
            None => self.state.takers(&volume).map(|claim| claim.key()).collect(),
        };
        for key in &claims {
            if let Some(since) = self.queue.take(&Target::Claim(key.clone()), now) {
                self.plan_claim(key, (since, now), plan);
                // There may be many: the rest goes first in the next plan.
                if self.is_long(plan) {
                    self.queue.add(target, now);
                    return;
                }
            }
        }
        if let Some(key) = &reference
            && (self.recorder.is_proving_class(key) || self.is_open(&Target::Claim(key.clone())))
        {
            return;
        }
        // 2. Nothing is decided before what is under way, or has to be read first, is answered (S38).
        if self.is_held_up(&target, now, plan) {
            return;
        }
        // 3. The decision, and what is reported of it.
        let shown = self.state.objects.pods.observed();
        let decision = self.judge_volume(&volume, now);
        let reason = Arc::new(decision.reason);
        let deleted_by = (reason.row().2 == WaitsFor::Deletion).then(|| {
            let class = self.state.objects.classes.get(&ClassName::from(volume_class(&volume)));
            deletion_plugin(&volume, class.as_deref(), &*self.state.plugins)
        });
        let is_news = self.recorder.volume(name).is_none_or(|before| *before != reason);
        let durations = &mut self.recorder.durations;
        durations.volume_looked(name, (&reason, is_news), deleted_by.flatten().as_deref(), now);
        let (attempt, outcome) = (self.attempt(&target), (decision.events, decision.step.is_some()));
        if matches!(*reason, VolumeReason::UsedByPods(_))
            && let Some(claim) = reference.and_then(|key| self.state.objects.claims.get(&key))
            && shown < claim.metadata.resource_version
        {
            // That the pods are shown as of the claim made anew (S44), nothing may tell.
            self.queue.add_at(&target, now + LOOK_AGAIN);
        }
        self.recorder.decided(&(&*volume).into(), Why::Volume(reason), outcome, attempt);
        // 4. Its step, one at most.
        if let Some(step) = decision.step {
            self.start(target, None, step, plan);
        }
    }

    /// What to do about a volume, as far as that may be done now.
    fn judge_volume(&mut self, volume: &PersistentVolume, now: Instant) -> VolumeDecision {
        if let Some(what) = unreadable::for_volume(&self.state.objects, volume) {
            return VolumeDecision::rest(VolumeReason::ObjectUnreadable(what));
        }
        let name = volume.key();
        let target = Target::Volume(name.clone());
        let waiting = |why, until| VolumeDecision::waiting(volume, VolumeReason::HeldBack(why, until));
        let decision = sync_volume(volume, &self.state);
        let decision =
            self.beside_upkeep(&target, decision, waiting, |state| sync_upkept_volume(volume, state), now);
        let what_of = |step| unreadable::for_step(&self.state.objects, volume, step);
        if let Some(what) = decision.step.as_ref().and_then(what_of) {
            self.state.plugins.unproven(&name);
            return VolumeDecision::rest(VolumeReason::ObjectUnreadable(what));
        }
        let held_back = self.held_back(&target, decision.step.as_ref(), now);
        let Some((why, until)) = held_back else { return decision };
        // What was proven is of the past when the step is taken at last.
        let releases =
            |step: &Call| matches!(step, Call::Write(write) if write.kind == WriteKind::VolumeReleased);
        if decision.step.as_ref().is_some_and(releases) {
            self.state.proofs.forget_volume(&name);
        }
        self.state.plugins.unproven(&name);
        waiting(why, until)
    }
}

/// The volume that a claim is about to reserve.
fn reserved(decision: &ClaimDecision) -> Option<VolumeName> {
    match &decision.reason {
        ClaimReason::Binding(volume, WriteKind::ReserveVolume) => Some(volume.clone()),
        _ => None,
    }
}
