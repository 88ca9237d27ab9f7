//! What explanations say about the states of binder histories is what happens then.
//!
//! In some states of a random history each claim and each volume is asked about, as a reader would who has just listed
//! all there is:
//! - the writes that are named come next from a process that begins there, and from the leader, and no others do;
//! - where nobody has to act, what waits is well in the end;
//! - what is called safe is done, and breaks no law; what is repaired becomes what was promised.
//!
//! The leader is the one of the history, played again from its seed: a planner cannot be copied.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    time::Duration,
};

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{
        CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment,
    },
    tables::Stored,
};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use libtest_mimic::{Failed, Trial};
use mooring::{
    binder::calls::{Op, Target, WriteKind},
    explain::{
        explain,
        repair::{Repair, RepairWrite, repair},
        report::{Explanation, Risk, Step, Verdict},
        snapshot::Snapshot,
    },
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    actors::{PROVISIONER, SELECTED_NODE},
    daemon::Daemon,
    history::{History, STEPS, comes_to_rest},
    server::{CLAIMS, CLASSES, PODS, Server, VOLUMES, decode, text},
};

/// Histories about whose states is asked; of those that `MOORING_HISTORIES` asks for, every twentieth: each is played many
/// times over.
const HISTORIES: u64 = 25;
/// Steps between two looks.
const PAUSE: usize = 15;
/// Longer than any back-off and any doubt about a request without an answer.
const PATIENCE: Duration = Duration::from_mins(10);
/// What ends when a pod comes, and no pod uses a claim in these histories.
const WAITS_FOR_POD: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

pub fn trial() -> Trial {
    Trial::test("history: what explanations say is what the binder does", || {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seeds = match number("MOORING_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..number("MOORING_HISTORIES").map_or(HISTORIES, |all| (all / 20).max(HISTORIES)),
        };
        let is_run = seeds.end - seeds.start >= HISTORIES;
        let mut done = BTreeMap::new();
        for seed in seeds {
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| play(seed, &mut done)));
            let outcome = outcome.unwrap_or_else(|panic| {
                Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".to_owned()))
            });
            outcome.map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        let idle: Vec<&&str> = ALL.iter().filter(|name| !done.contains_key(**name)).collect();
        if is_run && !idle.is_empty() {
            return Err(format!("never asked: {idle:?}; asked {done:?}").into());
        }
        Ok(())
    })
}

/// What is asked, each at least once in a run.
const ALL: [&str; 10] = [
    "leader",
    "new process",
    "nobody has to act",
    "safe: another claim",
    "safe: the class",
    "safe: the named volume",
    "safe: the pod",
    "safe: the volume",
    "repair: free",
    "repair: relink",
];

/// How often each was asked.
type Done = BTreeMap<&'static str, usize>;

fn play(seed: u64, done: &mut Done) -> Result<(), String> {
    for steps in (PAUSE..=STEPS).step_by(PAUSE) {
        let mut history = History::begin(seed);
        for _ in 0..steps {
            history.step();
        }
        ask(history, done).map_err(|error| format!("after step {steps}: {error}"))?;
    }
    Ok(())
}

