//! What is done when: the actors' acts and the faults of a seed.
//!
//! In: a seed, seconds, names of faults. Out: the same acts and faults at the same times. What they meet differs in each run.

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;

use crate::stage::Subject;

/// What goes wrong with one of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillLeader,
    FreezeLeader,
    RefuseLeader,
    HoldLeader,
    KillStandby,
    FreezeStandby,
    KillReplicas,
    FreezeReplicas,
    KillApiServer,
    FreezeApiServer,
    KillEtcd,
    FreezeEtcd,
    KillKubelet,
    FreezeKubelet,
    RefuseKubelet,
    KillAttacher,
    FreezeAttacher,
    RefuseAttacher,
    KillProvisioner,
    FreezeProvisioner,
    RefuseProvisioner,
    KillResizer,
    FreezeResizer,
    CutWatches,
    WithholdBookmarks,
    Compact,
    Burst429,
    Burst500,
    FailWebhook,
    SlowWebhook,
    RollingUpdate,
    ClockAhead,
    ClockBehind,
    RotateToken,
    RotateCertificate,
    SecondController,
    DeleteFence,
    RestoreEtcd,
}

/// When a fault is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// Kube-controller-manager has no such thing: its clock is Go's, and it makes its loops' tokens by itself.
    OfMooring,
    /// Only if it is asked for: mooring then takes nothing away for so long.
    Asked(Duration),
    /// The same, and only behind the fence.
    AskedBehindFence(Duration),
}

/// After a second writer was seen, and after a fence was lost (S14).
const AFTER_ANOTHER: Duration = Duration::from_mins(10);

/// After a restore of etcd.
const AFTER_RESTORE: Duration = Duration::from_mins(5);

impl Fault {
    /// Each with its name, and when it is played.
    const ALL: [(Self, &str, When); 38] = [
        (Self::KillLeader, "kill-leader", When::Always),
        (Self::FreezeLeader, "freeze-leader", When::Always),
        (Self::RefuseLeader, "refuse-leader", When::Always),
        (Self::HoldLeader, "hold-leader", When::Always),
        (Self::KillStandby, "kill-standby", When::Always),
        (Self::FreezeStandby, "freeze-standby", When::Always),
        (Self::KillReplicas, "kill-replicas", When::Always),
        (Self::FreezeReplicas, "freeze-replicas", When::Always),
        (Self::KillApiServer, "kill-api-server", When::Always),
        (Self::FreezeApiServer, "freeze-api-server", When::Always),
        (Self::KillEtcd, "kill-etcd", When::Always),
        (Self::FreezeEtcd, "freeze-etcd", When::Always),
        (Self::KillKubelet, "kill-kubelet", When::Always),
        (Self::FreezeKubelet, "freeze-kubelet", When::Always),
        (Self::RefuseKubelet, "refuse-kubelet", When::Always),
        (Self::KillAttacher, "kill-attacher", When::Always),
        (Self::FreezeAttacher, "freeze-attacher", When::Always),
        (Self::RefuseAttacher, "refuse-attacher", When::Always),
        (Self::KillProvisioner, "kill-provisioner", When::Always),
        (Self::FreezeProvisioner, "freeze-provisioner", When::Always),
        (Self::RefuseProvisioner, "refuse-provisioner", When::Always),
        (Self::KillResizer, "kill-resizer", When::Always),
        (Self::FreezeResizer, "freeze-resizer", When::Always),
        (Self::CutWatches, "cut-watches", When::Always),
        (Self::WithholdBookmarks, "withhold-bookmarks", When::Always),
        (Self::Compact, "compact", When::Always),
        (Self::Burst429, "burst-429", When::Always),
        (Self::Burst500, "burst-500", When::Always),
        (Self::FailWebhook, "fail-webhook", When::Always),
        (Self::SlowWebhook, "slow-webhook", When::Always),
        (Self::RollingUpdate, "rolling-update", When::Always),
        (Self::ClockAhead, "clock-ahead", When::OfMooring),
        (Self::ClockBehind, "clock-behind", When::OfMooring),
        (Self::RotateToken, "rotate-token", When::OfMooring),
        (Self::RotateCertificate, "rotate-certificate", When::Always),
        (Self::SecondController, "second-controller", When::Asked(AFTER_ANOTHER)),
        (Self::DeleteFence, "delete-fence", When::AskedBehindFence(AFTER_ANOTHER)),
        (Self::RestoreEtcd, "restore-etcd", When::Asked(AFTER_RESTORE)),
    ];

