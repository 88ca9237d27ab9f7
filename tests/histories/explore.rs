//! Two nodes, two volumes (one exclusive, one shared) and three pods, explored exhaustively: from a few
//! beginnings, everything that can happen in a number of steps, in every order, with a number of faults among
//! them. Every write is checked as in the random histories; and from every state it must be possible to come
//! to rest as wanted, once the faults stop.
//!
//! A state is reached again by playing its steps again; states that are alike ([`super::fingerprint`]) are
//! gone on from once. While the daemon is told of everything at once there are far fewer of them, and as many
//! steps as it takes to attach, to detach and to attach elsewhere can be explored.

use std::{collections::HashSet, time::Duration};

use mooring::kube_api::ids::{AttachmentName, NodeName, PodKey};

use super::{
    daemon::{Daemon, KINDS},
    fingerprint::fingerprint,
    server::{NODES, Server},
};

/// Node and volumes of the pods.
pub const PODS: [(&str, &[&str]); 3] = [("n1", &["v1", "v2"]), ("n2", &["v1"]), ("n1", &["v1"])];
/// Rounds in which everything must have come to rest.
const ROUNDS: usize = 200;
/// What wakes the daemon after such a time only has it say again what it has said.
const SAID_AGAIN: Duration = Duration::from_mins(45);

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
    /// The next timer of the daemon is due.
    TimePasses,
    /// The driver fails once.
    AttacherFails(usize),
    /// A write of somebody else, so that what the daemon sends next is refused.
    Heartbeat(usize),
    RequestLost(usize),
    RequestLate(usize),
    LateArrives(usize),
    AnswerLost(usize),
    /// The process dies; its requests have taken effect, or will not.
    Dies(bool),
    NodeFails(usize),
    /// A watch begins anew with a list, and does not tell what happened meanwhile.
    Relists(usize),
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::AttacherFails(_)
                | Self::Heartbeat(_)
                | Self::RequestLost(_)
                | Self::RequestLate(_)
                | Self::AnswerLost(_)
                | Self::Dies(_)
                | Self::NodeFails(_)
                | Self::Relists(_)
        )
    }
}

/// How far to go.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub steps: usize,
    /// Whether the daemon is told of everything at once, and only its requests and their answers take time.
    /// Then the pods are two of an exclusive volume, and come again and again; otherwise each comes once.
    pub told_at_once: bool,
    pub faults: usize,
    /// One in so many states is brought to rest.
    pub rest: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub steps: usize,
    pub at_rest: usize,
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
    /// The first pod is gone and its node has unmounted, which the daemon has not heard.
    Unmounted,
    /// The deletes are on their way.
    Deleting,
    /// The first pod is gone, and so is the kubelet of its node.
    Stranded,
}

/// A beginning: what is at rest, and what has happened since.
struct Begin {
    at_rest: Server,
    came: [bool; PODS.len()],
    since: &'static [Action],
}

struct World {
    server: Server,
    daemon: Daemon,
    /// Pods that came already; each comes once.
    came: [bool; PODS.len()],
    faults: usize,
}

