//! After binding: claims that go, volumes that go, and claims that come again under an old name.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::DeleteParams;
use serde_json::json;
use test_support::cluster::patch;
use testbed::faults::{Answer, Read};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("release_when_the_claim_is_deleted", claim_deleted),
        story("release_waits_for_a_live_read_that_tells", unreadable_claim),
        story("release_with_protection_controllers", with_protection)
            .also_real("The stock protection controllers are at work there."),
        story("release_keeps_the_volume_from_a_claim_of_the_same_name", recreated_claim),
        story("release_again_when_people_clear_the_reference", cleared_reference),
        story("release_noticed_although_the_daemon_was_down", deleted_while_down),
        story("lost_when_the_volume_is_deleted", lost),
    ]
}

async fn bound_pair(stage: &Stage) {
    stage.cluster.volume("v1").await;
    stage.cluster.claim("c1").await;
    stage.cluster.bound("c1", "v1").await;
}

async fn claim_deleted(stage: Stage) {
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    stage.cluster.delete_claim("c1").await;
    let volume = stage.cluster.volume_phase("v1", "Released").await;
    // What it was used for stays on record.
    assert_eq!(volume.spec.unwrap().claim_ref.unwrap().name.unwrap(), "c1");
    // Proven by a live read (S23).
    let read = stage.requests().into_iter().any(|entry| {
        entry.verb == "get"
            && entry.resource == "persistentvolumeclaims"
            && entry.name == "c1"
            && entry.code == 404
    });
    assert!(read, "released without a live read of the claim");
}

/// S23: neither an error of the server, nor its wish to be left alone, nor what is said of something else or
/// by a proxy proves that the claim is gone.
async fn unreadable_claim(stage: Stage) {
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    let refused = Arc::new(Mutex::new(Vec::new()));
    let answers = [
        Answer::refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        Answer::refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests").retry_after(1),
        Answer::refusal(StatusCode::NOT_FOUND, "NotFound"),
        Answer { status: StatusCode::NOT_FOUND, body: json!("404 page not found"), retry_after: None },
    ];
    for answer in answers {
        let refused = Arc::clone(&refused);
        let is_proof = move |read: &Read| {
            let applies = read.target.contains("/persistentvolumeclaims/c1");
            refused.lock().unwrap().extend(applies.then_some(read.number));
            applies
        };
        stage.proxy.answer_read(is_proof, answer);
    }
    stage.cluster.delete_claim("c1").await;
    stage.cluster.volume_phase("v1", "Released").await;
    assert_eq!(refused.lock().unwrap().len(), 4, "released without a read that tells");
    let told = stage.requests().into_iter().filter(|entry| {
        entry.verb == "get" && entry.resource == "persistentvolumeclaims" && entry.code == 404
    });
    assert_eq!(told.count(), 1);
}

async fn with_protection(stage: Stage) {
    let _protection = stage.protection();
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    let claims = stage.cluster.namespaced::<k8s_openapi::api::core::v1::PersistentVolumeClaim>();
    // The volume is protected as long as it is bound, the claim by nothing but a pod.
    let volumes = stage.cluster.all::<PersistentVolume>();
    volumes.delete("v1", &DeleteParams::default()).await.unwrap();
    claims.delete("c1", &DeleteParams::default()).await.unwrap();
    stage.cluster.volume_gone("v1").await;
}

async fn recreated_claim(stage: Stage) {
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    let cluster = &stage.cluster;
    cluster.delete_claim("c1").await;
    cluster.claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
    cluster.event("c1", "FailedBinding").await;
    // It gets a volume of its own when there is one.
    cluster.volume("v2").await;
    cluster.bound("c1", "v2").await;
    cluster.volume_phase("v1", "Released").await;
}

async fn cleared_reference(stage: Stage) {
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    let cluster = &stage.cluster;
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
    cluster.claim("c2").await;
    patch(&cluster.all::<PersistentVolume>(), "v1", json!({ "spec": { "claimRef": null } })).await;
    cluster.bound("c2", "v1").await;
}

async fn deleted_while_down(stage: Stage) {
    let daemon = stage.daemon().await;
    bound_pair(&stage).await;
    daemon.kill();
    stage.cluster.delete_claim("c1").await;
    let _daemon = stage.daemon().await;
    stage.cluster.volume_phase("v1", "Released").await;
}

async fn lost(stage: Stage) {
    let _daemon = stage.daemon().await;
    bound_pair(&stage).await;
    stage.cluster.delete_volume("v1").await;
    stage.cluster.claim_phase("c1", "Lost").await;
    let event = stage.cluster.event("c1", "ClaimLost").await;
    assert_eq!(
        event.message.unwrap(),
        "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
    );
    // Proven by a live read (S24).
    let read = stage.requests().into_iter().any(|entry| {
        entry.verb == "get"
            && entry.resource == "persistentvolumes"
            && entry.name == "v1"
            && entry.code == 404
    });
    assert!(read, "Lost without a live read of the volume");
}
