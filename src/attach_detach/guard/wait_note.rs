//! Wait note: what the lease says of nodes on which volumes wait to be detached by force, and what of it a successor
//! believes (S6). Pure.
//!
//! In: a node, what waits there, and for how long. Out: an entry of the note, and back. An entry has seconds by the
//! monotonic clock of who wrote it, never a time of day, so no clock of another machine makes a wait shorter. It is
//! sealed with all that the seconds are about: the node object and its Ready condition, the volumes that wait and their
//! attachments. If any of that differs, or the entry was edited, it proves nothing. An attachment that is going may be gone when
//! a successor looks, or may not go after all: a second seal leaves it out. A node that is gone has no entry: that it was
//! not back in between nothing shows.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use apiserver::{ids::Uid, kinds::Node};

use crate::attach_detach::state::desired::volume_name::{VolumeId, hashed};

/// The annotation of the lease that has the note.
pub const NODES_NOT_READY: &str = "mooring.dev/nodes-not-ready";

/// Entries of a note, at most: an annotation may hold 256 KiB, and an entry has some 60 bytes, or 75 with both seals.
pub const MOST_ENTRIES: usize = 1_000;

/// Bytes of a seal: two differ in all likelihood.
const SEAL: usize = 16;

/// What waits on a node that is not Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWait {
    node: Uid,
    /// One stretch of time in which the node was not Ready: as long as its condition and the time of the last transition
    /// are the same, it has not been Ready in between, by any clock that wrote that time.
    failure: String,
    waiting: BTreeMap<VolumeId, WaitingAttachment>,
}

/// The attachment of a volume that waits, and whether it is going.
pub(crate) type WaitingAttachment = (Option<Uid>, bool);

impl NodeWait {
    /// What waits there, if anything, each volume with its attachment. `None` for a node that is Ready, or that does not
    /// tell since which transition it is not.
    pub(crate) fn new(
        node: &Node,
        waiting: impl FnOnce() -> BTreeMap<VolumeId, WaitingAttachment>,
    ) -> Option<Self> {
        let ready = node.ready().filter(|_| !node.is_ready())?;
        let failure = format!("{} {}", ready.status.as_str(), ready.last_transition_time?);
        let waiting = Some(waiting()).filter(|waiting| !waiting.is_empty())?;
        Some(Self { node: node.metadata.uid.clone(), failure, waiting })
    }

    /// The volumes that wait.
    pub fn volumes(&self) -> impl Iterator<Item = &VolumeId> {
        self.waiting.keys()
    }

    /// The entry for a wait of so many seconds.
    pub(crate) fn entry(&self, seconds: u64) -> String {
        let [with, without] = self.seals(seconds);
        let second = if with == without { "" } else { &without };
        format!("{}:{seconds}:{with}{second}", self.node)
    }

    /// With the attachments that are going, and without them.
    fn seals(&self, seconds: u64) -> [String; 2] {
        [true, false].map(|going| self.seal(seconds, going))
    }

    fn seal(&self, seconds: u64, going: bool) -> String {
        let mut text = format!("{}\0{}\0{seconds}", self.node, self.failure);
        for (volume, (attachment, is_going)) in &self.waiting {
            let attachment = attachment.as_ref().filter(|_| going || !is_going);
            let attachment = attachment.map(Uid::to_string).unwrap_or_default();
            text.extend(["\0", volume.as_str(), "\0", &attachment]);
        }
        let mut seal = hashed("", &[&text]);
        seal.truncate(SEAL);
        seal
    }
}

/// A note as it was read: by the UID of the node, the seconds and the seal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitNote(HashMap<String, (u64, String)>);

