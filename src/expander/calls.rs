//! The requests of the expander as values, how each is sent, and what can come back.

use apiserver::{
    call::{CallError, Caller, Request},
    ids::VolumeName,
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
};
use serde_json::json;

use super::{decide::Expansion, reasons::ExpandingClaim};
use crate::controller::requests::Sent;

/// On a claim: the driver that is to expand its volume.
// KCM: pkg/volume/util/types/types.go, VolumeResizerKey.
pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";

/// A request.
#[derive(Clone, Debug)]
pub enum Call {
    /// Read the volume that the claim names.
    Volume(ExpandingClaim, Expansion, VolumeName),
    /// Write who is to expand it.
    Annotate(ExpandingClaim, Request),
}

/// What came back.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The volume.
    Volume(PersistentVolume),
    /// The claim.
    Claim(PersistentVolumeClaim),
}

/// The patch that names the driver, and nothing else.
// KCM: pkg/volume/util/resize_util.go, SetClaimResizer.
pub fn annotate(claim: &PersistentVolumeClaim, driver: &str) -> Request {
    let path = format!("{}/status", PersistentVolumeClaim::path(&claim.key()));
    Request::patch(
        path,
        &claim.metadata,
        json!({ "metadata": { "annotations": { STORAGE_RESIZER: driver } } }),
    )
}

impl Sent for Call {
    type Answer = Answer;

    async fn send(&self, caller: &Caller) -> Result<Answer, CallError> {
        match self {
            Self::Volume(_, _, name) => caller.get(name).await.map(Answer::Volume),
            Self::Annotate(_, request) => caller.write(request).await.map(Answer::Claim),
        }
    }

    fn key(&self) -> String {
        let (Self::Volume(claim, ..) | Self::Annotate(claim, _)) = self;
        claim.0.to_string()
    }

    fn failed(&self) -> String {
        match self {
            Self::Volume(_, _, volume) => format!("volume {volume} could not be read, retrying"),
            Self::Annotate(..) => "resizer could not be written, retrying".to_owned(),
        }
    }
}
