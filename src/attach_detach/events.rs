//! What users are told of an attachment, with KCM's reasons and texts (attach-detach §9).

use std::sync::Arc;

use apiserver::{
    events::{CORE, Event, EventType, Involved, Novelty},
    ids::{AttachmentName, NodeName, PodKey, ResourceVersion},
    kinds::{Narrow, Pod},
    tables::Objects,
};

use super::{
    decide::{
        force::Unforced,
        verdict::{ANOTHER_MACHINE, BY_TAINT, Waiting},
    },
    state::{
        actual::{ForceReason, node::NodeDoubt},
        desired::{
            DesiredAttachment, PodFacts,
            volume_name::{VolumeId, VolumeKind},
        },
    },
};

/// Reason of the event that tells of an attach that is done.
pub const ATTACHED: &str = "SuccessfulAttachVolume";

/// Something to tell the pods that need a volume on a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Announcement {
    /// The volume is attached.
    Attached,
    /// The driver, or the API server, said no.
    Failed(String),
    /// Another node holds the volume; these pods use it there.
    HeldElsewhere(Vec<PodKey>),
    /// Which node holds it, and what that node's side waits for.
    Holder {
        /// The node.
        node: NodeName,
        /// What the volume on the node there waits for; nothing if it is simply used there.
        waiting: Option<Waiting>,
        /// The VolumeAttachment that holds it there, if it is another party's.
        foreign: Option<AttachmentName>,
    },
    /// The volume is attached, but the status of its node, for which the kubelet waits, could not be written.
    NotPublished(NodeName, String),
    /// Another writer undoes what is written for the volume: who undoes what.
    Undone(Arc<str>),
    /// The API server did not take what would detach the volume from that node.
    DetachFailed(NodeName, String),
    /// The driver takes long to detach the volume from that node.
    DetachTimedOut(VolumeId, NodeName),
    /// The volume is attached to no other node any more; so many seconds passed.
    Freed(u64),
    /// The volume is taken from another node although it may be in use there.
    ForcedDetach(NodeName, ForceReason),
    /// That is done.
    ForcedDetachDone(NodeName, ForceReason),
}

/// What KCM says when it gives up waiting for an external-attacher (attach-detach §7.3, §7.5).
pub fn timed_out(volume: &VolumeId, operation: &str) -> String {
    let (driver, handle) = volume.driver_and_handle();
    format!("timed out waiting for external-attacher of {driver} CSI driver to {operation} volume {handle}")
}

/// What KCM says when the API server refuses the VolumeAttachment.
///
/// KCM: pkg/volume/csi/csi_attacher.go, Attach.
pub fn refused(error: &str) -> String {
    format!("kubernetes.io/csi: attacher.Attach failed: {error}")
}

/// What KCM says when a pod came back to a node before the detach there ended, and what keeps that one.
pub fn being_deleted(error: Option<&str>) -> String {
    let cause = error.map(|message| format!(": {message}")).unwrap_or_default();
    format!("volume attachment is being deleted{cause}")
}

/// What is said while the name of a VolumeAttachment is taken by one that is for something else.
pub fn name_taken(name: &AttachmentName) -> String {
    format!("VolumeAttachment {name} exists already and is not for this volume")
}

