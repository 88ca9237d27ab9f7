//! Our requests to one node: the one under way, and what earlier ones leave to be known. Pure.
//!
//! In: requests as they are sent, their answers, and revisions of the node as they are seen. Out: whether anything may
//! be written, from when on, and what the server may still carry out.

use std::{mem, sync::Arc};

use apiserver::{
    backoff::undone_pause,
    call::CallError,
    ids::{ResourceVersion, Uid},
    kinds::{AttachedVolume, Node},
};
use tokio::time::Instant;

use super::answer_time::Answered;
use crate::controller::{in_doubt::InDoubt, retry::Retry, undone::Undone};

/// Our requests to one node.
#[derive(Clone, Debug, Default)]
pub struct NodeRequests {
    /// At most one patch or read is under way, so that answers come in the order of requests.
    pub(in crate::attach_detach) is_under_way: bool,
    /// The node has moved past what was last seen of it: nothing is written before it was read live.
    pub(in crate::attach_detach) is_outdated: bool,
    /// The revision that a patch named when it was refused for that, if the node was not read since.
    refused: Option<ResourceVersion>,
    /// Since when something has waited to be written, in case more comes.
    pub pending_since: Option<Instant>,
    /// The revision at which the node was known when the last read was sent.
    known: Option<ResourceVersion>,
    /// When the last patch was sent.
    pub last_patch: Option<Instant>,
    own_list: Option<OwnList>,
    /// The node with a list that is another's, unless the answer under way shows that a webhook made it of ours.
    pub suspect: Option<Arc<Node>>,
    /// A patch whose outcome is unknown.
    pub in_doubt: Option<InDoubt>,
    /// The pause after failures.
    pub retry: Retry,
    /// How often another party has changed the list after we had written it.
    pub undone: Undone,
    /// The manager that changed the list last, if a read has told.
    changed_by: Option<Arc<str>>,
}

/// What a patch of ours asked the list to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnList {
    /// Of which node object.
    node: Uid,
    list: Vec<AttachedVolume>,
    /// The revision that the last answer to this or an earlier patch of the same object showed.
    landed: Option<ResourceVersion>,
}

