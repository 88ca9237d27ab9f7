//! What is done when: the actors' acts and the faults of a seed.
//!
//! In: a seed, seconds, names of faults. Out: the same acts and faults at the same times. What they meet differs in each run.

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;

/// What goes wrong with one of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillLeader,
    FreezeLeader,
    RefuseLeader,
    HoldLeader,
    KillApiServer,
    FreezeApiServer,
    KillEtcd,
    FreezeEtcd,
    KillKubelet,
    FreezeKubelet,
    RefuseKubelet,
    KillAttacher,
    FreezeAttacher,
    KillProvisioner,
    CutWatches,
    Compact,
    SecondController,
}

impl Fault {
    /// Each with its name, and whether it is played without being asked for. The stock loops beside mooring are not: after
    /// them mooring takes nothing away for ten minutes (S14).
    const ALL: [(Self, &str, bool); 17] = [
        (Self::KillLeader, "kill-leader", true),
        (Self::FreezeLeader, "freeze-leader", true),
        (Self::RefuseLeader, "refuse-leader", true),
        (Self::HoldLeader, "hold-leader", true),
        (Self::KillApiServer, "kill-api-server", true),
        (Self::FreezeApiServer, "freeze-api-server", true),
        (Self::KillEtcd, "kill-etcd", true),
        (Self::FreezeEtcd, "freeze-etcd", true),
        (Self::KillKubelet, "kill-kubelet", true),
        (Self::FreezeKubelet, "freeze-kubelet", true),
        (Self::RefuseKubelet, "refuse-kubelet", true),
        (Self::KillAttacher, "kill-attacher", true),
        (Self::FreezeAttacher, "freeze-attacher", true),
        (Self::KillProvisioner, "kill-provisioner", true),
        (Self::CutWatches, "cut-watches", true),
        (Self::Compact, "compact", true),
        (Self::SecondController, "second-controller", false),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(fault, ..)| *fault == self).map_or("", |(_, name, _)| name)
    }

    /// Reads `kill-leader` or, as a pair, `kill-leader+compact`.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let one = |name: &str| {
            let found = Self::ALL.iter().find(|(_, of_fault, _)| *of_fault == name);
            found.map(|(fault, ..)| *fault).ok_or(format!("there is no fault {name:?}"))
        };
        text.split('+').map(one).collect()
    }
}

/// The pairs that are played first, once each fault was played alone. `README.md` has the reasons.
const PAIRS: [[Fault; 2]; 10] = [
    [Fault::FreezeLeader, Fault::KillKubelet],
    [Fault::KillLeader, Fault::FreezeApiServer],
    [Fault::HoldLeader, Fault::KillAttacher],
    [Fault::KillEtcd, Fault::KillLeader],
    [Fault::Compact, Fault::RefuseLeader],
    [Fault::FreezeEtcd, Fault::FreezeKubelet],
    [Fault::CutWatches, Fault::FreezeAttacher],
    [Fault::KillApiServer, Fault::FreezeLeader],
    [Fault::RefuseKubelet, Fault::KillLeader],
    [Fault::KillProvisioner, Fault::HoldLeader],
];

/// What the actors do. Numbers choose among what is there at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Restarts a workload pod by pod.
    Roll(usize),
    DeletePod(usize),
    ForceDeletePod(usize),
    /// Cordons a node, deletes its pods, and uncordons it.
    Drain(usize),
    Resize(usize),
    /// Deletes the claims of a StatefulSet, and has them made anew.
    RenewClaims(usize),
    /// Deletes a Node, which comes back under its name.
    DeleteNode(usize),
    /// A machine without power, with the taint that says so, which boots again.
    CutPower(usize),
    /// An administrator deletes an attachment.
    DeleteAttachment(usize),
    /// Deletes a claim on a kept volume, clears `claimRef` of what is released, and claims it anew.
    Reclaim(usize),
}

/// Faults that begin at a time and are healed at another.
#[derive(Clone, Debug)]
pub struct Window {
    pub faults: Vec<Fault>,
    /// Which kubelet, if it is one.
    pub node: usize,
    pub from: Duration,
    pub to: Duration,
}

