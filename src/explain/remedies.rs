//! What may be done about a claim that waits or was lost.
//!
//! In: the claim, the binder's reason, and the volumes. Out: [`Action`]s, and what of the volumes speaks for them.

use std::sync::Arc;

use serde_json::json;

use super::{
    actions::{care, never, safe},
    candidates,
    report::Action,
    view::{View, get},
};
use crate::{
    binder::{
        matching::predicate::{claim_class, volume_class},
        tell::reason::ClaimReason,
    },
    kube_api::{
        ids::{ClaimKey, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    },
};

/// What may be done about a claim that waits, and what never.
pub(super) fn actions(
    view: &View<'_>,
    key: &ClaimKey,
    claim: &PersistentVolumeClaim,
    reason: &ClaimReason,
) -> Vec<Action> {
    let (namespace, name) = (key.namespace(), key.name());
    let explain = |kind: &str, name: &str| ["mooring", "explain", kind, name].map(str::to_owned);
    match reason {
        ClaimReason::WaitsForFirstConsumer => {
            vec![safe("nothing is wrong: create the pod that uses the claim", &[])]
        }
        ClaimReason::WaitsForPods(pods) => pods
            .first()
            .map(|pod| {
                let command = ["kubectl", "describe", "pod", pod.name(), "-n", pod.namespace()];
                safe("see why the pod is not scheduled", &command)
            })
            .into_iter()
            .collect(),
        ClaimReason::NoVolume | ClaimReason::NoProvisioner(_) | ClaimReason::ProvisioningOff => {
            without_volume(key, claim)
        }
        ClaimReason::NoClass(class) => {
            let create = safe(
                format!(
                    "create the class {class:?}, or make a new claim of one that exists",
                    class = class.as_str()
                ),
                &["kubectl", "get", "storageclass"],
            );
            let is_used = of_class(view, claim).0 > 0;
            is_used.then(make_volume).into_iter().chain([create]).collect()
        }
        ClaimReason::WaitsForProvisioner(driver) => {
            let says = safe(
                format!("if it lasts: see what provisioner {driver} says"),
                &["kubectl", "describe", "pvc", name, "-n", namespace],
            );
            let attributes = claim.spec.volume_attributes_class_name.as_deref().filter(|it| !it.is_empty());
            let exists = attributes.map(|class| {
                safe(
                    "see whether the VolumeAttributesClass that the claim asks for exists: without it no volume is made",
                    &["kubectl", "get", "volumeattributesclass", class],
                )
            });
            exists.into_iter().chain([says]).collect()
        }
        ClaimReason::NamedMissing(volume) => vec![safe(
            format!(
                "create the volume {volume} with a claimRef to {key} (without one another claim may take it), or make a \
                 new claim that names one that exists"
            ),
            &["kubectl", "get", "pv"],
        )],
        ClaimReason::NamedTaken(volume, other) if other == key => vec![
            care(
                "if this claim is to have the data of the earlier one, link them; the command shows the requests and \
                 sends nothing without --yes",
                &["mooring", "repair", "relink", name, volume.as_str(), "-n", namespace],
            ),
            never("free it for another tenant: the earlier claim's data is on it"),
        ],
        ClaimReason::NamedTaken(volume, _)
        | ClaimReason::NamedMismatched(volume, _)
        | ClaimReason::HoldsMismatched(volume, _) => {
            let command = explain("pv", volume.as_str());
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let mut actions = vec![safe("see what the volume is, and for whom", &command)];
            if !matches!(reason, ClaimReason::NamedTaken(..)) {
                actions.push(safe(
                    "make the claim anew with what the volume has: a claim's class and modes cannot be changed",
                    &["kubectl", "get", "pvc", name, "-n", namespace, "-o", "yaml"],
                ));
            }
            actions
        }
        ClaimReason::LostVolume(volume) => vec![
            care(
                format!(
                    "make the volume {volume} again first: a PersistentVolume of that name with the handle of its disk (the \
                     storage's own console or a backup has it), policy Retain, and claimRef {{namespace: {namespace}, name: \
                     {name}, uid: {}}}. It is bound at once; without a claimRef another claim may be quicker",
                    claim.metadata.uid
                ),
                &["kubectl", "get", "pvc", name, "-n", namespace, "-o", "yaml"],
            ),
            never("delete the claim before its volume is back: it is the last that says which volume it had"),
        ],
        ClaimReason::Misbound(..) | ClaimReason::LostReference => {
            vec![
                lead_back(view, key, claim),
                never("delete the claim before the data is safe: its volume may be deleted with it"),
            ]
        }
        _ => Vec::new(),
    }
}

/// How a claim that was bound comes to its volume again.
fn lead_back(view: &View<'_>, key: &ClaimKey, claim: &PersistentVolumeClaim) -> Action {
    let (namespace, name) = (key.namespace(), key.name());
    let named = &claim.spec.volume_name;
    let own = own_volumes(view, claim).into_iter().find(|it| named.is_empty() || it.key() == *named);
    let is_its_own = |volume: &PersistentVolume| {
        volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid)
    };
    match own {
        Some(own) if named.is_empty() && is_its_own(&own) => {
            let patch = json!({ "spec": { "volumeName": own.metadata.name } }).to_string();
            care(
                format!(
                    "name the volume again, which can be done once: {} is this claim's, by its UID",
                    own.metadata.name
                ),
                &["kubectl", "patch", "pvc", name, "-n", namespace, "--type=merge", "-p", &patch],
            )
        }
        Some(own) => care(
            "nothing was deleted by this. If the volume holds this claim's data, link them again; the command shows the \
             requests and sends nothing without --yes",
            &["mooring", "repair", "relink", name, own.metadata.name.as_str(), "-n", namespace],
        ),
        None => safe(
            "see which volume was the claim's, and whose it is now: none names a claim of this name",
            &["kubectl", "get", "pv"],
        ),
    }
}

