//! Actual state: where volumes are attached, or may be, and what each node's status says.
//!
//! In: VolumeAttachments and Nodes as last seen, and the outcomes of our own requests. Out: per volume
//! the [`Pair`]s that decisions are made of, and which volumes a change touched. Nothing here survives
//! a restart or needs to: all of it is read back from the API objects, and what only this process
//! knows (a request in flight, an outcome unknown) errs on the side of "attached".

mod attachments;
mod inheritance;
mod nodes;
mod standby;
mod unexplained;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use attachments::Identity;
use unexplained::Unexplained;

pub use attachments::Candidates;

use super::{
    node::NodeState,
    withdrawal::{Sequence, Unpublished, Withdrawal},
};
use crate::{
    attach_detach::{
        decide::{
            force::{ForcePolicy, ForceReason},
            multi_attach::Rivalry,
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
pub struct Pair {
    /// The VolumeAttachment of the computed name.
    pub attachment: Option<Arc<VolumeAttachment>>,
    /// Whether `volumesAttached` of the node lists the volume.
    pub listed: bool,
    /// Whether a status patch that puts it there is on its way, or may yet land.
    pub may_be_listed: bool,
    /// Whether the kubelet may have the volume, whatever became of its attachment: see
    /// [`Self::take_report`].
    pub held: bool,
    /// Whether `volumesInUse` of the node lists the volume; for a node whose object is gone, whether it
    /// did when last seen, and if it was never seen, that it may.
    pub in_use: bool,
    /// Whether the last report of a node whose object is gone listed the volume.
    pub left_listed: bool,
    /// The request in flight for this pair.
    pub call: Option<PairCall>,
    /// When that, or the last one, was sent: what a read shows may be as old as that, however late its answer.
    pub asked_at: Option<Instant>,
    /// A create was sent whose outcome nobody knows: until that is settled the attachment may exist
    /// (S17).
    pub uncertain: Option<Uncertain>,
    /// UID of the attachment whose deletion the server has accepted.
    pub deletion_accepted: Option<Uid>,
    /// A delete was sent whose outcome nobody knows: until this moment, and a live read after it, the
    /// attachment may be on its way out.
    pub deletion_doubt: Option<Instant>,
    /// Why the attachment's name is to be read live, although no request of ours is of unknown outcome.
    pub doubt: Option<Doubt>,
    /// How far the withdrawal from the node's status is proven.
    pub withdrawal: Withdrawal,
    /// Pause after failures.
    pub retry: Retry,
    /// What the node's status should say of the volume.
    pub publication: Publication,
    /// Whether it was taken off the node's list for a detach that is not to be, and is to be listed again.
    pub put_back: bool,
    /// Whether the machine that may have the volume was given up: another one bears the node's name.
    pub given_up: bool,
    /// Why the detach under way was forced, if it was.
    pub forced: Option<ForceReason>,
    /// Since when nobody wants what is, or may be, attached here, by this process' clock.
    pub unwanted_since: Option<Timestamp>,
    /// When this process, also while it stood by, last saw a pod cease to want it here, by its own clock.
    pub wish_ended: Option<Timestamp>,
    /// Whether somebody has wanted it here since this process leads: what a predecessor knew of a wait is of an
    /// earlier one then.
    pub was_wanted: bool,
    /// The attachment's revision when somebody wanted the volume here after nobody had: what it says until it
    /// changes is of the time before.
    pub wanted_again_at: Option<ResourceVersion>,
}

/// An operation that spans several requests and the driver's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// From the create of the VolumeAttachment to `attached`.
    Attach,
    /// From its delete to its absence.
    Detach,
}

/// A request in flight for one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairCall {
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

/// What makes it doubtful what there is under the attachment's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The attachment is known from answers to our own requests alone, and the last list lacked it: nobody
    /// would tell if it were gone.
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
pub enum Publication {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Attached: may be mounted.
    List,
    /// Must not be mounted.
    Withhold,
}

impl Pair {
    /// Whether the volume is, or may be, attached here (S1).
    #[must_use]
    pub fn holds(&self) -> bool {
        self.attachment.is_some()
            || self.uncertain.is_some()
            || self.call == Some(PairCall::Create)
            || self.listed
            || self.held
            || self.may_be_listed
            || self.publication == Publication::List
    }

    /// Takes what the node's status says, or said last. In use means held (S1): a kubelet may mount what is
    /// listed, and has it until it is in use no longer, whoever deleted the attachment or emptied the list. A
    /// volume without attachments is held until it is given up on a proof of its own, for nobody remembers it
    /// with us; so is what a machine had whose place another has taken, for that is told. What was never listed is not held: that is the kubelet's announcement of a pod to come.
    fn take_report(&mut self, kind: VolumeKind, listed: bool, in_use: bool) {
        self.listed = listed;
        self.in_use = in_use;
        self.given_up &= !in_use;
        self.held = listed || (self.held && (in_use || kind == VolumeKind::NoOp || self.given_up));
    }

    /// Notes that the node may have listed the volume, and its kubelet mounted it, unseen.
    fn distrust(&mut self) {
        self.in_use = true;
        self.held |= self.may_be_listed || self.attachment.is_some();
    }

    /// Forgets the attachment, which is gone. What was proven before we asked for its end holds on: the kubelet
    /// did not have the volume, or that was overruled. An end that others have made proves nothing.
    fn forget_attachment(&mut self) {
        let is_our_doing = self.deletion_accepted.is_some()
            || self.deletion_doubt.is_some()
            || self.call == Some(PairCall::Delete);
        self.held &= !is_our_doing;
        self.given_up &= self.held;
        self.attachment = None;
        self.deletion_accepted = None;
        self.deletion_doubt = None;
        self.doubt = None;
        self.withdrawal = Withdrawal::None;
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
        self.call == Some(PairCall::Create) || self.attachment.as_ref().is_some_and(attaching)
    }

    /// Notes what the node's status should say from now on, before it is noted whether the volume is withdrawn.
    pub(in crate::attach_detach) fn publish(&mut self, publication: Publication, withdraws: bool) {
        let is_missing = publication == Publication::List && !self.listed;
        let is_taken_back = self.withdrawal != Withdrawal::None && !withdraws;
        self.put_back = is_missing && (is_taken_back || self.put_back);
        self.publication = publication;
    }

    /// Notes whether somebody wants it here, and since when nobody does.
    fn note_wanted(&mut self, is_wanted: bool, wall: Timestamp) {
        if !is_wanted {
            self.unwanted_since.get_or_insert(wall);
            return;
        }
        self.was_wanted = true;
        if self.unwanted_since.take().is_some() {
            let attachment = self.attachment.as_ref();
            self.wanted_again_at = attachment.map(|known| known.metadata.resource_version);
        }
    }

    fn is_idle(&self) -> bool {
        !self.holds() && self.call.is_none()
    }
}

/// All pairs of one volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeState {
    /// By node.
    pub pairs: VecMap<NodeName, Box<Pair>>,
    /// VolumeAttachments of this volume under names that are not ours. Left alone, but they hold the
    /// volume like any other (S1).
    pub foreign: BTreeMap<AttachmentName, NodeName>,
    /// Whether what happens on one node matters to the others.
    pub rivalry: Rivalry,
}

/// All volumes, nodes and attachments.
#[derive(Clone, Debug, Default)]
pub struct ActualState {
    volumes: HashMap<VolumeId, VolumeState>,
    nodes: HashMap<NodeName, NodeState>,
    identities: HashMap<AttachmentName, Identity>,
    unexplained: Unexplained,
}

impl ActualState {
    /// The pairs of a volume.
    #[must_use]
    pub fn volume(&self, volume: &VolumeId) -> Option<&VolumeState> {
        self.volumes.get(volume)
    }

    /// Every volume that has a pair.
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
            let pair = self.pair(volume, node);
            pair.is_some_and(|pair| !pair.listed && matches!(pair.withdrawal, Withdrawal::Since(_)))
        })
    }

    /// A pair, if there is one.
    #[must_use]
    pub fn pair(&self, volume: &VolumeId, node: &NodeName) -> Option<&Pair> {
        self.volumes.get(volume)?.pairs.get(node).map(|pair| &**pair)
    }

    /// Which attempt the next request about a pair is, from 1.
    #[must_use]
    pub fn attempt(&self, volume: &VolumeId, node: &NodeName) -> u32 {
        self.pair(volume, node).map_or(1, |pair| pair.retry.failures().saturating_add(1))
    }

    /// A pair, made if there is none.
    pub fn pair_mut(&mut self, volume: &VolumeId, node: &NodeName) -> &mut Pair {
        if self.pair(volume, node).is_none() {
            self.make_pair(volume, node);
        }
        self.volumes.entry(volume.clone()).or_default().pairs.get_or_default(node)
    }

    fn make_pair(&mut self, volume: &VolumeId, node: &NodeName) {
        let state = self.nodes.entry(node.clone()).or_default();
        state.volumes.insert(volume.clone());
        let listed = state.node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
        let in_use = state.node.as_ref().is_none_or(|node| node.uses(volume.as_str()));
        let pair = Box::new(Pair { listed, held: listed, in_use, ..Pair::default() });
        self.volumes.entry(volume.clone()).or_default().pairs.insert(node.clone(), pair);
    }

    /// Does something with every pair of a node. Each is named in the node's `volumes` as long as it is there:
    /// [`Self::make_pair`] and [`Self::prune`] see to both.
    fn each_pair_of(&mut self, name: &NodeName, mut act: impl FnMut(&NodeState, &VolumeId, &mut Pair)) {
        let Some(state) = self.nodes.get(name) else { return };
        for volume in &state.volumes {
            let pair = self.volumes.get_mut(volume).and_then(|state| state.pairs.get_mut(name));
            if let Some(pair) = pair {
                act(state, volume, pair);
            }
        }
    }

    /// Notes whether what happens to a volume on one node matters to the others.
    pub fn note_rivalry(&mut self, volume: &VolumeId, rivalry: Rivalry) {
        if let Some(state) = self.volumes.get_mut(volume) {
            state.rivalry = rivalry;
        }
    }

    /// Forgets the pairs of a volume that hold nothing and that nobody `wants`. Returns on which nodes.
    pub fn prune(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        wants: impl Fn(&NodeName) -> bool,
    ) -> Vec<NodeName> {
        let mut gone = Vec::new();
        let Some(state) = self.volumes.get_mut(volume) else { return gone };
        let nodes = &mut self.nodes;
        let mut keep = |node: &NodeName, pair: &Pair| {
            let keep = !pair.is_idle() || wants(node);
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
            Scope::All => state.pairs.retain(|node, pair| keep(node, pair)),
            Scope::Nodes(scope) => {
                for node in scope {
                    if state.pairs.get(node).is_some_and(|pair| !keep(node, pair)) {
                        state.pairs.remove(node);
                    }
                }
            }
        }
        if state.pairs.is_empty() && state.foreign.is_empty() {
            self.volumes.remove(volume);
            self.unexplained.forget(volume);
            give_back_room(&mut self.volumes);
        }
        gone
    }

    /// Notes since when each pair of a volume has not been wanted.
    pub fn note_unwanted(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        wants: impl Fn(&NodeName) -> bool,
        wall: Timestamp,
    ) {
        let Some(state) = self.volumes.get_mut(volume) else { return };
        match scope {
            Scope::All => state.pairs.iter_mut().for_each(|(node, pair)| pair.note_wanted(wants(node), wall)),
            Scope::Nodes(nodes) => {
                for node in nodes {
                    if let Some(pair) = state.pairs.get_mut(node) {
                        pair.note_wanted(wants(node), wall);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl Pair {
    /// A pair of which nothing but its attachment is known.
    pub(in crate::attach_detach) fn with_attachment(attached: bool, terminating: bool) -> Self {
        let mut attachment = VolumeAttachment::default();
        attachment.status.attached = attached;
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        Self { attachment: Some(Arc::new(attachment)), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
