//! A server and the binder's planner on top of it, with a watch that never lags.
//!
//! In: the objects of a case, and faults. Out: the objects afterwards, the events, the number of
//! writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    events::{Event, Novelty},
    ids::{ClaimKey, VolumeName},
    kinds::{CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    tables::{Objects, Stored},
};
use mooring::{
    binder::{
        BinderOptions,
        calls::{Call, Op, Purpose, Target, Write},
        controller::{Plan, Planner},
        decide::{claim::sync_claim, volume::sync_volume},
        durations::Sample,
    },
    controller::report::{Reason, events::RecordedEvents},
    host_plugins::{
        HostPlugins,
        options::{PluginOptions, Recycler, Recyclers},
    },
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    case::{Later, Start, Sync},
    server::{Server, decode, path},
};

/// With what the names of recycler pods begin.
const POD_PREFIX: &str = "recycler-for-";

/// What goes wrong, at the write of this number (from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends after the write; another starts from the objects alone.
    Crash(usize),
    /// The write is made, and its answer is lost.
    ReplyLost(usize),
    /// The write is not made, and nobody says so.
    RequestLost(usize),
    /// Somebody else writes to the object first.
    Conflict(usize),
    /// The server asks to come back later.
    Throttled(usize),
    /// The process ends before the write; another starts from the objects alone.
    CrashBefore(usize),
}

impl Fault {
    /// Every fault at one write.
    pub fn all(number: usize) -> [Self; 6] {
        [
            Self::Crash(number),
            Self::ReplyLost(number),
            Self::RequestLost(number),
            Self::Conflict(number),
            Self::Throttled(number),
            Self::CrashBefore(number),
        ]
    }

    fn at(self) -> usize {
        match self {
            Self::Crash(number)
            | Self::ReplyLost(number)
            | Self::RequestLost(number)
            | Self::Conflict(number)
            | Self::Throttled(number)
            | Self::CrashBefore(number) => number,
        }
    }
}

/// A server, and a binder that knows what it was told.
pub struct World {
    server: Server,
    planner: Planner,
    options: BinderOptions,
    plugins: PluginOptions,
    objects: Arc<Objects>,
    now: Instant,
    /// Changes the watches have delivered.
    watched: usize,
    /// How recycler pods end, by the beginning of their names.
    pod_ends: BTreeMap<String, Value>,
    faults: Vec<Fault>,
    /// Writes the server was asked for.
    pub writes: usize,
    /// What each was for.
    pub written: Vec<&'static str>,
    /// Events; decisions that no planner was asked for repeat theirs, which is left out.
    pub events: Vec<Event>,
    recorded: RecordedEvents<Target>,
    /// When this process told each of them, and the server's revision then.
    told: Vec<(Instant, u64, Event)>,
    /// What was measured, as cases write it.
    pub samples: Vec<String>,
    /// Label of the last decision.
    pub reason: String,
    /// Labels of all reasons why something waited.
    pub waited: BTreeSet<String>,
}

impl World {
    pub fn new(start: &Start, faults: &[Fault]) -> Self {
        let options =
            BinderOptions { enable_dynamic_provisioning: !start.no_provisioning, ..BinderOptions::default() };
        let plugins = PluginOptions {
            enable_hostpath_provisioner: start.host_path,
            recyclers: start.recycler.then(recyclers),
        };
        let objects = Arc::new(Objects::default());
        let mut world = Self {
            server: Server::new(start.server.clone()),
            planner: Planner::new(Arc::clone(&objects), options),
            options,
            plugins,
            objects,
            now: Instant::now(),
            watched: 0,
            pod_ends: BTreeMap::new(),
            faults: faults.to_vec(),
            writes: 0,
            written: Vec::new(),
            events: Vec::new(),
            recorded: RecordedEvents::default(),
            told: Vec::new(),
            samples: Vec::new(),
            reason: String::new(),
            waited: BTreeSet::new(),
        };
        world.server.denied = start.denied.clone();
        world.server.stripped.clone_from(&start.stripped);
        world.server.unmakable = start.unmakable;
        world.server.unremovable = start.unremovable;
        let paths =
            start.server.values().filter_map(|object| object.pointer("/spec/hostPath/path")?.as_str());
        world.server.directories = paths.map(str::to_owned).collect();
        world.boot(&start.cache);
        world
    }

    /// Another process takes over.
    pub fn refill(&mut self) {
        self.boot(&BTreeMap::new());
    }

