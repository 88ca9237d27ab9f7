//! The binder's daemon in the histories, without its network: what its watches have told, what it asks for, and what becomes
//! of that.
//!
//! In: the server, and chance. Out: requests that arrive there with what had been seen when they were planned.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiserver::{
    call::CallError,
    ids::ResourceVersion,
    kinds::{PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    tables::{ChangeSet, Objects, Stored},
};
use fastrand::Rng;
use mooring::{
    binder::{
        BinderOptions,
        calls::{Answer, Call, Op},
        controller::Planner,
    },
    controller::report::Reason,
    host_plugins::{HostPlugins, options::PluginOptions},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    actors::pick,
    server::{CLAIMS, CLASSES, PODS, Seen, Server, VOLUMES, decode, path},
    world::recyclers,
};

const KINDS: [&str; 4] = [CLAIMS, VOLUMES, CLASSES, PODS];
/// For how long a request that was not answered may still take effect.
pub const LATE: Duration = Duration::from_secs(10);

fn is_write(op: &Op) -> bool {
    op.call.write_kind().is_some()
}

/// The plugins of the binder in all histories.
fn plugins() -> Box<HostPlugins> {
    let options = PluginOptions { recyclers: Some(recyclers()), ..PluginOptions::default() };
    Box::new(HostPlugins::new(options))
}

/// The daemon: the real tables and the real planner, and requests on their way.
pub struct Daemon {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    planner: Planner,
    pub now: Instant,
    /// How far each watch has delivered.
    delivered: BTreeMap<&'static str, usize>,
    on_their_way: Vec<Sent>,
    /// What claims and volumes wait for, as it was last reported.
    waits: BTreeMap<String, Option<&'static str>>,
    answered: Vec<(Op, Result<Answer, CallError>)>,
    /// Given up by the daemon, and not by the network yet; until when.
    late: Vec<(Sent, Instant)>,
}

/// A request, and what the tables showed when it was planned.
#[derive(Clone, Debug)]
struct Sent {
    op: Op,
    seen: Seen,
}

impl Sent {
    fn arrives(&self, server: &mut Server) -> Result<Answer, CallError> {
        server.seen = Some(self.seen.clone());
        server.perform(&self.op.call)
    }
}

impl Daemon {
    pub fn start(server: &mut Server, now: Instant, sync_period: Duration) -> Self {
        server.reads.clear();
        let objects = Arc::new(Objects::default());
        let changes = objects.subscribe();
        let options = BinderOptions { sync_period, ..BinderOptions::default() };
        let mut daemon = Self {
            planner: Planner::new(Arc::clone(&objects), options),
            objects,
            changes,
            now,
            delivered: BTreeMap::new(),
            on_their_way: Vec::new(),
            waits: BTreeMap::new(),
            answered: Vec::new(),
            late: Vec::new(),
        };
        for kind in KINDS {
            daemon.list(server, kind);
        }
        daemon.planner.state.plugins = plugins();
        daemon.planner.load(now);
        daemon.planner.lead(now);
        daemon.plan();
        daemon
    }

    fn list(&mut self, server: &Server, kind: &'static str) {
        // A list has the server's revision, whatever is in it.
        fn all<T: Stored>(objects: &Objects, server: &Server, kind: &str) {
            T::table(objects).advance(ResourceVersion(server.revision()));
            let found = server.store.objects.iter().filter(|(path, _)| path.starts_with(kind));
            objects.reset::<T>(found.map(|(_, object)| decode(object)).collect());
        }
        match kind {
            CLAIMS => all::<PersistentVolumeClaim>(&self.objects, server, kind),
            VOLUMES => all::<PersistentVolume>(&self.objects, server, kind),
            PODS => all::<Pod>(&self.objects, server, kind),
            _ => all::<StorageClass>(&self.objects, server, kind),
        }
        self.delivered.insert(kind, server.changes.len());
    }

    fn plan(&mut self) {
        for object in self.changes.take() {
            self.planner.changed(&object, self.now);
        }
        let plan = self.planner.plan(self.now);
        for report in plan.reports {
            let waits = report.reason.filter(|reason| !reason.is_settled()).map(|reason| reason.code());
            self.waits.insert(report.key.to_string(), waits);
        }
        let ops = plan.calls;
        let seen = if ops.is_empty() { Seen::default() } else { self.seen() };
        self.on_their_way.extend(ops.into_iter().map(|op| Sent { op, seen: seen.clone() }));
        assert_eq!(self.planner.state.writers.signal(), None, "S14: nobody else binds here");
    }

    fn seen(&self) -> Seen {
        fn all<T: Stored>(objects: &BTreeMap<T::Key, Arc<T>>) -> impl Iterator<Item = (String, u64)> {
            objects.iter().map(|(key, object)| (T::path(key), object.metadata().resource_version.0))
        }
        let objects = &self.objects;
        let revisions = all(&objects.claims.snapshot())
            .chain(all(&objects.volumes.snapshot()))
            .chain(all(&objects.classes.snapshot()))
            .chain(all(&objects.pods.snapshot()))
            .collect();
        Seen { revisions, delivered: self.delivered.clone() }
    }

