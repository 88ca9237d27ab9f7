//! What users are told of an attachment, with KCM's reasons and texts (attach-detach §9).

use std::sync::Arc;

use apiserver::{
    events::{CORE, Event, EventType, Involved},
    ids::{AttachmentName, NodeName, PodKey, ResourceVersion},
    kinds::{Narrow, Pod},
    tables::Objects,
};

use super::{
    decide::verdict::Waiting,
    state::{
        actual::ForceReason,
        desired::{
            DesiredAttachment, PodFacts, WhyUnresolved,
            volume_name::{VolumeId, VolumeKind},
        },
    },
};

/// Reason of the event that tells of an attach that is done.
pub const ATTACHED: &str = "SuccessfulAttachVolume";
/// Reason of one that tells of an attach that is not.
const FAILED_ATTACH: &str = "FailedAttachVolume";

/// Something to tell of a volume, on the pods that need it on a node or on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    r#type: EventType,
    reason: &'static str,
    /// What stands before the name of the volume, and behind it.
    before: &'static str,
    behind: String,
    /// The pods that use the volume elsewhere, who stand at the end.
    users: Option<Vec<PodKey>>,
    /// What it is about. Who has the volume changes while it is waited for, and what other processes know of that.
    about: Option<&'static str>,
}

impl Announcement {
    fn new(r#type: EventType, reason: &'static str, before: &'static str, behind: impl Into<String>) -> Self {
        Self { r#type, reason, before, behind: behind.into(), users: None, about: None }
    }

    fn warning(reason: &'static str, behind: String) -> Self {
        Self::new(EventType::Warning, reason, "Volume", behind)
    }

    /// The volume is attached.
    pub fn attached() -> Self {
        // The space at the end is KCM's.
        Self::new(EventType::Normal, ATTACHED, "AttachVolume.Attach succeeded for volume", " ")
    }

    /// The driver, or the API server, said no.
    pub fn failed(error: &str) -> Self {
        let before = "AttachVolume.Attach failed for volume";
        Self::new(EventType::Warning, FAILED_ATTACH, before, format!(" : {error}"))
    }

    /// The volume of that name in the pod is not in the desired state.
    pub fn unresolved(why: &WhyUnresolved) -> Self {
        Self::warning(FAILED_ATTACH, format!(" cannot be attached yet: {why}"))
    }

    /// Another node holds the volume; these pods use it there.
    pub fn held_elsewhere(users: Vec<PodKey>) -> Self {
        let said = Self::new(EventType::Warning, FAILED_ATTACH, "Multi-Attach error for volume", " ");
        Self { users: Some(users), about: Some("multi-attach"), ..said }
    }

    /// Which node holds it, and what the volume there waits for; nothing if it is simply used. Without an attachment or an
    /// entry of its list that node only reports it in use. `other` is the VolumeAttachment that holds it there, if it is not the
    /// volume's own.
    pub fn holder(
        node: &NodeName,
        is_attached: bool,
        waiting: Option<&Waiting>,
        other: Option<(&AttachmentName, OtherAttachment)>,
    ) -> Self {
        let how = match waiting {
            Some(
                Waiting::AttachError { .. }
                | Waiting::WaitingForAttacher
                | Waiting::WaitingForVolumeAttachment,
            ) => "is being attached to",
            _ if is_attached => "is attached to",
            _ => "is in use on",
        };
        let held = format!(" {how} node \"{node}\": {}", holding(waiting, other));
        Self { about: Some("holder"), ..Self::warning("HeldByNode", held) }
    }

    /// The volume is not listed on its node, and waits for that.
    pub fn not_listed(waiting: &Waiting) -> Self {
        Self::warning(<&str>::from(waiting), format!(" waits: {waiting}"))
    }

    /// The API server did not take what would detach the volume from that node, or the driver takes long.
    pub fn detach_failed(node: &NodeName, error: &str) -> Self {
        let behind = format!(" on node \"{node}\" : {error}");
        Self::new(EventType::Warning, "FailedDetachVolume", "DetachVolume.Detach failed for volume", behind)
    }

    /// The volume is attached to no other node any more; so many seconds passed.
    pub fn freed(seconds: u64) -> Self {
        let behind = format!(" is no longer attached elsewhere, after {seconds} s");
        Self::new(EventType::Normal, "MultiAttachResolved", "Volume", behind)
    }

    /// The volume is taken from another node although it may be in use there.
    pub fn forced_detach(node: &NodeName, reason: ForceReason) -> Self {
        let behind = format!(" is detached from node \"{node}\" by force: {}", cause(reason));
        Self::warning("ForcedDetach", behind)
    }

    /// That is done.
    pub fn forced_detach_done(node: &NodeName, reason: ForceReason) -> Self {
        let behind = format!(" was detached from node \"{node}\" by force: {}", cause(reason));
        Self::warning("ForcedDetachDone", behind)
    }

    /// The event that tells it of the volume of this name to those of a namespace.
    pub fn event(&self, involved: Involved, volume: &str, namespace: &str) -> Event {
        let Self { r#type, reason, before, behind, users, about } = self;
        let users = users.as_ref().map(|users| holders(users, namespace)).unwrap_or_default();
        let message = format!("{before} \"{volume}\"{behind}{users}");
        let subject = about.map(|about| format!("{about} {volume}").into());
        Event { subject, ..Event::new(involved, *r#type, reason, message) }
    }
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
    Some(announcement.event(involved, name, ""))
}

/// The events that tell every pod of the desired attachment.
pub fn events(objects: &Objects, desired: &DesiredAttachment, announcement: &Announcement) -> Vec<Event> {
    let pods = desired.pods.values();
    pods.map(|(pod, volume)| {
        announcement.event(involved(objects, pod), &volume.spec_name, pod.key.namespace())
    })
    .collect()
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

/// What a VolumeAttachment is that holds a volume, and is not the volume's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherAttachment {
    /// Another party's.
    Foreign,
    /// One that is named as mooring, or KCM, names them, but not after what its PersistentVolume leads to.
    Unexplained,
    /// One that nothing explains, and that is being deleted.
    Ending,
    /// Ours, of an earlier volume of the same PersistentVolume.
    Earlier,
}

/// Why the volume is still on another node.
fn holding(waiting: Option<&Waiting>, other: Option<(&AttachmentName, OtherAttachment)>) -> String {
    match (waiting, other) {
        // Not with the driver's words: each of its tries may say others (S47).
        (Some(Waiting::AttachError { .. }), _) => {
            "the driver could not attach the volume there, and tries again".to_owned()
        }
        (Some(Waiting::NodeGone | Waiting::Publishing | Waiting::ClaimOrVolumeChanged), _) | (None, None) => {
            "pods there still need it".to_owned()
        }
        (Some(waiting), _) => waiting.to_string(),
        (None, Some((_, OtherAttachment::Earlier))) => {
            "an earlier volume of this PersistentVolume has to be detached from it first".to_owned()
        }
        (None, Some((name, OtherAttachment::Ending))) => {
            format!("VolumeAttachment {name} is being deleted, and its end would detach the volume")
        }
        (None, Some((name, OtherAttachment::Foreign))) => {
            format!("VolumeAttachment {name}, which another writer made, has to be deleted first")
        }
        (None, Some((name, OtherAttachment::Unexplained))) => {
            format!(
                "VolumeAttachment {name}, which its PersistentVolume does not explain, has to be deleted first"
            )
        }
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
            (Announcement::attached(), "AttachVolume.Attach succeeded for volume \"pv1\" "),
            (Announcement::failed("no"), "AttachVolume.Attach failed for volume \"pv1\" : no"),
            (
                Announcement::held_elsewhere(vec![]),
                "Multi-Attach error for volume \"pv1\" Volume is already exclusively attached to one node and can't be attached to another",
            ),
            (
                Announcement::held_elsewhere(vec![here.clone()]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) pod2",
            ),
            (
                Announcement::held_elsewhere(vec![there.clone()]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by 1 pod(s) in different namespaces",
            ),
            (
                Announcement::held_elsewhere(vec![here, there]),
                "Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) pod2 and 1 pod(s) in different namespaces",
            ),
        ];
        for (announcement, expected) in cases {
            assert_eq!(text(&announcement, volume, "ns1"), expected);
        }
    }

    fn text(announcement: &Announcement, volume: &str, namespace: &str) -> String {
        announcement.event(Involved::object(&Pod::default()), volume, namespace).message
    }

    #[test]
    fn l18_what_keeps_a_volume_elsewhere_is_told_with_the_servers_words_and_once_per_cause() {
        let holder = |waiting| Announcement::holder(&NodeName::from("n1"), true, Some(&waiting), None);
        let message = || std::sync::Arc::from("forbidden");
        let refused = || Waiting::RetryBackoff { message: Some(message()) };
        let cases = [
            (refused(), "a request failed and is tried again after a pause: forbidden"),
            (
                Waiting::NodeStatusRefused { message: message() },
                "the node's status could not be written and is tried again after a pause: forbidden",
            ),
            (
                Waiting::WriteUndone { writer: "another writer creates its VolumeAttachment".into() },
                "another writer creates its VolumeAttachment again and again; what is undone at once is written again after a pause",
            ),
        ];
        for (waiting, expected) in cases {
            let expected = format!("Volume \"pv1\" is attached to node \"n1\": {expected}");
            assert_eq!(text(&holder(waiting), "pv1", "ns1"), expected);
        }
        let failed = holder(Waiting::AttachError { message: "tried 3 times".into(), at: None });
        assert_eq!(
            text(&failed, "pv1", "ns1"),
            "Volume \"pv1\" is being attached to node \"n1\": the driver could not attach the volume there, and tries again"
        );
        let words = |waiting| text(&holder(waiting), "pv1", "ns1");
        assert_ne!(words(refused()), words(Waiting::NodeGone));
    }

    #[test]
    fn s14_an_event_about_a_second_writer_is_not_repeated_because_its_stand_off_was_prolonged() {
        let holder = |writer: &str, minute: i64| {
            let until = Timestamp::from_second(60 * minute).unwrap();
            let waiting = Waiting::ForeignWriter { writer: writer.to_owned(), until };
            Announcement::holder(&NodeName::from("n1"), true, Some(&waiting), None)
        };
        let words = |writer, minute| text(&holder(writer, minute), "pv1", "ns1");
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
