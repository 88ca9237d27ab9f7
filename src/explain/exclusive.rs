//! Volumes for one node alone that have attachments on several, or are in use beside their attachment (S1): a disk that two
//! machines may write.
//!
//! In: the volumes, the attachments, and what pods want. Out: each such volume, with each of its attachments under the name
//! that the object has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::{AttachmentName, NodeName, ResourceVersion, VolumeName},
    kinds::{Narrow, Node, Pod, VolumeAttachment},
};
use k8s_openapi::jiff::Timestamp;

use super::snapshot::Snapshot;
use crate::attach_detach::{
    dry_run::Outlook,
    state::desired::{volume_name::VolumeId, volume_source::source_of},
};

/// A disk may be written from two machines: told before all else.
pub(super) const ATTACHED_TWICE: &str = "ExclusiveAttachedTwice";

/// Such a volume.
pub(super) struct Twice {
    /// A sentence.
    pub told: String,
    /// A PersistentVolume that stands for it.
    pub volume: Option<VolumeName>,
    /// Its attachments, the oldest first; of those that came after the first node's, since when they are.
    pub attachments: Vec<(AttachmentName, Option<Timestamp>)>,
    /// A node that has it in use without an attachment.
    pub in_use: Option<NodeName>,
}

/// The attachments of one volume, as its driver knows it.
#[derive(Default)]
struct Places {
    /// Two PersistentVolumes may stand for it. One that says so is enough.
    is_exclusive: bool,
    attachments: Vec<Arc<VolumeAttachment>>,
    /// Nodes whose kubelet reports it in use, without an attachment and without a pod that waits for one.
    in_use: BTreeSet<NodeName>,
}

pub(super) fn look(snapshot: &Snapshot, outlook: &Outlook) -> BTreeMap<VolumeId, Twice> {
    let mut all: BTreeMap<VolumeId, Places> = BTreeMap::new();
    for attachment in snapshot.objects.attachments.snapshot().into_values() {
        let Some(volume) = source_of(&snapshot.objects, &attachment) else { continue };
        let is_exclusive = volume.is_exclusive();
        let places = all.entry(volume.id).or_default();
        places.is_exclusive |= is_exclusive;
        places.attachments.push(attachment);
    }
    if snapshot.is_listed::<Pod>() {
        in_use(snapshot, outlook, &mut all);
    }
    all.into_iter().filter_map(|(id, places)| places.twice(&id).map(|twice| (id, twice))).collect()
}

/// Notes nodes that report a volume in use which is attached elsewhere alone. One that waits for it does so, too, and has a
/// pod that wants it; one that is silent reports what was.
fn in_use(snapshot: &Snapshot, outlook: &Outlook, all: &mut BTreeMap<VolumeId, Places>) {
    let mut suspected: BTreeSet<(VolumeId, NodeName)> = BTreeSet::new();
    let listed_at =
        [Node::PLURAL, VolumeAttachment::PLURAL].map(|plural| snapshot.listed_at.get(plural).copied());
    snapshot.objects.nodes.for_each(|node| {
        let name = node.key();
        for id in node.status.volumes_in_use.iter().filter_map(|volume| VolumeId::parse_csi(volume)) {
            let is_elsewhere = all.get(&id).is_some_and(|places| {
                let attached = places.attachments.iter().map(|it| it.metadata.resource_version).max();
                places.is_exclusive
                    && places.attachments.iter().all(|it| it.spec.node_name != name)
                    && at_once([node.metadata.resource_version, attached.unwrap_or_default()], listed_at)
            });
            if is_elsewhere && node.kubelet_speaks() {
                suspected.insert((id, name.clone()));
            }
        }
    });
    if suspected.is_empty() {
        return;
    }
    for wanted in outlook.desired.values().flatten() {
        suspected.remove(&(wanted.volume.clone(), wanted.node.clone()));
    }
    for (id, node) in suspected {
        if let Some(places) = all.get_mut(&id) {
            places.in_use.insert(node);
        }
    }
}

/// Whether objects of two lists, which changed last at these revisions, were so at one moment: each is as its list shows it from then
/// until that list. A volume that moves between the two lists has left the one place and come to the other.
fn at_once(changed_at: [ResourceVersion; 2], listed_at: [Option<ResourceVersion>; 2]) -> bool {
    let [Some(one), Some(other)] = listed_at else { return true };
    changed_at.into_iter().all(|changed| changed <= one.min(other))
}

/// How an attachment holds its volume, the firmest first. One that is being deleted does so until it is gone, with any value of `attached`:
/// after an attach of unknown outcome, the driver has not been asked yet.
fn hold(attachment: &VolumeAttachment) -> (u8, &'static str) {
    match (attachment.metadata.is_terminating(), attachment.status.attached) {
        (false, true) => (0, "attached to"),
        (true, _) => (1, "not yet detached from"),
        (false, false) => (2, "being attached to"),
    }
}

impl Places {
    /// If it is for one node alone, and on more.
    fn twice(mut self, id: &VolumeId) -> Option<Twice> {
        let nodes = self.attachments.iter().map(|it| &it.spec.node_name);
        let nodes: BTreeSet<&NodeName> = nodes.chain(&self.in_use).collect();
        if !self.is_exclusive || nodes.len() < 2 {
            return None;
        }
        self.attachments.sort_by_key(|it| (it.metadata.creation_timestamp, it.key()));
        let mut held: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for attachment in &self.attachments {
            held.entry(hold(attachment)).or_default().insert(attachment.spec.node_name.as_str());
        }
        let told = held
            .into_iter()
            .map(|((_, word), nodes)| format!("{word} {}", nodes.into_iter().collect::<Vec<_>>().join(", ")));
        let in_use = self.in_use.iter().map(|node| format!("in use on {node}, which has no attachment"));
        let told: Vec<String> = told.chain(in_use).collect();
        let first = self.attachments.first().map(|it| it.spec.node_name.clone());
        let since = |it: &VolumeAttachment| {
            it.metadata.creation_timestamp.filter(|_| first.as_ref() != Some(&it.spec.node_name))
        };
        let (_, handle) = id.driver_and_handle();
        Some(Twice {
            told: format!("{handle} is for one node alone, {}", told.join(", ")),
            volume: self.attachments.iter().find_map(|it| it.spec.source.persistent_volume_name.clone()),
            attachments: self.attachments.iter().map(|it| (it.key(), since(it))).collect(),
            in_use: self.in_use.pop_first(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_what_two_lists_show_counts_only_if_it_was_so_at_one_moment() {
        let at = |revision: u64| Some(ResourceVersion(revision));
        let cases = [
            // When node and attachment changed last, when their lists are of, and whether they were so together.
            ([3, 4], [at(5), at(9)], true),
            ([3, 4], [at(9), at(5)], true),
            ([5, 4], [at(5), at(5)], true),
            // The volume was detached from the node, and attached elsewhere, after the nodes were listed.
            ([3, 7], [at(5), at(9)], false),
            // It was attached to the node after the attachments were listed.
            ([7, 3], [at(9), at(5)], false),
            // What a file holds says nothing of its time.
            ([7, 3], [None, at(5)], true),
        ];
        for (changed, listed_at, expected) in cases {
            assert_eq!(
                at_once(changed.map(ResourceVersion), listed_at),
                expected,
                "{changed:?} {listed_at:?}"
            );
        }
    }
}