    pub fn watch_delivers(&mut self, server: &Server, rng: &mut Rng) {
        let kind = pick(rng, &KINDS);
        for _ in 0..rng.u32(1..4) {
            self.deliver(server, kind);
        }
        self.plan();
    }

    fn deliver(&mut self, server: &Server, kind: &'static str) -> bool {
        fn tell<T: Stored>(objects: &Objects, object: &Value, gone: bool) {
            if gone { objects.delete::<T>(decode(object)) } else { objects.apply::<T>(decode(object)) }
        }
        let from = self.delivered[kind];
        let next =
            server.changes.iter().enumerate().skip(from).find(|(_, change)| change.path.starts_with(kind));
        let Some((index, change)) = next else { return false };
        self.delivered.insert(kind, index + 1);
        match kind {
            CLAIMS => tell::<PersistentVolumeClaim>(&self.objects, &change.object, change.gone),
            VOLUMES => tell::<PersistentVolume>(&self.objects, &change.object, change.gone),
            PODS => tell::<Pod>(&self.objects, &change.object, change.gone),
            _ => tell::<StorageClass>(&self.objects, &change.object, change.gone),
        }
        true
    }

    pub fn watch_is_cut(&mut self, server: &Server, rng: &mut Rng) {
        self.list(server, pick(rng, &KINDS));
        self.plan();
    }

    pub fn request_arrives(&mut self, server: &mut Server, rng: &mut Rng) {
        if !self.on_their_way.is_empty() {
            let sent = self.on_their_way.swap_remove(rng.usize(0..self.on_their_way.len()));
            let result = sent.arrives(server);
            self.answered.push((sent.op, result));
        }
    }

    pub fn reply_arrives(&mut self, rng: &mut Rng) {
        if !self.answered.is_empty() {
            let (op, result) = self.answered.swap_remove(rng.usize(0..self.answered.len()));
            self.planner.answered(op, result, self.now, 0.5);
            self.plan();
        }
    }

    /// Somebody writes first, the server is busy, or nobody knows whether the request took effect.
    pub fn request_is_lost(&mut self, server: &mut Server, rng: &mut Rng) {
        if self.on_their_way.is_empty() {
            return;
        }
        let sent = self.on_their_way.swap_remove(rng.usize(0..self.on_their_way.len()));
        let result = match rng.u32(0..6) {
            4.. => {
                self.late.push((sent.clone(), self.now + LATE));
                Err(CallError::Unknown("not answered in time".to_owned()))
            }
            0 => {
                if let Call::Write(write) = &sent.op.call
                    && server.store.objects.contains_key(&path(&write.target))
                {
                    server.touch(&path(&write.target));
                }
                sent.arrives(server)
            }
            1 => Err(CallError::Throttled { message: "busy".to_owned(), after: Duration::from_secs(2) }),
            2 => Err(CallError::Unknown("never arrived".to_owned())),
            _ => {
                let _answer = sent.arrives(server);
                Err(CallError::Unknown("the reply was lost".to_owned()))
            }
        };
        self.answered.push((sent.op, result));
    }

    pub fn late_request_arrives(&mut self, server: &mut Server, rng: &mut Rng) {
        if !self.late.is_empty() {
            let (sent, _) = self.late.swap_remove(rng.usize(0..self.late.len()));
            let _answer = sent.arrives(server);
        }
    }

    /// What the network still holds arrives in time, or never does.
    pub fn time_passes(&mut self, time: Duration, server: &mut Server, rng: &mut Rng) {
        let now = self.now + time;
        let (late, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.late).into_iter().partition(|(_, until)| *until <= now);
        self.late = still;
        for (sent, _) in late {
            if rng.bool() {
                let _answer = sent.arrives(server);
            }
        }
        self.now = now;
        self.plan();
    }

    /// Each of its requests either took effect or never will.
    pub fn dies(&mut self, server: &mut Server, rng: &mut Rng) {
        for sent in std::mem::take(&mut self.on_their_way) {
            if rng.bool() {
                let _answer = sent.arrives(server);
            }
        }
    }

    pub fn everything_arrives(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
        for _ in 0..1_000 {
            while KINDS.iter().any(|kind| self.deliver(server, kind)) {}
            self.plan();
            if self.on_their_way.is_empty() && self.answered.is_empty() {
                return Ok(());
            }
            self.request_arrives(server, rng);
            self.reply_arrives(rng);
        }
        Err(format!("S39: requests without end: {:?}", self.on_their_way))
    }

    /// What it does next when it has heard of everything: reads are answered, and writes are not.
    pub fn next_writes(&mut self, server: &mut Server) -> Vec<Op> {
        while KINDS.iter().any(|kind| self.deliver(server, kind)) {}
        self.plan();
        while let Some(read) = self.on_their_way.iter().position(|sent| !is_write(&sent.op)) {
            let sent = self.on_their_way.swap_remove(read);
            let result = sent.arrives(server);
            self.planner.answered(sent.op, result, self.now, 0.5);
            self.plan();
        }
        self.on_their_way.iter().map(|sent| sent.op.clone()).collect()
    }

    pub fn waits_for(&self) -> String {
        let waits = self.waits.iter().filter_map(|(key, code)| Some(format!("{key}: {}", (*code)?)));
        waits.collect::<Vec<_>>().join(", ")
    }
}
