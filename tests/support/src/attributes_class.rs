//! VolumeAttributesClass of storage.k8s.io/v1, which the types that the tests are built with do not have.

use std::collections::BTreeMap;

use k8s_openapi::{ClusterResourceScope, Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

/// A class of volume attributes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeAttributesClass {
    pub metadata: ObjectMeta,
    pub driver_name: String,
    pub parameters: BTreeMap<String, String>,
}

impl VolumeAttributesClass {
    /// Whether it is there, and has the finalizer of protection.
    pub fn is_protected(class: Option<&Self>) -> bool {
        let finalizers = class.and_then(|class| class.metadata.finalizers.as_ref());
        finalizers.is_some_and(|all| all.iter().any(|one| one == "kubernetes.io/vac-protection"))
    }
}

impl Resource for VolumeAttributesClass {
    const API_VERSION: &'static str = "storage.k8s.io/v1";
    const GROUP: &'static str = "storage.k8s.io";
    const KIND: &'static str = "VolumeAttributesClass";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "volumeattributesclasses";
    type Scope = ClusterResourceScope;
}

impl Metadata for VolumeAttributesClass {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
