//! A script out of a seed: what kind of world it is, and which acts come when.

use std::{mem, time::Duration};

use fastrand::Rng;

use super::{Act, Back, Kill, Script, Step, Undo, WATCHED};

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

/// The seeds of `.ci/run`, which have one server: a seed with two does not always come out the same.
const SEEDS_OF_EVERY_RUN: u64 = 60;

/// Draws an act.
type Draw = fn(&mut Rng) -> Act;

/// What acts and worlds got last is drawn from numbers of its own again.
const LATEST: u64 = 0x5afe_d15c;

/// And what they got after that.
const NEWEST: u64 = 0x0dd_1d15c;

/// In every third seed there are two servers, of which one is some seconds late. Among the first sixty there is one, which is
/// late, in every eighth: so they come out the same each time.
fn lags(seed: u64) -> Vec<Duration> {
    let mut rng = Rng::with_seed(seed);
    let late = [Duration::from_millis(rng.u64(..200)), Duration::from_millis(rng.u64(200..5_000))];
    match seed {
        ..=SEEDS_OF_EVERY_RUN if seed % 8 == 4 => late[1..].to_vec(),
        ..=SEEDS_OF_EVERY_RUN => Vec::new(),
        _ if seed % 3 == 1 => late.to_vec(),
        _ => Vec::new(),
    }
}

/// Whether people or machines do it, not the daemon's own misfortune.
fn is_of_people(act: &Act) -> bool {
    !matches!(
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
    )
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
        let newest = &mut Rng::with_seed(seed ^ NEWEST);
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
            has_namespaces: newest.u8(..3) == 0,
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
            let kill = (is_of_people(&act) && !lives && rng.bool())
                .then(|| Kill { write: rng.usize(1..4), point: rng.usize(..3) });
            script.steps.push(Step { pause: pause + mem::take(&mut quiet), act: act.clone(), kill });
            // A bind that the kill has cut in two is not to wait for a volume that goes.
            if kill.is_some() && rng.u8(..4) == 0 {
                let act = Act::DeleteVolume { volume: rng.usize(..6), by_force: false };
                script.steps.push(Step { pause: Duration::from_millis(1), act, kill: None });
            }
            let draws: [(&mut Rng, u8, Draw); 3] = [
                (more, 10, Self::act_drawn_later),
                (latest, 10, Self::act_drawn_last),
                (newest, 30, Self::act_drawn_newest),
            ];
            for (rng, among, draw) in draws {
                if rng.u8(..among) != 0 {
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

    fn act_drawn_newest(rng: &mut Rng) -> Act {
        let (after, lives) = (seconds(rng, 1..60), seconds(rng, 60..900));
        Act::ReplaceMachine { node: rng.usize(..3), after, lives, is_emptied: rng.bool() }
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
