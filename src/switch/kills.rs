//! Over and back, with a kill of each party at each step, on a model of the cluster, second by second.
//!
//! What a process believes is what counts: kube-controller-manager (KCM) writes until it exits, twelve seconds after its last
//! renewal. No process of KCM that was denied a write may write, nobody writes beside mooring without a fence, and the fence
//! goes down only while no volume is under way. Who stops for one that mooring has left under way leaves a mooring that rules.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    hold::ManagerHold,
    observe::{DrainWord, Renewals, SWITCH_HOLDER, has_led},
    step::{
        DaemonStanding, Direction, FenceStanding, ManagerStanding, SwitchOrder, SwitchSeen, SwitchStep, next,
    },
};
use crate::fence::vigil::HEARD_WITHIN;

/// KCM's lease, and mooring's.
const LEASE: u64 = 15;
/// So long after its last renewal a leader that could not renew exits: the retry period and the renew deadline.
const EXITS_AFTER: u64 = 12;
/// So long after the first word the daemon begins nothing more: its looks are slow.
const HEARS_AFTER: u64 = HEARD_WITHIN.as_secs() - 1;
/// From a process that ends until the next one runs.
const RESTART: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Party {
    Switch,
    Daemon,
    Manager,
    /// A node that goes, with a volume that nobody lists any more.
    Node,
}

/// When somebody is killed at a step: before its writes, among those of the switch, or after them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Before,
    Between,
    After,
}

#[derive(Clone, Debug, Default)]
struct Lease {
    holder: String,
    renewed: u64,
    lasts: u64,
    revision: u64,
}

impl Lease {
    fn json(&self) -> Value {
        let renewed = (self.revision > 0).then(|| self.renewed.to_string());
        json!({
            "metadata": { "resourceVersion": self.revision.to_string() },
            "spec": {
                "holderIdentity": self.holder, "renewTime": renewed, "leaseDurationSeconds": self.lasts,
            },
        })
    }

    fn hold(&mut self, holder: &str, now: u64) {
        *self = Self { holder: holder.to_owned(), renewed: now, lasts: LEASE, revision: self.revision + 1 };
    }

    fn is_free(&self, now: u64) -> bool {
        self.holder.is_empty() || now >= self.renewed + self.lasts
    }
}

#[derive(Clone, Debug)]
struct Process {
    name: String,
    starts: u64,
    /// When it renewed last, if it leads, or believes so.
    leads: Option<u64>,
    was_denied: bool,
}

impl Process {
    fn new(name: &str, starts: u64) -> Self {
        Self { name: format!("{name}-{starts}"), starts, leads: None, was_denied: false }
    }
}

#[derive(Clone, Debug)]
struct World {
    /// Whether attach/detach is among the loops.
    remembers: bool,
    now: u64,
    fence: bool,
    /// Policies, which deny nothing without their bindings.
    policies: bool,
    replicas: u64,
    /// None while no replica runs; when it ends, if it was told to.
    daemon: Option<Process>,
    ends: Option<u64>,
    daemon_lease: Lease,
    manager: Process,
    manager_lease: Lease,
    /// From when and until when mooring begins nothing, and the annotation.
    drain: (u64, u64, Option<String>),
    /// Until when a volume is under way.
    under_way: u64,
    /// What a switch has noted when it freed KCM.
    freed: Option<String>,
}

impl World {
    /// KCM rules, and mooring stands by.
    fn new(remembers: bool) -> Self {
        Self {
            remembers,
            now: 0,
            fence: false,
            policies: false,
            replicas: 2,
            daemon: Some(Process::new("mooring", 0)),
            ends: None,
            daemon_lease: Lease::default(),
            manager: Process::new("kcm", 0),
            manager_lease: Lease::default(),
            drain: (0, 0, None),
            under_way: 0,
            freed: None,
        }
    }

    fn second(&mut self) {
        self.now += 1;
        let now = self.now;
        self.manage();
        if self.ends.is_some_and(|ends| now >= ends) {
            let ended = self.daemon.take();
            if ended.is_some_and(|ended| ended.name == self.daemon_lease.holder) {
                self.daemon_lease.holder.clear();
                self.daemon_lease.revision += 1;
            }
            self.ends = None;
        }
        let Some(daemon) = self.daemon.as_mut().filter(|daemon| now >= daemon.starts) else {
            // Nobody lists what is attached now.
            self.under_way += u64::from(now <= self.under_way);
            return;
        };
        let is_ours = self.daemon_lease.holder == daemon.name;
        if is_ours || self.fence && self.ends.is_none() && self.daemon_lease.is_free(now) {
            self.daemon_lease.hold(&daemon.name, now);
            daemon.leads = Some(now);
        }
        let drains = (self.drain.0..self.drain.1).contains(&now);
        // A volume now and then: that none is under way does not show that none is begun any more.
        if daemon.leads.is_some() && !drains && self.ends.is_none() && now.is_multiple_of(7) {
            self.under_way = now + 4;
        }
        let both = daemon.leads.is_some() && self.manager.leads.is_some() && !self.fence;
        assert!(!both, "nobody writes beside mooring: {self:?}");
    }

