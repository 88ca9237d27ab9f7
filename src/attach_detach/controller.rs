//! The one owner of desired and actual state.
//!
//! In: changed objects, and the outcomes of our requests. Out: the next requests, and events for users.
//! Each input marks the volumes it touches dirty; dirty volumes are planned. A volume is planned only
//! while a request [may be sent](super::act::in_flight), so no decision waits in a queue and goes stale there
//! (S15). Time comes in as an argument, and nothing in here waits, so a whole history can be played in a test.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    act::{
        calls::{AttachmentRequest, Call},
        dispatcher::Dispatcher,
    },
    actual::{
        identification::{candidates, volume_of},
        state::{ActualState, Operation},
        unpublishing::Sequence,
    },
    clock::Clock,
    decide::{force::ForcePolicy, multi_attach::Exclusivity, scope::Scope},
    desired::{attach_required::AttachRequired, populator, state::DesiredState, volume_name::VolumeId},
    guard::{
        blocks::{Blocks, Grace, UnreadableAttachments},
        force_timers::{ForceTimers, TimersConfigMap},
        second_writer::SecondController,
    },
    known::Known,
    queue::{Key, Surveyed, WorkQueue},
    tell::{
        metrics::{Ending, Planned},
        recorder::Recorder,
        report::{Line, Reports},
    },
};
use crate::{
    kube_api::{
        events::Event,
        ids::{AttachmentName, DriverName, NodeName, PodKey},
        kinds::{ObjectRef, VolumeAttachment},
        tally::{LeaseTally, Tally},
    },
    metrics::QueueCounts,
    state::{FinalState, Objects},
};

/// What the controller needs done.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Requests to send, each with its place in the order of sending.
    pub calls: Vec<(Sequence, Call)>,
    /// What to tell users.
    pub events: Vec<Event>,
    /// What to count, log, trace and show.
    pub reports: Reports,
}

/// What the operator may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachDetachOptions {
    /// When a detach may be forced.
    pub force: ForcePolicy,
    /// How often everything is looked at although nothing happened; `None` for never.
    pub sweep_period: Option<Duration>,
    /// How many requests for volumes on nodes may be under way; `None` for
    /// [`ATTACHMENT_CALLS`](super::act::in_flight::ATTACHMENT_CALLS). Fewer where requests are rationed: a detach that
    /// is decided must be sent at once, or a pod that comes back meanwhile is too late to stop it (S15).
    pub attachment_calls: Option<usize>,
}

/// Desired state, actual state, and what is dirty. A clone shares the tables; see [`Self::fork`].
#[derive(Clone, Debug)]
pub struct Controller {
    pub(super) objects: Arc<Objects>,
    pub(super) drivers: AttachRequired,
    pub(super) desired: DesiredState,
    pub(super) actual: ActualState,
    pub(super) clock: Clock,
    pub(super) options: AttachDetachOptions,
    pub(super) queue: WorkQueue,
    pub(super) leads: bool,
    pub(super) dispatcher: Dispatcher,
    pub(super) recorder: Recorder,
    pub(super) second_writer: SecondController,
    grace: Grace,
    pub(super) force_timers: ForceTimers,
    pub(super) unreadable: UnreadableAttachments,
}

impl Controller {
    /// A controller over the shared tables, which must be synced before it is loaded.
    #[must_use]
    pub fn new(objects: Arc<Objects>, options: AttachDetachOptions, clock: Clock) -> Self {
        Self {
            objects,
            drivers: AttachRequired::default(),
            desired: DesiredState::default(),
            actual: ActualState::default(),
            clock,
            options,
            queue: WorkQueue::sweeping(options.sweep_period),
            leads: false,
            dispatcher: Dispatcher::new(options.attachment_calls),
            recorder: Recorder::default(),
            second_writer: SecondController::default(),
            grace: Grace::default(),
            force_timers: ForceTimers::default(),
            unreadable: UnreadableAttachments::default(),
        }
    }

    /// Requests of unknown outcome may still be carried out for so long.
    #[must_use]
    pub fn with_settle_time(self, settle_time: Duration) -> Self {
        Self { dispatcher: self.dispatcher.with_settle_time(settle_time), ..self }
    }