/// The event on the node. It names no pod and no claim (S41).
pub fn node_event(
    objects: &Objects,
    volume: &VolumeId,
    node: &NodeName,
    announcement: &Announcement,
) -> Option<Event> {
    let involved = Involved::object(&*objects.nodes.get(node)?);
    let name = match volume.kind() {
        VolumeKind::Csi => volume.driver_and_handle().1,
        VolumeKind::NoOp => volume.as_str(),
    };
    let (r#type, reason, message) = text(announcement, name, "");
    Some(Event { involved, r#type, reason, message, novelty: Novelty::default(), subject: None })
}

/// The events that tell every pod of the desired attachment.
pub fn events(objects: &Objects, desired: &DesiredAttachment, announcement: &Announcement) -> Vec<Event> {
    let mut events = Vec::new();
    for (pod, volume) in desired.pods.values() {
        let (r#type, reason, message) = text(announcement, &volume.spec_name, pod.key.namespace());
        let (involved, novelty) = (involved(objects, pod), Novelty::default());
        // Who has it changes while it is waited for, and what other processes know of that.
        let wait = match announcement {
            Announcement::HeldElsewhere(_) => Some("multi-attach"),
            Announcement::Holder { .. } => Some("holder"),
            _ => None,
        };
        let subject = wait.map(|wait| format!("{wait} {}", volume.spec_name).into());
        events.push(Event { involved, r#type, reason, message, novelty, subject });
    }
    events
}

fn involved(objects: &Objects, pod: &Arc<PodFacts>) -> Involved {
    match objects.pods.get(&pod.key) {
        Some(object) if object.metadata.uid == pod.uid => Involved::object(&*object),
        _ => Involved {
            api_version: CORE,
            kind: Pod::KIND,
            namespace: pod.key.0.namespace.clone(),
            name: pod.key.0.name.clone(),
            uid: pod.uid.clone(),
            resource_version: ResourceVersion::default(),
        },
    }
}

fn text(announcement: &Announcement, volume: &str, namespace: &str) -> (EventType, &'static str, String) {
    match announcement {
        Announcement::Attached => (
            EventType::Normal,
            ATTACHED,
            // The space at the end is KCM's.
            format!("AttachVolume.Attach succeeded for volume \"{volume}\" "),
        ),
        Announcement::Failed(error) => (
            EventType::Warning,
            "FailedAttachVolume",
            format!("AttachVolume.Attach failed for volume \"{volume}\" : {error}"),
        ),
        Announcement::HeldElsewhere(pods) => (
            EventType::Warning,
            "FailedAttachVolume",
            format!("Multi-Attach error for volume \"{volume}\" {}", holders(pods, namespace)),
        ),
        Announcement::Holder { node, waiting, foreign } => (
            EventType::Warning,
            "HeldByNode",
            format!(
                "Volume \"{volume}\" is attached to node \"{node}\", {}",
                holding(waiting.as_ref(), foreign.as_ref())
            ),
        ),
        Announcement::DetachTimedOut(id, node) => (
            EventType::Warning,
            "FailedDetachVolume",
            format!(
                "DetachVolume.Detach failed for volume \"{volume}\" on node \"{node}\" : {}",
                timed_out(id, "detach")
            ),
        ),
        Announcement::NotPublished(node, error) => (
            EventType::Warning,
            "NodeStatusRefused",
            format!(
                "Volume \"{volume}\" is attached, but the status of node \"{node}\", for which the kubelet waits, \
                 cannot be written: {error}"
            ),
        ),
        Announcement::Undone(writer) => (
            EventType::Warning,
            "WriteUndone",
            format!(
                "Volume \"{volume}\" is kept from its node: {writer} again and again, and it is written again each half \
                 minute"
            ),
        ),
        Announcement::DetachFailed(node, error) => (
            EventType::Warning,
            "FailedDetachVolume",
            format!("DetachVolume.Detach failed for volume \"{volume}\" on node \"{node}\" : {error}"),
        ),
        Announcement::Freed(seconds) => (
            EventType::Normal,
            "MultiAttachResolved",
            format!("Volume \"{volume}\" is no longer attached elsewhere, after {seconds} s"),
        ),
        Announcement::ForcedDetachDone(node, reason) => (
            EventType::Warning,
            "ForcedDetachDone",
            format!("Volume \"{volume}\" was detached from node \"{node}\" by force: {}", cause(*reason)),
        ),
        Announcement::ForcedDetach(node, reason) => (
            EventType::Warning,
            "ForcedDetach",
            format!("Volume \"{volume}\" is detached from node \"{node}\" by force: {}", cause(*reason)),
        ),
    }
}

/// Why the volume is still on another node, as the end of a sentence.
fn holding(waiting: Option<&Waiting>, foreign: Option<&AttachmentName>) -> String {
    let forced = |node: &str, unforced: &Unforced| match unforced {
        Unforced::NodeReady => "whose kubelet has not unmounted it".to_owned(),
        Unforced::Distrusted(NodeDoubt::New(until)) => {
            let until = until.map(|at| format!(" before {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")));
            let until = until.unwrap_or_else(|| " yet".to_owned());
            format!(
                "whose object is new, and that it does not report the volume in use proves nothing{until}"
            )
        }
        Unforced::Distrusted(NodeDoubt::AnotherMachine(None)) => format!("as {ANOTHER_MACHINE}; {BY_TAINT}"),
        Unforced::Distrusted(NodeDoubt::AnotherMachine(Some(at))) => {
            format!("as {ANOTHER_MACHINE}; it is detached by force at {}", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        }
        Unforced::SwitchedOff => {
            format!("which {node} and may still use it; nothing is forced because of time")
        }
        Unforced::Until(due) => format!(
            "which {node} and may still use it; it is detached by force at {}",
            due.strftime("%Y-%m-%dT%H:%M:%SZ")
        ),
    };
    match waiting {
        Some(Waiting::DetachWaitingForUnmount { unforced }) => forced("is not Ready", unforced),
        Some(Waiting::DetachWaitingForNode { unforced }) => forced("has no object any more", unforced),
        Some(Waiting::DetachError { message, .. }) => {
            format!("from which its driver cannot detach it ({message})")
        }
        Some(Waiting::RetryBackoff { message: Some(message) }) => {
            format!("as a request that would detach it failed ({message})")
        }
        Some(Waiting::NodeStatusRefused { message }) => {
            format!("as the node's status, which comes first, cannot be written ({message})")
        }
        Some(Waiting::ForeignWriter { writer, until: _ }) => {
            format!("and nothing is detached there for now, as {writer}")
        }
        Some(Waiting::RestoreGrace { until }) => format!(
            "and nothing is detached until {}, as etcd was restored from a backup",
            until.strftime("%Y-%m-%dT%H:%M:%SZ")
        ),
        Some(Waiting::HandOver { why, until: _ }) => {
            format!("and nothing is detached there for now, as {why}")
        }
        Some(Waiting::Unreadable { object }) => format!("and {object} cannot be read"),
        Some(
            Waiting::AttachError { .. } | Waiting::WaitingForAttacher | Waiting::WaitingForVolumeAttachment,
        ) => "where its driver is still attaching it".to_owned(),
        Some(
            Waiting::NodeGone
            | Waiting::Publishing
            | Waiting::WriteUndone { .. }
            | Waiting::ClaimOrVolumeChanged,
        ) => "where pods still want it".to_owned(),
        Some(_) => "from which it is being detached".to_owned(),
        None => match foreign {
            Some(name) => format!("by VolumeAttachment {name}, which somebody else made and is to delete"),
            None => "where pods still want it".to_owned(),
        },
    }
}

fn cause(reason: ForceReason) -> &'static str {
    match reason {
        ForceReason::Timeout => "the node has not been Ready, nor the volume wanted there, for too long",
        ForceReason::OutOfService => "the node is marked as out of service",
        ForceReason::AnotherMachine => {
            "another machine has taken its name, and nothing was heard of the first one for too long"
        }
    }
}

/// Who holds the volume, without the names of other namespaces (S41).
fn holders(pods: &[PodKey], namespace: &str) -> String {
    let (near, far): (Vec<&PodKey>, Vec<&PodKey>) = pods.iter().partition(|pod| pod.namespace() == namespace);
    let mut near_names: Vec<&str> = near.iter().map(|pod| pod.name()).collect();
    // The same words in every process, or they would be told again (S47).
    near_names.sort_unstable();
    match (near.is_empty(), far.len()) {
        (true, 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
        }
        (true, count) => format!("Volume is already used by {count} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", near_names.join(", ")),
        (false, count) => format!(
            "Volume is already used by pod(s) {} and {count} pod(s) in different namespaces",
            near_names.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_kcms_to_the_letter() {
        let volume = "pv1";
        let here = PodKey::new("ns1", "pod2");
        let there = PodKey::new("ns2", "pod2");
        let cases = [
            (Announcement::Attached, "AttachVolume.Attach succeeded for volume \"pv1\" "),
            (Announcement::Failed("no".to_owned()), "AttachVolume.Attach failed for volume \"pv1\" : no"),
            (
                Announcement::HeldElsewhere(vec![]),
                "Multi-Attach error for volume \"pv1\" Volume is already exclusively attached to one node and can't be attached to another",
            ),
            (
                Announcement::HeldElsewhere(vec![here.clone()]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) pod2",
            ),
            (
                Announcement::HeldElsewhere(vec![there.clone()]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by 1 pod(s) in different namespaces",
            ),
            (
                Announcement::HeldElsewhere(vec![here, there]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) pod2 and 1 pod(s) in different namespaces",
            ),
        ];
        for (announcement, expected) in cases {
            assert_eq!(text(&announcement, volume, "ns1").2, expected);
        }
    }

    #[test]
    fn l18_what_keeps_a_volume_elsewhere_is_told_with_the_servers_words_and_once_per_cause() {
        let holder = |waiting| Announcement::Holder {
            node: NodeName::from("n1"),
            waiting: Some(waiting),
            foreign: None,
        };
        let message = || std::sync::Arc::from("forbidden");
        let refused = || Waiting::RetryBackoff { message: Some(message()) };
        let cases = [
            (refused(), "as a request that would detach it failed (forbidden)"),
            (
                Waiting::NodeStatusRefused { message: message() },
                "as the node's status, which comes first, cannot be written (forbidden)",
            ),
        ];
        for (waiting, expected) in cases {
            let expected = format!("Volume \"pv1\" is attached to node \"n1\", {expected}");
            assert_eq!(text(&holder(waiting), "pv1", "ns1").2, expected);
        }
        let words = |waiting| text(&holder(waiting), "pv1", "ns1").2;
        assert_ne!(words(refused()), words(Waiting::NodeGone));
    }

    #[test]
    fn s14_an_event_about_a_second_writer_is_not_repeated_because_its_stand_off_was_prolonged() {
        let holder = |writer: &str, minute: i64| Announcement::Holder {
            node: NodeName::from("n1"),
            waiting: Some(Waiting::ForeignWriter {
                writer: writer.to_owned(),
                until: Timestamp::from_second(60 * minute).unwrap(),
            }),
            foreign: None,
        };
        let words = |writer, minute| text(&holder(writer, minute), "pv1", "ns1").2;
        assert_eq!(words("agent wrote node/n1", 10), words("agent wrote node/n1", 20));
        assert_ne!(words("agent wrote node/n1", 10), words("another wrote node/n1", 10));
    }

    #[test]
    fn an_event_is_about_the_pod_that_wished_not_its_namesake() {
        let objects = Objects::default();
        let pod = json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "old", "resourceVersion": "7" },
            "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] },
        });
        objects.apply::<Pod>(serde_json::from_value(pod).unwrap());
        let about = |uid: &str| {
            let facts = PodFacts { key: PodKey::new("ns", "p"), uid: uid.into(), created: None };
            let involved = involved(&objects, &Arc::new(facts));
            assert_eq!((involved.kind, &*involved.namespace, &*involved.name), (Pod::KIND, "ns", "p"));
            (involved.uid, involved.resource_version)
        };
        assert_eq!(about("old"), ("old".into(), ResourceVersion(7)));
        assert_eq!(about("new"), ("new".into(), ResourceVersion::default()));
    }
}
