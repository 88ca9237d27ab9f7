//! The daemon is killed at each of its writes, in each way (E1), and started again: the end is that
//! of a run without a crash. On the embedded server it is killed a second time while it recovers, at
//! each write and in each way again: some of these pairs, or all with `MOORING_CRASH_PAIRS=all`.
//!
//! The proxy numbers the writes, so a write that is added later is a new place to be killed at, without a
//! change of this test.

use std::pin::pin;

use futures::future::select;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::DeleteParams;
use serde_json::json;
use test_support::{
    attributes_class::VolumeAttributesClass,
    cluster::{VolumeShape, create, patch, patch_status, unique_name, until},
    daemon::{Daemon, Launch},
};
use testbed::faults::CrashPoint;

use crate::stage::{Stage, Story, seed, story};

pub fn stories() -> Vec<Story> {
    let mut stories = Vec::new();
    add(&mut stories, "an_attach", || Attach);
    add(&mut stories, "a_detach", || Detach);
    add(&mut stories, "a_detach_by_force", || DetachByForce);
    add(&mut stories, "a_move", || Move);
    add(&mut stories, "a_bind", || Bind);
    add(&mut stories, "a_bind_of_a_pair", || BindPair);
    add(&mut stories, "a_provisioning", || Provision);
    add(&mut stories, "a_release", || Release);
    add(&mut stories, "a_loss", || Lose);
    add(&mut stories, "the_protection_of_classes", || ProtectClasses);
    stories
}

/// A story on each server, and one with two crashes on the embedded one.
fn add<W: Workflow + 'static>(stories: &mut Vec<Story>, what: &str, workflow: fn() -> W) {
    let name = format!("crash_at_each_write_of_{what}");
    stories.push(story(name, move |stage| crash_everywhere(stage, workflow())));
    let name = format!("crash_twice_at_each_write_of_{what}");
    let twice = story(name, move |stage| crash_twice_everywhere(stage, workflow()));
    stories.push(twice.only_embedded());
}

/// One round of a workflow, with names of its own.
struct Round {
    node: String,
    other_node: String,
    volume: String,
    claim: String,
    pod: String,
    other_pod: String,
}

impl Round {
    fn new(number: usize) -> Self {
        Self {
            node: format!("n{number}"),
            other_node: format!("m{number}"),
            volume: format!("v{number}"),
            claim: format!("c{number}"),
            pod: format!("p{number}"),
            other_pod: format!("q{number}"),
        }
    }
}

/// What a workflow consists of.
trait Workflow: Send + Sync {
    /// VolumeAttachments that are made and deleted in one round.
    const ATTACHMENTS: (usize, usize) = (0, 0);
    /// Whether kubelets report what is in use.
    const KUBELETS: bool = true;
    /// The controllers that the daemon runs.
    const CONTROLLERS: &'static str = "*";

    /// Makes the situation it starts from, with a daemon running.
    fn prepare(&self, stage: &Stage, round: &Round) -> impl Future<Output = ()> + Send;
    /// What sets it off.
    fn begin(&self, stage: &Stage, round: &Round) -> impl Future<Output = ()> + Send;
    /// Waits for its end.
    fn end(&self, stage: &Stage, round: &Round) -> impl Future<Output = ()> + Send;
}

/// Where the daemon is killed: at which write since its start, and how.
type Crash = (usize, CrashPoint);

fn crashes(writes: usize) -> impl Iterator<Item = Crash> {
    (1..=writes).flat_map(|write| CrashPoint::ALL.map(|point| (write, point)))
}

/// Some of the plans, which `MOORING_SEED` chooses, or all of them with `MOORING_CRASH_PAIRS=all`.
fn sample(mut plans: Vec<Vec<Crash>>) -> Vec<Vec<Crash>> {
    const SAMPLE: usize = 15;
    if std::env::var("MOORING_CRASH_PAIRS").is_ok_and(|value| value == "all") {
        return plans;
    }
    fastrand::Rng::with_seed(seed()).shuffle(&mut plans);
    plans.truncate(SAMPLE);
    plans
}

