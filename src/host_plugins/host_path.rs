//! Volumes of the in-tree plugin `kubernetes.io/host-path`: a directory of the machine the binder runs
//! on, made for a claim and removed with its volume. For test clusters of one machine, and off unless
//! asked for.
//!
//! In: a claim and its class, or a volume whose claim is gone, and how far an earlier run got. Out: the
//! next step. [`HostPath`] is the only way to name a directory here: below `/tmp`, in canonical form.

use apiserver::{
    call::{Request, Verb},
    ids::{NodeName, Uid, VolumeName},
    kinds::{
        FileSource, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, StorageClass,
    },
    text::Text,
};
use serde_json::json;

use super::{
    directories::{HostPath, volume_name},
    operations::{ClaimStage, VolumeStage},
    plugins::HostPlugins,
};
use crate::binder::{
    annotations::{
        self, BOUND_BY_CONTROLLER, HOST_PATH_PLUGIN, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, YES,
    },
    calls::{Call, Directory, Purpose, Write, WriteKind},
    decide::{
        decision::{ClaimDecision, Decision, VolumeDecision},
        upkeep::{EXTERNAL_FINALIZER, IN_TREE_FINALIZER},
    },
    events,
    matching::predicate::{STORAGE, claim_class, held_by, volume_mode},
    patches,
    reasons::{ClaimReason, Unprovisioned, VolumeReason},
    state::State,
};

/// Who made a volume, as the plugin notes it.
const CREATED_BY: (&str, &str) = ("kubernetes.io/createdby", "hostpath-dynamic-provisioner");

impl HostPlugins {
    /// Deletes a volume whose claim is proven gone: the directory first, then the object.
    // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, deleteVolumeOperation;
    // pkg/volume/hostpath/host_path.go, Delete.
    pub(super) fn delete(&self, volume: &PersistentVolume) -> VolumeDecision {
        let name = volume.key();
        let failed = |text| VolumeDecision::failed(volume, VolumeReason::DeleteFailed(text));
        let Some(FileSource::HostPath(source)) = volume.spec.files.as_deref() else {
            let nil = "spec.PersistentVolumeSource.HostPath is nil";
            return failed(format!("failed to create deleter for volume {:?}: {nil}", name.as_str()));
        };
        let Some(directory) = HostPath::parse(&source.path) else {
            let only = "host_path deleter only supports /tmp/.+ but received provided";
            return failed(format!("{only} {}", source.path));
        };
        let step = match self.operations.of_volume(volume).map(|run| &run.stage) {
            Some(VolumeStage::Proven(revision)) if *revision == volume.metadata.resource_version => {
                Call::Directory(Directory::Remove(directory.to_string()))
            }
            Some(VolumeStage::Failed(text)) => return failed(text.clone()),
            Some(VolumeStage::Done) if !volume.metadata.is_terminating() => {
                Call::Write(patches::delete(WriteKind::DeleteVolume, volume))
            }
            Some(VolumeStage::Done | VolumeStage::Deleted) => match unprotect(volume) {
                Some(write) if volume.metadata.is_terminating() => Call::Write(write),
                _ => return Decision::rest(VolumeReason::Deleting),
            },
            _ => Call::read(ObjectRef::Volume(name), Purpose::ProveReleased),
        };
        Decision::step(VolumeReason::Deleting, step)
    }