    /// Fills fresh tables, as a new process does.
    fn boot(&mut self, cache: &BTreeMap<String, Option<Value>>) {
        self.server.reads.clear();
        let mut seen = self.server.store.objects.clone();
        for (path, other) in cache {
            match other {
                Some(other) => seen.insert(path.clone(), other.clone()),
                None => seen.remove(path),
            };
        }
        self.recorded = RecordedEvents::default();
        self.told.clear();
        self.objects = Arc::new(Objects::default());
        let mut volumes: Vec<PersistentVolume> = Vec::new();
        let mut claims: Vec<PersistentVolumeClaim> = Vec::new();
        let mut classes: Vec<StorageClass> = Vec::new();
        let mut pods: Vec<Pod> = Vec::new();
        let mut nodes: Vec<Node> = Vec::new();
        let mut drivers: Vec<CsiDriver> = Vec::new();
        for (path, object) in seen {
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => volumes.push(decode(&object)),
                "persistentvolumeclaims" => claims.push(decode(&object)),
                "storageclasses" => classes.push(decode(&object)),
                "nodes" => nodes.push(decode(&object)),
                "csidrivers" => drivers.push(decode(&object)),
                _ => pods.push(decode(&object)),
            }
        }
        self.objects.reset(volumes);
        self.objects.reset(claims);
        self.objects.reset(classes);
        self.objects.reset(pods);
        self.objects.reset(nodes);
        self.objects.reset(drivers);
        let plugins = HostPlugins::new(self.plugins.clone());
        self.planner = Planner::new(Arc::clone(&self.objects), self.options);
        self.planner.state.plugins = Box::new(plugins);
        self.planner.load(self.now);
        self.planner.lead(self.now);
    }

    /// The server as it is.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The objects without revisions and empty fields.
    pub fn end(&self) -> BTreeMap<String, Value> {
        plain(&self.server.store.objects)
    }

    /// Decides until nothing is left to write, now and after everything that happens later.
    pub fn play(&mut self, sync: Sync, later: &[Later]) {
        self.run(sync);
        for stage in later {
            self.happens(stage);
            self.run(sync);
            while self.pods_end() {
                self.run(sync);
            }
        }
    }

    /// Somebody else changes objects, and the watches tell of it.
    fn happens(&mut self, stage: &Later) {
        self.now += Duration::from_mins(stage.minutes);
        let mut changed: Vec<String> = Vec::new();
        for (path, object) in &stage.objects {
            self.server.store.objects.insert(path.clone(), object.clone());
            changed.push(path.clone());
        }
        for (name, body) in &stage.patch {
            if name.starts_with(POD_PREFIX) {
                self.pod_ends.insert(name.clone(), body.clone());
                continue;
            }
            let path = self.find(name).unwrap_or_else(|| panic!("{name} is not there"));
            json_patch::merge(self.server.store.objects.get_mut(&path).unwrap(), body);
            changed.push(path);
        }
        for path in changed {
            let object = self.server.touch(&path);
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => self.arrives::<PersistentVolume>(&object),
                "persistentvolumeclaims" => self.arrives::<PersistentVolumeClaim>(&object),
                "storageclasses" => self.arrives::<StorageClass>(&object),
                _ => self.arrives::<Pod>(&object),
            }
        }
        for name in &stage.delete {
            // A fault may have made another pod of it that is not there yet.
            let Some(path) = self.find(name) else { continue };
            let object = self.server.remove(&path);
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => self.leaves::<PersistentVolume>(&object),
                "persistentvolumeclaims" => self.leaves::<PersistentVolumeClaim>(&object),
                "storageclasses" => self.leaves::<StorageClass>(&object),
                "csidrivers" => self.leaves::<CsiDriver>(&object),
                _ => self.leaves::<Pod>(&object),
            }
        }
    }

    fn find(&self, name: &str) -> Option<String> {
        // The names of recycler pods end in something unforeseeable.
        let is_it = |path: &&String| {
            let last = path.rsplit('/').next().unwrap();
            let run = last.strip_prefix(name).filter(|_| name.starts_with(POD_PREFIX));
            last == name || run.is_some_and(|run| run.starts_with('-'))
        };
        self.server.store.objects.keys().find(is_it).cloned()
    }

    /// The recycler pods that may run end as was said. Returns whether there are any.
    fn pods_end(&mut self) -> bool {
        let mut any = false;
        for (name, body) in self.pod_ends.clone() {
            let Some(path) = self.find(&name) else { continue };
            let pod = self.server.store.objects.get_mut(&path).unwrap();
            let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
            if gated || pod["status"]["phase"] != "Pending" {
                continue;
            }
            any = true;
            json_patch::merge(pod, &body);
            let pod = self.server.touch(&path);
            self.arrives::<Pod>(&pod);
            // A pod that is made after a fault ends the same way; without one there is only this one.
            if self.faults.is_empty() {
                self.pod_ends.remove(&name);
            }
        }
        any
    }

    fn arrives<T: Stored>(&mut self, object: &Value) {
        let object: T = decode(object);
        let key = object.key();
        self.objects.apply(object);
        self.planner.changed(&T::object_ref(key), self.now);
    }

    fn leaves<T: Stored>(&mut self, object: &Value) {
        let last: T = decode(object);
        let key = last.key();
        self.objects.delete(last);
        self.planner.changed(&T::object_ref(key), self.now);
    }

    /// Decides until nothing is left to write.
    pub fn run(&mut self, sync: Sync) {
        match sync {
            Sync::All => self.run_all(),
            Sync::Claim | Sync::Volume => self.run_first(sync),
        }
    }

    fn run_first(&mut self, sync: Sync) {
        let first = |kind: &str| {
            let name = self.server.store.objects.keys().find(|path| path.contains(kind))?;
            Some(name.rsplit('/').next().unwrap().to_owned())
        };
        let target = if sync == Sync::Claim {
            first("/persistentvolumeclaims/").map(|name| Target::Claim(ClaimKey::new("default", &name)))
        } else {
            first("/persistentvolumes/").map(|name| Target::Volume(VolumeName::from(name)))
        };
        // It may have been the last step that it goes.
        let Some(target) = target else { return };
        for _ in 0..20 {
            let (code, step, events) = match &target {
                Target::Claim(key) => {
                    let Some(claim) = self.objects.claims.get(key) else { return };
                    let decision = sync_claim(&claim, &self.planner.state);
                    (decision.reason.code(), decision.step, decision.events)
                }
                Target::Volume(name) => {
                    let Some(volume) = self.objects.volumes.get(name) else { return };
                    let decision = sync_volume(&volume, &self.planner.state);
                    (decision.reason.code(), decision.step, decision.events)
                }
            };
            code.clone_into(&mut self.reason);
            self.tell(events);
            let Some(step) = step else { return };
            if let Call::Write(write) = &step {
                self.tell(write.then.clone());
            }
            let mut plan = Plan::default();
            self.planner.start(target.clone(), None, step, &mut plan);
            self.perform(plan.calls.remove(0));
        }
        panic!("no end in 20 steps");
    }

    fn run_all(&mut self) {
        for _ in 0..200 {
            let plan = self.planner.plan(self.now);
            let reasons = plan.reports.iter().filter_map(|report| report.reason.as_ref());
            let waits = reasons.filter(|reason| !reason.is_settled());
            self.waited.extend(waits.map(|reason| reason.code().to_owned()));
            let events = self.recorded.take(plan.events, |_| None, self.now);
            self.hear(events.into_iter().map(|(_, event)| event));
            self.samples.extend(plan.measures.samples.iter().map(line));
            assert_apart(&plan.calls);
            if plan.calls.is_empty() {
                // Nothing waits but the resync.
                if !self.planner.is_waiting() {
                    return;
                }
                let wake_at = plan.wake_at.into_iter().chain(self.recorded.next_due()).min();
                self.now = wake_at.unwrap_or(self.now);
            }
            for op in plan.calls {
                if self.perform(op) {
                    break;
                }
            }
        }
        panic!("no end in 200 plans");
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            if !self.events.iter().any(|told| is_same(told, &event)) {
                self.events.push(event);
            }
        }
    }

    /// The planner repeats nothing while nothing changes, but for what stands and may expire.
    fn hear(&mut self, events: impl Iterator<Item = Event>) {
        let revision = self.server.revision();
        for event in events {
            let last = self.told.iter().rfind(|(_, _, told)| is_same(told, &event));
            // As the writer of events does.
            let is_young = last.is_some_and(|(at, ..)| self.now < *at + Duration::from_mins(45));
            if event.novelty == Novelty::Standing && is_young {
                continue;
            }
            let news = last.is_none_or(|(_, then, _)| *then != revision) || !is_young;
            assert!(news, "told twice: {event:?}");
            self.told.push((self.now, revision, event.clone()));
            self.events.push(event);
        }
    }

    /// Carries out a request and hands back the outcome. Returns whether the process ended instead.
    fn perform(&mut self, op: Op) -> bool {
        let number = self.writes;
        let fault = match &op.call {
            Call::Read { .. } | Call::Directory(_) => None,
            Call::Write(write) => {
                self.writes += 1;
                self.written.push(<&str>::from(write.kind));
                self.faults.iter().copied().find(|fault| fault.at() == number)
            }
        };
        let result = match (&op.call, fault) {
            (Call::Write(_), Some(Fault::RequestLost(_))) => Err(CallError::Unknown("timed out".to_owned())),
            (Call::Write(_), Some(Fault::Throttled(_))) => {
                Err(CallError::Throttled { message: "busy".to_owned(), after: Duration::from_secs(1) })
            }
            (Call::Write(_), Some(Fault::CrashBefore(_))) => {
                self.boot(&BTreeMap::new());
                return true;
            }
            (Call::Write(write), Some(Fault::Conflict(_))) => {
                if self.server.store.objects.contains_key(&path(&write.target)) {
                    self.server.touch(&path(&write.target));
                }
                self.server.perform(&op.call)
            }
            _ => self.server.perform(&op.call),
        };
        if matches!(fault, Some(Fault::Crash(_))) && result.is_ok() {
            self.boot(&BTreeMap::new());
            return true;
        }
        let result = match fault {
            Some(Fault::ReplyLost(_)) => Err(CallError::Unknown("connection reset".to_owned())),
            _ => result,
        };
        self.planner.answered(op, result, self.now, 0.5);
        self.watch();
        false
    }

    /// What no answer tells of comes through the watches: pods, and what goes or is about to.
    fn watch(&mut self) {
        let changes: Vec<_> = self.server.changes.get(self.watched..).unwrap_or_default().to_vec();
        self.watched = self.server.changes.len();
        for change in changes {
            let is_pod = change.path.contains("/pods/");
            let goes = !change.object["metadata"]["deletionTimestamp"].is_null();
            let is_volume = change.path.contains("/persistentvolumes/");
            match (is_pod, is_volume, change.gone) {
                (true, _, false) => self.arrives::<Pod>(&change.object),
                (true, _, true) => self.leaves::<Pod>(&change.object),
                (_, true, true) => self.leaves::<PersistentVolume>(&change.object),
                (_, true, false) if goes => self.arrives::<PersistentVolume>(&change.object),
                _ => {}
            }
        }
    }
}

