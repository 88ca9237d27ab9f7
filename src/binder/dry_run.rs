//! Dry run: what the binder would do next in a world as it is, asked of the planner itself.
//!
//! In: tables, the options, and which reads the tables can answer. Out: the reason of each claim and volume, as the
//! decision returned it, and the write that would come next. Nothing is sent: reads are answered from the tables, writes
//! are noted and left without an answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    ids::{ClaimKey, VolumeName},
    kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use educe::Educe;
use tokio::time::Instant;

use super::{
    calls::{Answer, Call, Op, Purpose, Target, WriteKind},
    controller::Planner,
    matching::predicate::{Mismatch, Requirements, mismatches},
    reasons::{ClaimReason, VolumeReason},
    state::BinderOptions,
};
/// Where a claim or volume stands. Without a reason it is settled.
#[derive(Clone, Debug, Educe, PartialEq)]
#[educe(Default(bound(false)))]
pub struct Place<R> {
    /// Why it is where it is.
    pub reason: Option<Arc<R>>,
    /// The write about it that would come next.
    pub write: Option<WriteKind>,
    /// What that is a write of.
    pub target: Option<ObjectRef>,
}

/// What the binder would do next. Of what is settled, which is nearly all, nothing is said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Claims.
    pub claims: BTreeMap<ClaimKey, Place<ClaimReason>>,
    /// Volumes.
    pub volumes: BTreeMap<VolumeName, Place<VolumeReason>>,
}

/// Asks the binder, of all claims and volumes or of one alone, among as many as there are. An object that is in no table is
/// answered to be gone only if `is_absent` says so: what was not looked for proves nothing.
pub fn dry_run(
    objects: &Arc<Objects>,
    options: &BinderOptions,
    only: Option<&Target>,
    is_absent: &dyn Fn(&ObjectRef) -> bool,
) -> Outlook {
    let (mut planner, now) = (Planner::new(Arc::clone(objects), *options), Instant::now());
    planner.load(now);
    match only {
        None => planner.lead(now),
        Some(target) => {
            planner.queue.open();
            planner.queue.extend(target.uid(objects).map(|_| target.clone()), now);
        }
    }
    let (mut writes, mut asked) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let plan = planner.plan(now);
        let mut goes_on = plan.wake_at.is_some_and(|at| at <= now);
        for op in plan.calls {
            if let Some(write) = op.call.write_kind() {
                writes.insert(op.subject.clone(), (write, op.call.target().cloned()));
            }
            if let Some(result) = read(objects, &op, &mut asked, is_absent) {
                planner.answered(op, result, now, 0.0);
            } else {
                // Its claim and volume stay busy; it keeps no others from being looked at.
                planner.state.in_flight.sent -= 1;
            }
            goes_on = true;
        }
        if !goes_on {
            break;
        }
    }
    let mut outlook = Outlook::default();
    let unsettled = planner.recorder.unsettled(None, usize::MAX);
    let targets: BTreeSet<Target> = unsettled.into_iter().chain(writes.keys().cloned()).collect();
    for target in targets.into_iter().filter(|target| only.is_none_or(|only| only == target)) {
        let (write, of) = writes.remove(&target).map_or((None, None), |(write, of)| (Some(write), of));
        match target {
            Target::Claim(key) => {
                let reason = planner.recorder.claim(&key).cloned();
                outlook.claims.insert(key, Place { reason, write, target: of });
            }
            Target::Volume(name) => {
                let reason = planner.recorder.volume(&name).cloned();
                outlook.volumes.insert(name, Place { reason, write, target: of });
            }
        }
    }
    outlook
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
    let Call::Read { target, purpose } = &op.call else { return None };
    if let Purpose::LearnOwner(_) = purpose {
        // Who wrote what is not known here.
        return Some(Ok(Answer::Owners(Vec::new())));
    }
    let found = match target {
        ObjectRef::Claim(key) => objects.claims.get(key).map(|claim| Answer::Claim((*claim).clone())),
        ObjectRef::Volume(name) => objects.volumes.get(name).map(|volume| Answer::Volume((*volume).clone())),
        ObjectRef::Pod(key) => objects.pods.get(key).map(|pod| Answer::Pod((*pod).clone())),
        ObjectRef::Class(name) => objects.classes.get(name).map(|class| Answer::Class((*class).clone())),
        _ => return None,
    };
    if !asked.insert(format!("{:?} {:?}", op.subject, op.call)) {
        return None;
    }
    match found {
        Some(answer) => Some(Ok(answer)),
        None => is_absent(target).then(|| Err(CallError::NotFound(format!("{target} not found")))),
    }
}
