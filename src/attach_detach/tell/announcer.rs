//! Announcer: which events hold for the pods of a volume on a node, and what has happened there.
//!
//! In: each verdict once, after it has been applied, and failures of requests. Out: [`Announced`]: events that hold or have
//! happened, and when to look again for one that is due later. Which of them are recorded, and when again, is up to
//! [`RecordedEvents`](crate::controller::report::events::RecordedEvents).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    events::Event,
    ids::{NodeName, VolumeName},
    tables::give_back_room,
};
use tokio::time::Instant;

use super::{
    events::{self, Announcement},
    state::{AttachDetachKey, NodeVolumeKey},
    waits::Waits,
};
use crate::{
    attach_detach::{
        actual::state::{NodeVolume, ReportAsAttached},
        decide::{
            csi,
            verdict::{NodeVerdict, Waiting},
        },
        desired::{
            volume_name::VolumeId,
            volume_source::{Storage, of_persistent_volume},
        },
        known::Known,
    },
    controller::report::events::{EventUpdate, Topic},
};

/// How long the driver may take before users are told that it takes long.
///
/// KCM: pkg/volume/csi/csi_attacher.go, the timeout of waitForVolumeAttachment (two minutes).
pub(super) const LONG: Duration = Duration::from_mins(2);

/// A wait for another node that ends sooner has KCM's Multi-Attach event only, and one for a writer that undoes ours has none.
pub(super) const NOTEWORTHY: Duration = Duration::from_secs(10);

/// That the attach fails, or takes long.
const FAILURE: Topic = "failure";
/// That another node holds the volume, in KCM's words.
const MULTI_ATTACH: Topic = "multi-attach";
/// Which node that is, and what it waits for.
const HOLDER: Topic = "holder";
/// That another writer undoes what is written for the volume.
const UNDONE: Topic = "undone";

/// What is remembered of a volume on a node.
#[derive(Clone, Debug, Default)]
struct Record {
    /// Whether it was recorded that the volume is attached.
    attached: bool,
    /// Since when another node has held the volume, as was recorded.
    held_since: Option<Instant>,
}

impl Record {
    fn is_empty(&self) -> bool {
        !self.attached && self.held_since.is_none()
    }
}

/// What is remembered, of all volumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Announcer {
    records: HashMap<(VolumeId, NodeName), Record>,
}

/// What is known of all nodes of a volume when the events of one of them are made.
#[derive(Debug)]
pub(super) struct Others<'a> {
    /// What was decided on each.
    pub(super) verdicts: &'a BTreeMap<NodeName, NodeVerdict>,
    /// Nodes that hold the volume, if that is known.
    pub(super) holders: Option<BTreeSet<NodeName>>,
}

impl Others<'_> {
    fn holders_beside(&self, node: &NodeName) -> impl Iterator<Item = &NodeName> {
        self.holders.iter().flatten().filter(move |holder| *holder != node)
    }
}

/// What follows from a look.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// What holds, and what has happened.
    pub(super) events: Vec<EventUpdate<AttachDetachKey>>,
    /// When there may be more.
    pub(super) look_at: Vec<Instant>,
}

impl Announcer {
    /// Takes the verdict on a volume on a node.
    pub(super) fn judged(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &NodeVerdict,
        others: &Others<'_>,
        waits: &Waits,
        known: Known<'_>,
    ) -> Announced {
        let record = self.take(volume, node);
        let mut look = Look { volume, node, waits, known, record, news: Announced::default() };
        look.pause(verdict);
        if known.desired.get(volume, node).is_some() {
            look.desired(verdict, others);
        } else {
            look.undesired(verdict);
        }
        self.keep(look)
    }

    /// A predecessor of this process has recorded that the volume is attached here.
    pub(super) fn inherit_attached(&mut self, volume: &VolumeId, node: &NodeName) {
        self.records.entry((volume.clone(), node.clone())).or_default().attached = true;
    }

    /// Nothing is known any more of the volume on that node.
    pub(super) fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        if self.records.remove(&(volume.clone(), node.clone())).is_some() {
            give_back_room(&mut self.records);
        }
    }

    fn take(&mut self, volume: &VolumeId, node: &NodeName) -> Record {
        let record = self.records.get_mut(&(volume.clone(), node.clone()));
        record.map(std::mem::take).unwrap_or_default()
    }

    fn keep(&mut self, look: Look<'_>) -> Announced {
        let Look { volume, node, record, news, .. } = look;
        let key = (volume.clone(), node.clone());
        if record.is_empty() {
            self.records.remove(&key);
        } else {
            self.records.insert(key, record);
        }
        news
    }
}

/// A look at a volume on a node.
struct Look<'a> {
    volume: &'a VolumeId,
    node: &'a NodeName,
    waits: &'a Waits,
    known: Known<'a>,
    record: Record,
    news: Announced,
}

