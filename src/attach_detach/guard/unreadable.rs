//! What keeps a volume from being touched although the rules would allow it: an object that cannot be read (S42).
//!
//! In: the markers in the tables. Out: per node the object that has to be readable first. An API server that knows the types
//! serves none, so how long it takes to find them does not matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    attach_detach::{desired::volume_name::VolumeId, known::Known},
    kube_api::{
        ids::{AttachmentName, NodeName},
        kinds::Node,
    },
    state::VecMap,
};

/// The nodes on which nothing may be done about a volume, each with the object that cannot be read: the node itself, or a
/// VolumeAttachment of the volume. By that one the volume may be attached on any node, so it must not get to another. Of
/// one that was never read, its name alone tells what it is about: the names for all nodes are computed.
pub(in crate::attach_detach) fn unreadable_on(
    volume: &VolumeId,
    Known { objects, desired, actual, .. }: Known<'_>,
) -> BTreeMap<NodeName, String> {
    let mut blocked = BTreeMap::new();
    if objects.nodes.unreadable_count() + objects.attachments.unreadable_count() == 0 {
        return blocked;
    }
    let held = actual.volume(volume).into_iter().flat_map(|state| state.nodes.keys());
    let nodes: BTreeSet<NodeName> =
        desired.nodes(volume).into_iter().flat_map(VecMap::keys).chain(held).cloned().collect();
    let unreadable = nodes.iter().filter(|node| objects.unreadable::<Node>(node).is_some());
    blocked.extend(unreadable.map(|node| (node.clone(), format!("node/{node}"))));
    if objects.attachments.unreadable_count() > 0 {
        let names = objects.attachments.all_unreadable().into_iter().map(|(name, _)| name);
        let (read_before, never_read): (BTreeSet<_>, BTreeSet<_>) =
            names.partition(|name| actual.volume_of(name).is_some());
        let known = read_before.into_iter().find(|name| actual.volume_of(name) == Some(volume));
        let computed = || -> Option<AttachmentName> {
            // With 5 000 nodes that is some milliseconds.
            let nodes = objects.nodes.keys().into_iter().chain(nodes.iter().cloned());
            nodes.map(|node| volume.attachment_name(&node)).find(|name| never_read.contains(name))
        };
        let name = known.or_else(|| if never_read.is_empty() { None } else { computed() });
        if let Some(name) = name {
            blocked.extend(nodes.into_iter().map(|node| (node, format!("volumeattachment/{name}"))));
        }
    }
    blocked
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, controller::Controller, options::AttachDetachOptions},
        kube_api::{ids::ResourceVersion, kinds::VolumeAttachment},
        state::Objects,
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
        let mut controller = Controller::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
        let [volume, other] = ["a", "b"].map(|handle| VolumeId::csi(&"d".into(), handle));
        for volume in [&volume, &other] {
            controller.actual.node_volume_mut(volume, &"n1".into());
        }
        let unreadable = |volume: &VolumeId| unreadable_on(volume, controller.known(now));
        node("n1");
        assert_eq!(unreadable(&volume), BTreeMap::new());
        let name = volume.attachment_name(&"n2".into());
        let revision = Some(ResourceVersion(5));
        objects.note_unreadable::<VolumeAttachment>(None, &name, None, revision, "bad".to_owned());
        assert_eq!(unreadable(&volume), BTreeMap::new(), "nobody knows that node yet");
        node("n2");
        assert_eq!(unreadable(&volume), BTreeMap::from([("n1".into(), format!("volumeattachment/{name}"))]));
        assert_eq!(unreadable(&other), BTreeMap::new());
    }
}
