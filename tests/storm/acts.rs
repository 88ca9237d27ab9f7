//! What people, machines, the attacher, the API server and the daemon's own misfortunes do to the small world: a script of
//! acts as data, made of a seed.
//!
//! An act names its object by a number; who plays it takes the one of those that are there, so that any part of a
//! script can be played alone.

use std::{mem, time::Duration};

use fastrand::Rng;

/// One act, so long after the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub pause: Duration,
    pub act: Act,
    /// The daemon is killed at the n-th of its next writes, and so.
    pub kill: Option<Kill>,
}

/// Where in a write the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    pub write: usize,
    pub point: usize,
}

/// When and how a machine comes back under the name of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    pub after: Duration,
    /// It has booted, so nothing is mounted there any more.
    pub has_booted: bool,
}

/// What a stubborn writer undoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
pub enum Undo {
    Attachment,
    List,
    ClaimRef,
    BindCompleted,
    Phase,
    Deletion,
    ClaimPhase,
    Provisioner,
    Protection,
}

/// What is done. Numbers choose among the objects that are there.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// A pod that uses a claim comes on a node.
    Pod {
        claim: usize,
        node: usize,
    },
    /// One comes and is deleted milliseconds later.
    BriefPod {
        claim: usize,
        node: usize,
        after: Duration,
    },
    /// Sixty pods share a claim that has no volume yet, and for a while no node takes any.
    Crowd {
        claim: usize,
    },
    /// A pod is deleted; by force without its kubelet.
    DeletePod {
        pod: usize,
        by_force: bool,
    },
    /// A pod is deleted by force, and one of its name with another claim comes at once.
    RemakePod {
        pod: usize,
        claim: usize,
        node: usize,
    },
    DeleteClaim {
        claim: usize,
        by_force: bool,
    },
    /// A claim that is not there is made; with the annotation of another provisioner.
    MakeClaim {
        claim: usize,
        class: usize,
        is_foreign: bool,
    },
    /// A claim, one in use on that node where there is one, is deleted by force and made again at once under its pods; for
    /// the new one there may be another volume.
    RemakeClaim {
        claim: usize,
        node: usize,
        has_volume: bool,
    },
    /// A volume, one whose claim does not name it yet where there is one, is deleted.
    DeleteVolume {
        volume: usize,
        by_force: bool,
    },
    /// A volume that is not there is made.
    MakeVolume {
        volume: usize,
        has_other_handle: bool,
    },
    /// A second volume of a disk that a volume leads to.
    MakeTwin {
        volume: usize,
    },
    /// A volume is deleted by force and made again at once.
    RemakeVolume {
        volume: usize,
        has_other_handle: bool,
        keeps_claim: bool,
    },
    /// The volume of a claim in use on that node is made anew with another handle; then a second pod of the claim comes there,
    /// and the first one goes.
    RemakeUsedVolume {
        claim: usize,
        node: usize,
    },
    ClearRef {
        volume: usize,
        is_uid_only: bool,
    },
    /// Its `claimRef` gets the name of that claim, and a UID that none has, as from the manifest of another cluster, or that of
    /// the claim, if it has a volume, or none.
    EditRef {
        volume: usize,
        claim: usize,
        lacks_uid: bool,
    },
    DeleteAttachment {
        attachment: usize,
        takes_finalizers: bool,
    },
    EmptyList {
        node: usize,
    },
    FalsifyList {
        node: usize,
        volume: usize,
    },
    EmptyInUse {
        node: usize,
    },
    /// The class of an unbound claim's twin: a class is deleted and made again.
    RemakeClass {
        class: usize,
    },
    /// A class names a provisioner that nobody runs, that long.
    SwapClass {
        class: usize,
        time: Duration,
    },
    /// A volume gets the name of the other class.
    EditVolume {
        volume: usize,
    },
    /// A node is deleted and its kubelet falls silent; both come back after a while.
    DeleteNode {
        node: usize,
        back: Back,
    },
    /// A kubelet falls silent and its node is marked as out of service; both are well after a while.
    OutOfService {
        node: usize,
        back: Back,
    },
    /// The CSIDriver is deleted, and made anew as one that needs no attachment, if it is not gone for that long.
    SwapDriver {
        is_gone: bool,
        time: Duration,
    },
    /// The policy of a volume is Retain from now on, or Delete if it was that.
    EditPolicy {
        volume: usize,
    },
    /// A class becomes the default, or is it no more.
    SwapDefault {
        class: usize,
    },
    /// A claim is deleted by force and made again, of no class.
    MakeClassless {
        claim: usize,
    },
    /// What a pod runs is done, or fails.
    CompletePod {
        pod: usize,
        fails: bool,
    },
    /// A node is another's to attach to, that long.
    Unmanage {
        node: usize,
        time: Duration,
    },
    /// An attachment is made by hand, under the name that kubelets look for or another.
    MakeAttachment {
        volume: usize,
        node: usize,
        is_misnamed: bool,
    },
    /// A volume gets other labels, those of its zone among them.
    LabelVolume {
        volume: usize,
        zone: usize,
    },
    /// Undoes each write of a kind, that long.
    Stubborn {
        undo: Undo,
        target: usize,
        time: Duration,
    },
    /// The unmounts of a node hang.
    Hang {
        node: usize,
        time: Duration,
    },
    /// A kubelet falls silent; the node turns Unknown after a while.
    Silence {
        node: usize,
        time: Duration,
    },
    /// The driver fails to attach a volume, that long.
    FailAttach {
        volume: usize,
        time: Duration,
    },
    FailDetach {
        volume: usize,
        time: Duration,
    },
    /// Faults of requests, that long.
    Faults {
        seed: u64,
        time: Duration,
    },
    /// People ask for more room on a Bound claim; and the resizer of its driver is done.
    Enlarge {
        claim: usize,
        is_done: bool,
    },
    /// A pod with a generic ephemeral volume comes on a node, whose claim somebody else has made before.
    EphemeralPod {
        node: usize,
        is_taken: bool,
    },
    /// The claim of a generic ephemeral volume is deleted.
    DeleteEphemeralClaim {
        claim: usize,
        by_force: bool,
    },
    MakeAttributesClass {
        class: usize,
    },
    DeleteAttributesClass {
        class: usize,
        by_force: bool,
    },
    /// A claim names a class of attributes, as far as the API server allows it.
    UseAttributesClass {
        claim: usize,
        class: usize,
    },
    /// What one watch tells is late, or with none named what all do, as by an API server whose cache lags.
    DelayWatch {
        kind: Option<usize>,
        time: Duration,
    },
    RewindWatch {
        kind: usize,
        revisions: u64,
    },
    /// The daemon that writes reaches no API server, that long.
    Away {
        time: Duration,
    },
    /// The daemon that writes hears nothing that long, and reaches nobody, also for its lease; so many of its writes are
    /// carried out in any case then, as of a process or a machine that was stopped.
    Freeze {
        writes: usize,
        time: Duration,
    },
    /// The daemon is killed, or asked to end, and another goes on.
    Replace {
        in_order: bool,
        pause: Duration,
    },
}

