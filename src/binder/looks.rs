//! What comes of a look at one claim or one volume.
//!
//! In: a key that is due. Out: at most one request, which [`Planner::start`] hands out, what users are told, and
//! the reason why nothing more is done. A key that is busy or waits is left alone here; a step that cannot be taken
//! back is held back while another binder is at work or etcd was restored a short while ago.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    act::{
        op::{Call, Purpose},
        write::{Target, WriteKind},
    },
    decide::{
        decision::{ClaimDecision, VolumeDecision},
        reclaim::deletion_plugin,
    },
    matching::predicate::{Requirements, volume_class},
    observe::unreadable,
    planner::{Plan, Planner},
    tell::reason::{ClaimReason, HeldBack, VolumeReason},
};
use crate::kube_api::{
    ids::{ClaimKey, ClassName, VolumeName},
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
};

impl Planner {
    /// Why a step about a claim or volume has to wait, if it has to. It is looked at again then.
    fn held_back(&mut self, subject: &Target, step: Option<&Call>, now: Instant) -> Option<HeldBack> {
        let why = self.obstacle(step?, now)?;
        self.queue.add_at(subject.clone(), why.until());
        Some(why)
    }

    fn obstacle(&mut self, step: &Call, now: Instant) -> Option<HeldBack> {
        if step.is_destructive() {
            if let Some(by) = self.second_writer.writers.signal() {
                return Some(HeldBack::ForeignWriter { by: by.act(), until: by.until });
            }
            if let Some(left) = self.known.objects.restore_grace().left(now) {
                return Some(HeldBack::Restored { until: now + left });
            }
        }
        let Call::Write(write) = step else { return None };
        let target = write.target.subject()?;
        let until = self.undone.until(&target, write, now)?;
        // Of all that is undone, phases alone show by whom.
        let by = self.second_writer.writers.manager(&target).filter(|_| write.is_of_a_phase());
        let is_news = self.undone.is_news(&target, by, now);
        Some(HeldBack::Undone { write: write.kind, by: by.map(str::to_owned), until, is_news })
    }

    /// Whether nothing is decided about a claim or volume for now: it is looked at again when its request is answered,
    /// or its pause is over.
    pub(crate) fn is_asleep(&self, target: &Target) -> bool {
        self.in_flight.has(target) || self.retries.waits(target)
    }

    /// Looks at a claim, if nothing is under way about it.
    pub(super) fn plan_claim(&mut self, key: &ClaimKey, now: Instant, plan: &mut Plan) {
        plan.looks += 1;
        let target = Target::Claim(key.clone());
        self.queue.remove(&target, now);
        if self.is_asleep(&target) {
            return;
        }
        if let Some(object) = self.known.doubts.take_over(key, &self.known.objects, now) {
            let call = Call::Read { target: object, purpose: Purpose::Refresh };
            return self.start(target, None, call, plan);
        }
        self.known.claims.forget(key);
        let Some(claim) = self.known.objects.claims.get(key) else {
            if self.known.objects.unreadable::<PersistentVolumeClaim>(key).is_none() {
                self.plan_gone_claim(key, plan);
            }
            return;
        };
        let mut decision = self.judge_claim(&claim, now);
        let Self { recorder, reasons, known, .. } = self;
        let is_settled = decision.reason.is_settled();
        recorder.decided(&target, (&mut decision, is_settled), reasons, &known.objects);
        let reason = Arc::new(decision.reason);
        if decision.step.is_none() {
            self.note_candidate(&claim, &reason);
        }
        let volume = match &*reason {
            ClaimReason::Binding(volume, _) => self.known.objects.volumes.get(volume),
            _ => None,
        };
        let (looked_at, since) = ((&*claim, self.attempt(&target)), self.queue.taken_since().unwrap_or(now));
        self.recorder.claim_looked(looked_at, &reason, volume.as_deref(), &self.reasons, (since, now));
        if let Some(step) = decision.step
            && !self.joins_read(&step, key)
        {
            let volume = match &*reason {
                ClaimReason::Binding(volume, _) => Some(volume.clone()),
                _ => None,
            };
            self.start(target, volume, step, plan);
        }
        if self.reasons.is_proving_class(key) && !matches!(*reason, ClaimReason::ProvingClass(_)) {
            // Its volumes were left alone meanwhile.
            self.queue.extend(self.known.volumes.referring_to(key).cloned().map(Target::Volume), now);
        }
        self.reasons.set_claim(key, reason);
    }

