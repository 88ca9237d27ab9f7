//! The state machine: desired and actual state, what is to be looked at, and the entry points through which all of that
//! changes: `load`, `lead`, `changed`, `answered`, `plan`.
//!
//! In: changed objects, answers to our requests, and the time as an argument. Out: a plan. What changed objects mean is in
//! `observe`, what an answer means in `answers`, the turn of a volume or node in `plan`; nothing in here waits, so a whole
//! history can be played in a test. A volume is planned only while a request [may be sent](super::dispatcher), so no
//! decision waits in a queue and goes stale there (S15).

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use apiserver::{
    call::CallError, ids::ResourceVersion, kinds::ObjectRef, lease_note::LeaseNote, tables::Objects,
    unfenced::Unbegun,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, AttachmentRequest, Call},
    clock::Clock,
    deletions::Deletions,
    dispatcher::Dispatcher,
    facts::{Outbox, PlanFacts},
    guard::{
        force_waits::ForceWaits,
        second_writer_role::{ActTarget, ROLE},
        unreadable::UnknownNeeds,
    },
    known::Known,
    options::{AttachDetachOptions, ForcePolicy},
    queue::{AT_ONCE, WorkQueue},
    reasons::{AttachDetachKey, AttachDetachReason},
    state::{
        actual::{ActualState, answer_time::Answered, unpublishing::Sequence},
        desired::{DesiredState, attach_required::AttachRequired},
    },
};
use crate::controller::{self, Identity, Plan, in_doubt::SETTLE_TIME, second_writer::SecondWriters};

/// What is noted of a plan outside of planning.
#[derive(Debug)]
pub struct Measures {
    /// What to count and log.
    pub facts: PlanFacts,
    /// What the lease says of waits for force, if that has changed.
    pub note: Option<String>,
}

/// Desired state, actual state, and what is dirty. A clone shares the tables; see [`Self::fork`].
#[derive(Clone, Debug)]
pub struct AttachDetach {
    /// The tables, which the watches fill.
    pub(super) objects: Arc<Objects>,
    pub(super) desired: DesiredState,
    pub(super) actual: ActualState,
    pub(super) drivers: AttachRequired,
    /// The time of this process.
    pub(super) clock: Clock,
    pub(super) options: AttachDetachOptions,
    pub(super) queue: WorkQueue,
    pub(super) dispatcher: Dispatcher,
    /// How long a request of unknown outcome may still be carried out.
    pub(super) settle_time: Duration,
    pub(super) outbox: Outbox,
    pub(super) second_writer: SecondWriters<ActTarget>,
    pub(super) force_waits: ForceWaits,
    pub(super) deletions: Deletions,
    pub(super) leads: bool,
    /// Whether the states are read from the tables.
    pub(super) is_loaded: bool,
    /// Up to which revision VolumeAttachments were told of when changes were taken, the last time and the time before.
    pub(super) attachments_told: [ResourceVersion; 2],
    /// Whether something has changed since the last plan.
    has_changes: bool,
    /// What cannot be read, and what pods may need for that reason, as the plan began (S42).
    pub(super) unknown_needs: UnknownNeeds,
    /// When the grace after a restore of etcd ends, if there is one (E11).
    pub(super) grace_ends_at: Option<Instant>,
    /// When to look for the fence again, if it holds something up.
    pub(super) fence_looked_for_at: Option<Instant>,
    /// Whether it is gone, and why nothing new is begun.
    pub(super) fence_holds: (bool, Option<Unbegun>),
}

