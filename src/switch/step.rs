//! What is next: a function of how the cluster stands. Pure.
//!
//! The order is what makes it safe. What would keep it from ending is found out first, while somebody rules. Over: mooring
//! stands by, the fence is up and proven, mooring leads. Back: no exclusive
//! volume has an attachment that its node does not list while mooring begins nothing new, mooring has stopped, KCM's lease is held for longer than it
//! lasts, so that no process of KCM is left that was ever denied a write, the fence is off and that is proven, KCM leads.

use std::time::Duration;

use clap::ValueEnum;

use crate::{
    fence::{policies::Fence, state::UNBROKEN},
    preflight::some_of,
};

/// Who is to rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// mooring.
    Mooring,
    /// kube-controller-manager.
    KubeControllerManager,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchOrder {
    /// Who is to rule.
    pub to: Direction,
    /// Over, although nobody can hold KCM's lease for the way back.
    pub one_way: bool,
    /// Over, although the fence is that of another version.
    pub replace_fence: bool,
    /// Back: for how long KCM's loops may stand still at most.
    pub max_pause: Option<Duration>,
    /// Back: after mooring had stopped, each process of KCM is started anew by hand, so its lease need not be held.
    pub manager_restarted: bool,
}

/// How the fence stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceStanding {
    /// None of its objects is there.
    Absent {
        /// Whether each API server was seen to let the probe pass.
        proven: bool,
    },
    /// It is there in part, or not as it should be: why.
    Partial(String),
    /// It is that of another version of mooring: which.
    Other(String),
    /// It is there as it should be.
    Up {
        /// Whether each API server was seen to enforce it.
        proven: bool,
    },
    /// It cannot be told: why.
    Unknown(String),
}

impl FenceStanding {
    /// Whether it is there as it should be, and enforced at once by each API server that has read it.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// The daemon, as its Deployment and its lease show it.
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonStanding {
    /// How many replicas it should have; `None` without Deployment.
    pub replicas: Option<u64>,
    /// How many of them are ready: they have listed every kind.
    pub ready: u64,
    /// How many there still are. What is being deleted does not count, but holds the lease.
    pub running: u64,
    /// Whether it runs with `--fence`.
    pub is_fenced: bool,
    /// Whether it rules without a lease, so that nobody can see whether it does.
    pub has_no_lease: bool,
    /// Whether a switch has asked it to begin nothing new.
    pub is_asked: bool,
    /// Whether this run has asked for that for so long that it was heard.
    pub drains: bool,
    /// Whether one of them holds the lease, and was seen to renew it.
    pub leads: bool,
    /// Whether one of them may hold the lease: it has not expired since it was seen first.
    pub may_lead: bool,
    /// Back: whether one of them held it since a switch freed KCM last, or may have.
    pub has_led: bool,
    /// Back: whether it had been stopped, and somebody has given it replicas again.
    pub is_restored: bool,
    /// Whether replicas of an earlier template may be left.
    pub rolls: bool,
}

impl DaemonStanding {
    /// Whether it rules beside a KCM whose own flags keep its loops from ruling.
    pub fn rules_by_flags(&self) -> bool {
        self.replicas.is_some_and(|replicas| replicas > 0) && (!self.is_fenced || self.has_no_lease)
    }
}

/// KCM, as its lease shows it.
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerStanding {
    /// Whether a process of KCM holds the lease.
    pub leads: bool,
    /// Whether a process of KCM was seen to renew it. One that is left over from other flags is no hold on KCM.
    pub renews: bool,
    /// Whether somebody may hold the lease: it has not expired since it was seen first.
    pub may_lead: bool,
    /// For how long this process has held it.
    pub held: Option<Duration>,
    /// For how long its holder has led, by its own times and since this run saw it renew; `None` until it does.
    pub led: Option<Duration>,
    /// How long it lasts.
    pub lasts: Duration,
    /// Why its lease cannot be written: the server's words for a dry run.
    pub unwritable: Option<String>,
    /// Back: whether it was started anew.
    pub restart: ManagerRestart,
    /// Back: whether a switch began to take the fence down for the process that leads, while mooring has stood still.
    pub is_being_freed: bool,
    /// Back: controllers of mooring that KCM's own flags switch off, as far as its pods show that.
    pub off: Vec<&'static str>,
    /// Back: whether its pods show that it runs others of them.
    pub is_on: bool,
    /// Back: who holds the lease, and what tells a stop of mooring from another, to be recorded.
    pub mark: String,
}

/// What shows that KCM was started anew since mooring stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagerRestart {
    /// Which process led then is not on record.
    #[default]
    Unrecorded,
    /// That one leads still.
    Same,
    /// Another one leads.
    Other,
    /// Nobody renews the lease now, which shows nothing.
    Unseen,
}

