//! Two nodes, two volumes (one exclusive, one shared) and three pods, explored exhaustively: everything that can
//! happen, in every order. Every write is checked as in the random histories; what nothing can happen in by
//! itself must be as wanted; and from every state it must be possible to come to rest so, once the faults stop.
//!
//! States that are alike ([`super::fingerprint`]) are gone on from once. An exploration ends when there is no
//! state left that was not gone on from: then pods have come and gone, and faults of the kinds in question have
//! happened, as often as there is any difference in. Where states are too many, it ends after a number of steps.
//!
//! Time passes in leaps, to the next moment at which something is due that has a say (a pause, a doubt, a window or
//! a wait for force ends); what only has users told something does not make it pass.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::jiff::Timestamp;
use mooring::kube_api::{
    ids::{AttachmentName, NodeName, PodKey},
    kinds::VolumeAttachment,
};

pub use super::daemon::KINDS;
use super::{
    actors::has_work,
    authors::Author,
    daemon::Daemon,
    fingerprint::Print,
    server::{NODES, Server},
};

/// Node and volumes of the pods.
pub const PODS: [(&str, &[&str]); 3] = [("n1", &["v1", "v2"]), ("n2", &["v1"]), ("n1", &["v1"])];
/// Rounds in which everything must have come to rest.
const ROUNDS: usize = 200;
/// What wakes the daemon when nothing has happened for so long only has it say again what it has said.
const SAID_AGAIN: Duration = Duration::from_mins(45);
/// No request is under way for longer, nor its answer.
const REQUEST: Duration = Duration::from_secs(10);

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Action {
    PodComes(usize),
    PodGoes(usize),
    Reports(usize),
    Mounts(usize),
    Unmounts(usize),
    Attacher(usize),
    Delivers(usize),
    Arrives(usize),
    Heard(usize),
    /// The next moment comes that has a say.
    TimePasses,
    LateArrives(usize),
    /// A fault happens.
    Fault(Fault, usize),
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver fails once.
    AttacherFails,
    /// Another client writes, so that what the daemon sends next is refused.
    Heartbeat,
    RequestLost,
    RequestLate,
    AnswerLost,
    /// The process dies; its requests will not take effect.
    Dies,
    /// The process dies; its requests have taken effect.
    DiesLate,
    NodeFails,
    /// The node is well again.
    NodeRecovers,
    /// A watch begins anew with a list, and does not tell what happened meanwhile.
    Relists,
    /// A user deletes an attachment of ours by hand.
    SomebodyDetaches,
}

impl Fault {
    /// Those of machines and wires; what people do is apart.
    pub const ALL: [Self; 10] = [
        Self::AttacherFails,
        Self::Heartbeat,
        Self::RequestLost,
        Self::RequestLate,
        Self::AnswerLost,
        Self::Dies,
        Self::DiesLate,
        Self::NodeFails,
        Self::NodeRecovers,
        Self::Relists,
    ];
}

/// What can happen, and how far to go.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub beginning: Beginning,
    /// Which pods come. Each comes once; where an exploration is to reach all states, again and again.
    pub pods: &'static [usize],
    /// Kinds whose watch takes its time, and after how many events it must have told; of the others, and of what
    /// is older, the daemon is told at once.
    pub lags: (&'static [&'static str], usize),
    pub faults: &'static [Fault],
    /// How many faults, if not any number.
    pub most_faults: Option<usize>,
    /// How many steps, if not as many as it takes to reach all states.
    pub most_steps: Option<usize>,
    /// One in so many states is brought to rest.
    pub rest: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub steps: usize,
    pub at_rest: usize,
    /// Steps to the state that is farthest away.
    pub depth: usize,
}

/// Where to begin.
#[derive(Clone, Copy)]
pub enum Beginning {
    /// Nothing is there.
    Nothing,
    /// The first pod's attachments are being made.
    Attaching,
    /// The first pod runs; the second waits for its volume.
    Held,
    /// The same, but the second pod is the older one.
    Overtaken,
    /// The first pod is gone and its node has unmounted, which the daemon has not heard.
    Unmounted,
    /// The deletes are on their way.
    Deleting,
    /// The first pod is gone, and so is the kubelet of its node.
    Stranded,
}

#[derive(Clone)]
struct World {
    server: Server,
    daemon: Daemon,
    /// Pods that came already.
    came: [bool; PODS.len()],
    faults: usize,
    /// How long until something is due.
    next_moment: Option<Duration>,
}