impl WaitNote {
    /// Reads a note; `None` for one that this version does not write.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut entries = HashMap::new();
        for entry in text.split(' ').filter(|_| !text.is_empty()) {
            let (node, rest) = entry.split_once(':')?;
            let (seconds, seal) = rest.split_once(':')?;
            entries.insert(node.to_owned(), (seconds.parse().ok()?, seal.to_owned()));
        }
        (entries.len() <= MOST_ENTRIES).then_some(Self(entries))
    }

    /// How many entries it has.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// For how long at least exactly this has waited, if the note says so.
    pub(crate) fn elapsed(&self, wait: &NodeWait) -> Option<Duration> {
        let (seconds, seal) = self.0.get(&wait.node.to_string())?;
        let ours = wait.seals(*seconds);
        let is_ours = |seal: &[u8]| ours.iter().any(|ours| ours.as_bytes() == seal);
        seal.as_bytes().chunks(SEAL).any(is_ours).then_some(Duration::from_secs(*seconds))
    }
}
#[cfg(test)]
mod tests {
    use apiserver::kinds::NodeCondition;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    fn node(uid: &str, status: &str, second: Option<i64>) -> Node {
        let mut node = Node::default();
        node.metadata.uid = uid.into();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: status.into(),
            last_transition_time: second.map(|second| Timestamp::from_second(second).unwrap()),
        });
        node
    }

    /// Volumes with their attachments; one that begins with `-` is going.
    fn waiting(volumes: &[(&str, Option<&str>)]) -> BTreeMap<VolumeId, WaitingAttachment> {
        let attachment = |uid: &str| (Some(Uid::from(uid.trim_start_matches('-'))), uid.starts_with('-'));
        let all = volumes.iter().map(|(name, uid)| {
            (VolumeId::iscsi("10.0.0.1:3260", name, 0), uid.map_or((None, false), attachment))
        });
        all.collect()
    }

    fn wait(node: &Node, volumes: &[(&str, Option<&str>)]) -> Option<NodeWait> {
        NodeWait::new(node, || waiting(volumes))
    }

    #[test]
    fn l6_an_attachment_that_is_going_may_be_gone_or_may_not_go_after_all() {
        let failed = node("1", "Unknown", Some(5));
        let seen = |a, b| wait(&failed, &[("a", a), ("b", b)]).unwrap();
        // As the predecessor knew them, as the successor sees them, and whether that is the same wait.
        let cases = [
            ((Some("-x"), Some("y")), (None, Some("y")), true),
            ((Some("-x"), Some("y")), (Some("x"), Some("y")), true),
            ((Some("-x"), Some("y")), (Some("-x"), Some("-y")), true),
            ((Some("x"), Some("y")), (Some("-x"), Some("y")), true),
            ((Some("-x"), Some("y")), (Some("other"), Some("y")), false),
            ((Some("-x"), Some("y")), (Some("-other"), Some("other")), false),
            ((Some("x"), Some("y")), (None, Some("y")), false),
        ];
        for (before, after, is_believed) in cases {
            let note = WaitNote::parse(&seen(before.0, before.1).entry(77)).unwrap();
            assert_eq!(note.elapsed(&seen(after.0, after.1)).is_some(), is_believed, "{before:?} {after:?}");
        }
    }

    #[test]
    fn s4_s6_e10_an_entry_is_believed_of_the_same_wait_alone() {
        let failed = node("1", "Unknown", Some(5));
        let volumes = [("a", Some("uid")), ("b", None)];
        let known = wait(&failed, &volumes).unwrap();
        let note = WaitNote::parse(&known.entry(77)).unwrap();
        assert_eq!(note.elapsed(&known), Some(Duration::from_secs(77)));
        let again = wait(&failed, &[("b", None), ("a", Some("uid"))]);
        assert_eq!(again, Some(known), "by UID, in any order");
        let of = |node: &Node| wait(node, &volumes);
        let others = [
            ("Ready", of(&node("1", "True", Some(5)))),
            ("nothing tells the transition", of(&node("1", "Unknown", None))),
            ("no condition", of(&Node::default())),
            ("another object", of(&node("2", "Unknown", Some(5)))),
            ("it may have been Ready in between", of(&node("1", "Unknown", Some(6)))),
            ("and so here", of(&node("1", "False", Some(5)))),
            ("nothing waits", wait(&failed, &[])),
            ("one volume less", wait(&failed, &[("a", Some("uid"))])),
            ("one more", wait(&failed, &[("a", Some("uid")), ("b", None), ("c", None)])),
            ("another volume", wait(&failed, &[("a", Some("uid")), ("c", None)])),
            ("another attachment", wait(&failed, &[("a", Some("other")), ("b", None)])),
            ("none any more", wait(&failed, &[("a", None), ("b", None)])),
            ("one where there was none", wait(&failed, &[("a", Some("uid")), ("b", Some("x"))])),
        ];
        for (name, other) in others {
            assert_eq!(other.and_then(|other| note.elapsed(&other)), None, "{name}");
        }
    }

    #[test]
    fn s4_s42_what_was_edited_or_is_of_another_version_proves_nothing() {
        let known = wait(&node("1", "False", Some(5)), &[("a", None)]).unwrap();
        let entry = known.entry(77);
        let other = entry.replace(":77:", ":360:");
        assert_eq!(WaitNote::parse(&other).unwrap().elapsed(&known), None, "the seal is of other seconds");
        let unreadable = [
            "1:77".to_owned(),
            "77".to_owned(),
            "1:-1:seal".to_owned(),
            "1:1.5:seal".to_owned(),
            format!("{entry} {entry} "),
            format!("v2 {entry}"),
            "{\"1\":77}".to_owned(),
            (0..=MOST_ENTRIES).map(|number| format!("{number}:1:seal")).collect::<Vec<_>>().join(" "),
        ];
        for text in unreadable {
            assert_eq!(WaitNote::parse(&text), None, "{text:.60}");
        }
    }
}
