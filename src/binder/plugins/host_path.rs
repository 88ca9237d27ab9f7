//! Volumes of the in-tree plugin `kubernetes.io/host-path`: a directory of the machine the binder runs
//! on, made for a claim and removed with its volume. For test clusters of one machine, and off unless
//! asked for.
//!
//! In: a claim and its class, or a volume whose claim is gone, and how far an earlier run got. Out: the
//! next step. [`HostPath`] is the only way to name a directory here: below `/tmp`, in canonical form.

use serde_json::json;

use super::{
    operations::{ClaimStage, Operations, VolumeStage},
    path::{Directory, HostPath, volume_name},
};
use crate::{
    binder::{
        act::{
            patches,
            write::{Write, WriteKind},
        },
        annotations::{self, BOUND_BY_CONTROLLER, HOST_PATH_PLUGIN, PROVISIONED_BY, SELECTED_NODE, YES},
        decide::{
            decision::{ClaimDecision, Decision, Step, VolumeDecision},
            upkeep::{self, IN_TREE_FINALIZER},
            view::View,
        },
        matching::predicate::{STORAGE, VolumeMode, claim_class, held_by},
        tell::{
            events,
            reason::{ClaimReason, Unprovisioned, VolumeReason},
        },
    },
    kube_api::{
        call::{Request, Verb},
        events::Event,
        ids::{NodeName, VolumeName},
        kinds::{FileSource, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, StorageClass},
    },
};

/// Who made a volume, as the plugin notes it.
const CREATED_BY: (&str, &str) = ("kubernetes.io/createdby", "hostpath-dynamic-provisioner");

/// Deletes a volume whose claim is proven gone: the directory first, then the object.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, deleteVolumeOperation;
// pkg/volume/hostpath/host_path.go, Delete.
#[must_use]
pub fn delete(volume: &PersistentVolume, operations: &Operations) -> VolumeDecision {
    let name = volume.key();
    let path = match volume.spec.files.as_deref() {
        Some(FileSource::HostPath(source)) => &source.path,
        _ => {
            let nil = "spec.PersistentVolumeSource.HostPath is nil";
            return failed(volume, format!("failed to create deleter for volume {:?}: {nil}", name.as_str()));
        }
    };
    let Some(directory) = HostPath::parse(path) else {
        let only = "host_path deleter only supports /tmp/.+ but received provided";
        return failed(volume, format!("{only} {path}"));
    };
    let step = match operations.of_volume(volume).map(|run| &run.stage) {
        Some(VolumeStage::Proven(revision)) if *revision == volume.metadata.resource_version => {
            Step::Directory(Directory::Remove(directory))
        }
        Some(VolumeStage::Failed(text)) => return failed(volume, text.clone()),
        Some(VolumeStage::Done) if !volume.metadata.is_terminating() => {
            let request = patches::delete_volume(volume);
            Step::Write(Write::volume(volume, WriteKind::DeleteVolume, request))
        }
        Some(VolumeStage::Done | VolumeStage::Deleted) => match upkeep::unprotect(volume) {
            Some(write) if volume.metadata.is_terminating() => Step::Write(write),
            _ => return Decision::rest(VolumeReason::Deleting),
        },
        _ => Step::ProveReleased { volume: name },
    };
    Decision::step(VolumeReason::Deleting, step)
}

fn failed(volume: &PersistentVolume, text: String) -> VolumeDecision {
    VolumeDecision::failed(volume, VolumeReason::DeleteFailed(text))
}

/// Why a claim is not even handed to the plugin.
#[must_use]
pub fn refuses(claim: &PersistentVolumeClaim) -> Option<Unprovisioned> {
    claim.spec.data_source.as_ref()?;
    Some(Unprovisioned::Refused(format!(
        "plugin {HOST_PATH_PLUGIN:?} is not a CSI plugin. Only CSI plugin can provision a claim with a datasource"
    )))
}

/// Makes a volume for a claim that is handed to the plugin: the directory first, then the object.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaimOperation;
// pkg/volume/hostpath/host_path.go, Provision.
#[must_use]
pub fn provision(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    view: &View<'_>,
    operations: &Operations,
) -> ClaimDecision {
    let uid = &claim.metadata.uid;
    let stage = operations.of_claim(claim);
    let refused = match stage {
        Some(ClaimStage::Failed(why)) => return refuse(claim, why.clone(), operations),
        None => name_taken(claim, view).or_else(|| obstacle(claim, class, view)),
        Some(ClaimStage::Made(_)) => name_taken(claim, view),
        Some(ClaimStage::Undoing(..)) => None,
    };
    if let Some(why) = refused {
        return refuse(claim, why, operations);
    }
    let Some(directory) = HostPath::of_claim(uid) else {
        return refuse(claim, Unprovisioned::failed(claim, "its UID is no name for a directory"), operations);
    };
    let reason = ClaimReason::Provisioning(HOST_PATH_PLUGIN);
    match stage {
        Some(ClaimStage::Undoing(error, _)) => {
            let why = Unprovisioned::NotCreated { claim: claim.key(), error: error.clone() };
            Decision::step(reason, Step::Directory(Directory::Remove(directory)))
                .telling(events::not_provisioned(claim, &why))
        }
        Some(_) => Decision::step(reason, Step::Write(creation(claim, class, &directory))),
        None => Decision::step(reason, Step::Directory(Directory::Make(directory))),
    }
}

