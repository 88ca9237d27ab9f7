//! The one owner of desired and actual state.
//!
//! In: changed objects, and the outcomes of our requests. Out: the next requests, and events for users.
//! Each input marks the volumes it touches dirty; dirty volumes are planned. A volume is planned only
//! while a request [may be sent](super::act::dispatcher), so no decision waits in a queue and goes stale there
//! (S15). Time comes in as an argument, and nothing in here waits, so a whole history can be played in a test.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    act::{
        calls::{AttachmentRequest, Call},
        dispatcher::Dispatcher,
    },
    actual::{
        state::{ActualState, AttachmentCall},
        unpublishing::Sequence,
    },
    caches::{Caches, Learnt, LookedAt},
    clock::Clock,
    decide::scope::Scope,
    desired::volume_name::VolumeId,
    guard::{
        force_waits::{ForceWaits, Said},
        second_writer::Target,
    },
    known::Known,
    options::{AttachDetachOptions, ForcePolicy},
    queue::WorkQueue,
    tell::{
        facts::{Facts, Line},
        metrics::Planned,
        recorder::Recorder,
        state::{AttachDetachKey, Report},
    },
};
use crate::{
    controller::{
        report::events::EventUpdate,
        second_writer::{News, SecondWriters},
    },
    kube_api::{
        ids::{NodeName, ResourceVersion},
        kinds::ObjectRef,
        lease_note::LeaseNote,
    },
    metrics::QueueCounts,
    state::Objects,
};

/// What the controller needs done.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Requests to send, each with its place in the order of sending.
    pub calls: Vec<(Sequence, Call)>,
    /// What to tell users.
    pub events: Vec<EventUpdate<AttachDetachKey>>,
    /// Where the keys stand that were looked at.
    pub reports: Vec<Report>,
    /// What others wrote that only this controller should.
    pub others: Option<News>,
    /// What to count, log and trace.
    pub facts: Facts,
}

/// Desired state, actual state, and what is dirty. A clone shares the tables; see [`Self::fork`].
#[derive(Clone, Debug)]
pub struct Controller {
    pub(super) caches: Caches,
    pub(super) options: AttachDetachOptions,
    pub(super) leads: bool,
    pub(super) dispatcher: Dispatcher,
    pub(super) recorder: Recorder,
    pub(super) second_writer: SecondWriters<Target>,
    /// The newest revision of any VolumeAttachment that was listed, or that the watch has told of.
    pub(super) newest_attachment: ResourceVersion,
    /// When the grace after a restore of etcd ends, if there is one (E11).
    pub(super) grace_ends_at: Option<Instant>,
    pub(super) force_waits: ForceWaits,
}