impl Look<'_> {
    /// No pod is there to read an event: the node's says what keeps the volume there.
    fn undesired(&mut self, verdict: &NodeVerdict) {
        let node_volume = self.known.actual.node_volume(self.volume, self.node);
        match verdict.waiting.as_ref().and_then(failure) {
            Some(message) => {
                let announcement = Announcement::DetachFailed(self.node.clone(), message.to_string());
                self.holds(FAILURE, &announcement);
            }
            // Between two tries it is the same failure.
            None if node_volume.is_some_and(|node_volume| node_volume.retry.failures() > 0) => {}
            None => {
                // A pod that takes the place of another finds it attached: that is no news.
                let attached = self.record.attached && node_volume.is_some_and(NodeVolume::may_be_attached);
                self.record = Record { attached, held_since: None };
                self.news.events.push(EventUpdate::Forget(self.key()));
            }
        }
    }

    /// What changed for the pods that need the volume here.
    fn desired(&mut self, verdict: &NodeVerdict, others: &Others<'_>) {
        let node_volume = self.known.actual.node_volume(self.volume, self.node);
        let is_attached = verdict.report_as_attached == ReportAsAttached::Yes
            && node_volume.is_some_and(NodeVolume::is_attached);
        if is_attached && !self.record.attached {
            self.record.attached = true;
            self.hold(FAILURE, Vec::new());
            self.happened(&Announcement::Attached);
        } else if let Some(Waiting::WaitingForAttacher | Waiting::WaitingForDeletion) = verdict.waiting {
            self.record.attached = false;
        }
        match &verdict.waiting {
            Some(Waiting::AttachError { message, .. }) => {
                self.holds(FAILURE, &Announcement::Failed(message.clone()));
            }
            Some(Waiting::ForeignAttachment { name }) => {
                let message = events::name_taken(name);
                self.holds(FAILURE, &Announcement::Failed(message));
            }
            Some(Waiting::WaitingForAttacher) if self.lasts(LONG) => {
                let message = events::timed_out(self.volume, "attach");
                self.holds(FAILURE, &Announcement::Failed(message));
            }
            Some(Waiting::WaitingForDeletion) => {
                let node_volume = self.known.actual.node_volume(self.volume, self.node);
                let error = node_volume
                    .and_then(NodeVolume::attachment)
                    .and_then(|attachment| csi::detach_error(attachment));
                let message = events::being_deleted(error.map(|error| &*error.message));
                if error.is_some() || self.lasts(LONG) {
                    self.holds(FAILURE, &Announcement::Failed(message));
                }
            }
            Some(Waiting::NodeStatusRefused { message }) => {
                let announcement = Announcement::NotPublished(self.node.clone(), message.to_string());
                self.holds(FAILURE, &announcement);
            }
            Some(Waiting::WriteUndone { writer }) if self.lasts(NOTEWORTHY) => {
                self.holds(UNDONE, &Announcement::Undone(Arc::clone(writer)));
            }
            Some(Waiting::ClaimOrVolumeChanged) if self.lasts(NOTEWORTHY) => {
                self.holds(FAILURE, &Announcement::Failed(self.what_changed()));
            }
            Some(Waiting::HeldByNode { conflict }) if !conflict.is_attached && self.lasts(NOTEWORTHY) => {
                let first = self.known.desired.get(self.volume, &conflict.node).into_iter();
                let pods = first.flat_map(|desired| desired.pods.values()).map(|(pod, _)| pod.key.clone());
                self.holds(MULTI_ATTACH, &Announcement::HeldElsewhere(pods.collect()));
            }
            Some(Waiting::HeldByNode { conflict }) if conflict.is_attached => {
                self.held_by(&conflict.node, others);
                return;
            }
            _ => {}
        }
        self.is_free(others);
    }

    fn held_by(&mut self, holder: &NodeName, others: &Others<'_>) {
        let known = self.known;
        self.record.held_since.get_or_insert(known.now);
        let beside = others.holders_beside(self.node);
        let desired_pod = beside.filter_map(|other| known.desired.get(self.volume, other));
        let users =
            desired_pod.flat_map(|desired| desired.pods.values()).map(|(pod, _)| pod.key.clone()).collect();
        self.holds(MULTI_ATTACH, &Announcement::HeldElsewhere(users));
        // Its own node has it by a VolumeAttachment of another volume, whose pods are there.
        let is_elsewhere = holder != self.node;
        let waiting = others.verdicts.get(holder).filter(|_| is_elsewhere);
        let waiting = waiting.and_then(|verdict| verdict.waiting.as_ref());
        let patience = match waiting {
            // The driver's time, not ours.
            Some(Waiting::DetachWaitingForAttacher | Waiting::WaitingForDeletion) => LONG,
            _ => NOTEWORTHY,
        };
        let began = self.waits.since(self.volume, holder);
        let since = began.or_else(|| self.waits.since(self.volume, self.node));
        if !since.is_some_and(|since| self.lasts_since(since, patience)) {
            return;
        }
        let holder = holder.clone();
        let announcement = match waiting {
            Some(Waiting::DetachWaitingForAttacher) => {
                Announcement::DetachTimedOut(self.volume.clone(), holder)
            }
            waiting => {
                let foreign = known.actual.volume(self.volume).into_iter().flat_map(|state| &state.foreign);
                let foreign = foreign
                    .filter(|(_, node)| is_elsewhere && **node == holder)
                    .map(|(name, _)| name.clone())
                    .next();
                Announcement::Holder { node: holder, waiting: waiting.cloned(), foreign }
            }
        };
        self.holds(HOLDER, &announcement);
    }

    fn is_free(&mut self, others: &Others<'_>) {
        let Some(since) = self.record.held_since.take() else { return };
        for topic in [MULTI_ATTACH, HOLDER] {
            self.hold(topic, Vec::new());
        }
        // If not, another controller attached it here, too.
        if others.holders.is_some() && others.holders_beside(self.node).next().is_none() {
            let waited = self.known.now.saturating_duration_since(since);
            self.happened(&Announcement::Freed(waited.as_secs()));
        }
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

    /// Whether the wait here has lasted that long; if not, there is another look then.
    fn lasts(&mut self, long: Duration) -> bool {
        let since = self.waits.since(self.volume, self.node);
        since.is_some_and(|since| self.lasts_since(since, long))
    }

    fn lasts_since(&mut self, since: Instant, long: Duration) -> bool {
        let at = since + long;
        if at > self.known.now {
            self.news.look_at.push(at);
        }
        at <= self.known.now
    }

    /// What is not said again now does not hold, but for a failure: between two tries it is the same.
    fn pause(&mut self, verdict: &NodeVerdict) {
        let key = self.key();
        let node_volume = self.known.actual.node_volume(self.volume, self.node);
        let is_tried = |node_volume: &&NodeVolume| match verdict.waiting {
            Some(Waiting::RetryBackoff { .. } | Waiting::WaitingForVolumeAttachment | Waiting::Uncertain) => {
                true
            }
            Some(Waiting::DetachWaitingForAttacher | Waiting::DetachWaitingForUnpublish) => {
                !node_volume.is_going()
            }
            _ => false,
        };
        let fails = node_volume.filter(is_tried).is_some_and(|tried| tried.retry.failures() > 0);
        let topics: &[Topic] =
            if fails { &[MULTI_ATTACH, HOLDER, UNDONE] } else { &[FAILURE, MULTI_ATTACH, HOLDER, UNDONE] };
        self.news.events.push(EventUpdate::Pause(key, topics));
    }

    /// It holds for each pod (S47, S48).
    fn holds(&mut self, topic: Topic, announcement: &Announcement) {
        let events = self.events(announcement);
        self.hold(topic, events);
    }

    fn happened(&mut self, announcement: &Announcement) {
        let events = self.events(announcement);
        self.news.events.extend(events.into_iter().map(EventUpdate::Happened));
    }

    fn events(&self, announcement: &Announcement) -> Vec<Event> {
        of_pods_or_node(self.volume, self.node, announcement, self.known)
    }

    fn hold(&mut self, topic: Topic, events: Vec<Event>) {
        self.news.events.push(EventUpdate::Hold(self.key(), topic, events));
    }

    fn key(&self) -> AttachDetachKey {
        AttachDetachKey::NodeVolume(NodeVolumeKey::new(self.volume, self.node))
    }
}

/// A request about a volume on a node failed, for which this event is.
pub(super) fn fails(
    volume: &VolumeId,
    node: &NodeName,
    announcement: &Announcement,
    known: Known<'_>,
) -> EventUpdate<AttachDetachKey> {
    let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node));
    EventUpdate::Hold(key, FAILURE, of_pods_or_node(volume, node, announcement, known))
}

/// The event for each pod; without one the node's, if that is what it is about.
fn of_pods_or_node(
    volume: &VolumeId,
    node: &NodeName,
    announcement: &Announcement,
    Known { objects, desired, .. }: Known<'_>,
) -> Vec<Event> {
    match (desired.get(volume, node), announcement) {
        (Some(desired), _) => events::events(objects, desired, announcement),
        (None, Announcement::DetachFailed(..)) => {
            events::node_event(objects, volume, node, announcement).into_iter().collect()
        }
        (None, _) => Vec::new(),
    }
}

/// What was said of a request for the end of an attachment that failed.
fn failure(waiting: &Waiting) -> Option<&str> {
    match waiting {
        Waiting::RetryBackoff { message } => message.as_deref(),
        Waiting::NodeStatusRefused { message } => Some(message),
        _ => None,
    }
}
