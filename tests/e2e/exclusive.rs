//! An exclusive volume is never on two nodes at once (S1, from etcd's history).

use std::time::Duration;

use k8s_openapi::api::{core::v1::Pod, storage::v1::VolumeAttachment};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use test_support::{
    actors::{Reaction, attachment_name},
    cluster::{Cluster, DRIVER, until},
    history::Change,
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("exclusive_volume_moves_between_nodes", moves),
        story("exclusive_volume_waits_out_a_detach_error", waits_out_detach_error),
        story("exclusive_volume_in_use_stays_although_its_attachment_is_deleted_by_hand", deleted_by_hand),
    ]
}

async fn runs_on_the_first_of_two(cluster: &Cluster) {
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
}

async fn moves(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    runs_on_the_first_of_two(cluster).await;

    // The second pod comes while the first still runs.
    cluster.pod("p2", "n2", &["c1"]).await;
    let event = cluster.event("p2", "FailedAttachVolume").await;
    assert_eq!(
        event.message.unwrap(),
        "Multi-Attach error for volume \"v1\" Volume is already used by pod(s) p1"
    );

    cluster.delete_pod("p1").await;
    cluster.running("p2").await;
    cluster.published("n2", &["v1"]).await;
    cluster.published("n1", &[]).await;
    let attachments = cluster.all::<VolumeAttachment>().list(&ListParams::default()).await.unwrap();
    assert_eq!(attachments.items.len(), 1);
}

/// The stock controller attaches to the second node as soon as the detach has failed once.
async fn waits_out_detach_error(stage: Stage) {
    let (attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    attacher.change(|behaviour| behaviour.detach = Reaction::Fail("cannot detach now".to_owned()));
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    runs_on_the_first_of_two(cluster).await;

    cluster.pod("p2", "n2", &["c1"]).await;
    cluster.delete_pod("p1").await;
    cluster.detach_error("v1", "n1").await;
    // Other work goes on meanwhile.
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p3", "n2", &["c2"]).await;
    cluster.running("p3").await;
    assert!(cluster.attachment_now("v1", "n2").await.is_none());

    attacher.change(|behaviour| behaviour.detach = Reaction::Succeed(Duration::from_millis(50)));
    cluster.running("p2").await;
}

/// The older pod, by its name if both are of the same second, is scheduled late, and waits for a volume that is mounted
/// elsewhere. A user who deletes the attachment there does not give it away.
async fn deleted_by_hand(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p0", "", &["c1"]).await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    let pods = cluster.namespaced::<Pod>();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p0" },
        "target": { "apiVersion": "v1", "kind": "Node", "name": "n2" },
    });
    let _bound: Value =
        pods.create_subresource("binding", "p0", &PostParams::default(), &binding).await.unwrap();
    cluster.event("p0", "FailedAttachVolume").await;

    for _ in 0..3 {
        let before = cluster.attachment("v1", "n1").await.metadata.uid;
        let name = attachment_name("v1", DRIVER, "n1");
        let attachments = cluster.all::<VolumeAttachment>();
        attachments.delete(&name, &DeleteParams::default()).await.unwrap();
        until(attachments, &name, "it is made again", |attachment: Option<&VolumeAttachment>| {
            attachment.is_some_and(|attachment| attachment.metadata.uid != before)
        })
        .await;
        cluster.attached("v1", "n1").await;
        cluster.published("n1", &["v1"]).await;
    }
    let history = stage.history().await;
    let elsewhere = |change: &Change| {
        let after = change.after.as_ref();
        change.resource == "volumeattachments" && after.is_some_and(|va| va["spec"]["nodeName"] == "n2")
    };
    assert!(!history.iter().any(elsewhere), "n2 got it while n1 used it");

    cluster.delete_pod("p1").await;
    cluster.running("p0").await;
}
