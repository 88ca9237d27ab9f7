//! Slow is not dead: what takes long is waited for, as long as the lease allows.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use test_support::{cluster::create, daemon::Launch};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

/// Of the black hole.
const WEBHOOK: &str = "mooring-test-black-hole";

pub fn stories() -> Vec<Story> {
    vec![
        story("slow_a_webhook_that_hangs_and_fails_open_slows_down_and_no_more", webhook)
            .only_real("kube-apiserver calls webhooks."),
        story("slow_what_never_ends_in_time_is_told", told).only_real("kube-apiserver calls webhooks."),
        story("slow_a_webhook_that_hangs_and_fails_closed_is_told", fails_closed)
            .only_real("kube-apiserver calls webhooks."),
    ]
}

/// An admission webhook that accepts connections and never answers, for all that the daemon writes.
struct BlackHole {
    webhooks: Api<ValidatingWebhookConfiguration>,
    /// Connections that were made.
    asked: watch::Receiver<usize>,
    stop: CancellationToken,
}

impl BlackHole {
    async fn open(stage: &Stage, timeout_seconds: u32, failure_policy: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the webhook");
        let url = format!("https://{}/", listener.local_addr().expect("a bound socket has an address"));
        let (count, asked) = watch::channel(0);
        let stop = CancellationToken::new();
        let swallowing = async move {
            let mut connections = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.push(connection);
                count.send_modify(|count| *count += 1);
            }
        };
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(swallowing).await });
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(stage.cluster.client.clone());
        webhooks.delete(WEBHOOK, &DeleteParams::default()).await.ok();
        let daemon = format!("system:serviceaccount:{DAEMON_NAMESPACE}:mooring");
        let rule = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": resources });
        let core = [
            "persistentvolumes",
            "persistentvolumes/status",
            "persistentvolumeclaims",
            "persistentvolumeclaims/status",
            "nodes/status",
        ];
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": WEBHOOK },
            "webhooks": [{
                "name": "black-hole.mooring.dev",
                "clientConfig": { "url": url },
                "rules": [rule("", &core), rule("storage.k8s.io", &["volumeattachments"])],
                "matchConditions": [{
                    "name": "the-daemon",
                    "expression": format!("request.userInfo.username == '{daemon}'"),
                }],
                "failurePolicy": failure_policy,
                "sideEffects": "None",
                "timeoutSeconds": timeout_seconds,
                "admissionReviewVersions": ["v1"],
            }],
        });
        create(&webhooks, configuration).await;
        Self { webhooks, asked, stop }
    }

    async fn close(self) {
        self.stop.cancel();
        self.webhooks.delete(WEBHOOK, &DeleteParams::default()).await.expect("delete the webhook");
    }
}

/// The policy engine's pods are gone, and every write waits for them for the ten seconds that are the default, with
/// the lease that is the default.
async fn webhook(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.start_daemon(&Launch::replica_by_default(DAEMON_NAMESPACE), &stage.proxy).await;
    stage.cluster.bound_pair("v1", "c1").await;
    stage.cluster.node("n1").await;
    let hole = BlackHole::open(&stage, 10, "Ignore").await;
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    stage.cluster.volume("v2").await;
    stage.cluster.claim("c2").await;
    stage.cluster.published("n1", &["v1"]).await;
    stage.cluster.bound("c2", "v2").await;
    assert!(*hole.asked.borrow() >= 5, "nobody was asked");
    hole.close().await;
    daemon.shows("leader_election_master_status{name=\"mooring\"} 1").await;
}

/// A webhook that hangs for longer than the lease allows: nothing can be written, and an operator is told.
async fn told(stage: Stage) {
    nothing_written(&stage, 30, "Ignore").await;
}

/// One whose own time is over sooner, and that then forbids what it was asked about.
async fn fails_closed(stage: Stage) {
    nothing_written(&stage, 1, "Fail").await;
}

async fn nothing_written(stage: &Stage, timeout_seconds: u32, failure_policy: &str) {
    let _attacher = stage.attacher();
    // Three requests, each with the time that it may take and the pause after it, are waited for.
    let launch = Launch::alone().with("--request-timeout=2s");
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.bound_pair("v1", "c1").await;
    stage.cluster.node("n1").await;
    let hole = BlackHole::open(stage, timeout_seconds, failure_policy).await;
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    daemon.shows("mooring_requests_timed_out_total{resource=\"volumeattachments\",verb=\"create\"} 3").await;
    stage.cluster.event_with("p1", "FailedAttachVolume", "outcome unknown").await;
    hole.close().await;
    stage.cluster.published("n1", &["v1"]).await;
}
