//! The daemon in a history: the real tables and the real controller, and requests on their way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::FutureExt;
use mooring::{
    attach_detach::{
        calls::{Answer, Call, Outcome, PairRequest},
        clock::Clock,
        controller::{AttachDetachOptions, Controller},
        metrics::AttachDetachMetrics,
        withdrawal::Sequence,
    },
    kube_api::{
        call::CallError,
        kinds::{Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    },
    metrics::Metrics,
    state::{ChangeSet, Objects},
};
use tokio::time::Instant;

use super::server::{Object, Server};

/// Longest time for which a request that the daemon gave up may still take effect.
const LATE: Duration = Duration::from_secs(5);

pub struct Daemon {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: Controller,
    now: Instant,
    /// How far the watch of each kind has delivered the server's history.
    delivered: BTreeMap<&'static str, usize>,
    on_their_way: Vec<(Sequence, Call)>,
    answered: Vec<Outcome>,
    late: Vec<(Instant, Call)>,
}

fn kind(key: &ObjectRef) -> &'static str {
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
        let metrics = AttachDetachMetrics::new(&Metrics::default()).unwrap();
        let now = Instant::now();
        let clock = Clock::new(server.wall(), now);
        let mut controller =
            Controller::new(Arc::clone(&objects), metrics, AttachDetachOptions::default(), clock);
        controller.load(now);
        controller.take_over();
        let end = server.history.len();
        let mut daemon = Self {
            objects,
            changes,
            controller,
            now,
            delivered: BTreeMap::from([("node", end), ("pod", end), ("attachment", end)]),
            on_their_way: Vec::new(),
            answered: Vec::new(),
            late: Vec::new(),
        };
        daemon.reconcile();
        daemon
    }

    fn reconcile(&mut self) {
        if let Some(changed) = self.changes.take().now_or_never() {
            self.controller.take_changes(changed, self.now);
        }
        let effects = self.controller.reconcile(self.now);
        self.on_their_way.extend(effects.calls);
    }

    /// The watch of some kind delivers its next events, of which the controller sees only the sum.
    pub fn watch_delivers(&mut self, server: &Server, rng: &mut Rng) {
        let kinds = ["node", "pod", "attachment"];
        for _ in 0..rng.u32(1..4) {
            self.deliver(server, kinds[rng.usize(0..kinds.len())]);
        }
        self.reconcile();
    }

    pub fn watch_delivers_all(&mut self, server: &Server) {
        for kind in ["node", "pod", "attachment"] {
            while self.deliver(server, kind) {}
        }
        self.reconcile();
    }

    fn deliver(&mut self, server: &Server, wanted: &'static str) -> bool {
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

    /// A request reaches the server, and takes effect.
    pub fn request_arrives(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        self.late_ones_arrive(server, rng)?;
        if self.on_their_way.is_empty() {
            return Ok(());
        }
        let (sent, call) = self.on_their_way.swap_remove(rng.usize(0..self.on_their_way.len()));
        let result = perform(server, &call)?;
        self.answered.push(Outcome { call, sent, result });
        Ok(())
    }

    fn late_ones_arrive(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        let now = self.now;
        self.late.retain(|(until, _)| *until > now);
        if !self.late.is_empty() && rng.bool() {
            let (_, call) = self.late.swap_remove(rng.usize(0..self.late.len()));
            let _answer = perform(server, &call)?;
        }
        Ok(())
    }

    /// A reply reaches the daemon.
    pub fn reply_arrives(&mut self, rng: &mut Rng) {
        if !self.answered.is_empty() {
            let outcome = self.answered.swap_remove(rng.usize(0..self.answered.len()));
            self.controller.take_outcome(outcome, self.now);
            self.reconcile();
        }
    }

    /// The daemon hears nothing of a request, which may still take effect for a while.
    pub fn request_is_lost(&mut self, rng: &mut Rng) {
        if !self.on_their_way.is_empty() {
            let (sent, call) = self.on_their_way.swap_remove(rng.usize(0..self.on_their_way.len()));
            if rng.bool() {
                self.late.push((self.now + LATE, call.clone()));
            }
            self.silence(sent, call);
        }
    }

    /// A request took effect, and the daemon hears nothing of it.
    pub fn reply_is_lost(&mut self, rng: &mut Rng) {
        if !self.answered.is_empty() {
            let Outcome { call, sent, .. } = self.answered.swap_remove(rng.usize(0..self.answered.len()));
            self.silence(sent, call);
        }
    }

    fn silence(&mut self, sent: Sequence, call: Call) {
        let result = Err(CallError::Unknown("cut".to_owned()));
        self.controller.take_outcome(Outcome { call, sent, result }, self.now);
        self.reconcile();
    }

    /// What the daemon says it waits for.
    pub fn waits_for(&self) -> String {
        format!("{:?}", self.controller.standing().entries())
    }

    pub fn time_passes(&mut self, time: Duration) {
        self.now += time;
        self.reconcile();
    }

    /// The process dies; each of its requests either took effect or never will.
    pub fn dies(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        for (_, call) in std::mem::take(&mut self.on_their_way) {
            if rng.bool() {
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
            self.reply_arrives(rng);
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
