//! The same scripts on the same real API server, once with kube-controller-manager and once with
//! mooring: after each step both must come to the same end. `docs/differential.md` says what is not compared.
//!
//! Seeds choose the scripts: `MOORING_DIFFERENTIAL_SEEDS` is a list of numbers and ranges, as `1-8,42`.
//! Without it nothing is run, because most of it is waiting until a cluster is at rest. All scripts of
//! one side play at once, and with them the scenes of the small controllers; only the first of the list uses the
//! default class, of which a cluster has one.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod activity;
mod outcome;
mod play;
mod scenes;
mod script;
mod second_binder;

use std::{collections::BTreeMap, fmt::Write as _, path::Path, sync::OnceLock};

use activity::Activity;
use futures::future::join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use outcome::Noted;
use play::Stage;
use scenes::{SCENES, Scene};
use serde_json::Value;
use test_support::{
    actors::{Attacher, AttacherBehaviour, KubeletBehaviour, Kubelets, Provisioner, ProvisionerBehaviour},
    assets::Assets,
    cluster::{Cluster, DRIVER},
    control_plane::{ControlPlane, User},
    daemon::Launch,
    process::Process,
};

/// The daemon.
const PROGRAM: &str = env!("CARGO_BIN_EXE_mooring");

const SEEDS: &str = "MOORING_DIFFERENTIAL_SEEDS";

const PROTECTION: [&str; 2] =
    ["persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"];
const REPLACED: [&str; 2] =
    ["persistentvolume-binder-controller", "persistentvolume-attach-detach-controller"];
const SMALL: [&str; 3] = [
    "persistentvolume-expander-controller",
    "ephemeral-volume-controller",
    "volumeattributesclass-protection-controller",
];
/// Runs on both sides: it deletes the claims of pods that are gone.
const GARBAGE: [&str; 1] = ["garbage-collector-controller"];
/// No limit of its own, and a look at every claim twice a second instead of every 15 seconds.
const QUICK: [&str; 3] = ["--kube-api-qps=-1", "--kube-api-burst=-1", "--pvclaimbinder-sync-period=500ms"];

/// What is compared: what each step of a script has led to, on both sides, by the script's prefix.
type Ends = BTreeMap<String, (Vec<Noted>, Vec<Noted>)>;

fn main() {
    let mut arguments = Arguments::from_args();
    // The first trial that runs plays all scripts at once; beside them is no room for a second cluster.
    arguments.test_threads = Some(1);
    let seeds = std::env::var(SEEDS).ok();
    if seeds.is_none() && !arguments.list {
        eprintln!("The comparison with kube-controller-manager is not run: {SEEDS} says with which seeds.");
    }
    let is_chosen = seeds.is_some();
    let seeds = read_seeds(seeds.as_deref().unwrap_or("1"));
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let together = [
        Trial::test("second_binder_beside_kube_controller_manager", move || {
            runtime().block_on(second_binder::play())
        }),
        Trial::test("second_attach_detach_controller_beside_kube_controller_manager", move || {
            runtime().block_on(second_binder::attach_detach())
        }),
        Trial::test("no_second_controller_where_the_two_loops_are_off", move || {
            runtime().block_on(second_binder::without_the_two())
        }),
    ];
    let scripts = seeds.iter().map(|seed| (format!("seed_{seed}"), format!("s{seed}-"), ""));
    let scenes = SCENES.iter().map(|(name, shows, _)| ((*name).to_owned(), scenes::prefix(name), *shows));
    let compared = scripts.chain(scenes).map(|(name, prefix, shows)| {
        let seeds = seeds.clone();
        Trial::test(name, move || judge(&seeds, &prefix, shows))
    });
    let of_observe = {
        let seeds = seeds.clone();
        let name = "observe_finds_no_difference_but_those_of_people";
        Trial::test(name, move || observed(&seeds))
    };
    let trials =
        compared.chain(together).chain([of_observe]).map(|trial| trial.with_ignored_flag(!is_chosen));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// `1-3,7` is 1, 2, 3 and 7.
fn read_seeds(text: &str) -> Vec<u64> {
    let number = |text: &str| -> u64 {
        text.trim().parse().unwrap_or_else(|_| panic!("{SEEDS} is a list like 1-3,7; {text:?} is no number"))
    };
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        number(first)..=number(last)
    };
    text.split(',').flat_map(range).collect()
}

/// What `mooring observe` has told of kube-controller-manager's side.
static OBSERVED: OnceLock<Value> = OnceLock::new();

fn ends(seeds: &[u64]) -> &'static Result<Ends, String> {
    static ENDS: OnceLock<Result<Ends, String>> = OnceLock::new();
    ENDS.get_or_init(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(play_all(seeds))
    })
}