/// The way to each state: the state before, and what happened in it.
struct Ways(Vec<(usize, Action)>);

impl Ways {
    fn to(&self, mut state: usize) -> Vec<Action> {
        let mut way = Vec::new();
        while state > 0 {
            let (before, action) = self.0[state - 1];
            way.push(action);
            state = before;
        }
        way.reverse();
        way
    }
}

/// Explores, breadth first.
pub fn explore(bounds: &Bounds) -> Result<Seen, String> {
    let mut begin = World::begin(bounds)?;
    let mut seen = Seen::default();
    let mut known = HashSet::from([begin.fingerprint(bounds)]);
    let mut ways = Ways(Vec::new());
    let mut layer = vec![(0, begin)];
    while !layer.is_empty() && bounds.most_steps.is_none_or(|steps| seen.depth < steps) {
        let mut next = Vec::new();
        for (state, world) in layer {
            let told = |error: String, action: &[Action]| {
                format!("{error}\nafter {:?}", [&ways.to(state), action].concat())
            };
            let actions = world.actions(bounds);
            world.is_well_if_at_rest(&actions).map_err(|error| told(error, &[]))?;
            let mut found = Vec::new();
            for action in actions {
                let mut after = world.clone();
                after.step(action, bounds).map_err(|error| told(error, &[action]))?;
                seen.steps += 1;
                let fingerprint = after.fingerprint(bounds);
                if !known.insert(fingerprint) {
                    continue;
                }
                if fingerprint.is_multiple_of(bounds.rest) {
                    seen.at_rest += 1;
                    after.clone().rests().map_err(|error| told(error, &[action]))?;
                }
                found.push((action, after));
            }
            for (action, after) in found {
                seen.states += 1;
                ways.0.push((state, action));
                next.push((ways.0.len(), after));
            }
        }
        seen.depth += usize::from(!next.is_empty());
        layer = next;
    }
    Ok(seen)
}

fn node(index: usize) -> NodeName {
    NodeName::from(NODES[index])
}

fn pod(index: usize) -> PodKey {
    PodKey::new("ns", &format!("p{index}"))
}

impl World {
    fn begin(bounds: &Bounds) -> Result<Self, String> {
        use Action::{Arrives, Delivers, Fault, Heard, PodComes, PodGoes, Reports, Unmounts};
        const NODE: Action = Delivers(0);
        const POD: Action = Delivers(1);
        const FAILS: Action = Fault(self::Fault::NodeFails, 0);
        let (pods, since): (usize, &[Action]) = match bounds.beginning {
            Beginning::Nothing => (0, &[]),
            Beginning::Attaching => (0, &[PodComes(0), POD]),
            Beginning::Held | Beginning::Overtaken => (2, &[]),
            Beginning::Unmounted => (2, &[PodGoes(0), Unmounts(0), Reports(0)]),
            Beginning::Deleting => {
                (2, &[PodGoes(0), Unmounts(0), Reports(0), POD, NODE, Arrives(0), Heard(0)])
            }
            Beginning::Stranded => (2, &[PodGoes(0), FAILS, POD, NODE]),
        };
        let server = Server::new();
        let daemon = Daemon::start(&server);
        let mut world = Self { server, daemon, came: [false; PODS.len()], faults: 0, next_moment: None };
        for index in 0..pods {
            world.step(PodComes(index), bounds)?;
            world.settle()?;
        }
        if let (Beginning::Overtaken, Some(older)) = (bounds.beginning, world.server.pods.get(&pod(1))) {
            let mut older = older.clone();
            older.metadata.creation_timestamp = Some(Timestamp::UNIX_EPOCH);
            world.server.put_pod(older);
        }
        world.restart()?;
        for action in since {
            world.step(*action, bounds)?;
        }
        world.faults = 0;
        Ok(world)
    }

    fn restart(&mut self) -> Result<(), String> {
        self.server.history.clear();
        self.daemon = Daemon::start(&self.server);
        self.daemon.reconcile()
    }

    fn fingerprint(&mut self, bounds: &Bounds) -> u64 {
        let counts = (bounds.most_steps.map(|_| self.came), bounds.most_faults.map(|_| self.faults));
        let print = Print::of(&self.server, &self.daemon, &counts);
        self.next_moment = print.next_moment();
        print.fingerprint()
    }

