//! A whole cluster: pods that the scheduler places come, move and go, and nodes have their troubles.
//!
//! The stand-ins do here what the tests do by hand elsewhere, so these stories also show that their
//! requests are the right ones. The demo's script plays in paused time, with the seed
//! of the run.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use test_support::{
    cluster::{NAMESPACE, patch, patch_status, until},
    daemon::Launch,
};
use testbed::{
    actors::{
        PodGc, PodGcBehaviour, Protection, SEAT, Scheduler, Seat, Succession, Workload, WorkloadBehaviour,
    },
    troubles::{
        director,
        script::{ROUND, Script},
        stage::{HOPELESS_CLAIM, Stage as Cast},
    },
};

use crate::stage::{Stage, Story, seed, story};

/// Seats of the demo's script.
const SEATS: usize = 8;

pub fn stories() -> Vec<Story> {
    vec![
        story("troubles_a_pod_moves_with_its_volume_and_goes_with_it", comes_moves_and_goes)
            .also_real("kube-apiserver validates what the stand-ins do, and taints new nodes."),
        story("troubles_a_node_out_of_service_gives_its_volume_away", out_of_service),
        story("troubles_of_the_demo_end_well", script).only_embedded(),
    ]
}

/// The stand-ins beyond storage and kubelets, with one seat.
struct Controllers {
    workload: Workload,
    _others: (Scheduler, PodGc, Protection),
}

impl Controllers {
    /// Starts them, and two nodes.
    async fn start(stage: &Stage) -> Self {
        let cluster = &stage.cluster;
        cluster.class("delayed", "WaitForFirstConsumer").await;
        for node in ["n1", "n2"] {
            cluster.node(node).await;
            // Admission taints new nodes as not ready.
            patch(&cluster.all::<Node>(), node, json!({ "spec": { "taints": null } })).await;
        }
        let client = &cluster.client;
        let seat =
            Seat { succession: Succession::AfterGone, class: "delayed".to_owned(), size: "1Gi".to_owned() };
        let seats = BTreeMap::from([("db-0".to_owned(), seat)]);
        let behaviour = WorkloadBehaviour { seats, toleration: None };
        Self {
            workload: Workload::start(client.clone(), NAMESPACE, behaviour),
            _others: (
                Scheduler::start(client.clone()),
                PodGc::start(client.clone(), PodGcBehaviour::default()),
                Protection::start(client.clone()),
            ),
        }
    }
}

/// Waits until the seat's pod runs on another node than this, and returns which.
async fn runs_elsewhere(stage: &Stage, than: &str) -> String {
    let what = format!("db-0 runs elsewhere than on {than}");
    let pod = until(stage.cluster.namespaced(), "db-0", &what, |pod: Option<&Pod>| {
        let Some(pod) = pod else { return false };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && node.is_some_and(|node| node != than)
    });
    pod.await.unwrap().spec.unwrap().node_name.unwrap()
}

/// The volume of the seat's claim.
async fn volume(stage: &Stage) -> String {
    let claims = stage.cluster.namespaced::<PersistentVolumeClaim>();
    claims.get("data-db-0").await.unwrap().spec.unwrap().volume_name.unwrap()
}

async fn comes_moves_and_goes(stage: Stage) {
    let _storage = (stage.attacher(), stage.provisioner(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let controllers = Controllers::start(&stage).await;
    let first = runs_elsewhere(&stage, "").await;
    let volume = volume(&stage).await;

    let taint = json!({ "spec": { "taints": [{ "key": "maintenance", "effect": "NoExecute" }] } });
    patch(&stage.cluster.all::<Node>(), &first, taint).await;
    let second = runs_elsewhere(&stage, &first).await;
    stage.cluster.published(&second, &[&volume]).await;
    stage.cluster.published(&first, &[]).await;

    controllers.workload.change(|workload| workload.seats.clear());
    stage.cluster.pod_gone("db-0").await;
    until(stage.cluster.namespaced(), "data-db-0", "the claim is gone", |claim| {
        claim.is_none_or(|_: &PersistentVolumeClaim| false)
    })
    .await;
    stage.cluster.volume_gone(&volume).await;
    stage.cluster.published(&second, &[]).await;
}

async fn out_of_service(stage: Stage) {
    let _storage = (stage.attacher(), stage.provisioner());
    let kubelets = stage.kubelets();
    let _daemon = stage.daemon().await;
    let _controllers = Controllers::start(&stage).await;
    let first = runs_elsewhere(&stage, "").await;
    let volume = volume(&stage).await;

    kubelets.change(|kubelets| kubelets.silent.extend([first.clone()]));
    let unknown = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    patch_status(&stage.cluster.all::<Node>(), &first, unknown).await;
    let taint = json!({ "spec": { "taints": [
        { "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" },
    ]}});
    patch(&stage.cluster.all::<Node>(), &first, taint).await;
    let second = runs_elsewhere(&stage, &first).await;
    stage.cluster.published(&second, &[&volume]).await;
    stage.cluster.detached(&volume, &first).await;
}

/// Two rounds of troubles. Afterwards nothing is left waiting but what has to, and what happened
/// meanwhile is checked as after every story.
async fn script(stage: Stage) {
    let client = &stage.cluster.client;
    let mut script = Script::new(seed(), 4, SEATS, 1.0);
    let launch = Launch::alone().with("--force-detach-gone-node-after=8s");
    let _daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let cast = Cast::set(client, &script).await.unwrap();
    let begin = tokio::time::Instant::now();
    // The last round is over, and the next one has not begun.
    let end = ROUND * 2;
    let mut acted = 0;
    while let Some((at, act)) = script.next().filter(|(at, _)| *at < end + Duration::from_secs(3)) {
        tokio::time::sleep_until(begin + at).await;
        director::act(client, &cast, act).await.unwrap();
        acted += 1;
    }
    assert!(acted > 80, "{acted}");

    let pods: Api<Pod> = stage.cluster.namespaced();
    let claims: Api<PersistentVolumeClaim> = stage.cluster.namespaced();
    let (mut settled, mut waiting) = (0, Vec::new());
    // Nothing happens any more, so a minute of the server's time is plenty.
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        waiting.clear();
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
                waiting.push(format!("pod {}", pod.name_any()));
            }
        }
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Bound") && claim.name_any() != HOPELESS_CLAIM {
                waiting.push(format!("claim {}", claim.name_any()));
            }
        }
        settled = pods.list(&ListParams::default().labels(SEAT)).await.unwrap().items.len();
        if waiting.is_empty() && settled == SEATS {
            return;
        }
    }
    panic!("{settled} pods, {waiting:?} wait");
}
