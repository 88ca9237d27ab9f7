//! Actual state: where volumes are attached, or may be, and what each node's status says.
//!
//! In: VolumeAttachments and Nodes as last seen, and the outcomes of our own requests. Out: per volume
//! the [`NodeVolume`]s that decisions are made of, and which volumes a change touched. Nothing here survives
//! a restart or needs to: all of it is read back from the API objects, and what only this process
//! knows (a request in flight, an outcome unknown) errs on the side of "attached".

mod attachments;
mod inheritance;
mod nodes;
mod standby;
mod unidentified;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use attachments::Identity;
use unidentified::Unidentified;

pub use attachments::Candidates;

use super::{
    node::NodeState,
    unpublishing::{Sequence, Unpublished, Unpublishing},
};
use crate::{
    attach_detach::{
        decide::{
            force::{ForcePolicy, ForceReason},
            multi_attach::Exclusivity,
            scope::Scope,
        },
        desired::volume_name::{VolumeId, VolumeKind},
    },
    controller::retry::Retry,
    kube_api::{
        ids::{AttachmentName, NodeName, ResourceVersion, Uid},
        kinds::VolumeAttachment,
    },
    state::{VecMap, give_back_room},
};

/// One volume on one node.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on one another")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeVolume {
    /// The VolumeAttachment of the computed name.
    pub attachment: Option<Arc<VolumeAttachment>>,
    /// Whether `volumesAttached` of the node lists the volume.
    pub listed: bool,
    /// Whether a status patch that puts it there is on its way, or may yet land.
    pub may_be_listed: bool,
    /// Whether the kubelet may have the volume mounted, also without an attachment: see
    /// [`Self::take_report`].
    pub may_be_mounted: bool,
    /// Whether `volumesInUse` of the node lists the volume; for a node whose object is gone, whether it
    /// did when last seen, and if it was never seen, that it may.
    pub in_use: bool,
    /// Whether the last report of a node whose object is gone listed the volume.
    pub left_listed: bool,
    /// The request in flight for its VolumeAttachment.
    pub call: Option<AttachmentCall>,
    /// When that, or the last one, was sent: what a read shows may be as old as that, however late its answer.
    pub asked_at: Option<Instant>,
    /// A create was sent whose outcome is unknown: until that is settled the attachment may exist
    /// (S17).
    pub uncertain: Option<Uncertain>,
    /// UID of the attachment whose deletion the server has accepted.
    pub deletion_accepted: Option<Uid>,
    /// A delete was sent whose outcome is unknown: until this moment, and a live read after it, the
    /// attachment may be on its way out.
    pub deletion_in_doubt: Option<Instant>,
    /// Why the attachment's name is to be read live, although no request of ours is of unknown outcome.
    pub why_read: Option<WhyRead>,
    /// How far it is proven that the node's status does not publish it.
    pub unpublishing: Unpublishing,
    /// Pause after failures.
    pub retry: Retry,
    /// What the node's status should say of the volume.
    pub report_as_attached: ReportAsAttached,
    /// Whether it was taken off the node's list for a detach that is not to be, and is to be listed again.
    pub put_back: bool,
    /// Whether the machine that may have the volume was given up: another one bears the node's name.
    pub given_up: bool,
    /// Why the detach under way was forced, if it was.
    pub forced: Option<ForceReason>,
    /// Since when no pod needs what is, or may be, attached here, by this process' clock.
    pub undesired_since: Option<Timestamp>,
    /// When this process, also while it stood by, last saw a pod cease to need it here, by its own clock.
    pub desired_until: Option<Timestamp>,
    /// Whether a pod has needed it here since this process leads: what a predecessor knew of a wait is of an
    /// earlier one then.
    pub was_desired: bool,
    /// The attachment's revision when a pod needed the volume here after none had: what it says until it
    /// changes is of the time before.
    pub desired_again_at: Option<ResourceVersion>,
}