/// How the cluster stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchSeen {
    /// The fence.
    pub fence: FenceStanding,
    /// Whether it is taken for proven although the servers could not be told apart and counted.
    pub is_by_time: bool,
    /// mooring.
    pub daemon: DaemonStanding,
    /// KCM.
    pub manager: ManagerStanding,
    /// Exclusive volumes with an attachment that its node does not list.
    pub unlisted: Vec<String>,
    /// Whether mooring may lead behind the fence: each loop is denied, be it by the fence of another version.
    pub holds: bool,
    /// How many API servers were seen to do the same with the probe, of how many there are.
    pub servers: (usize, usize),
    /// Whether a loop that is fenced off, or may have been, goes on from what it remembers: it is freed as a new process only.
    pub remembers: bool,
    /// Over: fences that are there of loops that mooring does not run.
    pub unneeded: Vec<&'static Fence>,
}

/// One step. Each can be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchStep {
    /// Give KCM's lease up.
    GiveLeaseUp,
    /// Give the Deployment its replicas back.
    StartDaemon,
    /// Likewise, on the way back, which ends with it: why. mooring alone can finish what it has left under way.
    StartAgain(String),
    /// A replica is not ready yet.
    AwaitDaemon,
    /// Take back that mooring is to begin nothing new.
    Resume,
    /// See a process of KCM renew its lease.
    FindManager,
    /// Apply the policies and their bindings.
    RaiseFence,
    /// Ask until each API server was seen to answer the probe.
    ReachServers,
    /// Ask until each API server was seen to enforce the fence.
    ProveFence,
    /// mooring is about to take its lease.
    AwaitLeader,
    /// A replica of an earlier template may lead yet.
    AwaitRollout,
    /// Take the fences down of loops that mooring does not run.
    LowerUnneeded(Vec<&'static Fence>),
    /// Ask mooring to begin nothing new, and wait until these volumes are not under way.
    Drain(Vec<String>),
    /// Scale the Deployment to 0.
    StopDaemon,
    /// The last leader is still finishing.
    AwaitStop,
    /// Record which process of KCM leads, before each is started anew by hand.
    RecordManager,
    /// A process of KCM leads that was denied writes, or may have been. Each is about to be started anew by hand.
    AwaitRestart,
    /// Write ourselves into KCM's lease, and stay there.
    HoldLease,
    /// Take the finalizers off, and delete policies and bindings.
    LowerFence,
    /// Ask until each API server was seen to let the probe pass.
    ProveOpen,
    /// KCM is about to take its lease.
    AwaitManager,
    /// Nothing is left to do.
    Done,
    /// It cannot go on.
    Stop(String),
}

/// The lease of a KCM that was not told to have another one.
const USUAL_LEASE: Duration = Duration::from_secs(15);

/// For a leader that is slow to exit.
const EXIT_SLACK: Duration = Duration::from_secs(5);

/// After how long under another holder no process of KCM leads any more whose lease lasts that long. One that has just renewed it waits
/// for the retry period, and then tries for the renew deadline. The deadline is shorter than the lease, and longer than the period by a
/// fifth; usually both together are 12 s. client-go: tools/leaderelection/leaderelection.go, `renew` and `NewLeaderElector`.
pub(super) fn exits_after(lasts: Duration) -> Duration {
    if lasts <= USUAL_LEASE { lasts + EXIT_SLACK } else { lasts * 2 }
}

