//! The daemon in a history: the real tables and the real controller, and requests on their way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    ids::{NodeName, ResourceVersion, Uid},
    kinds::{CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{ChangeSet, Objects, Stored},
};
use fastrand::Rng;
use mooring::{
    attach_detach::{
        AttachDetachOptions,
        calls::{Answer, AttachmentRequest, Call},
        clock::Clock,
        controller::AttachDetach,
        guard::second_writer_role::ActTarget,
        metrics::AttachDetachMetrics,
        reasons::{AttachDetachKey, AttachDetachReason},
        state::{actual::unpublishing::Sequence, desired::volume_name::VolumeId},
    },
    controller::{Controller as _, report::reporter::Reporter},
    metrics::Metrics,
};
use tokio::time::Instant;

use super::{
    clocks::Machine,
    server::{Object, Server},
};

thread_local! {
    /// No check reads them here, and making them costs more than playing a few steps.
    static METRICS: AttachDetachMetrics = {
        let metrics = Metrics::default();
        AttachDetachMetrics::new(&metrics).unwrap()
    };
}

/// Longest time for which a request that the daemon gave up may still take effect.
const LATE: Duration = Duration::from_secs(5);

/// The kinds that are watched while a history plays.
pub const KINDS: [&str; 6] = ["node", "pod", "attachment", "volume", "claim", "driver"];

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub call: Call,
    pub sent: Sequence,
    pub result: Result<Answer, CallError>,
}

/// A clone goes its own way.
impl Clone for Daemon {
    fn clone(&self) -> Self {
        let objects = Arc::new(Objects::clone(&self.objects));
        Self {
            note: self.note.clone(),
            changes: objects.subscribe(),
            controller: self.controller.fork(Arc::clone(&objects)),
            reporter: self.reporter.clone(),
            reports: self.reports.clone(),
            objects,
            now: self.now,
            rate: self.rate,
            delivered: self.delivered.clone(),
            on_their_way: self.on_their_way.clone(),
            answered: self.answered.clone(),
            late: self.late.clone(),
            deleted: self.deleted.clone(),
            unjudged: self.unjudged.clone(),
        }
    }
}

pub struct Daemon {
    /// What it says on the lease when it renews it.
    note: Option<Arc<str>>,
    pub(super) objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    pub(super) controller: AttachDetach,
    reporter: AttachDetachMetrics,
    reports: Reporter<AttachDetachKey, AttachDetachReason>,
    /// What its monotonic clock shows.
    pub(super) now: Instant,
    /// How fast that goes, if not as it should.
    rate: Option<f64>,
    /// How far the watch of each kind has delivered the server's history.
    pub(super) delivered: BTreeMap<&'static str, usize>,
    pub(super) on_their_way: Vec<(Sequence, Call)>,
    pub(super) answered: Vec<Outcome>,
    pub(super) late: Vec<(Instant, Call)>,
    /// VolumeAttachments whose deletion was asked for.
    pub(super) deleted: BTreeSet<Uid>,
    /// What was sent since the world was last asked whether that was right.
    pub(super) unjudged: Vec<Call>,
}

pub(super) fn kind(key: &ObjectRef) -> &'static str {
    match key {
        ObjectRef::Node(_) => "node",
        ObjectRef::Pod(_) => "pod",
        ObjectRef::Attachment(_) => "attachment",
        ObjectRef::Volume(_) => "volume",
        ObjectRef::Claim(_) => "claim",
        ObjectRef::Driver(_) => "driver",
        ObjectRef::Class(_) | ObjectRef::AttributesClass(_) => "none",
    }
}

impl Daemon {
    /// Starts with a complete list of everything, and leads; no lease carries its waits for force.
    pub fn start(server: &Server) -> Self {
        let mut daemon = Self::listed(server);
        daemon.controller.lead(daemon.now);
        daemon
    }

    /// Starts with a complete list of everything, and does not lead yet.
    pub fn stand_by(server: &Server) -> Self {
        Self::listed(server)
    }

