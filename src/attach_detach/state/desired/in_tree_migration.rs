//! In-tree volumes as the CSI volumes that they are today (attach-detach §2.4). Pure.
//!
//! In: an in-tree source and what it is in: a PersistentVolume, or a pod. Out: driver, handle and access
//! modes; for a volume without PersistentVolume also the one made up for it, whose spec goes into the
//! VolumeAttachment. The kubelet and the driver's sidecars translate for themselves, so each of these must
//! be to the byte what csi-translation-lib makes of the same input.
//!
//! KCM: k8s.io/csi-translation-lib/plugins; all seven plugins are translated on every node.

use std::{collections::BTreeMap, sync::Arc};

use apiserver::{
    kinds::{AwsElasticBlockStore, AzureDisk, AzureFile, ClaimRef, GcePersistentDisk, InTreeSource, Meta},
    text::{Text, TextList},
};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, SecretReference};
use serde_json::{Value, json};

use super::source_error::SourceError;
use crate::controller::in_tree;

const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_ONLY_MANY: &str = "ReadOnlyMany";
const READ_WRITE_MANY: &str = "ReadWriteMany";

/// A translated volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Migrated {
    /// CSI driver.
    pub driver: &'static str,
    /// The driver's name of the volume.
    pub handle: String,
    /// Access modes.
    pub access_modes: TextList,
    /// For a volume without PersistentVolume, the one made up for it.
    pub inline: Option<InlineVolume>,
}

/// The PersistentVolume that is made up for a volume without one.
#[derive(Clone, Debug, PartialEq)]
pub struct InlineVolume {
    /// Its name, which events print.
    pub name: String,
    /// Its spec, which goes into the VolumeAttachment.
    pub spec: Arc<Value>,
}

/// Translates a PersistentVolume; `None` if its plugin is not one that is translated.
///
/// # Errors
/// If the source has no translation.
pub fn persistent_volume(
    metadata: &Meta,
    claim: Option<&ClaimRef>,
    access_modes: &TextList,
    source: &InTreeSource,
) -> Result<Option<Migrated>, SourceError> {
    let Some((driver, handle)) = driver_and_handle(metadata, claim, source)? else { return Ok(None) };
    let access_modes = match source {
        InTreeSource::GcePersistentDisk(_) => gce_access_modes(access_modes),
        _ => access_modes.clone(),
    };
    Ok(Some(Migrated { driver, handle, access_modes, inline: None }))
}

fn driver_and_handle(
    metadata: &Meta,
    claim: Option<&ClaimRef>,
    source: &InTreeSource,
) -> Result<Option<(&'static str, String)>, SourceError> {
    let handle = match source {
        InTreeSource::AwsElasticBlockStore(source) => ebs_handle(source)?,
        InTreeSource::GcePersistentDisk(source) => gce_handle(metadata, source)?,
        InTreeSource::AzureDisk(source) => azure_disk_handle(source)?,
        InTreeSource::AzureFile(source) => azure_file_handle(metadata, claim, source)?,
        InTreeSource::Cinder(source) => source.volume_id.clone(),
        InTreeSource::VsphereVolume(source) => source.volume_path.clone(),
        InTreeSource::PortworxVolume(source) => source.volume_id.clone(),
        InTreeSource::Iscsi(_)
        | InTreeSource::Fc(_)
        | InTreeSource::FlexVolume(_)
        | InTreeSource::Malformed(_) => return Ok(None),
    };
    Ok(in_tree::migrated(source).map(|(_, driver)| (driver, handle)))
}

/// Translates a volume that a pod has without a PersistentVolume; `None` if its plugin is not one that is
/// translated.
///
/// # Errors
/// If the source has no translation.
pub fn inline_volume(
    volume: &str,
    namespace: &str,
    source: &InTreeSource,
) -> Result<Option<Migrated>, SourceError> {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let metadata = Meta { name: volume.into(), ..Meta::default() };
    let of_pod = ClaimRef { namespace: namespace.into(), ..ClaimRef::default() };
    let Some((driver, handle)) = driver_and_handle(&metadata, Some(&of_pod), source)? else {
        return Ok(None);
    };
    let (mut name, mut mode) = (format!("{driver}-{handle}"), READ_WRITE_ONCE);
    let (mut attributes, mut secret) = (BTreeMap::new(), None);
    let mut attribute = |name: &str, value: &str| drop(attributes.insert(name.to_owned(), value.to_owned()));
    let (read_only, fs_type) = match source {
        InTreeSource::AwsElasticBlockStore(source) => {
            attribute("partition", &source.partition.to_string());
            (source.read_only, &*source.fs_type)
        }
        InTreeSource::GcePersistentDisk(source) => {
            name = format!("{driver}-{}", source.pd_name);
            if source.read_only {
                mode = READ_ONLY_MANY;
            }
            let whole = source.partition == 0;
            attribute("partition", &if whole { String::new() } else { source.partition.to_string() });
            (source.read_only, &*source.fs_type)
        }
        InTreeSource::AzureDisk(source) => {
            name.clone_from(&handle);
            attribute("kind", "Managed");
            if let Some(mode) = source.caching_mode.as_deref().filter(|mode| !mode.is_empty()) {
                attribute("cachingmode", mode);
            }
            if let Some(fs_type) = &source.fs_type {
                attribute("fstype", fs_type);
            }
            (source.read_only == Some(true), source.fs_type.as_deref().unwrap_or_default())
        }
        InTreeSource::AzureFile(source) => {
            name.clone_from(&handle);
            mode = READ_WRITE_MANY;
            attribute("sharename", &source.share_name);
            secret = Some(SecretReference {
                name: non_empty(&source.secret_name),
                namespace: non_empty(namespace),
            });
            (source.read_only, "")
        }
        InTreeSource::Cinder(source) => (source.read_only, &*source.fs_type),
        InTreeSource::VsphereVolume(source) => {
            // KCM: reads the policy from a source that is not there, and panics.
            if !source.storage_policy_name.is_empty() {
                attribute("storagepolicyname", &source.storage_policy_name);
            }
            (false, &*source.fs_type)
        }
        InTreeSource::PortworxVolume(source) => {
            if source.read_only {
                mode = READ_ONLY_MANY;
            }
            (false, &*source.fs_type)
        }
        _ => return Ok(None),
    };
    // What Go leaves out when empty is left out.
    let csi = CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.clone(),
        read_only: read_only.then_some(true),
        fs_type: non_empty(fs_type),
        volume_attributes: Some(attributes).filter(|attributes| !attributes.is_empty()),
        node_stage_secret_ref: secret,
        ..CSIPersistentVolumeSource::default()
    };
    let spec = json!({ "accessModes": [mode], "csi": csi, "volumeMode": "Filesystem" });
    let inline = Some(InlineVolume { name, spec: Arc::new(spec) });
    Ok(Some(Migrated { driver, handle, access_modes: [mode].into(), inline }))
}