    fn manage(&mut self) {
        let (now, manager) = (self.now, &mut self.manager);
        if now < manager.starts {
            return;
        }
        if self.manager_lease.holder == manager.name
            || manager.leads.is_none() && self.manager_lease.is_free(now)
        {
            self.manager_lease.hold(&manager.name, now);
            manager.leads = Some(now);
        }
        match manager.leads {
            Some(renewed) if now >= renewed + EXITS_AFTER => *manager = Process::new("kcm", now + RESTART),
            Some(_) if self.fence => manager.was_denied = true,
            Some(_) => {
                assert!(!manager.was_denied || !self.remembers, "one that was denied writes: {self:?}");
            }
            None => {}
        }
    }

    fn kill(&mut self, party: Party) {
        let starts = self.now + RESTART;
        match party {
            Party::Switch => {}
            Party::Daemon if self.daemon.is_none() => {}
            // One that was told to end does not come again.
            Party::Daemon if self.ends.is_some() => (self.daemon, self.ends) = (None, None),
            Party::Daemon => {
                self.daemon = Some(Process::new("mooring", starts));
                // A word that is there when it starts may be left over.
                self.drain.0 = self.drain.0.max(starts + HEARS_AFTER);
            }
            Party::Manager => self.manager = Process::new("kcm", starts),
            Party::Node => self.under_way = self.under_way.max(self.now + 4),
        }
    }
}

/// One run of the program, and what it has seen.
struct Run {
    name: String,
    is_back: bool,
    start: Instant,
    renewals: Renewals,
    manager_renewals: Renewals,
    renews: bool,
    hold: ManagerHold,
    drain: DrainWord,
}

impl Run {
    fn new(to: Direction, now: u64) -> Self {
        let (renewals, manager_renewals) = (Renewals::default(), Renewals::default());
        let name = format!("{SWITCH_HOLDER}{now}");
        Self {
            name,
            is_back: to == Direction::KubeControllerManager,
            start: Instant::now(),
            renewals,
            manager_renewals,
            renews: false,
            hold: ManagerHold::default(),
            drain: DrainWord::default(),
        }
    }

    fn look(&mut self, world: &World) -> SwitchSeen {
        let now = world.now;
        let at = self.start + Duration::from_secs(now);
        let (leads, may_lead) = self.renewals.note(&world.daemon_lease.json(), at);
        let lease = &world.manager_lease;
        let manager_leads = !lease.holder.is_empty() && !lease.holder.starts_with(SWITCH_HOLDER);
        self.renews |= self.manager_renewals.note(&lease.json(), at).0 && manager_leads;
        let held = self.hold.note(&lease.json(), &self.name, at);
        let own = world.drain.2.clone().filter(|word| word.starts_with(&format!("{} ", self.name)));
        let running = u64::from(world.daemon.is_some());
        let proven = true;
        // On the way back, whose policies are left is up for all that can be told.
        let fence = match (world.fence, world.policies) {
            (true, _) => FenceStanding::Up { proven },
            (false, true) if self.is_back => FenceStanding::Up { proven },
            (false, true) => FenceStanding::Partial("no binding".to_owned()),
            (false, false) => FenceStanding::Absent { proven },
        };
        SwitchSeen {
            fence,
            is_by_time: false,
            daemon: DaemonStanding {
                replicas: Some(world.replicas),
                ready: u64::from(world.daemon.as_ref().is_some_and(|daemon| now >= daemon.starts)),
                running,
                is_fenced: true,
                has_no_lease: false,
                is_asked: world.drain.2.is_some(),
                drains: self.drain.note(own, &world.daemon_lease.holder, at),
                leads,
                may_lead,
                has_led: has_led(&world.daemon_lease.json(), world.freed.as_deref()),
                is_restored: false,
                rolls: false,
            },
            manager: ManagerStanding {
                leads: manager_leads,
                renews: self.renews,
                held: held.map(|held| at.duration_since(held)),
                lasts: Duration::from_secs(LEASE),
                ..ManagerStanding::default()
            },
            holds: world.fence,
            remembers: world.remembers,
            unlisted: if world.remembers && now < world.under_way {
                vec!["v".to_owned()]
            } else {
                Vec::new()
            },
            servers: (1, 1),
            unneeded: Vec::new(),
        }
    }