/// A volume that is not the claim's has the name of the one to be made. Its directory stays: it may be that
/// volume's.
fn name_taken(claim: &PersistentVolumeClaim, view: &View<'_>) -> Option<Unprovisioned> {
    let name = volume_name(&claim.metadata.uid);
    let taken = view.volume(&name).is_some_and(|volume| !held_by(&volume, claim));
    let text =
        || format!("volume {:?}, which was to be made, is there and belongs to somebody else", name.as_str());
    taken.then(|| Unprovisioned::Refused(text()))
}

/// What stands in the way of provisioning, before anything is done.
fn obstacle(claim: &PersistentVolumeClaim, class: &StorageClass, view: &View<'_>) -> Option<Unprovisioned> {
    if !class.mount_options.is_empty() {
        return Some(Unprovisioned::Refused(format!(
            "Mount options are not supported by the provisioner but StorageClass {:?} has mount options [{}]",
            &*class.metadata.name,
            class.mount_options.join(" ")
        )));
    }
    if let Some(node) = claim.metadata.annotation(SELECTED_NODE)
        && view.objects.nodes.get(&NodeName::from(node)).is_none()
    {
        return Some(Unprovisioned::Refused(format!("Failed to get target node: node {node:?} not found")));
    }
    (VolumeMode::of(claim.spec.volume_mode.as_deref()) == VolumeMode::Block).then(|| {
        Unprovisioned::failed(
            claim,
            &format!("{HOST_PATH_PLUGIN} does not support block volume provisioning"),
        )
    })
}

/// Says why there is no volume; if the plugin itself failed, the scheduler is asked for another node.
fn refuse(claim: &PersistentVolumeClaim, why: Unprovisioned, operations: &Operations) -> ClaimDecision {
    let failed = matches!(why, Unprovisioned::Failed { .. });
    let again =
        (failed && annotations::has(&claim.metadata, SELECTED_NODE) && !operations.is_rescheduled(claim))
            .then(|| Write::claim(claim, WriteKind::Reschedule, patches::unselect_node(claim)));
    ClaimDecision::waiting(claim, ClaimReason::NotProvisioned(why)).writing(again)
}

/// The volume, reserved for the claim from the start.
fn creation(claim: &PersistentVolumeClaim, class: &StorageClass, directory: &HostPath) -> Write {
    let name = volume_name(&claim.metadata.uid);
    let policy = match &class.reclaim_policy {
        ReclaimPolicy::Retain => "Retain",
        ReclaimPolicy::Recycle => "Recycle",
        ReclaimPolicy::Delete => "Delete",
        ReclaimPolicy::Other(other) => other,
    };
    let modes = match &*claim.spec.access_modes {
        [] => json!(["ReadWriteOnce"]),
        modes => json!(modes),
    };
    let body = json!({
        "apiVersion": "v1",
        "kind": PersistentVolume::KIND,
        "metadata": {
            "name": name,
            "annotations": { CREATED_BY.0: CREATED_BY.1, BOUND_BY_CONTROLLER: YES, PROVISIONED_BY: HOST_PATH_PLUGIN },
            "finalizers": if policy == "Delete" { json!([IN_TREE_FINALIZER]) } else { json!([]) },
        },
        "spec": {
            "capacity": { STORAGE: claim.spec.resources.requests.get(STORAGE) },
            "accessModes": modes,
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": claim_class(claim),
            "hostPath": { "path": directory.to_string() },
            "claimRef": patches::reference(claim),
        },
    });
    let path = PersistentVolume::path(&VolumeName::default());
    let request =
        Request { verb: Verb::Create, path: path.trim_end_matches('/').to_owned(), body: Some(body) };
    Write::creation(name, WriteKind::CreateVolume, request).then(succeeded(claim))
}

/// Tells that the volume of a claim is there.
#[must_use]
pub fn succeeded(claim: &PersistentVolumeClaim) -> Event {
    events::provisioned(claim, &volume_name(&claim.metadata.uid), HOST_PATH_PLUGIN)
}
