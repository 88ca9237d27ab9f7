//! The protection controllers, ours in place of the stock ones: what is used stays, and what is not goes.

use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::DeleteParams;
use serde_json::json;
use test_support::{
    attributes_class::VolumeAttributesClass,
    audit::{DAEMON, Entry},
    cluster::{patch, until},
    daemon::Launch,
};

use crate::{
    replicas::{new_holder, replica},
    stage::{Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("protection_of_what_is_used", protected)
            .also_real("kube-apiserver removes what has lost its last finalizer."),
        story("protection_of_attributes_classes", attributes_classes)
            .also_real("kube-apiserver validates classes, and its audit log has the rights that are used."),
        story("protection_of_attributes_classes_by_the_next_leader", next_leader),
    ]
}

async fn protected(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let controllers =
        "--controllers=*,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller";
    let daemon = stage.start_daemon(&Launch::alone().with(controllers), &stage.proxy).await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    let (volumes, claims) =
        (cluster.all::<PersistentVolume>(), cluster.namespaced::<PersistentVolumeClaim>());
    let lists =
        || stage.requests().iter().filter(|entry| entry.verb == "list" && entry.resource == "pods").count();
    let before = lists();
    for (volume, claim) in [("v1", "c1"), ("v2", "c2")] {
        volumes.delete(volume, &DeleteParams::default()).await.unwrap();
        claims.delete(claim, &DeleteParams::default()).await.unwrap();
    }
    // No pod uses these: the claim goes, is found to be gone, and the volume after it.
    cluster.volume_gone("v2").await;
    assert!(claims.get_opt("c2").await.unwrap().is_none());
    let used = claims.get_opt("c1").await.unwrap().expect("a pod uses the claim");
    assert!(
        used.metadata.finalizers.is_some_and(|all| all.contains(&"kubernetes.io/pvc-protection".to_owned()))
    );
    assert!(volumes.get_opt("v1").await.unwrap().is_some(), "the volume is bound to it");
    assert_eq!(lists(), before + 1, "the pods are listed live before a claim goes, and not for one in use");

    cluster.remove_pod("p1").await;
    cluster.volume_gone("v1").await;
    drop(daemon);
}

/// How often the daemon has sent such a request.
fn sent(stage: &Stage, verb: &str, resource: &str) -> usize {
    let is_it = |entry: &Entry| entry.user == DAEMON && entry.verb == verb && entry.resource == resource;
    stage.requests().iter().filter(|entry| is_it(entry)).count()
}

async fn attributes_classes(stage: Stage) {
    let controllers = "--controllers=*,volumeattributesclass-protection-controller";
    let daemon = stage.start_daemon(&Launch::alone().with(controllers), &stage.proxy).await;
    let cluster = &stage.cluster;
    let classes = cluster.all::<VolumeAttributesClass>();
    for name in ["gold", "silver", "unused", "spare"] {
        cluster.attributes_class(name).await;
    }
    cluster.claim_of_attributes_class("c1", "gold").await;
    let (volumes, claims) =
        (cluster.all::<PersistentVolume>(), cluster.namespaced::<PersistentVolumeClaim>());
    cluster.volume("v1").await;
    patch(&volumes, "v1", json!({ "spec": { "volumeAttributesClassName": "silver" } })).await;
    let pairs =
        || ["persistentvolumeclaims", "persistentvolumes"].map(|resource| sent(&stage, "list", resource));

    // The one that nothing names goes after one list of each kind; of the others the tables show the use.
    let before = pairs();
    for name in ["gold", "silver", "unused"] {
        classes.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until(classes.clone(), "unused", "nothing names it", |class| class.is_none()).await;
    assert_eq!(pairs(), before.map(|count| count + 1));
    for name in ["gold", "silver"] {
        assert!(
            VolumeAttributesClass::is_protected(classes.get_opt(name).await.unwrap().as_ref()),
            "{name} is named"
        );
    }
    claims.delete("c1", &DeleteParams::default()).await.unwrap();
    patch(&claims, "c1", json!({ "metadata": { "finalizers": null } })).await;
    until(classes.clone(), "gold", "its claim is gone", |class| class.is_none()).await;
    patch(&volumes, "v1", json!({ "spec": { "volumeAttributesClassName": "spare" } })).await;
    until(classes.clone(), "silver", "its volume has another class", |class| class.is_none()).await;

    // Who takes the finalizer off has it put on again.
    patch(&classes, "spare", json!({ "metadata": { "finalizers": null } })).await;
    until(classes.clone(), "spare", "it is protected again", VolumeAttributesClass::is_protected).await;
    drop(daemon);
}

/// What the first leader saw to be in use, the next one lets go when it is not; and it waits for no use that ended before.
async fn next_leader(stage: Stage) {
    let controllers = "--controllers=*,volumeattributesclass-protection-controller";
    let (first_proxy, launch) = replica(&stage).await;
    let first = stage.start_daemon(&launch.with(controllers), &first_proxy).await;
    let holder = new_holder(&stage, "").await;
    let (second_proxy, launch) = replica(&stage).await;
    let _second = stage.start_daemon(&launch.with(controllers), &second_proxy).await;
    let cluster = &stage.cluster;
    let classes = cluster.all::<VolumeAttributesClass>();
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    for (class, claim) in [("gold", "c1"), ("silver", "c2")] {
        cluster.attributes_class(class).await;
        cluster.claim_of_attributes_class(claim, class).await;
        classes.delete(class, &DeleteParams::default()).await.unwrap();
    }
    // Its removal is on the way when the first one dies, and never lands.
    let caught = first_proxy.drop_unsent(|write| write.is(&Method::PATCH, "/volumeattributesclasses"));
    let end = async |claim: &str| {
        claims.delete(claim, &DeleteParams::default()).await.unwrap();
        patch(&claims, claim, json!({ "metadata": { "finalizers": null } })).await;
    };
    end("c1").await;
    caught.reached().await;
    first.kill();
    new_holder(&stage, &holder).await;
    until(classes.clone(), "gold", "the next leader has listed", |class| class.is_none()).await;
    assert!(VolumeAttributesClass::is_protected(classes.get_opt("silver").await.unwrap().as_ref()));
    end("c2").await;
    until(classes, "silver", "its claim is gone", |class| class.is_none()).await;
}