/// The scripts' people take finalizers off, too.
fn observed(seeds: &[u64]) -> Result<(), Failed> {
    ends(seeds).as_ref()?;
    let summary = OBSERVED.get().ok_or("nothing was observed")?;
    let by = |user: User| summary["users"][user.name()].as_u64().unwrap_or_default();
    assert!(by(User::ControllerManager) > 100, "{summary:#}");
    // A list in place of a watch makes a gap, and so may a server that is busy.
    let gaps = summary["gaps"].as_u64().ok_or("how many acts came in gaps")?;
    assert!(gaps * 10 < by(User::ControllerManager), "{summary:#}");
    let people = Value::from(User::Admin.name());
    let differences = summary["differences"].as_array().ok_or("a list of differences")?;
    let differences: Vec<&Value> = differences.iter().filter(|it| it["user"] != people).collect();
    assert!(differences.is_empty(), "{differences:#?}");
    Ok(())
}

fn judge(seeds: &[u64], prefix: &str, shows: &str) -> Result<(), Failed> {
    let ends = ends(seeds);
    let (kcm, mooring) = &ends.as_ref()?[prefix];
    assert!(format!("{kcm:?}").contains(shows), "kube-controller-manager does nothing: {kcm:#?}");
    let mut report = String::new();
    for ((step, kcm), (_, mooring)) in kcm.iter().zip(mooring) {
        let _ = writeln!(report, "  {step}");
        let differences = outcome::differences(kcm, mooring);
        if !differences.is_empty() {
            return Err(format!(
                "after these steps there are differences\n{report}{}",
                differences.join("\n")
            )
            .into());
        }
    }
    Ok(())
}

/// Plays all scripts with the one, then with the other.
async fn play_all(seeds: &[u64]) -> Result<Ends, String> {
    let plane = ControlPlane::start(&Assets::find()?).await;
    let kcm = {
        let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin)).display().to_string();
        let log = plane.audit_log().display().to_string();
        let words =
            ["observe", "-o=json", "--controllers=storage", "--kubeconfig", &kubeconfig, "--audit-log", &log];
        let mut observing = Process::start("observe", Path::new(PROGRAM), &words.map(str::to_owned), &[]);
        let _controllers =
            plane.controller_manager(&[&REPLACED[..], &PROTECTION, &SMALL, &GARBAGE].concat(), &QUICK);
        let played = play_side(&plane, seeds).await;
        observing.terminate().await;
        let summary = serde_json::from_str(&observing.log().tail(1_000_000));
        OBSERVED.set(summary.map_err(|error| error.to_string())?).map_err(|_| "observed twice")?;
        played
    };
    let mut mooring = {
        let _garbage = plane.controller_manager(&GARBAGE, &[]);
        // It starts without the other side's objects, and without any memory of them.
        Cluster::new(plane.client(User::Admin)).clear().await;
        let token = plane.token(User::ControllerManager);
        let launch = Launch::alone().with("--controllers=storage");
        let daemon = launch.start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
        daemon.ready().await;
        play_side(&plane, seeds).await
    };
    let both = kcm.into_iter().map(|(prefix, end)| {
        let other = mooring.remove(&prefix).unwrap_or_default();
        (prefix, (end, other))
    });
    Ok(both.collect())
}

/// Plays all scripts and scenes at once on an emptied cluster.
async fn play_side(plane: &ControlPlane, seeds: &[u64]) -> BTreeMap<String, Vec<Noted>> {
    let cluster = Cluster::new(plane.client(User::Admin));
    cluster.clear().await;
    let activity = Activity::watch(&cluster.client);
    let kubelets = Kubelets::start(plane.client(User::Kubelets), KubeletBehaviour::default());
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default());
    let _provisioner =
        Provisioner::start(plane.client(User::Provisioner), DRIVER, ProvisionerBehaviour::default());
    cluster.driver().await;
    let scripts = seeds.iter().enumerate().map(|(number, seed)| {
        let script = script::script(*seed, number == 0);
        let prefix = format!("s{seed}-");
        let is_iscsi = seed.is_multiple_of(3);
        let stage = Stage { cluster: &cluster, activity: &activity, kubelets: &kubelets, prefix, is_iscsi };
        async move { (stage.prefix.clone(), stage.play(&script).await) }
    });
    let scenes = SCENES.iter().map(|(name, _, play)| {
        let mut scene = Scene::new(&cluster, &activity, name);
        async move {
            play(&mut scene).await;
            (scene.prefix, scene.noted)
        }
    });
    let (scripts, scenes) = futures::future::join(join_all(scripts), join_all(scenes)).await;
    scripts.into_iter().chain(scenes).collect()
}
