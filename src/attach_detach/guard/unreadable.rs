//! What keeps a volume from being touched although the rules would allow it: an object that cannot be read (S42).
//!
//! In: the markers in the tables. Out: per node the object that has to be readable before anything is done, and those that
//! have to be before something is taken away. An API server that knows the types serves none, so how long it takes to
//! find them does not matter.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::{AttachmentName, NodeName},
    kinds::{Node, ObjectRef},
    tables::Objects,
    wire::AttachmentNames,
};

use crate::attach_detach::{
    known::Known,
    state::desired::{
        DesiredState,
        volume_name::{VolumeId, VolumeKind},
        volume_source::volume_of,
    },
};

/// The nodes on which nothing may be done about a volume, each with the object that cannot be read: the node itself, or a
/// VolumeAttachment of the volume. By that one the volume may be attached on any node, so it must not get to another. One
/// that was never read is of the volume by its PersistentVolume, or by its name, which is computed for its node; if even
/// that cannot be read, for all nodes.
pub(in crate::attach_detach) fn unreadable_on(
    volume: &VolumeId,
    known: Known<'_>,
) -> BTreeMap<NodeName, String> {
    let Known { objects, actual, .. } = known;
    let mut blocked = BTreeMap::new();
    if objects.nodes.unreadable_count() + objects.attachments.unreadable_count() == 0 {
        return blocked;
    }
    let nodes = known.nodes_of(volume);
    let unreadable = nodes.iter().filter(|node| objects.unreadable::<Node>(node).is_some());
    blocked.extend(unreadable.map(|node| (node.clone(), format!("node/{node}"))));
    // Nothing but its status tells which volumes without attachments a node has.
    let never_read = objects.nodes.all_unreadable().into_iter().map(|(name, _)| name);
    let never_read = never_read.filter(|_| volume.kind() == VolumeKind::NoOp);
    if let Some(name) = never_read.into_iter().find(|name| objects.nodes.get(name).is_none()) {
        blocked.extend(nodes.iter().map(|node| (node.clone(), format!("node/{name}"))));
    }
    let is_of_it = |name: &AttachmentName, names: &AttachmentNames| {
        if let Some(known) = actual.identity(name) {
            return known.held().any(|held| held == volume);
        }
        let is_named = |node: &NodeName| volume.attachment_name(node) == *name;
        let source = names.volume.as_ref().and_then(|source| volume_of(objects, source));
        let is_its = match &names.node {
            Some(node) => is_named(node),
            // With 5 000 nodes that is some milliseconds.
            None => objects.nodes.keys().iter().chain(&nodes).any(is_named),
        };
        is_its || source.is_some_and(|source| source.id == *volume)
    };
    let unreadable = objects.attachments.all_unreadable();
    if let Some((name, _)) = unreadable.iter().find(|(name, marker)| is_of_it(name, &marker.names)) {
        blocked.extend(nodes.iter().map(|node| (node.clone(), format!("volumeattachment/{name}"))));
    }
    blocked
}

/// What cannot be read, and from which nodes nothing may be taken away for it, as it is not known what a pod there needs. It is
/// found once for all volumes of a plan: one driver may be that of every pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::attach_detach) struct UnknownNeeds {
    unreadable: BTreeSet<ObjectRef>,
    /// Whether there is a pod that may be on any node.
    anywhere: bool,
    nodes: BTreeSet<NodeName>,
}

impl UnknownNeeds {
    /// Those of pods that cannot be read, and of pods that lead to a claim, PersistentVolume or driver that cannot be.
    pub(in crate::attach_detach) fn of(objects: &Objects, desired: &DesiredState) -> Self {
        let mut needs = Self::default();
        for (object, _) in objects.all_unreadable() {
            // Of a pod that could be read once it is known what it needs, and where.
            needs.anywhere |= matches!(&object, ObjectRef::Pod(pod)
                if objects.pods.get(pod).is_none_or(|pod| pod.spec.node_name.is_empty()));
            let pods = desired.dependants(&object);
            needs.nodes.extend(pods.iter().filter_map(|pod| Some(desired.pod(pod)?.node.clone())));
            needs.unreadable.insert(object);
        }
        needs
    }

