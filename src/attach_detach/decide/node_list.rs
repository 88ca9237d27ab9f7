//! What `volumesAttached` of one node should be, what is sent to the node for that, and when.
//!
//! In: the node as last seen, our requests to it, and what the reconciler needs said of each volume. Out: a patch that
//! carries all pending changes of the node, a live read, or when to look again. The list is atomic, so it is always written
//! whole; it is sorted, so equal sets are equal bytes; it names the node's UID and revision, so a
//! patch that comes late, or to a re-created node, changes nothing (S13).

use std::{collections::BTreeSet, time::Duration};

use apiserver::{
    call::Request,
    kinds::{AttachedVolume, Narrow, Node},
    text::Text,
};
use serde_json::json;
use tokio::time::Instant;

use crate::attach_detach::state::{
    actual::{NodeVolume, ReportAsAttached, node::NodeState},
    desired::volume_name::VolumeId,
};

/// How long an attached volume waits, at least, to be listed together with those that are on their way to the
/// same node. Where the server is not busy, that is all that it waits (L4).
pub const WINDOW: Duration = Duration::from_millis(25);

/// What `volumesAttached` of a node should become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChange {
    /// The whole list.
    pub list: Vec<AttachedVolume>,
    /// Whether something is taken off it: a detach waits.
    pub removes: bool,
    /// How many volumes are put on it or taken off it.
    pub volumes: usize,
}

/// What is known of a node whose list is looked at.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// The node.
    pub state: &'a NodeState,
    /// The volumes on it.
    pub volumes: &'a [(&'a VolumeId, &'a NodeVolume)],
    /// Whether nothing is taken off its list: another controller writes to it (S14).
    pub is_stood_off: bool,
    /// Whether the node has to be read to learn who wrote to it.
    pub asks_owner: bool,
    /// How far apart the patches of one node are at present.
    pub window: Duration,
}

/// What is sent to a node next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// Nothing; the node is looked at then, also if nothing happens.
    Wait(Option<Instant>),
    /// Nothing: the change waits for others of the same node.
    Gather {
        /// Since when it waits.
        since: Instant,
        /// Until when.
        due: Instant,
    },
    /// A live read that tells who wrote to the node.
    ReadOwner,
    /// A live read.
    Read,
    /// The list.
    Patch(ListChange),
}

/// What is sent to a node next. Pure.
pub fn next(view: &NodeView<'_>, now: Instant) -> NodeStep {
    let NodeView { state, volumes, .. } = view;
    let requests = &state.requests;
    if requests.is_under_way {
        return NodeStep::Wait(None);
    }
    if let Some(at) = requests.retry.pending(now) {
        return NodeStep::Wait(Some(at));
    }
    if view.asks_owner {
        return NodeStep::ReadOwner;
    }
    let report = |node_volume: &NodeVolume| match node_volume.report_as_attached {
        ReportAsAttached::No if view.is_stood_off => ReportAsAttached::Unchanged,
        report_as_attached => report_as_attached,
    };
    let reports = volumes.iter().map(|(volume, node_volume)| (*volume, report(node_volume)));
    let node = state.node.as_deref().filter(|_| !requests.is_outdated);
    let detach_waits = volumes.iter().any(|(_, node_volume)| node_volume.needs_proof());
    let Some(change) = node.and_then(|node| change(node, reports)) else {
        let settles_at = requests.in_doubt.map(|patch| patch.until);
        let is_due = requests.is_outdated || detach_waits || settles_at.is_some_and(|at| at <= now);
        return if is_due { NodeStep::Read } else { NodeStep::Wait(settles_at) };
    };
    if let Some(at) = node.and_then(|node| requests.repeats_at(node, &change.list, now)) {
        return if detach_waits { NodeStep::Read } else { NodeStep::Wait(Some(at)) };
    }
    let since = requests.pending_since.unwrap_or(now);
    let more_to_come = !detach_waits && volumes.iter().any(|(_, node_volume)| node_volume.is_on_its_way());
    let due = change.due(since, requests.last_patch, view.window, more_to_come);
    if now < due { NodeStep::Gather { since, due } } else { NodeStep::Patch(change) }
}

impl ListChange {
    /// When to write the change, which waits since then. What takes something off waits for nothing but the patch that is
    /// under way: a detach waits for it. So does what is alone: the last patch of its node is long past, and nothing else
    /// is on its way there. Under load an attached volume waits for as long as keeps the patches of its node apart
    /// ([`Pace::window`](crate::attach_detach::dispatcher::Pace::window)), because the next one is not far.
    fn due(
        &self,
        since: Instant,
        last_patch: Option<Instant>,
        window: Duration,
        more_to_come: bool,
    ) -> Instant {
        if self.removes {
            return since;
        }
        let apart = last_patch.map_or(since, |last| since.max(last + window));
        if more_to_come { apart.max(since + window.max(WINDOW)) } else { apart }
    }
}

