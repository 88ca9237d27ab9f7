//! Objects whose newest revision cannot be read.
//!
//! In: what could be read of one (name, UID, revision, of a VolumeAttachment what it is about), and the error. Out: a marker
//! under its key, which blocks what would be decided about that object and nothing else (S42). What was known of it before is
//! kept, for to forget it would be to take it for deleted. The marker goes when a later revision can be
//! read, or when the object is gone.

use crate::{
    ids::{ResourceVersion, Uid},
    wire::AttachmentNames,
};

/// What is known of an object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// UID, if that can be read.
    pub uid: Option<Uid>,
    /// Revision that cannot be read, or the least that it can be.
    pub revision: ResourceVersion,
    /// What is wrong with it. Never any of its content, which may be secret.
    pub error: String,
    /// Of a VolumeAttachment, what it is about.
    pub names: AttachmentNames,
    /// Number of the last list that had it.
    pub(super) listed: u32,
}
