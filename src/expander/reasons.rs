//! What a claim waits for whose volume is to grow, as operators and users see it: tables only.

use apiserver::{
    events::{Event, EventType, Involved},
    ids::{ClaimKey, VolumeName},
    kinds::{Narrow, PersistentVolumeClaim},
};
use thiserror::Error;

use super::decide::Resizer;
use crate::{
    controller::{
        asked::Names,
        report::{Reason, ReportKey},
    },
    telemetry::transition::Named,
};

/// A claim, as one whose volume may have to grow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpandingClaim(pub ClaimKey);

/// Where the expansion of a claim's volume stands.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ExpansionReason {
    /// The volume need not grow, or only a kubelet is to expand its file system.
    #[error("")]
    Settled,
    /// That one is to expand it.
    #[error("{0}")]
    Waits(Resizer),
    /// The claim is Bound, and this volume is not its own.
    #[error("the volume {0} is not bound to this claim")]
    NotBound(VolumeName),
    /// The claim is Bound, and there is no such volume.
    #[error("the volume {0} does not exist")]
    Missing(VolumeName),
    /// The claim is Bound to a volume without a name.
    #[error("the claim is Bound and names no volume")]
    Unnamed,
    /// A size of the claim cannot be read (S42): what is wrong with it.
    #[error("a size of the claim cannot be read: {0}")]
    Malformed(String),
    /// The claim cannot be read (S42).
    #[error("the claim cannot be read")]
    Unreadable,
    /// A request failed, with the server's words: the patch of the claim, or the read of the volume.
    #[error("a request failed and is sent again after a pause: {error}")]
    Failed {
        /// Whether it was the patch.
        is_write: bool,
        /// The words.
        error: String,
    },
}

impl Reason for ExpansionReason {
    fn code(&self) -> &'static str {
        match self {
            Self::Settled => "Expanded",
            Self::Waits(Resizer::Migrated { .. } | Resizer::External) => "Resizing",
            Self::Waits(Resizer::FlexVolume) => "FlexVolumeUnsupported",
            Self::Waits(Resizer::Unknown) => "MalformedSource",
            Self::Waits(Resizer::Nobody) => "ExpansionUnsupported",
            Self::NotBound(_) | Self::Unnamed => "VolumeBoundElsewhere",
            Self::Missing(_) => "VolumeMissing",
            Self::Malformed(_) => "MalformedClaim",
            Self::Unreadable => "ObjectUnreadable",
            Self::Failed { .. } => "RetryBackoff",
        }
    }

    fn state(&self) -> &'static str {
        if self.is_settled() { "Expanded" } else { "Expanding" }
    }

    fn is_settled(&self) -> bool {
        *self == Self::Settled
    }
}

/// Reason of all events of kube-controller-manager about this.
const EXTERNAL_EXPANDING: &str = "ExternalExpanding";

impl ExpansionReason {
    /// What the claim's user is told.
    // KCM: pkg/controller/volume/expand/expand_controller.go, syncHandler.
    pub(super) fn event(&self, claim: &PersistentVolumeClaim) -> Option<Event> {
        let (r#type, reason, message) = match self {
            Self::Waits(Resizer::Migrated { plugin, .. }) => (
                EventType::Normal,
                EXTERNAL_EXPANDING,
                format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"),
            ),
            Self::Waits(Resizer::External | Resizer::Nobody) => (
                EventType::Normal,
                EXTERNAL_EXPANDING,
                "waiting for an external controller to expand this PVC".to_owned(),
            ),
            Self::Waits(Resizer::FlexVolume) => {
                (EventType::Warning, "FlexVolumeUnsupported", self.to_string())
            }
            Self::Failed { is_write: true, error } => (
                EventType::Warning,
                EXTERNAL_EXPANDING,
                format!(
                    "error setting resizer annotation to pvc {}, with error patchPVCStatus failed to patch PVC {:?}: \
                     {error}",
                    claim.key(),
                    claim.metadata.name.as_str()
                ),
            ),
            _ => return None,
        };
        Some(Event::new(Involved::object(claim), r#type, reason, message))
    }
}

impl ReportKey for ExpandingClaim {
    const KINDS: &'static [&'static str] = &["expanding_claim"];

    fn names(&self) -> Names {
        vec![("claim", self.0.to_string())]
    }

    fn named(&self) -> Named {
        Named::by(PersistentVolumeClaim::KIND, &self.0)
    }
}