impl controller::Controller for AttachDetach {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-attach-detach-controller",
        component: "attachdetach-controller",
        queues: &["attach", "node-status"],
        role: Some(ROLE),
    };
    type Key = AttachDetachKey;
    type Reason = AttachDetachReason;
    type Call = (Sequence, Call);
    type Answer = Answer;
    type Measures = Measures;

    // The tables are read when it leads.
    fn lead(&mut self, now: Instant) {
        self.leads = true;
        self.take_over(now);
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        if !self.leads {
            return;
        }
        self.queue.at(now);
        self.has_changes = true;
        let [told, _] = self.attachments_told;
        // Pods are taken node by node: what is desired on one node is then asked for in a row, becomes attached together,
        // and is published with few patches.
        let mut pods = BTreeSet::new();
        for object in objects {
            match &object {
                ObjectRef::Pod(key) => drop(pods.insert(key.clone())),
                ObjectRef::Node(name) => self.refresh_node(name, now),
                ObjectRef::Attachment(name) => self.attachment_changed(name, told, now),
                ObjectRef::Volume(name) => self.refresh_volume(name, now),
                ObjectRef::Driver(name) => self.refresh_driver(name, now),
                ObjectRef::Claim(_) | ObjectRef::Class(_) | ObjectRef::AttributesClass(_) => {}
            }
            pods.extend(self.desired.dependants(&object));
        }
        let mut pods: Vec<_> = pods
            .into_iter()
            .map(|key| (self.objects.pods.get(&key).map(|pod| pod.spec.node_name.clone()), key))
            .collect();
        pods.sort();
        for (_, key) in pods {
            self.refresh_pod(&key, now);
        }
    }

    fn answered(
        &mut self,
        (sent, call): (Sequence, Call),
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        self.queue.at(now);
        let asked = self.dispatcher.ended(&call, sent, result.is_ok(), now);
        let answered = Answered { asked, now, jitter, settle_time: self.settle_time };
        match call {
            Call::Attachment(volume, node, request) => {
                self.actual.node_volume_mut(&volume, &node).call = None;
                let beside = self.actual.beside(&volume, &node);
                self.queue.add_on(&node, beside.into_iter().chain([volume.clone()]));
                match request {
                    AttachmentRequest::Create(_) => self.created(&volume, &node, result, &answered),
                    AttachmentRequest::Delete(uid, revision, _) => {
                        self.deleted(&volume, &node, (&uid, revision), result, &answered);
                    }
                    AttachmentRequest::Read(_) => self.attachment_read(&volume, &node, result, &answered),
                }
            }
            Call::PatchNode(name, revision, _) => self.node_call_ended(&name, now, |controller| {
                controller.node_patched(&name, revision, result, sent, &answered);
            }),
            Call::ReadNode(name) => self.node_call_ended(&name, now, |controller| {
                controller.node_read(&name, result, sent, &answered);
            }),
            Call::ReadOwner(target, uid) => match &target {
                ActTarget::Node(name) => self.node_call_ended(name, now, |controller| {
                    controller.owner_read(&target, uid, result, &answered);
                }),
                ActTarget::Attachment(..) => self.owner_read(&target, uid, result, &answered),
            },
        }
    }

    /// Plans what is dirty, as far as there is room to send, and no more of it than takes a moment: what is left has
    /// its turn when what came in meanwhile has been taken (`wake_at` is now then). The order is safety: what is due and what
    /// is learnt first, then volumes, then the nodes to which they are to be written, and last what a successor and users are
    /// told of all that.
    fn plan(&mut self, now: Instant) -> Plan<Self> {
        if !self.leads {
            return self.told();
        }
        if mem::take(&mut self.has_changes) {
            // What was told when the last but one were taken is known. They come in several portions.
            let [_, last] = self.attachments_told;
            self.attachments_told = [last, self.objects.attachments.observed()];
        }
        // 1. What is due, and whether anything may be taken away (S14, E11).
        self.queue.at(now);
        self.add_due(now);
        self.queue.sweep(now);
        self.end_stand_offs(now);
        self.ask_owners(now);
        self.survey();
        // 2. Volumes, until there is no room, or it was enough for once.
        let mut judged = 0;
        while judged < AT_ONCE
            && let Some((volume, nodes)) = self.queue.get(self.dispatcher.room())
        {
            judged += self.plan_volume(&volume, nodes, now).max(1);
        }
        // 3. Nodes, likewise: what their volumes need of them is decided.
        let mut looked_at = 0;
        while looked_at < AT_ONCE
            && let Some(node) = self.queue.get_node(self.dispatcher.room())
        {
            looked_at += self.plan_node(&node, now).max(1);
        }
        self.queue.end_turn(self.dispatcher.room(), now);
        // 4. What waits for force.
        self.force_waits.look(&self.actual, &self.desired, (now, self.clock.wall(now)));
        Plan {
            calls: self.dispatcher.take(),
            events: mem::take(&mut self.outbox.events),
            others: self.second_writer.take_news(),
            counts: self.queue.take_counts().into(),
            wake_at: self.wake_at(),
            ..self.told()
        }
    }

    fn unplanned(&mut self) -> Option<Plan<Self>> {
        Some(self.told())
    }
}

impl AttachDetach {
    /// A controller over the shared tables, which must be synced before it is loaded.
    pub fn new(objects: Arc<Objects>, options: AttachDetachOptions, clock: Clock) -> Self {
        let ForcePolicy { unready, gone, .. } = options.force;
        Self {
            objects,
            desired: DesiredState::default(),
            actual: ActualState::default(),
            drivers: AttachRequired::default(),
            clock,
            options,
            queue: WorkQueue::sweeping(options.sweep_period),
            dispatcher: Dispatcher::new(options.attachment_calls),
            settle_time: SETTLE_TIME,
            outbox: Outbox::default(),
            second_writer: SecondWriters::default(),
            force_waits: ForceWaits::of(unready.max(gone)),
            deletions: Deletions::default(),
            leads: false,
            is_loaded: false,
            attachments_told: [ResourceVersion::default(); 2],
            has_changes: false,
            unknown_needs: UnknownNeeds::default(),
            grace_ends_at: None,
            fence_looked_for_at: None,
            fence_holds: (false, None),
        }
    }

    /// A copy that goes its own way, over a copy of the tables.
    #[must_use]
    pub fn fork(&self, objects: Arc<Objects>) -> Self {
        Self { objects, ..self.clone() }
    }

    /// The lease said this of the term before ours.
    pub fn succeed(&mut self, told: Option<&str>) {
        let lease = LeaseNote::default();
        lease.leave(told);
        self.force_waits.follow(lease);
    }

    /// What others were seen to write.
    pub fn second_writer(&self) -> &SecondWriters<ActTarget> {
        &self.second_writer
    }

    /// Whether this process may write, as far as the controller knows.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Its requests on their way.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Where volumes are attached, or may be.
    pub fn actual(&self) -> &ActualState {
        &self.actual
    }

    /// When to plan although nothing happened.
    pub fn wake_at(&self) -> Option<Instant> {
        let alarms = self
            .second_writer
            .ends_at()
            .into_iter()
            .chain(self.grace_ends_at)
            .chain(self.fence_looked_for_at);
        let alarms = alarms.chain(self.force_waits.due_at());
        let wake_at = self.queue.next_at().into_iter().chain(alarms).min();
        wake_at.filter(|_| self.leads)
    }

    /// A plan that does nothing, and tells what answers and a take-over came to.
    fn told(&mut self) -> Plan<Self> {
        let (reports, facts) = self.outbox.take_reports();
        let measures = Measures { facts, note: self.force_waits.take_note() };
        let (calls, events, counts) = (Vec::new(), Vec::new(), Vec::new());
        Plan { calls, events, reports, others: None, counts, measures, wake_at: None }
    }

    /// What is known now.
    pub(super) fn known(&self, now: Instant) -> Known<'_> {
        let Self { objects, desired, actual, .. } = self;
        Known { objects, desired, actual, now }
    }
}
