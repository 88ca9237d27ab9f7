//! The troubles of the cluster and their times: a pure function of the seed and the flags.
//!
//! Pods move at a steady rate, occasionally a seat ends and another one begins, and nodes have their
//! troubles in [`ROUND`]s: one is tainted for maintenance, another one dies. In every odd round its
//! operator declares the machine off, and in every even round the node is removed from the cluster.

use std::{collections::BTreeMap, time::Duration};

use crate::actors::{Seat, Succession};

/// How long a round of troubles takes.
pub const ROUND: Duration = Duration::from_secs(40);
/// When the first one begins, and pods begin to be deleted: everything runs by then.
const FIRST_ROUND: Duration = Duration::from_secs(4);
/// How often a seat is given up and another one taken.
const TURNOVER: Duration = Duration::from_secs(10);
/// Classes of the seats.
pub const DELAYED_CLASS: &str = "fast";
/// Binds at once.
pub const IMMEDIATE_CLASS: &str = "standard";
/// Has volumes that were made beforehand.
pub const STATIC_CLASS: &str = "archive";
/// People are told to delete its pod, so it is there as long as the demo runs.
pub const SHOWN_SEAT: &str = "db-0";
/// Sizes of claims, in Gi.
const SIZES: [u32; 5] = [1, 5, 10, 20, 50];

/// Something that happens to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A user deletes the pod of a seat.
    DeletePod(String),
    /// A seat is given up.
    GiveUp(String),
    /// A seat is taken.
    Take(String, Seat),
    /// A node is to be empty for maintenance.
    Taint(String),
    /// And is back.
    Untaint(String),
    /// A machine stops.
    Die(String),
    /// Its operator says so.
    OutOfService(String),
    /// Or removes its node.
    Remove(String),
    /// It runs again.
    Return(String),
}

/// What is due at some time.
#[derive(Clone, Debug)]
enum Due {
    Act(Act),
    /// The next pod is deleted.
    Move,
    /// A seat is given up, and another one taken.
    Turnover,
    /// The next round of troubles begins.
    Round,
}

/// The script. Yields acts in order of time, for ever.
#[derive(Debug)]
pub struct Script {
    random: fastrand::Rng,
    nodes: Vec<String>,
    seats: BTreeMap<String, Seat>,
    /// Seats there ever were.
    taken: usize,
    /// Between two deletions of pods, if there are any.
    pause: Option<Duration>,
    rounds: u32,
    due: BTreeMap<(Duration, u64), Due>,
    planned: u64,
}

impl Script {
    /// A script for so many nodes and seats, with so many pods deleted per second.
    pub fn new(seed: u64, nodes: usize, seats: usize, rate: f64) -> Self {
        let mut script = Self {
            random: fastrand::Rng::with_seed(seed),
            nodes: (1..=nodes).map(|number| format!("node-{number}")).collect(),
            seats: BTreeMap::new(),
            taken: 0,
            pause: (rate > 0.0).then(|| Duration::from_secs_f64(1.0 / rate)),
            rounds: 0,
            due: BTreeMap::new(),
            planned: 0,
        };
        for number in 0..seats {
            script.take_seat(number % 12 == 11);
        }
        script.plan(FIRST_ROUND, Due::Round);
        script.plan(TURNOVER, Due::Turnover);
        if script.pause.is_some() {
            script.plan(FIRST_ROUND, Due::Move);
        }
        script
    }

    /// Names of the nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The seats that are taken now.
    pub fn seats(&self) -> &BTreeMap<String, Seat> {
        &self.seats
    }

    fn plan(&mut self, at: Duration, due: Due) {
        self.planned += 1;
        self.due.insert((at, self.planned), due);
    }

    /// Of four seats one has a pod that is replaced at once, the rest are as of a StatefulSet. Those
    /// with volumes made beforehand are there from the start: no more of them are made.
    fn take_seat(&mut self, is_static: bool) -> (String, Seat) {
        let number = self.taken;
        self.taken += 1;
        let (name, succession, class) = match number % 4 {
            _ if is_static => ("archive", Succession::AfterGone, STATIC_CLASS),
            1 => ("web", Succession::AtOnce, IMMEDIATE_CLASS),
            _ => ("db", Succession::AfterGone, DELAYED_CLASS),
        };
        let name = format!("{name}-{number}");
        let size = self.random.choice(SIZES).unwrap_or(1);
        let seat = Seat { succession, class: class.to_owned(), size: format!("{size}Gi") };
        self.seats.insert(name.clone(), seat.clone());
        (name, seat)
    }

