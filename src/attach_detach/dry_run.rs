//! Dry run: what the controller would do next in a world as it is, asked of the controller itself.
//!
//! In: tables, the options, the time, and which reads the tables can answer. Out: for each volume on a node the very
//! verdict that planning returns, and the write that would come next. Nothing is sent: reads are answered from the
//! tables, writes are noted and left without an answer. Explanations of clusters that this process does not control are
//! made of it, so what they say cannot drift from what the controller does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    call::Request,
    ids::{AttachmentName, NodeName, PodKey, VolumeName},
    kinds::ObjectRef,
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    calls::{Answer, AttachmentRequest, Call},
    clock::Clock,
    controller::AttachDetach,
    decide::verdict::Waiting,
    options::AttachDetachOptions,
    reasons::{AttachDetachKey, AttachDetachReason, AttachState, NodeVolumeKey, Report},
    state::{
        actual::{AttachmentCall, ForceReason},
        desired::{WhyUnresolved, volume_name::VolumeId, volume_source},
    },
};
use crate::controller::Controller as _;

/// Longer than a change of a node's list waits for others to be written with it.
const GATHERING: Duration = Duration::from_secs(2);

/// Requests for volumes on nodes that may be under way at once: as many as there are.
const NO_LIMIT: usize = usize::MAX / 2;

/// Where a volume on a node stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeVolumeOutlook {
    /// What it is.
    pub state: AttachState,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// The write that would come next.
    pub write: Option<AttachmentCall>,
    /// Why it would be taken away although it may be in use.
    pub forced: Option<ForceReason>,
}

/// What the controller would do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Each volume on each node where it is, may be, or is to be.
    pub node_volumes: BTreeMap<(VolumeId, NodeName), NodeVolumeOutlook>,
    /// What each pod wants attached to its node.
    pub desired: BTreeMap<PodKey, Vec<NodeVolumeKey>>,
    /// Volumes of pods that cannot be attached yet, by pod and the volume's name in the pod.
    pub unresolved: BTreeMap<(PodKey, String), WhyUnresolved>,
    /// VolumeAttachments that are not ours: the volume, if that is known, and the node.
    pub foreign: BTreeMap<AttachmentName, (Option<VolumeId>, NodeName)>,
    /// The patch of each node whose list `status.volumesAttached` would be written next.
    pub node_writes: BTreeMap<NodeName, Request>,
}

/// Asks the controller. An object that is in no table is answered to be gone only if `is_absent` says so: what was not
/// looked for proves nothing.
pub fn dry_run(
    objects: &Arc<Objects>,
    options: AttachDetachOptions,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
    wall: Timestamp,
) -> Outlook {
    let mut now = Instant::now();
    let options = AttachDetachOptions { attachment_calls: Some(NO_LIMIT), sweep_period: None, ..options };
    let mut controller = AttachDetach::new(Arc::clone(objects), options, Clock::new(wall, now));
    let mut outlook = Outlook::default();
    let mut asked = BTreeSet::new();
    controller.load(now);
    controller.lead(now);
    settle(&mut controller, &mut outlook, &mut asked, is_absent, now);
    now += GATHERING;
    settle(&mut controller, &mut outlook, &mut asked, is_absent, now);
    for pod in objects.pods.snapshot().into_keys() {
        let Some(desired_pod) = controller.desired.pod(&pod) else { continue };
        let desired = desired_pod.volumes.keys().map(|volume| NodeVolumeKey::new(volume, &desired_pod.node));
        outlook.desired.insert(pod, desired.collect());
    }
    outlook
}

/// The volume that a PersistentVolume stands for, if a kubelet waits for it to be attached.
pub fn volume_of(objects: &Objects, name: &VolumeName) -> Option<VolumeId> {
    let volume = objects.volumes.get(name)?;
    volume_source::of_persistent_volume(&volume.metadata, &volume.spec).ok()?.id()
}

/// Plans until there is nothing more to plan at that time.
fn settle(
    controller: &mut AttachDetach,
    outlook: &mut Outlook,
    asked: &mut BTreeSet<NodeName>,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
    now: Instant,
) {
    loop {
        let plan = controller.plan(now);
        let mut goes_on = plan.wake_at.is_some_and(|at| at <= now);
        for report in plan.reports {
            outlook.take(report);
        }
        for (NodeVolumeKey { volume, node }, reason) in plan.measures.facts.forced() {
            outlook.node_volume(volume, node).forced = Some(reason);
        }
        for (sent, call) in plan.calls {
            match &call {
                // No write is answered, so there is nothing else to ask about.
                Call::Attachment(_, _, AttachmentRequest::Read(_)) => {}
                Call::Attachment(volume, node, write) => {
                    outlook.node_volume(volume, node).write = Some(write.kind());
                }
                Call::PatchNode(node, _, request) => {
                    outlook.node_writes.insert(node.clone(), request.clone());
                    // A node whose write is left without an answer keeps no other from being looked at.
                    controller.dispatcher.give_up(&call, sent);
                }
                // Each node once: a read that settles nothing the first time does not the second time, either.
                Call::ReadNode(node) if asked.insert(node.clone()) => {
                    let found = controller.objects.nodes.get(node).map(|it| Ok(Answer::Node((*it).clone())));
                    let is_gone = found.is_none() && is_absent(&ObjectRef::Node(node.clone()));
                    let gone = is_gone.then(|| Err(CallError::NotFound(format!("node/{node} not found"))));
                    let Some(result) = found.or(gone) else { continue };
                    controller.answered((sent, call), result, now, 0.0);
                    goes_on = true;
                }
                Call::ReadNode(_) | Call::ReadOwner(..) => {}
            }
        }
        if !goes_on {
            return;
        }
    }
}

impl Outlook {
    fn take(&mut self, Report { key, reason, .. }: Report) {
        match (key, reason) {
            (AttachDetachKey::NodeVolume(key), Some(AttachDetachReason::NodeVolume(state, waiting, _))) => {
                let outlook = self.node_volume(&key.volume, &key.node);
                (outlook.state, outlook.waiting) = (state, waiting);
            }
            (AttachDetachKey::PodVolume(pod, volume), Some(AttachDetachReason::Unresolved(why, _))) => {
                self.unresolved.insert((pod, volume), why);
            }
            (AttachDetachKey::PodVolume(pod, volume), None) => {
                self.unresolved.remove(&(pod, volume));
            }
            (AttachDetachKey::Foreign(name), Some(AttachDetachReason::Foreign(volume, node))) => {
                self.foreign.insert(name, (volume, node));
            }
            (AttachDetachKey::Foreign(name), None) => {
                self.foreign.remove(&name);
            }
            _ => {}
        }
    }

    fn node_volume(&mut self, volume: &VolumeId, node: &NodeName) -> &mut NodeVolumeOutlook {
        self.node_volumes.entry((volume.clone(), node.clone())).or_default()
    }
}