/// What kind of world a seed has, and what happens in it.
#[derive(Clone, Debug)]
// Each is a property of the world that the seed draws by itself.
#[allow(clippy::struct_excessive_bools)]
pub struct Script {
    pub seed: u64,
    /// Class of the claims binds when a pod comes.
    pub is_delayed: bool,
    /// Volumes are provisioned, else made beforehand.
    pub is_provisioned: bool,
    /// All seven controllers are on, and people give them work.
    pub has_all: bool,
    /// Two replicas with a lease, else one without.
    pub has_replicas: bool,
    /// Sixty pods share a claim, whose volume takes seconds to make.
    pub has_crowd: bool,
    /// One of the volumes is on iSCSI.
    pub has_iscsi: bool,
    /// One of the volumes may be shared.
    pub has_shared: bool,
    /// Names that other programs have a meaning for.
    pub has_odd_names: bool,
    /// The driver never attaches this volume, also in the calm.
    pub broken: Option<usize>,
    /// How long a kubelet takes to report again what people have taken out of its report.
    pub report_after: Duration,
    /// How late the watch caches of the API servers are, of which each request of the daemon goes to one; empty for one
    /// that is never late.
    pub lags: Vec<Duration>,
    pub steps: Vec<Step>,
}

/// Kinds that the daemon watches.
pub const WATCHED: [&str; 8] = [
    "pods",
    "nodes",
    "persistentvolumes",
    "persistentvolumeclaims",
    "volumeattachments",
    "storageclasses",
    "csidrivers",
    "volumeattributesclasses",
];

