//! Objects that cannot be read, and the decisions that have to wait for them (S42): each decision about the
//! object itself, and those in which it has a say. What was known of it before may be of the past, and that
//! it is in no table says nothing.

use apiserver::{
    ids::{ClaimKey, ClassName, Uid},
    kinds::{
        ClaimPhase, ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, StorageClass,
        VolumePhase,
    },
    tables::{Objects, Stored},
};

use crate::binder::{
    annotations::{self, BIND_COMPLETED},
    calls::{Call, Directory, WriteKind},
    matching::predicate::claim_class,
};

/// What cannot be read of that which decides about a claim: its class only if it has yet to find a volume; the owner of
/// the volume that it names only if it may be another's.
pub(crate) fn for_claim(objects: &Objects, claim: &PersistentVolumeClaim) -> Option<String> {
    let is_open_or_lost = claim.status.phase != ClaimPhase::Bound;
    let named = || objects.volumes.get(&claim.spec.volume_name).filter(|_| is_open_or_lost);
    let is_open = claim.spec.volume_name.is_empty() && !annotations::has(&claim.metadata, BIND_COMPLETED);
    let class = is_open.then(|| ClassName::from(claim_class(claim)));
    of::<PersistentVolumeClaim>(objects, &claim.key())
        .or_else(|| of::<PersistentVolume>(objects, &claim.spec.volume_name))
        .or_else(|| of::<StorageClass>(objects, &class?))
        .or_else(|| owner(objects, named().filter(|volume| volume.spec.claim_ref.is_none())?.as_ref(), None))
}

/// What cannot be read of that which decides about a volume.
pub(crate) fn for_volume(objects: &Objects, volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    of::<PersistentVolume>(objects, &volume.key())
        .or_else(|| of::<PersistentVolumeClaim>(objects, &claim?))
        .or_else(|| volume.spec.claim_ref.is_none().then(|| owner(objects, volume, None))?)
}

/// What cannot be read of that which decides whether this step gives a volume up, or its data. Only a claim with the UID of
/// its claimRef keeps one from its release that is kept anyway (Retain, S45).
pub(crate) fn for_step(objects: &Objects, volume: &PersistentVolume, step: &Call) -> Option<String> {
    use WriteKind::{CreatePod, DeleteVolume, StartPod, Unbind, VolumeAvailable, VolumeReleased};
    let kind = step.write_kind();
    let is_kept = kind == Some(VolumeReleased) && volume.spec.reclaim_policy == ReclaimPolicy::Retain;
    let only = volume.spec.claim_ref.as_ref().filter(|_| is_kept).map(|reference| &reference.uid);
    let gives_up = match step {
        Call::Directory(directory) => matches!(directory, Directory::Remove(_)),
        _ => matches!(kind?, VolumeReleased | VolumeAvailable | Unbind | CreatePod | StartPod | DeleteVolume),
    };
    owner(objects, volume, only).filter(|_| gives_up)
}

/// A claim that may have a volume which refers to none, or which is given up, though its phase says that it was a claim's
/// (S45): one of which no revision could be read that says what it names, or the one of this UID. Whose claim that is, the
/// text does not tell (S41).
fn owner(objects: &Objects, volume: &PersistentVolume, only: Option<&Uid>) -> Option<String> {
    let is_free = matches!(volume.status.phase, VolumePhase::Pending | VolumePhase::Available);
    if is_free {
        return None;
    }
    let is_unknown =
        |key: &ClaimKey| objects.claims.get(key).is_none_or(|claim| claim.spec.volume_name.is_empty());
    let is_it = |uid: Option<&Uid>| only.is_none_or(|only| uid.is_none_or(|uid| uid == only));
    let mut all = objects.claims.all_unreadable().into_iter();
    let (_, unreadable) = all.find(|(key, claim)| is_unknown(key) && is_it(claim.uid.as_ref()))?;
    Some(format!("a claim that may have {}: {}", volume.key(), unreadable.error))
}

fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<String> {
    let error = objects.unreadable::<T>(key)?;
    Some(format!("{}: {error}", T::object_ref(key.clone())))
}