fn ask(mut history: History, done: &mut Done) -> Result<(), String> {
    let answers = Answers::about(&history.server);
    let mut count = |name| *done.entry(name).or_default() += 1;
    let mut server = history.server.clone();
    let mut daemon = Daemon::start(&mut server, history.daemon.now, history.sync_period);
    let next = daemon.next_writes(&mut server, Duration::ZERO);
    answers.name(&next).map_err(|error| format!("a new process: {error}"))?;
    count("new process");
    let world =
        World { server: history.server.clone(), now: history.daemon.now, period: history.sync_period };
    let rested = World { server: answers.come_to_rest(&world, &mut count)?, ..world };
    answers.advise_what_breaks_no_law(&world, &mut count)?;
    answers.repair_what_breaks_no_law(&world, &mut count)?;
    // A bound claim is deleted, and made anew of the volume that it had.
    let bound = rested
        .server
        .store
        .objects
        .iter()
        .find(|(path, object)| path.starts_with(CLAIMS) && text(object, "/status/phase") == "Bound");
    if let Some((path, claim)) = bound.map(|(path, claim)| (path.clone(), claim.clone())) {
        let gone = World { server: rested.rests(|server| drop(server.remove(&path)))?, ..rested };
        Answers::about(&gone.server).repair_what_breaks_no_law(&gone, &mut count)?;
        let mut anew = claim;
        anew["metadata"]["uid"] = json!("anew");
        anew["metadata"]["annotations"] = json!({"kept": ""});
        anew["status"] = json!({"phase": "Pending"});
        let anew = World { server: gone.rests(|server| server.put(&path, anew))?, ..gone };
        Answers::about(&anew.server).repair_what_breaks_no_law(&anew, &mut count)?;
    }
    // Only of a leader that has heard of everything: what is on its way to it may change its mind.
    if !history.daemon.is_busy() {
        let next = history.daemon.next_writes(&mut history.server, PATIENCE);
        answers.name(&next).map_err(|error| format!("the leader: {error}"))?;
        count("leader");
    }
    Ok(())
}

/// A world in which another process begins.
struct World {
    server: Server,
    now: Instant,
    period: Duration,
}

impl World {
    /// Somebody does something, and then everything comes to rest under a new process. Each of its writes is checked.
    fn rests(&self, does: impl FnOnce(&mut Server)) -> Result<Server, String> {
        let mut server = self.server.clone();
        does(&mut server);
        let mut daemon = Daemon::start(&mut server, self.now, self.period);
        comes_to_rest(&mut server, &mut daemon, &mut Rng::with_seed(self.server.revision()))?;
        Ok(server)
    }
}

/// Each claim and each volume, asked about.
struct Answers {
    all: BTreeMap<Target, Explanation>,
}

impl Answers {
    fn about(server: &Server) -> Self {
        let snapshot = listed(server);
        let targets = server.store.objects.keys().filter_map(|path| target(path));
        let all = targets.map(|target| {
            let subject = match &target {
                Target::Claim(key) => ObjectRef::Claim(key.clone()),
                Target::Volume(name) => ObjectRef::Volume(name.clone()),
            };
            (target, explain(&snapshot, &subject))
        });
        Self { all: all.collect() }
    }

    /// What is said to come next, whatever else happens.
    fn named(&self) -> BTreeMap<&Target, &str> {
        self.all.iter().filter_map(|(target, answer)| Some((target, own_next(answer)?))).collect()
    }

    /// The volume that a claim is said to be bound to next: the one that it names, or the best.
    fn chosen(&self, target: &Target) -> Option<Target> {
        let (Target::Claim(_), answer) = (target, self.all.get(target)?) else { return None };
        let named = answer.steps.iter().find(|step| step.object["kind"] == PersistentVolume::KIND);
        let best = answer.candidates.iter().find(|candidate| candidate.faults.is_empty());
        let named = named.and_then(|step| step.object["name"].as_str());
        let name = named.or(best.map(|candidate| candidate.name.as_str()))?;
        Some(Target::Volume(VolumeName::from(name)))
    }

    /// Whether several claims are said to get one volume. One of them does: which, an answer about one does not say.
    fn is_contended(&self, target: &Target) -> bool {
        let Some(chosen) = self.chosen(target) else { return false };
        let is_rival = |other: &&Target| *other != target && self.chosen(other).as_ref() == Some(&chosen);
        self.named().into_keys().any(|other| is_rival(&other))
    }

    /// Whether its claim was given to a provisioner, and is to be bound to something else.
    fn is_raced(&self, target: &Target, world: &World) -> bool {
        let claims = self.all[target].steps.iter().filter(|step| step.reason == "Binding");
        let mut claims = claims.filter_map(|step| step.object["name"].as_str());
        claims.any(|name| {
            let claim = world.server.store.objects.get(&format!("{CLAIMS}{name}"));
            claim.is_some_and(|claim| claim["metadata"]["annotations"][PROVISIONER].is_string())
        })
    }

