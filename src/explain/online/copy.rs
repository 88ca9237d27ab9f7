//! A small copy of the daemon's tables: one object, and what an answer about it needs.
//!
//! In: the tables, and a subject. Out: a [`Snapshot`] with what [`needed`] asks for. Where the offline reader would list a whole
//! kind, the tables are looked through and only what can matter is copied: of the volumes those that a claim may take, of the
//! pods those that use one of the claims, of the attachments those of the volumes. So a copy has some dozen objects, however
//! large the cluster; what it lacks is asked of the tables ([`Snapshot::part_of`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use crate::{
    explain::{
        read::{List, Read, needed},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{
        ids::{ClaimKey, NodeName},
        kinds::{
            CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, PodVolumeSource,
            StorageClass, VolumeAttachment, VolumePhase,
        },
    },
    state::{Objects, Stored},
};

/// Each round follows references one step, and the longest chain has six.
const MOST_ROUNDS: usize = 12;

/// Pods of an answer. A claim that more use is on so many nodes that no one reads what is said of each.
const MOST_PODS: usize = 2_000;

/// A part of the tables.
#[derive(Debug)]
pub(super) struct Part {
    pub snapshot: Snapshot,
    /// Whether there are more pods than were looked at.
    pub is_cut: bool,
}

/// Copies what an answer about a subject needs.
pub(super) fn part(subject: &Subject, whole: &Arc<Objects>, now: Timestamp) -> Part {
    let mut copying = Copying {
        whole,
        snapshot: Snapshot::part_of(Arc::clone(whole), now),
        subject,
        lists: BTreeSet::new(),
        looked_through: Extent::default(),
        is_cut: false,
    };
    copying.snapshot.revision = Some(
        whole
            .pods
            .observed()
            .max(whole.claims.observed())
            .max(whole.volumes.observed())
            .max(whole.attachments.observed())
            .max(whole.nodes.observed()),
    );
    let mut done = BTreeSet::new();
    for _ in 0..MOST_ROUNDS {
        let new: Vec<Read> = needed(subject, &copying.snapshot).difference(&done).cloned().collect();
        let is_last = new.is_empty();
        for read in new {
            copying.take(&read);
            done.insert(read);
        }
        if !copying.look_through() && is_last {
            break;
        }
    }
    Part { snapshot: copying.snapshot, is_cut: copying.is_cut }
}

/// What tables were looked through for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extent {
    lists: usize,
    claims: usize,
    volumes: usize,
}

struct Copying<'a> {
    whole: &'a Arc<Objects>,
    snapshot: Snapshot,
    subject: &'a Subject,
    /// Reads that are answered by looking through a table.
    lists: BTreeSet<Read>,
    looked_through: Extent,
    is_cut: bool,
}

