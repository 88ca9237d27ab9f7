//! What a decision is: at most one step to take, what to tell the user, and where the object stands.
//!
//! Out of [`super::claim`] and [`super::volume`], into the planner. A decision is plain data; what
//! executes it adds nothing to it.

use apiserver::{
    events::Event,
    kinds::{PersistentVolume, PersistentVolumeClaim, VolumePhase},
};

use crate::binder::{
    calls::{Call, Write},
    events, patches,
    reasons::{ClaimReason, VolumeReason},
};

/// What to do about a claim.
pub type ClaimDecision = Decision<ClaimReason>;

/// What to do about a volume.
pub type VolumeDecision = Decision<VolumeReason>;

/// The outcome of looking at one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<Reason> {
    /// Where the object stands, and why.
    pub reason: Reason,
    /// What to do now, if anything.
    pub step: Option<Call>,
    /// What to tell the user at once.
    pub events: Vec<Event>,
}

impl<Reason> Decision<Reason> {
    /// Nothing to do.
    pub fn rest(reason: Reason) -> Self {
        Self { reason, step: None, events: Vec::new() }
    }

    /// One step to take.
    pub fn step(reason: Reason, step: Call) -> Self {
        Self { reason, step: Some(step), events: Vec::new() }
    }

    /// Something to tell the user.
    pub fn telling(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    /// A write to make as well, if there is one.
    pub fn writing(mut self, write: Option<Write>) -> Self {
        self.step = write.map(Call::Write);
        self
    }
}

impl ClaimDecision {
    /// Nothing to do; users are told why.
    pub fn waiting(claim: &PersistentVolumeClaim, reason: ClaimReason) -> Self {
        let events = events::of(claim, reason.row(), &reason).into_iter().collect();
        Self { reason, step: None, events }
    }
}

impl VolumeDecision {
    /// Nothing to do; users are told why.
    pub fn waiting(volume: &PersistentVolume, reason: VolumeReason) -> Self {
        let events = events::of(volume, reason.row(), &reason).into_iter().collect();
        Self { reason, step: None, events }
    }

    /// The volume is marked as Failed, for a reason whose text is the status's message and the event's. Once it is,
    /// only the event tells of another reason.
    // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, updateVolumePhaseWithEvent.
    pub fn failed(volume: &PersistentVolume, reason: VolumeReason) -> Self {
        if volume.status.phase == VolumePhase::Failed {
            return Self::waiting(volume, reason);
        }
        let mut write = patches::volume_phase(volume, VolumePhase::Failed, Some(&reason.to_string()));
        write.then.extend(events::of(volume, reason.row(), &reason));
        Self::step(reason, Call::Write(write))
    }
}