    /// Wins the lease. What it reads then (the take-over barrier) is news, and proves nothing gone.
    pub fn wins(&mut self, server: &Server) -> Result<(), String> {
        for object in server.nodes.values() {
            self.objects.observe_response(object.clone());
        }
        for object in server.attachments.values() {
            self.objects.observe_response(object.clone());
        }
        for object in server.volumes.values() {
            self.objects.observe_response(object.clone());
        }
        for object in server.claims.values() {
            self.objects.observe_response(object.clone());
        }
        self.controller.changed(self.changes.take(), self.now);
        self.controller.succeed(server.told.as_deref());
        self.controller.lead(self.now);
        self.reconcile()
    }

    /// What it says when it renews the lease; `None` if it has nothing to say yet.
    pub fn note(&self) -> Option<Arc<str>> {
        self.note.clone()
    }

    fn listed(server: &Server) -> Self {
        let objects = Arc::new(Objects::default());
        let changes = objects.subscribe();
        for kind in KINDS {
            list(&objects, server, kind);
        }
        let metrics = METRICS.with(AttachDetachMetrics::clone);
        let now = Instant::now();
        let options = AttachDetachOptions::default();
        let mut controller = AttachDetach::new(
            Arc::clone(&objects),
            options,
            Clock::new(server.clocks.show(Machine::Replica, server.wall()), now),
        );
        controller.load(now);
        Self {
            note: None,
            objects,
            changes,
            controller,
            reporter: metrics,
            reports: Reporter::default(),
            now,
            rate: None,
            delivered: KINDS.map(|kind| (kind, server.history.len())).into(),
            on_their_way: Vec::new(),
            answered: Vec::new(),
            late: Vec::new(),
            deleted: BTreeSet::new(),
            unjudged: Vec::new(),
        }
    }

    /// The same with a monotonic clock that goes at its own rate.
    pub fn going_at(self, rate: f64) -> Self {
        Self { rate: Some(rate), ..self }
    }

    /// Plans, and checks what is about to be sent against what the daemon has seen.
    pub fn reconcile(&mut self) -> Result<(), String> {
        self.controller.changed(self.changes.take(), self.now);
        let plan = self.controller.plan(self.now);
        if let Some(note) = plan.measures.note {
            self.note = Some(note.into());
        }
        // What is shown is as new as what is asked.
        for report in plan.reports {
            self.reports.take(report, self.now, |_, _| ());
        }
        self.reporter.take(plan.measures.facts, self.now);
        for (_, call) in &plan.calls {
            self.is_justified(call)?;
            if let Call::Attachment(_, _, AttachmentRequest::Delete(uid, ..)) = call {
                self.deleted.insert(uid.clone());
            }
        }
        self.unjudged.extend(plan.calls.iter().map(|(_, call)| call.clone()));
        self.on_their_way.extend(plan.calls);
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

    /// The watch of a kind delivers its next event, if there is one.
    pub fn deliver(&mut self, server: &Server, wanted: &'static str) -> bool {
        let from = self.delivered[wanted];
        let next = server.history.iter().enumerate().skip(from).find(|(_, event)| kind(&event.key) == wanted);
        let Some((index, event)) = next else { return false };
        self.delivered.insert(wanted, index + 1);
        let deleted = event.deleted;
        match event.object.clone() {
            Object::Node(object) => self.take(object, deleted),
            Object::Pod(object) => self.take(object, deleted),
            Object::Attachment(object) => self.take(object, deleted),
            Object::Volume(object) => self.take(object, deleted),
            Object::Claim(object) => self.take(object, deleted),
            Object::Driver(object) => self.take(object, deleted),
        }
        true
    }

    fn take<T: Stored>(&self, object: T, deleted: bool) {
        if deleted { self.objects.delete(object) } else { self.objects.apply(object) }
    }

    /// The watch of some kind breaks, and begins anew with a list: what happened meanwhile is not told.
    pub fn watch_begins_anew(&mut self, server: &Server, rng: &mut Rng) -> Result<(), String> {
        self.relist(server, KINDS[rng.usize(0..KINDS.len())])
    }

    /// The watch of a kind begins anew with a list.
    pub fn relist(&mut self, server: &Server, kind: &'static str) -> Result<(), String> {
        list(&self.objects, server, kind);
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
        let Outcome { call, sent, result } = self.answered.remove(index);
        self.controller.answered((sent, call), result, self.now, fastrand::f64());
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
        self.controller.answered((sent, call), result, self.now, fastrand::f64());
        self.reconcile()
    }

    /// The deletions that are on their way.
    pub fn deletions(&self) -> impl Iterator<Item = (NodeName, VolumeId)> {
        let calls = self.on_their_way.iter().map(|(_, call)| call);
        calls.chain(self.late.iter().map(|(_, call)| call)).filter_map(|call| match call {
            Call::Attachment(volume, node, AttachmentRequest::Delete(..)) => {
                Some((node.clone(), volume.clone()))
            }
            _ => None,
        })
    }

    /// Whether it has noticed another controller.
    pub fn is_alarmed(&self) -> bool {
        self.controller.second_writer().signal().is_some()
    }

    /// What it says of the others.
    pub(super) fn second_writers(&self) -> String {
        format!("{:?}", self.controller.second_writer())
    }

    /// Whether it leaves a node alone for that: all are that are not out of service.
    pub fn is_alarmed_on(&self, node: &NodeName) -> bool {
        self.is_alarmed() && !self.objects.nodes.get(node).is_some_and(|node| node.is_out_of_service())
    }

    /// What the daemon says it waits for.
    pub fn waits_for(&self) -> String {
        format!("{:?}", self.reports.board().waits())
    }

    pub fn time_passes(&mut self, time: Duration) -> Result<(), String> {
        self.now += self.rate.map_or(time, |rate| time.mul_f64(rate));
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
            server.judge(self)?;
            self.request_arrives(server, rng)?;
            self.reply_arrives(rng)?;
        }
        Ok(count)
    }
}