async fn daemon<W: Workflow>(stage: &Stage) -> Daemon {
    let launch = Launch::alone().with(&format!("--controllers={}", W::CONTROLLERS));
    stage.start_daemon(&launch, &stage.proxy).await
}

async fn crash_everywhere(stage: Stage, workflow: impl Workflow) {
    crash_at(&stage, &workflow, |writes| crashes(writes).map(|crash| vec![crash]).collect()).await;
}

async fn crash_twice_everywhere(stage: Stage, workflow: impl Workflow) {
    let pairs = |writes: usize| {
        // What was lost may have to be done again, so there can be more writes after the first crash.
        let seconds = || crashes(writes + 1);
        let all = crashes(writes).flat_map(|first| seconds().map(move |second| vec![first, second]));
        sample(all.collect())
    };
    crash_at(&stage, &workflow, pairs).await;
}

/// Plays the workflow undisturbed to count its writes, and then once with each of these crashes.
async fn crash_at<W: Workflow>(stage: &Stage, workflow: &W, plans: impl Fn(usize) -> Vec<Vec<Crash>>) {
    let (_attacher, _provisioner) = (stage.attacher(), stage.provisioner());
    let _kubelets = W::KUBELETS.then(|| stage.kubelets());
    let round = Round::new(0);
    let daemon = daemon::<W>(stage).await;
    workflow.prepare(stage, &round).await;
    let before = stage.proxy.counted();
    workflow.begin(stage, &round).await;
    workflow.end(stage, &round).await;
    daemon.kill();
    let writes = stage.proxy.counted() - before;
    assert!(writes > 0, "the workflow makes no write");

    let plans = plans(writes);
    for (index, plan) in plans.iter().enumerate() {
        play(stage, workflow, &Round::new(index + 1), plan).await;
    }
    let (made, deleted) = W::ATTACHMENTS;
    let rounds = plans.len() + 1;
    assert_eq!(attachments_made_and_deleted(stage).await, (rounds * made, rounds * deleted));
}

/// Plays one round. A crash after the first need not come, if there is nothing left to write.
async fn play<W: Workflow>(stage: &Stage, workflow: &W, round: &Round, plan: &[Crash]) {
    let daemon = self::daemon::<W>(stage).await;
    workflow.prepare(stage, round).await;
    let mut daemon = Some(daemon);
    for (write, point) in plan {
        let caught = stage.proxy.crash_at(stage.proxy.counted() + write, *point);
        if let Some(daemon) = daemon.take() {
            workflow.begin(stage, round).await;
            caught.reached().await;
            daemon.kill();
        } else {
            let daemon = self::daemon::<W>(stage).await;
            let _ = select(pin!(caught.reached()), pin!(workflow.end(stage, round))).await;
            daemon.kill();
        }
        stage.proxy.thaw();
    }
    let daemon = self::daemon::<W>(stage).await;
    workflow.end(stage, round).await;
    daemon.kill();
}

/// Creations and deletions of VolumeAttachments since the story began.
async fn attachments_made_and_deleted(stage: &Stage) -> (usize, usize) {
    let history = stage.history().await;
    let of_attachments = || history.iter().filter(|change| change.resource == "volumeattachments");
    let made = of_attachments().filter(|change| change.before.is_none()).count();
    let deleted = of_attachments().filter(|change| change.after.is_none()).count();
    (made, deleted)
}

struct Attach;

impl Workflow for Attach {
    const ATTACHMENTS: (usize, usize) = (1, 0);

    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.node(&round.node).await;
        stage.cluster.bound_pair(&round.volume, &round.claim).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.pod(&round.pod, &round.node, &[&round.claim]).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.published(&round.node, &[&round.volume]).await;
        stage.cluster.running(&round.pod).await;
    }
}

struct Detach;

impl Workflow for Detach {
    const ATTACHMENTS: (usize, usize) = (1, 1);

    async fn prepare(&self, stage: &Stage, round: &Round) {
        Attach.prepare(stage, round).await;
        Attach.begin(stage, round).await;
        Attach.end(stage, round).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.delete_pod(&round.pod).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.pod_gone(&round.pod).await;
        stage.cluster.detached(&round.volume, &round.node).await;
        stage.cluster.published(&round.node, &[]).await;
    }
}