    /// Holds what is named against what is done.
    fn name(&self, ops: &[Op]) -> Result<(), String> {
        let done: BTreeMap<&Target, &str> = ops
            .iter()
            .filter_map(|op| Some((&op.subject, action(&op.subject, op.call.write_kind()?))))
            .collect();
        let named = self.named();
        // Two requests are never under way about one claim or volume (S38): what is left waits for the other.
        let touched_by_others = |target: &Target| {
            let others = ops.iter().filter(|op| op.subject != *target);
            let is_of = |touched| touched == *target || self.chosen(target) == Some(touched);
            others.flat_map(Op::touches).any(is_of)
        };
        // Nor is anything decided about a volume while its claim has one under way.
        let has_busy_claim = |target: &Target| {
            let claims = ops.iter().filter_map(|op| match &op.subject {
                Target::Claim(key) => Some(key.name()),
                Target::Volume(_) => None,
            });
            let steps = &self.all[target].steps;
            let mut is_its = claims.map(|name| steps.iter().any(|step| step.object["name"] == name));
            matches!(target, Target::Volume(_)) && is_its.any(|is_its| is_its)
        };
        for (target, action) in &named {
            if done.get(target) != Some(action) && !touched_by_others(target) && !has_busy_claim(target) {
                return Err(format!(
                    "{action} {target} is named, and done is {done:?}; {}",
                    self.told(target)
                ));
            }
        }
        for (target, action) in &done {
            if named.get(target) != Some(action) && !touched_by_others(target) {
                return Err(format!(
                    "{action} {target} is done, and named is {named:?}; {}",
                    self.told(target)
                ));
            }
        }
        Ok(())
    }

    fn told(&self, target: &Target) -> String {
        self.all.get(target).map_or("not told".to_owned(), |answer| {
            let steps: Vec<String> = answer
                .steps
                .iter()
                .map(|step| format!("{} {}: {}", step.object["name"], step.reason, step.message))
                .collect();
            format!("told is {:?}, {}", answer.verdict, steps.join("; "))
        })
    }