    /// What can happen next, without what would change nothing.
    fn actions(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        for index in bounds.pods.iter().copied() {
            if self.server.pods.contains_key(&pod(index)) {
                actions.push(Action::PodGoes(index));
            } else if bounds.most_steps.is_none() || !self.came[index] {
                actions.push(Action::PodComes(index));
            }
        }
        for index in 0..NODES.len() {
            let can = [Action::Reports(index), Action::Mounts(index), Action::Unmounts(index)];
            let has_to = self.server.kubelet_has_to(&node(index));
            actions
                .extend(can.into_iter().zip(has_to).filter(|(_, has_to)| *has_to).map(|(action, _)| action));
        }
        let attachments = self.server.attachments.values().enumerate();
        let unfinished = attachments.filter(|(_, attachment)| has_work(attachment));
        actions.extend(unfinished.map(|(index, _)| Action::Attacher(index)));
        let kinds = KINDS.into_iter().enumerate();
        let behind = kinds.filter(|(_, kind)| self.daemon.is_behind(&self.server, kind) > 0);
        actions.extend(behind.map(|(index, _)| Action::Delivers(index)));
        let [requests, answers, late] = self.daemon.under_way();
        actions.extend((0..requests).map(Action::Arrives));
        actions.extend((0..answers).map(Action::Heard));
        actions.extend((0..late).map(Action::LateArrives));
        let limit = if requests + answers > 0 { REQUEST } else { Duration::MAX };
        if self.next_moment.is_some_and(|time| time < limit) {
            actions.push(Action::TimePasses);
        }
        if bounds.most_faults.is_none_or(|faults| self.faults < faults) {
            for fault in bounds.faults {
                actions.extend(self.places(*fault, &actions).into_iter().map(|at| Action::Fault(*fault, at)));
            }
        }
        actions
    }

    /// Where a fault can happen now.
    fn places(&self, fault: Fault, actions: &[Action]) -> Vec<usize> {
        let [requests, answers, _] = self.daemon.under_way();
        let nodes = 0..NODES.len();
        match fault {
            Fault::AttacherFails => actions
                .iter()
                .filter_map(|action| if let Action::Attacher(index) = action { Some(*index) } else { None })
                .collect(),
            Fault::Relists => actions
                .iter()
                .filter_map(|action| if let Action::Delivers(index) = action { Some(*index) } else { None })
                .collect(),
            Fault::Heartbeat => nodes.filter(|index| self.daemon.is_writing(&node(*index))).collect(),
            Fault::NodeFails => nodes.filter(|index| self.server.is_alive(&node(*index))).collect(),
            Fault::NodeRecovers => nodes.filter(|index| !self.server.is_alive(&node(*index))).collect(),
            Fault::RequestLost | Fault::RequestLate => (0..requests).collect(),
            Fault::AnswerLost => (0..answers).collect(),
            Fault::Dies => vec![0],
            Fault::SomebodyDetaches => {
                let stays = |attachment: &&VolumeAttachment| !attachment.metadata.is_terminating();
                let attachments = self.server.attachments.values();
                attachments.enumerate().filter(|(_, va)| stays(va)).map(|(index, _)| index).collect()
            }
            Fault::DiesLate => (0..requests.min(1)).collect(),
        }
    }

    fn step(&mut self, action: Action, bounds: &Bounds) -> Result<(), String> {
        // The pauses after failures have jitter.
        fastrand::seed(1);
        act(&mut self.server, action);
        match action {
            Action::PodComes(index) => self.came[index] = true,
            Action::Delivers(index) => {
                self.daemon.deliver(&self.server, KINDS[index]);
                self.daemon.reconcile()?;
            }
            Action::Arrives(index) => self.daemon.arrive(&mut self.server, index)?,
            Action::Heard(index) => self.daemon.hear(index)?,
            Action::LateArrives(index) => self.daemon.late_one_arrives(&mut self.server, index)?,
            Action::TimePasses => {
                if let Some(time) = self.next_moment {
                    self.pass(time)?;
                }
            }
            Action::Fault(fault, index) => {
                self.faults += 1;
                self.fault(fault, index)?;
            }
            _ => {}
        }
        let (lags, most) = bounds.lags;
        for kind in KINDS {
            let most = if lags.contains(&kind) { most } else { 0 };
            while self.daemon.is_behind(&self.server, kind) > most {
                self.daemon.deliver(&self.server, kind);
            }
        }
        self.daemon.reconcile()?;
        self.daemon.forget_delivered(&mut self.server);
        self.server.judge(&mut self.daemon)
    }

