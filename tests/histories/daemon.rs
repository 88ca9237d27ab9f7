//! The daemon in a history: the real tables and the real controller, and requests on their way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;
use mooring::{
    attach_detach::{
        calls::{Answer, Call, Outcome, PairRequest},
        clock::Clock,
        controller::{AttachDetachOptions, Controller},
        metrics::AttachDetachMetrics,
        volume_name::VolumeId,
        withdrawal::Sequence,
    },
    kube_api::{
        call::CallError,
        ids::NodeName,
        kinds::{Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    },
    metrics::{Alarms, Metrics},
    state::{ChangeSet, Objects},
};
use tokio::time::Instant;

use super::server::{Object, Server, VOLUMES, id};

thread_local! {
    /// Nobody reads them here, and making them costs more than playing a few steps.
    static METRICS: AttachDetachMetrics = {
        let metrics = Metrics::default();
        AttachDetachMetrics::new(&metrics, Alarms::new(&metrics).unwrap()).unwrap()
    };
}

/// Longest time for which a request that the daemon gave up may still take effect.
const LATE: Duration = Duration::from_secs(5);

/// The kinds that are watched while a history plays.
pub const KINDS: [&str; 3] = ["node", "pod", "attachment"];

pub struct Daemon {
    pub(super) objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    pub(super) controller: Controller,
    pub(super) now: Instant,
    /// How far the watch of each kind has delivered the server's history.
    pub(super) delivered: BTreeMap<&'static str, usize>,
    pub(super) on_their_way: Vec<(Sequence, Call)>,
    pub(super) answered: Vec<Outcome>,
    pub(super) late: Vec<(Instant, Call)>,
}

pub(super) fn kind(key: &ObjectRef) -> &'static str {
    match key {
        ObjectRef::Node(_) => "node",
        ObjectRef::Pod(_) => "pod",
        ObjectRef::Attachment(_) => "attachment",
        _ => "static",
    }
}