    /// Returns the world at rest.
    fn come_to_rest(&self, world: &World, count: &mut impl FnMut(&'static str)) -> Result<Server, String> {
        let is_free = |(target, answer): &(&Target, &Explanation)| {
            let waits_for_pod = answer.steps.iter().any(|step| WAITS_FOR_POD.contains(&step.reason.as_str()));
            // What becomes of a volume that is about to be released is told when it is.
            let is_released_next =
                own(answer).is_some_and(|own| ["Releasing", "ConfirmingClaimGone"].contains(&&*own.reason));
            // Whichever comes first, the binder with what a person reserved or the provisioner that was asked.
            let is_raced = self.is_raced(target, world);
            matches!(answer.verdict, Verdict::Healthy | Verdict::Waiting)
                && !waits_for_pod
                && !is_released_next
                && !is_raced
                && !waits_for_claim(answer)
                && !self.is_contended(target)
        };
        let free: BTreeSet<&Target> = self.all.iter().filter(is_free).map(|(target, _)| target).collect();
        let rested = world.rests(|_| ())?;
        let later = Self::about(&rested);
        // That it is larger than the volume that a person chose for it is told once it is bound.
        let is_bound = |it: &Explanation| own(it).is_some_and(|own| own.reason == "Resizing");
        let stuck = later.all.iter().find(|(target, it)| {
            let is_at_rest = it.verdict == Verdict::Healthy || is_bound(it) || waits_for_claim(it);
            free.contains(target) && !is_at_rest
        });
        let Some((target, _)) = stuck else {
            if !free.is_empty() {
                count("nobody has to act");
            }
            return Ok(rested);
        };
        Err(format!(
            "nobody had to act for {target}: {}; and then: {}",
            self.told(target),
            later.told(target)
        ))
    }

    fn advise_what_breaks_no_law(
        &self,
        world: &World,
        count: &mut impl FnMut(&'static str),
    ) -> Result<(), String> {
        for (target, answer) in &self.all {
            for action in answer.actions.iter().filter(|action| action.risk == Risk::Safe) {
                let verb: Vec<&str> = action.command.iter().take(2).map(String::as_str).collect();
                let reads = [["kubectl", "get"], ["kubectl", "describe"], ["mooring", "explain"]];
                if !verb.is_empty() && !reads.iter().any(|read| verb == read) {
                    return Err(format!("{target}: called safe, and it writes: {:?}", action.command));
                }
            }
            let Target::Claim(key) = target else { continue };
            let of = |start: &str| {
                let mut all = answer.actions.iter().filter(|action| action.risk == Risk::Safe);
                all.any(|action| action.text.starts_with(start))
            };
            let claim = world.server.store.objects[&format!("{CLAIMS}{}", key.name())].clone();
            let is_bound = |server: &Server, name: &str| {
                let claim = server.store.objects.get(&format!("{CLAIMS}{name}"));
                claim.is_some_and(|claim| text(claim, "/status/phase") == "Bound")
            };
            let told = || self.told(target);
            if of("create the class ") {
                let class = text(&claim, "/spec/storageClassName").to_owned();
                let end = world.rests(|server| server.put(&format!("{CLASSES}{class}"), provided(&class)))?;
                count("safe: the class");
                let later = Self::about(&end);
                if later.all[target].verdict == Verdict::Blocked {
                    let later = later.told(target);
                    return Err(format!("with its class, {target} is stuck; {}; and then: {later}", told()));
                }
            }
            if of("create the volume ") {
                let name = text(&claim, "/spec/volumeName").to_owned();
                let end = world.rests(|server| {
                    fits(server, &name, &claim);
                    let reference = json!({"namespace": "default", "name": key.name()});
                    server.patch(&format!("{VOLUMES}{name}"), &json!({"spec": {"claimRef": reference}}));
                })?;
                count("safe: the named volume");
                if !is_bound(&end, key.name()) {
                    let later = Self::about(&end).told(target);
                    return Err(format!(
                        "with its volume, {target} is not bound; {}; and then: {later}",
                        told()
                    ));
                }
            }
            if of("create a volume that fits") {
                let end = world.rests(|server| {
                    fits(server, "made", &claim);
                    if ["none", "wait", "late"].contains(&text(&claim, "/spec/storageClassName")) {
                        // The scheduler finds it for the pod.
                        let uid = &claim["metadata"]["uid"];
                        let reference = json!({"namespace": "default", "name": key.name(), "uid": uid});
                        server.patch(&format!("{VOLUMES}made"), &json!({"spec": {"claimRef": reference}}));
                    }
                })?;
                count("safe: the volume");
                let taken = &end.store.objects[&format!("{VOLUMES}made")];
                // It may get another meanwhile that was not free yet.
                if text(taken, "/status/phase") != "Bound" && !is_bound(&end, key.name()) {
                    let later = Self::about(&end).told(target);
                    return Err(format!("its volume is left by {target}; {}; and then: {later}", told()));
                }
            }
            if of("or make a new claim of a class that has a provisioner") {
                let mut other = claim.clone();
                other["metadata"] = json!({"name": "other", "namespace": "default", "uid": "other", "annotations": {"kept": ""}});
                other["spec"]["storageClassName"] = json!("gold");
                other["status"] = json!({"phase": "Pending"});
                let end = world.rests(|server| server.put(&format!("{CLAIMS}other"), other.clone()))?;
                count("safe: another claim");
                if !is_bound(&end, "other") {
                    return Err(format!("a claim of a provided class is not bound; of {target}: {}", told()));
                }
            }
            if of("nothing is wrong: create the pod") && text(&claim, "/spec/storageClassName") == "wait" {
                // The scheduler finds a node for it.
                let selected = json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}});
                let path = format!("{CLAIMS}{}", key.name());
                let end = world.rests(|server| server.patch(&path, &selected))?;
                count("safe: the pod");
                if !is_bound(&end, key.name()) {
                    return Err(format!("with its pod, {target} is not bound; {}", told()));
                }
            }
        }
        Ok(())
    }

    /// Whatever a repair proposes may be done.
    fn repair_what_breaks_no_law(
        &self,
        world: &World,
        count: &mut impl FnMut(&'static str),
    ) -> Result<(), String> {
        let snapshot = listed(&world.server);
        let claims = self.all.keys().filter_map(|target| match target {
            Target::Claim(key) => Some(key),
            Target::Volume(_) => None,
        });
        let claims: Vec<&ClaimKey> = claims.collect();
        let volumes = self.all.keys().filter_map(|target| match target {
            Target::Volume(name) => Some(name),
            Target::Claim(_) => None,
        });
        for name in volumes {
            let relinks = claims.iter().map(|key| Repair::Relink((*key).clone(), name.clone()));
            for what in relinks.chain([Repair::Free(name.clone())]) {
                let advice = repair(&snapshot, &what);
                if advice.requests.is_empty() {
                    continue;
                }
                let mut changed = Ok(());
                let end = world.rests(|server| changed = carry_out(server, &advice.requests));
                changed.map_err(|error| format!("{}: {error}", advice.repair))?;
                let end = end.map_err(|error| format!("{}: {error}", advice.repair))?;
                let phase = |path: String| {
                    end.store.objects.get(&path).map(|object| text(object, "/status/phase").to_owned())
                };
                let volume = phase(format!("{VOLUMES}{name}"));
                let is_kept = match &what {
                    Repair::Relink(key, _) => {
                        count("repair: relink");
                        let claim = &end.store.objects[&format!("{CLAIMS}{}", key.name())];
                        volume.as_deref() == Some("Bound")
                            && text(claim, "/status/phase") == "Bound"
                            && text(claim, "/spec/volumeName") == name.as_str()
                    }
                    _ => {
                        count("repair: free");
                        matches!(volume.as_deref(), Some("Available" | "Bound"))
                    }
                };
                if !is_kept {
                    return Err(format!(
                        "{}: not what was promised ({}): {volume:?}; {:?}; before: {}; after: {}",
                        advice.repair,
                        advice.consequence,
                        advice.requests,
                        self.told(&Target::Volume(name.clone())),
                        Self::about(&end).told(&Target::Volume(name.clone())),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether it is a volume for a claim that is not there: somebody's to make, in his own time.
fn waits_for_claim(answer: &Explanation) -> bool {
    answer.reason == "Reserved" && answer.steps.len() == 1
}

/// The step about the subject itself.
fn own(answer: &Explanation) -> Option<&Step> {
    answer.steps.iter().find(|step| {
        ["kind", "name", "namespace"].iter().all(|field| step.object[field] == answer.subject[field])
    })
}

/// What an answer says of its own subject that comes next, without any condition.
fn own_next(answer: &Explanation) -> Option<&str> {
    let next = own(answer)?.next.as_ref()?;
    let is_certain = next.condition.is_none() && next.at.is_none();
    is_certain.then_some(next.action.as_str())
}

/// A write in the words of explanations.
fn action(subject: &Target, kind: WriteKind) -> &'static str {
    match (kind, subject) {
        (
            WriteKind::ReserveVolume | WriteKind::VolumeBound | WriteKind::NameVolume | WriteKind::ClaimBound,
            _,
        ) => "Bind",
        (WriteKind::ClaimPending | WriteKind::AssignClass, _) | (WriteKind::Annotate, Target::Claim(_)) => {
            "WriteClaim"
        }
        (WriteKind::ClaimLost, _) => "DeclareLost",
        (WriteKind::AskProvisioner, _) => "AskProvisioner",
        (WriteKind::CreateVolume, _) => "Provision",
        (WriteKind::Reschedule, _) => "Reschedule",
        (WriteKind::VolumeAvailable | WriteKind::VolumeFailed, _)
        | (WriteKind::Annotate, Target::Volume(_)) => "WriteVolume",
        (WriteKind::VolumeReleased, _) => "Release",
        (WriteKind::Unbind, _) => "Unbind",
        (WriteKind::CreatePod | WriteKind::StartPod | WriteKind::DeletePod, _) => "Recycle",
        (WriteKind::DeleteVolume, _) => "Delete",
    }
}

/// Sends the requests of a repair. What a person must not do with them is the same as what the binder must not.
fn carry_out(server: &mut Server, requests: &[RepairWrite]) -> Result<(), String> {
    for request in requests {
        let found = server.store.objects.get(&request.path).ok_or("S35: of something that is not there")?;
        for guard in ["uid", "resourceVersion"] {
            if request.body["metadata"][guard] != found["metadata"][guard] {
                return Err(format!("S35: {guard} of {} is not what it is", request.path));
            }
        }
        let former = text(found, "/spec/claimRef/uid").to_owned();
        if !former.is_empty()
            && server.store.objects.values().any(|object| object["metadata"]["uid"] == former)
        {
            return Err(format!("S23: {} is taken from a claim that lives", request.path));
        }
        server.patch(&request.path, &request.body);
        let now = text(&server.store.objects[&request.path], "/spec/claimRef/uid").to_owned();
        let holders =
            server.store.objects.iter().filter(|(path, object)| {
                path.starts_with(VOLUMES) && text(object, "/spec/claimRef/uid") == now
            });
        if !now.is_empty() && holders.count() > 1 {
            return Err(format!("S19: {} is one of two volumes of a claim", request.path));
        }
    }
    Ok(())
}

/// A class that has a provisioner, of which it knows how it binds.
fn provided(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("class-{name}")},
        "provisioner": "d",
        "volumeBindingMode": if name == "late" { "WaitForFirstConsumer" } else { "Immediate" },
    })
}

/// Makes a volume that suits a claim.
fn fits(server: &mut Server, name: &str, claim: &Value) {
    let volume = json!({
        "metadata": {"name": name, "uid": format!("made-{name}"), "annotations": {"kept": ""}},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": claim["spec"]["resources"]["requests"],
            "storageClassName": claim["spec"]["storageClassName"],
            "persistentVolumeReclaimPolicy": "Retain",
        },
        "status": {"phase": "Pending"},
    });
    server.put(&format!("{VOLUMES}{name}"), volume);
}

fn target(path: &str) -> Option<Target> {
    match (path.strip_prefix(CLAIMS), path.strip_prefix(VOLUMES)) {
        (Some(name), _) => Some(Target::Claim(ClaimKey::new("default", name))),
        (_, Some(name)) => Some(Target::Volume(VolumeName::from(name))),
        _ => None,
    }
}

/// All objects, as of a reader who has just listed them.
fn listed(server: &Server) -> Snapshot {
    fn take<T: Stored>(snapshot: &mut Snapshot, server: &Server, prefix: &str) {
        let found = server.store.objects.iter().filter(|(path, _)| path.starts_with(prefix));
        snapshot.objects.reset::<T>(found.map(|(_, object)| decode(object)).collect());
        snapshot.note_listed::<T>();
    }
    let mut snapshot = Snapshot::new(Timestamp::UNIX_EPOCH);
    take::<PersistentVolumeClaim>(&mut snapshot, server, CLAIMS);
    take::<PersistentVolume>(&mut snapshot, server, VOLUMES);
    take::<StorageClass>(&mut snapshot, server, CLASSES);
    take::<Pod>(&mut snapshot, server, PODS);
    snapshot.objects.reset::<Node>(Vec::new());
    snapshot.objects.reset::<VolumeAttachment>(Vec::new());
    snapshot.objects.reset::<CsiDriver>(Vec::new());
    snapshot.note_listed::<Node>();
    snapshot.note_listed::<VolumeAttachment>();
    snapshot.note_listed::<CsiDriver>();
    snapshot
}