/// Whether two events say the same about the same object.
fn is_same(one: &Event, other: &Event) -> bool {
    one.involved.uid == other.involved.uid && (one.reason, &one.message) == (other.reason, &other.message)
}

/// How volumes are recycled by default.
pub fn recyclers() -> Recyclers {
    let of = |minimum_timeout| Recycler {
        template: Recycler::default_template(),
        minimum_timeout,
        increment_timeout: 30,
    };
    Recyclers { host_path: of(60), nfs: of(300) }
}

/// A sample as cases write it.
fn line(sample: &Sample) -> String {
    match sample {
        Sample::Took(operation, plugin, time) => {
            format!("took {} {plugin} {}s", <&str>::from(operation), time.as_secs())
        }
        Sample::Failed(operation, plugin) => format!("failed {} {plugin}", <&str>::from(operation)),
        Sample::Bound(_, time, _) => format!("bound {}s", time.as_secs()),
    }
}

/// No two requests at once about one claim or volume.
fn assert_apart(ops: &[Op]) {
    let mut touched = Vec::new();
    for target in ops.iter().flat_map(Op::touches) {
        assert!(!touched.contains(&target), "two requests at once about {target}");
        touched.push(target);
    }
}

/// Objects without revisions and empty fields.
pub fn plain(objects: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    objects.iter().map(|(path, object)| (path.clone(), strip(object).unwrap_or_default())).collect()
}

fn strip(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Object(map) => {
            let kept: serde_json::Map<String, Value> = map
                .iter()
                .filter(|(key, _)| *key != "resourceVersion")
                .filter_map(|(key, value)| Some((key.clone(), strip(value)?)))
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Array(list) if list.is_empty() => None,
        other => Some(other.clone()),
    }
}

/// The volume a decision takes.
pub fn chosen(world: &mut World) -> Option<String> {
    let claim = world.objects.claims.snapshot().into_values().next().expect("a claim");
    let mut step = sync_claim(&claim, &world.planner.state).step;
    if let Some(read @ Call::Read { purpose: Purpose::ProveNoClass, .. }) = step {
        let mut plan = Plan::default();
        world.planner.start(Target::Claim(claim.key()), None, read, &mut plan);
        world.perform(plan.calls.remove(0));
        step = sync_claim(&claim, &world.planner.state).step;
    }
    match step {
        Some(Call::Write(Write { target: ObjectRef::Volume(name), .. })) => Some(name.to_string()),
        _ => None,
    }
}
