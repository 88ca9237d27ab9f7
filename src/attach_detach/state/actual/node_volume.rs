//! One volume on one node: what is known of its attachment, what the node's status says, what was asked for.
//!
//! In: objects as last seen and outcomes of our requests, each by a method. Out: whether the volume is, or may be,
//! attached here. Fields that only mean something together are one value, so that only states can be written that occur.

use std::{mem, sync::Arc};

use apiserver::{
    ids::{AttachmentName, ResourceVersion, Uid},
    kinds::VolumeAttachment,
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use super::unpublishing::{Sequence, Unpublishing};
use crate::{
    attach_detach::state::desired::volume_name::VolumeKind,
    controller::{retry::Retry, undone::Undone},
};

/// One volume on one node.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on one another")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeVolume {
    /// The VolumeAttachment of the computed name, if there is one.
    pub known: Option<KnownAttachment>,
    /// What `volumesAttached` of the node says.
    pub listed: bool,
    /// Whether a status patch that puts it there is on its way, or may yet land.
    pub may_be_listed: bool,
    /// Whether the kubelet may have the volume mounted, also without an attachment: see
    /// [`Self::take_report`].
    pub mount: Mount,
    /// Whether `volumesInUse` of the node lists the volume; for a node whose object is gone, whether it
    /// did when last seen, and if it was never seen, that it may.
    pub in_use: bool,
    /// Whether it does so again since we asked for the end of the attachment, and no pod needed the volume here: that is proof
    /// against the one by which we asked.
    pub is_reported_anew: bool,
    /// The request in flight for its VolumeAttachment.
    pub call: Option<AttachmentCall>,
    /// A create was sent whose outcome is unknown: until that is settled the attachment may exist
    /// (S17).
    pub uncertain: Option<Uncertain>,
    /// Why the attachment's name is to be read live, although no request of ours is of unknown outcome.
    pub why_read: Option<WhyRead>,
    /// How far it is proven that the node's status does not publish it.
    pub unpublishing: Unpublishing,
    /// Pause after failures.
    pub retry: Retry,
    /// How often others have deleted its attachment, if they have.
    pub undone: Option<Box<Undone>>,
    /// What the node's status should say of the volume.
    pub report_as_attached: ReportAsAttached,
    /// Whether the machine that may have the volume was given up: another one bears the node's name.
    pub given_up: bool,
    /// Why the detach under way was forced, if it was.
    pub forced: Option<ForceReason>,
    /// Since when no pod needs it here, by this process' clock, if that was judged and none does.
    pub undesired_since: Option<Timestamp>,
    /// What users were told.
    pub told: Told,
}

/// What users were told of a volume on a node, by this process or one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Whether they were told that it is attached.
    pub is_attached: bool,
    /// Since when another node has held it, as they were told.
    pub held_since: Option<Instant>,
    /// Whether they were told that another node has it.
    pub is_multi_attach: bool,
}

/// A VolumeAttachment of the computed name, and what became of our requests to delete it.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownAttachment {
    /// The object as last seen.
    pub object: Arc<VolumeAttachment>,
    /// Whether its deletion was asked for.
    pub deletion: Deletion,
    /// Its revision when a pod needed the volume here after none had: what it says until it changes is of the time
    /// before.
    pub desired_again_at: Option<ResourceVersion>,
}

/// What became of our DELETE of a VolumeAttachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// None was answered, or it was refused.
    #[default]
    None,
    /// One was sent whose outcome is unknown: until this moment, and a live read after it, the attachment may be on its
    /// way out.
    InDoubt {
        /// After this it is not carried out any more.
        until: Instant,
    },
    /// The server has accepted it.
    Accepted,
}

/// Whether a kubelet may have a volume mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mount {
    /// It does not, or it merely announces a pod to come, or its word was overruled by force.
    #[default]
    No,
    /// It reports the volume in use, and nothing else tells whether it has it or announces a pod.
    Reported {
        /// Since when, by this process' clock, in milliseconds of Unix time.
        since: i64,
    },
    /// The same, and the first pod that needs it here came later: that pod is not what it announces, though one before may
    /// have been. Such a node comes first, of several the one that has reported it longest, and holds no other up.
    ReportedBefore {
        /// Since when, likewise.
        since: i64,
    },
    /// It may: its node listed the volume, or a pod runs there with it.
    Possible,
}