impl Window {
    pub fn name(&self) -> String {
        self.faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join("+")
    }
}

/// All that is done, in the order of time.
#[derive(Clone, Debug)]
pub struct Plan {
    pub acts: Vec<(Duration, Act)>,
    pub windows: Vec<Window>,
    pub length: Duration,
}

/// Before the first fault, and between two.
const PAUSE: u64 = 12;

/// The plan of a seed. Faults come alone first, then as the listed pairs, then as pairs from the seed; `wanted` are played
/// instead, if there are any.
pub fn plan(seed: u64, seconds: u64, wanted: &[Vec<Fault>]) -> Plan {
    let mut dice = Rng::with_seed(seed);
    let mut alone: Vec<Vec<Fault>> =
        Fault::ALL.iter().filter(|(.., by_itself)| *by_itself).map(|(fault, ..)| vec![*fault]).collect();
    dice.shuffle(&mut alone);
    let mut pairs: Vec<Vec<Fault>> = PAIRS.iter().map(|pair| pair.to_vec()).collect();
    dice.shuffle(&mut pairs);
    let usual: Vec<Vec<Fault>> = alone.into_iter().chain(pairs).collect();
    let mut first = if wanted.is_empty() { usual.iter() } else { wanted.iter() }.cloned();

    let mut windows = Vec::new();
    let mut at = PAUSE;
    while at + 2 * PAUSE <= seconds {
        let faults = match first.next() {
            Some(faults) => faults,
            None if wanted.is_empty() => {
                let pair: BTreeSet<Fault> =
                    (0..2).map(|_| dice.usize(..16)).map(|index| Fault::ALL[index].0).collect();
                pair.into_iter().collect()
            }
            None => wanted[dice.usize(..wanted.len())].clone(),
        };
        let to = at + dice.u64(6..=PAUSE);
        let (from, healed) = (Duration::from_secs(at), Duration::from_secs(to));
        windows.push(Window { faults, node: dice.usize(..), from, to: healed });
        at = to + PAUSE;
    }
    let mut acts = Vec::new();
    let mut at = Duration::from_secs(2);
    while at < Duration::from_secs(seconds) {
        acts.push((at, act(&mut dice)));
        at += Duration::from_millis(dice.u64(1_000..4_000));
    }
    Plan { acts, windows, length: Duration::from_secs(seconds) }
}

/// Each act with its weight.
fn act(dice: &mut Rng) -> Act {
    let which = dice.usize(..);
    match dice.u32(..100) {
        0..25 => Act::Roll(which),
        25..45 => Act::DeletePod(which),
        45..52 => Act::ForceDeletePod(which),
        52..64 => Act::Drain(which),
        64..72 => Act::Resize(which),
        72..80 => Act::RenewClaims(which),
        80..85 => Act::DeleteNode(which),
        85..90 => Act::CutPower(which),
        90..93 => Act::DeleteAttachment(which),
        _ => Act::Reclaim(which),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_and_each_fault_alone_before_the_pairs() {
        let [one, same, other] = [plan(7, 3_600, &[]), plan(7, 3_600, &[]), plan(8, 3_600, &[])];
        assert_eq!(format!("{one:?}"), format!("{same:?}"));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
        let alone = one.windows.iter().take_while(|window| window.faults.len() == 1);
        let names: BTreeSet<String> = alone.map(Window::name).collect();
        let usual =
            Fault::ALL.iter().filter(|(.., by_itself)| *by_itself).map(|(_, name, _)| (*name).to_owned());
        assert_eq!(names, usual.collect());
        assert!(one.windows.windows(2).all(|pair| pair[0].to < pair[1].from), "no two windows overlap");
    }

    #[test]
    fn faults_are_asked_for_by_name() {
        let pair = Fault::parse("kill-leader+compact");
        assert_eq!(pair, Ok(vec![Fault::KillLeader, Fault::Compact]));
        assert!(Fault::parse("kill-everybody").is_err());
        let wanted = [vec![Fault::SecondController]];
        assert!(plan(1, 120, &wanted).windows.iter().all(|window| window.faults == wanted[0]));
    }
}
