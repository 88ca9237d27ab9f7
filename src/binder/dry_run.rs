//! Dry run: what the binder would do next in a world as it is, asked of the planner itself.
//!
//! In: tables, the options, and which reads the tables can answer. Out: the reason of each claim and volume, as the
//! decision returned it, and the write that would come next. Nothing is sent: reads are answered from the tables, writes
//! are noted and left without an answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    act::{
        op::{Answer, Call, Op, Purpose},
        write::{Object, Target, WriteKind},
    },
    decide::view::BinderOptions,
    matching::predicate::{Mismatch, Requirements, mismatches},
    planner::Planner,
    tell::reason::{ClaimReason, VolumeReason},
};
use crate::{
    kube_api::{
        call::CallError,
        ids::{ClaimKey, VolumeName},
        kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim},
    },
    state::Objects,
};

/// Where a claim or volume stands. Without a reason it is settled.
#[derive(Debug, PartialEq)]
pub struct Place<R> {
    /// Why it is where it is.
    pub reason: Option<Arc<R>>,
    /// The write about it that would come next.
    pub write: Option<WriteKind>,
}

impl<R> Clone for Place<R> {
    fn clone(&self) -> Self {
        Self { reason: self.reason.clone(), write: self.write }
    }
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        Self { reason: None, write: None }
    }
}

/// What the binder would do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Each claim.
    pub claims: BTreeMap<ClaimKey, Place<ClaimReason>>,
    /// Each volume.
    pub volumes: BTreeMap<VolumeName, Place<VolumeReason>>,
}

/// Asks the binder. An object that is in no table is answered to be gone only if `is_absent` says so: what was not
/// looked for proves nothing.
#[must_use]
pub fn dry_run(
    objects: &Arc<Objects>,
    options: &BinderOptions,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
) -> Outlook {
    let now = Instant::now();
    let mut planner = Planner::new(Arc::clone(objects), options.clone());
    planner.load(now);
    planner.lead(now);
    let mut outlook = settle(&mut planner, is_absent, now);
    for key in objects.claims.snapshot().into_keys() {
        let place = outlook.claims.entry(key.clone()).or_default();
        place.reason = planner.reasons.claim(&key).cloned();
    }
    for name in objects.volumes.snapshot().into_keys() {
        let place = outlook.volumes.entry(name.clone()).or_default();
        place.reason = planner.reasons.volume(&name).cloned();
    }
    outlook
}

/// The same about a few claims and volumes alone, among as many as there are.
#[must_use]
pub fn dry_run_of(
    claims: &[ClaimKey],
    volumes: &[VolumeName],
    objects: &Arc<Objects>,
    options: &BinderOptions,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
) -> Outlook {
    let now = Instant::now();
    let mut planner = Planner::new(Arc::clone(objects), options.clone());
    planner.load(now);
    planner.queue.open();
    let claims = || claims.iter().filter(|key| objects.claims.get(key).is_some());
    let volumes = || volumes.iter().filter(|name| objects.volumes.get(name).is_some());
    let targets = claims().cloned().map(Target::Claim).chain(volumes().cloned().map(Target::Volume));
    planner.queue.extend(targets, now);
    let mut outlook = settle(&mut planner, is_absent, now);
    for key in claims() {
        outlook.claims.entry(key.clone()).or_default().reason = planner.reasons.claim(key).cloned();
    }
    for name in volumes() {
        outlook.volumes.entry(name.clone()).or_default().reason = planner.reasons.volume(name).cloned();
    }
    outlook
}

/// Plans until there is nothing more to plan.
fn settle(planner: &mut Planner, is_absent: &dyn Fn(&ObjectRef) -> bool, now: Instant) -> Outlook {
    let mut outlook = Outlook::default();
    let mut asked = BTreeSet::new();
    let objects = Arc::clone(&planner.known.objects);
    loop {
        let plan = planner.plan(now);
        let mut goes_on = plan.wake_at.is_some_and(|at| at <= now);
        for op in plan.ops {
            if let Some(write) = op.call.write_kind() {
                match &op.subject {
                    Target::Claim(key) => outlook.claims.entry(key.clone()).or_default().write = Some(write),
                    Target::Volume(name) => {
                        outlook.volumes.entry(name.clone()).or_default().write = Some(write);
                    }
                }
            }
            if let Some(result) = read(&objects, &op, &mut asked, is_absent) {
                planner.outcome(op, result, now, 0.0);
            } else {
                // Its claim and volume stay busy; it keeps no others from being looked at.
                planner.in_flight.answered();
            }
            goes_on = true;
        }
        if !goes_on {
            return outlook;
        }
    }
}

/// All that is wrong with a volume for a claim, in the order in which the search asks; nothing if it fits.
///
/// # Errors
/// The claim asks for something that cannot be read.
pub fn all_mismatches(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<Vec<Mismatch>, String> {
    let requirements = Requirements::of(claim).map_err(|unreadable| unreadable.to_string())?;
    Ok(mismatches(volume, &requirements))
}

/// The answer to a read, each question once: one that settles nothing the first time does not the second time, either.
fn read(
    objects: &Objects,
    op: &Op,
    asked: &mut BTreeSet<String>,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
) -> Option<Result<Answer, CallError>> {
    let (object, found) = match &op.call {
        Call::Read { target: Object::Claim(key), .. } => {
            let found = objects.claims.get(key).map(|it| Answer::Claim((*it).clone()));
            (ObjectRef::Claim(key.clone()), found)
        }
        Call::Read { target: Object::Volume(name), .. } => {
            let found = objects.volumes.get(name).map(|it| Answer::Volume((*it).clone()));
            (ObjectRef::Volume(name.clone()), found)
        }
        Call::Read { target: Object::Pod(key), .. } => {
            let found = objects.pods.get(key).map(|it| Answer::Pod((*it).clone()));
            (ObjectRef::Pod(key.clone()), found)
        }
        Call::ReadClass(name) => {
            let found = objects.classes.get(name).map(|it| Answer::Class((*it).clone()));
            (ObjectRef::Class(name.clone()), found)
        }
        // Who wrote what is not known here.
        Call::ReadOwner(_) => return Some(Ok(Answer::Owners(Vec::new()))),
        Call::Write(_) | Call::Directory(_) => return None,
    };
    let purpose = match &op.call {
        Call::Read { purpose, .. } => purpose_name(purpose),
        _ => "",
    };
    if !asked.insert(format!("{object} {purpose} {:?}", op.subject)) {
        return None;
    }
    match found {
        Some(answer) => Some(Ok(answer)),
        None => is_absent(&object).then(|| Err(CallError::NotFound(format!("{object} not found")))),
    }
}

fn purpose_name(purpose: &Purpose) -> &'static str {
    match purpose {
        Purpose::Refresh => "refresh",
        Purpose::ProveClaim(_) => "prove claim",
        Purpose::ProveVolume => "prove volume",
        Purpose::ProveReleased => "prove released",
        Purpose::SeeWhose => "see whose",
    }
}