    fn when(self) -> When {
        Self::ALL.iter().find(|(fault, ..)| *fault == self).map_or(When::Always, |(.., when)| *when)
    }

    /// Whether it is played without being asked for.
    fn is_usual(self) -> bool {
        matches!(self.when(), When::Always | When::OfMooring)
    }

    /// Whether it can be played with this subject, behind a fence or not.
    pub fn fits(self, subject: Subject, has_fence: bool) -> bool {
        match self.when() {
            When::Always | When::Asked(_) => true,
            When::OfMooring => subject == Subject::Mooring,
            When::AskedBehindFence(_) => has_fence,
        }
    }

    /// How long mooring takes nothing away afterwards.
    pub fn pause(self) -> Duration {
        match self.when() {
            When::Asked(pause) | When::AskedBehindFence(pause) => pause,
            When::Always | When::OfMooring => Duration::ZERO,
        }
    }

    /// The names of all for which this is not so.
    pub fn left_out(fits: impl Fn(Self) -> bool) -> Vec<&'static str> {
        let left = Self::ALL.iter().filter(|(fault, ..)| fault.is_usual() && !fits(*fault));
        left.map(|(_, name, _)| *name).collect()
    }

    pub fn is_of_clock(self) -> bool {
        matches!(self, Self::ClockAhead | Self::ClockBehind)
    }

    pub fn is_of_leader(self) -> bool {
        matches!(self, Self::KillLeader | Self::FreezeLeader | Self::RefuseLeader | Self::HoldLeader)
    }

    /// Whether the API server is asked for it.
    pub fn is_of_objects(self) -> bool {
        let of_objects = [
            Self::FailWebhook,
            Self::SlowWebhook,
            Self::RotateToken,
            Self::RotateCertificate,
            Self::DeleteFence,
            Self::RestoreEtcd,
        ];
        of_objects.contains(&self)
    }

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

