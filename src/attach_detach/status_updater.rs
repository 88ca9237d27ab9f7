//! Status updater: what `volumesAttached` of one node should be, and the one patch that makes it so.
//!
//! In: the node as last seen and what the reconciler wants said of each volume. Out: a patch that
//! carries all pending changes of the node, or nothing. The list is atomic, so it is always written
//! whole; it is sorted, so equal sets are equal bytes; it names the node's UID and revision, so a
//! patch that comes late, or to a re-created node, changes nothing (S13).

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{actual_state::Publication, volume_name::VolumeId};
use crate::kube_api::{
    call::{Request, Verb},
    kinds::{AttachedVolume, Narrow, Node},
    text::Text,
};

/// How long an attached volume waits to be listed together with those that are on their way to the same
/// node. A quarter of what may pass at most (L4); a patch rewrites the whole Node and goes to everyone who
/// watches it, so each one saved is worth a moment.
pub const WINDOW: Duration = Duration::from_millis(25);

/// What `volumesAttached` of a node should become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The whole list.
    pub list: Vec<AttachedVolume>,
    /// Whether something is taken off it: a detach waits.
    pub withholds: bool,
}

impl Change {
    /// When to write the change that has been pending since then. A detach waits for nothing, and a volume
    /// waits only for others that are on their way.
    #[must_use]
    pub fn due(&self, pending_since: Instant, more_to_come: bool) -> Instant {
        if self.withholds || !more_to_come { pending_since } else { pending_since + WINDOW }
    }
}

/// The change that `volumesAttached` needs, if any. Entries that no publication speaks of, those of other
/// plugins among them, stay as they are.
#[must_use]
pub fn change<'a>(
    node: &Node,
    publications: impl Iterator<Item = (&'a VolumeId, Publication)>,
) -> Option<Change> {
    let mut before: Vec<&AttachedVolume> = node.status.volumes_attached.iter().collect();
    before.sort();
    let is_listed = |name: &str| before.binary_search_by(|entry| entry.name.as_str().cmp(name)).is_ok();
    let (mut added, mut withheld) = (Vec::new(), BTreeSet::new());
    for (volume, publication) in publications {
        let name = volume.as_str();
        match (publication, is_listed(name)) {
            (Publication::List, false) => added.push(name),
            (Publication::Withhold, true) => {
                withheld.insert(name);
            }
            (Publication::Keep, _) | (Publication::List, true) | (Publication::Withhold, false) => {}
        }
    }
    let is_listed_twice = before.windows(2).any(|two| two.first() == two.last());
    if added.is_empty() && withheld.is_empty() && !is_listed_twice {
        return None;
    }
    let kept = before.into_iter().filter(|entry| !withheld.contains(entry.name.as_str())).cloned();
    let added =
        added.into_iter().map(|name| AttachedVolume { name: name.into(), device_path: Text::default() });
    let mut list: Vec<AttachedVolume> = kept.chain(added).collect();
    list.sort();
    list.dedup();
    Some(Change { list, withholds: !withheld.is_empty() })
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
            .map(|name| AttachedVolume { name: (*name).into(), device_path: "".into() })
            .collect();
        node
    }

    fn names(change: Option<Change>) -> Option<Vec<String>> {
        change.map(|change| change.list.into_iter().map(|entry| entry.name.to_string()).collect())
    }

    #[test]
    fn all_changes_of_a_node_go_in_one_sorted_list() {
        let (a, b, c) = (volume("a"), volume("b"), volume("c"));
        let node = node(&["kubernetes.io/iscsi/p:i:0", c.as_str()]);
        let said = [(&b, Publication::List), (&a, Publication::List), (&c, Publication::Withhold)];
        let expected: Vec<String> =
            [a.as_str(), b.as_str(), "kubernetes.io/iscsi/p:i:0"].map(String::from).to_vec();
        assert_eq!(names(change(&node, said.into_iter())), Some(expected));
    }

    #[test]
    fn l4_a_volume_waits_for_others_and_a_detach_for_nobody() {
        let start = Instant::now();
        let due = |withholds, more| Change { list: Vec::new(), withholds }.due(start, more) - start;
        assert_eq!(due(false, false), Duration::ZERO);
        assert_eq!(due(false, true), WINDOW);
        assert_eq!(due(true, true), Duration::ZERO);
        let (a, b) = (volume("a"), volume("b"));
        let swap = [(&a, Publication::Withhold), (&b, Publication::List)];
        let withholds =
            |names: &[&str]| change(&node(names), swap.into_iter()).map(|change| change.withholds);
        assert_eq!(withholds(&[a.as_str()]), Some(true));
        assert_eq!(withholds(&[]), Some(false));
        assert_eq!(withholds(&[b.as_str()]), None);
    }

    #[test]
    fn s39_nothing_is_written_when_nothing_changes() {
        let (a, b) = (volume("a"), volume("b"));
        let node = node(&[b.as_str(), a.as_str()]);
        let said = [(&a, Publication::List), (&b, Publication::Keep), (&volume("c"), Publication::Withhold)]
            .map(|(volume, publication)| (volume.clone(), publication));
        let said = said.iter().map(|(volume, publication)| (volume, *publication));
        assert_eq!(change(&node, said), None);
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