    fn may_write(&mut self, is_take: bool, world: &World) -> bool {
        let now = self.start + Duration::from_secs(world.now);
        self.hold.may_write(is_take, &world.manager_lease.json(), &self.name, now)
    }

    /// What goes on beside the steps: KCM's lease is renewed while it is held.
    fn second(&mut self, world: &mut World) {
        world.second();
        if self.may_write(false, world) {
            world.manager_lease.hold(&self.name, world.now);
        }
    }

    /// Takes a step, or the first half of its writes.
    fn take(&mut self, step: &SwitchStep, world: &mut World, is_cut_off: bool) {
        let now = world.now;
        let is_take = *step == SwitchStep::HoldLease;
        assert!(world.remembers || !is_take, "nothing is held for those that remember nothing: {world:?}");
        let may_write = self.may_write(is_take, world);
        match step {
            SwitchStep::StartDaemon | SwitchStep::StartAgain(_) => {
                world.replicas = 2;
                world.daemon.get_or_insert_with(|| Process::new("mooring", now + RESTART));
                world.ends = None;
            }
            SwitchStep::StopDaemon => (world.replicas, world.ends) = (0, Some(now + 2)),
            SwitchStep::RaiseFence => (world.fence, world.policies) = (true, true),
            SwitchStep::Drain(_) => {
                let heard = if now < world.drain.1 { world.drain.0 } else { now + HEARS_AFTER };
                world.drain = (heard, now + 60, Some(format!("{} {now}", self.name)));
            }
            SwitchStep::Resume => world.drain = (0, 0, None),
            SwitchStep::HoldLease | SwitchStep::ProveOpen if may_write => {
                world.manager_lease.hold(&self.name, now);
                self.hold.note(
                    &world.manager_lease.json(),
                    &self.name,
                    self.start + Duration::from_secs(now),
                );
            }
            SwitchStep::LowerFence if may_write || !world.remembers => {
                assert!(now >= world.under_way || !world.remembers, "a volume is under way: {world:?}");
                world.fence = false;
                if is_cut_off {
                    return;
                }
                (world.policies, world.drain.2) = (false, None);
                world.freed = Some(format!("{} {}", self.name, world.daemon_lease.revision));
            }
            SwitchStep::GiveLeaseUp if may_write => world.manager_lease = Lease::default(),
            _ => {}
        }
    }
}

/// How many seconds a look takes, one after the other, again and again: volumes are read, or answers are late.
type Looks = &'static [u64];
const AT_ONCE: Looks = &[0];

/// Goes there, and kills one at a step: by its place among the steps that this run has begun, and when.
fn go(
    world: &mut World,
    to: Direction,
    looks: Looks,
    kill: Option<(usize, Party, When)>,
) -> Result<usize, String> {
    let order =
        SwitchOrder { to, one_way: false, replace_fence: false, max_pause: None, manager_restarted: false };
    let (mut run, mut begun, mut kill): (Run, Vec<SwitchStep>, _) =
        (Run::new(to, world.now), Vec::new(), kill);
    let mut since = world.now;
    for lasts in looks.iter().cycle().take(600) {
        run.second(world);
        let mut seen = run.look(world);
        (0..*lasts).for_each(|_| run.second(world));
        // What was under way may have come to rest; what has begun since is not seen.
        seen.unlisted.retain(|_| world.now < world.under_way);
        seen.daemon.drains &= run.drain.holds(run.start + Duration::from_secs(world.now));
        let step = next(order, &seen);
        if !begun.last().is_some_and(|last| last.is_same(&step)) {
            begun.push(step.clone());
            since = world.now;
        }
        if let (SwitchStep::Drain(_), Some(why)) =
            (&step, step.given_up(Duration::from_secs(world.now - since), &seen))
        {
            return Err(why);
        }
        match &step {
            SwitchStep::Done => return Ok(begun.len()),
            SwitchStep::Stop(why) => return Err(why.clone()),
            SwitchStep::StartAgain(_) => {
                run.take(&step, world, false);
                return Err(step.told());
            }
            _ => {}
        }
        let killed = kill.take_if(|(place, ..)| *place + 1 == begun.len());
        if killed.is_none_or(|(_, party, when)| party != Party::Switch || when != When::Before) {
            run.take(
                &step,
                world,
                killed.is_some_and(|(_, party, when)| (party, when) == (Party::Switch, When::Between)),
            );
        }
        let Some((_, party, _)) = killed else { continue };
        world.kill(party);
        if party == Party::Switch {
            // Its lock has to run out first.
            (0..30).for_each(|_| world.second());
            run = Run::new(to, world.now);
        }
    }
    Err(format!("it does not end: {begun:?} {world:?}"))
}

