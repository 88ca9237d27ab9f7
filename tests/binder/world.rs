//! An API server in a map, the binder's planner on top of it, and the invariants of every write.
//!
//! In: the objects of a case, and a fault. Out: the objects afterwards, the events, the number of
//! writes. Each write is checked against safety.md before it is applied; a broken promise panics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mooring::{
    binder::{
        BinderOptions,
        annotations::{BIND_COMPLETED, BOUND_BY_CONTROLLER},
        decision::{Step, Target, Write, WriteKind},
        op::{Answer, Call, Op},
        planner::{Plan, Planner},
    },
    kube_api::{
        call::{CallError, Request, Verb},
        events::Event,
        ids::{ClaimKey, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    },
    state::{Objects, Stored},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::case::{Later, Start, Sync};

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
}

/// A server, and a binder that knows what it was told.
pub struct World {
    server: BTreeMap<String, Value>,
    revision: u64,
    read: Vec<String>,
    planner: Planner,
    objects: Arc<Objects>,
    now: Instant,
    fault: Option<Fault>,
    /// Writes the server was asked for.
    pub writes: usize,
    /// Events, without repetitions by the same object.
    pub events: Vec<Event>,
    /// Label of the last decision.
    pub reason: String,
}

impl World {
    pub fn new(start: &Start, fault: Option<Fault>) -> Self {
        let objects = Arc::new(Objects::default());
        let mut world = Self {
            server: start.server.clone(),
            revision: 100,
            read: Vec::new(),
            planner: Planner::new(Arc::clone(&objects), BinderOptions::default()),
            objects,
            now: Instant::now(),
            fault,
            writes: 0,
            events: Vec::new(),
            reason: String::new(),
        };
        world.boot(&start.cache);
        world
    }

    /// Another process takes over.
    pub fn refill(&mut self) {
        self.boot(&BTreeMap::new());
    }