impl NodeRequests {
    /// Whether no earlier patch of ours can land any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_doubt.is_none()
    }

    /// Whether no patch of ours can land any more, be it under way or in doubt.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_under_way && self.is_settled()
    }

    /// Until when a list is not written that only repeats what others have undone (S46). One with more than that, or that
    /// takes off what ours has, is.
    pub(crate) fn repeats_at(&self, node: &Node, list: &[AttachedVolume], now: Instant) -> Option<Instant> {
        let own = self.own_list.as_ref()?;
        let known = &node.status.volumes_attached;
        let is_new = |entry: &AttachedVolume| !known.contains(entry) && !own.list.contains(entry);
        let goes = |entry: &AttachedVolume| own.list.contains(entry) && !list.contains(entry);
        self.undone.pending(now).filter(|_| !list.iter().any(is_new) && !known.iter().any(goes))
    }

    /// Who changes the list again and again, and what, while it is not repeated.
    pub(crate) fn undone_by(&self, now: Instant) -> Option<Arc<str>> {
        self.undone.pending(now)?;
        let manager = self.changed_by.as_deref().unwrap_or("another writer");
        Some(format!("{manager} changes status.volumesAttached of its node").into())
    }

    /// The node whose list another party has changed, once no answer is under way that may tell otherwise.
    pub fn take_suspect(&mut self) -> Option<Arc<Node>> {
        if self.is_under_way { None } else { self.suspect.take() }
    }

    /// A read tells by which manager.
    pub fn note_manager(&mut self, manager: Option<&str>) {
        self.changed_by = manager.map(Arc::from);
    }

    /// The node is seen, or its absence. Returns whether that settles a patch of unknown outcome.
    pub(super) fn seen(&mut self, before: Option<ResourceVersion>, now: Option<ResourceVersion>) -> bool {
        if now > before {
            (self.is_outdated, self.refused) = (false, None);
        }
        let is_past = |patch: InDoubt| now.is_some_and(|revision| patch.is_settled_at(revision));
        self.settle_if(is_past)
    }

    fn settle_if(&mut self, is_settled: impl FnOnce(InDoubt) -> bool) -> bool {
        let settles = self.in_doubt.is_some_and(is_settled);
        if settles {
            self.in_doubt = None;
        }
        settles
    }

    /// A read is sent when the node was known at that revision: until its answer nothing is written.
    pub fn read(&mut self, known: Option<ResourceVersion>) {
        self.is_under_way = true;
        self.pending_since = None;
        self.known = known;
    }

    /// A patch is sent that makes this the list of that node object.
    pub fn patch(&mut self, node: Uid, list: Vec<AttachedVolume>, now: Instant) {
        self.read(None);
        self.last_patch = Some(now);
        self.undone.sent(now);
        let landed = self.own_list.as_ref().filter(|own| own.node == node).and_then(|own| own.landed);
        self.own_list = Some(OwnList { node, list, landed });
    }

    /// The request under way was answered, or will not be.
    pub fn ended(&mut self) {
        self.is_under_way = false;
    }

    /// A patch has landed, and was answered with the node. If the list is not the one that was asked for, a webhook on the
    /// way changed it, and would the next time.
    pub fn patch_answered(&mut self, node: &Node, answered: &Answered) {
        self.undone.landed(answered.now, answered.jitter);
        self.retry = Retry::default();
        let Some(own) = &mut self.own_list else { return };
        own.landed = Some(node.metadata.resource_version);
        let answer = &node.status.volumes_attached;
        self.suspect.take_if(|it| {
            it.status.volumes_attached == *answer || own.landed >= Some(it.metadata.resource_version)
        });
        let is_answered = |entry: &AttachedVolume| answer.iter().any(|it| it.name == entry.name);
        if own.list.len() != answer.len() || !own.list.iter().all(is_answered) {
            self.undone.undone(answered.now);
        }
    }

    /// A patch was refused: it named an outdated revision.
    pub fn patch_refused(&mut self, revision: ResourceVersion) {
        (self.is_outdated, self.refused) = (true, Some(revision));
    }

    /// A patch failed for another reason.
    pub fn patch_failed(&mut self, revision: ResourceVersion, error: &CallError, answered: &Answered) {
        self.failed(error, false, answered);
        if !error.is_certain() {
            self.in_doubt = Some(InDoubt::since(answered.now, answered.settle_time, revision));
            self.is_outdated = true;
            self.suspect = None;
        }
    }

    /// Whether an answer is older than what was known when it was asked for, as after a restore of etcd: nothing of it counts.
    pub fn is_outrun(&self, revision: ResourceVersion) -> bool {
        self.known > Some(revision)
    }

    /// Such an answer came.
    pub fn read_in_vain(&mut self, answered: &Answered) {
        self.retry = no_longer_than_a_list(answered.in_vain(mem::take(&mut self.retry)), answered);
    }

    /// The node was read at this revision. Returns why that is no success, if it is none: the next patch would be refused like
    /// the last.
    pub fn was_read(&mut self, revision: ResourceVersion) -> Option<CallError> {
        self.is_outdated = false;
        if self.refused.take() == Some(revision) {
            return Some(CallError::Conflict("refused at the newest revision".to_owned()));
        }
        if self.is_settled() {
            // A patch that was not answered is a failure until one is.
            self.retry = Retry::default();
        }
        None
    }

    /// A read or a write failed.
    pub fn failed(&mut self, error: &CallError, is_read: bool, answered: &Answered) {
        let retry = answered.failed(mem::take(&mut self.retry), error, is_read);
        let is_asked = matches!(error, CallError::Throttled { .. });
        self.retry = if is_asked { retry } else { no_longer_than_a_list(retry, answered) };
    }

    /// A live read that was sent then was answered. Returns whether that settles a patch of unknown outcome: the
    /// server has given it up by then.
    pub(super) fn settle_by_read(&mut self, asked: Instant) -> bool {
        self.settle_if(|patch| patch.is_settled_by_read(asked))
    }

    /// A live read found no node: every patch on its way names an object that is gone, and lands nowhere. Returns
    /// whether that settles one of unknown outcome.
    pub(super) fn settle_by_absence(&mut self) -> bool {
        (self.is_outdated, self.refused) = (false, None);
        self.settle_if(|_| true)
    }

    /// Whether another party changed the list, as this newer state of the node shows (S14). Only after a
    /// write of ours: what an earlier leader wrote may come late, but not later than that. What the answer to ours shows is
    /// what a webhook on the way made of it, so nothing is told before it, nor of one that may have landed unanswered.
    /// Until then what is the same as ours is suspect, too: another controller may have written it, and ours is refused.
    ///
    /// Another order alone shows that the other is at work. Behind a fence it may be, as long as it changes nothing: the
    /// fence lets kube-controller-manager write the same set in the order of a Go map.
    pub(super) fn is_changed_by_others(&self, known: &Node, node: &Node, is_fenced: bool) -> bool {
        let Some(own) = &self.own_list else { return false };
        let list = &node.status.volumes_attached;
        let is_same =
            |other: &[AttachedVolume]| other == list.as_slice() || (is_fenced && same_set(other, list));
        self.is_settled()
            && own.landed.is_some_and(|at| at < node.metadata.resource_version)
            && own.node == node.metadata.uid
            && known.metadata.uid == node.metadata.uid
            && known.metadata.resource_version < node.metadata.resource_version
            && !is_same(&known.status.volumes_attached)
            && (self.is_under_way || !is_same(&own.list))
    }
}

