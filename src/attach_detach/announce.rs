//! Announce: which events hold for the pods of a volume on a node, and what has happened there.
//!
//! In: each verdict once, after it has been carried out, and failures of requests. Out: events that hold, at once or once the
//! wait that they are about has lasted for a while, and events of what has happened. Which of them are recorded, and when
//! again, is up to [`RecordedEvents`](crate::controller::report::events::RecordedEvents).

use std::{mem, sync::Arc, time::Duration};

use apiserver::{
    events::Event,
    ids::{AttachmentName, NodeName, VolumeName},
};

use super::{
    decide::{
        contention::Contention,
        verdict::{NodeVerdict, Waiting},
    },
    events::{self, Announcement, OtherAttachment},
    known::Known,
    reasons::{AttachDetachKey, NodeVolumeKey},
    state::{
        actual::{NodeVolume, ReportAsAttached, Told},
        desired::{
            DesiredAttachment,
            volume_name::{VolumeId, VolumeKind, is_computed},
            volume_source::{Storage, of_persistent_volume},
        },
    },
};
use crate::controller::report::events::{EventPatience, EventUpdate, Topic};

/// How long the driver may take before users are told that it takes long.
///
/// KCM: pkg/volume/csi/csi_attacher.go, the timeout of waitForVolumeAttachment (two minutes).
pub(super) const LONG: Duration = Duration::from_mins(2);

/// A wait for another node that ends sooner has at most KCM's Multi-Attach event, and one for a writer that undoes ours has none.
pub(super) const NOTEWORTHY: Duration = Duration::from_secs(10);

/// Said at once.
const IMMEDIATELY: Duration = Duration::ZERO;

/// That the attach fails, or takes long.
const FAILURE: Topic = "failure";
/// That another node holds the volume, in KCM's words.
const MULTI_ATTACH: Topic = "multi-attach";
/// Which node that is, and what it waits for.
const HOLDER: Topic = "holder";
/// That another writer undoes what is written for the volume.
const UNDONE: Topic = "undone";

/// What follows from a verdict on a volume on a node: what holds and what has happened there, and what users know of it then;
/// with who contends for the volume, if it is exclusive.
pub(super) fn judged(
    volume: &VolumeId,
    node: &NodeName,
    verdict: &NodeVerdict,
    contention: &Contention,
    known: Known<'_>,
) -> (Vec<EventUpdate<AttachDetachKey>>, Told) {
    let told = known.actual.node_volume(volume, node).map(|it| it.told).unwrap_or_default();
    let mut look = Look { volume, node, contention, known, told, events: Vec::new() };
    // What is not said again now does not hold.
    look.events.push(EventUpdate::Pause(look.key(), &[FAILURE, MULTI_ATTACH, HOLDER, UNDONE]));
    if known.desired.get(volume, node).is_some() {
        look.desired(verdict);
    } else {
        look.undesired(verdict);
    }
    (look.events, look.told)
}

/// A look at a volume on a node.
struct Look<'a> {
    volume: &'a VolumeId,
    node: &'a NodeName,
    contention: &'a Contention,
    known: Known<'a>,
    told: Told,
    events: Vec<EventUpdate<AttachDetachKey>>,
}