/// An operation that spans several requests and the driver's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// From the create of the VolumeAttachment to `attached`.
    Attach,
    /// From its delete to its absence.
    Detach,
}

/// Why a detach was forced; a label of KCM's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ForceReason {
    /// The node was not Ready, and no pod needed the volume there, for long enough.
    Timeout,
    /// The node bears the taint by which an operator declares it off.
    OutOfService,
    /// Another machine has borne the node's name for so long, and of the first one, which may have the volume,
    /// nothing more will be heard under it.
    AnotherMachine,
}

impl ForceReason {
    /// Value of the label `reason`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            // KCM has no other word for what time decides.
            Self::Timeout | Self::AnotherMachine => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

/// A request in flight for one volume on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentCall {
    /// Creating the VolumeAttachment.
    Create,
    /// Deleting it.
    Delete,
    /// Reading it, to learn what became of a create.
    Read,
}

/// A create of unknown outcome. That the attachment exists does not settle it: another create may have made
/// it, and once it is deleted the one of unknown outcome can still land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncertain {
    /// After this the server has given the request up, and a live read tells the truth for good.
    pub until: Instant,
    /// Whether a live read has found nothing since.
    pub read_absent: bool,
}

/// Why the attachment's name is to be read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyRead {
    /// The server refused our create because there is one already, which we have not asked for.
    MadeByAnother,
    /// There is one of that name which is not about this volume on this node (S9).
    NameTaken(AttachmentName),
}

/// What the status of a node should say of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportAsAttached {
    /// Left as it is.
    #[default]
    Unchanged,
    /// Listed: may be mounted.
    Yes,
    /// Not listed: must not be mounted.
    No,
}

impl NodeVolume {
    /// Whether the volume is, or may be, attached here (S1).
    pub(crate) fn may_be_attached(&self) -> bool {
        self.holds(false)
    }

    /// Whether a pod that waits here may have been given the volume: its kubelet takes it from the list alone (S44).
    pub(crate) fn may_be_given(&self) -> bool {
        self.listed
            || self.may_be_listed
            || self.mount == Mount::Possible
            || self.report_as_attached == ReportAsAttached::Yes
    }

    /// Whether we have asked for its attachment, and it may come of that.
    pub(in crate::attach_detach) fn may_be_made_by_us(&self) -> bool {
        self.call == Some(AttachmentCall::Create) || self.uncertain.is_some()
    }

    /// Whether its kubelet may have the volume: one that reports in use what it never was given announces a pod.
    pub(super) fn may_be_had(&self) -> bool {
        self.known.is_some() || self.mount != Mount::No || self.may_be_given()
    }

    /// Whether it keeps other nodes from the volume. Where a pod needs it, a kubelet that reports it in use may wait
    /// for it as they do, and two that wait for each other would wait for ever.
    pub(crate) fn holds(&self, is_wanted: bool) -> bool {
        self.known.is_some()
            || self.may_be_made_by_us()
            || self.listed
            || self.is_mounted(is_wanted)
            || self.may_be_listed
            || self.report_as_attached == ReportAsAttached::Yes
    }

    /// Whether a kubelet may have it mounted. Where a pod needs it, a report may merely announce that pod.
    pub(crate) fn is_mounted(&self, is_wanted: bool) -> bool {
        match self.mount {
            Mount::No => false,
            Mount::Reported { .. } | Mount::ReportedBefore { .. } => !is_wanted,
            Mount::Possible => true,
        }
    }