/// An operation that spans several requests and the driver's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// From the create of the VolumeAttachment to `attached`.
    Attach,
    /// From its delete to its absence.
    Detach,
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
    /// The attachment is known from answers to our own requests alone, and the last list lacked it: no
    /// watch event would come if it were gone.
    Unconfirmed,
    /// The server refused our create because there is one already, which we have not asked for.
    MadeByAnother,
    /// The server refused to delete the attachment of this UID because it has another.
    DeletionRefused(Uid),
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
    #[must_use]
    pub fn may_be_attached(&self) -> bool {
        self.attachment.is_some()
            || self.uncertain.is_some()
            || self.call == Some(AttachmentCall::Create)
            || self.listed
            || self.may_be_mounted
            || self.may_be_listed
            || self.report_as_attached == ReportAsAttached::Yes
    }

    /// Takes what the node's status says, or said last. A kubelet may mount what is listed, and has it until it
    /// reports it in use no longer (S1), also if another party deletes the attachment or empties the list. Two kinds
    /// of volumes are given up on a proof only: those without attachments, of which this process is the only memory,
    /// and those of a machine that another has replaced. What was never listed does not count: so a kubelet announces
    /// a pod to come.
    fn take_report(&mut self, kind: VolumeKind, listed: bool, in_use: bool) {
        self.listed = listed;
        self.in_use = in_use;
        self.given_up &= !in_use;
        self.may_be_mounted =
            listed || (self.may_be_mounted && (in_use || kind == VolumeKind::NoOp || self.given_up));
    }

    /// Notes that the node may have listed the volume, and its kubelet mounted it, unseen.
    fn distrust(&mut self) {
        self.in_use = true;
        self.may_be_mounted |= self.may_be_listed || self.attachment.is_some();
    }

    /// Forgets the attachment, which is gone. What was proven before we asked for its end holds on: the kubelet
    /// did not have the volume, or that was overruled. An end that others have made proves nothing.
    fn forget_attachment(&mut self) {
        let is_our_doing = self.deletion_accepted.is_some()
            || self.deletion_in_doubt.is_some()
            || self.call == Some(AttachmentCall::Delete);
        self.may_be_mounted &= !is_our_doing;
        self.given_up &= self.may_be_mounted;
        self.attachment = None;
        self.deletion_accepted = None;
        self.deletion_in_doubt = None;
        self.why_read = None;
        self.unpublishing = Unpublishing::None;
        self.retry = Retry::default();
    }

    /// UID of its attachment.
    #[must_use]
    pub fn uid(&self) -> Option<&Uid> {
        self.attachment.as_ref().map(|attachment| &attachment.metadata.uid)
    }

    /// Whether its attachment is on its way out, as the object says or the answer to our DELETE.
    #[must_use]
    pub fn is_going(&self) -> bool {
        let is_terminating = |attachment: &VolumeAttachment| attachment.metadata.is_terminating();
        self.deletion_accepted.is_some() || self.attachment.as_deref().is_some_and(is_terminating)
    }

    /// Whether the volume is about to become attached, as far as can be told: its attachment is being made,
    /// or the driver is at work and has not failed.
    #[must_use]
    pub fn is_on_its_way(&self) -> bool {
        let attaching = |attachment: &Arc<VolumeAttachment>| {
            let status = &attachment.status;
            !self.is_going() && !status.attached && status.attach_error.is_none()
        };
        self.call == Some(AttachmentCall::Create) || self.attachment.as_ref().is_some_and(attaching)
    }

    /// Notes what the node's status should say from now on, before it is noted whether the volume is unpublished.
    pub(in crate::attach_detach) fn publish(
        &mut self,
        report_as_attached: ReportAsAttached,
        unpublishes: bool,
    ) {
        let is_missing = report_as_attached == ReportAsAttached::Yes && !self.listed;
        let is_taken_back = self.unpublishing != Unpublishing::None && !unpublishes;
        self.put_back = is_missing && (is_taken_back || self.put_back);
        self.report_as_attached = report_as_attached;
    }

    /// Notes whether a pod needs it here, and since when none does.
    fn note_desired(&mut self, is_wanted: bool, wall: Timestamp) {
        if !is_wanted {
            self.undesired_since.get_or_insert(wall);
            return;
        }
        self.was_desired = true;
        if self.undesired_since.take().is_some() {
            let attachment = self.attachment.as_ref();
            self.desired_again_at = attachment.map(|known| known.metadata.resource_version);
        }
    }

    fn is_idle(&self) -> bool {
        !self.may_be_attached() && self.call.is_none()
    }
}

/// One volume on all its nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeState {
    /// By node.
    pub nodes: VecMap<NodeName, Box<NodeVolume>>,
    /// VolumeAttachments of this volume under names that are not ours. Left alone, but the volume may be
    /// attached by each of them (S1).
    pub foreign: BTreeMap<AttachmentName, NodeName>,
    /// Whether what happens on one node matters to the others.
    pub exclusivity: Exclusivity,
}

/// All volumes, nodes and attachments.
#[derive(Clone, Debug, Default)]
pub struct ActualState {
    volumes: HashMap<VolumeId, VolumeState>,
    nodes: HashMap<NodeName, NodeState>,
    identities: HashMap<AttachmentName, Identity>,
    unidentified: Unidentified,
}

impl ActualState {
    /// A volume on all its nodes.
    #[must_use]
    pub fn volume(&self, volume: &VolumeId) -> Option<&VolumeState> {
        self.volumes.get(volume)
    }

    /// Every volume of which something is known.
    pub fn volumes(&self) -> impl Iterator<Item = (&VolumeId, &VolumeState)> {
        self.volumes.iter()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: &NodeName) -> Option<&NodeState> {
        self.nodes.get(node)
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, node: &NodeName) -> &mut NodeState {
        self.nodes.entry(node.clone()).or_default()
    }

