//! What a volume source is to attach/detach: a CSI volume, one that is attached by saying so, or nothing.
//!
//! In: a PersistentVolume's spec, or a pod's volume without one. Out: [`Storage`], or the
//! [`SourceError`] that blocks this volume. The same function reads what pods lead to and what
//! VolumeAttachments were made of, so both come to the same identity (S9).

use apiserver::{
    ids::{DriverName, VolumeName},
    kinds::{CsiSource, Fc, InTreeSource, Iscsi, Meta, VolumeAttachment, VolumeSpec},
    tables::Objects,
    text::Text,
};

use super::{
    in_tree_migration::{self, InlineVolume, Migrated},
    source_error::SourceError,
    volume_name::VolumeId,
};
/// What a volume source is to attach/detach (attach-detach §2.3).
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// Attached by a VolumeAttachment.
    Csi(CsiVolume),
    /// Attached by saying so.
    NoOp(VolumeId, Sharing),
    /// Not supported.
    FlexVolume(DriverName),
    /// Never attached.
    NotAttachable,
}

impl Storage {
    /// Its unique volume name, if a kubelet waits for it to be attached.
    pub fn id(self) -> Option<VolumeId> {
        match self {
            Self::Csi(volume) => Some(volume.id),
            Self::NoOp(id, _) => Some(id),
            Self::NotAttachable | Self::FlexVolume(_) => None,
        }
    }
}

/// A CSI volume, or an in-tree one translated to CSI.
#[derive(Clone, Debug, PartialEq)]
pub struct CsiVolume {
    /// Driver, whose CSIDriver object may say that nothing is to be attached.
    pub driver: DriverName,
    /// Unique volume name.
    pub id: VolumeId,
    /// Whether several nodes may have it.
    pub sharing: Sharing,
    /// For a volume without PersistentVolume, the one made up for it.
    pub inline: Option<InlineVolume>,
}

impl CsiVolume {
    /// Whether it may be on one node only.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.sharing == Sharing::Exclusive
    }
}

/// Whether several nodes may have a volume at once (attach-detach §6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One node at a time.
    Exclusive,
    /// Any number of nodes.
    Shared,
}

impl Sharing {
    /// A volume is exclusive if it has access modes and none of them allows several nodes. A mode that
    /// is not known allows nothing.
    /// KCM: pkg/volume/util/util.go, `IsMultiAttachAllowed`, which sees translated volumes.
    pub(crate) fn of<'a>(access_modes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut any = false;
        for mode in access_modes {
            if mode == "ReadWriteMany" || mode == "ReadOnlyMany" {
                return Self::Shared;
            }
            any = true;
        }
        if any { Self::Exclusive } else { Self::Shared }
    }
}

/// What a PersistentVolume is, or the inline spec of a VolumeAttachment, which has the same type.
///
/// # Errors
/// If its source leads nowhere.
pub fn of_persistent_volume(metadata: &Meta, spec: &VolumeSpec) -> Result<Storage, SourceError> {
    let modes = &spec.access_modes;
    let sharing = Sharing::of(modes.iter().map(Text::as_str));
    match (&spec.csi, spec.in_tree.as_deref()) {
        (_, Some(source)) => {
            let claim = spec.claim_ref.as_ref();
            match in_tree_migration::persistent_volume(metadata, claim, modes, source)? {
                Some(migrated) => translated(migrated),
                None => not_migrated(source, sharing),
            }
        }
        (Some(CsiSource { driver, volume_handle }), None) => {
            csi(driver.clone(), volume_handle, sharing).map(Storage::Csi)
        }
        (None, None) => Ok(Storage::NotAttachable),
    }
}

/// The same, of CSI alone.
pub fn csi_volume(metadata: &Meta, spec: &VolumeSpec) -> Option<CsiVolume> {
    match of_persistent_volume(metadata, spec) {
        Ok(Storage::Csi(volume)) => Some(volume),
        _ => None,
    }
}

/// The CSI volume that a PersistentVolume stands for.
pub fn volume_of(objects: &Objects, name: &VolumeName) -> Option<CsiVolume> {
    let volume = objects.volumes.get(name)?;
    csi_volume(&volume.metadata, &volume.spec)
}

/// The CSI volume that the source of a VolumeAttachment names, be it a PersistentVolume or a spec of its own.
pub fn source_of(objects: &Objects, attachment: &VolumeAttachment) -> Option<CsiVolume> {
    let source = &attachment.spec.source;
    match (&source.persistent_volume_name, &source.inline_volume_spec) {
        (Some(name), _) => volume_of(objects, name),
        (None, inline) => csi_volume(&Meta::default(), inline.as_deref()?),
    }
}

/// What a volume is that a pod has without a PersistentVolume.
///
/// # Errors
/// If its source leads nowhere.
pub fn of_inline_volume(
    volume: &str,
    namespace: &str,
    source: &InTreeSource,
) -> Result<Storage, SourceError> {
    match in_tree_migration::inline_volume(volume, namespace, source)? {
        Some(migrated) => translated(migrated),
        // KCM knows the access modes of PersistentVolumes only.
        None => not_migrated(source, Sharing::Shared),
    }
}

fn translated(migrated: Migrated) -> Result<Storage, SourceError> {
    let sharing = Sharing::of(migrated.access_modes.iter().map(Text::as_str));
    let volume = csi(DriverName::from(migrated.driver), &migrated.handle, sharing)?;
    Ok(Storage::Csi(CsiVolume { inline: migrated.inline, ..volume }))
}

fn csi(driver: DriverName, handle: &str, sharing: Sharing) -> Result<CsiVolume, SourceError> {
    if driver.is_empty() || driver.as_str().contains('^') {
        return Err(SourceError::DriverName(driver.to_string()));
    }
    if handle.is_empty() {
        return Err(SourceError::NoHandle);
    }
    let id = VolumeId::csi(&driver, handle);
    Ok(CsiVolume { driver, id, sharing, inline: None })
}

fn not_migrated(source: &InTreeSource, sharing: Sharing) -> Result<Storage, SourceError> {
    match source {
        InTreeSource::Iscsi(source) => Ok(Storage::NoOp(iscsi(source)?, sharing)),
        InTreeSource::Fc(source) => Ok(Storage::NoOp(fc(source)?, sharing)),
        InTreeSource::FlexVolume(source) => Ok(Storage::FlexVolume(DriverName::from(source.driver.as_str()))),
        InTreeSource::Malformed(malformed) => {
            Err(SourceError::Unreadable { key: malformed.key, error: malformed.error.clone() })
        }
        _ => Ok(Storage::NotAttachable),
    }
}

fn iscsi(source: &Iscsi) -> Result<VolumeId, SourceError> {
    if source.target_portal.is_empty() || source.iqn.is_empty() {
        return Err(SourceError::NoHandle);
    }
    Ok(VolumeId::iscsi(&source.target_portal, &source.iqn, source.lun))
}

/// KCM: pkg/volume/fc/fc.go, `GetVolumeName`: target and unit come first, then the volume's identifiers.
fn fc(source: &Fc) -> Result<VolumeId, SourceError> {
    match source.lun {
        Some(lun) if !source.target_wwns.is_empty() => Ok(VolumeId::fc_target(&source.target_wwns, lun)),
        _ if !source.wwids.is_empty() => Ok(VolumeId::fc_wwids(&source.wwids)),
        _ => Err(SourceError::NoHandle),
    }
}
