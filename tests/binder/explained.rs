//! What explanations say about the states of binder histories is what happens then.
//!
//! In some states of a random history each claim and each volume is asked about, as a reader would who has just listed
//! all there is:
//! - the writes that are named come next from a process that begins there, and no others do;
//! - where nobody has to act, what waits is well in the end.

use std::collections::{BTreeMap, BTreeSet};

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
use libtest_mimic::Trial;
use mooring::{
    binder::calls::{Op, Target, WriteKind},
    explain::{
        explain,
        report::{Explanation, Step, Verdict},
        snapshot::Snapshot,
    },
};

use crate::{
    actors::PROVISIONER,
    daemon::Daemon,
    history::{History, STEPS, comes_to_rest, each_seed, number},
    server::{CLAIMS, CLASSES, PODS, Server, VOLUMES, decode},
};

/// Histories about whose states is asked; of those that `MOORING_HISTORIES` asks for, every twentieth.
const HISTORIES: u64 = 25;
/// Steps between two looks.
const PAUSE: usize = 15;
/// What ends when a pod comes, and no pod uses a claim in these histories.
const WAITS_FOR_POD: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

pub fn trial() -> Trial {
    Trial::test("history: what explanations say is what the binder does", || {
        let all = number("MOORING_HISTORIES").map_or(HISTORIES, |all| (all / 20).max(HISTORIES));
        each_seed(0..all, play)
    })
}

fn play(seed: u64) -> Result<(), String> {
    let mut history = History::begin(seed);
    for step in 1..=STEPS {
        history.step();
        if step % PAUSE == 0 {
            ask(&history).map_err(|error| format!("after step {step}: {error}"))?;
        }
    }
    Ok(())
}

fn ask(history: &History) -> Result<(), String> {
    let answers = Answers::about(&history.server);
    let begin = || {
        let mut server = history.server.clone();
        let daemon = Daemon::start(&mut server, history.daemon.now, history.sync_period);
        (server, daemon)
    };
    let (mut server, mut daemon) = begin();
    answers.name(&daemon.next_writes(&mut server))?;
    let (mut server, mut daemon) = begin();
    let mut rng = Rng::with_seed(server.revision());
    comes_to_rest(&mut server, &mut daemon, &mut rng)?;
    answers.come_to_rest(&history.server, &Answers::about(&server))
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
    fn is_raced(&self, target: &Target, server: &Server) -> bool {
        let claims = self.all[target].steps.iter().filter(|step| step.reason == "Binding");
        let mut claims = claims.filter_map(|step| step.object["name"].as_str());
        claims.any(|name| {
            let claim = server.store.objects.get(&format!("{CLAIMS}{name}"));
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

    /// Holds who has nobody to wait for against what is said at rest.
    fn come_to_rest(&self, server: &Server, later: &Self) -> Result<(), String> {
        let is_free = |(target, answer): &(&Target, &Explanation)| {
            let waits_for_pod = answer.steps.iter().any(|step| WAITS_FOR_POD.contains(&step.reason.as_str()));
            // What becomes of a volume that is about to be released is told when it is.
            let is_released_next =
                own(answer).is_some_and(|own| ["Releasing", "ConfirmingClaimGone"].contains(&&*own.reason));
            // Whichever comes first, the binder with what a person reserved or the provisioner that was asked.
            let is_raced = self.is_raced(target, server);
            matches!(answer.verdict, Verdict::Healthy | Verdict::Waiting)
                && !waits_for_pod
                && !is_released_next
                && !is_raced
                && !waits_for_claim(answer)
                && !self.is_contended(target)
        };
        let free: BTreeSet<&Target> = self.all.iter().filter(is_free).map(|(target, _)| target).collect();
        // That it is larger than the volume that a person chose for it is told once it is bound.
        let is_bound = |it: &Explanation| own(it).is_some_and(|own| own.reason == "Resizing");
        let stuck = later.all.iter().find(|(target, it)| {
            let is_at_rest = it.verdict == Verdict::Healthy || is_bound(it) || waits_for_claim(it);
            free.contains(target) && !is_at_rest
        });
        let Some((target, _)) = stuck else { return Ok(()) };
        Err(format!(
            "nobody had to act for {target}: {}; and then: {}",
            self.told(target),
            later.told(target)
        ))
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