    /// Whether some volume is off the node's list without an answer that proves it: only a live read
    /// will.
    #[must_use]
    pub fn needs_proof(&self, node: &NodeName) -> bool {
        self.nodes.get(node).into_iter().flat_map(|state| &state.volumes).any(|volume| {
            let node_volume = self.node_volume(volume, node);
            node_volume.is_some_and(|node_volume| {
                !node_volume.listed && matches!(node_volume.unpublishing, Unpublishing::Since(_))
            })
        })
    }

    /// A volume on a node, if something is known of it.
    #[must_use]
    pub fn node_volume(&self, volume: &VolumeId, node: &NodeName) -> Option<&NodeVolume> {
        self.volumes.get(volume)?.nodes.get(node).map(|node_volume| &**node_volume)
    }

    /// Which attempt the next request about a volume on a node is, from 1.
    #[must_use]
    pub fn attempt(&self, volume: &VolumeId, node: &NodeName) -> u32 {
        self.node_volume(volume, node).map_or(1, |node_volume| node_volume.retry.failures().saturating_add(1))
    }

    /// A volume on a node; its entry is made if there is none.
    pub fn node_volume_mut(&mut self, volume: &VolumeId, node: &NodeName) -> &mut NodeVolume {
        if self.node_volume(volume, node).is_none() {
            self.add(volume, node);
        }
        self.volumes.entry(volume.clone()).or_default().nodes.get_or_default(node)
    }

    fn add(&mut self, volume: &VolumeId, node: &NodeName) {
        let state = self.nodes.entry(node.clone()).or_default();
        state.volumes.insert(volume.clone());
        let listed = state.node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
        let in_use = state.node.as_ref().is_none_or(|node| node.uses(volume.as_str()));
        let node_volume =
            Box::new(NodeVolume { listed, may_be_mounted: listed, in_use, ..NodeVolume::default() });
        self.volumes.entry(volume.clone()).or_default().nodes.insert(node.clone(), node_volume);
    }

    /// Does something with every volume on a node. Each is named in the node's `volumes` as long as it is there:
    /// [`Self::add`] and [`Self::prune`] see to both.
    fn each_volume_on(
        &mut self,
        name: &NodeName,
        mut act: impl FnMut(&NodeState, &VolumeId, &mut NodeVolume),
    ) {
        let Some(state) = self.nodes.get(name) else { return };
        for volume in &state.volumes {
            let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(name));
            if let Some(node_volume) = node_volume {
                act(state, volume, node_volume);
            }
        }
    }

    /// Notes whether what happens to a volume on one node matters to the others.
    pub fn note_exclusivity(&mut self, volume: &VolumeId, exclusivity: Exclusivity) {
        if let Some(state) = self.volumes.get_mut(volume) {
            state.exclusivity = exclusivity;
        }
    }

    /// Forgets the volume on nodes where it is not attached and no pod `wants` it. Returns on which.
    pub fn prune(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        wants: impl Fn(&NodeName) -> bool,
    ) -> Vec<NodeName> {
        let mut gone = Vec::new();
        let Some(state) = self.volumes.get_mut(volume) else { return gone };
        let nodes = &mut self.nodes;
        let mut keep = |node: &NodeName, node_volume: &NodeVolume| {
            let keep = !node_volume.is_idle() || wants(node);
            if !keep && let Some(node_state) = nodes.get_mut(node) {
                node_state.volumes.remove(volume);
                if node_state.is_over() {
                    nodes.remove(node);
                }
            }
            if !keep {
                gone.push(node.clone());
            }
            keep
        };
        match scope {
            Scope::All => state.nodes.retain(|node, node_volume| keep(node, node_volume)),
            Scope::Nodes(scope) => {
                for node in scope {
                    if state.nodes.get(node).is_some_and(|node_volume| !keep(node, node_volume)) {
                        state.nodes.remove(node);
                    }
                }
            }
        }
        if state.nodes.is_empty() && state.foreign.is_empty() {
            self.volumes.remove(volume);
            self.unidentified.forget(volume);
            give_back_room(&mut self.volumes);
        }
        gone
    }

    /// Notes since when a volume has not been desired, on each of its nodes.
    pub fn note_undesired(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        wants: impl Fn(&NodeName) -> bool,
        wall: Timestamp,
    ) {
        let Some(state) = self.volumes.get_mut(volume) else { return };
        match scope {
            Scope::All => state
                .nodes
                .iter_mut()
                .for_each(|(node, node_volume)| node_volume.note_desired(wants(node), wall)),
            Scope::Nodes(nodes) => {
                for node in nodes {
                    if let Some(node_volume) = state.nodes.get_mut(node) {
                        node_volume.note_desired(wants(node), wall);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl NodeVolume {
    /// A volume on a node of which only the attachment is known.
    pub(in crate::attach_detach) fn with_attachment(attached: bool, terminating: bool) -> Self {
        let mut attachment = VolumeAttachment::default();
        attachment.status.attached = attached;
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        Self { attachment: Some(Arc::new(attachment)), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
