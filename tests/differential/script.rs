//! What happens to a small cluster, chosen by a seed: nodes, volumes, claims and pods that come, move
//! and go.
//!
//! A script leaves nothing to chance that KCM leaves to chance: never do two claims wait for the same
//! volumes, and no two volumes are equally good. Each script has names of its own, so that many
//! play at once on one server.

use std::collections::BTreeSet;

use fastrand::Rng;

/// Steps of a script.
const STEPS: usize = 24;
/// Volumes that people make; each has a size of its own, and the last is for the named claim alone.
pub const VOLUMES: usize = 4;
/// Nodes.
pub const NODES: usize = 3;
/// Pods at once.
const PODS: usize = 3;

/// How a claim gets its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// The best of the volumes that people made.
    Matched,
    /// It names one of them.
    Named,
    /// Provisioned at once.
    Provisioned,
    /// Provisioned when a node has been selected.
    Delayed,
    /// Its class is the default one, if there is one.
    Unclassed,
}

impl Lane {
    const ALL: [Self; 5] = [Self::Matched, Self::Named, Self::Provisioned, Self::Delayed, Self::Unclassed];
}

/// One thing that people or machines do. A step that meets nothing to act on does nothing.
#[derive(Clone, Debug)]
pub enum Step {
    CreateVolume {
        volume: usize,
        reclaim_policy: &'static str,
        names_claim: bool,
    },
    DeleteVolume(usize),
    /// Deletes it by force, despite its finalizers.
    LoseVolume(usize),
    /// An administrator frees a Released volume for the next claim.
    FreeVolume(usize),
    SetReclaimPolicy {
        volume: usize,
        reclaim_policy: &'static str,
    },
    CreateClaim {
        lane: Lane,
        size: u8,
        mode: &'static str,
    },
    DeleteClaim(Lane),
    /// In the scheduler's place.
    SelectNode {
        lane: Lane,
        node: usize,
    },
    CreatePod {
        pod: usize,
        node: usize,
        lane: Lane,
    },
    DeletePod(usize),
    /// Without waiting for the kubelet.
    RemovePod(usize),
    /// The node's machine stops.
    Fail(usize),
    Recover(usize),
    DeleteNode(usize),
    CreateNode(usize),
    SetDefaultClass(bool),
}

/// What the script has made so far, as far as it knows: most steps act on something.
#[derive(Default)]
struct Made {
    volumes: BTreeSet<usize>,
    claims: BTreeSet<Lane>,
    pods: BTreeSet<usize>,
}

/// The script of a seed. Only one script at a time may change the cluster's default class.
pub fn script(seed: u64, may_set_default: bool) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut lanes = Lane::ALL[..if may_set_default { 5 } else { 4 }].to_vec();
    rng.shuffle(&mut lanes);
    let (mut steps, mut made) = (Vec::new(), Made::default());
    while steps.len() < STEPS {
        let step = choose(&mut rng, &lanes, &made);
        match &step {
            Step::CreateVolume { volume, .. } => drop(made.volumes.insert(*volume)),
            Step::DeleteVolume(volume) | Step::LoseVolume(volume) => drop(made.volumes.remove(volume)),
            Step::CreateClaim { lane, .. } => drop(made.claims.insert(*lane)),
            Step::DeleteClaim(lane) => drop(made.claims.remove(lane)),
            Step::CreatePod { pod, .. } => drop(made.pods.insert(*pod)),
            Step::DeletePod(pod) | Step::RemovePod(pod) => drop(made.pods.remove(pod)),
            Step::SetDefaultClass(_) if !may_set_default => continue,
            _ => {}
        }
        steps.push(step);
    }
    steps
}

fn choose(rng: &mut Rng, lanes: &[Lane], made: &Made) -> Step {
    let (volume, node) = (rng.usize(..VOLUMES), rng.usize(..NODES));
    let lane = rng.choice(&made.claims).copied().filter(|_| rng.u8(..8) > 0);
    let pod = rng.choice(&made.pods).copied().unwrap_or_default();
    match rng.u8(..40) {
        0..6 => {
            let access = if rng.u8(..4) == 0 { "ReadWriteMany" } else { "ReadWriteOnce" };
            let lane = rng.choice(lanes).copied().unwrap_or(Lane::Matched);
            Step::CreateClaim { lane, size: rng.u8(1..=3), mode: access }
        }
        6..11 => {
            let reclaim_policy = reclaim_policy(rng);
            Step::CreateVolume { volume, reclaim_policy, names_claim: rng.u8(..3) == 0 }
        }
        11..20 => match lane {
            // A pod that comes before its claim is rare.
            Some(lane) => Step::CreatePod { pod: rng.usize(..PODS), node, lane },
            None => Step::CreatePod { pod: rng.usize(..PODS), node, lane: Lane::Matched },
        },
        20..24 => Step::DeletePod(pod),
        24 => Step::RemovePod(pod),
        25..28 => Step::DeleteClaim(lane.unwrap_or(Lane::Matched)),
        28 => Step::DeleteVolume(rng.choice(&made.volumes).copied().unwrap_or(volume)),
        29 => Step::LoseVolume(rng.choice(&made.volumes).copied().unwrap_or(volume)),
        30..32 => Step::FreeVolume(volume),
        32 => Step::SetReclaimPolicy { volume, reclaim_policy: reclaim_policy(rng) },
        33..35 => Step::SelectNode { lane: Lane::Delayed, node },
        35 => Step::Fail(node),
        36 => Step::Recover(node),
        37 => Step::DeleteNode(node),
        38 => Step::CreateNode(node),
        _ => Step::SetDefaultClass(rng.bool()),
    }
}

fn reclaim_policy(rng: &mut Rng) -> &'static str {
    if rng.bool() { "Retain" } else { "Delete" }
}
