//! The requests of the protection controllers as values, and what can come back.

use apiserver::{
    call::Request,
    ids::{ClaimKey, Uid, VolumeName},
    kinds::{PersistentVolume, PersistentVolumeClaim},
};
use serde::Deserialize;

use super::finalizer::FinalizerStep;
/// A request of one of the two.
#[derive(Clone, Debug)]
pub enum Call {
    /// Patch a claim.
    Claim(ClaimKey, FinalizerStep, Request),
    /// Patch a volume.
    Volume(VolumeName, FinalizerStep, Request),
    /// Read who put the finalizer on the claim of this UID.
    ClaimOwner(ClaimKey, Uid),
    /// Likewise on a volume.
    VolumeOwner(VolumeName, Uid),
    /// List the pods of a namespace live, for the claims of these UIDs.
    Pods(String, Vec<(ClaimKey, Uid)>),
}

/// What came back.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A claim.
    Claim(PersistentVolumeClaim),
    /// A volume.
    Volume(PersistentVolume),
    /// The managers that own the finalizer.
    Owners(Vec<String>),
    /// All pods of the namespace.
    Pods(Vec<ListedPod>),
}

/// A pod as a live list shows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ListedPod {
    /// Metadata.
    pub metadata: ListedMeta,
    /// Spec.
    pub spec: ListedSpec,
}

/// Of its metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListedMeta {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
    /// Set of one that is being deleted.
    pub deletion_timestamp: Option<String>,
    /// 0 of one whose containers are gone for good.
    pub deletion_grace_period_seconds: Option<i64>,
}

/// Of its spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListedSpec {
    /// Empty until it is scheduled.
    pub node_name: String,
    /// Volumes.
    pub volumes: Vec<ListedVolume>,
}

/// Of a volume of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListedVolume {
    /// Name within the pod.
    pub name: String,
    /// A claim by name.
    pub persistent_volume_claim: Option<ListedClaim>,
    /// A claim of the pod's own.
    pub ephemeral: Option<serde::de::IgnoredAny>,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListedClaim {
    /// Its name.
    pub claim_name: String,
}