    /// Fills fresh tables, as a new process does.
    fn boot(&mut self, cache: &BTreeMap<String, Option<Value>>) {
        let mut seen = self.server.clone();
        for (path, other) in cache {
            match other {
                Some(other) => seen.insert(path.clone(), other.clone()),
                None => seen.remove(path),
            };
        }
        self.objects = Arc::new(Objects::default());
        let mut volumes: Vec<PersistentVolume> = Vec::new();
        let mut claims: Vec<PersistentVolumeClaim> = Vec::new();
        let mut classes: Vec<StorageClass> = Vec::new();
        let mut pods: Vec<Pod> = Vec::new();
        for (path, object) in seen {
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => volumes.push(decode(&object)),
                "persistentvolumeclaims" => claims.push(decode(&object)),
                "storageclasses" => classes.push(decode(&object)),
                _ => pods.push(decode(&object)),
            }
        }
        self.objects.reset(volumes);
        self.objects.reset(claims);
        self.objects.reset(classes);
        self.objects.reset(pods);
        self.planner = Planner::new(Arc::clone(&self.objects), BinderOptions::default());
        self.planner.warm();
    }

    /// The objects without revisions and empty fields.
    pub fn end(&self) -> BTreeMap<String, Value> {
        plain(&self.server)
    }

    /// Decides until nothing is left to write, now and after everything that happens later.
    pub fn play(&mut self, sync: Sync, later: &[Later]) {
        self.run(sync);
        for stage in later {
            self.happens(stage);
            self.run(sync);
        }
    }

    /// Somebody else changes objects, and the watches tell of it.
    fn happens(&mut self, stage: &Later) {
        let mut changed: Vec<String> = Vec::new();
        for (path, object) in &stage.objects {
            self.server.insert(path.clone(), object.clone());
            changed.push(path.clone());
        }
        for (name, body) in &stage.patch {
            let path = self.find(name);
            json_patch::merge(self.server.get_mut(&path).unwrap(), body);
            changed.push(path);
        }
        for path in changed {
            self.revision += 1;
            let object = self.server.get_mut(&path).unwrap();
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            let object = object.clone();
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => self.arrives::<PersistentVolume>(&object),
                "persistentvolumeclaims" => self.arrives::<PersistentVolumeClaim>(&object),
                "storageclasses" => self.arrives::<StorageClass>(&object),
                _ => self.arrives::<Pod>(&object),
            }
        }
        for name in &stage.delete {
            let path = self.find(name);
            let object = self.server.remove(&path).unwrap();
            self.revision += 1;
            match path.rsplit('/').nth(1).unwrap() {
                "persistentvolumes" => self.leaves::<PersistentVolume>(&object),
                "persistentvolumeclaims" => self.leaves::<PersistentVolumeClaim>(&object),
                "storageclasses" => self.leaves::<StorageClass>(&object),
                _ => self.leaves::<Pod>(&object),
            }
        }
    }

    fn find(&self, name: &str) -> String {
        let found = self.server.keys().find(|path| path.rsplit('/').next() == Some(name));
        found.unwrap_or_else(|| panic!("{name} is not there")).clone()
    }

    fn arrives<T: Stored>(&mut self, object: &Value) {
        let object: T = decode(object);
        let key = object.key();
        self.objects.apply(object);
        self.planner.changed(&T::object_ref(key));
    }

    fn leaves<T: Stored>(&mut self, object: &Value) {
        // The watch tells the revision of the deletion.
        let mut last = object.clone();
        last["metadata"]["resourceVersion"] = Value::from(self.revision.to_string());
        let last: T = decode(&last);
        let key = last.key();
        self.objects.delete(last);
        self.planner.changed(&T::object_ref(key));
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
            let name = self.server.keys().find(|path| path.contains(kind)).expect("an object to look at");
            name.rsplit('/').next().unwrap().to_owned()
        };
        let target = if sync == Sync::Claim {
            Target::Claim(ClaimKey::new("default", &first("/persistentvolumeclaims/")))
        } else {
            Target::Volume(VolumeName::from(first("/persistentvolumes/")))
        };
        for _ in 0..20 {
            let (label, step, events) = match &target {
                Target::Claim(key) => {
                    let decision = self.planner.decide_claim(&self.objects.claims.get(key).unwrap());
                    (decision.reason.label(), decision.step, decision.events)
                }
                Target::Volume(name) => {
                    let decision = self.planner.decide_volume(&self.objects.volumes.get(name).unwrap());
                    (decision.reason.label(), decision.step, decision.events)
                }
            };
            label.clone_into(&mut self.reason);
            self.tell(events);
            let Some(step) = step else { return };
            let mut plan = Plan::default();
            let op = Op { subject: target.clone(), volume: None, call: Call::of(step) };
            self.planner.start(op.clone(), &mut plan);
            self.perform(op);
        }
        panic!("no end in 20 steps");
    }

    fn run_all(&mut self) {
        for _ in 0..200 {
            let plan = self.planner.plan(self.now);
            self.tell(plan.events);
            assert_apart(&plan.ops);
            if plan.ops.is_empty() {
                let Some(wake_at) = plan.wake_at else { return };
                self.now = wake_at;
            }
            for op in plan.ops {
                if self.perform(op) {
                    break;
                }
            }
        }
        panic!("no end in 200 plans");
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            let same = |told: &Event| {
                told.involved.uid == event.involved.uid
                    && (told.reason, &told.message) == (event.reason, &event.message)
            };
            if !self.events.iter().any(same) {
                self.events.push(event);
            }
        }
    }

    /// Carries out a request and hands back the outcome. Returns whether the process ended instead.
    fn perform(&mut self, op: Op) -> bool {
        let number = self.writes;
        let result = match &op.call {
            Call::Read { target, .. } => {
                let path = path(target);
                self.read.push(path.clone());
                match self.server.get(&path) {
                    Some(object) => Ok(answer(target, object)),
                    None => Err(CallError::NotFound(path)),
                }
            }
            Call::Write(write) => {
                self.writes += 1;
                match self.fault {
                    Some(Fault::RequestLost(at)) if at == number => {
                        Err(CallError::Unknown("timed out".to_owned()))
                    }
                    Some(Fault::Throttled(at)) if at == number => Err(CallError::Throttled {
                        message: "busy".to_owned(),
                        after: Duration::from_secs(1),
                    }),
                    Some(Fault::Conflict(at)) if at == number => {
                        self.revision += 1;
                        let object = self.server.get_mut(&path(&write.target)).unwrap();
                        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
                        self.write(write)
                    }
                    _ => self.write(write),
                }
            }
        };
        if let Call::Write(write) = &op.call
            && result.is_ok()
        {
            self.tell(write.then.clone());
            if self.fault == Some(Fault::Crash(number)) {
                self.boot(&BTreeMap::new());
                return true;
            }
        }
        let result = match (&op.call, self.fault) {
            (Call::Write(_), Some(Fault::ReplyLost(at))) if at == number => {
                Err(CallError::Unknown("connection reset".to_owned()))
            }
            _ => result,
        };
        self.planner.outcome(op, result, self.now, 0.5);
        false
    }

    fn write(&mut self, write: &Write) -> Result<Answer, CallError> {
        let Request { verb, path: url, body } = &write.request;
        assert_eq!(*verb, Verb::Patch);
        let body = body.as_ref().unwrap();
        let (at, status) = match url.strip_suffix("/status") {
            Some(at) => (at, true),
            None => (url.as_str(), false),
        };
        assert_eq!(at, path(&write.target));
        let Some(before) = self.server.get(at).cloned() else {
            return Err(CallError::NotFound(at.to_owned()));
        };
        for guard in ["uid", "resourceVersion"] {
            let expected = body["metadata"].get(guard).expect("S35: a write names UID and revision");
            if *expected != before["metadata"][guard] {
                return Err(CallError::Conflict(format!("{guard} of {at}")));
            }
        }
        let mut after = before.clone();
        json_patch::merge(&mut after, body);
        // The server keeps the other half as it is, whatever the body says.
        let other = if status { "spec" } else { "status" };
        assert_eq!(after[other], before[other], "a write to the wrong half of {at}");
        self.revision += 1;
        after["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.check(write.kind, at, &before, &after);
        self.server.insert(at.to_owned(), after.clone());
        Ok(answer(&write.target, &after))
    }

    /// The safety invariants that a single write can break.
    fn check(&self, kind: WriteKind, at: &str, before: &Value, after: &Value) {
        footprint(at, before, after);
        if at.contains("/persistentvolumes/") {
            self.check_volume(kind, at, before, after);
        } else {
            self.check_claim(at, before, after);
        }
    }

    fn check_volume(&self, kind: WriteKind, at: &str, before: &Value, after: &Value) {
        let uid = |object: &Value| object["spec"]["claimRef"]["uid"].as_str().unwrap_or("").to_owned();
        if uid(after) != uid(before) && !uid(after).is_empty() {
            for (path, other) in &self.server {
                let gone = matches!(other["status"]["phase"].as_str(), Some("Released" | "Failed"));
                let holds = path.contains("/persistentvolumes/") && path != at && uid(other) == uid(after);
                assert!(gone || !holds, "S19: {path} and {at} would hold the same claim");
            }
        }
        let phase = |object: &Value| object["status"]["phase"].as_str().unwrap_or("").to_owned();
        if phase(after) == phase(before) {
            if !before["spec"]["claimRef"].is_null() && after["spec"]["claimRef"].is_null() {
                let ours = !before["metadata"]["annotations"][BOUND_BY_CONTROLLER].is_null();
                assert!(ours, "S26: a user's reservation of {at} is removed");
            }
            return;
        }
        let reference = &after["spec"]["claimRef"];
        match phase(after).as_str() {
            "Bound" => assert!(!uid(after).is_empty(), "S22: {at} is Bound to nobody"),
            "Released" | "Failed" => {
                let claim = path(&Target::Claim(ClaimKey::new(
                    reference["namespace"].as_str().unwrap(),
                    reference["name"].as_str().unwrap(),
                )));
                assert!(self.read.contains(&claim), "S23: {claim} was not asked for before {kind:?}");
                let name = after["metadata"]["name"].as_str().unwrap();
                let alive = self.server.get(&claim).is_some_and(|claim| {
                    let volume = claim["spec"]["volumeName"].as_str().unwrap_or("");
                    claim["metadata"]["uid"] == reference["uid"] && (volume.is_empty() || volume == name)
                });
                assert!(!alive, "S23: the claim of {at} lives");
                let external = !after["spec"]["csi"].is_null();
                assert!(phase(after) == "Released" || !external, "S32: {at} is not ours to fail");
            }
            _ => {}
        }
    }

    fn check_claim(&self, at: &str, before: &Value, after: &Value) {
        let name = after["spec"]["volumeName"].as_str().unwrap_or("");
        let volume = self.server.get(&format!("/api/v1/persistentvolumes/{name}"));
        let holds =
            volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == after["metadata"]["uid"]);
        let named = before["spec"]["volumeName"].as_str().unwrap_or("");
        if name != named {
            assert!(named.is_empty(), "S20: {at} changes its volume");
            assert!(holds, "S21: {at} names a volume that does not name it");
            let protected = volume.is_some_and(|volume| volume["status"]["phase"] == "Bound");
            assert!(protected, "{at} names a volume that pv-protection does not guard yet");
        }
        if after["status"]["phase"] != before["status"]["phase"] {
            if after["status"]["phase"] == "Bound" {
                let completed = !after["metadata"]["annotations"][BIND_COMPLETED].is_null();
                assert!(holds && completed, "S22: {at} is Bound to nothing");
            }
            if after["status"]["phase"] == "Lost" && !name.is_empty() {
                let volume = format!("/api/v1/persistentvolumes/{name}");
                assert!(self.read.contains(&volume), "S24: {volume} was not asked for");
                assert!(!holds, "S24: the volume of {at} is there");
            }
        } else if before["status"]["phase"] == "Bound" {
            assert_eq!(after["status"]["capacity"], before["status"]["capacity"], "S31: {at}");
        }
    }
}

