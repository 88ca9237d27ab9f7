//! One history: a seed decides every step of a simulated cluster and of the daemon in it.

mod actors;
mod authors;
mod clocks;
mod daemon;
pub mod explained;
mod justified;
mod rivals;
mod server;
mod storage;
mod wishes;

use std::{mem, time::Duration};

use apiserver::ids::NodeName;
use authors::Author;
use clocks::{Clocks, Machine};
use daemon::Daemon;
use fastrand::Rng;

use server::{NODES, Server};

/// Steps with faults before the trouble stops.
const STEPS: usize = 150;
/// Rounds without faults in which everything must have come to rest.
const ROUNDS: usize = 600;
const ROUND: Duration = Duration::from_secs(5);
/// How often the leader renews its lease.
const RENEWAL: Duration = Duration::from_secs(2);
/// Rounds after which a detach that waits for a dead node must have been forced (S6): six minutes, and what a
/// lost request and a change of leader may add.
const FORCED: usize = 72 + 6;

/// Plays the history of a seed. The error is the first broken promise.
pub fn play(seed: u64) -> Result<(), String> {
    let mut history = History::begin(seed)?;
    let rivalry = history.rng.u32(0..4) == 0;
    // In some histories a person or a rival takes away what is in use. The others are what they were before.
    let meddler = match seed % 16 {
        3 => Some(Author::Person),
        11 => Some(Author::Rival),
        _ => None,
    };
    for _ in 0..STEPS {
        if let Some(meddler) = meddler {
            history.is_meddled_with(meddler)?;
        }
        history.step(rivalry)?;
        history.server.judge(&mut history.daemon)?;
    }
    history.settle()?;
    if !rivalry && meddler != Some(Author::Rival) && history.daemon.is_alarmed() {
        return Err(format!("S46: a second controller, where none is: {}", history.daemon.second_writers()));
    }
    if rivalry { history.second_controller_is_noticed() } else { Ok(()) }
}

/// How things are when the trouble stops.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    AllIsWell,
    /// A machine is gone for good, and its node object with it (H9, L9).
    NodeIsGone,
    /// A machine is gone for good, and its node object stays (S6, L6).
    NodeIsDead,
    /// The volumes of the driver need no attaching any more (S16).
    DriverNeedsNone,
}

struct History {
    server: Server,
    /// Who leads.
    daemon: Daemon,
    /// The other replica, which watches.
    standby: Daemon,
    rng: Rng,
    /// Chance, for what clocks show.
    clocks: Rng,
    ending: Ending,
}

impl History {
    fn begin(seed: u64) -> Result<Self, String> {
        fastrand::seed(seed);
        let mut server = Server::new();
        // Of their own, so that the histories themselves stay those of their seeds.
        let mut clocks = Rng::with_seed(!seed);
        server.clocks.step_all(&mut clocks);
        let mut history = Self {
            daemon: Daemon::stand_by(&server).going_at(Clocks::rate(&mut clocks)),
            standby: Daemon::stand_by(&server).going_at(Clocks::rate(&mut clocks)),
            server,
            rng: Rng::with_seed(seed),
            clocks,
            ending: Ending::AllIsWell,
        };
        history.daemon.wins(&history.server)?;
        Ok(history)
    }