impl Controller {
    /// A controller over the shared tables, which must be synced before it is loaded.
    #[must_use]
    pub fn new(objects: Arc<Objects>, options: AttachDetachOptions, clock: Clock) -> Self {
        let ForcePolicy { unready, gone, .. } = options.force;
        Self {
            caches: Caches::new(objects, clock, WorkQueue::sweeping(options.sweep_period)),
            options,
            leads: false,
            dispatcher: Dispatcher::new(options.attachment_calls),
            recorder: Recorder::default(),
            second_writer: SecondWriters::default(),
            newest_attachment: ResourceVersion::default(),
            grace_ends_at: None,
            force_waits: ForceWaits::of(unready.max(gone)),
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
        let mut fork = self.clone();
        fork.caches.objects = objects;
        fork
    }

    /// See [`ForceWaits::follow`].
    pub(super) fn follow_lease(&mut self, lease: LeaseNote) {
        self.force_waits.follow(lease);
    }

    /// The lease said this of the term before ours.
    pub fn succeed(&mut self, told: Option<&str>) {
        let lease = LeaseNote::default();
        lease.leave(told);
        self.follow_lease(lease);
    }

    /// See [`ForceWaits::take_note`].
    pub fn take_note(&mut self) -> Option<String> {
        self.force_waits.take_note()
    }

    /// What others were seen to write.
    #[must_use]
    pub fn second_writer(&self) -> &SecondWriters<Target> {
        &self.second_writer
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
        let alarms = self.second_writer.ends_at().into_iter().chain(self.grace_ends_at);
        let told = self.recorder.next_at().into_iter().chain(self.force_waits.due_at());
        let wake_at = self.caches.queue.next_at().into_iter().chain(alarms).chain(told).min();
        wake_at.filter(|_| self.leads)
    }

    /// The recorder, and what is known when it records.
    pub(super) fn recording(&mut self, now: Instant) -> (&mut Recorder, Known<'_>) {
        (&mut self.recorder, self.caches.known(now))
    }

    /// Where volumes are attached, or may be.
    #[must_use]
    pub fn actual(&self) -> &ActualState {
        &self.caches.actual
    }

    /// Begins to stand by: of what the tables have, what CSIDrivers say and the end of pods may be gone from them when this
    /// process leads.
    pub fn load(&mut self, now: Instant) {
        for driver in self.caches.objects.drivers.keys() {
            self.caches.refresh_driver(&driver, now);
        }
        let wall = self.caches.clock.wall(now);
        for pod in self.caches.objects.pods.keys() {
            self.caches.watch_pod(&pod, wall);
        }
    }

    /// Reads the tables whole, when it begins to lead (attach-detach §5, without its gaps).
    pub(super) fn read_tables(&mut self, now: Instant) {
        for attachment in self.caches.objects.attachments.snapshot().values() {
            self.newest_attachment = self.newest_attachment.max(attachment.metadata.resource_version);
        }
        self.caches.load(now);
        self.note_learnt(now);
        let objects = &self.caches.objects;
        let (attachments, pods) = (objects.attachments.len(), objects.pods.len());
        self.recorder.log(Line::Loaded { attachments, pods });
    }

    /// What there is to report of what was learnt since the last plan.
    pub fn take_facts(&mut self) -> (Vec<Report>, Facts) {
        self.recorder.take_facts()
    }

    /// What there was to look at since this was last asked: volumes, and nodes.
    pub fn take_counts(&mut self) -> [QueueCounts; 2] {
        self.caches.queue.take_counts()
    }

    /// Takes changed objects.
    pub fn take_changes(&mut self, changed: BTreeSet<ObjectRef>, now: Instant) {
        if !self.leads {
            let ForcePolicy { unready, gone, .. } = self.options.force;
            return self.caches.stand_by(changed, unready.max(gone), now);
        }
        self.caches.queue.at(now);
        for object in &changed {
            if let ObjectRef::Attachment(name) = object {
                self.look_at_attachment(name, now);
            }
        }
        self.caches.take_changes(changed, now);
        self.note_learnt(now);
    }

    /// Hands what objects have told to the parts that remember or tell it.
    pub(super) fn note_learnt(&mut self, now: Instant) {
        let (learnt, LookedAt { pods, attachments }) = self.caches.take_learnt();
        self.recorder.planned(Planned::Pod, pods);
        self.recorder.planned(Planned::Attachment, attachments);
        for learnt in learnt {
            match learnt {
                Learnt::Unresolved(unresolved) => self.recorder.unresolved(*unresolved, now),
                // No wait for force goes on, from now and not only when the volume has its turn: its pod may be gone by
                // then (S4).
                Learnt::Desired(volume, node) => {
                    self.force_waits.break_off(&node);
                    let (scope, wall) = (Scope::of(&node), self.caches.clock.wall(now));
                    self.caches.actual.note_undesired(&volume, &scope, |_| true, wall);
                }
                Learnt::Foreign(name) => self.recorder.foreign(&name, &self.caches.actual),
                Learnt::Detached(volume, node) => self.forced_detach_done(&volume, &node, now),
                Learnt::ListChanged(node, uid) => {
                    self.caches.actual.node_mut(&node).requests.undone(now);
                    self.note_foreign(&Target::Node(node), &uid, now);
                }
            }
        }
    }

    /// Plans what is dirty, as far as there is room to send, and no more of it than takes a moment: what is left has
    /// its turn when what came in meanwhile has been taken ([`Self::wake_at`] is now then).
    pub fn reconcile(&mut self, now: Instant) -> Effects {
        if !self.leads {
            return Effects::default();
        }
        self.caches.queue.at(now);
        self.caches.add_due(now);
        self.caches.queue.sweep(now);
        self.end_stand_offs(now);
        self.caches.survey();
        self.note_learnt(now);
        self.plan_dirty(now);
        let at = (now, self.caches.clock.wall(now));
        let said = self.force_waits.look(&self.caches.actual, &self.caches.desired, at);
        self.tell_of_waits(said);
        let (recorder, known) = self.recording(now);
        recorder.tell_unresolved(known);
        let (reports, facts) = self.take_facts();
        Effects {
            calls: self.dispatcher.take(),
            events: self.recorder.take_events(),
            reports,
            others: self.second_writer.take_news(),
            facts,
        }
    }

    pub(super) fn tell_of_waits(&mut self, said: Option<Said>) {
        if let Some(said) = said {
            self.recorder.log(Line::ForceWaits(said));
        }
    }

    pub(super) fn send(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        request: AttachmentRequest,
        now: Instant,
    ) {
        let call = request.kind();
        let node_volume = self.caches.actual.node_volume_mut(volume, node);
        node_volume.call = Some(call);
        match (&mut node_volume.undone, call) {
            (Some(undone), AttachmentCall::Create) => undone.sent(now),
            (Some(undone), AttachmentCall::Delete) => undone.withdrawn(now),
            _ => {}
        }
        self.dispatcher.send(Call::Attachment(volume.clone(), node.clone(), request), now);
    }
}