/// A daemon that may lead begins within a few seconds, or after the lease of a predecessor that was killed. A lease is renewed
/// every few seconds, too.
pub(super) const MOST_TO_LEAD: Duration = Duration::from_mins(1);

/// A server that is gone counts for a minute, and two minutes without a break are a proof where servers are not counted. A driver
/// that works has attached a volume within this time, too.
pub(super) const MOST_TO_WAIT: Duration = Duration::from_mins(3);

/// How long KCM's lease is held at most: all of KCM stands still.
pub(super) fn longest_hold(lasts: Duration) -> Duration {
    exits_after(lasts) + MOST_TO_WAIT
}

/// How long another process of KCM may have led behind the fence when it is freed: five seconds, of which the look that found it may
/// have taken one. One that leads for longer repeats what it was denied, and has forgotten what came and went meanwhile.
pub(super) const MOST_LED: Duration = Duration::from_secs(4);

/// From KCM's lease given up until a new process has it.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// As many names as are told.
const VOLUMES_TOLD: usize = 20;

fn stop(why: impl Into<String>) -> SwitchStep {
    SwitchStep::Stop(why.into())
}

/// What is next.
pub fn next(order: SwitchOrder, seen: &SwitchSeen) -> SwitchStep {
    if let FenceStanding::Unknown(why) = &seen.fence {
        return stop(format!("how the fence stands cannot be told: {why}"));
    }
    match order.to {
        Direction::Mooring => over(order, seen),
        Direction::KubeControllerManager => back(order, seen),
    }
}

fn over(order: SwitchOrder, seen: &SwitchSeen) -> SwitchStep {
    let SwitchSeen { fence, daemon, manager, .. } = seen;
    let Some(replicas) = daemon.replicas else {
        return stop("there is no Deployment mooring in mooring-system: roll it out first");
    };
    // 1. It stands by, and does not lead by itself.
    if !daemon.is_fenced {
        return stop("mooring runs without --fence: add the component optional/fence first");
    }
    if daemon.has_no_lease {
        return stop(format!("whether mooring rules could not be seen: {NO_LEASE}"));
    }
    if let FenceStanding::Other(why) = fence
        && !order.replace_fence
    {
        return stop(format!(
            "{why}; this is mooring {}, and replicas of the other version wait, or take nothing away, behind a fence of this \
             one: run this with the mooring that the Deployment has, or say --replace-fence, and roll this version out next",
            env!("CARGO_PKG_VERSION"),
        ));
    }
    if let Some(lost) = seen.unneeded.iter().find(|fence| fence.has_memory()) {
        return stop(format!(
            "kube-controller-manager's {0} is fenced off, and mooring does not run it, so nobody does its work: take it into the \
             --controllers of the Deployment, or go back with switch --to kube-controller-manager --yes",
            lost.controller
        ));
    }
    if replicas == 0 {
        return SwitchStep::StartDaemon;
    }
    // 2. The fence is up, at each server. Once it denies writes, the way back takes KCM's lease. Nobody who waits for the rest of
    // a fence is ready before it is raised.
    match fence {
        FenceStanding::Absent { .. } if daemon.ready == 0 => return SwitchStep::AwaitDaemon,
        FenceStanding::Up { .. } if daemon.ready == 0 && !daemon.may_lead => return SwitchStep::AwaitDaemon,
        FenceStanding::Absent { .. } | FenceStanding::Partial(_) | FenceStanding::Other(_)
            if seen.remembers && manager.unwritable.is_some() && !order.one_way =>
        {
            return stop(format!(
                "there is no way back, as nobody could hold kube-controller-manager's lease: {}; get the rights of \
                 deploy/switcher, or say --one-way: then somebody has to restart the kube-controller-manager of \
                 each server on the way back",
                manager.unwritable.as_deref().unwrap_or_default()
            ));
        }
        FenceStanding::Absent { .. } | FenceStanding::Partial(_) | FenceStanding::Other(_)
            if seen.remembers && !manager.renews && !order.one_way =>
        {
            return SwitchStep::FindManager;
        }
        // While nobody waits for it: which servers there are, and that each can be asked.
        FenceStanding::Absent { proven: false } => return SwitchStep::ReachServers,
        FenceStanding::Up { .. } if daemon.is_asked => return SwitchStep::Resume,
        FenceStanding::Up { proven: false } => return SwitchStep::ProveFence,
        FenceStanding::Up { proven: true } => {}
        _ => return SwitchStep::RaiseFence,
    }
    // 3. It leads. What it does not run is KCM's.
    match &seen.unneeded {
        _ if !daemon.leads => SwitchStep::AwaitLeader,
        // A leader of before runs other loops, and looks at the fences of those.
        _ if daemon.rolls => SwitchStep::AwaitRollout,
        none if none.is_empty() => SwitchStep::Done,
        unneeded => SwitchStep::LowerUnneeded(unneeded.clone()),
    }
}

