//! In-tree volumes as the CSI volumes that they are today (attach-detach §2.4). Pure.
//!
//! In: an in-tree source and what it is in: a PersistentVolume, or a pod. Out: driver, handle and access
//! modes; for a volume without PersistentVolume also the one made up for it, whose spec goes into the
//! VolumeAttachment. The kubelet and the driver's sidecars translate for themselves, so each of these must
//! be to the byte what csi-translation-lib makes of the same input.
//!
//! KCM: k8s.io/csi-translation-lib/plugins; all seven plugins are translated on every node.

use apiserver::{
    kinds::{AwsElasticBlockStore, AzureDisk, AzureFile, ClaimRef, GcePersistentDisk, InTreeSource, Meta},
    text::{Text, TextList},
};
use serde_json::{Map, Value, json};

use super::source_error::SourceError;
const EBS: &str = "ebs.csi.aws.com";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const VSPHERE: &str = "csi.vsphere.vmware.com";
const PORTWORX: &str = "pxd.portworx.com";

const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_ONLY_MANY: &str = "ReadOnlyMany";
const READ_WRITE_MANY: &str = "ReadWriteMany";

/// A translated PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// CSI driver.
    pub driver: &'static str,
    /// The driver's name of the volume.
    pub handle: String,
    /// Access modes.
    pub access_modes: TextList,
}

/// A translated volume without PersistentVolume: the one that stands for it.
#[derive(Clone, Debug, PartialEq)]
pub struct MigratedInline {
    /// CSI driver.
    pub driver: &'static str,
    /// The driver's name of the volume.
    pub handle: String,
    /// Name of the PersistentVolume, if it existed.
    pub name: String,
    /// Access mode.
    pub access_mode: &'static str,
    /// Spec of the PersistentVolume.
    pub spec: Value,
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
    let (driver, handle) = match source {
        InTreeSource::AwsElasticBlockStore(source) => (EBS, ebs_handle(source)?),
        InTreeSource::GcePersistentDisk(source) => {
            return Ok(Some(Migrated {
                driver: GCE_PD,
                handle: gce_handle(metadata, source)?,
                access_modes: gce_access_modes(access_modes),
            }));
        }
        InTreeSource::AzureDisk(source) => (AZURE_DISK, azure_disk_handle(source)?),
        InTreeSource::AzureFile(source) => (AZURE_FILE, azure_file_handle(metadata, claim, source)?),
        InTreeSource::Cinder(source) => (CINDER, source.volume_id.clone()),
        InTreeSource::VsphereVolume(source) => (VSPHERE, source.volume_path.clone()),
        InTreeSource::PortworxVolume(source) => (PORTWORX, source.volume_id.clone()),
        InTreeSource::Iscsi(_)
        | InTreeSource::Fc(_)
        | InTreeSource::FlexVolume(_)
        | InTreeSource::Malformed(_) => return Ok(None),
    };
    Ok(Some(Migrated { driver, handle, access_modes: access_modes.clone() }))
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
) -> Result<Option<MigratedInline>, SourceError> {
    let migrated = match source {
        InTreeSource::AwsElasticBlockStore(source) => ebs_inline(source)?,
        InTreeSource::GcePersistentDisk(source) => gce_inline(source),
        InTreeSource::AzureDisk(source) => azure_disk_inline(source)?,
        InTreeSource::AzureFile(source) => azure_file_inline(volume, namespace, source),
        InTreeSource::Cinder(source) => {
            let csi =
                Csi::new(CINDER, &source.volume_id).read_only(source.read_only).fs_type(&source.fs_type);
            csi.inline(READ_WRITE_ONCE)
        }
        InTreeSource::VsphereVolume(source) => {
            let mut csi = Csi::new(VSPHERE, &source.volume_path).fs_type(&source.fs_type);
            // KCM: reads the policy from a source that is not there, and panics.
            if !source.storage_policy_name.is_empty() {
                csi = csi.attribute("storagepolicyname", &source.storage_policy_name);
            }
            csi.inline(READ_WRITE_ONCE)
        }
        InTreeSource::PortworxVolume(source) => {
            let mode = if source.read_only { READ_ONLY_MANY } else { READ_WRITE_ONCE };
            Csi::new(PORTWORX, &source.volume_id).fs_type(&source.fs_type).inline(mode)
        }
        InTreeSource::Iscsi(_)
        | InTreeSource::Fc(_)
        | InTreeSource::FlexVolume(_)
        | InTreeSource::Malformed(_) => return Ok(None),
    };
    Ok(Some(migrated))
}

/// The CSI source of a made-up PersistentVolume. Fields that Go leaves out when empty are left out.
struct Csi {
    driver: &'static str,
    handle: String,
    source: Map<String, Value>,
    attributes: Map<String, Value>,
}

impl Csi {
    fn new(driver: &'static str, handle: &str) -> Self {
        let source = Map::from_iter([
            ("driver".to_owned(), json!(driver)),
            ("volumeHandle".to_owned(), json!(handle)),
        ]);
        Self { driver, handle: handle.to_owned(), source, attributes: Map::new() }
    }