/// The change that `volumesAttached` needs, if any. Entries that no report is about, those of other
/// plugins among them, stay as they are.
pub fn change<'a>(
    node: &Node,
    reports: impl Iterator<Item = (&'a VolumeId, ReportAsAttached)>,
) -> Option<ListChange> {
    let mut before: Vec<&AttachedVolume> = node.status.volumes_attached.iter().collect();
    before.sort();
    let is_listed = |name: &str| before.binary_search_by(|entry| entry.name.as_str().cmp(name)).is_ok();
    let (mut added, mut removed) = (Vec::new(), BTreeSet::new());
    for (volume, report_as_attached) in reports {
        let name = volume.as_str();
        match (report_as_attached, is_listed(name)) {
            (ReportAsAttached::Yes, false) => added.push(name),
            (ReportAsAttached::No, true) => {
                removed.insert(name);
            }
            (ReportAsAttached::Unchanged, _)
            | (ReportAsAttached::Yes, true)
            | (ReportAsAttached::No, false) => {}
        }
    }
    let is_listed_twice = before.windows(2).any(|two| two.first() == two.last());
    if added.is_empty() && removed.is_empty() && !is_listed_twice {
        return None;
    }
    let volumes = added.len() + removed.len();
    let kept = before.into_iter().filter(|entry| !removed.contains(entry.name.as_str())).cloned();
    let added =
        added.into_iter().map(|name| AttachedVolume { name: name.into(), device_path: Text::default() });
    let mut list: Vec<AttachedVolume> = kept.chain(added).collect();
    list.sort();
    list.dedup();
    Some(ListChange { list, removes: !removed.is_empty(), volumes })
}

