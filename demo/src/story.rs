//! What a change of an object means, told in a line. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt;
use testbed::{actors::SEAT, troubles::stage::HOPELESS_CLAIM};

use crate::lines::{Told, Verb, shorten};

/// A claim was bound.
pub fn of_claim(before: Option<&PersistentVolumeClaim>, now: Option<&PersistentVolumeClaim>) -> Option<Told> {
    let claim = now?;
    if !is_bound(claim) || before.is_some_and(is_bound) {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let volume = shorten(spec.volume_name.as_deref()?);
    let class = spec.storage_class_name.as_deref().unwrap_or_default();
    let size = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    Some((Verb::Bind, claim.name_any(), format!(" to {volume} ({}, class {class})", size.0)))
}

/// Whether a claim is bound.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}

/// A volume is gone.
pub fn of_volume(before: Option<&PersistentVolume>, now: Option<&PersistentVolume>) -> Option<Told> {
    let volume = before.filter(|_| now.is_none())?;
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone()?;
    Some((Verb::Remove, claim, format!(" is gone, and its volume {} deleted", shorten(&volume.name_any()))))
}

/// A volume was attached, or detached; `subject` is what people call it.
pub fn of_attachment(
    before: Option<&VolumeAttachment>,
    now: Option<&VolumeAttachment>,
    subject: String,
    was_forced: bool,
) -> Option<Told> {
    let node = &now.or(before)?.spec.node_name;
    match now {
        None if was_forced => {
            Some((Verb::Force, subject, format!(" is detached from {node}, whose kubelet cannot be asked")))
        }
        None => Some((Verb::Detach, subject, format!(" from {node}"))),
        Some(now) if is_attached(now) && !before.is_some_and(is_attached) => {
            Some((Verb::Attach, subject, format!(" to {node}")))
        }
        Some(_) => None,
    }
}

/// Whether the driver has attached it.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

/// A seat's pod runs on another node than the last one did.
pub fn of_pod(now: Option<&Pod>, last_node: &mut BTreeMap<String, String>) -> Option<Told> {
    let pod = now?;
    let seat = pod.labels().get(SEAT)?;
    let node = pod.spec.as_ref()?.node_name.as_ref()?;
    if pod.status.as_ref()?.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let last = last_node.insert(seat.clone(), node.clone()).filter(|last| last != node)?;
    Some((Verb::Move, pod.name_any(), format!(" runs on {node}, with its volume from {last}")))
}

/// The daemon has something to say to a user, for the first time.
pub fn of_event(before: Option<&Event>, now: Option<&Event>) -> Option<Told> {
    let event = now.filter(|_| before.is_none())?;
    let component = event.source.as_ref()?.component.as_deref()?;
    if !matches!(component, "attachdetach-controller" | "persistentvolume-controller") {
        return None;
    }
    let subject = event.involved_object.name.clone()?;
    // A forced detach is told when it is done.
    let reason = event.reason.as_deref().filter(|reason| *reason != "ForcedDetach")?;
    // That a claim waits for its consumer or provisioner is no news here, it takes a moment.
    if event.type_.as_deref() != Some("Warning") && subject != HOPELESS_CLAIM {
        return None;
    }
    Some((Verb::Wait, subject, format!(": {reason}: {}", shorten(event.message.as_deref()?.trim()))))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: DeserializeOwned>(value: &Value) -> K {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn told(told: Option<Told>) -> Option<String> {
        told.map(|(verb, subject, text)| format!("{} {subject}{text}", verb.word()))
    }

    #[test]
    fn a_claim_is_bound_once() {
        let claim = |phase: &str| -> PersistentVolumeClaim {
            object(&json!({
                "metadata": { "name": "c" }, "status": { "phase": phase },
                "spec": {
                    "volumeName": "pvc-0a1b2c3d-0000-4000-8000-000000000000", "storageClassName": "fast",
                    "resources": { "requests": { "storage": "5Gi" } },
                },
            }))
        };
        let (pending, bound) = (claim("Pending"), claim("Bound"));
        let line = "bind c to pvc-0a1b2c3d (5Gi, class fast)";
        assert_eq!(told(of_claim(Some(&pending), Some(&bound))).unwrap(), line);
        assert_eq!(told(of_claim(None, Some(&bound))).unwrap(), line);
        assert_eq!(told(of_claim(Some(&bound), Some(&bound))), None);
        assert_eq!(told(of_claim(None, Some(&pending))), None);
        assert_eq!(told(of_claim(Some(&bound), None)), None);
    }

    #[test]
    fn an_attachment_comes_and_goes() {
        let attachment = |attached: bool| -> VolumeAttachment {
            object(&json!({
                "metadata": { "name": "csi-1" }, "status": { "attached": attached },
                "spec": { "attacher": "d", "nodeName": "node-1", "source": {} },
            }))
        };
        let (asked, done) = (attachment(false), attachment(true));
        let cases = [
            (None, Some(&asked), false, None),
            (Some(&asked), Some(&done), false, Some("attach c to node-1")),
            (Some(&done), Some(&done), false, None),
            (Some(&done), None, false, Some("detach c from node-1")),
            (Some(&done), None, true, Some("force c is detached from node-1, whose kubelet cannot be asked")),
        ];
        for (before, now, was_forced, expected) in cases {
            assert_eq!(told(of_attachment(before, now, "c".to_owned(), was_forced)).as_deref(), expected);
        }
    }

    #[test]
    fn a_pod_moves_when_it_runs_elsewhere() {
        let pod = |node: &str, phase: &str| -> Pod {
            object(&json!({
                "metadata": { "name": "web-1-2", "labels": { SEAT: "web-1" } },
                "spec": { "nodeName": node, "containers": [] }, "status": { "phase": phase },
            }))
        };
        let mut last = BTreeMap::new();
        let mut steps = Vec::new();
        for (node, phase) in
            [("n1", "Running"), ("n1", "Running"), ("n2", "Pending"), ("n2", "Running"), ("n2", "Running")]
        {
            steps.push(told(of_pod(Some(&pod(node, phase)), &mut last)));
        }
        let line = "move web-1-2 runs on n2, with its volume from n1".to_owned();
        assert_eq!(steps, [None, None, None, Some(line), None]);
    }

    #[test]
    fn warnings_are_told_once_and_of_the_daemon_alone() {
        let event = |component: &str, r#type: &str| -> Event {
            object(&json!({
                "metadata": { "name": "e" }, "involvedObject": { "name": "web-1" }, "type": r#type,
                "reason": "FailedAttachVolume", "message": "Multi-Attach error ", "source": { "component": component },
            }))
        };
        let warning = event("attachdetach-controller", "Warning");
        let line = "wait web-1: FailedAttachVolume: Multi-Attach error";
        assert_eq!(told(of_event(None, Some(&warning))).unwrap(), line);
        assert_eq!(told(of_event(Some(&warning), Some(&warning))), None);
        assert_eq!(told(of_event(None, Some(&event("attachdetach-controller", "Normal")))), None);
        assert_eq!(told(of_event(None, Some(&event("kubelet", "Warning")))), None);
    }
}
