//! What a write of one of the storage loops changes, whoever makes it: the terms in which mooring's writes and the ruler's are
//! compared.
//!
//! One write may make several mutations (a list of a node that gains two volumes), and two controllers may distribute the
//! same mutations over different writes. So mutations are compared, and not writes.

use std::fmt;

use apiserver::{
    ids::{NodeName, Uid, VolumeName},
    kinds::ObjectRef,
};
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use crate::config::StorageController;

/// What changes. Its name is the value of a label and of fields of the summary.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, Serialize, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum MutationKind {
    /// A VolumeAttachment is created.
    Attach,
    /// A VolumeAttachment is deleted.
    Detach,
    /// A node's `volumesAttached` gains a volume.
    List,
    /// It loses one.
    Unlist,
    /// A volume is given to a claim.
    Reserve,
    /// A volume's reference to a claim, or its UID, goes.
    Unreserve,
    /// A claim names its volume.
    NameVolume,
    /// The phase of a volume.
    VolumePhase,
    /// The phase of a claim.
    ClaimPhase,
    /// A claim gets the default class.
    AssignClass,
    /// A claim is handed to its provisioner.
    AskProvisioner,
    /// A volume is marked for the driver that acts for it, or protected until that has deleted it.
    Annotate,
    /// A volume goes.
    DeleteVolume,
    /// A protection finalizer goes on.
    Protect,
    /// A protection finalizer goes off.
    Unprotect,
    /// The claim of a generic ephemeral volume is made.
    CreateClaim,
    /// A claim is handed to its resizer.
    AskResizer,
}

impl MutationKind {
    /// What was done, before the name of the object.
    fn verb(self) -> &'static str {
        match self {
            Self::Attach => "creates the attachment",
            Self::Detach => "deletes the attachment",
            Self::List => "lists as attached",
            Self::Unlist => "takes off the list",
            Self::Reserve => "gives a volume to",
            Self::Unreserve => "takes the claim off",
            Self::NameVolume => "names the volume in",
            Self::VolumePhase | Self::ClaimPhase => "sets the phase of",
            Self::AssignClass => "gives the default class to",
            Self::AskProvisioner => "asks the provisioner for",
            Self::Annotate => "marks",
            Self::DeleteVolume => "deletes",
            Self::Protect => "puts the finalizer on",
            Self::Unprotect => "takes the finalizer off",
            Self::CreateClaim => "creates",
            Self::AskResizer => "asks the resizer for",
        }
    }
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutation {
    /// What changes.
    pub kind: MutationKind,
    /// The object; of [`MutationKind::Reserve`] the claim, whichever volume it gets.
    pub object: ObjectRef,
    /// Its UID; empty for one that is created.
    pub uid: Uid,
    /// The node, if it is about one.
    pub node: Option<NodeName>,
    /// The new value, or what is added or removed.
    pub value: String,
    /// The volume that was chosen, where there was a choice.
    pub volume: Option<VolumeName>,
}

impl Mutation {
    /// One of an object.
    pub fn new(kind: MutationKind, object: ObjectRef, uid: &Uid, value: impl Into<String>) -> Self {
        Self { kind, object, uid: uid.clone(), node: None, value: value.into(), volume: None }
    }

    /// The same on a node.
    #[must_use]
    pub fn on(self, node: &NodeName) -> Self {
        Self { node: Some(node.clone()), ..self }
    }

    /// Whichever volume is chosen: what is equal is the same change.
    pub(super) fn key(&self) -> Self {
        Self { volume: None, ..self.clone() }
    }

    /// Whose it is to make.
    pub fn controller(&self) -> StorageController {
        use MutationKind as Kind;
        match self.kind {
            Kind::Attach | Kind::Detach | Kind::List | Kind::Unlist => StorageController::AttachDetach,
            Kind::Protect | Kind::Unprotect => match self.object {
                ObjectRef::Claim(_) => StorageController::ClaimProtection,
                ObjectRef::Volume(_) => StorageController::VolumeProtection,
                _ => StorageController::AttributesClassProtection,
            },
            Kind::CreateClaim => StorageController::EphemeralVolumes,
            Kind::AskResizer => StorageController::Expander,
            Kind::Reserve
            | Kind::Unreserve
            | Kind::NameVolume
            | Kind::VolumePhase
            | Kind::ClaimPhase
            | Kind::AssignClass
            | Kind::AskProvisioner
            | Kind::Annotate
            | Kind::DeleteVolume => StorageController::Binder,
        }
    }
}

/// `deletes the attachment volumeattachment/csi-1 on node/n1`
impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.verb())?;
        match (self.kind, &self.node) {
            (MutationKind::List | MutationKind::Unlist, Some(node)) => {
                write!(f, "{} of node/{node}", self.value)
            }
            (_, Some(node)) => write!(f, "{} on node/{node}", self.object),
            (_, None) if self.value.is_empty() => write!(f, "{}", self.object),
            (_, None) => write!(f, "{}: {}", self.object, self.value),
        }
    }
}
