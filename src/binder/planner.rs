//! The planner: everything that the binder remembers between decisions, and how a request begins.
//!
//! In: changes of objects ([`super::changes`]), answers to requests ([`super::answers`]), the time. Out: plans, made in
//! [`super::plan`], of independent requests. It owns the state that decisions are made on, the keys still to be looked at,
//! the pauses, and what was reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    events::Involved,
    ids::{ClaimKey, ClassName, PodKey, ResourceVersion, Uid, VolumeName},
    kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use telemetry::traces::Traces;
use tokio::time::Instant;

use super::{
    calls::{Call, Op, Purpose, Target},
    decide::{
        claim::sync_claim,
        decision::{ClaimDecision, VolumeDecision},
        volume::sync_volume,
    },
    queue::Lanes,
    reasons::Reasons,
    second_writer::OwnWrites,
    state::{BinderOptions, Plugins, State},
    tell::{latency::Sample, recorder::Recorder, state::Report},
};
use crate::{
    controller::{
        report::events::EventUpdate,
        retry::RetryMap,
        second_writer::{News, SecondWriters},
    },
    metrics::QueueCounts,
};

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

/// Owner of the binder's memory.
#[derive(Debug)]
pub struct Planner {
    pub(super) state: State,
    pub(super) queue: Lanes,
    /// Objects that the last list lacked, known from answers to our own requests alone, each with the claim or volume about
    /// which nothing is decided before it is read live: such an object may have gone between our answer and the list, and
    /// then no event tells of it any more. Of one that is there after all the watch tells, which is about to pass our
    /// answer.
    pub(super) unconfirmed: BTreeSet<(Target, ObjectRef)>,
    pub(super) retries: RetryMap<Target>,
    pub(super) recorder: Recorder,
    pub(super) reasons: Reasons,
    pub(super) own_writes: OwnWrites,
    /// Classes that are read live, each once for all its claims: the revision of the newest claim in our tables when the
    /// read was sent, and the other claims that wait for it. A class that its watch has not delivered yet may delay the bind
    /// of its claims, so its absence is proven before they are bound at once (S28).
    pub(super) class_reads: BTreeMap<ClassName, (ResourceVersion, BTreeSet<ClaimKey>)>,
    /// A free volume for which a candidate is sought, and the claims that have declined it so far.
    pub(super) waking: Option<(VolumeName, BTreeSet<ClaimKey>)>,
    /// When everything unsettled is looked at again although nothing happened.
    pub(super) resync_at: Option<Instant>,
}

impl Planner {
    /// A planner that has yet to be told of every object.
    #[must_use]
    pub fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self {
            state: State::new(objects, options),
            queue: Lanes::closed(),
            unconfirmed: BTreeSet::new(),
            retries: RetryMap::default(),
            recorder: Recorder::default(),
            reasons: Reasons::default(),
            own_writes: OwnWrites::default(),
            class_reads: BTreeMap::new(),
            waking: None,
            resync_at: None,
        }
    }

    /// Has plugins recycle, delete and make volumes; before anything is loaded.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Box<dyn Plugins>) -> Self {
        self.state.plugins = plugins;
        self
    }

    /// Reports where a claim or volume stands although nothing was decided: a request about it fails, or works again.
    pub(super) fn report(&mut self, subject: &Target) {
        let attempt = self.attempt(subject);
        let Self { recorder, reasons, state, .. } = self;
        let failing = reasons.failing(subject);
        match subject {
            Target::Claim(key) => {
                let Some(reason) = reasons.claim(key).cloned() else { return };
                if let Some(claim) = state.objects.claims.get(key) {
                    recorder.claim_stands((&claim, attempt), &reason, failing, false);
                }
                reasons.set_claim(key, reason);
            }
            Target::Volume(name) => {
                let Some(reason) = reasons.volume(name).cloned() else { return };
                if let Some(volume) = state.objects.volumes.get(name) {
                    recorder.volume_stands((&volume, attempt), &reason, failing, false);
                }
                reasons.set_volume(name, reason);
            }
        }
    }

    /// Whether a key waits for its time.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.retries.next_due().is_some() || self.queue.next_due().is_some()
    }

    /// The pods of plugins that are at work, by UID, with the volume of each.
    #[must_use]
    pub fn pods_at_work(&self) -> BTreeMap<Uid, (PodKey, Involved)> {
        self.state.plugins.pods_at_work(&self.state.objects)
    }

    /// What others were seen to write.
    #[must_use]
    pub fn second_writer(&self) -> &SecondWriters<Target> {
        &self.state.writers
    }

    /// The decision about a claim as things are now.
    #[must_use]
    pub fn decide_claim(&self, claim: &PersistentVolumeClaim) -> ClaimDecision {
        sync_claim(claim, &self.state)
    }

    /// The decision about a volume as things are now.
    #[must_use]
    pub fn decide_volume(&self, volume: &PersistentVolume) -> VolumeDecision {
        sync_volume(volume, &self.state)
    }

    /// Hands out a request and marks what it touches.
    pub fn start(&mut self, subject: Target, volume: Option<VolumeName>, call: Call, plan: &mut Plan) {
        let op = Op::new(subject, volume, call, &self.state.objects);
        self.state.in_flight.send(&op);
        for target in op.touches() {
            if let Target::Volume(name) = target {
                self.queue.withdraw_offer(&name);
                self.state.volumes.withdraw(&name);
            }
        }
        if let Call::Read { target: ObjectRef::Class(class), purpose: Purpose::ProveNoClass } = &op.call {
            let newest_claim = self.state.newest_claim(&op.subject);
            self.class_reads.insert(class.clone(), (newest_claim, BTreeSet::new()));
        }
        // The watch may tell of it before the answer does.
        if let Call::Write(write) = &op.call
            && let Some(target) = Target::of(&write.target)
        {
            self.own_writes.sends(&target);
            if let Target::Volume(name) = &target
                && let Some(volume) = self.state.objects.volumes.get(name)
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