/// Whether one list has the entries of the other, in whatever order.
fn same_set(one: &[AttachedVolume], other: &[AttachedVolume]) -> bool {
    one.len() == other.len() && one.iter().all(|entry| other.contains(entry))
}

/// All volumes of the node wait, so they wait no longer than for a list that is undone each time (S46), unless the server asks
/// for more.
fn no_longer_than_a_list(retry: Retry, answered: &Answered) -> Retry {
    let longest = answered.now + undone_pause(u32::MAX, answered.jitter);
    if retry.at() > Some(longest) { retry.until(longest) } else { retry }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const REVISION: ResourceVersion = ResourceVersion(5);

    fn at(now: Instant) -> Answered {
        Answered { asked: now, now, jitter: 0.5, settle_time: Duration::from_secs(10) }
    }

    #[test]
    fn s2_a_patch_is_settled_by_what_is_newer_than_what_it_names() {
        for (seen, is_settled) in [(4, false), (5, false), (6, true)] {
            let in_doubt = Some(InDoubt { revision: REVISION, until: Instant::now() });
            let mut requests = NodeRequests { in_doubt, ..NodeRequests::default() };
            let seen = ResourceVersion(seen);
            assert_eq!(requests.seen(Some(ResourceVersion(4)), Some(seen)), is_settled, "at {seen:?}");
            assert_eq!(requests.is_settled(), is_settled, "at {seen:?}");
        }
    }

    #[test]
    fn s38_an_outdated_node_is_the_newest_when_something_newer_is_seen() {
        for (seen, is_outdated) in [(4, true), (5, true), (6, false)] {
            let mut requests = NodeRequests::default();
            requests.patch_refused(REVISION);
            requests.seen(Some(REVISION), Some(ResourceVersion(seen)));
            assert_eq!(requests.is_outdated, is_outdated, "at {seen}");
            assert_eq!(requests.refused.is_some(), is_outdated, "at {seen}");
        }
    }

    #[test]
    fn s38_what_is_to_be_read_remembers_at_which_revision_a_patch_was_refused() {
        let mut requests = NodeRequests::default();
        requests.patch_refused(REVISION);
        requests.is_outdated = true;
        assert_eq!(requests.refused, Some(REVISION));
        assert!(requests.was_read(REVISION).is_some(), "the next patch would be refused like the last");
        assert!(!requests.is_outdated);
        for (known, is_older) in [(5, false), (6, false), (7, true)] {
            requests.patch_refused(REVISION);
            requests.read(Some(ResourceVersion(known)));
            assert_eq!(requests.is_outrun(ResourceVersion(6)), is_older, "E11 known at {known}");
        }
    }

    #[test]
    fn s40_a_read_ends_the_pause_after_failures_but_for_a_patch_of_unknown_outcome() {
        let now = Instant::now();
        for (error, ends) in [
            (CallError::Refused { code: 403, message: "no".to_owned() }, true),
            (CallError::Unknown("cut".to_owned()), false),
        ] {
            let mut requests = NodeRequests::default();
            requests.patch_failed(REVISION, &error, &at(now));
            assert_eq!(requests.is_settled(), error.is_certain(), "{error}");
            assert_eq!(requests.is_outdated, !error.is_certain(), "{error}");
            requests.was_read(REVISION);
            assert_eq!(requests.retry.pending(now).is_none(), ends, "{error}");
        }
    }

    #[test]
    fn s14_a_list_that_is_neither_the_known_one_nor_ours_is_another_writers() {
        let at_revision = |revision, uid: &str, names: &[&str]| {
            let mut node = Node::default();
            node.metadata.uid = uid.into();
            node.metadata.resource_version = ResourceVersion(revision);
            node.status.volumes_attached = list(names);
            node
        };
        // name, known list, our list, the revision at which one of ours has landed, the newer node, verdict without a fence
        let cases = [
            ("a heartbeat", &["a"][..], &["a"][..], Some(4), at_revision(9, "1", &["a"]), false),
            (
                "our patch, once answered",
                &["a"],
                &["a", "b"],
                Some(9),
                at_revision(9, "1", &["a", "b"]),
                false,
            ),
            ("what a webhook left of ours", &[], &["a", "b"], Some(9), at_revision(9, "1", &["a"]), false),
            ("another's", &["a"], &["a"], Some(4), at_revision(9, "1", &[]), true),
            ("another's order", &["a", "b"], &["a", "b"], Some(4), at_revision(9, "1", &["b", "a"]), true),
            ("another's after ours", &["a"], &["a", "b"], Some(4), at_revision(9, "1", &["b"]), true),
            ("an earlier leader's, seen late", &["a"], &["a", "b"], None, at_revision(9, "1", &[]), false),
            ("a re-created node", &["a"], &["a"], Some(4), at_revision(9, "2", &[]), false),
            ("an older state", &["a"], &["a"], Some(2), at_revision(3, "1", &[]), false),
        ];
        for (name, known, own, landed, newer, expected) in cases {
            let mut requests = NodeRequests::default();
            requests.patch("1".into(), Vec::new(), Instant::now());
            if let Some(revision) = landed {
                let answer = at_revision(revision, "1", &[]);
                requests.patch_answered(&answer, &at(Instant::now()));
            }
            requests.patch("1".into(), list(own), Instant::now());
            let known = at_revision(5, "1", known);
            assert_eq!(requests.is_changed_by_others(&known, &newer, false), expected, "{name}");
            let expected = expected && name != "another's order";
            assert_eq!(
                requests.is_changed_by_others(&known, &newer, true),
                expected,
                "{name}, behind a fence"
            );
        }
        let (known, newer) = (at_revision(5, "1", &["a"]), at_revision(9, "1", &[]));
        assert!(!NodeRequests::default().is_changed_by_others(&known, &newer, false), "we have written none");
    }

    #[test]
    fn s14_what_is_seen_of_a_list_before_the_answer_to_ours_is_judged_by_that() {
        type Seen = (u64, &'static [&'static str]);
        type Case = (&'static str, Seen, Result<Seen, CallError>, bool);
        let refused = || Err(CallError::Conflict("moved on".to_owned()));
        let cut = || Err(CallError::Unknown("cut".to_owned()));
        // name, the list and revision that was seen, what our patch of [a, b] at revision 5 is answered, whether another is told of
        let cases: [Case; 8] = [
            ("a webhook left that of ours", (9, &["a"]), Ok((9, &["a"])), false),
            ("and a heartbeat came behind", (10, &["a"]), Ok((9, &["a"])), false),
            ("another's before ours", (8, &["c"]), Ok((9, &["a"])), false),
            ("another's behind ours", (10, &["c"]), Ok((9, &["a", "b"])), true),
            ("another's, and ours is refused", (9, &["c"]), refused(), true),
            ("nobody knows whether ours has landed", (9, &["a"]), cut(), false),
            ("ours, before its answer", (9, &["a", "b"]), Ok((9, &["a", "b"])), false),
            ("another's, the same as ours, which is refused", (9, &["a", "b"]), refused(), true),
        ];
        for (name, (revision, seen), answer, expected) in cases {
            let now = Instant::now();
            let node = |revision, names: &[&str]| {
                let mut node = Node::default();
                node.metadata.resource_version = ResourceVersion(revision);
                node.status.volumes_attached = list(names);
                node
            };
            let mut requests = NodeRequests::default();
            requests.patch(Uid::default(), Vec::new(), now);
            requests.patch_answered(&node(4, &[]), &at(now));
            requests.patch(Uid::default(), list(&["a", "b"]), now);
            let seen = node(revision, seen);
            assert!(requests.is_changed_by_others(&node(5, &[]), &seen, false), "{name}");
            requests.suspect = Some(Arc::new(seen));
            assert!(requests.take_suspect().is_none(), "{name}: its answer is under way");
            requests.ended();
            match answer {
                Ok((revision, names)) => requests.patch_answered(&node(revision, names), &at(now)),
                Err(CallError::Conflict(_)) => requests.patch_refused(REVISION),
                Err(error) => requests.patch_failed(REVISION, &error, &at(now)),
            }
            assert_eq!(requests.take_suspect().is_some(), expected, "{name}");
        }
    }

    fn list(names: &[&str]) -> Vec<AttachedVolume> {
        let entry = |name: &&str| AttachedVolume { name: (*name).into(), device_path: "".into() };
        names.iter().map(entry).collect()
    }
}
