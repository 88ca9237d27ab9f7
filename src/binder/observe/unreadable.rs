//! Objects that cannot be read, and the decisions that have to wait for them (S42): each decision about the
//! object itself, and those in which it has a say. What was known of it before may be of the past, and that
//! it is in no table says nothing.

use crate::{
    binder::{
        matching::predicate::{claim_class, volume_class},
        planner::Planner,
    },
    kube_api::{
        ids::ClassName,
        kinds::{ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, StorageClass},
    },
};

impl Planner {
    /// What cannot be read of that which decides about a claim.
    pub(crate) fn unreadable_for_claim(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let volume = &claim.spec.volume_name;
        let class = claim_class(claim);
        self.unreadable::<PersistentVolumeClaim>(&claim.key())
            .or_else(|| self.unreadable::<PersistentVolume>(volume))
            .or_else(|| self.unreadable::<StorageClass>(&ClassName::from(class)))
    }

    /// What cannot be read of that which decides about a volume.
    pub(crate) fn unreadable_for_volume(&self, volume: &PersistentVolume) -> Option<String> {
        let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
        self.unreadable::<PersistentVolume>(&volume.key())
            .or_else(|| claim.and_then(|key| self.unreadable::<PersistentVolumeClaim>(&key)))
            .or_else(|| self.unreadable::<StorageClass>(&ClassName::from(volume_class(volume))))
    }

    fn unreadable<T: crate::state::Stored>(&self, key: &T::Key) -> Option<String> {
        let error = self.objects.unreadable::<T>(key)?;
        Some(format!("{}: {error}", T::object_ref(key.clone())))
    }
}