#[test]
fn whoever_is_killed_at_any_step_no_law_is_broken_and_it_ends() {
    let (killed, started_again) = kill_each_at_each_step(true);
    assert!(killed > 60 && started_again > 2, "{killed} {started_again}");
}

#[test]
fn likewise_without_attach_detach_and_no_lease_of_kube_controller_manager_is_held() {
    let (killed, started_again) = kill_each_at_each_step(false);
    assert!(killed > 40 && started_again == 0, "{killed} {started_again}");
}

/// How many were killed, and how often mooring was started again on the way back.
fn kill_each_at_each_step(remembers: bool) -> (usize, usize) {
    use Direction::{KubeControllerManager, Mooring};
    let mut ruled_by_the_manager = World::new(remembers);
    (0..20).for_each(|_| ruled_by_the_manager.second());
    let mut ruled_by_mooring = ruled_by_the_manager.clone();
    go(&mut ruled_by_mooring, Mooring, AT_ONCE, None).unwrap();
    (0..20).for_each(|_| ruled_by_mooring.second());
    let (mut killed, mut started_again) = (0, 0);
    for (base, to, other) in [
        (&ruled_by_the_manager, Mooring, KubeControllerManager),
        (&ruled_by_mooring, KubeControllerManager, Mooring),
    ] {
        let steps = go(&mut base.clone(), to, AT_ONCE, None).unwrap();
        assert!(steps >= 3, "{to:?}: {steps}");
        for place in 0..steps {
            for party in [Party::Switch, Party::Daemon, Party::Manager, Party::Node] {
                for when in [When::Before, When::Between, When::After] {
                    let (mut world, told) = (base.clone(), format!("{to:?} {place} {party:?} {when:?}"));
                    let mut end = go(&mut world, to, AT_ONCE, Some((place, party, when)));
                    let is_cut_off = (party, when) == (Party::Switch, When::Between);
                    if !is_cut_off
                        && end.as_ref().is_err_and(|why| why.contains("run switch --to mooring --yes"))
                    {
                        // It says what to do.
                        go(&mut world, other, AT_ONCE, None).unwrap_or_else(|why| panic!("{told}: {why}"));
                        end = go(&mut world, to, AT_ONCE, None);
                    }
                    if end.as_ref().is_err_and(|why| why.contains("mooring starts again")) {
                        (0..60).for_each(|_| world.second());
                        let rules = world.daemon.as_ref().is_some_and(|daemon| daemon.leads.is_some());
                        assert!(rules && world.fence && party == Party::Node, "{told}: {world:?}");
                        end = go(&mut world, to, AT_ONCE, None);
                        started_again += 1;
                    }
                    end.unwrap_or_else(|why| panic!("{told}: {why}"));
                    (0..60).for_each(|_| world.second());
                    let rules = match to {
                        Mooring => world.daemon.is_some_and(|daemon| daemon.leads.is_some()),
                        KubeControllerManager => !world.fence && world.manager.leads.is_some(),
                    };
                    assert!(rules, "{told}");
                    if to == KubeControllerManager {
                        // Whoever has replicas stand by again is not told that it may have been denied writes.
                        (world.replicas, world.daemon) = (2, Some(Process::new("mooring", world.now)));
                        (0..5).for_each(|_| world.second());
                        go(&mut world, to, AT_ONCE, None).unwrap_or_else(|why| panic!("{told}: {why}"));
                    }
                    killed += 1;
                }
            }
        }
    }
    (killed, started_again)
}

#[test]
fn where_each_look_outlasts_the_word_to_begin_nothing_new_the_way_back_ends_by_saying_so() {
    let mut world = World::new(true);
    (0..20).for_each(|_| world.second());
    go(&mut world, Direction::Mooring, AT_ONCE, None).unwrap();
    let end = go(&mut world, Direction::KubeControllerManager, &[70], None).unwrap_err();
    assert!(end.contains("run this in a pod of the cluster"), "{end}");
    assert!(world.fence && world.daemon.is_some(), "mooring rules on: {world:?}");
}

#[test]
fn however_long_looks_take_no_process_that_was_denied_goes_on_and_it_ends() {
    use Direction::{KubeControllerManager, Mooring};
    // The last: a look outlasts the word to begin nothing new, which was heard before.
    let looks: [Looks; 6] =
        [&[3], &[20], &[20, 3], &[20, 0, 0, 0], &[16, 1, 40], &[3, 3, 9, 70, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]];
    for looks in looks {
        let mut world = World::new(true);
        (0..20).for_each(|_| world.second());
        for to in [Mooring, KubeControllerManager] {
            go(&mut world, to, looks, None).unwrap_or_else(|why| panic!("{to:?} {looks:?}: {why}"));
            (0..60).for_each(|_| world.second());
        }
        assert!(!world.fence && world.manager.leads.is_some(), "{looks:?}");
    }
}
