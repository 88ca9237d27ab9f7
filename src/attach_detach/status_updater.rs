//! Status updater: what `volumesAttached` of one node should be, and the one patch that makes it so.
//!
//! In: the node as last seen and what the reconciler wants said of each volume. Out: a patch that
//! carries all pending changes of the node, or nothing. The list is atomic, so it is always written
//! whole; it is sorted, so equal sets are equal bytes; it names the node's UID and revision, so a
//! patch that comes late, or to a re-created node, changes nothing (S13).

use serde_json::json;

use super::{actual_state::Publication, volume_name::VolumeId};
use crate::kube_api::{
    call::{Request, Verb},
    kinds::{AttachedVolume, Narrow, Node},
};

/// The list that `volumesAttached` should become, if it differs from what it is. Entries that no
/// publication speaks of, those of other plugins among them, stay as they are.
#[must_use]
pub fn desired_list<'a>(
    node: &Node,
    publications: impl Iterator<Item = (&'a VolumeId, Publication)>,
) -> Option<Vec<AttachedVolume>> {
    let present = &node.status.volumes_attached;
    let mut list = present.clone();
    for (volume, publication) in publications {
        let name = volume.as_str();
        match publication {
            Publication::Keep => {}
            Publication::Withhold => list.retain(|entry| entry.name != name),
            Publication::List if node.lists(name) => {}
            Publication::List => {
                list.push(AttachedVolume { name: name.to_owned(), device_path: String::new() });
            }
        }
    }
    list.sort();
    list.dedup();
    let mut before = present.clone();
    before.sort();
    (list != before).then_some(list)
}

/// The patch that makes `volumesAttached` this list.
#[must_use]
pub fn patch(node: &Node, list: &[AttachedVolume]) -> Request {
    // An empty list is written as null, as KCM does: the field is `omitempty`.
    let value = if list.is_empty() { json!(null) } else { json!(list) };
    Request {
        verb: Verb::Patch,
        path: format!("{}/status", Node::path(&node.key())),
        body: Some(json!({
            "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
            "status": { "volumesAttached": value },
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::ids::DriverName;

    fn volume(handle: &str) -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), handle)
    }

    fn node(names: &[&str]) -> Node {
        let mut node = Node::default();
        node.metadata.name = "n".into();
        node.metadata.uid = "u".into();
        node.status.volumes_attached = names
            .iter()
            .map(|name| AttachedVolume { name: (*name).to_owned(), device_path: String::new() })
            .collect();
        node
    }

    fn names(list: Option<Vec<AttachedVolume>>) -> Option<Vec<String>> {
        list.map(|list| list.into_iter().map(|entry| entry.name).collect())
    }

    #[test]
    fn all_changes_of_a_node_go_in_one_sorted_list() {
        let (a, b, c) = (volume("a"), volume("b"), volume("c"));
        let node = node(&["kubernetes.io/iscsi/p:i:0", c.as_str()]);
        let said = [(&b, Publication::List), (&a, Publication::List), (&c, Publication::Withhold)];
        let expected: Vec<String> =
            [a.as_str(), b.as_str(), "kubernetes.io/iscsi/p:i:0"].map(String::from).to_vec();
        assert_eq!(names(desired_list(&node, said.into_iter())), Some(expected));
    }

    #[test]
    fn s39_nothing_is_written_when_nothing_changes() {
        let (a, b) = (volume("a"), volume("b"));
        let node = node(&[b.as_str(), a.as_str()]);
        let said = [(&a, Publication::List), (&b, Publication::Keep), (&volume("c"), Publication::Withhold)]
            .map(|(volume, publication)| (volume.clone(), publication));
        let said = said.iter().map(|(volume, publication)| (volume, *publication));
        assert_eq!(desired_list(&node, said), None);
    }

    #[test]
    fn s13_the_patch_names_uid_and_revision_and_touches_one_field() {
        let request = patch(&node(&[]), &[]);
        assert_eq!(request.path, "/api/v1/nodes/n/status");
        assert_eq!(
            request.body,
            Some(serde_json::json!({
                "metadata": {"uid": "u", "resourceVersion": "0"},
                "status": {"volumesAttached": null},
            }))
        );
    }
}