    /// A copy that goes its own way, over a copy of the tables.
    #[must_use]
    pub fn fork(&self, objects: Arc<Objects>) -> Self {
        Self { objects, ..self.clone() }
    }

    /// Keeps the force-detach timers where they survive this process, which is of that identity.
    pub fn keep_timers_in(&mut self, place: TimersConfigMap, identity: String) {
        let ForcePolicy { unready, gone, .. } = self.options.force;
        self.force_timers = ForceTimers::kept_in(place, identity, unready.max(gone));
    }

    /// See [`ForceTimers::follow`].
    pub(super) fn follow_lease(&mut self, lease: LeaseTally) {
        self.force_timers.follow(lease);
    }

    /// The lease told this of who led before, whose force-detach timers are judged by it.
    pub fn succeed(&mut self, told: Option<Tally>) {
        self.force_timers.succeed(told);
    }

    /// What a successor has to know of the force-detach timers, whether or not they can be written.
    #[must_use]
    pub fn waits_broken_off(&self) -> u64 {
        self.force_timers.broken_off()
    }

    /// Whether this process may write, as far as the controller knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Requests whose outcome has not been taken yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.dispatcher.in_flight()
    }

    /// When a request was sent whose outcome has not been taken yet.
    #[must_use]
    pub fn asked_at(&self, sent: Sequence) -> Option<Instant> {
        self.dispatcher.asked_at(sent)
    }

    /// When to call [`Self::reconcile`] although nothing happened.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let timers = self.force_timers.due_at().filter(|_| self.leads);
        let alarms = self.second_writer.ends_at().into_iter().chain(self.grace.ends_at());
        self.queue.next_at().into_iter().chain(alarms).chain(timers).min()
    }

    /// What is known now.
    pub(super) fn known(&self, now: Instant) -> Known<'_> {
        let Self { objects, desired, actual, clock, .. } = self;
        Known { objects, desired, actual, clock, now }
    }

    /// The recorder, and what is known when it records.
    pub(super) fn recording(&mut self, now: Instant) -> (&mut Recorder, Known<'_>) {
        let Self { objects, desired, actual, clock, recorder, .. } = self;
        (recorder, Known { objects, desired, actual, clock, now })
    }

    /// What holds writes back now.
    pub(super) fn blocks(&self, now: Instant) -> Blocks<'_> {
        Blocks::new(&self.second_writer, self.known(now))
    }

    /// Where volumes are attached, or may be.
    #[must_use]
    pub fn actual(&self) -> &ActualState {
        &self.actual
    }

    /// Reads the tables whole, once (attach-detach §5, without its gaps).
    pub fn load(&mut self, now: Instant) {
        for (name, node) in self.objects.nodes.snapshot() {
            self.actual.observe_node(&name, Some(&node), self.clock.wall(now));
        }
        for (name, attachment) in self.objects.attachments.snapshot() {
            self.second_writer.listed(attachment.metadata.resource_version);
            self.refresh_attachment(&name, now);
        }
        self.actual.distrust_younger_nodes();
        for driver in self.objects.drivers.snapshot().into_keys() {
            self.refresh_driver(&driver, now);
        }
        for key in self.objects.pods.snapshot().into_keys() {
            self.refresh_pod(&key, now);
        }
        let (attachments, pods) = (self.objects.attachments.len(), self.objects.pods.len());
        self.recorder.log(Line::Loaded { attachments, pods });
    }

    /// What there is to report of what was learnt since the last plan.
    pub fn take_reports(&mut self) -> Reports {
        self.recorder.take_reports()
    }

    /// What there was to look at since this was last asked: volumes, and nodes.
    pub fn take_counts(&mut self) -> [QueueCounts; 2] {
        self.queue.take_counts()
    }

    /// Takes changed objects. Pods are taken node by node: what is desired on one node is then asked for in
    /// a row, becomes attached together, and is published with few patches.
    pub fn take_changes(&mut self, changed: BTreeSet<ObjectRef>, now: Instant) {
        self.queue.at(now);
        let mut pods = BTreeSet::new();
        for object in changed {
            match &object {
                ObjectRef::Node(name) => {
                    self.unreadable.forget();
                    self.observe_final_state(name, now);
                    if self.objects.nodes.is_missing(name) {
                        self.read_node_live(name);
                    }
                    let node = self.objects.nodes.get(name);
                    let touched = self.observe_node(name, node.as_ref(), now);
                    self.queue.add_on(name, touched, &self.actual);
                    self.queue.add_node(name.clone());
                    for attachment in self.actual.unidentified_on(name) {
                        self.refresh_attachment(&attachment, now);
                    }
                }
                ObjectRef::Pod(key) => {
                    pods.insert(key.clone());
                }
                ObjectRef::Attachment(name) => {
                    self.look_at_attachment(name, now);
                    self.refresh_attachment(name, now);
                    if self.objects.attachments.is_missing(name) {
                        self.read_attachment_live(name);
                    }
                }
                ObjectRef::Volume(name) => {
                    for attachment in self.actual.unidentified_of(name) {
                        self.refresh_attachment(&attachment, now);
                    }
                    let volume = volume_of(&self.objects, name);
                    if let Some(volume) = volume.filter(|volume| self.actual.volume(volume).is_some()) {
                        self.actual.note_exclusivity(&volume, Exclusivity::Unknown);
                        self.queue.add(volume, Scope::All);
                    }
                }
                ObjectRef::Driver(name) => self.refresh_driver(name, now),
                ObjectRef::Claim(_) | ObjectRef::Class(_) => {}
            }
            pods.extend(self.desired.dependants(&object));
        }
        let node = |key: &PodKey| self.objects.pods.get(key).map(|pod| pod.spec.node_name.clone());
        let mut pods: Vec<_> = pods.into_iter().map(|key| (node(&key), key)).collect();
        pods.sort();
        for (_, key) in pods {
            self.refresh_pod(&key, now);
        }
    }

    /// The final state of a node that is gone counts, also if no watch event showed it: volumes that were in use
    /// then may still be.
    pub(super) fn observe_final_state(&mut self, name: &NodeName, now: Instant) {
        let wall = self.clock.wall(now);
        let touched = match self.objects.nodes.take_final_state(name) {
            None => return,
            Some(FinalState::Known(node)) => self.actual.observe_node(name, Some(&node), wall),
            Some(FinalState::Unknown) => self.actual.distrust_node(name),
        };
        self.queue.add_on(name, touched, &self.actual);
        let touched = self.actual.observe_node(name, None, wall);
        self.queue.add_on(name, touched, &self.actual);
    }

    /// A node that is known from answers of its own alone is read.
    pub(super) fn read_node_live(&mut self, name: &NodeName) {
        self.actual.node_mut(name).requests.outdate();
        self.queue.add_node(name.clone());
    }

    /// Likewise a VolumeAttachment of ours.
    pub(super) fn read_attachment_live(&mut self, name: &AttachmentName) {
        if let Some((volume, node)) = self.actual.read_attachment_live(name) {
            self.queue.add_on(&node, [volume], &self.actual);
        }
    }

    pub(super) fn refresh_pod(&mut self, key: &PodKey, now: Instant) {
        self.recorder.planned(Planned::Pod, 1);
        let pod = self.objects.pods.get(key);
        let before = self.desired.pod(key);
        let desired_pod = pod.and_then(|pod| populator::populate(&pod, &self.objects, &self.drivers, before));
        self.recorder.populated(key, before, desired_pod.as_ref());
        let nodes: BTreeSet<NodeName> = before
            .into_iter()
            .chain(desired_pod.as_ref())
            .map(|desired_pod| desired_pod.node.clone())
            .collect();
        for volume in self.desired.set(key, desired_pod) {
            for node in &nodes {
                self.touch_desired(&volume, node, now);
            }
        }
    }

    pub(super) fn refresh_attachment(&mut self, name: &AttachmentName, now: Instant) {
        self.recorder.planned(Planned::Attachment, 1);
        let attachment = self.objects.attachments.get(name);
        if attachment.as_deref().is_some_and(|attachment| self.actual.is_replaced_by(name, attachment)) {
            self.take_attachment(name, None, now);
        }
        self.take_attachment(name, attachment, now);
    }

    /// Looks at a CSIDriver, or at its absence.
    fn refresh_driver(&mut self, name: &DriverName, now: Instant) {
        let driver = self.objects.drivers.get(name);
        let due = self.drivers.observe(name, driver.as_deref(), now);
        if let Some(at) = due {
            self.queue.add_at(at, Key::Driver(name.clone()));
        }
    }

    /// Of a driver whose CSIDriver stays away nothing is remembered any more.
    fn forget_driver(&mut self, name: &DriverName, now: Instant) {
        if self.drivers.forget(name, now) {
            for pod in self.desired.dependants(&ObjectRef::Driver(name.clone())) {
                self.refresh_pod(&pod, now);
            }
        }
    }

    fn take_attachment(
        &mut self,
        name: &AttachmentName,
        attachment: Option<Arc<VolumeAttachment>>,
        now: Instant,
    ) {
        let objects = Arc::clone(&self.objects);
        let attached = attachment.as_ref().map(|attachment| attachment.status.attached);
        let candidates = |attachment: &VolumeAttachment| candidates(&objects, attachment);
        if let Some(volume) = self.actual.second_volume_of(name).cloned() {
            self.actual.note_exclusivity(&volume, Exclusivity::Unknown);
            self.queue.add(volume, Scope::All);
        }
        let was_foreign = self.actual.foreign(name).is_some();
        let touched = self.actual.observe_attachment(name, attachment, candidates, self.clock.wall(now));
        if was_foreign || self.actual.foreign(name).is_some() {
            self.recorder.foreign(name, &self.actual);
        }
        let Some((volume, node)) = touched else { return };
        self.note_exclusive(&volume, name);
        match attached {
            Some(true) => {
                self.actual.node_volume_mut(&volume, &node);
                self.recorder.ended(&volume, &node, Operation::Attach, Ending::Success, now);
            }
            Some(false) => {}
            None => {
                self.recorder.ended(&volume, &node, Operation::Detach, Ending::Success, now);
                self.forced_detach_done(&volume, &node, now);
            }
        }
        self.queue.add_on(&node, [volume], &self.actual);
    }

    /// Plans what is dirty, as far as there is room to send, and no more of it than takes a moment: what is left has
    /// its turn when what came in meanwhile has been taken ([`Self::wake_at`] is now then).
    pub fn reconcile(&mut self, now: Instant) -> Effects {
        self.queue.at(now);
        while let Some(driver) = self.queue.add_due(now, &self.actual) {
            self.forget_driver(&driver, now);
        }
        self.queue.sweep(now);
        self.end_stand_offs(now);
        if self.grace.ends(self.objects.restore_grace().left(now), now) {
            // All is judged anew.
            self.recorder.log(Line::GraceOver);
            self.queue.add_all();
        }
        self.survey(now);
        if !self.leads {
            self.stand_by(now);
            return Effects { reports: self.take_reports(), ..Effects::default() };
        }
        self.plan_dirty(now);
        self.write_timers(now);
        let (events, reports) = self.recorder.take();
        Effects { calls: self.dispatcher.take(), events, reports }
    }

    /// Looks at some of what is yet to be looked at of all there is.
    fn survey(&mut self, now: Instant) {
        let Surveyed { pods, unconfirmed_nodes, unconfirmed_attachments } =
            self.queue.survey(&self.objects, &self.desired, &self.actual);
        for key in pods {
            self.refresh_pod(&key, now);
        }
        for name in unconfirmed_nodes {
            self.read_node_live(&name);
        }
        for name in unconfirmed_attachments {
            self.read_attachment_live(&name);
        }
    }

    fn write_timers(&mut self, now: Instant) {
        if let Some(request) = self.force_timers.next(now, self.clock.wall(now)) {
            self.dispatcher.send(Call::Timers(request), now);
        }
        self.recorder.extend(Vec::new(), self.force_timers.take_reports());
    }

    pub(super) fn send(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        request: AttachmentRequest,
        now: Instant,
    ) {
        let call = request.kind();
        let (recorder, known) = self.recording(now);
        recorder.sent(volume, node, call, known);
        self.actual.node_volume_mut(volume, node).call = Some(call);
        self.dispatcher.send(Call::Attachment(volume.clone(), node.clone(), request), now);
    }
}