    /// Makes a volume for a claim that names the plugin: the directory first, then the object.
    // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaimOperation;
    // pkg/volume/hostpath/host_path.go, Provision.
    pub(super) fn make(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        view: &State,
    ) -> Option<ClaimDecision> {
        if claim.spec.data_source.is_some() {
            let why = format!(
                "plugin {HOST_PATH_PLUGIN:?} is not a CSI plugin. Only CSI plugin can provision a claim with a datasource"
            );
            let reason = ClaimReason::NotProvisioned(Unprovisioned::Refused(why));
            return Some(ClaimDecision::waiting(claim, reason));
        }
        if claim.metadata.annotation(STORAGE_PROVISIONER) != Some(HOST_PATH_PLUGIN) {
            return None;
        }
        let stage = self.operations.of_claim(claim);
        let refused = match stage {
            Some(ClaimStage::Failed(why)) => Some(why.clone()),
            None => name_taken(claim, view).or_else(|| obstacle(claim, class, view)),
            Some(ClaimStage::Made(_)) => name_taken(claim, view),
            Some(ClaimStage::Undoing(..)) => None,
        };
        let nameless = || Unprovisioned::failed(claim, "its UID is no name for a directory");
        let path = HostPath::of_claim(&claim.metadata.uid).ok_or_else(nameless);
        let directory = match (refused, path) {
            (None, Ok(path)) => path.to_string(),
            (Some(why), _) | (None, Err(why)) => return Some(self.refuse(claim, why)),
        };
        let reason = ClaimReason::Provisioning(HOST_PATH_PLUGIN);
        Some(match stage {
            Some(ClaimStage::Undoing(error, _)) => {
                let why = Unprovisioned::NotCreated { claim: claim.key(), error: error.clone() };
                Decision::step(reason, Call::Directory(Directory::Remove(directory)))
                    .telling(events::not_provisioned(claim, &why))
            }
            Some(_) => Decision::step(reason, Call::Write(creation(claim, class, &directory))),
            None => Decision::step(reason, Call::Directory(Directory::Make(directory))),
        })
    }

    /// Says why there is no volume; if the plugin itself failed, the scheduler is asked for another node.
    fn refuse(&self, claim: &PersistentVolumeClaim, why: Unprovisioned) -> ClaimDecision {
        let again = matches!(why, Unprovisioned::Failed { .. })
            && annotations::has(&claim.metadata, SELECTED_NODE)
            && !self.operations.is_rescheduled(claim);
        let write = again.then(|| patches::unselect_node(claim));
        ClaimDecision::waiting(claim, ClaimReason::NotProvisioned(why)).writing(write)
    }
}

/// The write that lets a volume go whose storage is gone, if one of the two finalizers holds it. The external
/// one is still there where it could not be replaced by ours.
fn unprotect(volume: &PersistentVolume) -> Option<Write> {
    let in_tree = volume.metadata.annotation(PROVISIONED_BY).is_some_and(annotations::is_in_tree);
    let holds = |name: &str| name == IN_TREE_FINALIZER || (in_tree && name == EXTERNAL_FINALIZER);
    let present = &volume.metadata.finalizers;
    let left: Vec<Text> = present.iter().filter(|name| !holds(name)).cloned().collect();
    (*left != **present).then(|| patches::annotate(volume, None, Some(&left)))
}

/// A volume that is not the claim's has the name of the one to be made. Its directory stays: it may be that
/// volume's.
fn name_taken(claim: &PersistentVolumeClaim, view: &State) -> Option<Unprovisioned> {
    let name = volume_name(&claim.metadata.uid);
    let taken = view.volume(&name).is_some_and(|volume| !held_by(&volume, claim));
    let text =
        || format!("volume {:?}, which was to be made, is there and belongs to somebody else", name.as_str());
    taken.then(|| Unprovisioned::Refused(text()))
}

/// What stands in the way of provisioning, before anything is done.
fn obstacle(claim: &PersistentVolumeClaim, class: &StorageClass, view: &State) -> Option<Unprovisioned> {
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
    (volume_mode(claim.spec.volume_mode.as_deref()) == "Block").then(|| {
        Unprovisioned::failed(
            claim,
            &format!("{HOST_PATH_PLUGIN} does not support block volume provisioning"),
        )
    })
}

/// The volume, reserved for the claim from the start.
fn creation(claim: &PersistentVolumeClaim, class: &StorageClass, directory: &str) -> Write {
    let name = volume_name(&claim.metadata.uid);
    let policy = match &class.reclaim_policy {
        ReclaimPolicy::Retain => "Retain",
        ReclaimPolicy::Recycle => "Recycle",
        ReclaimPolicy::Delete => "Delete",
        ReclaimPolicy::Other(other) => other,
    };
    let modes = match claim.spec.access_modes.as_slice() {
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
            "hostPath": { "path": directory },
            "claimRef": patches::reference(claim),
        },
    });
    let path = PersistentVolume::path(&VolumeName::default());
    let request =
        Request { verb: Verb::Create, path: path.trim_end_matches('/').to_owned(), body: Some(body) };
    Write {
        kind: WriteKind::CreateVolume,
        target: ObjectRef::Volume(name),
        request,
        claim: Uid::default(),
        then: vec![events::provisioned(claim, &volume_name(&claim.metadata.uid), HOST_PATH_PLUGIN)],
    }
}
