//! The ephemeral volume controller, ours in place of the stock one: a pod's claims come with the pod, and are its own (S50).

use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use test_support::{
    cluster::{Cluster, create, patch, until},
    daemon::Launch,
};
use testbed::faults::{CrashPoint, Storm, Write};
use tokio::time::sleep;

use crate::stage::{Stage, Story, seed, story};

const CONTROLLERS: &str = "--controllers=*,ephemeral-volume-controller";

pub fn stories() -> Vec<Story> {
    vec![
        story("ephemeral_s50_claims_come_with_their_pod", with_the_pod).also_real(
            "kube-apiserver validates owner references and the right to them, and completes templates.",
        ),
        story("ephemeral_claim_of_another_is_told_and_its_deletion_heals", of_another),
        story("ephemeral_claim_that_the_server_refuses_is_told_in_its_words", refused),
        story("ephemeral_claim_beyond_a_quota_is_told_and_comes_when_there_is_room", beyond_quota)
            .only_real("kube-apiserver counts claims against quotas."),
        story("ephemeral_e1_a_crash_at_each_write_leaves_one_claim", crashed),
        story("ephemeral_e6_a_storm_of_faults_leaves_each_pod_with_its_own_claim", stormy),
        story("ephemeral_e9_a_second_replica_makes_what_the_first_has_left", replicas),
    ]
}

/// A pod with one generic ephemeral volume, on a node.
async fn pod(stage: &Stage, name: &str) -> Pod {
    let template = json!({
        "metadata": { "labels": { "app": name }, "annotations": { "note": "scratch" } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let pod = json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
        },
    });
    create(&stage.cluster.namespaced(), pod).await
}

/// Waits for the claim of a pod.
async fn claim_of(stage: &Stage, pod: &Pod) -> PersistentVolumeClaim {
    let (name, uid) = (pod.metadata.name.clone().unwrap(), pod.metadata.uid.clone().unwrap());
    let is_its = move |claim: Option<&PersistentVolumeClaim>| {
        let owners = claim.and_then(|claim| claim.metadata.owner_references.as_ref());
        owners.is_some_and(|owners| owners.iter().any(|owner| owner.uid == uid))
    };
    let what = format!("{name} has its claim");
    let claim = until(stage.cluster.namespaced(), &format!("{name}-data"), &what, is_its).await;
    claim.expect("the condition asks for it")
}

async fn start(stage: &Stage) -> test_support::daemon::Daemon {
    stage.start_daemon(&Launch::alone().with(CONTROLLERS), &stage.proxy).await
}

fn created(stage: &Stage) -> usize {
    let requests = stage.requests();
    let is_one = |verb: &str, resource: &str| verb == "create" && resource == "persistentvolumeclaims";
    requests.iter().filter(|entry| is_one(&entry.verb, &entry.resource)).count()
}

async fn with_the_pod(stage: Stage) {
    let (_attacher, _kubelets, _provisioner) = (stage.attacher(), stage.kubelets(), stage.provisioner());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.driver().await;
    cluster.class("fast", "Immediate").await;
    let before = pod(&stage, "before").await;
    let daemon = start(&stage).await;
    let first = claim_of(&stage, &before).await;
    let labels = first.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("app").map(String::as_str), Some("before"), "it comes from the template");

    let after = pod(&stage, "after").await;
    let claim = claim_of(&stage, &after).await;
    let owner = &claim.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    cluster.running("before").await;
    cluster.running("after").await;
    daemon.shows("ephemeral_volume_controller_create_total 2").await;
    daemon.shows("ephemeral_volume_controller_create_failures_total 0").await;

    // The pod is read again for the template.
    cluster.delete_claim("after-data").await;
    let again = claim_of(&stage, &after).await;
    assert_ne!(again.metadata.uid, claim.metadata.uid);
    let reads =
        stage.requests().iter().filter(|entry| entry.verb == "get" && entry.resource == "pods").count();
    assert_eq!(reads, 2, "that pod, and the one that was there before the daemon");
}

async fn of_another(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let daemon = start(&stage).await;
    cluster.claim("p1-data").await;
    let owner = pod(&stage, "p1").await;
    let words = "PVC default/p1-data was not created for pod default/p1 (pod is not owner)";
    cluster.event_with("p1", "FailedBinding", words).await;
    daemon.page_says("/debug/ephemeral-volumes", "ClaimNotOwnedByPod").await;
    assert_eq!(created(&stage), 1, "by hand");
    cluster.delete_claim("p1-data").await;
    claim_of(&stage, &owner).await;
    cluster.remove_pod("p1").await;
}

