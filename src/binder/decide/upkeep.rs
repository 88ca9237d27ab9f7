//! Annotations and finalizers that are put right before anything else is decided about an object
//! (pv-binder §2.0, §3.0).
//!
//! In: a claim or a volume. Out: at most one write, unless a webhook takes the change out of it. The annotation says which CSI driver acts for a
//! migrated in-tree plugin; the finalizers say who has to delete the storage before the volume may go.
//! The protection finalizers of other controllers are never touched (S33).

use apiserver::{
    kinds::{Meta, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy},
    text::Text,
};
use serde_json::{Value, json};

use crate::binder::{
    annotations::{self, BETA_STORAGE_PROVISIONER, MIGRATED_TO, PROVISIONED_BY, STORAGE_PROVISIONER},
    calls::{Target, Write},
    patches,
    state::State,
};

/// ITF: the binder deletes the storage of an in-tree plugin before the volume goes.
pub const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";
/// EPF: the external provisioner does.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The write that puts a claim's annotation right.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, updateClaimMigrationAnnotations.
pub fn of_claim(claim: &PersistentVolumeClaim, state: &State) -> Option<Write> {
    let meta = &claim.metadata;
    let provisioner = meta.annotation(STORAGE_PROVISIONER).or(meta.annotation(BETA_STORAGE_PROVISIONER))?;
    let write = patches::annotate(claim, Some(migration(meta, provisioner)?), None);
    (!state.is_stripped(&Target::Claim(claim.key()), meta.resource_version, &write)).then_some(write)
}

/// The write that puts a volume's annotation and finalizers right.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go,
// updateVolumeMigrationAnnotationsAndFinalizers.
pub fn of_volume(volume: &PersistentVolume, state: &State) -> Option<Write> {
    let provisioner = volume.metadata.annotation(PROVISIONED_BY)?;
    let migrated = migration(&volume.metadata, provisioner);
    // Nothing here would take ours off a volume that no plugin here deletes.
    let deletes = state.plugins.provisions(provisioner);
    let finalizers = finalizers(volume, provisioner, deletes);
    if migrated.is_none() && finalizers.is_none() {
        return None;
    }
    let write = patches::annotate(volume, migrated, finalizers.as_deref());
    let (target, revision) = (Target::Volume(volume.key()), volume.metadata.resource_version);
    (!state.is_stripped(&target, revision, &write)).then_some(write)
}

/// To what MIG has to change, if it has to.
fn migration(meta: &Meta, provisioner: &str) -> Option<Value> {
    let present = meta.annotation(MIGRATED_TO);
    match annotations::csi_name(provisioner) {
        Some(driver) if present != Some(driver) => Some(json!(driver)),
        None if present.is_some_and(|driver| !driver.is_empty()) => Some(Value::Null),
        _ => None,
    }
}

/// The finalizers a volume must have, if they have to change: ours if a plugin here deletes its storage.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, modifyDeletionFinalizers.
fn finalizers(volume: &PersistentVolume, provisioner: &str, deletes: bool) -> Option<Vec<Text>> {
    let present = &volume.metadata.finalizers;
    let policy = &volume.spec.reclaim_policy;
    let migrated = annotations::csi_name(provisioner).is_some();
    if !migrated && !annotations::is_in_tree(provisioner) {
        return None;
    }
    let lacks_ours =
        deletes && *policy == ReclaimPolicy::Delete && !present.iter().any(|name| name == IN_TREE_FINALIZER);
    // The API server refuses a finalizer added to an object that is being deleted. What holds the volume
    // instead stays until its storage is gone.
    if lacks_ours && volume.metadata.is_terminating() {
        return None;
    }
    let unwanted = |finalizer: &str| match policy {
        _ if migrated => finalizer == IN_TREE_FINALIZER,
        _ if finalizer == EXTERNAL_FINALIZER => true,
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle => finalizer == IN_TREE_FINALIZER,
        ReclaimPolicy::Delete | ReclaimPolicy::Other(_) => false,
    };
    let mut wanted: Vec<Text> = present.iter().filter(|name| !unwanted(name)).cloned().collect();
    if lacks_ours {
        wanted.push(IN_TREE_FINALIZER.into());
    }
    (*wanted != **present).then_some(wanted)
}