    /// Whether nothing may be taken from the node.
    pub(in crate::attach_detach) fn are_on(&self, node: &NodeName) -> bool {
        self.anywhere || self.nodes.contains(node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::{
        ids::ResourceVersion,
        kinds::{PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    };
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, controller::AttachDetach, options::AttachDetachOptions},
        controller::Controller as _,
    };

    #[test]
    fn s42_an_attachment_that_was_never_read_is_found_by_its_name_also_on_a_node_that_comes_later() {
        let objects = Arc::new(Objects::default());
        let node = |name: &str| {
            let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            objects.apply::<Node>(serde_json::from_value(node).unwrap());
        };
        let now = Instant::now();
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut controller = AttachDetach::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
        let [volume, other] = ["a", "b"].map(|handle| VolumeId::csi(&"d".into(), handle));
        for volume in [&volume, &other] {
            controller.actual.node_volume_mut(volume, &"n1".into());
        }
        let unreadable = |volume: &VolumeId| unreadable_on(volume, controller.known(now));
        node("n1");
        assert_eq!(unreadable(&volume), BTreeMap::new());
        let name = volume.attachment_name(&"n2".into());
        let revision = Some(ResourceVersion(5));
        objects.note_unreadable::<VolumeAttachment>(
            None,
            &name,
            (None, revision, apiserver::wire::AttachmentNames::default()),
            "bad".to_owned(),
        );
        assert_eq!(unreadable(&volume), BTreeMap::new(), "nobody knows that node yet");
        node("n2");
        assert_eq!(unreadable(&volume), BTreeMap::from([("n1".into(), format!("volumeattachment/{name}"))]));
        assert_eq!(unreadable(&other), BTreeMap::new());
    }

    #[test]
    fn s42_what_was_held_up_is_looked_at_when_the_object_is_gone_or_can_be_read() {
        // An attachment of the volume that was never read, and its pod's node.
        let volume = VolumeId::csi(&"d".into(), "a");
        let attachment = volume.attachment_name(&"n2".into());
        let (now, revision) = (Instant::now(), Some(ResourceVersion(5)));
        for is_attachment in [true, false] {
            let objects = Arc::new(Objects::default());
            let meta =
                |name: &str| json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"});
            let node = |name: &str, revision: &str| -> Node {
                let mut node = json!({"metadata": meta(name)});
                node["metadata"]["resourceVersion"] = revision.into();
                node["metadata"]["annotations"] =
                    json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
                serde_json::from_value(node).unwrap()
            };
            objects.apply(node("n1", "1"));
            objects.apply(node("n2", "1"));
            let spec = json!({"csi": {"driver": "d", "volumeHandle": "a"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}});
            let pv = json!({"metadata": meta("v"), "spec": spec});
            objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
            let claim =
                json!({"metadata": meta("c"), "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
            objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim).unwrap());
            let source = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
            let pod = json!({"metadata": meta("p"), "spec": {"nodeName": "n1", "volumes": source}});
            objects.apply::<Pod>(serde_json::from_value(pod).unwrap());
            let bad = "bad".to_owned();
            if is_attachment {
                objects.note_unreadable::<VolumeAttachment>(
                    None,
                    &attachment,
                    (None, revision, apiserver::wire::AttachmentNames::default()),
                    bad,
                );
            } else {
                objects.note_unreadable::<Node>(
                    None,
                    &"n1".into(),
                    (None, revision, apiserver::wire::AttachmentNames::default()),
                    bad,
                );
            }
            let changes = objects.subscribe();
            let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
            let mut controller =
                AttachDetach::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
            controller.lead(now);
            assert_eq!(controller.plan(now).calls.len(), 0, "it is held up");
            if is_attachment {
                let gone = json!({"metadata": {"name": attachment, "uid": "u", "resourceVersion": "6"}});
                objects.delete::<VolumeAttachment>(serde_json::from_value(gone).unwrap());
            } else {
                objects.apply(node("n1", "6"));
            }
            controller.changed(changes.take(), now);
            // Everything is looked at then, some at a time.
            let calls: usize = (0..20).map(|_| controller.plan(now).calls.len()).sum();
            assert_eq!(calls, 1, "attachment: {is_attachment}");
        }
    }
}