    fn read_only(mut self, read_only: bool) -> Self {
        if read_only {
            self.source.insert("readOnly".to_owned(), json!(true));
        }
        self
    }

    fn fs_type(mut self, fs_type: &str) -> Self {
        if !fs_type.is_empty() {
            self.source.insert("fsType".to_owned(), json!(fs_type));
        }
        self
    }

    fn attribute(mut self, name: &str, value: &str) -> Self {
        self.attributes.insert(name.to_owned(), json!(value));
        self
    }

    fn node_stage_secret(mut self, name: &str, namespace: &str) -> Self {
        let mut secret = Map::new();
        for (key, value) in [("name", name), ("namespace", namespace)] {
            if !value.is_empty() {
                secret.insert(key.to_owned(), json!(value));
            }
        }
        self.source.insert("nodeStageSecretRef".to_owned(), Value::Object(secret));
        self
    }

    /// Named after driver and handle.
    fn inline(self, access_mode: &'static str) -> MigratedInline {
        let name = format!("{}-{}", self.driver, self.handle);
        self.inline_named(name, access_mode)
    }

    fn inline_named(mut self, name: String, access_mode: &'static str) -> MigratedInline {
        if !self.attributes.is_empty() {
            self.source.insert("volumeAttributes".to_owned(), Value::Object(self.attributes));
        }
        let spec = json!({ "accessModes": [access_mode], "csi": self.source, "volumeMode": "Filesystem" });
        MigratedInline { driver: self.driver, handle: self.handle, name, access_mode, spec }
    }
}

fn ebs_inline(source: &AwsElasticBlockStore) -> Result<MigratedInline, SourceError> {
    let csi = Csi::new(EBS, &ebs_handle(source)?).read_only(source.read_only).fs_type(&source.fs_type);
    Ok(csi.attribute("partition", &source.partition.to_string()).inline(READ_WRITE_ONCE))
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

fn gce_inline(source: &GcePersistentDisk) -> MigratedInline {
    let mode = if source.read_only { READ_ONLY_MANY } else { READ_WRITE_ONCE };
    let partition = if source.partition == 0 { String::new() } else { source.partition.to_string() };
    Csi::new(GCE_PD, &gce_zonal("UNSPECIFIED", &source.pd_name))
        .read_only(source.read_only)
        .fs_type(&source.fs_type)
        .attribute("partition", &partition)
        .inline_named(format!("{GCE_PD}-{}", source.pd_name), mode)
}

fn gce_zonal(zone: &str, disk: &str) -> String {
    format!("projects/UNSPECIFIED/zones/{zone}/disks/{disk}")
}

/// The disk's place is in the volume's zone label; several zones, joined by `__`, are a regional disk.
fn gce_handle(metadata: &Meta, source: &GcePersistentDisk) -> Result<String, SourceError> {
    let label = |key| metadata.labels.get(key).map(Text::as_str).filter(|zone| !zone.is_empty());
    let zones =
        label("failure-domain.beta.kubernetes.io/zone").or_else(|| label("topology.kubernetes.io/zone"));
    let disk = &source.pd_name;
    match zones {
        None => Ok(gce_zonal("UNSPECIFIED", disk)),
        Some(zones) if zones.contains("__") => {
            let region = gce_region(zones).ok_or_else(|| SourceError::GceZones(zones.to_owned()))?;
            Ok(format!("projects/UNSPECIFIED/regions/{region}/disks/{disk}"))
        }
        Some(zone) => Ok(gce_zonal(zone, disk)),
    }
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

fn azure_disk_inline(source: &AzureDisk) -> Result<MigratedInline, SourceError> {
    let handle = azure_disk_handle(source)?;
    let mut csi = Csi::new(AZURE_DISK, &handle)
        .read_only(source.read_only.unwrap_or_default())
        .attribute("kind", "Managed");
    if let Some(mode) = source.caching_mode.as_deref()
        && !mode.is_empty()
    {
        csi = csi.attribute("cachingmode", mode);
    }
    if let Some(fs_type) = &source.fs_type {
        csi = csi.fs_type(fs_type).attribute("fstype", fs_type);
    }
    Ok(csi.inline_named(handle, READ_WRITE_ONCE))
}

fn azure_disk_handle(source: &AzureDisk) -> Result<String, SourceError> {
    match &source.kind {
        Some(kind) if !kind.eq_ignore_ascii_case("Managed") => Err(SourceError::AzureDiskKind(kind.clone())),
        _ => Ok(source.disk_uri.clone()),
    }
}

fn azure_file_inline(volume: &str, namespace: &str, source: &AzureFile) -> MigratedInline {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let account = azure_account(&source.secret_name);
    let handle = format!("#{account}#{}#{volume}#{namespace}", source.share_name);
    Csi::new(AZURE_FILE, &handle)
        .read_only(source.read_only)
        .attribute("sharename", &source.share_name)
        .node_stage_secret(&source.secret_name, namespace)
        .inline_named(handle, READ_WRITE_MANY)
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