impl Copying<'_> {
    fn take(&mut self, read: &Read) {
        match read {
            Read::Object(object) => match object {
                ObjectRef::Node(key) => self.copy::<Node>(key),
                ObjectRef::Pod(key) => self.copy::<Pod>(key),
                ObjectRef::Volume(key) => self.copy::<PersistentVolume>(key),
                ObjectRef::Claim(key) => self.copy::<PersistentVolumeClaim>(key),
                ObjectRef::Attachment(key) => self.copy::<VolumeAttachment>(key),
                ObjectRef::Class(key) => self.copy::<StorageClass>(key),
                ObjectRef::Driver(key) => self.copy::<CsiDriver>(key),
            },
            Read::All(List::Classes) => {
                self.whole.classes.for_each(|class| self.snapshot.objects.apply(class.clone()));
                self.snapshot.note_listed::<StorageClass>();
            }
            Read::All(List::Drivers) => {
                self.whole.drivers.for_each(|driver| self.snapshot.objects.apply(driver.clone()));
                self.snapshot.note_listed::<CsiDriver>();
            }
            Read::All(List::Volumes) => {
                self.volumes_to_take();
                self.snapshot.note_listed::<PersistentVolume>();
            }
            Read::All(List::Claims) => {
                self.whole.claims.for_each(|claim| {
                    if claim.spec.volume_name.is_empty() {
                        self.snapshot.objects.apply(claim.clone());
                    }
                });
                self.snapshot.note_listed::<PersistentVolumeClaim>();
            }
            Read::All(List::Attachments) | Read::PodsOn(_) | Read::PodsIn(_) => {
                self.lists.insert(read.clone());
            }
            // The daemon does not watch them; and what no answer about one object needs.
            Read::CsiNode(_)
            | Read::EventsAbout(_)
            | Read::Leases(_)
            | Read::All(List::Nodes | List::Pods)
            | Read::ClaimsIn(_)
            | Read::ClaimEvents
            | Read::EventsIn(_) => {}
        }
    }

    fn copy<T: Stored>(&mut self, key: &T::Key) {
        if let Some(object) = self.whole.get::<T>(key) {
            self.snapshot.objects.apply((*object).clone());
        }
        if let Some(error) = self.whole.unreadable::<T>(key) {
            self.snapshot.note_unreadable(T::object_ref(key.clone()));
            self.snapshot.objects.note_unreadable::<T>(None, key, None, None, error);
        }
    }

    /// Volumes that the claim may take, or that are for it: one that is bound to another claim is never taken.
    fn volumes_to_take(&self) {
        self.whole.volumes.for_each(|volume| {
            let is_for_others = volume.status.phase == VolumePhase::Bound
                && volume.spec.claim_ref.as_ref().is_some_and(|claim| {
                    !matches!(self.subject, Subject::Claim(key)
                        if *key.namespace() == *claim.namespace && *key.name() == *claim.name)
                });
            if !is_for_others {
                self.snapshot.objects.apply(volume.clone());
            }
        });
    }

    /// Looks through the tables for what the copy refers to by now. Returns whether that was something new.
    fn look_through(&mut self) -> bool {
        let objects = &self.snapshot.objects;
        let extent =
            Extent { lists: self.lists.len(), claims: objects.claims.len(), volumes: objects.volumes.len() };
        if extent == self.looked_through || self.lists.is_empty() {
            return false;
        }
        self.looked_through = extent;
        if self.lists.contains(&Read::All(List::Attachments)) {
            self.attachments();
        }
        self.pods();
        true
    }

    fn attachments(&mut self) {
        let node = match self.subject {
            Subject::Node(name) => Some(name),
            _ => None,
        };
        let objects = &self.snapshot.objects;
        self.whole.attachments.for_each(|attachment| {
            let volume = attachment.spec.source.persistent_volume_name.as_ref();
            let is_of_copy = volume.is_some_and(|volume| objects.volumes.get(volume).is_some());
            if is_of_copy || node.is_some_and(|node| *node == attachment.spec.node_name) {
                objects.apply(attachment.clone());
            }
        });
        // Of those that were left out nothing is concluded: they are of other volumes.
        self.snapshot.note_listed::<VolumeAttachment>();
    }

    fn pods(&mut self) {
        let nodes: BTreeSet<&NodeName> = self
            .lists
            .iter()
            .filter_map(|read| if let Read::PodsOn(node) = read { Some(node) } else { None })
            .collect();
        let mut claims: BTreeMap<&str, BTreeSet<String>> = self
            .lists
            .iter()
            .filter_map(
                |read| if let Read::PodsIn(namespace) = read { Some(namespace.as_str()) } else { None },
            )
            .map(|namespace| (namespace, BTreeSet::new()))
            .collect();
        if nodes.is_empty() && claims.is_empty() {
            return;
        }
        let mut note = |key: &ClaimKey| {
            if let Some(names) = claims.get_mut(key.namespace()) {
                names.insert(key.name().to_owned());
            }
        };
        if let Subject::Claim(key) = self.subject {
            note(key);
        }
        self.snapshot.objects.claims.keys().iter().for_each(&mut note);
        let uses = |pod: &Pod, names: &BTreeSet<String>| {
            pod.spec.volumes.iter().any(|volume| match &volume.source {
                PodVolumeSource::PersistentVolumeClaim(source) => names.contains(&*source.claim_name),
                PodVolumeSource::Ephemeral => {
                    names.contains(&format!("{}-{}", pod.metadata.name, volume.name))
                }
                PodVolumeSource::InTree(_) => false,
            })
        };
        let objects = &self.snapshot.objects;
        let (mut count, mut is_cut) = (0, false);
        self.whole.pods.for_each(|pod| {
            let is_there = !nodes.is_empty() && nodes.contains(&pod.spec.node_name);
            let is_user =
                || claims.get(pod.metadata.namespace.as_str()).is_some_and(|names| uses(pod, names));
            if is_there || is_user() {
                if count == MOST_PODS {
                    is_cut = true;
                    return;
                }
                count += 1;
                objects.apply(pod.clone());
            }
        });
        self.is_cut |= is_cut;
    }
}
