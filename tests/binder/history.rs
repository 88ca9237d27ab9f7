//! Random histories of the binder: users, a scheduler, a provisioner and a kubelet do what they like,
//! watches lag each for itself and are cut, requests are lost before or after they took effect, or take
//! effect when nobody waits for them any more, and the daemon dies at any moment. Every write is checked against the invariants; when the trouble stops, everything must
//! come to rest, as bound as it can be.
//!
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test binder_cases -- history` repeats it,
//! `MOORING_HISTORIES` asks for more of them.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use fastrand::Rng;
use libtest_mimic::{Failed, Trial};
use mooring::{
    binder::{
        BinderOptions,
        act::op::{Answer, Call, Op},
        planner::Planner,
    },
    kube_api::{
        call::CallError,
        kinds::{PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    },
    state::{ChangeSet, Objects, Stored},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    invariants::{MADE, settled},
    server::{Seen, Server, decode, path},
    world::recyclers,
};

/// Histories per run.
const HISTORIES: u64 = 300;
/// Steps with trouble.
pub const STEPS: usize = 120;
/// Rounds without, in which everything must have come to rest.
const ROUNDS: usize = 400;

pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/";
pub const VOLUMES: &str = "/api/v1/persistentvolumes/";
pub const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses/";
pub const PODS: &str = "/api/v1/namespaces/default/pods/";
const KINDS: [&str; 4] = [CLAIMS, VOLUMES, CLASSES, PODS];
/// For how long a request that was not answered may still take effect.
const LATE: Duration = Duration::from_secs(10);
/// Longer than any history.
const NEVER: Duration = Duration::from_hours(24 * 365);
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// Seeds beyond those that found something: the late answer to a write about a claim that a list lacked.
const FOUND: [u64; 1] = [10_820];

pub fn trial() -> Trial {
    Trial::test("history: S18 to S33 and convergence over random histories", || {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seeds: Vec<u64> = match number("MOORING_SEED") {
            Some(seed) => vec![seed],
            None => (0..number("MOORING_HISTORIES").unwrap_or(HISTORIES)).chain(FOUND).collect(),
        };
        for seed in seeds {
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| play(seed)));
            let outcome = outcome.unwrap_or_else(|panic| {
                Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".to_owned()))
            });
            outcome.map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        Ok(())
    })
}

fn play(seed: u64) -> Result<(), String> {
    let mut history = History::begin(seed);
    for _ in 0..STEPS {
        history.step();
    }
    comes_to_rest(&mut history.server, &mut history.daemon, &mut history.rng)?;
    let told = |error| format!("{error}; it waits for {}", history.daemon.waits_for());
    settled(&history.server).map_err(told)
}

/// A world with its binder, and the steps that a seed decides.
pub struct History {
    pub server: Server,
    pub daemon: Daemon,
    pub rng: Rng,
    pub sync_period: Duration,
    bad_network: bool,
}

impl History {
    pub fn begin(seed: u64) -> Self {
        let mut server = Server::new(BTreeMap::new());
        for (name, provisioner, mode) in [
            ("gold", "d", "Immediate"),
            ("wait", "d", "WaitForFirstConsumer"),
            ("none", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ] {
            let class = json!({
                "metadata": {"name": name, "uid": name},
                "provisioner": provisioner,
                "volumeBindingMode": mode,
            });
            server.put(&format!("{CLASSES}{name}"), class);
        }
        // A wake-up that is missed must not be made up for by the resync.
        let sync_period = if seed.is_multiple_of(2) { NEVER } else { BinderOptions::default().sync_period };
        let daemon = Daemon::start(&mut server, Instant::now(), sync_period);
        let (rng, bad_network) = (Rng::with_seed(seed), seed.is_multiple_of(3));
        Self { server, daemon, rng, sync_period, bad_network }
    }

    pub fn step(&mut self) {
        let Self { server, daemon, rng, sync_period, bad_network } = self;
        match rng.u32(0..100) {
            0..25 => somebody_acts(server, rng),
            25..45 => daemon.watch_delivers(server, rng),
            45..50 if *bad_network => daemon.request_is_lost(server, rng),
            65..68 if *bad_network => daemon.late_request_arrives(server, rng),
            45..65 => daemon.request_arrives(server, rng),
            65..85 => daemon.reply_arrives(rng),
            85..88 => daemon.request_is_lost(server, rng),
            98..100 => daemon.late_request_arrives(server, rng),
            88..90 => daemon.watch_is_cut(server, rng),
            90..92 => touch_any(server, rng),
            92..95 => daemon.time_passes(Duration::from_millis(rng.u64(1..3_000)), server, rng),
            95..96 => daemon.time_passes(Duration::from_mins(6), server, rng),
            96..98 => {
                daemon.dies(server, rng);
                *daemon = Daemon::start(server, daemon.now, *sync_period);
            }
            _ => {}
        }
    }
}

/// Everybody does all there is to do, until nothing happens any more.
pub fn comes_to_rest(server: &mut Server, daemon: &mut Daemon, rng: &mut Rng) -> Result<(), String> {
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        let before = server.revision();
        provisioner_acts(server);
        kubelet_acts(server, true);
        daemon.everything_arrives(server, rng)?;
        daemon.time_passes(LATE, server, rng);
        quiet = if server.revision() == before { quiet + 1 } else { 0 };
        // Longer than any back-off and the resync.
        if quiet > 40 {
            return Ok(());
        }
    }
    Err(format!("not at rest after {ROUNDS} rounds; it waits for {}", daemon.waits_for()))
}

fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// A user, an administrator, the scheduler or the provisioner does something.
fn somebody_acts(server: &mut Server, rng: &mut Rng) {
    let claim = format!("{CLAIMS}c{}", rng.u32(1..4));
    let volume = format!("{VOLUMES}v{}", rng.u32(1..4));
    let size = format!("{}Gi", rng.u32(1..4));
    let fresh = format!("uid-{}", server.revision());
    match rng.u32(0..15) {
        12 => kubelet_acts(server, rng.u32(0..4) > 0),
        13 => {
            let pods: Vec<String> =
                server.store.objects.keys().filter(|path| path.starts_with(PODS)).cloned().collect();
            if let Some(pod) = pods.first() {
                server.remove(pod);
            }
        }
        0..3 if !server.store.objects.contains_key(&claim) => {
            let named = if rng.u32(0..6) == 0 { format!("v{}", rng.u32(1..4)) } else { String::new() };
            let class = pick(rng, &["", "", "gold", "wait", "none", "late", "manual"]);
            let class = if rng.u32(0..7) == 0 { Value::Null } else { json!(class) };
            let object = json!({
                "metadata": {"name": claim.rsplit('/').next(), "namespace": "default", "uid": fresh, "annotations": {"kept": "", MADE: server.revision().to_string()}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "volumeName": named, "storageClassName": class,
                    "resources": {"requests": {"storage": size}}, "unknown": {"kept": true},
                },
                "status": {"phase": "Pending"},
            });
            server.put(&claim, object);
        }
        3..5 if server.store.objects.contains_key(&claim) => {
            server.remove(&claim);
        }
        5..8 if !server.store.objects.contains_key(&volume) => {
            let mut object = json!({
                "metadata": {"name": volume.rsplit('/').next(), "uid": fresh, "annotations": {"kept": ""}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                    "storageClassName": pick(rng, &["", "", "gold", "wait", "none", "late", "manual"]),
                    "persistentVolumeReclaimPolicy": pick(rng, &["Retain", "Retain", "Delete"]),
                    "unknown": {"kept": true},
                },
                "status": {"phase": "Pending"},
            });
            if rng.u32(0..5) == 0 {
                let uid = server
                    .store
                    .objects
                    .get(&claim)
                    .filter(|_| rng.bool())
                    .map(|claim| text(claim, "/metadata/uid"));
                object["spec"]["claimRef"] = json!({
                    "namespace": "default", "name": claim.rsplit('/').next(), "uid": uid.unwrap_or(""),
                });
            }
            match rng.u32(0..3) {
                0 => object["spec"]["csi"] = json!({"driver": "d", "volumeHandle": fresh}),
                1 => {
                    object["spec"]["hostPath"] = json!({"path": format!("/data/{fresh}")});
                    object["spec"]["persistentVolumeReclaimPolicy"] = json!("Recycle");
                }
                _ => {}
            }
            server.put(&volume, object);
        }
        8 if server.store.objects.contains_key(&volume) => {
            server.remove(&volume);
            collect_garbage(server);
        }
        9 => {
            let released = server
                .store
                .objects
                .get(&volume)
                .is_some_and(|volume| text(volume, "/status/phase") == "Released");
            if released {
                let cleared = pick(rng, &[Value::Null, json!({"uid": null})]);
                server.patch(&volume, &json!({"spec": {"claimRef": cleared}}));
            }
        }
        10 => scheduler_acts(server, &claim, &volume, rng),
        11 if rng.u32(0..3) == 0 => {
            let marked = pick(rng, &[json!("true"), Value::Null]);
            let key = "storageclass.kubernetes.io/is-default-class";
            server.patch(&format!("{CLASSES}gold"), &json!({"metadata": {"annotations": {key: marked}}}));
        }
        14 if !server.store.objects.contains_key(&format!("{CLASSES}late")) => {
            late_class_comes(server, &fresh);
        }
        _ => provisioner_acts(server),
    }
}

/// A class comes, and at once what its watch may be late for: a claim of it, and a volume.
fn late_class_comes(server: &mut Server, fresh: &str) {
    let class = json!({
        "metadata": {"name": "late", "uid": "late", "annotations": {MADE: server.revision().to_string()}},
        "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer",
    });
    server.put(&format!("{CLASSES}late"), class);
    let made = server.revision().to_string();
    let object = |name: &str, spec: Value| {
        let metadata = json!({"name": name, "uid": format!("{name}-{fresh}"), "annotations": {MADE: made}});
        json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
    };
    let modes = ["ReadWriteOnce"];
    let mut claim = object(
        "c-late",
        json!({
            "accessModes": modes, "storageClassName": "late", "resources": {"requests": {"storage": "1Gi"}},
        }),
    );
    claim["metadata"]["namespace"] = json!("default");
    let mut volume = object(
        "v-late",
        json!({
            "accessModes": modes, "storageClassName": "late", "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
        }),
    );
    volume["status"]["phase"] = json!("Available");
    server.put(&format!("{VOLUMES}v-late"), volume);
    server.put(&format!("{CLAIMS}c-late"), claim);
}

/// Chooses a node or a volume for a claim that waits for its first consumer.
fn scheduler_acts(server: &mut Server, claim: &str, volume: &str, rng: &mut Rng) {
    let Some(object) = server.store.objects.get(claim) else { return };
    let class = text(object, "/spec/storageClassName").to_owned();
    let waits =
        ["wait", "none", "late"].contains(&class.as_str()) && text(object, "/spec/volumeName").is_empty();
    if !waits {
        return;
    }
    let uid = object["metadata"]["uid"].clone();
    let has_one = server.store.objects.values().any(|volume| volume["spec"]["claimRef"]["uid"] == uid);
    if rng.bool() {
        let selected = if rng.u32(0..4) == 0 { Value::Null } else { json!("n1") };
        server.patch(claim, &json!({"metadata": {"annotations": {SELECTED_NODE: selected}}}));
    } else if let Some(found) = server.store.objects.get(volume)
        && !has_one
        && found["spec"]["claimRef"].is_null()
        && text(found, "/status/phase") == "Available"
        && text(found, "/spec/storageClassName") == class
        && text(found, "/spec/capacity/storage")
            >= text(&server.store.objects[claim], "/spec/resources/requests/storage")
    {
        let reference = json!({"namespace": "default", "name": claim.rsplit('/').next(), "uid": uid});
        let marks = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
        server.patch(volume, &json!({"metadata": {"annotations": marks}, "spec": {"claimRef": reference}}));
    }
}

/// Makes volumes for claims that ask, and deletes those that were released (pv-binder §7.5).
fn provisioner_acts(server: &mut Server) {
    let asking: Vec<Value> = server
        .store
        .objects
        .iter()
        .filter(|(path, claim)| {
            let annotations = &claim["metadata"]["annotations"];
            let waits = ["wait", "none", "late"].contains(&text(claim, "/spec/storageClassName"));
            path.starts_with(CLAIMS)
                && text(claim, "/spec/volumeName").is_empty()
                && annotations[PROVISIONER] == "d"
                && (!waits || !annotations[SELECTED_NODE].is_null())
        })
        .map(|(_, claim)| claim.clone())
        .collect();
    for claim in asking {
        let name = format!("pvc-{}", text(&claim, "/metadata/uid"));
        if server.store.objects.contains_key(&format!("{VOLUMES}{name}")) {
            continue;
        }
        let object = json!({
            "metadata": {
                "name": name, "uid": format!("of-{name}"),
                "annotations": {"pv.kubernetes.io/provisioned-by": "d"},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": claim["spec"]["resources"]["requests"],
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": "d", "volumeHandle": name},
                "claimRef": {
                    "namespace": "default", "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"],
                },
            },
            "status": {"phase": "Pending"},
        });
        server.put(&format!("{VOLUMES}{name}"), object);
    }
    let released: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, volume)| path.starts_with(VOLUMES) && text(volume, "/status/phase") == "Released")
        .filter(|(_, volume)| volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "d")
        .map(|(path, _)| path.clone())
        .collect();
    for path in released {
        server.remove(&path);
    }
}

/// Runs the pods that may run to their end.
fn kubelet_acts(server: &mut Server, well: bool) {
    let runnable: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, pod)| path.starts_with(PODS) && text(pod, "/status/phase") == "Pending")
        .filter(|(_, pod)| pod["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty))
        .map(|(path, _)| path.clone())
        .collect();
    for path in runnable {
        let phase = if well { "Succeeded" } else { "Failed" };
        server.patch(&path, &json!({"status": {"phase": phase}}));
    }
}

/// A pod goes when the volume that owns it is gone.
fn collect_garbage(server: &mut Server) {
    let uids: Vec<Value> =
        server.store.objects.values().map(|object| object["metadata"]["uid"].clone()).collect();
    let orphans: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, pod)| {
            path.starts_with(PODS) && !uids.contains(&pod["metadata"]["ownerReferences"][0]["uid"])
        })
        .map(|(path, _)| path.clone())
        .collect();
    for path in orphans {
        server.remove(&path);
    }
}

fn touch_any(server: &mut Server, rng: &mut Rng) {
    let paths: Vec<String> = server.store.objects.keys().cloned().collect();
    let path = pick(rng, &paths);
    server.touch(&path);
}

fn is_write(op: &Op) -> bool {
    op.call.write_kind().is_some()
}

/// Options of the binder in all histories.
pub fn options() -> BinderOptions {
    BinderOptions { recyclers: Some(recyclers()), ..BinderOptions::default() }
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
        let options = BinderOptions { sync_period, ..options() };
        let mut daemon = Self {
            planner: Planner::new(Arc::clone(&objects), options),
            objects,
            changes,
            now,
            delivered: BTreeMap::new(),
            on_their_way: Vec::new(),
            answered: Vec::new(),
            late: Vec::new(),
        };
        for kind in KINDS {
            daemon.list(server, kind);
        }
        daemon.planner.load(now);
        daemon.planner.lead(now);
        daemon.plan();
        daemon
    }

    fn list(&mut self, server: &Server, kind: &'static str) {
        fn all<T: Stored>(objects: &Objects, server: &Server, kind: &str) {
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
        for object in self.changes.take_now() {
            self.planner.changed(&object, self.now);
        }
        let ops = self.planner.plan(self.now).ops;
        let seen = if ops.is_empty() { Seen::default() } else { self.seen() };
        self.on_their_way.extend(ops.into_iter().map(|op| Sent { op, seen: seen.clone() }));
        assert_eq!(self.planner.second_writer(), None, "S14: nobody else binds here");
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

    fn watch_delivers(&mut self, server: &Server, rng: &mut Rng) {
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

    fn watch_is_cut(&mut self, server: &Server, rng: &mut Rng) {
        self.list(server, pick(rng, &KINDS));
        self.plan();
    }

    fn request_arrives(&mut self, server: &mut Server, rng: &mut Rng) {
        if !self.on_their_way.is_empty() {
            let sent = self.on_their_way.swap_remove(rng.usize(0..self.on_their_way.len()));
            let result = sent.arrives(server);
            self.answered.push((sent.op, result));
        }
    }

    fn reply_arrives(&mut self, rng: &mut Rng) {
        if !self.answered.is_empty() {
            let (op, result) = self.answered.swap_remove(rng.usize(0..self.answered.len()));
            self.planner.outcome(op, result, self.now, 0.5);
            self.plan();
        }
    }

    /// Somebody writes first, the server is busy, or nobody knows whether the request took effect.
    fn request_is_lost(&mut self, server: &mut Server, rng: &mut Rng) {
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

    fn late_request_arrives(&mut self, server: &mut Server, rng: &mut Rng) {
        if !self.late.is_empty() {
            let (sent, _) = self.late.swap_remove(rng.usize(0..self.late.len()));
            let _answer = sent.arrives(server);
        }
    }

    /// What the network still holds arrives in time, or never does.
    fn time_passes(&mut self, time: Duration, server: &mut Server, rng: &mut Rng) {
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
    fn dies(&mut self, server: &mut Server, rng: &mut Rng) {
        for sent in std::mem::take(&mut self.on_their_way) {
            if rng.bool() {
                let _answer = sent.arrives(server);
            }
        }
    }

    fn everything_arrives(&mut self, server: &mut Server, rng: &mut Rng) -> Result<(), String> {
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

    /// Whether a request is on its way, or its answer.
    pub fn is_busy(&self) -> bool {
        !(self.on_their_way.is_empty() && self.answered.is_empty() && self.late.is_empty())
    }

    /// What it does next when it has heard of everything: reads are answered, and writes are not.
    pub fn next_writes(&mut self, server: &mut Server, patience: Duration) -> Vec<Op> {
        while KINDS.iter().any(|kind| self.deliver(server, kind)) {}
        self.plan();
        for wait in [Duration::ZERO, patience] {
            self.now += wait;
            self.plan();
            while let Some(read) = self.on_their_way.iter().position(|sent| !is_write(&sent.op)) {
                let sent = self.on_their_way.swap_remove(read);
                let result = sent.arrives(server);
                self.planner.outcome(sent.op, result, self.now, 0.5);
                self.plan();
            }
        }
        self.on_their_way.iter().map(|sent| sent.op.clone()).collect()
    }

    pub fn waits_for(&self) -> String {
        let diagnostics = self.planner.diagnostics();
        format!("{:?} {:?}", diagnostics.claims(), diagnostics.volumes())
    }
}
