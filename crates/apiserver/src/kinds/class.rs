//! StorageClass: who provisions, and when a claim of the class is bound; and VolumeAttributesClass, of which no more is read
//! than that it is there.

use serde::Deserialize;

use super::{Keep, Meta, ReclaimPolicy, meta::referenced};
use crate::protobuf::{enumeration, message};

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata.
    pub metadata: Meta,
    /// Who provisions volumes of this class.
    pub provisioner: String,
    /// When a claim is bound; the API server fills it in, so `None` is an error of the object.
    pub volume_binding_mode: Option<BindingMode>,
    /// Reclaim policy of volumes of this class; the API server fills it in.
    pub reclaim_policy: ReclaimPolicy,
    /// Mount options of volumes of this class.
    pub mount_options: Vec<String>,
}
message!(StorageClass {
    metadata: 1 by referenced,
    provisioner: 2,
    reclaim_policy: 4,
    mount_options: 5,
    volume_binding_mode: 7,
});

/// A VolumeAttributesClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub metadata: Meta,
}
message!(VolumeAttributesClass { metadata: 1 by referenced });

/// `volumeBindingMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum BindingMode {
    /// As soon as the claim exists.
    Immediate,
    /// When a pod that uses the claim is scheduled.
    WaitForFirstConsumer,
    /// A mode this version does not know.
    #[serde(other)]
    Unknown,
}
enumeration!(BindingMode);

impl Keep for StorageClass {
    fn trim(&mut self) {
        self.metadata.finalizers.clear();
        self.metadata.keep_owners(|_| false);
    }
}

impl Keep for VolumeAttributesClass {
    fn trim(&mut self) {
        self.metadata.keep_owners(|_| false);
    }
}