    /// What to do about a claim, as far as that may be done now.
    fn judge_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> ClaimDecision {
        if let Some(what) = unreadable::for_claim(&self.known.objects, claim) {
            return ClaimDecision::rest(ClaimReason::ObjectUnreadable(what));
        }
        let decision = self.decide_claim(claim);
        let key = claim.key();
        let held_back = self.held_back(&Target::Claim(key.clone()), decision.step.as_ref(), now);
        let Some(why) = held_back else { return decision };
        // What was proven is of the past when the step is taken at last.
        self.known.proofs.forget_claim(&key);
        ClaimDecision::waiting(claim, ClaimReason::HeldBack(why))
    }

    /// Has a claim wait for the read of its class, if that is its step and one is under way: it goes on, or pauses, when
    /// that is answered.
    fn joins_read(&mut self, step: &Call, claim: &ClaimKey) -> bool {
        let Call::ReadClass(class) = step else { return false };
        let Some((_, joined)) = self.class_reads.get_mut(class) else { return false };
        joined.insert(claim.clone());
        true
    }

    /// A claim without volume takes the next free one that fits.
    fn note_candidate(&mut self, claim: &PersistentVolumeClaim, reason: &ClaimReason) {
        if reason.wants_volume()
            && let Ok(requirements) = Requirements::of(claim)
            && !self.known.is_delayed(&requirements)
        {
            self.known.claims.wait(&requirements);
        }
    }

    /// Nothing is left to decide about a claim that is gone; storage made for it in vain goes.
    fn plan_gone_claim(&mut self, key: &ClaimKey, plan: &mut Plan) {
        let target = Target::Claim(key.clone());
        self.retries.clear(&target);
        self.recorder.forget(target.clone());
        if let Some(step) = self.known.plugins.claim_gone(key, &self.known.objects) {
            self.start(target, None, step, plan);
        }
    }

    /// Looks at a volume, if nothing is under way about it.
    pub(super) fn plan_volume(&mut self, name: &VolumeName, now: Instant, plan: &mut Plan) {
        plan.looks += 1;
        let target = Target::Volume(name.clone());
        let Some(volume) = self.known.objects.volumes.get(name) else {
            self.recorder.forget(target.clone());
            if !self.retries.waits(&target) {
                self.retries.clear(&target);
            }
            return;
        };
        if volume.spec.claim_ref.is_none() {
            // So do those that name it (S45).
            let naming: Vec<ClaimKey> = self.known.claims.naming(name).cloned().collect();
            for key in naming
                .iter()
                .filter(|key| self.queue.contains(&Target::Claim((*key).clone())))
                .collect::<Vec<_>>()
            {
                self.plan_claim(key, now, plan);
            }
        }
        if let Some(reference) = &volume.spec.claim_ref {
            // The claim goes first: if it takes the volume, writing "Available" in between would
            // only make its own write fail.
            let key = reference.key();
            let claim = Target::Claim(key.clone());
            if self.queue.contains(&claim) {
                self.plan_claim(&key, now, plan);
            }
            if self.reasons.is_proving_class(&key) || self.in_flight.has_claim(&key) {
                return;
            }
        }
        if self.is_asleep(&target) {
            return;
        }
        let mut decision = self.judge_volume(&volume, now);
        let Self { recorder, reasons, known, .. } = self;
        let is_settled = decision.reason.is_settled();
        recorder.decided(&target, (&mut decision, is_settled), reasons, &known.objects);
        let reason = Arc::new(decision.reason);
        let plugin = reason.awaits_deletion().then(|| {
            let class = self.known.objects.classes.get(&ClassName::from(volume_class(&volume)));
            deletion_plugin(&volume, class.as_deref(), &*self.known.plugins)
        });
        let looked_at = (&*volume, self.attempt(&target));
        self.recorder.volume_looked(looked_at, &reason, plugin.flatten().as_deref(), &self.reasons, now);
        if let Some(step) = decision.step {
            self.start(target, None, step, plan);
        }
        self.reasons.set_volume(name, reason);
    }

    /// What to do about a volume, as far as that may be done now.
    fn judge_volume(&mut self, volume: &PersistentVolume, now: Instant) -> VolumeDecision {
        if let Some(what) = unreadable::for_volume(&self.known.objects, volume) {
            return VolumeDecision::rest(VolumeReason::ObjectUnreadable(what));
        }
        let decision = self.decide_volume(volume);
        let name = volume.key();
        let held_back = self.held_back(&Target::Volume(name.clone()), decision.step.as_ref(), now);
        let Some(why) = held_back else { return decision };
        // What was proven is of the past when the step is taken at last.
        let releases =
            |step: &Call| matches!(step, Call::Write(write) if write.kind == WriteKind::VolumeReleased);
        if decision.step.as_ref().is_some_and(releases) {
            self.known.proofs.forget_volume(&name);
        }
        self.known.plugins.unproven(&name);
        VolumeDecision::waiting(volume, VolumeReason::HeldBack(why))
    }
}