    /// Takes what the node's status says, or said last. A kubelet may mount what is listed, and has it until it
    /// reports it in use no longer (S1, S43), also if another party deletes the attachment or empties the list. Two
    /// kinds of volumes are given up on a proof only: those without attachments, of which this process is the only
    /// memory, and those of a machine that another has replaced. A report that begins while a pod is known to need the
    /// volume here announces that pod; one that this process has not seen begin may mean more.
    pub(super) fn take_report(&mut self, kind: VolumeKind, listed: bool, in_use: bool) {
        self.listed = listed;
        self.in_use = in_use;
        self.given_up &= !in_use;
        self.is_reported_anew &= in_use;
        let stays = in_use || kind == VolumeKind::NoOp || self.given_up;
        self.mount = match self.mount {
            _ if self.listed => Mount::Possible,
            Mount::Possible if stays => Mount::Possible,
            Mount::Reported { .. } | Mount::ReportedBefore { .. } if in_use => self.mount,
            _ => Mount::No,
        };
    }

    /// Notes that its kubelet reports the volume in use, and that this need not announce a pod.
    pub(super) fn note_unexplained_use(&mut self, wall: Timestamp, is_wanted: bool) {
        if self.mount == Mount::No {
            self.is_reported_anew = !is_wanted && self.is_ended_by_us();
            self.mount = Mount::Reported { since: wall.as_millisecond() };
        }
    }

    /// Notes that the node may have listed the volume, and its kubelet mounted it, unseen.
    pub(super) fn distrust(&mut self) {
        self.in_use = true;
        if self.may_be_listed || self.known.is_some() {
            self.mount = Mount::Possible;
        }
    }

    /// Forgets the attachment, which is gone. What was proven before we asked for its end holds on: the kubelet
    /// did not have the volume, or that was overruled. An end that others have made proves nothing; nor does ours if
    /// another has listed the volume since, or the kubelet has reported it again. Returns whether the proof holds.
    pub(super) fn forget_attachment(&mut self) -> bool {
        let is_proven = !std::mem::take(&mut self.is_reported_anew) && self.is_ended_by_us() && !self.listed;
        self.mount = if is_proven { Mount::No } else { self.mount };
        self.given_up &= self.mount != Mount::No;
        (self.known, self.why_read) = (None, None);
        self.unpublishing = Unpublishing::None;
        self.retry = Retry::default();
        self.list_no_more();
        is_proven
    }

    /// What is to be listed and is not yet has to be judged anew before: its node may have its turn first (S10).
    fn list_no_more(&mut self) {
        if !self.listed {
            self.report_as_attached = ReportAsAttached::Unchanged;
        }
    }

    /// Takes its attachment as last seen.
    pub(in crate::attach_detach) fn observe_attachment(&mut self, object: Arc<VolumeAttachment>) {
        if !object.status.attached || object.metadata.is_terminating() {
            self.list_no_more();
        }
        match &mut self.known {
            Some(known) if known.object.metadata.uid == object.metadata.uid => known.object = object,
            known => {
                let (deletion, desired_again_at) = (Deletion::None, None);
                *known = Some(KnownAttachment { object, deletion, desired_again_at });
            }
        }
    }

    /// Its attachment.
    pub(crate) fn attachment(&self) -> Option<&Arc<VolumeAttachment>> {
        self.known.as_ref().map(|known| &known.object)
    }

    /// UID of its attachment.
    pub(crate) fn uid(&self) -> Option<&Uid> {
        self.attachment().map(|attachment| &attachment.metadata.uid)
    }

    /// What became of our DELETE of its attachment.
    pub(crate) fn deletion(&self) -> Deletion {
        self.known.as_ref().map(|known| known.deletion).unwrap_or_default()
    }

    /// Until when our DELETE of its attachment may be carried out, if its outcome is unknown.
    pub(crate) fn deletion_in_doubt(&self) -> Option<Instant> {
        match self.deletion() {
            Deletion::InDoubt { until } => Some(until),
            Deletion::None | Deletion::Accepted => None,
        }
    }

    /// Notes what became of our DELETE of the attachment of this UID, if that is the one that is known and its end is
    /// not certain yet.
    pub(in crate::attach_detach) fn note_deletion(&mut self, uid: &Uid, deletion: Deletion) {
        let known = self.known.as_mut().filter(|known| known.object.metadata.uid == *uid);
        if let Some(known) = known.filter(|known| known.deletion != Deletion::Accepted) {
            known.deletion = deletion;
        }
    }

