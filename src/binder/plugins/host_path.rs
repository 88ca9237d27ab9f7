//! Volumes of the in-tree plugin `kubernetes.io/host-path`: a directory of the machine the binder runs
//! on, made for a claim and removed with its volume. For test clusters of one machine, and off unless
//! asked for.
//!
//! In: a claim and its class, or a volume whose claim is gone, and how far an earlier run got. Out: the
//! next step. [`HostPath`] is the only way to name a directory here: below `/tmp`, in canonical form.

use std::fmt;

use serde_json::json;

use super::runs::{ClaimStage, VolumeStage};
use crate::{
    binder::{
        act::patches,
        decide::{
            annotations::{self, BOUND_BY_CONTROLLER, PROVISIONED_BY, SELECTED_NODE, YES},
            claim::ClaimDecision,
            decision::{Decision, Directory, Step, Write, WriteKind, normal, warning},
            reclaim,
            upkeep::{self, IN_TREE_FINALIZER},
            view::View,
            volume::VolumeDecision,
        },
        matching::predicate::{STORAGE, VolumeMode, claim_class, held_by},
        tell::reason::{ClaimReason, Unprovisioned, VolumeReason},
    },
    kube_api::{
        call::{Request, Verb},
        events::Event,
        ids::{NodeName, Uid, VolumeName},
        kinds::{FileSource, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, StorageClass},
    },
};

/// Name of the plugin.
pub const PLUGIN: &str = "kubernetes.io/host-path";

/// Where all directories are.
pub const ROOT: &str = "/tmp";

/// Where those that are made here are.
const MADE: &str = "hostpath_pv";

/// Who made a volume, as the plugin notes it.
const CREATED_BY: (&str, &str) = ("kubernetes.io/createdby", "hostpath-dynamic-provisioner");

/// A directory below [`ROOT`], by the names of the directories on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath(Vec<String>);

impl HostPath {
    /// Reads an absolute path. The stock plugin accepts any that has `/tmp/` somewhere in it; this one
    /// must begin there and be canonical, so that no `..` leads elsewhere.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let below = path.strip_prefix(ROOT)?.strip_prefix('/')?;
        let names: Vec<String> = below.split('/').map(str::to_owned).collect();
        let canonical = |name: &String| !matches!(name.as_str(), "" | "." | "..") && !name.contains('\0');
        names.iter().all(canonical).then_some(Self(names))
    }

    /// The directory made for a claim: the same one however often it is begun.
    #[must_use]
    pub fn of_claim(claim: &Uid) -> Option<Self> {
        Self::parse(&format!("{ROOT}/{MADE}/{claim}"))
    }

    /// The names of the directories on the way, the last one last.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}/{}", self.0.join("/"))
    }
}

/// Name of the volume made for a claim.
#[must_use]
pub fn volume_name(claim: &Uid) -> VolumeName {
    VolumeName::from(format!("pvc-{claim}"))
}

/// Deletes a volume whose claim is proven gone: the directory first, then the object.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, deleteVolumeOperation;
// pkg/volume/hostpath/host_path.go, Delete.
#[must_use]
pub fn delete(volume: &PersistentVolume, view: &View<'_>) -> VolumeDecision {
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
    let step = match view.runs.of_volume(volume).map(|run| &run.stage) {
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
    reclaim::failed(volume, VolumeReason::DeleteFailed(text), "VolumeFailedDelete")
}

/// Makes a volume for a claim that is handed to the plugin: the directory first, then the object.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaimOperation;
// pkg/volume/hostpath/host_path.go, Provision.
#[must_use]
pub fn provision(claim: &PersistentVolumeClaim, class: &StorageClass, view: &View<'_>) -> ClaimDecision {
    let uid = &claim.metadata.uid;
    let stage = view.runs.of_claim(claim);
    let refused = match stage {
        Some(ClaimStage::Failed(why)) => return refuse(claim, why.clone(), view),
        None => name_taken(claim, view).or_else(|| obstacle(claim, class, view)),
        Some(ClaimStage::Made(_)) => name_taken(claim, view),
        Some(ClaimStage::Undoing(..)) => None,
    };
    if let Some(why) = refused {
        return refuse(claim, why, view);
    }
    let Some(directory) = HostPath::of_claim(uid) else {
        return refuse(claim, Unprovisioned::failed(claim, "its UID is no name for a directory"), view);
    };
    let reason = ClaimReason::Provisioning(PLUGIN);
    match stage {
        Some(ClaimStage::Undoing(error, _)) => {
            let why = Unprovisioned::NotCreated { claim: claim.key(), error: error.clone() };
            Decision::step(reason, Step::Directory(Directory::Remove(directory))).telling(warning(
                claim,
                why.event_reason(),
                why.to_string(),
            ))
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
        Unprovisioned::failed(claim, &format!("{PLUGIN} does not support block volume provisioning"))
    })
}

/// Says why there is no volume; if the plugin itself failed, the scheduler is asked for another node.
fn refuse(claim: &PersistentVolumeClaim, why: Unprovisioned, view: &View<'_>) -> ClaimDecision {
    let event = warning(claim, why.event_reason(), why.to_string());
    let failed = matches!(why, Unprovisioned::Failed { .. });
    let again =
        (failed && annotations::has(&claim.metadata, SELECTED_NODE) && !view.runs.is_rescheduled(claim))
            .then(|| Write::claim(claim, WriteKind::Reschedule, patches::unselect_node(claim)));
    Decision::rest(ClaimReason::NotProvisioned(why)).telling(event).writing(again)
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
            "annotations": { CREATED_BY.0: CREATED_BY.1, BOUND_BY_CONTROLLER: YES, PROVISIONED_BY: PLUGIN },
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
    let name = volume_name(&claim.metadata.uid);
    let told = format!("Successfully provisioned volume {name} using {PLUGIN}");
    normal(claim, "ProvisioningSucceeded", told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_tmp_and_written_plainly_is_a_path() {
        let cases = [
            ("/tmp/a", true),
            ("/tmp/hostpath_pv/1-2", true),
            ("/tmp/a.b/..c", true),
            ("/tmp", false),
            ("/tmp/", false),
            ("/tmp//a", false),
            ("/tmp/a/", false),
            ("/tmp/./a", false),
            ("/tmp/../etc", false),
            ("/tmp/a/..", false),
            ("/tmpa/b", false),
            ("/data/tmp/x", false),
            ("tmp/x", false),
            ("/tmp/a\0b", false),
            ("", false),
        ];
        for (path, accepted) in cases {
            let parsed = HostPath::parse(path);
            assert_eq!(parsed.is_some(), accepted, "{path}");
            assert!(parsed.is_none_or(|parsed| parsed.to_string() == path), "{path}");
        }
        assert_eq!(HostPath::of_claim(&Uid::from("../x")), None);
    }
}
