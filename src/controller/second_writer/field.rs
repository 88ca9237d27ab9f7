//! The fields that one controller alone should write, as people and as `metadata.managedFields` name them.

/// A field whose owner matters (S14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedField {
    /// `status.volumesAttached` of a Node.
    VolumesAttached,
    /// `spec` of a VolumeAttachment, which never changes: who owns it has created the object.
    AttachmentSpec,
    /// `status.phase` of a PersistentVolume or PersistentVolumeClaim.
    Phase,
    /// The finalizer of protection in `metadata.finalizers` of a PersistentVolumeClaim.
    ClaimFinalizer,
    /// Likewise of a PersistentVolume.
    VolumeFinalizer,
}

impl OwnedField {
    /// The field for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VolumesAttached => "status.volumesAttached",
            Self::AttachmentSpec => "spec",
            Self::Phase => "status.phase",
            Self::ClaimFinalizer | Self::VolumeFinalizer => "metadata.finalizers",
        }
    }

    /// Where a set of fields (`fieldsV1`) has it.
    #[must_use]
    pub fn pointer(self) -> &'static str {
        match self {
            Self::VolumesAttached => "/f:status/f:volumesAttached",
            Self::AttachmentSpec => "/f:spec",
            Self::Phase => "/f:status/f:phase",
            Self::ClaimFinalizer => "/f:metadata/f:finalizers/v:\"kubernetes.io~1pvc-protection\"",
            Self::VolumeFinalizer => "/f:metadata/f:finalizers/v:\"kubernetes.io~1pv-protection\"",
        }
    }
}
