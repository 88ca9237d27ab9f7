//! The bind of one volume to one claim: four writes, of which this module gives the first that is
//! still to be made.
//!
//! In: both objects as they are. Out: a [`Write`], or nothing when all four are done. Nothing is
//! remembered between the steps, so a crash after any of them is recovered by looking again
//! (pv-binder §5.1). The order is safety: a claim that names a volume can rely on the volume naming
//! it (S21) and being protected by its phase.

use apiserver::{
    kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    text::TextMap,
};
use serde_json::{Value, json};

use crate::binder::{
    annotations::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, PRE_RESIZE_CAPACITY},
    calls::{Write, WriteKind},
    matching::{
        predicate::{STORAGE, held_by, refers_to},
        quantity::Quantity,
    },
    patches::{self, StatusChange},
};

/// Field of a claim's status: the VolumeAttributesClass in effect.
const ATTRIBUTES_CLASS: &str = "currentVolumeAttributesClassName";

/// A volume without size cannot be given to a claim (pv-binder §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCapacity;

/// The first of the four writes that is still missing.
///
/// The caller has made sure that the volume is not reserved for another claim.
///
/// # Errors
/// The volume has no size to write into the claim's status.
pub fn next_write(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<Option<Write>, NoCapacity> {
    let name = volume.key();
    if !held_by(volume, claim) {
        // KCM: component-helpers/storage/volume/pv_helpers.go, GetBindVolumeToClaim.
        let prebound = volume.spec.claim_ref.as_ref().is_some_and(|reference| refers_to(reference, claim));
        return Ok(Some(patches::reserve_volume(volume, claim, !prebound)));
    }
    if volume.status.phase != VolumePhase::Bound {
        return Ok(Some(patches::volume_phase(volume, VolumePhase::Bound, None)));
    }
    let names = claim.spec.volume_name == name;
    if !names || !annotations::has(&claim.metadata, BIND_COMPLETED) {
        return Ok(Some(patches::name_volume(claim, (!names).then_some(&name))));
    }
    let change = bound_status(claim, volume)?;
    Ok(change.map(|change| patches::claim_status(WriteKind::ClaimBound, claim, &change)))
}

/// The first write that undoes a bind the claim has not followed (pv-binder §5.3). A reservation by
/// name that a user made stays (S26).
pub fn undo(volume: &PersistentVolume) -> Write {
    let by_us = annotations::has(&volume.metadata, BOUND_BY_CONTROLLER);
    patches::unreserve_volume(volume, by_us)
}

/// What a claim bound to the volume has to show, if it does not yet (pv-binder §9).
///
/// # Errors
/// The phase is about to change and the volume has no size.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, updateClaimStatus.
pub fn bound_status(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<Option<StatusChange>, NoCapacity> {
    let (mut change, modes) = (StatusChange::new(), &volume.spec.access_modes);
    if claim.status.access_modes != *modes {
        change.insert("accessModes".to_owned(), if modes.is_empty() { Value::Null } else { json!(modes) });
    }
    // Only on the way to Bound: afterwards these fields are the resizer's (S31).
    if claim.status.phase != ClaimPhase::Bound {
        change.insert("phase".to_owned(), json!(ClaimPhase::Bound));
        if let Some(shown) = capacity(claim, volume)? {
            change.insert("capacity".to_owned(), patches::capacity(&claim.status.capacity, &shown));
        }
        let class = &volume.spec.volume_attributes_class_name;
        if claim.status.phase == ClaimPhase::Pending
            && claim.status.current_volume_attributes_class_name != *class
        {
            change.insert(ATTRIBUTES_CLASS.to_owned(), json!(class));
        }
    }
    Ok((!change.is_empty()).then_some(change))
}

/// What a claim without a volume has to show, if it does not yet.
pub fn unbound_status(claim: &PersistentVolumeClaim, phase: ClaimPhase) -> Option<StatusChange> {
    let status = &claim.status;
    let has = [
        ("accessModes", !status.access_modes.is_empty()),
        ("capacity", !status.capacity.is_empty()),
        (ATTRIBUTES_CLASS, status.current_volume_attributes_class_name.is_some()),
    ];
    let gone = has.into_iter().filter(|(_, has)| *has).map(|(field, _)| (field.to_owned(), Value::Null));
    let phase = (status.phase != phase).then(|| ("phase".to_owned(), json!(phase)));
    let change: StatusChange = gone.chain(phase).collect();
    (!change.is_empty()).then_some(change)
}

/// The capacity a claim has to show, if it differs. While the file system has yet to grow, only its size is the
/// volume's to tell; an old size that cannot be read is taken for the new one.
fn capacity(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<Option<TextMap>, NoCapacity> {
    let offered = volume.spec.capacity.get(STORAGE).ok_or(NoCapacity)?;
    let quantity = |text: &str| text.parse::<Quantity>().ok();
    let before_resize = volume.metadata.annotation(PRE_RESIZE_CAPACITY);
    let size = before_resize.filter(|text| quantity(text).is_some()).unwrap_or(offered);
    let shown = claim.status.capacity.get(STORAGE).and_then(|text| quantity(text));
    if shown.is_some() && shown == quantity(size) {
        return Ok(None);
    }
    if before_resize.is_none() {
        return Ok(Some(volume.spec.capacity.clone()));
    }
    let mut capacity = claim.status.capacity.clone();
    capacity.insert(STORAGE, size);
    Ok(Some(capacity))
}
