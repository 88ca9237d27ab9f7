//! What to look at next, and which decisions may run now.
//!
//! In: changes of objects, outcomes of requests, the time. Out: [`Plan`]s of independent requests.
//! It owns everything the binder remembers between decisions: the indexes, the keys still to be
//! looked at, who has a request under way, the proofs and the waits. Two rules keep S18 to S22:
//! never two requests at once about one claim or one volume, and no decision about either before
//! the answer to the last request has been taken in (S38).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    act::{
        op::{Call, Op, Purpose},
        write::{Object, Target},
    },
    decide::{
        claim::sync_claim,
        decision::{ClaimDecision, VolumeDecision},
        view::{BinderOptions, Plugins},
        volume::sync_volume,
    },
    in_flight::InFlight,
    known::Known,
    queue::{Next, Queue},
    reasons::Reasons,
    second_writer::SecondBinder,
    tell::{latency::Sample, reason::VolumeReason, recorder::Recorder, state::Report},
    undone::UndoneWrites,
};
use crate::{
    controller::{
        report::{Reason, Subject as _, events::EventUpdate},
        retry::RetryMap,
        second_writer::{News, SecondWriters},
    },
    kube_api::{
        events::Involved,
        ids::{ClaimKey, ClassName, PodKey, ResourceVersion, Uid, VolumeName},
        kinds::{PersistentVolume, PersistentVolumeClaim},
    },
    metrics::QueueCounts,
    state::Objects,
    traces::Traces,
};

/// Looks at claims and volumes in one plan, after which what has come in meanwhile goes first (L15). A look takes
/// some ten microseconds, and a tenth of a millisecond at the most.
pub(super) const LOOKS: usize = 500;

/// Volumes and claims held against each other in one plan, after which likewise. It takes some tenths of a microsecond
/// if labels tell them apart. The search of one claim, or for the candidate of one volume, is never cut off, so that
/// none begins anew without end: the last of a plan may go through all there are.
pub(super) const COMPARED: usize = 20_000;

/// What to do now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Requests to send; none touches what another touches.
    pub ops: Vec<Op>,
    /// What to tell users.
    pub events: Vec<EventUpdate<Target>>,
    /// Where claims and volumes stand.
    pub reports: Vec<Report>,
    /// Requests that failed, by what they were for and how they failed.
    pub failures: BTreeMap<(&'static str, &'static str), u64>,
    /// What was measured.
    pub samples: Vec<Sample>,
    /// What the queues of claims and of volumes counted.
    pub counts: [QueueCounts; 2],
    /// What others wrote that only a binder should.
    pub others: Option<News>,
    /// When to plan again if nothing happens.
    pub wake_at: Option<Instant>,
    /// How many looks at claims and volumes it took, and searches for the claim that takes a volume.
    pub looks: usize,
    /// How many volumes and claims were held against each other in them.
    pub compared: usize,
}

impl Plan {
    /// The codes of the reasons for which claims and volumes wait, of those that are reported.
    pub fn waits_for(&self) -> impl Iterator<Item = &'static str> {
        let reasons = self.reports.iter().filter_map(|report| report.reason.as_ref());
        reasons.filter(|reason| !reason.is_settled()).map(Reason::code)
    }

    /// How many decisions were made, by kind and reason.
    #[must_use]
    pub fn decisions(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut decisions = BTreeMap::new();
        for report in self.reports.iter().filter(|report| report.is_decision) {
            if let Some(reason) = &report.reason {
                *decisions.entry((report.key.kind(), reason.decided())).or_default() += 1;
            }
        }
        decisions
    }
}

/// Owner of the binder's memory.
#[derive(Debug)]
pub struct Planner {
    pub(super) known: Known,
    pub(super) queue: Queue,
    pub(super) in_flight: InFlight,
    /// Objects that the last list lacked, known from answers to our own requests alone. They are read live before anything
    /// is decided about them: such an object may have gone between our answer and the list, and then no event tells of it
    /// any more. Of one that is there after all the watch tells, which is about to pass our answer.
    pub(super) unconfirmed: BTreeSet<Object>,
    pub(super) retries: RetryMap<Target>,
    pub(super) recorder: Recorder,
    pub(super) reasons: Reasons,
    pub(super) second_writer: SecondBinder,
    pub(super) undone: UndoneWrites,
    /// Classes that are read live, each once for all its claims: the revision of the newest claim in our tables when the
    /// read was sent, and the other claims that wait for it. A class that its watch has not delivered yet may delay the bind
    /// of its claims, so its absence is proven before they are bound at once (S28).
    pub(super) class_reads: BTreeMap<ClassName, (ResourceVersion, BTreeSet<ClaimKey>)>,
    /// A free volume for which a candidate is sought, and the claims that have declined it so far.
    waking: Option<(VolumeName, BTreeSet<ClaimKey>)>,
    /// When everything unsettled is looked at again although nothing happened.
    resync_at: Option<Instant>,
}

