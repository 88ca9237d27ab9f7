//! What users are told of an attachment, with KCM's reasons and texts (attach-detach §9).

use std::sync::Arc;

use super::{
    desired_state::{PodFacts, Wish},
    force::ForceReason,
};
use crate::{
    kube_api::{
        events::{Event, EventType, Involved},
        ids::{NodeName, PodKey, ResourceVersion},
        kinds::{Narrow, Pod},
    },
    state::Objects,
};

/// Something to tell the pods that want a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The volume is attached.
    Attached,
    /// The driver, or the API server, said no.
    Failed(String),
    /// Another node holds the volume; these pods use it there.
    HeldElsewhere(Vec<PodKey>),
    /// The volume is taken from another node although it may be in use there.
    ForcedDetach(NodeName, ForceReason),
}

/// The events that tell every pod of the wish.
pub fn events(objects: &Objects, wish: &Wish, announcement: &Announcement) -> Vec<Event> {
    let mut events = Vec::new();
    for (pod, volume) in wish.pods.values() {
        let (r#type, reason, message) = text(announcement, &volume.spec_name, pod.key.namespace());
        events.push(Event { involved: involved(objects, pod), r#type, reason, message });
    }
    events
}

fn involved(objects: &Objects, pod: &Arc<PodFacts>) -> Involved {
    match objects.pods.get(&pod.key) {
        Some(object) if object.metadata.uid == pod.uid => Involved::object(&*object),
        _ => Involved {
            kind: Pod::KIND,
            namespace: Arc::clone(&pod.key.0.namespace),
            name: Arc::clone(&pod.key.0.name),
            uid: pod.uid.clone(),
            resource_version: ResourceVersion::default(),
        },
    }
}

fn text(announcement: &Announcement, volume: &str, namespace: &str) -> (EventType, &'static str, String) {
    match announcement {
        Announcement::Attached => (
            EventType::Normal,
            "SuccessfulAttachVolume",
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
        Announcement::ForcedDetach(node, reason) => (
            EventType::Warning,
            "ForcedDetach",
            format!("Volume \"{volume}\" is detached from node \"{node}\" by force: {}", cause(*reason)),
        ),
    }
}

fn cause(reason: ForceReason) -> &'static str {
    match reason {
        ForceReason::Timeout => "the node has not been Ready, nor the volume wanted there, for too long",
        ForceReason::OutOfService => "the node is marked as out of service",
    }
}

/// Who holds the volume, without the names of other namespaces (S41).
fn holders(pods: &[PodKey], namespace: &str) -> String {
    let (near, far): (Vec<&PodKey>, Vec<&PodKey>) = pods.iter().partition(|pod| pod.namespace() == namespace);
    let near_names: Vec<&str> = near.iter().map(|pod| pod.name()).collect();
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
}