/// Explores, breadth first.
pub fn explore(beginning: Beginning, bounds: Bounds) -> Result<Seen, String> {
    let begin = Begin::new(beginning)?;
    let mut seen = Seen::default();
    let mut known = HashSet::from([begin.world()?.fingerprint()]);
    let mut layer: Vec<Vec<Action>> = vec![Vec::new()];
    for _ in 0..bounds.steps {
        let mut next = Vec::new();
        for path in &layer {
            for action in begin.replay(path, bounds)?.actions(bounds) {
                let mut path = path.clone();
                path.push(action);
                let world = begin.replay(&path, bounds)?;
                seen.steps += 1;
                let fingerprint = world.fingerprint();
                if !known.insert(fingerprint) {
                    continue;
                }
                seen.states += 1;
                if fingerprint.is_multiple_of(bounds.rest) {
                    seen.at_rest += 1;
                    world.rests().map_err(|error| format!("{error}\nafter {path:?}"))?;
                }
                next.push(path);
            }
        }
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

impl Begin {
    fn new(beginning: Beginning) -> Result<Self, String> {
        use Action::{Arrives, Delivers, Heard, NodeFails, PodComes, PodGoes, Reports, Unmounts};
        const NODE: Action = Delivers(0);
        const POD: Action = Delivers(1);
        let (pods, since): (usize, &[Action]) = match beginning {
            Beginning::Nothing => (0, &[]),
            Beginning::Attaching => (0, &[PodComes(0), POD]),
            Beginning::Held => (2, &[]),
            Beginning::Unmounted => (2, &[PodGoes(0), Unmounts(0), Reports(0)]),
            Beginning::Deleting => {
                (2, &[PodGoes(0), Unmounts(0), Reports(0), POD, NODE, Arrives(0), Heard(0)])
            }
            Beginning::Stranded => (2, &[PodGoes(0), NodeFails(0), POD, NODE]),
        };
        let nothing = Self { at_rest: Server::new(), came: [false; PODS.len()], since: &[] };
        let mut world = nothing.world()?;
        for index in 0..pods {
            world.step(PodComes(index))?;
            world.settle()?;
        }
        let mut at_rest = world.server;
        at_rest.history.clear();
        Ok(Self { at_rest, came: world.came, since })
    }

    fn world(&self) -> Result<World, String> {
        // The pauses after failures have jitter.
        fastrand::seed(1);
        let server = self.at_rest.clone();
        let daemon = Daemon::start(&server);
        let mut world = World { server, daemon, came: self.came, faults: 0 };
        world.daemon.reconcile()?;
        for action in self.since {
            world.step(*action)?;
        }
        world.faults = 0;
        Ok(world)
    }

    fn replay(&self, path: &[Action], bounds: Bounds) -> Result<World, String> {
        let mut world = self.world()?;
        for (number, action) in path.iter().enumerate() {
            let mut step = world.step(*action);
            if bounds.told_at_once && step.is_ok() {
                step = world.daemon.watch_delivers_all(&world.server);
            }
            step.map_err(|error| format!("{error}\nafter {:?}", &path[..=number]))?;
        }
        Ok(world)
    }
}

impl World {
    fn fingerprint(&self) -> u64 {
        fingerprint(&self.server, &self.daemon, &(self.came, self.faults))
    }

    /// What can happen next, without what would change nothing.
    fn actions(&self, bounds: Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        let pods = if bounds.told_at_once { 1..PODS.len() } else { 0..PODS.len() };
        for index in pods {
            if self.server.pods.contains_key(&pod(index)) {
                actions.push(Action::PodGoes(index));
            } else if bounds.told_at_once || !self.came[index] {
                actions.push(Action::PodComes(index));
            }
        }
        for index in 0..NODES.len() {
            for action in [Action::Reports(index), Action::Mounts(index), Action::Unmounts(index)] {
                if self.would_change(action) {
                    actions.push(action);
                }
            }
            if self.server.is_alive(&node(index)) {
                actions.push(Action::NodeFails(index));
            }
            if self.daemon.is_writing(&node(index)) {
                actions.push(Action::Heartbeat(index));
            }
        }
        for index in 0..self.server.attachments.len() {
            if self.would_change(Action::Attacher(index)) {
                actions.push(Action::Attacher(index));
                actions.push(Action::AttacherFails(index));
            }
        }
        for (index, kind) in KINDS.into_iter().enumerate() {
            if self.daemon.is_behind(&self.server, kind) {
                actions.push(Action::Delivers(index));
                actions.push(Action::Relists(index));
            }
        }
        let [requests, answers, late] = self.daemon.under_way();
        for index in 0..requests {
            actions.push(Action::Arrives(index));
            actions.push(Action::RequestLost(index));
            actions.push(Action::RequestLate(index));
        }
        for index in 0..answers {
            actions.push(Action::Heard(index));
            actions.push(Action::AnswerLost(index));
        }
        actions.extend((0..late).map(Action::LateArrives));
        actions.push(Action::Dies(false));
        if requests > 0 {
            actions.push(Action::Dies(true));
        }
        if self.daemon.wakes_in().is_some() {
            actions.push(Action::TimePasses);
        }
        actions.retain(|action| self.faults < bounds.faults || !action.is_fault());
        actions
    }

    fn would_change(&self, action: Action) -> bool {
        let mut server = self.server.clone();
        act(&mut server, action);
        server.revision() != self.server.revision() || server.mounted != self.server.mounted
    }

    fn step(&mut self, action: Action) -> Result<(), String> {
        self.faults += usize::from(action.is_fault());
        act(&mut self.server, action);
        match action {
            Action::PodComes(index) => self.came[index] = true,
            Action::Delivers(index) => {
                self.daemon.deliver(&self.server, KINDS[index]);
                self.daemon.reconcile()?;
            }
            Action::Relists(index) => self.daemon.relist(&self.server, KINDS[index])?,
            Action::Arrives(index) => self.daemon.arrive(&mut self.server, index)?,
            Action::Heard(index) => self.daemon.hear(index)?,
            Action::TimePasses => {
                let time = self.daemon.wakes_in().unwrap_or_default();
                self.pass(time)?;
            }
            Action::RequestLost(index) => self.daemon.lose_request(index, false)?,
            Action::RequestLate(index) => self.daemon.lose_request(index, true)?,
            Action::LateArrives(index) => self.daemon.late_one_arrives(&mut self.server, index)?,
            Action::AnswerLost(index) => self.daemon.lose_reply(index)?,
            Action::Dies(took_effect) => {
                self.daemon.dies(&mut self.server, || took_effect)?;
                self.daemon = Daemon::start(&self.server);
                self.daemon.reconcile()?;
            }
            _ => {}
        }
        self.server.note_wishes_seen_by(&self.daemon);
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Result<(), String> {
        self.server.time_passes(time);
        self.daemon.time_passes(time)
    }

    /// Without faults, everything comes to rest as wanted.
    fn rests(mut self) -> Result<(), String> {
        self.server.everything_is_well();
        self.settle()?;
        self.server
            .is_as_wanted()
            .map_err(|error| format!("{error}; it waits for {}", self.daemon.waits_for()))
    }

    fn settle(&mut self) -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..ROUNDS {
            let before = self.server.revision();
            self.server.everyone_acts();
            self.daemon.watch_delivers_all(&self.server)?;
            self.server.note_wishes_seen_by(&self.daemon);
            let sent = self.daemon.requests_and_replies(&mut self.server, &mut rng)?;
            if sent > 0 || self.server.revision() != before {
                continue;
            }
            let Some(time) = self.daemon.wakes_in().filter(|time| *time < SAID_AGAIN) else { return Ok(()) };
            self.pass(time.max(Duration::from_millis(1)))?;
        }
        Err(format!("not at rest after {ROUNDS} rounds; the daemon waits for {}", self.daemon.waits_for()))
    }
}

/// What everybody but the daemon does.
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
        Action::Heartbeat(index) => server.node_is_touched(&node(index)),
        Action::NodeFails(index) => server.node_fails(&node(index)),
        Action::Attacher(index) => server.attacher_works(&attachment(server, index), false),
        Action::AttacherFails(index) => server.attacher_works(&attachment(server, index), true),
        _ => {}
    }
}