impl Planner {
    /// A planner that has yet to be told of every object.
    #[must_use]
    pub fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self {
            known: Known::new(objects, options),
            queue: Queue::closed(),
            in_flight: InFlight::default(),
            unconfirmed: BTreeSet::new(),
            retries: RetryMap::default(),
            recorder: Recorder::default(),
            reasons: Reasons::default(),
            second_writer: SecondBinder::default(),
            undone: UndoneWrites::default(),
            class_reads: BTreeMap::new(),
            waking: None,
            resync_at: None,
        }
    }

    /// Has plugins recycle, delete and make volumes; before anything is loaded.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Box<dyn Plugins>) -> Self {
        self.known.plugins = plugins;
        self
    }

    /// Why a volume is where it is, if it is not settled.
    #[must_use]
    pub fn volume_reason(&self, name: &VolumeName) -> Option<&VolumeReason> {
        self.reasons.volume(name).map(|reason| &**reason)
    }

    /// How many claims wait, by the reason's code.
    #[must_use]
    pub fn waiting(&self) -> BTreeMap<&'static str, usize> {
        self.reasons.waiting()
    }

    /// Reports where a claim or volume stands although nothing was decided: a request about it fails, or works again.
    pub(super) fn report(&mut self, subject: &Target) {
        let attempt = self.attempt(subject);
        let Self { recorder, reasons, known, .. } = self;
        let failing = reasons.failing(subject);
        match subject {
            Target::Claim(key) => {
                let Some(reason) = reasons.claim(key).cloned() else { return };
                if let Some(claim) = known.objects.claims.get(key) {
                    recorder.claim_stands((&claim, attempt), &reason, failing, false);
                }
                reasons.set_claim(key, reason);
            }
            Target::Volume(name) => {
                let Some(reason) = reasons.volume(name).cloned() else { return };
                if let Some(volume) = known.objects.volumes.get(name) {
                    recorder.volume_stands((&volume, attempt), &reason, failing, false);
                }
                reasons.set_volume(name, reason);
            }
        }
    }

    /// Requests handed out and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.sent()
    }

    /// Whether a key waits for its time.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.retries.next_due().is_some() || self.queue.next_due().is_some()
    }

    /// The pods of plugins that are at work, by UID, with the volume of each.
    #[must_use]
    pub fn pods_at_work(&self) -> BTreeMap<Uid, (PodKey, Involved)> {
        self.known.plugins.pods_at_work(&self.known.objects)
    }

    /// Whether nothing may be decided about a volume: a request about it is under way, or a pod empties it.
    pub(super) fn is_busy(&self, name: &VolumeName) -> bool {
        self.in_flight.has_volume(name) || self.known.is_closed(name)
    }

    /// Decides about as many keys as may run now.
    pub fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan::default();
        self.known.compared.reset();
        for target in self.known.plugins.take_due(now) {
            self.queue.retry(target, now);
        }
        self.queue.add_due(now);
        for target in self.retries.take_due(now) {
            if !self.in_flight.unpark(&target) {
                self.queue.retry(target, now);
            }
        }
        self.second_writer.writers.settle(now);
        self.read_owners(&mut plan);
        self.resync(now);
        self.confirm(&mut plan);
        while !self.in_flight.is_full() {
            if let Some(op) = self.in_flight.send_ready() {
                plan.ops.push(op);
                continue;
            }
            if self.is_long(&plan) {
                break;
            }
            if let Some((name, declined)) = self.waking.take() {
                self.queue.forget_taken();
                self.wake_candidate(&name, declined, now, &mut plan);
                continue;
            }
            match self.queue.pop(now) {
                Some(Next::Look(Target::Claim(key))) => self.plan_claim(&key, now, &mut plan),
                Some(Next::Look(Target::Volume(name))) => self.plan_volume(&name, now, &mut plan),
                Some(Next::Offer(name)) => self.wake_candidate(&name, BTreeSet::new(), now, &mut plan),
                None => break,
            }
        }
        let dues = [
            self.retries.next_due(),
            self.known.plugins.next_due(),
            self.queue.next_due(),
            self.second_writer.writers.ends_at(),
            self.resync_at.filter(|_| self.queue.has_no_slow_keys()),
            // There is more to look at, and room for what comes of it.
            (!self.in_flight.is_full() && self.is_long(&plan)).then_some(now),
        ];
        plan.compared = self.known.compared.count();
        plan.wake_at = dues.into_iter().flatten().min();
        plan.failures = self.recorder.failures.take_counts();
        plan.events = self.recorder.take_events();
        (plan.samples, plan.reports) = self.recorder.take();
        plan.counts = self.queue.take_counts();
        plan.others = self.second_writer.writers.take_news();
        plan
    }

    /// Whether a plan goes on with the next: what has come in meanwhile goes first.
    fn is_long(&self, plan: &Plan) -> bool {
        plan.looks >= LOOKS || self.known.compared.count() >= COMPARED
    }

    /// The safety net under the wake-ups: what is not settled is looked at again from time to time. Sends nothing if all
    /// is as it was.
    fn resync(&mut self, now: Instant) {
        if self.resync_at.is_some_and(|due| now >= due) && self.queue.has_no_slow_keys() {
            let (claims, volumes) = self.reasons.keys();
            for target in claims.into_iter().map(Target::Claim).chain(volumes.into_iter().map(Target::Volume))
            {
                self.queue.add_slowly(target, false, now);
            }
            self.resync_at = None;
            self.known
                .proofs
                .keep_classes(|class| self.known.claims.open_in_class(class.as_str()).next().is_some());
            let Objects { claims, volumes, pods, .. } = &*self.known.objects;
            self.unconfirmed.extend(claims.unconfirmed().into_iter().map(Object::Claim));
            self.unconfirmed.extend(volumes.unconfirmed().into_iter().map(Object::Volume));
            self.unconfirmed.extend(pods.unconfirmed().into_iter().map(Object::Pod));
            self.undone.forget_old(now);
            self.second_writer.forget_old(now);
        }
        self.resync_at.get_or_insert(now + self.known.options.sync_period);
    }

    /// Asks who changed what only a binder should, before anything is written to it.
    fn read_owners(&mut self, plan: &mut Plan) {
        loop {
            let read = self.second_writer.writers.take_read(|target| !self.in_flight.has(target));
            let Some((target, uid)) = read else { return };
            self.start(target, None, Call::ReadOwner(uid), plan);
        }
    }

    /// What others were seen to write.
    #[must_use]
    pub fn second_writer(&self) -> &SecondWriters<Target> {
        &self.second_writer.writers
    }

    /// Reads what only answers to our own requests have told of. What is busy or waits is left for the plan after that.
    fn confirm(&mut self, plan: &mut Plan) {
        for object in mem::take(&mut self.unconfirmed) {
            // A pod is asked for on behalf of the volume it empties.
            let subject = match &object {
                Object::Pod(key) => self.known.plugins.volume_of(key).map(Target::Volume),
                object => object.subject(),
            };
            let Some(target) = subject else { continue };
            if self.is_asleep(&target) {
                self.unconfirmed.insert(object);
            } else {
                self.start(target, None, Call::Read { target: object, purpose: Purpose::Refresh }, plan);
            }
        }
    }

    /// Looks at the claims for which a volume that has become free is a candidate, until one takes it.
    fn wake_candidate(
        &mut self,
        name: &VolumeName,
        mut declined: BTreeSet<ClaimKey>,
        now: Instant,
        plan: &mut Plan,
    ) {
        while self.known.volumes.is_free(name) && !self.is_busy(name) {
            if self.is_long(plan) {
                self.waking = Some((name.clone(), declined));
                return;
            }
            plan.looks += 1;
            // Its owner takes it back (S45).
            let Some(volume) = self.known.view(&|_| false).unowned(name) else { return };
            // What is busy or waits is looked at again when that ends.
            let current = |key: &ClaimKey| {
                self.known.compared.note();
                let is_free = !self.is_asleep(&Target::Claim(key.clone()));
                self.known.objects.claims.get(key).filter(|_| is_free)
            };
            let Some(key) = self.known.claims.candidate(&volume, &current, &declined) else { return };
            self.plan_claim(&key, now, plan);
            declined.insert(key);
        }
    }

    /// The decision about a claim as things are now.
    #[must_use]
    pub fn decide_claim(&self, claim: &PersistentVolumeClaim) -> ClaimDecision {
        sync_claim(claim, &self.known.view(&|name| self.is_busy(name)))
    }

    /// The decision about a volume as things are now.
    #[must_use]
    pub fn decide_volume(&self, volume: &PersistentVolume) -> VolumeDecision {
        sync_volume(volume, &self.known.view(&|name| self.is_busy(name)))
    }

    /// Hands out a request and marks what it touches.
    pub fn start(&mut self, subject: Target, volume: Option<VolumeName>, call: Call, plan: &mut Plan) {
        let known = call.target().and_then(|object| object.revision(&self.known.objects));
        let op = Op { uid: subject.uid(&self.known.objects), subject, volume, call, known };
        self.in_flight.send(&op);
        for target in op.touches() {
            if let Target::Volume(name) = target {
                self.queue.withdraw_offer(&name);
                self.known.volumes.hide(&name);
            }
        }
        if let Call::ReadClass(class) = &op.call {
            let newest_claim = self.known.newest_claim(&op.subject);
            self.class_reads.insert(class.clone(), (newest_claim, BTreeSet::new()));
        }
        // The watch may tell of it before the answer does.
        if let Call::Write(write) = &op.call
            && let Some(target) = write.target.subject()
        {
            self.second_writer.forget(&target);
            if let Target::Volume(name) = &target
                && let Some(volume) = self.known.objects.volumes.get(name)
            {
                self.recorder.writes(&volume);
            }
        }
        plan.ops.push(op);
    }

    /// Traces binds from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.recorder.trace(traces);
    }
}