fn non_empty(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// `vol-…` out of `aws://<zone>/vol-…`, `aws:///vol-…`; anything else is taken as it is.
/// KCM: aws_ebs.go, `KubernetesVolumeIDToEBSVolumeID`.
fn ebs_handle(source: &AwsElasticBlockStore) -> Result<String, SourceError> {
    let Some(rest) = source.volume_id.strip_prefix("aws://") else { return Ok(source.volume_id.clone()) };
    let id = rest.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
    // KCM reads this as a URL; what a URL would cut or decode is in no id.
    if !id.starts_with("vol-") || rest.contains(['?', '#', '%']) || id.contains('/') {
        return Err(SourceError::EbsVolumeId(source.volume_id.clone()));
    }
    Ok(id.to_owned())
}

/// The disk's place is in the volume's zone label; several zones, joined by `__`, are a regional disk.
fn gce_handle(metadata: &Meta, source: &GcePersistentDisk) -> Result<String, SourceError> {
    let label = |key| metadata.labels.get(key).map(Text::as_str).filter(|zone| !zone.is_empty());
    let zones =
        label("failure-domain.beta.kubernetes.io/zone").or_else(|| label("topology.kubernetes.io/zone"));
    let (zones, disk) = (zones.unwrap_or("UNSPECIFIED"), &source.pd_name);
    if zones.contains("__") {
        let region = gce_region(zones).ok_or_else(|| SourceError::GceZones(zones.to_owned()))?;
        return Ok(format!("projects/UNSPECIFIED/regions/{region}/disks/{disk}"));
    }
    Ok(format!("projects/UNSPECIFIED/zones/{zones}/disks/{disk}"))
}

/// The region that all zones (`<locale>-<region>-<zone>`) are in.
/// KCM: gce_pd.go, `gceGetRegionFromZones`.
fn gce_region(zones: &str) -> Option<&str> {
    let mut region = None;
    for zone in zones.split("__") {
        let (of_zone, _) = zone.rsplit_once('-')?;
        let is_new = region.replace(of_zone).is_none_or(|before| before == of_zone);
        if of_zone.matches('-').count() != 1 || !is_new {
            return None;
        }
    }
    region
}

/// KCM: gce_pd.go, `backwardCompatibleAccessModes`: the in-tree plugin attached for one writer with all
/// the modes said, and the driver refuses what it cannot do.
fn gce_access_modes(modes: &TextList) -> TextList {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    if modes.is_empty() {
        return TextList::default();
    }
    let only_reads = has(READ_ONLY_MANY) && !has(READ_WRITE_ONCE) && !has(READ_WRITE_MANY);
    [if only_reads { READ_ONLY_MANY } else { READ_WRITE_ONCE }].into()
}

fn azure_disk_handle(source: &AzureDisk) -> Result<String, SourceError> {
    match &source.kind {
        Some(kind) if !kind.eq_ignore_ascii_case("Managed") => Err(SourceError::AzureDiskKind(kind.clone())),
        _ => Ok(source.disk_uri.clone()),
    }
}

fn azure_file_handle(
    metadata: &Meta,
    claim: Option<&ClaimRef>,
    source: &AzureFile,
) -> Result<String, SourceError> {
    let of_claim = claim.map(|claim| claim.namespace.as_str());
    let namespace = source.secret_namespace.as_deref().or(of_claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err(SourceError::NoSecretNamespace);
    }
    let group = metadata.annotation("kubernetes.io/azure-file-resource-group").unwrap_or_default();
    let account = azure_account(&source.secret_name);
    Ok(format!("{group}#{account}#{}#{}#{namespace}", source.share_name, metadata.name))
}

/// The account in `azure-storage-account-<account>-secret`, or the secret's name if it has no such form.
fn azure_account(secret: &str) -> &str {
    let account = secret
        .split_once("azure-storage-account-")
        .and_then(|(_, rest)| rest.rsplit_once("-secret"))
        .map(|(account, _)| account);
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}