/// What somebody has to do who cannot hold KCM's lease.
pub(super) const BY_RESTART: &str = "run this again with --manager-was-restarted, and restart the kube-controller-manager of each server \
    while it waits (docs/adopting.md#restart says how: to delete its pod restarts nothing)";
/// How mooring is stopped before.
pub(super) const BY_SCALE: &str =
    "stop mooring with kubectl -n mooring-system scale deployment mooring --replicas=0";

/// What somebody has to do whose mooring has no lease.
const NO_LEASE: &str =
    "it runs with --leader-elect=false; take the flag out of the Deployment, and run this again";

fn back(order: SwitchOrder, seen: &SwitchSeen) -> SwitchStep {
    let SwitchSeen { fence, daemon, manager, unlisted, remembers, .. } = seen;
    let is_open = matches!(fence, FenceStanding::Absent { .. });
    // 1. What is under way is finished, and mooring stops.
    if daemon.replicas.is_none() && !is_open {
        return stop(
            "there is no Deployment mooring in mooring-system, so it cannot be told whether mooring runs: stop it wherever it \
             runs, create the Deployment with replicas: 0, and run this again",
        );
    }
    let is_stopped = daemon.replicas.is_none_or(|replicas| replicas == 0);
    let rules_by_flags = daemon.rules_by_flags();
    if let Some(step) = switched_off(seen, rules_by_flags, is_open) {
        return step;
    }
    if daemon.has_no_lease && !is_open {
        return stop(format!("whether mooring has ended could not be seen: {NO_LEASE}"));
    }
    let is_held = manager.held.is_some();
    let may_be_stale = *remembers && is_open && !rules_by_flags && daemon.has_led;
    if may_be_stale && !is_held && !(is_stopped && order.manager_restarted) {
        return stop(format!(
            "mooring has ruled behind a fence that is gone, and kube-controller-manager may have been denied writes: run \
             switch --to mooring --yes, and then this again; if kube-controller-manager was started anew since, also because its \
             own flags kept its loops from ruling, {BY_SCALE}, and run this again with --manager-was-restarted"
        ));
    }
    if daemon.replicas.is_some_and(|replicas| replicas > 0) {
        return until_stopped(order, seen);
    }
    if daemon.may_lead || daemon.running > 0 {
        return SwitchStep::AwaitStop;
    }
    // 2. No process of KCM is left that was denied a write, and remembers what it wanted.
    let has_exited = manager.held.is_some_and(|held| held >= exits_after(manager.lasts));
    if !is_open {
        // Not while its lease is held: all of KCM stands still then.
        if *fence == (FenceStanding::Up { proven: false }) && !is_held && !order.manager_restarted {
            return SwitchStep::ReachServers;
        }
        if !unlisted.is_empty() {
            let names = names(unlisted);
            let why = format!(
                "attached and not listed by their nodes, so that kube-controller-manager could attach them a second time: {names}"
            );
            // It finishes nothing that it never began.
            if !daemon.has_led {
                return stop(format!(
                    "{why}; mooring's lease is gone, so it cannot be told whether mooring led: run switch --to mooring --yes, and then \
                     this again; if mooring never led, run this again with --leave for each of them"
                ));
            }
            // Or nobody would rule until a person acts.
            if seen.holds {
                return SwitchStep::StartAgain(format!("{why}; mooring starts again, then run this again"));
            }
            return stop(format!("{why}; run switch --to mooring --yes, and then this again"));
        }
        if *remembers
            && !has_exited
            && let Some(step) = until_exited(order, seen)
        {
            return step;
        }
        // 3. It may write again, at each server, while it does not lead yet.
        return SwitchStep::LowerFence;
    }
    match fence {
        // Also where KCM leads already: a denial that is seen now leads back to its lease.
        FenceStanding::Absent { proven: false } => SwitchStep::ProveOpen,
        // Somebody else has taken the fence down.
        _ if is_held && !has_exited => SwitchStep::HoldLease,
        // The word that it was restarted does not stand against what is seen.
        _ if may_be_stale && !is_held && manager.restart == ManagerRestart::Same => SwitchStep::AwaitRestart,
        // What is left of it is to note that KCM is free.
        _ if may_be_stale => SwitchStep::LowerFence,
        _ if is_held => SwitchStep::GiveLeaseUp,
        // Without a lease there is nothing to see of it; and of a loop without memory no process has ended.
        _ if manager.leads || order.manager_restarted || !remembers => SwitchStep::Done,
        _ => SwitchStep::AwaitManager,
    }
}