impl Daemon {
    /// Starts with a complete list of everything.
    pub fn start(server: &Server) -> Self {
        let objects = Arc::new(Objects::default());
        let changes = objects.subscribe();
        objects.reset::<Node>(server.nodes.values().cloned().collect());
        objects.reset::<Pod>(server.pods.values().cloned().collect());
        objects.reset::<PersistentVolume>(server.volumes.values().cloned().collect());
        objects.reset::<PersistentVolumeClaim>(server.claims.values().cloned().collect());
        objects.reset::<VolumeAttachment>(server.attachments.values().cloned().collect());
        let metrics = METRICS.with(AttachDetachMetrics::clone);
        let now = Instant::now();
        let clock = Clock::new(server.wall(), now);
        let mut controller =
            Controller::new(Arc::clone(&objects), metrics, AttachDetachOptions::default(), clock);
        controller.load(now);
        controller.take_over();
        let end = server.history.len();
        Self {
            objects,
            changes,
            controller,
            now,
            delivered: BTreeMap::from([("node", end), ("pod", end), ("attachment", end)]),
            on_their_way: Vec::new(),
            answered: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Plans, and checks what is about to be sent against what the daemon has seen.
    pub fn reconcile(&mut self) -> Result<(), String> {
        self.controller.take_changes(self.changes.take_now(), self.now);
        let effects = self.controller.reconcile(self.now);
        for (_, call) in &effects.calls {
            self.is_justified(call)?;
        }
        self.on_their_way.extend(effects.calls);
        Ok(())
    }

    /// The watch of some kind delivers its next events, of which the controller sees only the sum.
    pub fn watch_delivers(&mut self, server: &Server, rng: &mut Rng) -> Result<(), String> {
        for _ in 0..rng.u32(1..4) {
            self.deliver(server, KINDS[rng.usize(0..KINDS.len())]);
        }
        self.reconcile()
    }

    pub fn watch_delivers_all(&mut self, server: &Server) -> Result<(), String> {
        for kind in KINDS {
            while self.deliver(server, kind) {}
        }
        self.reconcile()
    }

    /// S8, S10, S15: what is sent follows from what the daemon knows when it sends it.
    fn is_justified(&self, call: &Call) -> Result<(), String> {
        let pods = self.objects.pods.snapshot();
        let wants = |volume: &VolumeId, node: &NodeName| {
            // A node that was never seen to be managed is given nothing.
            let is_managed = self.objects.nodes.get(node).is_some_and(|node| node.is_managed());
            is_managed
                && pods.values().any(|pod| {
                    pod.spec.node_name == *node
                        && !pod.is_terminated()
                        && pod.spec.volumes.iter().any(|wanted| id(&wanted.name) == *volume)
                })
        };
        match call {
            Call::Pair(volume, node, PairRequest::Create(_)) if !wants(volume, node) => {
                Err(format!("S8: {volume} is to be attached to {node}, where nobody wants it"))
            }
            Call::Pair(volume, node, PairRequest::Delete(..)) if wants(volume, node) => {
                Err(format!("S15: {volume} is to be detached from {node}, where it is wanted"))
            }
            Call::PatchNode(name, _, request) => {
                let body = request.body.clone().unwrap_or_default();
                let list = body["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
                let node = self.objects.nodes.get(name);
                for volume in VOLUMES.map(|(volume, _)| id(volume)) {
                    let listed = list.iter().any(|entry| entry["name"] == volume.as_str());
                    let was_listed = node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
                    let attachment = self.objects.attachments.get(&volume.attachment_name(name));
                    let attached =
                        attachment.is_some_and(|va| va.status.attached && !va.metadata.is_terminating());
                    if listed && !was_listed && !attached {
                        return Err(format!(
                            "S10: {volume} is to be listed on {name} without being attached"
                        ));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the watch of a kind has something to deliver.
    pub fn is_behind(&self, server: &Server, wanted: &'static str) -> bool {
        server.history.iter().skip(self.delivered[wanted]).any(|event| kind(&event.key) == wanted)
    }

    /// The watch of a kind delivers its next event, if there is one.
    pub fn deliver(&mut self, server: &Server, wanted: &'static str) -> bool {
        let from = self.delivered[wanted];
        let next = server.history.iter().enumerate().skip(from).find(|(_, event)| kind(&event.key) == wanted);
        let Some((index, event)) = next else { return false };
        self.delivered.insert(wanted, index + 1);
        match (event.object.clone(), event.deleted) {
            (Object::Node(node), false) => self.objects.apply(node),
            (Object::Pod(pod), false) => self.objects.apply(pod),
            (Object::Attachment(attachment), false) => self.objects.apply(attachment),
            (Object::Node(node), true) => self.objects.delete(node),
            (Object::Pod(pod), true) => self.objects.delete(pod),
            (Object::Attachment(attachment), true) => self.objects.delete(attachment),
        }
        true
    }

    /// The watch of some kind breaks, and begins anew with a list: what happened meanwhile is not told.
    pub fn watch_begins_anew(&mut self, server: &Server, rng: &mut Rng) -> Result<(), String> {
        let kind = KINDS[rng.usize(0..KINDS.len())];
        match kind {
            "node" => self.objects.reset::<Node>(server.nodes.values().cloned().collect()),
            "pod" => self.objects.reset::<Pod>(server.pods.values().cloned().collect()),
            _ => self.objects.reset::<VolumeAttachment>(server.attachments.values().cloned().collect()),
        }
        self.delivered.insert(kind, server.history.len());
        self.reconcile()
    }

    /// A request reaches the server, and takes effect.
    pub fn request_arrives(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        self.late_ones_arrive(server, rng)?;
        if self.on_their_way.is_empty() {
            return Ok(());
        }
        let index = rng.usize(0..self.on_their_way.len());
        self.arrive(server, index)
    }

    /// One request reaches the server.
    pub fn arrive(&mut self, server: &mut Server, index: usize) -> Result<(), String> {
        let (sent, call) = self.on_their_way.remove(index);
        let result = perform(server, &call)?;
        self.answered.push(Outcome { call, sent, result });
        Ok(())
    }

    fn late_ones_arrive(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        if !self.late.is_empty() && rng.bool() {
            let index = rng.usize(0..self.late.len());
            self.late_one_arrives(server, index)?;
        }
        Ok(())
    }

    /// A request that the daemon has given up takes effect.
    pub fn late_one_arrives(&mut self, server: &mut Server, index: usize) -> Result<(), String> {
        let (_, call) = self.late.remove(index);
        perform(server, &call).map(drop)
    }

    /// A reply reaches the daemon.
    pub fn reply_arrives(&mut self, rng: &mut Rng) -> Result<(), String> {
        if self.answered.is_empty() {
            return Ok(());
        }
        let index = rng.usize(0..self.answered.len());
        self.hear(index)
    }

    /// One reply reaches the daemon.
    pub fn hear(&mut self, index: usize) -> Result<(), String> {
        let outcome = self.answered.remove(index);
        self.controller.take_outcome(outcome, self.now);
        self.reconcile()
    }

    /// The daemon hears nothing of a request, which may still take effect for a while.
    pub fn request_is_lost(&mut self, rng: &mut Rng) -> Result<(), String> {
        if self.on_their_way.is_empty() {
            return Ok(());
        }
        let index = rng.usize(0..self.on_their_way.len());
        self.lose_request(index, rng.bool())
    }

    /// One request is lost, or merely late.
    pub fn lose_request(&mut self, index: usize, late: bool) -> Result<(), String> {
        let (sent, call) = self.on_their_way.remove(index);
        if late {
            self.late.push((self.now + LATE, call.clone()));
        }
        self.silence(sent, call)
    }

    /// A request took effect, and the daemon hears nothing of it.
    pub fn reply_is_lost(&mut self, rng: &mut Rng) -> Result<(), String> {
        if self.answered.is_empty() {
            return Ok(());
        }
        let index = rng.usize(0..self.answered.len());
        self.lose_reply(index)
    }

    /// One reply is lost.
    pub fn lose_reply(&mut self, index: usize) -> Result<(), String> {
        let Outcome { call, sent, .. } = self.answered.remove(index);
        self.silence(sent, call)
    }

    fn silence(&mut self, sent: Sequence, call: Call) -> Result<(), String> {
        let result = Err(CallError::Unknown("cut".to_owned()));
        self.controller.take_outcome(Outcome { call, sent, result }, self.now);
        self.reconcile()
    }

    /// Requests on their way, replies on their way, and late requests.
    pub fn under_way(&self) -> [usize; 3] {
        [self.on_their_way.len(), self.answered.len(), self.late.len()]
    }

    /// Whether a patch of the node is on its way.
    pub fn is_writing(&self, node: &NodeName) -> bool {
        self.on_their_way.iter().any(|(_, call)| matches!(call, Call::PatchNode(name, ..) if name == node))
    }

    /// How long until the daemon looks again by itself.
    pub fn wakes_in(&self) -> Option<Duration> {
        self.controller.wake_at().map(|at| at.saturating_duration_since(self.now))
    }

    /// What the daemon says it waits for.
    pub fn waits_for(&self) -> String {
        format!("{:?}", self.controller.standing().entries())
    }

    pub fn time_passes(&mut self, time: Duration) -> Result<(), String> {
        self.now += time;
        let now = self.now;
        self.late.retain(|(until, _)| *until > now);
        self.reconcile()
    }

    /// The process dies; each of its requests either took effect or never will.
    pub fn dies(
        &mut self,
        server: &mut Server,
        mut takes_effect: impl FnMut() -> bool,
    ) -> Result<(), String> {
        for (_, call) in std::mem::take(&mut self.on_their_way) {
            if takes_effect() {
                let _answer = perform(server, &call)?;
            }
        }
        self.late.clear();
        Ok(())
    }

    /// Everything under way arrives, there and back. Returns how many requests that were.
    pub fn requests_and_replies(&mut self, server: &mut Server, rng: &mut Rng) -> Result<usize, String> {
        let mut count = 0;
        while !self.on_their_way.is_empty() || !self.answered.is_empty() {
            count += 1;
            if count > 1_000 {
                return Err(format!("S39: requests without end: {:?}", self.on_their_way));
            }
            self.request_arrives(server, rng)?;
            self.reply_arrives(rng)?;
        }
        Ok(count)
    }
}

fn perform(server: &mut Server, call: &Call) -> Result<Result<Answer, CallError>, String> {
    Ok(match call {
        Call::Pair(_, _, PairRequest::Create(request)) => server.create(request)?.map(Answer::Attachment),
        Call::Pair(_, _, PairRequest::Delete(_, request)) => {
            server.delete(request)?.map(|kept| kept.map_or(Answer::Gone, Answer::Attachment))
        }
        Call::Pair(_, _, PairRequest::Read(name)) => match server.attachments.get(name) {
            Some(attachment) => Ok(Answer::Attachment(attachment.clone())),
            None => Err(CallError::NotFound(name.to_string())),
        },
        Call::PatchNode(name, _, request) => server.patch_node(name, request)?.map(Answer::Node),
        Call::Clock(_) => return Err("this controller keeps no clock".to_owned()),
        Call::ReadNode(name) => match server.nodes.get(name) {
            Some(node) => Ok(Answer::Node(node.clone())),
            None => Err(CallError::NotFound(name.to_string())),
        },
    })
}
