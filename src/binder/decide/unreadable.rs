//! Objects that cannot be read, and the decisions that have to wait for them (S42): each decision about the
//! object itself, and those in which it has a say. What was known of it before may be of the past, and that
//! it is in no table says nothing.

use apiserver::{
    ids::ClassName,
    kinds::{ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, StorageClass},
    tables::{Objects, Stored},
};

use crate::binder::{
    annotations::{self, BIND_COMPLETED},
    matching::predicate::claim_class,
};

/// What cannot be read of that which decides about a claim: its class only if it has yet to find a volume.
pub(crate) fn for_claim(objects: &Objects, claim: &PersistentVolumeClaim) -> Option<String> {
    let is_open = claim.spec.volume_name.is_empty() && !annotations::has(&claim.metadata, BIND_COMPLETED);
    let class = is_open.then(|| ClassName::from(claim_class(claim)));
    of::<PersistentVolumeClaim>(objects, &claim.key())
        .or_else(|| of::<PersistentVolume>(objects, &claim.spec.volume_name))
        .or_else(|| of::<StorageClass>(objects, &class?))
}

/// What cannot be read of that which decides about a volume.
pub(crate) fn for_volume(objects: &Objects, volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    of::<PersistentVolume>(objects, &volume.key()).or_else(|| of::<PersistentVolumeClaim>(objects, &claim?))
}

fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<String> {
    let error = objects.unreadable::<T>(key)?;
    Some(format!("{}: {error}", T::object_ref(key.clone())))
}