/// What is to be done until mooring has stopped.
fn until_stopped(order: SwitchOrder, seen: &SwitchSeen) -> SwitchStep {
    let SwitchSeen { fence, daemon, manager, unlisted, remembers, .. } = seen;
    let is_open = matches!(fence, FenceStanding::Absent { .. });
    let rules_by_flags = daemon.rules_by_flags();
    if daemon.is_restored {
        return stop(
            "mooring had stopped, and somebody has given the Deployment its replicas back: suspend what does that, and run this again",
        );
    }
    if is_open && rules_by_flags {
        return by_flags(unlisted, manager.is_on && !daemon.is_fenced);
    }
    if is_open {
        return SwitchStep::StopDaemon;
    }
    if *remembers && !daemon.is_fenced {
        return stop(
            "mooring runs without --fence behind the fence, so nobody hears that it is to begin nothing new: add the component \
             optional/fence again, and run this again",
        );
    }
    // While nobody waits for it: what would keep this from ending.
    if order.manager_restarted {
        return stop(
            "a restart counts after mooring has stopped: run this without --manager-was-restarted first",
        );
    }
    if *remembers && !manager.renews && manager.unwritable.is_none() {
        return SwitchStep::FindManager;
    }
    if *fence == (FenceStanding::Up { proven: false }) {
        return SwitchStep::ReachServers;
    }
    if !remembers {
        return SwitchStep::StopDaemon;
    }
    if let Some(why) = order.max_pause.and_then(|most| pauses_longer(most, seen)) {
        return stop(why);
    }
    // Who never led has nothing under way.
    if daemon.has_led && !(daemon.drains && unlisted.is_empty()) {
        return SwitchStep::Drain(unlisted.clone());
    }
    SwitchStep::StopDaemon
}

/// Why KCM would stand still for longer than that on the way back, or may.
fn pauses_longer(most: Duration, SwitchSeen { manager, servers, .. }: &SwitchSeen) -> Option<String> {
    if let Some(why) = &manager.unwritable {
        return Some(format!(
            "for how long kube-controller-manager would stand still cannot be known, as somebody has to restart it: {why}"
        ));
    }
    // Where servers cannot be told apart or counted, only time proves that none denies KCM anything any more.
    let proof = if servers.0 > 0 && servers.1 > 0 { Duration::ZERO } else { UNBROKEN };
    let pause = exits_after(manager.lasts) + proof + TAKE_OVER;
    (pause > most).then(|| {
        format!(
            "all loops of kube-controller-manager would stand still for about {} s, as its lease lasts {} s: more than --max-pause",
            pause.as_secs(),
            manager.lasts.as_secs()
        )
    })
}

