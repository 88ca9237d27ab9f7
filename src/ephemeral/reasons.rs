//! Why the claims of a pod's generic ephemeral volumes are not there, as operators and users see it: tables only.

use apiserver::{
    events::{Event, EventType, Involved},
    ids::{ClaimKey, PodKey},
    kinds::{Narrow, Pod},
    text::Text,
};
use thiserror::Error;

use crate::{
    controller::{
        asked::Names,
        report::{Reason, ReportKey},
    },
    telemetry::transition::Named,
};

/// Where the claims of a pod stand.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EphemeralReason {
    /// All of them exist.
    #[error("")]
    Settled,
    /// The claim that the volume is named after is not the pod's.
    #[error("the claim {1} exists and is not the pod's")]
    NotOwned(Text, ClaimKey),
    /// Others delete the claim of the volume each time: it is created again after a pause (S46).
    #[error("the claim {1} is deleted each time, and is created again after a pause")]
    Undone(Text, ClaimKey),
    /// That object cannot be read (S42).
    #[error("{0} cannot be read")]
    Unreadable(String),
    /// A request for the claim of the volume failed: what it was to do, and the server's words.
    #[error("a request failed and is sent again after a pause: {1}")]
    Failed(Text, String),
}

impl Reason for EphemeralReason {
    fn code(&self) -> &'static str {
        match self {
            Self::Settled => "Created",
            Self::NotOwned(..) => "ClaimNotOwnedByPod",
            Self::Undone(..) => "WriteUndone",
            Self::Unreadable(_) => "ObjectUnreadable",
            Self::Failed(..) => "RetryBackoff",
        }
    }

    fn state(&self) -> &'static str {
        if self.is_settled() { "Created" } else { "Missing" }
    }

    fn is_settled(&self) -> bool {
        *self == Self::Settled
    }
}

impl EphemeralReason {
    /// What the pod's user is told.
    // KCM: pkg/controller/volume/ephemeral/controller.go, syncHandler, and component-helpers, VolumeIsForPod.
    pub(super) fn event(&self, pod: &Pod) -> Option<Event> {
        let (volume, why) = match self {
            Self::NotOwned(volume, claim) => {
                let pod = pod.key();
                (volume, format!("PVC {claim} was not created for pod {pod} (pod is not owner)"))
            }
            // KCM creates it again at the pace of who deletes it.
            Self::Undone(volume, claim) => {
                (volume, format!("PVC {claim} is deleted each time, and is created again after a pause"))
            }
            Self::Failed(volume, why) => (volume, why.clone()),
            Self::Settled | Self::Unreadable(_) => return None,
        };
        let reason = if matches!(self, Self::Undone(..)) { "WriteUndone" } else { "FailedBinding" };
        let message = format!("ephemeral volume {volume}: {why}");
        // A server may count in its words.
        let subject = Some(format!("ephemeral volume {volume}").into());
        Some(Event { subject, ..Event::new(Involved::object(pod), EventType::Warning, reason, message) })
    }
}

impl ReportKey for PodKey {
    const KINDS: &'static [&'static str] = &["ephemeral_volumes"];

    fn names(&self) -> Names {
        vec![("pod", self.to_string())]
    }

    fn named(&self) -> Named {
        Named::by(Pod::KIND, self)
    }
}
