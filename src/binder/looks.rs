//! What comes of a look at one claim or one volume.
//!
//! In: a key that is due. Out: at most one request, which [`Planner::start`] hands out, what users are told, and
//! the reason why nothing more is done. Whatever is busy or waits is left alone here; a step that cannot be taken
//! back is held back while another binder is at work or etcd was restored a short while ago.

use tokio::time::Instant;

use super::{
    act::op::Call,
    decide::{
        claim::ClaimDecision,
        decision::{Decision, Directory, Step, Target, WriteKind, normal, warning},
        reclaim::measured_as,
        volume::VolumeDecision,
    },
    matching::predicate::{Wish, volume_class},
    planner::{Plan, Planner},
    plugins::host_path::{self, HostPath},
    tell::{
        latency::BindMode,
        reason::{ClaimReason, HeldBack, VolumeReason},
    },
};
use crate::{
    kube_api::{
        events::Event,
        ids::{ClaimKey, ClassName, VolumeName},
        kinds::{BindingMode, ClaimPhase, Narrow, PersistentVolumeClaim},
    },
    traces::End,
};

impl Planner {
    /// Why a step has to wait, if that is so.
    fn held_back(&self, step: Option<&Step>, pair: &[Target], now: Instant) -> Option<HeldBack> {
        if !step.is_some_and(Step::is_destructive) {
            None
        } else if let Some(by) = self.rivals.stand_off(pair) {
            Some(HeldBack::ForeignWriter { by: by.to_string(), until: by.until })
        } else {
            let left = self.objects.restore_grace().left(now)?;
            Some(HeldBack::Restored { until: now + left })
        }
    }

    /// Whether a claim takes no free volume, but only one that is reserved for it.
    fn is_delayed(&self, wish: &Wish<'_>) -> bool {
        let class = self.objects.classes.get(&ClassName::from(wish.class));
        class.is_some_and(|class| class.volume_binding_mode == Some(BindingMode::WaitForFirstConsumer))
    }

    /// Looks at a claim, if nothing is under way about it.
    pub(super) fn plan_claim(&mut self, key: &ClaimKey, now: Instant, plan: &mut Plan) {
        plan.looks += 1;
        let target = Target::Claim(key.clone());
        self.queue.remove(&target, now);
        // Whoever is busy or waits is looked at again when that ends.
        if self.busy_claims.contains(key) || self.retries.waits(&target) {
            return;
        }
        self.claims.forget(key);
        let Some(claim) = self.objects.claims.get(key) else {
            if self.objects.unreadable::<PersistentVolumeClaim>(key).is_none() {
                self.plan_orphan(key, plan);
            }
            return;
        };
        let mut decision = match self.unreadable_for_claim(&claim) {
            Some(what) => ClaimDecision::rest(ClaimReason::ObjectUnreadable(what)),
            None => self.decide_claim(&claim),
        };
        let volume = Target::Volume(claim.spec.volume_name.clone());
        if let Some(why) = self.held_back(decision.step.as_ref(), &[target.clone(), volume], now) {
            let event = tell(&*claim, &why);
            decision = ClaimDecision::rest(ClaimReason::HeldBack(why)).telling(event);
        }
        *plan.decisions.entry(("claim", decision.reason.code())).or_default() += 1;
        self.still_fails(&target, &mut decision, now);
        if decision.step.is_none()
            && decision.reason.wants_volume()
            && let Ok(wish) = Wish::of(&claim)
            && !self.is_delayed(&wish)
        {
            self.claims.wait(&wish);
        }
        if tells(&decision, decision.reason.is_settled()) {
            plan.events.extend(self.told.news(&target, decision.events, now));
        }
        match &decision.reason {
            ClaimReason::WaitsForProvisioner(provisioner) => {
                self.latency.stops(key);
                self.latency.asks(key, provisioner, now);
            }
            ClaimReason::Provisioning(plugin) => {
                self.latency.stops(key);
                self.latency.asks(key, plugin, now);
            }
            ClaimReason::NotProvisioned(why) => {
                self.latency.stops(key);
                self.latency.asks(key, host_path::PLUGIN, now);
                if why.is_of_plugin() && self.standing.claim(key).as_ref() != Some(&decision.reason) {
                    self.latency.claim_failed(key);
                }
            }
            ClaimReason::Binding(volume, step) => {
                if claim.status.phase != ClaimPhase::Bound
                    && let Some(volume) = self.objects.volumes.get(volume)
                {
                    let mode = BindMode::of(&claim, &volume);
                    let since = self.queue.taken_since().unwrap_or(now);
                    self.latency.binds(key, Some(mode), since);
                    self.follow_bind(key, Some(*step), since, now);
                }
            }
            // If a volume is found then, all this time was ours.
            ClaimReason::ProvingClass(_) => {
                let since = self.queue.taken_since().unwrap_or(now);
                self.latency.binds(key, None, since);
                self.follow_bind(key, None, since, now);
            }
            ClaimReason::VolumeBusy(_) => {}
            _ => {
                self.latency.stops(key);
                self.end_bind(key, End::Superseded, now);
            }
        }
        if let Some(Step::ProveClass { class }) = &decision.step
            && self.join_class_read(class, key)
        {
            decision.step = None;
        }
        self.note_claim(&claim, &decision.reason, now);
        if let Some(step) = decision.step {
            let volume = match &decision.reason {
                ClaimReason::Binding(volume, _) => Some(volume.clone()),
                _ => None,
            };
            self.start(target, volume, Call::of(step), plan);
        }
        let was_undecided = matches!(self.standing.claim(key), Some(ClaimReason::ProvingClass(_)));
        if was_undecided && !matches!(decision.reason, ClaimReason::ProvingClass(_)) {
            // They were left alone meanwhile.
            self.queue.extend(self.volumes.referring_to(key).cloned().map(Target::Volume), now);
        }
        self.standing.set_claim(key, decision.reason, now);
    }