/// Whatever refuses: a quota, a webhook, a namespace that is being deleted, a missing right on the pod's finalizers.
async fn refused(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let words =
        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": format!("persistentvolumeclaims \"p1-data\" is forbidden: {words}"),
    });
    let is_one = |write: &Write| write.is(&Method::POST, "/namespaces/default/persistentvolumeclaims");
    for _ in 0..3 {
        let _ = stage.proxy.answer(is_one, StatusCode::FORBIDDEN, status.clone());
    }
    let daemon = start(&stage).await;
    let owner = pod(&stage, "p1").await;
    cluster.event_with("p1", "FailedBinding", words).await;
    daemon.page_says("/debug/ephemeral-volumes", "RetryBackoff").await;
    claim_of(&stage, &owner).await;
    daemon.shows("ephemeral_volume_controller_create_failures_total 3").await;
}

async fn beyond_quota(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let _daemon = start(&stage).await;
    let quotas = cluster.namespaced::<ResourceQuota>();
    let hard = json!({ "spec": { "hard": { "persistentvolumeclaims": "0" } } });
    let mut quota = hard.clone();
    quota["metadata"] = json!({ "name": "none" });
    create(&quotas, quota).await;
    // Nobody here keeps the status of quotas, which is what the server counts by.
    let status = |most: &str| {
        let list = json!({ "persistentvolumeclaims": most });
        json!({ "status": { "hard": list, "used": { "persistentvolumeclaims": "0" } } })
    };
    test_support::cluster::patch_status(&quotas, "none", status("0")).await;
    let owner = pod(&stage, "p1").await;
    cluster.event_with("p1", "FailedBinding", "exceeded quota: none").await;
    patch(&quotas, "none", json!({ "spec": { "hard": { "persistentvolumeclaims": "5" } } })).await;
    test_support::cluster::patch_status(&quotas, "none", status("5")).await;
    claim_of(&stage, &owner).await;
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
}

async fn crashed(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    for (number, point) in CrashPoint::ALL.into_iter().enumerate() {
        let daemon = start(&stage).await;
        let caught = stage.proxy.crash_at(stage.proxy.counted() + 1, point);
        let owner = pod(&stage, &format!("p{number}")).await;
        caught.reached().await;
        daemon.kill();
        stage.proxy.thaw();
        let daemon = start(&stage).await;
        claim_of(&stage, &owner).await;
        daemon.kill();
    }
    let claims = cluster.namespaced::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    assert_eq!(claims.items.len(), CrashPoint::ALL.len());
}

/// Stand-in for the garbage collector: deletes claims whose pod is gone.
async fn collect(cluster: Cluster) {
    let (pods, claims) = (cluster.namespaced::<Pod>(), cluster.namespaced::<PersistentVolumeClaim>());
    loop {
        let all = claims.list(&ListParams::default()).await.unwrap();
        let living = pods.list(&ListParams::default()).await.unwrap();
        let uids: Vec<_> = living.items.iter().map(|pod| pod.metadata.uid.as_deref().unwrap()).collect();
        for claim in all.items {
            let owners = claim.metadata.owner_references.unwrap_or_default();
            if !owners.iter().any(|owner| uids.contains(&owner.uid.as_str())) {
                cluster.delete_claim(&claim.metadata.name.unwrap()).await;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Pods come, are made anew under their names, and lose their claims, while a third of all writes goes wrong.
async fn stormy(stage: Stage) {
    const PODS: usize = 8;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let _daemon = start(&stage).await;
    let collecting = tokio::spawn(collect(cluster.clone()));
    stage.proxy.begin(&Storm::new(seed()));
    let mut pods = Vec::new();
    for round in 0..6 {
        for number in 0..PODS {
            let name = format!("p{number}");
            if round > 0 {
                cluster.remove_pod(&name).await;
            }
            pods.push(pod(&stage, &name).await);
            // A person, before the daemon has seen the new pod, or after.
            if number % 3 == 0 {
                cluster.delete_claim(&format!("{name}-data")).await;
            }
        }
        if round % 2 == 1 {
            claim_of(&stage, pods.last().unwrap()).await;
        }
    }
    assert!(stage.proxy.calm() > 0, "this was no storm");
    for owner in pods.split_off(pods.len() - PODS) {
        claim_of(&stage, &owner).await;
    }
    collecting.abort();
}

async fn replicas(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let launch = Launch::replica("default").with(CONTROLLERS);
    let first = stage.start_daemon(&launch, &stage.proxy).await;
    let one = pod(&stage, "p1").await;
    claim_of(&stage, &one).await;
    let second = stage.start_daemon(&launch, &stage.proxy).await;
    first.kill();
    let two = pod(&stage, "p2").await;
    claim_of(&stage, &two).await;
    assert_eq!(created(&stage), 2, "one for each pod");
    let page: Value = serde_json::from_str(&second.page("/debug/ephemeral-volumes").await).unwrap();
    assert_eq!(page["waiting"], json!([]));
}