/// S34: every write stays within the fields that are the binder's.
fn footprint(at: &str, before: &Value, after: &Value) {
    const OURS: [&str; 13] = [
        "/metadata/resourceVersion",
        "/metadata/finalizers",
        "/metadata/annotations/pv.kubernetes.io~1",
        "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
        "/metadata/annotations/volume.beta.kubernetes.io~1storage-provisioner",
        "/spec/claimRef",
        "/spec/volumeName",
        "/spec/storageClassName",
        "/status/phase",
        "/status/message",
        "/status/accessModes",
        "/status/capacity",
        "/status/currentVolumeAttributesClassName",
    ];
    for operation in json_patch::diff(before, after).0 {
        let pointer = operation.path().to_string();
        assert!(OURS.iter().any(|ours| pointer.starts_with(ours)), "S34: {at}{pointer} is changed");
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

fn path(target: &Target) -> String {
    match target {
        Target::Claim(key) => PersistentVolumeClaim::path(key),
        Target::Volume(name) => PersistentVolume::path(name),
    }
}

fn answer(target: &Target, object: &Value) -> Answer {
    match target {
        Target::Claim(_) => Answer::Claim(decode(object)),
        Target::Volume(_) => Answer::Volume(decode(object)),
    }
}

fn decode<T: Narrow>(object: &Value) -> T {
    let mut object: T = serde_json::from_str(&object.to_string()).expect("a readable object");
    object.trim();
    object
}

/// The volume a decision takes.
pub fn chosen(world: &World) -> Option<String> {
    let claim = world.objects.claims.snapshot().into_values().next().expect("a claim");
    match world.planner.decide_claim(&claim).step {
        Some(Step::Write(Write { target: Target::Volume(name), .. })) => Some(name.to_string()),
        _ => None,
    }
}
