//! What becomes of a Released volume (pv-binder §6).
//!
//! In: a volume whose claim is gone. Out: whose business it is, or a decision that marks it Failed, when
//! its policy asks for something nobody can do. A volume of an external driver is never touched: its
//! provisioner deletes only what is Released (S32). What is recycled or deleted here, if that is switched
//! on, is in [`super::recycle`] and [`super::host_path`].

use super::{
    annotations::{self, MIGRATED_TO, PROVISIONED_BY},
    decision::{Decision, Step, Write, WriteKind, warning},
    host_path, patches,
    reason::{Unreclaimable, VolumeReason},
    recycle,
    view::View,
    volume::VolumeDecision,
};
use crate::kube_api::kinds::{
    ClaimRef, FileSource, InTreeSource, Narrow, PersistentVolume, ReclaimPolicy, StorageClass, VolumePhase,
};

/// The in-tree plugin that is known, recycles, and neither provisions nor deletes.
pub const NFS_PLUGIN: &str = "kubernetes.io/nfs";

/// Who deletes the volume, as a label of metrics: the in-tree plugin, or the provisioner of its class.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, getProvisionerNameFromVolume.
#[must_use]
pub fn deleter(volume: &PersistentVolume, class: Option<&StorageClass>) -> String {
    let provisioned_by = volume.metadata.annotation(PROVISIONED_BY).unwrap_or_default();
    if annotations::is_in_tree(provisioned_by) {
        return provisioned_by.to_owned();
    }
    match class.map(|class| class.provisioner.as_str()).filter(|name| !name.is_empty()) {
        Some(provisioner) => annotations::csi_name(provisioner).unwrap_or(provisioner).to_owned(),
        None => "N/A".to_owned(),
    }
}

/// Reclaims a volume that is Released or Failed.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, reclaimVolume and
// findDeletablePlugin.
#[must_use]
pub fn reclaim(volume: &PersistentVolume, reference: &ClaimRef, view: &View<'_>) -> VolumeDecision {
    let annotation = |key| volume.metadata.annotation(key).filter(|value| !value.is_empty());
    let here = view.options.enable_hostpath_provisioner;
    let source = volume.spec.in_tree.as_deref();
    if volume.spec.reclaim_policy != ReclaimPolicy::Retain
        && let Some(InTreeSource::Malformed(malformed)) = source
    {
        // It may be an external driver's.
        return Decision::rest(VolumeReason::Unreadable(malformed.clone()));
    }
    let why = match &volume.spec.reclaim_policy {
        ReclaimPolicy::Retain => return Decision::rest(VolumeReason::Retained),
        _ if annotation(MIGRATED_TO).is_some() || volume.spec.csi.is_some() => {
            return Decision::rest(VolumeReason::LeftToProvisioner);
        }
        ReclaimPolicy::Delete => match (annotation(PROVISIONED_BY), volume.spec.files.as_deref()) {
            (Some(host_path::PLUGIN), _) if here => return host_path::delete(volume, view),
            (Some(NFS_PLUGIN), _) => Unreclaimable::PluginCannotDelete,
            (Some(plugin), _) if annotations::is_in_tree(plugin) => {
                Unreclaimable::NoPlugin(plugin.to_owned())
            }
            (Some(_), _) => return Decision::rest(VolumeReason::LeftToProvisioner),
            // Here the key alone says it.
            (None, _) if annotations::has(&volume.metadata, MIGRATED_TO) => {
                return Decision::rest(VolumeReason::LeftToProvisioner);
            }
            (None, Some(FileSource::HostPath(_))) if here => return host_path::delete(volume, view),
            (None, Some(FileSource::Nfs(_))) => Unreclaimable::CannotDelete(volume.key()),
            (None, _) => Unreclaimable::NoDeleter(volume.key()),
        },
        ReclaimPolicy::Recycle => return recycle::recycle(volume, reference, view),
        ReclaimPolicy::Other(_) => Unreclaimable::UnknownPolicy,
    };
    not_reclaimable(volume, why)
}

/// Says that nobody can reclaim the volume.
#[must_use]
pub fn not_reclaimable(volume: &PersistentVolume, why: Unreclaimable) -> VolumeDecision {
    let event_reason = why.event_reason();
    failed(volume, VolumeReason::NotReclaimable(why), event_reason)
}

/// Marks the volume as Failed, for a reason whose text is the status's message and the event's. Once it is, only
/// the event tells of another reason.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, updateVolumePhaseWithEvent.
#[must_use]
pub fn failed(volume: &PersistentVolume, reason: VolumeReason, event_reason: &'static str) -> VolumeDecision {
    let message = reason.to_string();
    if volume.status.phase == VolumePhase::Failed {
        return Decision::rest(reason).telling(warning(volume, event_reason, message));
    }
    let request = patches::volume_phase(volume, VolumePhase::Failed, Some(&message));
    let write = Write::volume(volume, WriteKind::VolumeFailed, request);
    Decision::step(reason, Step::Write(write.then(warning(volume, event_reason, message))))
}