/// The pairs of the table in `README.md`, which has their reasons.
pub fn pairs() -> Vec<Vec<Fault>> {
    let rows = include_str!("README.md").lines().filter(|row| row.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1)).filter(|cell| cell.contains("` and `"));
    let names = cells.map(|cell| cell.replace("` and `", "+").replace('`', ""));
    names.map(|name| Fault::parse(name.trim()).expect("the table names faults")).collect()
}

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
    /// Gives up a claim that a volume populator fills, which comes anew.
    Populate,
    /// Gives up a claim with its volume, which a restore makes anew.
    Restore,
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
    /// How long mooring takes nothing away afterwards.
    pub fn pause(&self) -> Duration {
        self.faults.iter().map(|fault| fault.pause()).max().unwrap_or_default()
    }

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
/// instead, if there are any. What does not fit is left out, and all else stays where it is.
pub fn plan(seed: u64, seconds: u64, wanted: &[Vec<Fault>], fits: impl Fn(Fault) -> bool) -> Plan {
    let mut dice = Rng::with_seed(seed);
    let usual: Vec<Fault> =
        Fault::ALL.map(|(fault, ..)| fault).into_iter().filter(|it| it.is_usual()).collect();
    let mut alone: Vec<Vec<Fault>> = usual.iter().map(|fault| vec![*fault]).collect();
    dice.shuffle(&mut alone);
    let mut pairs = pairs();
    dice.shuffle(&mut pairs);
    let known: Vec<Vec<Fault>> = alone.into_iter().chain(pairs).collect();
    let mut first = if wanted.is_empty() { known.iter() } else { wanted.iter() }.cloned();

    let mut windows = Vec::new();
    let mut at = PAUSE;
    while at + 2 * PAUSE <= seconds {
        let faults = match first.next() {
            Some(faults) => faults,
            None if wanted.is_empty() => {
                let pair: BTreeSet<Fault> = (0..2).map(|_| usual[dice.usize(..usual.len())]).collect();
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
    windows.retain_mut(|window: &mut Window| {
        window.faults.retain(|fault| fits(*fault));
        !window.faults.is_empty()
    });
    Plan { acts, windows, length: Duration::from_secs(seconds) }
}

/// Each act with its weight.
fn act(dice: &mut Rng) -> Act {
    let which = dice.usize(..);
    match dice.u32(..100) {
        0..21 => Act::Roll(which),
        21..39 => Act::DeletePod(which),
        39..46 => Act::ForceDeletePod(which),
        46..57 => Act::Drain(which),
        57..64 => Act::Resize(which),
        64..72 => Act::RenewClaims(which),
        72..77 => Act::DeleteNode(which),
        77..82 => Act::CutPower(which),
        82..85 => Act::DeleteAttachment(which),
        85..90 => Act::Populate,
        90..95 => Act::Restore,
        _ => Act::Reclaim(which),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_and_each_fault_alone_before_the_pairs() {
        let plan = |seed| plan(seed, 3_600, &[], |_| true);
        let [one, same, other] = [plan(7), plan(7), plan(8)];
        assert_eq!(format!("{one:?}"), format!("{same:?}"));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
        let alone = one.windows.iter().take_while(|window| window.faults.len() == 1);
        let names: BTreeSet<String> = alone.map(Window::name).collect();
        let usual = Fault::ALL.iter().filter(|(fault, ..)| fault.is_usual());
        assert_eq!(names, usual.map(|(_, name, _)| (*name).to_owned()).collect());
        assert!(one.windows.windows(2).all(|pair| pair[0].to < pair[1].from), "no two windows overlap");
    }

    #[test]
    fn what_does_not_fit_is_left_out_of_the_same_plan() {
        let all = plan(7, 3_600, &[], |_| true);
        let fits = |fault: Fault| fault.fits(Subject::KubeControllerManager, false);
        let of_stock = plan(7, 3_600, &[], fits);
        assert_eq!(all.acts, of_stock.acts);
        let left: Vec<_> =
            all.windows.iter().filter(|it| it.faults.iter().any(|fault| fits(*fault))).collect();
        let times = |window: &Window| (window.from, window.to, window.node);
        assert_eq!(
            left.into_iter().map(times).collect::<Vec<_>>(),
            of_stock.windows.iter().map(times).collect::<Vec<_>>()
        );
        assert!(of_stock.windows.iter().flat_map(|window| &window.faults).all(|fault| fits(*fault)));
    }

    #[test]
    fn the_table_of_pairs_has_each_once() {
        let pairs = pairs();
        let different: BTreeSet<BTreeSet<Fault>> =
            pairs.iter().map(|pair| pair.iter().copied().collect()).collect();
        assert_eq!(different.len(), pairs.len());
        assert!(different.iter().all(|pair| pair.len() == 2));
        assert!(pairs.len() >= 60, "{} pairs", pairs.len());
    }

    #[test]
    fn faults_are_asked_for_by_name() {
        let pair = Fault::parse("kill-leader+compact");
        assert_eq!(pair, Ok(vec![Fault::KillLeader, Fault::Compact]));
        assert!(Fault::parse("kill-everybody").is_err());
        let wanted = [vec![Fault::SecondController]];
        assert!(plan(1, 120, &wanted, |_| true).windows.iter().all(|window| window.faults == wanted[0]));
    }
}