    /// Takes note of a live read that was sent then: what was given up by then did not happen. Returns whether that settles it.
    pub(in crate::attach_detach) fn settle_deletion(&mut self, asked: Instant) -> bool {
        let is_over = |known: &&mut KnownAttachment| matches!(known.deletion, Deletion::InDoubt { until } if until <= asked);
        self.known.as_mut().filter(is_over).map(|known| known.deletion = Deletion::None).is_some()
    }

    /// Whether this process took the volume off the list, or asked for it there: what it may put back (S10, S43).
    pub(crate) fn may_be_put_back(&self) -> bool {
        self.unpublishing != Unpublishing::None || self.report_as_attached == ReportAsAttached::Yes
    }

    /// Whether its attachment is on its way out, as the object says or the answer to our DELETE.
    pub(crate) fn is_going(&self) -> bool {
        let is_terminating = |attachment: &Arc<VolumeAttachment>| attachment.metadata.is_terminating();
        self.deletion() == Deletion::Accepted || self.attachment().is_some_and(is_terminating)
    }

    /// Pauses, longer each time.
    pub(in crate::attach_detach) fn pause(&mut self, pause: impl FnOnce(Retry) -> Retry) {
        self.retry = pause(mem::take(&mut self.retry));
    }

    /// Whether we have asked for the end of its attachment.
    pub(crate) fn is_ended_by_us(&self) -> bool {
        self.deletion() != Deletion::None || self.call == Some(AttachmentCall::Delete)
    }

    /// Whether the driver has attached it, or, where there is no driver, the node's status lists it.
    pub(crate) fn is_attached(&self) -> bool {
        self.attachment().map_or(self.listed, |attachment| attachment.status.attached)
    }

    /// Whether it is off the node's list without an answer that proves it: only a live read will.
    pub(crate) fn needs_proof(&self) -> bool {
        !self.listed && matches!(self.unpublishing, Unpublishing::Since(_))
    }

    /// Whether the volume is about to become attached, as far as can be told: its attachment is being made,
    /// or the driver is at work and has not failed.
    pub(crate) fn is_on_its_way(&self) -> bool {
        let attaching = |attachment: &Arc<VolumeAttachment>| {
            let status = &attachment.status;
            !self.is_going() && !status.attached && status.attach_error.is_none()
        };
        self.call == Some(AttachmentCall::Create) || self.attachment().is_some_and(attaching)
    }

    /// Notes what the node's status should say from now on, and whether the volume is unpublished, which only an answer to
    /// a request proves that is sent after the `last` one. Returns whether the status says something else now.
    pub(in crate::attach_detach) fn publish(
        &mut self,
        report_as_attached: ReportAsAttached,
        unpublishes: bool,
        last: Sequence,
    ) -> bool {
        self.report_as_attached = report_as_attached;
        if !unpublishes {
            self.unpublishing = Unpublishing::None;
        } else if self.unpublishing == Unpublishing::None {
            self.unpublishing = Unpublishing::Since(last);
        }
        match report_as_attached {
            ReportAsAttached::Unchanged => false,
            ReportAsAttached::Yes => !self.listed,
            ReportAsAttached::No => self.listed,
        }
    }

    /// Notes whether a pod needs it here, and since when none does.
    pub(super) fn note_desired(&mut self, is_desired: bool, wall: Timestamp) {
        if !is_desired {
            self.undesired_since.get_or_insert(wall);
        } else if self.undesired_since.take().is_some()
            && let Some(known) = &mut self.known
        {
            known.desired_again_at = Some(known.object.metadata.resource_version);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.may_be_attached() && self.call.is_none()
    }
}

#[cfg(test)]
impl NodeVolume {
    /// A volume on a node of which only the attachment is known.
    pub(in crate::attach_detach) fn with_attachment(attached: bool, terminating: bool) -> Self {
        let mut attachment = apiserver::kinds::VolumeAttachment::default();
        attachment.status.attached = attached;
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        let mut node_volume = Self::default();
        node_volume.observe_attachment(std::sync::Arc::new(attachment));
        node_volume
    }

    /// The same, and that became of our DELETE.
    pub(in crate::attach_detach) fn with_deletion(mut self, deletion: Deletion) -> Self {
        if let Some(known) = &mut self.known {
            known.deletion = deletion;
        }
        self
    }
}
