//! What becomes of a Released volume (pv-binder §6).
//!
//! In: a volume whose claim is gone. Out: whose business it is, or a decision that marks it Failed, when
//! its policy asks for something that cannot be done. A volume of an external driver is never touched: its
//! provisioner deletes only what is Released (S32). What is recycled or deleted here, the plugins decide.

use apiserver::kinds::{
    ClaimRef, FileSource, InTreeSource, Narrow, PersistentVolume, ReclaimPolicy, StorageClass, VolumePhase,
};

use super::decision::{Decision, VolumeDecision};
use crate::binder::{
    annotations::{self, HOST_PATH_PLUGIN, MIGRATED_TO, NFS_PLUGIN, PROVISIONED_BY},
    reasons::{Unreclaimable, VolumeReason},
    state::{Plugins, State},
};

/// `plugin_name` of what no plugin is known to do.
const NO_PLUGIN: &str = "N/A";

/// Who deletes a volume whose policy is Delete.
enum Deleter {
    Here,
    External,
}

/// Finds who deletes the volume.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, findDeletablePlugin.
fn deleter(volume: &PersistentVolume, plugins: &dyn Plugins) -> Result<Deleter, Unreclaimable> {
    let provisioned_by = volume.metadata.annotation(PROVISIONED_BY).filter(|name| !name.is_empty());
    match (provisioned_by, volume.spec.files.as_deref()) {
        (Some(plugin), _) if plugins.provisions(plugin) => Ok(Deleter::Here),
        (Some(NFS_PLUGIN), _) => Err(Unreclaimable::PluginCannotDelete),
        (Some(plugin), _) if annotations::is_in_tree(plugin) => {
            Err(Unreclaimable::NoPlugin(plugin.to_owned()))
        }
        (Some(_), _) => Ok(Deleter::External),
        // Here the key alone says it.
        (None, _) if annotations::has(&volume.metadata, MIGRATED_TO) || volume.spec.csi.is_some() => {
            Ok(Deleter::External)
        }
        (None, Some(FileSource::HostPath(_))) if plugins.provisions(HOST_PATH_PLUGIN) => Ok(Deleter::Here),
        (None, Some(FileSource::Nfs(_))) => Err(Unreclaimable::CannotDelete(volume.key())),
        (None, _) => Err(Unreclaimable::NoDeleter(volume.key())),
    }
}

/// Whether the volume is a CSI driver's now.
fn is_migrated(volume: &PersistentVolume) -> bool {
    volume.metadata.annotation(MIGRATED_TO).is_some_and(|driver| !driver.is_empty())
}

/// Under which `plugin_name` the deletion of the volume is measured, if it is.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, getProvisionerNameFromVolume.
pub fn deletion_plugin(
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
    plugins: &dyn Plugins,
) -> Option<String> {
    if volume.spec.reclaim_policy != ReclaimPolicy::Delete || is_migrated(volume) {
        return None;
    }
    let name = match deleter(volume, plugins) {
        Ok(Deleter::Here) => HOST_PATH_PLUGIN,
        Ok(Deleter::External) => {
            let provisioner = class.map(|class| class.provisioner.as_str()).filter(|name| !name.is_empty());
            provisioner.map_or(NO_PLUGIN, |name| annotations::csi_name(name).unwrap_or(name))
        }
        Err(_) => NO_PLUGIN,
    };
    Some(name.to_owned())
}

/// Whether somebody else reclaims it.
pub(super) fn is_left(volume: &PersistentVolume, state: &State) -> bool {
    let deletes = volume.spec.reclaim_policy == ReclaimPolicy::Delete;
    is_external(volume) || (deletes && matches!(deleter(volume, &*state.plugins), Ok(Deleter::External)))
}

/// Whether it is reclaimed by a CSI driver, and never here.
fn is_external(volume: &PersistentVolume) -> bool {
    is_migrated(volume) || volume.spec.csi.is_some()
}

fn why_not_external(volume: &PersistentVolume) -> Option<Unreclaimable> {
    match volume.spec.reclaim_policy {
        ReclaimPolicy::Recycle => Some(Unreclaimable::NoRecycler),
        ReclaimPolicy::Other(_) => Some(Unreclaimable::UnknownPolicy),
        _ => (volume.status.phase == VolumePhase::Failed).then_some(Unreclaimable::Failed),
    }
}

/// Reclaims a volume that is Released or Failed.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, reclaimVolume.
pub fn reclaim(volume: &PersistentVolume, reference: &ClaimRef, state: &State) -> VolumeDecision {
    let failed = |why| VolumeDecision::failed(volume, VolumeReason::NotReclaimable(why));
    let here =
        |otherwise| state.plugins.reclaim(volume, reference, state).unwrap_or_else(|| failed(otherwise));
    match (&volume.spec.reclaim_policy, volume.spec.in_tree.as_deref()) {
        (ReclaimPolicy::Retain, _) => Decision::rest(VolumeReason::Retained),
        // external-provisioner deletes what is Released, and by policy Delete alone.
        _ if is_external(volume) => match why_not_external(volume) {
            None => Decision::rest(VolumeReason::LeftToProvisioner),
            Some(why) => VolumeDecision::waiting(volume, VolumeReason::NotReclaimable(why)),
        },
        // It may be an external driver's, too.
        (_, Some(InTreeSource::Malformed(malformed))) => {
            Decision::rest(VolumeReason::Unreadable(malformed.clone()))
        }
        (ReclaimPolicy::Delete, _) => match deleter(volume, &*state.plugins) {
            Ok(Deleter::External) => Decision::rest(VolumeReason::LeftToProvisioner),
            Ok(Deleter::Here) => here(Unreclaimable::NoDeleter(volume.key())),
            Err(why) => failed(why),
        },
        (ReclaimPolicy::Recycle, _) => here(Unreclaimable::NoRecycler),
        (ReclaimPolicy::Other(_), _) => failed(Unreclaimable::UnknownPolicy),
    }
}
