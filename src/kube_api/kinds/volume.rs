//! PersistentVolume: what it is, whom it is for, and how far it got.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Meta;
use crate::kube_api::ids::{ClaimKey, DriverName, Uid};

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: VolumeSpec,
    /// Status.
    pub status: VolumeStatus,
}

/// `spec` of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// Capacity by resource name, as written (quantities).
    pub capacity: BTreeMap<String, String>,
    /// Access modes, in the object's order.
    pub access_modes: Vec<String>,
    /// The claim this volume is bound to or reserved for.
    pub claim_ref: Option<ClaimRef>,
    /// What happens when the claim is gone.
    #[serde(rename = "persistentVolumeReclaimPolicy")]
    pub reclaim_policy: ReclaimPolicy,
    /// Class; the beta annotation overrides it.
    pub storage_class_name: Option<String>,
    /// `Filesystem` (also when absent) or `Block`.
    pub volume_mode: Option<String>,
    /// VolumeAttributesClass.
    pub volume_attributes_class_name: Option<String>,
    /// CSI source.
    pub csi: Option<CsiSource>,
}

/// `spec.claimRef`: an object reference, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRef {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim; empty while somebody only reserved the volume by name.
    pub uid: Uid,
}

impl ClaimRef {
    /// The claim's key.
    #[must_use]
    pub fn key(&self) -> ClaimKey {
        ClaimKey::new(&self.namespace, &self.name)
    }
}

/// `spec.csi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// Driver.
    pub driver: DriverName,
    /// The driver's name of the volume.
    pub volume_handle: String,
}

/// `spec.persistentVolumeReclaimPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// Keep the data until an administrator acts.
    #[default]
    Retain,
    /// Delete the storage.
    Delete,
    /// Scrub and reuse (deprecated).
    Recycle,
    /// A value this version does not know.
    Other(String),
}

impl<'de> Deserialize<'de> for ReclaimPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(deserializer)?.as_str() {
            "Retain" | "" => Self::Retain,
            "Delete" => Self::Delete,
            "Recycle" => Self::Recycle,
            other => Self::Other(other.to_owned()),
        })
    }
}

/// `status` of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// Phase.
    pub phase: VolumePhase,
    /// Human-readable detail of the phase.
    pub message: String,
}

/// `status.phase` of a PersistentVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum VolumePhase {
    /// Not looked at yet.
    #[default]
    #[serde(alias = "")]
    Pending,
    /// Free.
    Available,
    /// Bound to a claim.
    Bound,
    /// Its claim is gone.
    Released,
    /// Reclaiming failed.
    Failed,
    /// A phase this version does not know.
    #[serde(other)]
    Unknown,
}

impl VolumePhase {
    /// As written in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}