    /// What failed is tried again, and holds until it works; or there is nothing left to try.
    fn still_fails<Reason>(&mut self, target: &Target, decision: &mut Decision<Reason>, now: Instant) {
        if decision.step.is_none() {
            self.works(target, now);
        } else {
            decision.events.extend(self.failure_event(target));
        }
    }

    /// Nothing is left to decide about a claim that is gone; storage made for it in vain goes.
    fn plan_orphan(&mut self, key: &ClaimKey, plan: &mut Plan) {
        let target = Target::Claim(key.clone());
        self.retries.clear(&target);
        self.told.forget(&target);
        let orphan = self.runs.take_orphan(key);
        self.runs.forget(&target);
        if let Some(uid) = orphan
            && self.objects.volumes.get(&host_path::volume_name(&uid)).is_none()
            && let Some(path) = HostPath::of_claim(&uid)
        {
            self.start(target, None, Call::Directory(Directory::Remove(path)), plan);
        }
    }

    /// Looks at a volume, if nothing is under way about it.
    pub(super) fn plan_volume(&mut self, name: &VolumeName, now: Instant, plan: &mut Plan) {
        plan.looks += 1;
        let target = Target::Volume(name.clone());
        let Some(volume) = self.objects.volumes.get(name) else {
            if !self.retries.waits(&target) {
                self.retries.clear(&target);
            }
            return;
        };
        if let Some(reference) = &volume.spec.claim_ref {
            // The claim goes first: if it takes the volume, writing "Available" in between would
            // only make its own write fail.
            let key = reference.key();
            let claim = Target::Claim(key.clone());
            if self.queue.contains(&claim) {
                self.plan_claim(&key, now, plan);
            }
            let undecided = matches!(self.standing.claim(&key), Some(ClaimReason::ProvingClass(_)));
            if undecided || self.busy_claims.contains(&key) {
                return;
            }
        }
        if self.busy_volumes.contains(name) || self.retries.waits(&target) {
            return;
        }
        let mut decision = match self.unreadable_for_volume(&volume) {
            Some(what) => VolumeDecision::rest(VolumeReason::ObjectUnreadable(what)),
            None => self.decide_volume(&volume),
        };
        let claim = volume.spec.claim_ref.as_ref().map(|reference| Target::Claim(reference.key()));
        let pair: Vec<Target> = std::iter::once(target.clone()).chain(claim).collect();
        let held_back = self.held_back(decision.step.as_ref(), &pair, now);
        let releases =
            |step: &Step| matches!(step, Step::Write(write) if write.kind == WriteKind::VolumeReleased);
        if held_back.is_some() && decision.step.as_ref().is_some_and(releases) {
            // Its proof is of the past when the volume is released at last.
            self.proofs.forget_volume(name);
        }
        if let Some(why) = held_back {
            self.runs.unproven(name);
            let event = tell(&*volume, &why);
            decision = VolumeDecision::rest(VolumeReason::HeldBack(why)).telling(event);
        }
        if decision.reason.awaits_deletion() {
            let class = self.objects.classes.get(&ClassName::from(volume_class(&volume)));
            if let Some(plugin) = measured_as(&volume, class.as_deref(), &self.options) {
                self.latency.deletes(name, &plugin, now);
            }
        }
        // Between two attempts there is another reason.
        if let VolumeReason::DeleteFailed(_) = &decision.reason
            && self.standing.volume(name).as_ref() != Some(&decision.reason)
        {
            self.latency.volume_failed(name);
        }
        *plan.decisions.entry(("volume", decision.reason.code())).or_default() += 1;
        self.still_fails(&target, &mut decision, now);
        if tells(&decision, decision.reason.is_settled()) {
            plan.events.extend(self.told.news(&target, decision.events, now));
        }
        self.note_volume(&volume, &decision.reason, now);
        if let Some(step) = decision.step {
            self.start(target, None, Call::of(step), plan);
        }
        self.standing.set_volume(name, decision.reason, now);
    }
}

/// What users are told of what has to wait. After a restore nothing is wrong with it.
fn tell<T: Narrow>(object: &T, why: &HeldBack) -> Event {
    let event = match why {
        HeldBack::ForeignWriter { .. } => warning,
        HeldBack::Restored { .. } => normal,
    };
    event(object, why.code(), why.to_string())
}

/// Whether a decision has a say in what users are told. One that says nothing while something is still to come
/// is not the last word: what was told before may hold again after it, as with what is tried again and again.
fn tells<Reason>(decision: &Decision<Reason>, settled: bool) -> bool {
    settled || !decision.events.is_empty()
}