    fn fault(&mut self, fault: Fault, index: usize) -> Result<(), String> {
        match fault {
            Fault::RequestLost => self.daemon.lose_request(index, false),
            Fault::RequestLate => self.daemon.lose_request(index, true),
            Fault::AnswerLost => self.daemon.lose_reply(index),
            Fault::Relists => self.daemon.relist(&self.server, KINDS[index]),
            Fault::Dies | Fault::DiesLate => {
                self.daemon.dies(&mut self.server, || fault == Fault::DiesLate)?;
                self.server.leader_changes();
                self.restart()
            }
            Fault::AttacherFails
            | Fault::Heartbeat
            | Fault::NodeFails
            | Fault::NodeRecovers
            | Fault::SomebodyDetaches => Ok(()),
        }
    }

    /// The daemon looks whenever one of its timers is due.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let mut left = time;
        while let Some(next) = self.daemon.wakes_in().filter(|next| *next < left) {
            self.daemon.time_passes(next)?;
            left -= next;
        }
        self.server.time_passes(time);
        self.daemon.time_passes(left)
    }

    /// Where nothing happens but what users and faults do, nothing may be left to be done.
    fn is_well_if_at_rest(&self, actions: &[Action]) -> Result<(), String> {
        let is_at_rest =
            |action: &Action| matches!(action, Action::PodComes(_) | Action::PodGoes(_) | Action::Fault(..));
        let all_alive = (0..NODES.len()).all(|index| self.server.is_alive(&node(index)));
        if !all_alive || !actions.iter().all(is_at_rest) {
            return Ok(());
        }
        self.is_as_wanted()
    }

    fn is_as_wanted(&self) -> Result<(), String> {
        let error = |error| format!("{error}; the daemon waits for {}", self.daemon.waits_for());
        self.server.is_as_wanted().map_err(error)
    }

    /// Without faults, everything comes to rest as wanted.
    fn rests(mut self) -> Result<(), String> {
        self.server.everything_is_well();
        self.settle()?;
        self.is_as_wanted()
    }

    fn settle(&mut self) -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut quiet = Duration::ZERO;
        for _ in 0..ROUNDS {
            let before = self.server.revision();
            self.server.everyone_acts();
            self.daemon.watch_delivers_all(&self.server)?;
            self.server.judge(&mut self.daemon)?;
            let sent = self.daemon.requests_and_replies(&mut self.server, &mut rng)?;
            if sent > 0 || self.server.revision() != before {
                quiet = Duration::ZERO;
                continue;
            }
            let Some(time) = self.daemon.wakes_in() else { return Ok(()) };
            quiet += time;
            if quiet > SAID_AGAIN {
                return Ok(());
            }
            self.pass(time.max(Duration::from_millis(1)))?;
        }
        Err(format!("not at rest after {ROUNDS} rounds; the daemon waits for {}", self.daemon.waits_for()))
    }
}

/// What all actors but the daemon do.
fn act(server: &mut Server, action: Action) {
    let attachment = |server: &Server, index: usize| -> AttachmentName {
        server.attachments.keys().nth(index).cloned().expect("an attachment")
    };
    match action {
        Action::PodComes(index) => {
            let (node, volumes) = PODS[index];
            server.pod_comes(&pod(index), &NodeName::from(node), volumes);
        }
        Action::PodGoes(index) => server.pod_goes(&pod(index)),
        Action::Reports(index) if server.is_alive(&node(index)) => server.kubelet_reports(&node(index)),
        Action::Mounts(index) if server.is_alive(&node(index)) => server.kubelet_mounts(&node(index)),
        Action::Unmounts(index) if server.is_alive(&node(index)) => server.kubelet_unmounts(&node(index)),
        Action::Attacher(index) => server.attacher_works(&attachment(server, index), false),
        Action::Fault(Fault::AttacherFails, index) => server.attacher_works(&attachment(server, index), true),
        Action::Fault(Fault::SomebodyDetaches, index) => {
            server.somebody_detaches(&attachment(server, index), Author::Person);
        }
        Action::Fault(Fault::Heartbeat, index) => server.node_is_touched(&node(index)),
        Action::Fault(Fault::NodeFails, index) => server.node_fails(&node(index)),
        Action::Fault(Fault::NodeRecovers, index) => server.node_recovers(&node(index)),
        _ => {}
    }
}
