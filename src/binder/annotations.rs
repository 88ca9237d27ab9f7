//! Annotation keys the binder reads or writes, with the short names of pv-binder.md.

use apiserver::kinds::Meta;

pub use crate::controller::in_tree::csi_name;

/// BC, on claims: the claim has been bound once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// BBC, on claims and volumes: this object's link to the other was made by the binder.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// SELNODE, on claims: the scheduler asks for provisioning. The key's presence counts.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// DYN, on volumes: who provisioned it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// MIG, on volumes: the CSI driver that acts for a migrated in-tree plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// SP, on claims: which external provisioner is asked.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// SPB, on claims: the beta name of [`STORAGE_PROVISIONER`]; both are written together.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// SCB: legacy class name; wins over the spec when the key exists.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// PRERESIZE, on volumes: the size the file system still has.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// Marks a default class, and its beta name.
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
/// The in-tree plugin that is known, recycles, and neither provisions nor deletes.
pub const NFS_PLUGIN: &str = "kubernetes.io/nfs";
/// The in-tree plugin of directories on a node.
pub const HOST_PATH_PLUGIN: &str = "kubernetes.io/host-path";
/// The value the binder gives to its markers; readers look for the key only.
pub const YES: &str = "yes";

/// Whether an annotation is there, with any value.
pub fn has(meta: &Meta, key: &str) -> bool {
    meta.annotation(key).is_some()
}

/// Whether a class is marked as default.
pub fn is_default_class(meta: &Meta) -> bool {
    DEFAULT_CLASS.iter().any(|key| meta.annotation(key) == Some("true"))
}

/// Whether a provisioner's name is that of a plugin compiled into Kubernetes which no CSI driver took over.
pub fn is_in_tree(provisioner: &str) -> bool {
    provisioner.starts_with("kubernetes.io/") && csi_name(provisioner).is_none()
}
