//! Clocks: every machine has its own, and none shows the world's time.
//!
//! In: the world's true time, which only the checks know. Out: what a machine's clock shows then. One is up to an
//! hour off, and steps now and then, as when its time is synchronised at last.

use std::collections::BTreeMap;

use fastrand::Rng;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A machine with a clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Machine {
    /// Where the API server runs: creation times.
    ApiServer,
    /// Where the external-attacher runs: times of errors.
    Attacher,
    /// Where conditions of nodes are written, by kubelets and the node lifecycle controller.
    Node(usize),
    /// Where a replica of the daemon is started.
    Replica,
}

/// How far a clock may be off, in seconds.
const WRONG: i64 = 3_600;

/// How far each clock is off.
#[derive(Clone, Debug, Default)]
pub struct Clocks(BTreeMap<Machine, SignedDuration>);

impl Clocks {
    /// What a machine's clock shows.
    pub fn show(&self, machine: Machine, truth: Timestamp) -> Timestamp {
        let off = self.0.get(&machine).copied().unwrap_or_default();
        truth.checked_add(off).unwrap()
    }

    /// A clock is set, rightly or not.
    pub fn set(&mut self, machine: Machine, off: SignedDuration) {
        self.0.insert(machine, off);
    }

    /// A clock steps to wherever.
    pub fn step(&mut self, machine: Machine, rng: &mut Rng) {
        self.set(machine, SignedDuration::from_secs(rng.i64(-WRONG..=WRONG)));
    }

    /// All clocks step.
    pub fn step_all(&mut self, rng: &mut Rng) {
        let nodes = (0..super::server::NODES.len()).map(Machine::Node);
        let others = [Machine::ApiServer, Machine::Attacher, Machine::Replica];
        for machine in nodes.chain(others) {
            self.step(machine, rng);
        }
    }

    /// How fast the monotonic clock of a machine goes: within what is let pass for synchronised time, 500 ppm.
    pub fn rate(rng: &mut Rng) -> f64 {
        1.0 + (rng.f64() - 0.5) / 1_000.0
    }
}