    /// Volumes made beforehand are kept when they are released, so their seats stay. So does the one
    /// whose pod people are told to delete.
    fn give_up_seat(&mut self) -> Option<String> {
        let may_leave = |name: &str, seat: &Seat| seat.class != STATIC_CLASS && name != SHOWN_SEAT;
        let leaving = self.seats.iter().filter(|(name, seat)| may_leave(name, seat)).map(|(name, _)| name);
        let name = self.random.choice(leaving.collect::<Vec<_>>()).cloned()?;
        self.seats.remove(&name);
        Some(name)
    }

    fn plan_round(&mut self, begin: Duration) {
        let nodes = self.random.choose_multiple(self.nodes.iter().cloned(), 2);
        let Ok([tainted, dead]) = <[String; 2]>::try_from(nodes) else { return };
        let (proof, back) = if self.rounds.is_multiple_of(2) {
            (Act::OutOfService(dead.clone()), 22)
        } else {
            (Act::Remove(dead.clone()), 34)
        };
        self.rounds += 1;
        let acts = [
            (0, Act::Taint(tainted.clone())),
            (4, Act::Die(dead.clone())),
            (7, Act::Untaint(tainted)),
            (12, proof),
            (back, Act::Return(dead)),
        ];
        for (second, act) in acts {
            self.plan(begin + Duration::from_secs(second), Due::Act(act));
        }
        self.plan(begin + ROUND, Due::Round);
    }
}

impl Iterator for Script {
    type Item = (Duration, Act);

    fn next(&mut self) -> Option<(Duration, Act)> {
        loop {
            let ((at, _), due) = self.due.pop_first()?;
            match due {
                Due::Act(act) => return Some((at, act)),
                Due::Round => self.plan_round(at),
                Due::Move => {
                    self.plan(at + self.pause.unwrap_or(ROUND), Due::Move);
                    let seats: Vec<&String> = self.seats.keys().collect();
                    if let Some(seat) = self.random.choice(seats).cloned() {
                        return Some((at, Act::DeletePod(seat)));
                    }
                }
                Due::Turnover => {
                    self.plan(at + TURNOVER, Due::Turnover);
                    if let Some(name) = self.give_up_seat() {
                        let (taken, seat) = self.take_seat(false);
                        self.plan(at, Due::Act(Act::GiveUp(name)));
                        self.plan(at, Due::Act(Act::Take(taken, seat)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: u64, count: usize) -> Vec<(Duration, Act)> {
        Script::new(seed, 5, 24, 1.0).take(count).collect()
    }

    #[test]
    fn a_seed_is_a_script() {
        assert_eq!(first(7, 500), first(7, 500));
        assert_ne!(first(7, 500), first(8, 500));
    }

    #[test]
    fn acts_come_in_order_and_at_the_rate() {
        let acts = first(1, 1_000);
        assert!(acts.is_sorted_by_key(|(at, _)| *at));
        let (end, _) = acts.last().unwrap();
        let moves = acts.iter().filter(|(_, act)| matches!(act, Act::DeletePod(_))).count();
        assert_eq!(moves as u64, end.as_secs() - FIRST_ROUND.as_secs() + 1);
        let none = Script::new(1, 5, 24, 0.0).take(1_000).filter(|(_, act)| matches!(act, Act::DeletePod(_)));
        assert_eq!(none.count(), 0);
    }

    #[test]
    fn a_node_that_dies_returns_before_the_next_trouble() {
        for seed in 0..20 {
            let mut dead: Option<String> = None;
            let mut proofs = [0_u32, 0];
            for (_, act) in first(seed, 2_000) {
                match act {
                    Act::Die(node) => assert_eq!(dead.replace(node), None),
                    Act::OutOfService(node) if dead.as_ref() == Some(&node) => proofs[0] += 1,
                    Act::Remove(node) if dead.as_ref() == Some(&node) => proofs[1] += 1,
                    Act::Taint(node) => assert_eq!((dead.clone(), node.is_empty()), (None, false)),
                    Act::Return(node) => assert_eq!(dead.take(), Some(node)),
                    _ => {}
                }
            }
            assert!(proofs[0].abs_diff(proofs[1]) <= 1 && proofs[1] > 10, "{proofs:?}");
        }
    }

    #[test]
    fn the_number_of_seats_stays() {
        let mut script = Script::new(3, 5, 24, 1.0);
        for _ in 0..2_000 {
            script.next();
            // Between the two acts of a turnover the script is ahead.
            assert_eq!(script.seats().len(), 24);
            assert!(script.seats().contains_key(SHOWN_SEAT));
            assert_eq!(script.seats().values().filter(|seat| seat.class == STATIC_CLASS).count(), 2);
        }
    }
}
