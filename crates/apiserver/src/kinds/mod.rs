//! Narrow kinds: of each watched kind only the fields that a decision reads. Everything else
//! (containers, environment, managed fields) is skipped while parsing and costs no memory.
//!
//! Field names are those of the API. The types are read-only: what is written goes out as a merge
//! patch that names single fields, so a field that is missing here can never be erased by us (S34).

mod attachment;
mod claim;
mod class;
mod csi;
mod each;
mod meta;
mod node;
mod patched;
mod pod;
mod source;
mod template;
mod volume;

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    hash::Hash,
};

use educe::Educe;
use serde::de::DeserializeOwned;

pub use attachment::{AttachmentSource, AttachmentSpec, AttachmentStatus, VolumeAttachment, VolumeError};
pub use claim::{
    ClaimPhase, ClaimResources, ClaimSpec, ClaimStatus, LabelExpression, LabelSelector, ModifyVolumeStatus,
    PersistentVolumeClaim, ResizeStep,
};
pub use class::{BindingMode, StorageClass, VolumeAttributesClass};
pub use csi::{CsiDriver, CsiDriverSpec};
pub use meta::{Meta, OwnerReference};
pub use node::{AttachedVolume, Node, NodeCondition, NodeInfo, NodeSpec, NodeStatus, Taint};
pub use pod::{
    ClaimSource, Pod, PodPhase, PodSpec, PodStatus, PodVolume, PodVolumeSource, Present, RECYCLER_PREFIX,
};
pub use source::{
    AwsElasticBlockStore, AzureDisk, AzureFile, Cinder, Fc, FlexVolume, GcePersistentDisk, InTreeSource,
    Iscsi, Malformed, PortworxVolume, VsphereVolume,
};
pub use template::ClaimTemplate;
pub use volume::{
    ClaimRef, CsiSource, FileSource, HostPathSource, NfsSource, PersistentVolume, ReclaimPolicy, VolumePhase,
    VolumeSpec, VolumeStatus,
};

use super::ids::{
    AttachmentName, AttributesClassName, ClaimKey, ClassName, DriverName, NamespacedName, NodeName, PodKey,
    VolumeName,
};
use super::protobuf::FromProtobuf;
use crate::{with_kind, with_object};

/// Which object of a watched kind: what a change notice carries and what tables are keyed by.
#[derive(Clone, Debug, Educe, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[educe(Default)]
pub enum ObjectRef {
    /// A Node. The least, for a relation to objects.
    #[educe(Default)]
    Node(NodeName),
    /// A Pod.
    Pod(PodKey),
    /// A PersistentVolume.
    Volume(VolumeName),
    /// A PersistentVolumeClaim.
    Claim(ClaimKey),
    /// A VolumeAttachment.
    Attachment(AttachmentName),
    /// A StorageClass.
    Class(ClassName),
    /// A CSIDriver.
    Driver(DriverName),
    /// A VolumeAttributesClass.
    AttributesClass(AttributesClassName),
}

impl ObjectRef {
    /// The object of such a resource name in URLs; a kind that is not watched has none.
    pub fn named(plural: &str, namespace: &str, name: &str) -> Option<Self> {
        let metadata = Meta { name: name.into(), namespace: namespace.into(), ..Meta::default() };
        with_kind!(PLURAL = plural, |Kind| Some(Kind::object_ref(Kind::key_of(&metadata))), else None)
    }

    /// Its kind, as in `kind:`.
    pub fn kind(&self) -> &'static str {
        with_object!(self, |_key: Kind| Kind::KIND)
    }

    /// Its namespace, if it has one, and its name.
    pub fn names(&self) -> (Option<&str>, &str) {
        with_object!(self, |key: Kind| Kind::names(key))
    }

    /// Its URL path.
    pub fn path(&self) -> String {
        with_object!(self, |key: Kind| Kind::path(key))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_object!(self, |key: Kind| write!(f, "{}/{key}", Kind::SHORT))
    }
}