struct DetachByForce;

impl Workflow for DetachByForce {
    const ATTACHMENTS: (usize, usize) = (1, 1);
    const KUBELETS: bool = false;

    async fn prepare(&self, stage: &Stage, round: &Round) {
        Attach.prepare(stage, round).await;
        Attach.begin(stage, round).await;
        stage.cluster.published(&round.node, &[&round.volume]).await;
        let in_use = json!({ "status": { "volumesInUse": [unique_name(&round.volume)] } });
        patch_status::<Node>(&stage.cluster.all(), &round.node, in_use).await;
        stage.cluster.remove_pod(&round.pod).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        let taint = json!({ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" });
        patch::<Node>(&stage.cluster.all(), &round.node, json!({ "spec": { "taints": [taint] } })).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.detached(&round.volume, &round.node).await;
        stage.cluster.published(&round.node, &[]).await;
    }
}

struct Move;

impl Workflow for Move {
    const ATTACHMENTS: (usize, usize) = (2, 1);

    async fn prepare(&self, stage: &Stage, round: &Round) {
        Detach.prepare(stage, round).await;
        stage.cluster.node(&round.other_node).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.pod(&round.other_pod, &round.other_node, &[&round.claim]).await;
        stage.cluster.delete_pod(&round.pod).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.running(&round.other_pod).await;
        stage.cluster.published(&round.other_node, &[&round.volume]).await;
        stage.cluster.published(&round.node, &[]).await;
    }
}

struct Bind;

impl Workflow for Bind {
    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.volume(&round.volume).await;
        stage.cluster.volume_phase(&round.volume, "Available").await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.claim(&round.claim).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.bound(&round.claim, &round.volume).await;
    }
}

struct BindPair;

impl Workflow for BindPair {
    async fn prepare(&self, _: &Stage, _: &Round) {}

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.intended_pair(&round.volume, &round.claim, &VolumeShape::default()).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.bound(&round.claim, &round.volume).await;
    }
}

struct Provision;

impl Workflow for Provision {
    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.class(&round.volume, "Immediate").await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        let claim = json!({
            "metadata": { "name": round.claim },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": round.volume,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        create::<PersistentVolumeClaim>(&stage.cluster.namespaced(), claim).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        let claim = stage.cluster.claim_phase(&round.claim, "Bound").await;
        stage.cluster.bound(&round.claim, &claim.spec.unwrap().volume_name.unwrap()).await;
    }
}

struct Release;

impl Workflow for Release {
    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.bound_pair(&round.volume, &round.claim).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.delete_claim(&round.claim).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.volume_phase(&round.volume, "Released").await;
    }
}

struct Lose;

impl Workflow for Lose {
    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.bound_pair(&round.volume, &round.claim).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        stage.cluster.delete_volume(&round.volume).await;
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        stage.cluster.claim_phase(&round.claim, "Lost").await;
    }
}

/// One class lacks the finalizer, the other one is let go.
struct ProtectClasses;

impl Workflow for ProtectClasses {
    const CONTROLLERS: &'static str = "*,volumeattributesclass-protection-controller";

    async fn prepare(&self, stage: &Stage, round: &Round) {
        stage.cluster.attributes_class(&round.node).await;
        stage.cluster.attributes_class(&round.other_node).await;
    }

    async fn begin(&self, stage: &Stage, round: &Round) {
        let classes = stage.cluster.all::<VolumeAttributesClass>();
        patch(&classes, &round.node, json!({ "metadata": { "finalizers": null } })).await;
        classes.delete(&round.other_node, &DeleteParams::default()).await.unwrap();
    }

    async fn end(&self, stage: &Stage, round: &Round) {
        let classes = stage.cluster.all::<VolumeAttributesClass>();
        until(classes.clone(), &round.node, "it is protected", VolumeAttributesClass::is_protected).await;
        until(classes, &round.other_node, "nothing names it", |class| class.is_none()).await;
    }
}
