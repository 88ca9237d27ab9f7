//! What is known of one node: its object as last seen, its health over time, and our requests to it.
//!
//! In: the Node, or its absence, and the time. Out: whether its volumes have to be looked at again, and
//! which of them count as in use.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{retry::Retry, volume_name::VolumeId};
use crate::kube_api::{ids::ResourceVersion, kinds::Node};

/// How long a kubelet must have been Ready before an empty list of a re-created node is believed: several
/// times its status period of 10 s.
const TRUST_AFTER: Duration = Duration::from_mins(1);

/// One node.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// The Node as last seen.
    pub node: Option<Arc<Node>>,
    /// Volumes with a pair on this node.
    pub volumes: BTreeSet<VolumeId>,
    /// Whether a status patch or a read of the node is in flight: at most one of both, so that answers
    /// come in the order of requests.
    pub busy: bool,
    /// Whether the node is known to have moved past what we last saw: nothing is written before it was
    /// read live.
    pub stale: bool,
    /// Since when something attached waits to be listed, in case more comes.
    pub pending_since: Option<Instant>,
    /// A status patch whose outcome nobody knows.
    pub unsettled: Option<Unsettled>,
    /// Since when the node has not been Ready, or has been gone, as far as can be known.
    pub unready_since: Option<Timestamp>,
    /// Pause after failures.
    pub retry: Retry,
    /// Boot of the machine behind the node object seen last.
    boot: String,
    /// Volumes that an earlier object of this node reported in use. A later one of the same boot starts
    /// with an empty list, which proves nothing before the kubelet has had time to fill it.
    distrusted: BTreeSet<VolumeId>,
}

/// A status patch that may still land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// The revision it names; once the node is past it, the patch has landed or never will.
    pub revision: ResourceVersion,
    /// After this, the server has given it up.
    pub until: Instant,
}

impl NodeState {
    /// Whether no earlier patch of ours can land any more.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_none()
    }

    /// Takes the node as last seen, or its absence. Returns whether all its volumes have to be looked at
    /// again. `used` are the volumes that counted as in use until now.
    pub(super) fn observe(
        &mut self,
        node: Option<&Arc<Node>>,
        used: impl FnOnce() -> BTreeSet<VolumeId>,
        wall: Timestamp,
    ) -> bool {
        let replaced = match (&self.node, node) {
            (Some(before), Some(after)) => before.metadata.uid != after.metadata.uid,
            (before, after) => before.is_some() != after.is_some(),
        };
        let settled = match (&self.unsettled, node) {
            (Some(unsettled), Some(node)) => node.metadata.resource_version > unsettled.revision,
            _ => false,
        };
        if settled {
            self.unsettled = None;
        }
        let revision = |node: &Arc<Node>| node.metadata.resource_version;
        if node.map(revision) > self.node.as_ref().map(revision) {
            self.stale = false;
        }
        if let Some(node) = node {
            let boot = &node.status.node_info.boot_id;
            if replaced && *boot == self.boot && !boot.is_empty() {
                self.distrusted.extend(used());
            } else if *boot != self.boot {
                self.distrusted.clear();
                self.boot.clone_from(boot);
            }
        }
        let health = self.health();
        self.unready_since = self.unready_since(node, wall);
        self.node = node.cloned();
        replaced || settled || health != self.health()
    }

    fn health(&self) -> (bool, bool, bool) {
        let node = self.node.as_deref();
        (node.is_some(), node.is_some_and(Node::is_ready), node.is_some_and(Node::is_out_of_service))
    }

    /// The earliest moment from which the node is known not to have been well, up to now.
    fn unready_since(&self, node: Option<&Arc<Node>>, wall: Timestamp) -> Option<Timestamp> {
        if node.is_some_and(|node| node.is_ready()) {
            return None;
        }
        // A condition that changes from False to Unknown starts anew; the node was unwell all along.
        let told = node.and_then(|node| node.ready()).and_then(|condition| condition.last_transition_time);
        let told = told.unwrap_or(wall);
        Some(self.unready_since.map_or(told, |known| known.min(told)))
    }

    /// Whether the node's list says that the volume is in use, or cannot be believed that it is not.
    #[must_use]
    pub(super) fn uses(&self, volume: &VolumeId) -> bool {
        self.node.as_ref().is_none_or(|node| node.uses(volume.as_str())) || self.distrusted.contains(volume)
    }

    /// When the node's list can be believed again, if it cannot now and the kubelet is well.
    #[must_use]
    pub fn trusted_at(&self) -> Option<Timestamp> {
        if self.distrusted.is_empty() {
            return None;
        }
        let ready = self.node.as_ref().filter(|node| node.is_ready()).and_then(|node| node.ready());
        let since = ready?.last_transition_time?;
        Some(since.checked_add(TRUST_AFTER).unwrap_or(Timestamp::MAX))
    }

    /// Believes the node's list again if it is time. Returns the volumes that may no longer count as in
    /// use for that reason.
    pub(super) fn trust(&mut self, wall: Timestamp) -> BTreeSet<VolumeId> {
        match self.trusted_at() {
            Some(at) if at <= wall => std::mem::take(&mut self.distrusted),
            _ => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::{ids::DriverName, kinds::NodeCondition};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(uid: &str, boot: &str, ready: &str, since: i64) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.uid = uid.into();
        node.status.node_info.boot_id = boot.to_owned();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".to_owned(),
            status: ready.to_owned(),
            last_transition_time: Some(at(since)),
        });
        Arc::new(node)
    }

    fn volume() -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), "h")
    }

    #[test]
    fn s6_unready_counts_from_the_first_failure() {
        let mut state = NodeState::default();
        state.observe(Some(&node("1", "b", "True", 0)), BTreeSet::new, at(10));
        assert_eq!(state.unready_since, None);
        state.observe(Some(&node("1", "b", "False", 20)), BTreeSet::new, at(25));
        state.observe(Some(&node("1", "b", "Unknown", 50)), BTreeSet::new, at(55));
        assert_eq!(state.unready_since, Some(at(20)));
        state.observe(None, BTreeSet::new, at(70));
        assert_eq!(state.unready_since, Some(at(20)));
        state.observe(Some(&node("2", "b", "True", 80)), BTreeSet::new, at(80));
        assert_eq!(state.unready_since, None);
        state.observe(None, BTreeSet::new, at(90));
        assert_eq!(state.unready_since, Some(at(90)));
    }

    #[test]
    fn s3_an_empty_list_of_a_recreated_node_proves_nothing_for_a_while() {
        let mut state = NodeState::default();
        state.observe(Some(&node("1", "boot", "True", 0)), BTreeSet::new, at(0));
        state.observe(Some(&node("2", "boot", "True", 100)), || BTreeSet::from([volume()]), at(100));
        assert!(state.uses(&volume()));
        assert_eq!(state.trusted_at(), Some(at(160)));
        assert!(state.trust(at(159)).is_empty());
        assert_eq!(state.trust(at(160)), BTreeSet::from([volume()]));
        assert!(!state.uses(&volume()));
    }

    #[test]
    fn after_a_reboot_nothing_is_mounted() {
        let mut state = NodeState::default();
        state.observe(Some(&node("1", "boot-1", "True", 0)), BTreeSet::new, at(0));
        state.observe(None, || BTreeSet::from([volume()]), at(50));
        state.observe(Some(&node("2", "boot-2", "True", 100)), || BTreeSet::from([volume()]), at(100));
        assert!(!state.uses(&volume()));
    }
}
