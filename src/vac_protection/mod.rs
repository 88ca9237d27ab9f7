//! `volumeattributesclass-protection-controller`: a VolumeAttributesClass stays while a claim or a volume names it
//! (pv-binder §15.5).
//!
//! In: classes, claims and volumes from the shared tables. Out: patches that put the finalizer on each class, or take it
//! off one that is being deleted. It is [`crate::controller::finalizer`]; what uses a class is in [`users`]. Off by
//! default: kube-controller-manager runs its own. That one looks in its informers only, and may be too early; this one
//! takes a finalizer off only after live lists that show no use.

pub mod users;

use apiserver::{ids::AttributesClassName, kinds::VolumeAttributesClass};

use crate::controller::finalizer::{Protected, protection::Protection};

/// The controller.
pub type AttributesClassProtection = Protection<AttributesClassName>;

impl Protected for AttributesClassName {
    type Object = VolumeAttributesClass;
    type Users = users::ClassUsers;

    // KCM: pkg/volume/util/finalizer.go, VACProtectionFinalizer.
    const FINALIZER: &str = "kubernetes.io/vac-protection";
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const NAME: &str = "volumeattributesclass-protection-controller";
    const QUEUES: &[&str] = &["vacprotection"];
    const KIND: &str = "protected_vac";
    const FIELD: &str = "vac";
}

#[cfg(test)]
mod tests;