/// Whether an object of one of the kinds here can have that name (`IsDNS1123Subdomain`).
fn is_subdomain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().next_back()];
        ends.iter().all(|end| end.is_some_and(is_letter))
            && label.bytes().all(|byte| is_letter(byte) || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// What is kept of an object that was read.
pub trait Keep {
    /// Drops what was read and is not asked for, and the room for more.
    fn trim(&mut self);

    /// Whether templates of claims are in it, which are not kept with it.
    fn has_templates(&self) -> bool {
        false
    }

    /// Whether any rule asks for the object. One that has become irrelevant is as good as deleted.
    fn is_relevant(&self) -> bool {
        true
    }
}

/// A watched kind.
pub trait Narrow:
    DeserializeOwned + FromProtobuf + Keep + Clone + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// What identifies one object of the kind.
    type Key: Clone + Eq + Ord + Hash + fmt::Debug + fmt::Display + Send + Sync + 'static;
    /// API group, empty for core.
    const GROUP: &'static str;
    /// Kind, as in `kind:`.
    const KIND: &'static str;
    /// Resource name in URLs.
    const PLURAL: &'static str;
    /// What stands before the name in messages.
    const SHORT: &'static str;

    /// The object's metadata.
    fn metadata(&self) -> &Meta;
    /// The identity of an object with that metadata, of which name and namespace are enough.
    fn key_of(metadata: &Meta) -> Self::Key;
    /// The object's identity.
    fn key(&self) -> Self::Key {
        Self::key_of(self.metadata())
    }
    /// The change notice for an object of this kind.
    fn object_ref(key: Self::Key) -> ObjectRef;
    /// The identity in a change notice, if that is for an object of this kind.
    fn key_in(object: &ObjectRef) -> Option<&Self::Key>;
    /// The namespace of an object, if it has one, and its name.
    fn names(key: &Self::Key) -> (Option<&str>, &str);
    /// URL path of one object (all kinds we use are `v1`). What no object's name can have is escaped.
    fn path(key: &Self::Key) -> String {
        let (root, plural) = (api_root(Self::GROUP), Self::PLURAL);
        match Self::names(key) {
            (None, name) => format!("{root}/{plural}/{}", segment(name)),
            (Some(namespace), name) => {
                format!("{root}/namespaces/{}/{plural}/{}", segment(namespace), segment(name))
            }
        }
    }
    /// Whether an object can have that name: the API server takes any text where an object names another.
    fn is_possible(key: &Self::Key) -> bool {
        let (namespace, name) = Self::names(key);
        is_subdomain(name) && namespace.is_none_or(is_subdomain)
    }
}

macro_rules! narrow {
    ($kind:ty, $key:ident, $variant:ident, $group:literal, [$name:literal, $plural:literal, $short:literal], cluster) => {
        narrow!(@ $kind, $key, $variant, $group, [$name, $plural, $short],
            |meta: &Meta| $key::from(meta.name.clone()),
            |key: &$key| (None, key.as_str()));
    };
    ($kind:ty, $key:ident, $variant:ident, $group:literal, [$name:literal, $plural:literal, $short:literal], namespaced) => {
        narrow!(@ $kind, $key, $variant, $group, [$name, $plural, $short],
            |meta: &Meta| $key(NamespacedName { namespace: meta.namespace.clone(), name: meta.name.clone() }),
            |key: &$key| (Some(key.namespace()), key.name()));
    };
    (@ $kind:ty, $key:ident, $variant:ident, $group:literal, [$name:literal, $plural:literal, $short:literal], $of:expr, $names:expr) => {
        impl Narrow for $kind {
            type Key = $key;
            const GROUP: &'static str = $group;
            const KIND: &'static str = $name;
            const PLURAL: &'static str = $plural;
            const SHORT: &'static str = $short;

            fn metadata(&self) -> &Meta {
                &self.metadata
            }
            fn key_of(metadata: &Meta) -> $key {
                let of: fn(&Meta) -> $key = $of;
                of(metadata)
            }
            fn object_ref(key: $key) -> ObjectRef {
                ObjectRef::$variant(key)
            }
            fn key_in(object: &ObjectRef) -> Option<&$key> {
                if let ObjectRef::$variant(key) = object { Some(key) } else { None }
            }
            fn names(key: &$key) -> (Option<&str>, &str) {
                let names: fn(&$key) -> (Option<&str>, &str) = $names;
                names(key)
            }
        }
    };
}

narrow!(Node, NodeName, Node, "", ["Node", "nodes", "node"], cluster);
narrow!(Pod, PodKey, Pod, "", ["Pod", "pods", "pod"], namespaced);
narrow!(PersistentVolume, VolumeName, Volume, "", ["PersistentVolume", "persistentvolumes", "pv"], cluster);
narrow!(
    PersistentVolumeClaim,
    ClaimKey,
    Claim,
    "",
    ["PersistentVolumeClaim", "persistentvolumeclaims", "pvc"],
    namespaced
);
narrow!(
    VolumeAttachment,
    AttachmentName,
    Attachment,
    "storage.k8s.io",
    ["VolumeAttachment", "volumeattachments", "volumeattachment"],
    cluster
);
narrow!(
    StorageClass,
    ClassName,
    Class,
    "storage.k8s.io",
    ["StorageClass", "storageclasses", "storageclass"],
    cluster
);
narrow!(CsiDriver, DriverName, Driver, "storage.k8s.io", ["CSIDriver", "csidrivers", "csidriver"], cluster);
narrow!(
    VolumeAttributesClass,
    AttributesClassName,
    AttributesClass,
    "storage.k8s.io",
    ["VolumeAttributesClass", "volumeattributesclasses", "volumeattributesclass"],
    cluster
);

/// A name as a part of a path, which leads to no other object.
fn segment(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if name.bytes().all(is_plain) && !matches!(name, "." | "..") {
        return Cow::Borrowed(name);
    }
    let mut escaped = String::with_capacity(3 * name.len());
    for byte in name.bytes() {
        let _ = write!(escaped, "%{byte:02X}");
    }
    Cow::Owned(escaped)
}

/// URL path below which the `v1` resources of a group live.
pub fn api_root(group: &str) -> String {
    if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") }
}