/// The patch that makes `volumesAttached` this list.
pub fn patch(node: &Node, list: &[AttachedVolume]) -> Request {
    // An empty list is written as null, as KCM does: the field is `omitempty`.
    let value = if list.is_empty() { json!(null) } else { json!(list) };
    let path = format!("{}/status", Node::path(&node.key()));
    Request::patch(path, &node.metadata, json!({ "status": { "volumesAttached": value } }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::{
        call::CallError,
        ids::{DriverName, ResourceVersion},
    };

    use super::*;
    use crate::{
        attach_detach::state::actual::{
            answer_time::Answered,
            node_requests::NodeRequests,
            unpublishing::{Sequence, Unpublishing},
        },
        controller::in_doubt::InDoubt,
    };

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

    fn names(change: Option<ListChange>) -> Option<Vec<String>> {
        change.map(|change| change.list.into_iter().map(|entry| entry.name.to_string()).collect())
    }

    #[test]
    fn all_changes_of_a_node_go_in_one_sorted_list() {
        let (a, b, c) = (volume("a"), volume("b"), volume("c"));
        let node = node(&["kubernetes.io/iscsi/p:i:0", c.as_str()]);
        let said = [(&b, ReportAsAttached::Yes), (&a, ReportAsAttached::Yes), (&c, ReportAsAttached::No)];
        let expected: Vec<String> =
            [a.as_str(), b.as_str(), "kubernetes.io/iscsi/p:i:0"].map(String::from).to_vec();
        assert_eq!(names(change(&node, said.into_iter())), Some(expected));
    }

    #[test]
    fn what_is_sent_to_a_node_next() {
        type Do<'a> = &'a dyn Fn(&mut NodeRequests);

        let now = Instant::now();
        let revision = ResourceVersion(1);
        let answered = Answered { asked: now, now, jitter: 0.0, settle_time: Duration::from_secs(10) };
        let settles_at = answered.in_doubt_until();
        let refused = CallError::Refused { code: 403, message: "no".to_owned() };
        let nothing = |_: &mut NodeRequests| {};
        let under_way = |requests: &mut NodeRequests| requests.read(None);
        let outdated = |requests: &mut NodeRequests| requests.is_outdated = true;
        let failed = |requests: &mut NodeRequests| requests.failed(&refused, false, &answered);
        let in_doubt =
            |requests: &mut NodeRequests| requests.in_doubt = Some(InDoubt { revision, until: settles_at });
        let settled =
            |requests: &mut NodeRequests| requests.in_doubt = Some(InDoubt { revision, until: now });
        let both = |requests: &mut NodeRequests| {
            outdated(requests);
            failed(requests);
        };
        // name, our requests, what the list should say of the volume on it, detach, stood off, owner, expected
        let cases: [(&str, Do<'_>, ReportAsAttached, bool, bool, bool, &str); 12] = [
            ("nothing", &nothing, ReportAsAttached::Yes, false, false, false, "wait"),
            ("a change", &nothing, ReportAsAttached::No, false, false, false, "patch"),
            ("one at a time", &under_way, ReportAsAttached::No, true, false, true, "wait"),
            ("L16 a pause holds all", &both, ReportAsAttached::No, true, false, true, "look again"),
            ("S14 who wrote it, first", &outdated, ReportAsAttached::No, false, false, true, "read owner"),
            ("S14 stood off", &nothing, ReportAsAttached::No, false, true, false, "wait"),
            ("S38 outdated", &outdated, ReportAsAttached::No, false, false, false, "read"),
            ("S3 a proof is missing", &nothing, ReportAsAttached::Unchanged, true, false, false, "read"),
            ("S2 in doubt", &in_doubt, ReportAsAttached::Yes, false, false, false, "look again"),
            ("S2 in doubt, and a change", &in_doubt, ReportAsAttached::No, false, false, false, "patch"),
            ("S2 no longer to land", &settled, ReportAsAttached::Yes, false, false, false, "read"),
            ("no owner to ask", &nothing, ReportAsAttached::Unchanged, false, true, true, "read owner"),
        ];
        for (name, requests, report_as_attached, detaches, is_stood_off, asks_owner, expected) in cases {
            let (a, gone) = (volume("a"), volume("gone"));
            let node = node(&[a.as_str()]);
            let mut state = NodeState::default();
            state.node = Some(Arc::new(node));
            requests(&mut state.requests);
            let listed = NodeVolume { report_as_attached, listed: true, ..NodeVolume::default() };
            let unpublishing = Unpublishing::Since(Sequence(1));
            let unlisted = NodeVolume { unpublishing, ..NodeVolume::default() };
            let mut volumes = vec![(&a, &listed)];
            volumes.extend(detaches.then_some((&gone, &unlisted)));
            let view = NodeView {
                state: &state,
                volumes: &volumes,
                is_stood_off,
                asks_owner,
                window: Duration::ZERO,
            };
            let step = match next(&view, now) {
                NodeStep::Wait(None) => "wait",
                NodeStep::Wait(Some(_)) => "look again",
                NodeStep::Gather { .. } => "gather",
                NodeStep::ReadOwner => "read owner",
                NodeStep::Read => "read",
                NodeStep::Patch(_) => "patch",
            };
            assert_eq!(step, expected, "{name}");
        }
    }

    #[test]
    fn l4_alone_a_change_waits_for_nothing_and_under_load_for_those_of_its_node() {
        const MS: Duration = Duration::from_millis(1);
        let start = Instant::now() + MS * 1_000;
        // name, detach, more to come, last patch ms ago, window ms, waits ms
        let cases = [
            ("a lone volume", false, false, None, 30, 0),
            ("a lone volume of a busy server", false, false, None, 500, 0),
            ("long after the last", false, false, Some(501), 500, 0),
            ("soon after the last", false, false, Some(100), 500, 400),
            ("with others on their way", false, true, None, 0, 25),
            ("the same, and the server is busy", false, true, None, 500, 500),
            ("the same, soon after the last", false, true, Some(10), 500, 500),
            ("a lone detach", true, false, None, 500, 0),
            ("a detach waits for no attach", true, true, None, 500, 0),
            ("a detach soon after the last", true, true, Some(100), 500, 0),
            ("an idle server", true, false, Some(40), 30, 0),
        ];
        for (name, removes, more_to_come, last, window, expected) in cases {
            let change = ListChange { list: Vec::new(), removes, volumes: 1 };
            let last_patch = last.map(|ago| start - MS * ago);
            let due = change.due(start, last_patch, MS * window, more_to_come);
            assert_eq!(due - start, MS * expected, "{name}");
        }
    }

    #[test]
    fn a_change_that_takes_something_off_withholds() {
        let (a, b) = (volume("a"), volume("b"));
        let swap = [(&a, ReportAsAttached::No), (&b, ReportAsAttached::Yes)];
        let removes = |names: &[&str]| change(&node(names), swap.into_iter()).map(|change| change.removes);
        assert_eq!(removes(&[a.as_str()]), Some(true));
        assert_eq!(removes(&[]), Some(false));
        assert_eq!(removes(&[b.as_str()]), None);
    }

    #[test]
    fn s39_nothing_is_written_when_nothing_changes() {
        let (a, b) = (volume("a"), volume("b"));
        let node = node(&[b.as_str(), a.as_str()]);
        let said = [
            (&a, ReportAsAttached::Yes),
            (&b, ReportAsAttached::Unchanged),
            (&volume("c"), ReportAsAttached::No),
        ]
        .map(|(volume, report_as_attached)| (volume.clone(), report_as_attached));
        let said = said.iter().map(|(volume, report_as_attached)| (volume, *report_as_attached));
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