/// Seconds: longer than the six minutes after which a detach is forced.
const OUTLASTS_FORCE: u64 = 400;

fn seconds(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range.start * 1_000..range.end * 1_000))
}

/// Half of them after six minutes are over.
fn back(rng: &mut Rng) -> Back {
    let range = if rng.bool() { OUTLASTS_FORCE..600 } else { 1..120 };
    Back { after: seconds(rng, range), has_booted: rng.bool() }
}

/// The seeds of `.ci/run`, which have one server: what is late in a seed with two does not always come out the same.
const SEEDS_OF_EVERY_RUN: u64 = 60;

/// What acts and worlds got last is drawn from numbers of its own again.
const LATEST: u64 = 0x5afe_d15c;

/// In every third seed there are two servers, of which one is some seconds late.
fn lags(seed: u64) -> Vec<Duration> {
    let mut rng = Rng::with_seed(seed);
    let late = [Duration::from_millis(rng.u64(..200)), Duration::from_millis(rng.u64(200..5_000))];
    if seed % 3 == 1 && seed > SEEDS_OF_EVERY_RUN { late.to_vec() } else { Vec::new() }
}

impl Script {
    /// Ten minutes of acts; in every tenth seed fifty, and in another every tenth a crowd.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rng = &mut rng;
        let has_crowd = seed % 10 == 3;
        let is_provisioned = rng.u8(..3) == 0 || has_crowd;
        // What acts and worlds got later is drawn from numbers of its own, so that the others stay as they were.
        let more = &mut Rng::with_seed(!seed);
        let latest = &mut Rng::with_seed(seed ^ LATEST);
        let mut script = Self {
            seed,
            is_provisioned,
            is_delayed: if is_provisioned { rng.bool() || has_crowd } else { more.u8(..4) == 0 },
            has_all: seed.is_multiple_of(3),
            has_replicas: rng.bool(),
            has_crowd,
            has_iscsi: rng.bool(),
            has_shared: rng.u8(..4) == 0,
            has_odd_names: rng.u8(..5) == 0,
            broken: (rng.u8(..6) == 0).then(|| rng.usize(..3)),
            report_after: Duration::from_millis(latest.u64(..10_000)),
            lags: lags(seed),
            steps: Vec::new(),
        };
        let long = seed % 10 == 7;
        // In every fourth seed the daemon lives on: what takes it minutes comes to its end.
        let lives = seed % 4 == 2;
        let mut left = Duration::from_mins(if long { 50 } else { 10 });
        // What a pod was given there is to stay its own for longer than a force takes, also if its claim leads elsewhere then (S44).
        // Nobody does anything else meanwhile that would excuse its loss.
        let mut quiet = Duration::ZERO;
        if seed % 8 == 2 {
            quiet = Duration::from_secs(OUTLASTS_FORCE + 60);
            let (node, claim) = (rng.usize(..3), rng.usize(..6));
            let silence = Act::Silence { node, time: Duration::from_secs(OUTLASTS_FORCE + 160) };
            script.steps.push(Step { pause: Duration::from_secs(20), act: silence, kill: None });
            let act = Act::RemakeClaim { claim, node, has_volume: true };
            script.steps.push(Step { pause: Duration::from_secs(5), act, kill: None });
        }
        if has_crowd {
            let act = Act::Crowd { claim: rng.usize(..6) };
            script.steps.push(Step { pause: Duration::from_secs(5), act, kill: None });
        }
        loop {
            let pause = match rng.u8(..8) {
                0 | 1 => Duration::from_millis(rng.u64(..50)),
                2 | 3 => Duration::from_millis(rng.u64(..1_500)),
                _ => seconds(rng, 1..if long { 90 } else { 25 }),
            };
            if pause > left {
                script.steps.extend(Self::last(seed, rng));
                return script;
            }
            left -= pause;
            let act = if script.has_all && rng.u8(..4) == 0 {
                Self::act_for_all(rng)
            } else {
                Self::act(rng, more, long)
            };
            let is_of_people = !matches!(
                act,
                Act::Hang { .. }
                    | Act::Silence { .. }
                    | Act::FailAttach { .. }
                    | Act::FailDetach { .. }
                    | Act::Faults { .. }
                    | Act::DelayWatch { .. }
                    | Act::RewindWatch { .. }
                    | Act::Away { .. }
                    | Act::Freeze { .. }
                    | Act::Replace { .. }
            );
            let kill = (is_of_people && !lives && rng.bool())
                .then(|| Kill { write: rng.usize(1..4), point: rng.usize(..3) });
            script.steps.push(Step { pause: pause + mem::take(&mut quiet), act: act.clone(), kill });
            // A bind that the kill has cut in two is not to wait for a volume that goes.
            if kill.is_some() && rng.u8(..4) == 0 {
                let act = Act::DeleteVolume { volume: rng.usize(..6), by_force: false };
                script.steps.push(Step { pause: Duration::from_millis(1), act, kill: None });
            }
            let draws: [fn(&mut Rng) -> Act; 2] = [Self::act_drawn_later, Self::act_drawn_last];
            for (rng, draw) in [&mut *more, &mut *latest].into_iter().zip(draws) {
                if rng.u8(..10) != 0 {
                    continue;
                }
                let act = draw(rng);
                let kill =
                    (!lives && rng.bool()).then(|| Kill { write: rng.usize(1..4), point: rng.usize(..3) });
                script.steps.push(Step { pause: seconds(rng, 0..5), act, kill });
            }
            // What a pod on that node was given is to stay its own meanwhile (S44), also if its claim leads elsewhere then.
            if let Act::Silence { node, time } = act
                && time >= Duration::from_secs(OUTLASTS_FORCE)
            {
                let act = Act::RemakeClaim { claim: rng.usize(..6), node, has_volume: true };
                script.steps.push(Step { pause: Duration::from_secs(5), act, kill: None });
            }
        }
    }

    /// In every tenth seed claims and volumes come at last while requests fail: what is in doubt then is settled soon.
    fn last(seed: u64, rng: &mut Rng) -> Vec<Step> {
        if seed % 10 != 5 {
            return Vec::new();
        }
        let step = |pause, act| Step { pause: Duration::from_millis(pause), act, kill: None };
        let faults = Act::Faults { seed: rng.u64(..), time: seconds(rng, 2..5) };
        let volumes =
            (0..3).map(|volume| Act::RemakeVolume { volume, has_other_handle: true, keeps_claim: false });
        let claims = (0..6).map(|claim| Act::RemakeClaim { claim, node: 0, has_volume: false });
        let made = volumes.chain(claims).map(|act| step(20, act));
        [step(20_000, faults)].into_iter().chain(made).collect()
    }

    fn act_drawn_later(rng: &mut Rng) -> Act {
        let (node, volume) = (rng.usize(..3), rng.usize(..6));
        match rng.u8(..5) {
            0 => Act::Stubborn { undo: Undo::Deletion, target: rng.usize(..6), time: seconds(rng, 30..240) },
            1 => Act::SwapDriver { is_gone: rng.bool(), time: seconds(rng, 1..60) },
            2 => Act::Unmanage { node, time: seconds(rng, 1..60) },
            3 => Act::MakeAttachment { volume, node, is_misnamed: rng.u8(..3) == 0 },
            _ => Act::LabelVolume { volume, zone: rng.usize(..3) },
        }
    }

    fn act_drawn_last(rng: &mut Rng) -> Act {
        let target = rng.usize(..6);
        let undo = [Undo::ClaimPhase, Undo::Provisioner, Undo::Protection];
        match rng.u8(..7) {
            0..3 => Act::Stubborn { undo: undo[rng.usize(..3)], target, time: seconds(rng, 30..240) },
            3 => Act::EditPolicy { volume: target },
            4 => Act::SwapDefault { class: rng.usize(..2) },
            5 => Act::MakeClassless { claim: target },
            _ => Act::CompletePod { pod: rng.usize(..20), fails: rng.bool() },
        }
    }

    /// What gives the small controllers work.
    fn act_for_all(rng: &mut Rng) -> Act {
        let (claim, node, class) = (rng.usize(..6), rng.usize(..3), rng.usize(..2));
        let by_force = rng.u8(..3) == 0;
        match rng.u8(..10) {
            0 | 1 => Act::Enlarge { claim, is_done: by_force },
            2..5 => Act::EphemeralPod { node, is_taken: rng.u8(..5) == 0 },
            5 => Act::DeleteEphemeralClaim { claim, by_force },
            6 => Act::MakeAttributesClass { class },
            7 => Act::DeleteAttributesClass { class, by_force },
            _ => Act::UseAttributesClass { claim, class },
        }
    }

    fn act(rng: &mut Rng, more: &mut Rng, long: bool) -> Act {
        let (claim, node, volume) = (rng.usize(..6), rng.usize(..3), rng.usize(..6));
        let by_force = rng.u8(..3) == 0;
        match rng.u8(..100) {
            0..17 => Act::Pod { claim, node },
            17 => Act::EditRef { volume, claim, lacks_uid: by_force },
            18 => Act::SwapClass { class: rng.usize(..2), time: seconds(rng, 5..60) },
            19 => Act::EditVolume { volume },
            20..24 => Act::BriefPod { claim, node, after: Duration::from_millis(rng.u64(..30)) },
            24..34 => Act::DeletePod { pod: rng.usize(..20), by_force },
            34 | 35 => Act::RemakePod { pod: rng.usize(..20), claim, node },
            36..39 => Act::DeleteClaim { claim, by_force },
            39..45 => Act::MakeClaim { claim, class: rng.usize(..4) / 3, is_foreign: rng.u8(..6) == 0 },
            45..48 => Act::RemakeClaim { claim, node, has_volume: false },
            48..51 => Act::DeleteVolume { volume, by_force },
            51 | 52 => Act::MakeVolume { volume, has_other_handle: by_force },
            53 => Act::MakeTwin { volume },
            54..57 => match (rng.bool(), rng.bool()) {
                (true, true) => Act::RemakeUsedVolume { claim, node },
                (has_other_handle, keeps_claim) => {
                    Act::RemakeVolume { volume, has_other_handle, keeps_claim }
                }
            },
            57..61 => Act::ClearRef { volume, is_uid_only: by_force },
            61..66 => Act::DeleteAttachment { attachment: rng.usize(..6), takes_finalizers: by_force },
            66..69 => Act::EmptyList { node },
            69..70 => Act::FalsifyList { node, volume },
            70..71 => Act::EmptyInUse { node },
            71..72 => Act::RemakeClass { class: rng.usize(..2) },
            72..74 => Act::DeleteNode { node, back: back(more) },
            74..75 => Act::OutOfService { node, back: back(more) },
            75..77 => Act::Stubborn {
                undo: *rng
                    .choice(&[Undo::Attachment, Undo::List, Undo::ClaimRef, Undo::BindCompleted, Undo::Phase])
                    .unwrap(),
                target: rng.usize(..6),
                time: if long { Duration::from_mins(40) } else { seconds(rng, 30..240) },
            },
            77..82 => Act::Hang { node, time: seconds(rng, 20..300) },
            82..85 => {
                let range = if rng.bool() { OUTLASTS_FORCE..900 } else { 20..300 };
                Act::Silence { node, time: seconds(rng, range) }
            }
            85..87 => Act::FailAttach { volume, time: seconds(rng, 5..200) },
            87..89 => Act::FailDetach { volume, time: seconds(rng, 5..200) },
            89..91 => Act::Faults { seed: rng.u64(..), time: seconds(rng, 2..30) },
            91..93 => Act::DelayWatch {
                kind: Some(rng.usize(..=WATCHED.len())).filter(|kind| *kind < WATCHED.len()),
                time: seconds(rng, 1..20),
            },
            93..95 => Act::RewindWatch { kind: rng.usize(..WATCHED.len()), revisions: rng.u64(1..40) },
            95 | 96 => Act::Away { time: seconds(rng, 1..20) },
            97 => Act::Freeze { writes: rng.usize(1..4), time: seconds(rng, 1..60) },
            _ => Act::Replace { in_order: rng.bool(), pause: seconds(rng, 0..3) },
        }
    }
}
