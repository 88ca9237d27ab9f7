//! The state machine: everything that the binder remembers between decisions, the entry points through which that changes
//! (`load`, `lead`, `changed`, `answered`, `plan`), and how a request begins.
//!
//! In: changes of objects ([`super::changes`]), answers to requests ([`super::answers`]), the time. Out: plans, made in
//! [`super::plan`], of independent requests. It owns the state that decisions are made on, the keys still to be looked at,
//! the pauses, and what was reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    ids::{ClaimKey, ClassName, ResourceVersion, VolumeName},
    kinds::ObjectRef,
    tables::Objects,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call, Op, Purpose, Target},
    durations::Sample,
    matching::choose_claim::{ClaimIndex, Rank},
    queue::Lanes,
    recorder::Recorder,
    reports::BinderReason,
    second_writer::{OwnWrites, ROLE},
    state::{BinderOptions, State},
};
use crate::controller::{self, Identity, retry::RetryMap};

/// What the binder wants done.
pub type Plan = controller::Plan<Planner>;

/// What is noted of a plan outside of planning.
#[derive(Debug, Default)]
pub struct Measures {
    /// Requests that failed, by what they were for and how they failed.
    pub failed: BTreeMap<(&'static str, &'static str), u64>,
    /// How long things took.
    pub samples: Vec<Sample>,
    /// How many looks at claims and volumes it took, and searches for the claim that takes a volume.
    pub looks: usize,
    /// How many volumes and claims were held against each other in them.
    pub compared: usize,
}

/// Owner of the binder's memory.
#[derive(Debug, Default)]
pub struct Planner {
    /// What decisions are made on.
    pub state: State,
    pub(super) queue: Lanes,
    pub(super) retries: RetryMap<Target>,
    pub(super) recorder: Recorder,
    pub(super) own_writes: OwnWrites,
    /// Classes that are read live, each once for all its claims: the revision of the newest claim in our tables when the
    /// read was sent, and the other claims that wait for it. A class that its watch has not delivered yet may delay the bind
    /// of its claims, so its absence is proven before they are bound at once (S28).
    pub(super) class_reads: BTreeMap<ClassName, (ResourceVersion, BTreeSet<ClaimKey>)>,
    /// How many claims cannot be read: each may be the owner of a volume.
    pub(super) unreadable_claims: usize,
    /// Claims with a step, which take a free volume that appears or changes if that fails.
    pub(super) seeking: ClaimIndex,
    /// A free volume for which a candidate is sought, and the last one that has declined it.
    pub(super) waking: Option<(VolumeName, Rank)>,
    /// When everything unsettled is looked at again although nothing happened.
    pub(super) resync_at: Option<Instant>,
    /// While it is: up to which key all have been queued.
    pub(super) resynced_to: Option<Target>,
}

impl controller::Controller for Planner {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-binder-controller",
        component: "persistentvolume-controller",
        queues: &["claims", "volumes"],
        role: Some(ROLE),
    };
    type Key = Target;
    type Reason = BinderReason;
    type Call = Op;
    type Answer = Answer;
    type Measures = Measures;

    fn load(&mut self, now: Instant) {
        Self::load(self, now);
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in &objects {
            Self::changed(self, object, now);
        }
    }

    fn answered(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        Self::answered(self, op, result, now, jitter);
    }

    fn lead(&mut self, now: Instant) {
        Self::lead(self, now);
    }

    fn plan(&mut self, now: Instant) -> Plan {
        // Until this process leads, only what is known of the objects is kept up.
        if self.queue.is_open() { Self::plan(self, now) } else { Plan::default() }
    }
}

impl Planner {
    /// A planner that has yet to be told of every object.
    pub fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self { state: State::new(objects, options), ..Self::default() }
    }

    /// Whether a key waits for its time.
    pub fn is_waiting(&self) -> bool {
        self.retries.next_due().is_some() || self.queue.next_due().is_some()
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
                self.recorder.writes(target, <&str>::from(volume.status.phase));
            }
        }
        plan.calls.push(op);
    }
}