impl Look<'_> {
    /// No pod is there to read an event: the node's says what keeps the volume there.
    fn undesired(&mut self, verdict: &NodeVerdict) {
        let node_volume = self.node_volume();
        let said = verdict.waiting.as_ref().zip(node_volume).and_then(|(waiting, it)| failure(waiting, it));
        match said {
            Some(message) => {
                self.hold(FAILURE, &Announcement::detach_failed(self.node, message), IMMEDIATELY);
            }
            // Between two tries it is the same failure.
            None if node_volume.is_some_and(|node_volume| node_volume.retry.failures() > 0) => {}
            None => {
                // A pod that takes the place of another finds it attached: that is no news.
                let is_attached =
                    self.told.is_attached && node_volume.is_some_and(NodeVolume::may_be_attached);
                self.told = Told { is_attached, ..Told::default() };
                self.events.push(EventUpdate::Forget(self.key()));
            }
        }
    }

    /// What changed for the pods that need the volume here.
    fn desired(&mut self, verdict: &NodeVerdict) {
        let waiting = verdict.waiting.as_ref();
        let is_attached = verdict.report_as_attached == ReportAsAttached::Yes
            && self.node_volume().is_some_and(NodeVolume::is_attached);
        if is_attached && !self.told.is_attached {
            self.told.is_attached = true;
            self.is_over(FAILURE);
            self.happened(&Announcement::attached());
        } else if let Some(Waiting::WaitingForAttacher | Waiting::WaitingForDeletion) = waiting {
            self.told.is_attached = false;
        }
        if let Some(Waiting::HeldByNode { conflict }) = waiting
            && conflict.is_attached
        {
            return self.held_by(&conflict.node);
        }
        self.is_free();
        if let Some((topic, announcement, lasts)) = waiting.and_then(|waiting| self.announcement(waiting)) {
            self.hold(topic, &announcement, lasts);
        }
    }

    /// What there is to say of a wait here, and how long it lasts before that is said.
    fn announcement(&self, waiting: &Waiting) -> Option<(Topic, Announcement, Duration)> {
        let failed = |message: &str, lasts| Some((FAILURE, Announcement::failed(message), lasts));
        match waiting {
            Waiting::AttachError { message, .. } => failed(message, IMMEDIATELY),
            Waiting::ForeignAttachment { name } => failed(&events::name_taken(name), IMMEDIATELY),
            Waiting::WaitingForAttacher => failed(&events::timed_out(self.volume, "attach"), LONG),
            Waiting::WaitingForDeletion => {
                let attachment = self.node_volume().and_then(NodeVolume::attachment);
                let error = attachment.and_then(|attachment| attachment.status.detach_error.as_deref());
                let lasts = if error.is_some() { IMMEDIATELY } else { LONG };
                failed(&events::being_deleted(error.map(|error| &*error.message)), lasts)
            }
            Waiting::ClaimOrVolumeChanged => failed(&self.what_changed(), NOTEWORTHY),
            // What was attached there before its pod may use, whatever became of the object.
            Waiting::NodeGone if self.node_volume().is_some_and(NodeVolume::may_be_attached) => None,
            Waiting::NodeGone
            | Waiting::Unreadable { .. }
            | Waiting::HandOver { .. }
            // Of a machine that had the node's name before.
            | Waiting::DetachWaitingForUnmount { .. }
            | Waiting::ForeignWriter { .. }
            | Waiting::RestoreGrace { .. } => failed(&waiting.to_string(), NOTEWORTHY),
            Waiting::NodeStatusRefused { .. } => {
                Some((FAILURE, Announcement::not_listed(waiting), IMMEDIATELY))
            }
            Waiting::WriteUndone { .. } => Some((UNDONE, Announcement::not_listed(waiting), NOTEWORTHY)),
            Waiting::HeldByNode { conflict } => {
                let first = self.known.desired.get(self.volume, &conflict.node).into_iter();
                let pods = first.flat_map(DesiredAttachment::keys).collect();
                Some((MULTI_ATTACH, Announcement::held_elsewhere(pods), NOTEWORTHY))
            }
            waiting => failed(&events::refused(failure(waiting, self.node_volume()?)?), IMMEDIATELY),
        }
    }

    fn held_by(&mut self, holder: &NodeName) {
        let known = self.known;
        self.told.held_since.get_or_insert(known.now);
        let holders = &self.contention.holders;
        let beside = holders.iter().filter(|(other, ..)| other != self.node);
        let users = beside.flat_map(|(.., pods)| pods).cloned().collect();
        // If not, its own node has it by a VolumeAttachment of another volume.
        let is_elsewhere = holder != self.node;
        let waiting = holders.iter().find(|(name, ..)| is_elsewhere && name == holder);
        let waiting = waiting.and_then(|(_, waiting, _)| waiting.as_ref());
        if is_elsewhere {
            self.told.is_multi_attach = true;
            // KCM: pkg/controller/volume/attachdetach/reconciler: silent while an operation of the volume is under way.
            let lasts = if waiting.is_some_and(is_under_way) { LONG } else { IMMEDIATELY };
            self.hold(MULTI_ATTACH, &Announcement::held_elsewhere(users), lasts);
        }
        let is_wanted = known.desired.get(self.volume, holder).is_some();
        let waiting = waiting.filter(|waiting| !is_wanted || waiting.is_of_wanted());
        let lasts = match waiting {
            // The driver's time, not ours.
            Some(Waiting::DetachWaitingForAttacher | Waiting::WaitingForDeletion) => LONG,
            _ => NOTEWORTHY,
        };
        let announcement = match waiting {
            Some(Waiting::DetachWaitingForAttacher) => {
                Announcement::detach_failed(holder, &events::timed_out(self.volume, "detach"))
            }
            waiting => {
                let kind = |name: &AttachmentName| match known.actual.identity(name) {
                    Some(identity) if identity.ours => OtherAttachment::Earlier,
                    _ if known.actual.is_unexplained_end(name) => OtherAttachment::Ending,
                    Some(_) if !is_computed(name) => OtherAttachment::Foreign,
                    _ => OtherAttachment::Unexplained,
                };
                let others = known.actual.volume(self.volume).into_iter().flat_map(|state| &state.foreign);
                let others = others.filter(|(_, node)| *node == holder);
                let others = others.map(|(name, _)| (name, kind(name)));
                let is_anothers =
                    |kind| matches!(kind, OtherAttachment::Foreign | OtherAttachment::Unexplained);
                let others = others.filter(|(_, kind)| is_elsewhere || !is_anothers(*kind));
                let there = known.actual.node_volume(self.volume, holder);
                // Whose end would take the volume from those who run with it: they are waited for.
                let is_had_there = is_elsewhere && is_wanted && there.is_some_and(|it| it.holds(true));
                let other = others.max_by_key(|(_, kind)| *kind).filter(|_| !is_had_there);
                // Without attachments, the list and the report are all there is.
                let is_reported = |it: &NodeVolume| {
                    let may_be =
                        it.known.is_some() || it.may_be_made_by_us() || it.listed || it.may_be_listed;
                    it.in_use && !may_be && self.volume.kind() != VolumeKind::NoOp
                };
                let is_attached = other.is_some() || !there.is_some_and(is_reported);
                Announcement::holder(holder, is_attached, waiting, other)
            }
        };
        let waits = vec![key(self.volume, holder), self.key()];
        let events = self.events_of(&announcement);
        self.events.push(EventUpdate::Lasting(self.key(), HOLDER, events, EventPatience { waits, lasts }));
    }

    fn is_free(&mut self) {
        let Some(since) = self.told.held_since.take() else { return };
        let is_multi_attach = mem::take(&mut self.told.is_multi_attach);
        // If not, another controller attached it here, too.
        let holders = self.known.actual.volume(self.volume).into_iter();
        let mut holders = holders.flat_map(|state| state.holders(self.known.desired.nodes(self.volume)));
        let is_free = is_multi_attach && holders.all(|holder| holder == self.node);
        let waited = self.known.now.saturating_duration_since(since);
        let freed = is_free.then(|| self.events_of(&Announcement::freed(waited.as_secs())));
        self.events.push(EventUpdate::Ended(self.key(), &[MULTI_ATTACH, HOLDER], freed.unwrap_or_default()));
    }

    /// Why the volume that its pods were given is attached no more. Two that had one PersistentVolume after the other are
    /// told apart.
    fn what_changed(&self) -> String {
        let desired = self.known.desired.get(self.volume, self.node);
        let mut volumes = desired.into_iter().flat_map(|desired| desired.pods.values());
        let is_terminating = volumes.any(|(_, volume)| {
            let found = self.known.objects.volumes.get(&VolumeName::from(volume.spec_name.as_str()));
            let found = found.filter(|found| found.metadata.is_terminating());
            let source = found.and_then(|found| of_persistent_volume(&found.metadata, &found.spec).ok());
            source.and_then(Storage::id).as_ref() == Some(self.volume)
        });
        if is_terminating {
            return "the PersistentVolume is being deleted".to_owned();
        }
        let volume = self.volume;
        format!(
            "the pod was given \"{volume}\", and its claim, PersistentVolume or driver is another one since"
        )
    }

    /// It holds for each pod, if the wait here lasts that long (S47, S48).
    fn hold(&mut self, topic: Topic, announcement: &Announcement, lasts: Duration) {
        let patience = EventPatience { waits: vec![self.key()], lasts };
        let events = self.events_of(announcement);
        self.events.push(EventUpdate::Lasting(self.key(), topic, events, patience));
    }

    fn is_over(&mut self, topic: Topic) {
        self.events.push(EventUpdate::Hold(self.key(), topic, Vec::new()));
    }

    fn happened(&mut self, announcement: &Announcement) {
        self.events.extend(self.events_of(announcement).into_iter().map(EventUpdate::Happened));
    }

    /// The event for each pod; without one the node's.
    fn events_of(&self, announcement: &Announcement) -> Vec<Event> {
        let Known { objects, desired, .. } = self.known;
        match desired.get(self.volume, self.node) {
            Some(desired) => events::events(objects, desired, announcement),
            None => events::node_event(objects, self.volume, self.node, announcement).into_iter().collect(),
        }
    }

    fn node_volume(&self) -> Option<&NodeVolume> {
        self.known.actual.node_volume(self.volume, self.node)
    }

    fn key(&self) -> AttachDetachKey {
        key(self.volume, self.node)
    }
}

/// Whether the attach or the detach there is begun, and takes its time.
fn is_under_way(waiting: &Waiting) -> bool {
    matches!(
        waiting,
        Waiting::WaitingForVolumeAttachment
            | Waiting::WaitingForAttacher
            | Waiting::DetachWaitingForUnpublish
            | Waiting::DetachWaitingForAttacher
            | Waiting::WaitingForDeletion
    )
}

fn key(volume: &VolumeId, node: &NodeName) -> AttachDetachKey {
    AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node))
}

/// What was said of a request that failed, also while it is tried again.
fn failure<'a>(waiting: &'a Waiting, node_volume: &'a NodeVolume) -> Option<&'a Arc<str>> {
    match waiting {
        Waiting::NodeStatusRefused { message } => Some(message),
        Waiting::RetryBackoff { .. } | Waiting::WaitingForVolumeAttachment | Waiting::Uncertain => {
            node_volume.retry.message()
        }
        Waiting::DetachWaitingForAttacher | Waiting::DetachWaitingForUnpublish => {
            node_volume.retry.message().filter(|_| !node_volume.is_going())
        }
        _ => None,
    }
}