    fn step(&mut self, rivalry: bool) -> Result<(), String> {
        let Self { server, daemon, standby, rng, clocks, .. } = self;
        if clocks.u32(0..20) == 0 {
            server.clocks.step_all(clocks);
        }
        match rng.u32(0..100) {
            0..7 => server.user_acts(rng),
            7..9 => server.machine_acts(rng),
            9..22 => server.attacher_acts(rng),
            22..36 => server.kubelet_acts(rng),
            36..61 => {
                daemon.watch_delivers(server, rng)?;
                if rng.bool() {
                    standby.watch_delivers(server, rng)?;
                }
            }
            61..76 => daemon.request_arrives(server, rng)?,
            76..87 => daemon.reply_arrives(rng)?,
            87..89 => daemon.request_is_lost(rng)?,
            89..91 => daemon.reply_is_lost(rng)?,
            91..93 => {
                let time = Duration::from_millis(rng.u64(1..900));
                self.pass(time)?;
            }
            93 => self.pass(Duration::from_secs(6))?,
            94 => {
                let time = Duration::from_secs(rng.u64(30..400));
                self.pass(time)?;
            }
            95 => daemon.watch_begins_anew(server, rng)?,
            96 => standby.watch_begins_anew(server, rng)?,
            97 => server.storage_acts(rng),
            98 if rivalry => server.second_controller_acts(rng),
            98 => server.stranger_acts(rng),
            _ if rng.bool() => {
                self.leader_dies()?;
                self.nobody_leads()?;
                self.another_leads()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Something is taken away, the others catch up so that there is something to take away, or the leader changes and
    /// forgets what no object tells.
    fn is_meddled_with(&mut self, meddler: Author) -> Result<(), String> {
        let Self { server, rng, .. } = self;
        match rng.u32(0..36) {
            0..3 if meddler == Author::Rival => server.second_controller_acts(rng),
            0..3 => server.meddler_acts(rng),
            3..6 => drop(self.round()?),
            6 => {
                self.leader_dies()?;
                self.nobody_leads()?;
                self.another_leads()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let is_renewed = time >= RENEWAL;
        if is_renewed {
            self.server.lease_is_renewed(&self.daemon);
        }
        self.server.time_passes(time);
        self.standby.time_passes(time)?;
        self.daemon.time_passes(time)?;
        if is_renewed {
            self.server.judge(&mut self.daemon)?;
            self.server.lease_is_renewed(&self.daemon);
        }
        Ok(())
    }

    /// The leader dies; each of its requests took effect by then or never will. It comes back and leads again,
    /// or the other replica does.
    fn leader_changes(&mut self) -> Result<(), String> {
        self.leader_dies()?;
        self.another_leads()
    }

    fn leader_dies(&mut self) -> Result<(), String> {
        let Self { server, daemon, rng, .. } = self;
        daemon.dies(server, || rng.bool())
    }

    /// Machines fail and recover while no replica leads.
    fn nobody_leads(&mut self) -> Result<(), String> {
        let Self { server, standby, clocks, .. } = self;
        for _ in 0..clocks.u32(0..5) {
            server.machine_acts(clocks);
            let time = Duration::from_millis(clocks.u64(100..5_000));
            server.time_passes(time);
            standby.time_passes(time)?;
        }
        Ok(())
    }

    fn another_leads(&mut self) -> Result<(), String> {
        let Self { server, daemon, standby, rng, clocks, .. } = self;
        server.clocks.step(Machine::Replica, clocks);
        let next = Daemon::stand_by(server).going_at(Clocks::rate(clocks));
        *daemon = if rng.bool() { mem::replace(standby, next) } else { next };
        server.leader_changes();
        daemon.wins(server)?;
        server.note_wishes_inherited_by(daemon);
        server.judge(daemon)
    }

    fn settle(&mut self) -> Result<(), String> {
        let index = self.rng.usize(0..NODES.len());
        self.ending = match self.rng.u32(0..8) {
            0 => Ending::NodeIsGone,
            1 => Ending::NodeIsDead,
            2 => Ending::DriverNeedsNone,
            _ => Ending::AllIsWell,
        };
        if matches!(self.ending, Ending::NodeIsGone | Ending::NodeIsDead) {
            self.server.machine_goes(index, self.ending == Ending::NodeIsGone);
        }
        self.server.everything_is_well();
        match self.ending {
            Ending::DriverNeedsNone => self.server.driver_says(Some(false)),
            Ending::NodeIsGone if self.rng.bool() => self.leader_changes()?,
            Ending::NodeIsDead => self.waits_for_force(index)?,
            _ => {}
        }
        self.comes_to_rest()
    }

    /// S6: a wait that begins anew with a leader ends. (That none is shorter is checked wherever a deletion arrives.)
    fn waits_for_force(&mut self, node: usize) -> Result<(), String> {
        let (mut left, mut changes) = (FORCED, 3);
        while left > 0 {
            // S14: an alarm holds everything up while it lasts.
            left -= usize::from(!self.daemon.is_alarmed());
            self.round()?;
            if changes > 0 && self.rng.u32(0..15) == 0 {
                self.leader_changes()?;
                (left, changes) = (FORCED, changes - 1);
            }
        }
        // Of a node whose object is gone, nothing tells since when.
        if !self.server.nodes.contains_key(&NodeName::from(NODES[node])) {
            return Ok(());
        }
        let held = self.server.is_rid_of(node);
        held.map_err(|error| format!("S6: {error}; it waits for {}", self.daemon.waits_for()))
    }

    /// The daemon and all other actors do all there is to do, and then time passes. Returns whether anything happened.
    fn round(&mut self) -> Result<bool, String> {
        let before = self.server.revision();
        self.server.everyone_acts();
        self.standby.watch_delivers_all(&self.server)?;
        self.daemon.watch_delivers_all(&self.server)?;
        self.server.judge(&mut self.daemon)?;
        let sent = self.daemon.requests_and_replies(&mut self.server, &mut self.rng)?;
        let busy = sent > 0 || self.server.revision() != before;
        self.pass(ROUND)?;
        Ok(busy)
    }

    fn comes_to_rest(&mut self) -> Result<(), String> {
        // H9, L9: what was on a machine that is gone for good is given up after six minutes.
        let enough = if self.ending == Ending::AllIsWell { 30 } else { 80 };
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            quiet = if self.round()? || self.daemon.is_alarmed() { 0 } else { quiet + 1 };
            if quiet > enough {
                return self
                    .server
                    .is_as_wanted()
                    .map_err(|error| format!("{error}; the daemon waits for {}", self.daemon.waits_for()));
            }
        }
        Err(format!("not at rest after {ROUNDS} rounds: {:#?}", self.server))
    }

    /// S14: who rewrites the lists of two nodes is noticed, and nothing is detached while it does (that is
    /// checked wherever something is sent); when it has ceased, everything is made good.
    fn second_controller_is_noticed(&mut self) -> Result<(), String> {
        let listing = self.server.nodes.values().filter(|node| !node.status.volumes_attached.is_empty());
        let names: Vec<NodeName> = listing.map(|node| node.metadata.name.as_str().into()).take(2).collect();
        let Some(name) = names.first().cloned() else {
            return Ok(());
        };
        // The first may be taken for what an earlier leader wrote.
        for _ in 0..4 {
            for name in &names {
                // One without entries would have no owner.
                // One without entries would have no owner.
                self.server.somebody_lists(name, &["foreign"], Author::Rival);
            }
            self.round()?;
        }
        // One object alone shows too little.
        if names.len() > 1 && !self.daemon.is_alarmed() {
            return Err(format!("S14: nobody noticed who rewrites the lists of {names:?}"));
        }
        self.server.everybody_leaves(&name);
        if self.rng.bool() {
            self.server.somebody_lists(&name, &[], Author::Rival);
        }
        self.comes_to_rest()
    }
}