/// Takes a complete list of a kind. It has the server's revision, whatever is in it.
fn list(objects: &Objects, server: &Server, kind: &str) {
    fn reset<'a, T: Stored>(objects: &Objects, server: &Server, all: impl Iterator<Item = &'a T>) {
        T::table(objects).advance(ResourceVersion(server.revision()));
        objects.reset::<T>(all.cloned().collect());
    }
    match kind {
        "node" => reset::<Node>(objects, server, server.nodes.values()),
        "pod" => reset::<Pod>(objects, server, server.pods.values()),
        "attachment" => reset::<VolumeAttachment>(objects, server, server.attachments.values()),
        "volume" => reset::<PersistentVolume>(objects, server, server.volumes.values()),
        "claim" => reset::<PersistentVolumeClaim>(objects, server, server.claims.values()),
        _ => reset::<CsiDriver>(objects, server, server.drivers.values()),
    }
}

fn perform(server: &mut Server, call: &Call) -> Result<Result<Answer, CallError>, String> {
    Ok(match call {
        Call::Attachment(_, _, AttachmentRequest::Create(request)) => {
            server.create(request)?.map(Answer::Attachment)
        }
        Call::Attachment(_, _, AttachmentRequest::Delete(.., request)) => {
            server.delete(request)?.map(|kept| kept.map_or(Answer::Gone, Answer::Attachment))
        }
        Call::Attachment(_, _, AttachmentRequest::Read(name)) => match server.attachments.get(name) {
            Some(attachment) => Ok(Answer::Attachment(attachment.clone())),
            None => Err(CallError::NotFound(name.to_string())),
        },
        Call::PatchNode(name, _, request) => server.patch_node(name, request)?.map(Answer::Node),
        Call::ReadNode(name) => match server.nodes.get(name) {
            Some(node) => Ok(Answer::Node(node.clone())),
            None => Err(CallError::NotFound(name.to_string())),
        },
        Call::ReadOwner(target, uid) => {
            let owner = match target {
                ActTarget::Node(name) => server
                    .nodes
                    .get(name)
                    .filter(|node| node.metadata.uid == *uid)
                    .and_then(|_| server.authors.owner(name)),
                ActTarget::Attachment(..) => server.authors.created(uid),
            };
            Ok(Answer::Owners(owner.map(|author| author.manager().to_owned()).into_iter().collect()))
        }
    })
}