/// What a person has to do whose mooring rules beside a KCM that its own flags keep from ruling, if they do.
fn by_flags(unlisted: &[String], is_on: bool) -> SwitchStep {
    if is_on {
        return stop(format!(
            "mooring rules without a fence, and kube-controller-manager's pods show that it runs the same loops, so two rule now: \
             {BY_SCALE} at once"
        ));
    }
    let at_rest = if unlisted.is_empty() {
        String::new()
    } else {
        let names = names(unlisted);
        format!(
            "wait until the nodes list these, as kube-controller-manager could attach them a second time: {names}; "
        )
    };
    stop(format!(
        "mooring rules without a fence, and this command cannot change what in kube-controller-manager's own flags keeps its loops \
         from ruling: {at_rest}{BY_SCALE}, and then take what keeps them off out of its --controllers; if nothing does, two rule now"
    ))
}

/// What somebody has to do first whose KCM has loops off that are to be freed; not while mooring rules beside it by flags.
fn switched_off(seen: &SwitchSeen, rules_by_flags: bool, is_open: bool) -> Option<SwitchStep> {
    let SwitchSeen { daemon, manager, .. } = seen;
    let is_there = daemon.replicas.is_some_and(|replicas| replicas > 0);
    let is_ruled = is_open && is_there && (rules_by_flags || daemon.may_lead);
    if manager.off.is_empty() || manager.held.is_some() || is_ruled {
        return None;
    }
    let first = if daemon.replicas.is_none() {
        // A chart may be in another namespace, and mooring may be no Deployment at all.
        "there is no Deployment mooring in mooring-system: stop mooring wherever else it runs, and then "
    } else {
        "first "
    };
    Some(stop(format!(
        "kube-controller-manager has these switched off by its --controllers, so nobody would do their work: {}; {first}take \
         them out of it{}",
        manager.off.join(", "),
        if is_open { "" } else { ", as they stay fenced off until this has run" }
    )))
}

/// What is to be done until no process of KCM is left that was denied a write.
fn until_exited(order: SwitchOrder, SwitchSeen { fence, manager, .. }: &SwitchSeen) -> Option<SwitchStep> {
    use ManagerRestart::{Other, Same, Unrecorded, Unseen};
    // Once its objects are gone, this run has lowered it for the process that leads, or somebody else has. The one on record was
    // denied writes whoever did.
    if order.manager_restarted && matches!(fence, FenceStanding::Partial(_)) && manager.restart != Same {
        return None;
    }
    let is_recorded = manager.restart != Unrecorded;
    // Nobody has written beside it since, and it takes nothing off by force within this time.
    let most_led = if manager.is_being_freed { MOST_TO_WAIT } else { MOST_LED };
    Some(match (order.manager_restarted, &manager.unwritable) {
        (true, _) if manager.restart == Unseen || !manager.may_lead => return None,
        (true, _) if manager.restart == Other && manager.led.is_some_and(|led| led <= most_led) => {
            return None;
        }
        // A lease that is left over shows nothing, and runs out.
        (true, _) if !manager.renews => SwitchStep::FindManager,
        (true, _) | (false, Some(_)) if !is_recorded => SwitchStep::RecordManager,
        (true, _) => SwitchStep::AwaitRestart,
        (false, Some(why)) => stop(format!(
            "mooring has stopped; kube-controller-manager's lease cannot be held: {why}; {BY_RESTART}"
        )),
        (false, None) if !manager.renews && manager.held.is_none() => SwitchStep::FindManager,
        (false, None) => SwitchStep::HoldLease,
    })
}

pub(super) fn names(volumes: &[String]) -> String {
    some_of(volumes.iter().map(String::as_str), VOLUMES_TOLD)
}