/// No volume fits, and none is made.
fn without_volume(key: &ClaimKey, claim: &PersistentVolumeClaim) -> Vec<Action> {
    let (namespace, name) = (key.namespace(), key.name());
    let mut actions = vec![make_volume()];
    if has_no_class(claim) {
        let patch = r#"{"spec":{"storageClassName":"<class>"}}"#;
        actions.push(care(
            "or give the claim a class that has a provisioner, which can be done once",
            &["kubectl", "patch", "pvc", name, "-n", namespace, "-p", patch],
        ));
        actions.push(safe(
            "or mark a class as the default: each claim without one gets it at once",
            &["kubectl", "get", "storageclass"],
        ));
    } else {
        actions.push(safe(
            "or make a new claim of a class that has a provisioner: a claim's class cannot be changed",
            &["kubectl", "get", "storageclass"],
        ));
    }
    actions
}

fn make_volume() -> Action {
    safe("create a volume that fits, or change one that nearly does (see the candidates)", &[])
}

/// The volume of an earlier claim of the same name is kept: who made the claim anew may want what is on it.
pub(super) fn earlier(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Action> {
    let key = claim.key();
    if !claim.spec.volume_name.is_empty() {
        return None;
    }
    let is_of_earlier = |volume: &PersistentVolume| {
        let reference = volume.spec.claim_ref.as_ref();
        volume.status.phase == VolumePhase::Released
            && reference.is_some_and(|it| !it.uid.is_empty() && it.uid != claim.metadata.uid)
    };
    let kept = view.volumes_naming(&key).filter(|volume| is_of_earlier(volume));
    let volume = kept.map(|volume| volume.metadata.name.to_string()).min()?;
    Some(care(
        format!(
            "{volume} is the volume of an earlier claim of this name, and has its data: to have it, free it for this claim; \
             the command shows the proof and sends nothing without --yes"
        ),
        &["mooring", "repair", "free", &volume],
    ))
}

/// Volumes that name a claim of this name, those that name this very claim first.
pub(super) fn own_volumes(view: &View<'_>, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
    let mut own: Vec<Arc<PersistentVolume>> = view.volumes_naming(&claim.key()).collect();
    own.sort_by_key(|volume| {
        let uid = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.clone());
        (uid.as_ref() != Some(&claim.metadata.uid), volume.metadata.name.to_string())
    });
    own
}

/// How many volumes are of the claim's class, and what is wrong with the nearest.
pub(super) fn of_class(view: &View<'_>, claim: &PersistentVolumeClaim) -> (usize, String) {
    let (mut count, mut nearest) = (0, None);
    view.objects().volumes.for_each(|volume| {
        if volume_class(volume) == claim_class(claim) {
            count += 1;
            let faults = candidates::faults(volume, claim, view.now());
            let told: Vec<String> = faults.iter().map(|it| format!("{} {}", it.reason, it.detail)).collect();
            let told = (told.len(), format!("{} {}", volume.metadata.name, told.join("; ")));
            nearest = nearest.take().into_iter().chain([told]).min();
        }
    });
    (count, nearest.map(|(_, told)| told).unwrap_or_default())
}

/// Whether a claim says nothing of a class, so that it gets one that becomes the default, or may be given one, once.
pub(super) fn has_no_class(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.storage_class_name.is_none() && claim_class(claim).is_empty()
}

/// The claim that a volume names.
pub(super) fn owner(view: &View<'_>, name: &VolumeName) -> Option<ClaimKey> {
    Some(get::<PersistentVolume>(view, name)?.spec.claim_ref.as_ref()?.key())
}
