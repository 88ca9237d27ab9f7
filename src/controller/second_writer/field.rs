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
}

impl OwnedField {
    /// The field for people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::VolumesAttached => "status.volumesAttached",
            Self::AttachmentSpec => "spec",
            Self::Phase => "status.phase",
        }
    }

    /// Where a set of fields (`fieldsV1`) has it.
    pub(crate) fn pointer(self) -> &'static str {
        match self {
            Self::VolumesAttached => "/f:status/f:volumesAttached",
            Self::AttachmentSpec => "/f:spec",
            Self::Phase => "/f:status/f:phase",
        }
    }
}
