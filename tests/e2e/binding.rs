//! Binding: claims and volumes find each other, in any order, and nothing waits for a timer.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};
use test_support::cluster::{NAMESPACE, VolumeShape, patch, until};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("bind_when_the_volume_comes_first", volume_first),
        story("bind_when_the_claim_comes_first", claim_first),
        story("bind_many_at_once", many)
            .also_real("Many answers of kube-apiserver come before its watch cache has what they say."),
        story("bind_takes_the_smallest_that_fits", smallest_fit),
        story("bind_keeps_a_volume_for_the_claim_it_names", prebound_volume),
        story("bind_to_the_volume_that_the_claim_names", prebound_claim),
        story("bind_a_pair_that_names_each_other_in_four_writes", prebound_pair),
        story("bind_what_is_provisioned", provisioned)
            .also_real("kube-apiserver validates what asks for a volume, and the volume that comes."),
        story("bind_waits_for_the_first_consumer", first_consumer),
        story("bind_by_a_class_that_is_only_a_label", label_class),
        story("bind_by_a_class_that_its_watch_has_yet_to_tell_of", unwatched_class)
            .also_real("A class is read live, as the daemon's role has to allow."),
        story("bind_then_attach_then_run_then_release", whole_life)
            .also_real("kube-apiserver validates, converts and defaults all that a volume goes through."),
    ]
}

async fn volume_first(stage: Stage) {
    let _daemon = stage.daemon().await;
    stage.cluster.volume("v1").await;
    stage.cluster.volume_phase("v1", "Available").await;
    stage.cluster.claim("c1").await;
    stage.cluster.bound("c1", "v1").await;

    let volume = stage.cluster.all::<PersistentVolume>().get("v1").await.unwrap();
    let claim = stage.cluster.namespaced::<PersistentVolumeClaim>().get("c1").await.unwrap();
    assert_eq!(volume.metadata.annotations.unwrap()["pv.kubernetes.io/bound-by-controller"], "yes");
    let annotations = claim.metadata.annotations.unwrap();
    assert_eq!(annotations["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(annotations["pv.kubernetes.io/bind-completed"], "yes");
    let status = claim.status.unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "1Gi");
    assert_eq!(status.access_modes.unwrap(), ["ReadWriteOnce"]);
}

/// The stock binder lets this claim wait for its next resync, up to 15 s. Here only an event can wake
/// it within the deadline: the safety sweep is minutes apart.
async fn claim_first(stage: Stage) {
    let _daemon = stage.daemon().await;
    stage.cluster.claim("c1").await;
    let event = stage.cluster.event("c1", "FailedBinding").await;
    assert_eq!(
        event.message.unwrap(),
        "no persistent volumes available for this claim and no storage class is set"
    );
    stage.cluster.volume("v1").await;
    stage.cluster.bound("c1", "v1").await;
}

async fn many(stage: Stage) {
    const COUNT: usize = 100;
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    // Both kinds at once, so that either comes first.
    let made = (0..COUNT).map(|number| async move {
        let (volume, claim) = (format!("v{number}"), format!("c{number}"));
        futures::join!(cluster.volume(&volume), cluster.claim(&claim));
    });
    join_all(made).await;
    let bound =
        (0..COUNT).map(|number| async move { cluster.claim_phase(&format!("c{number}"), "Bound").await });
    let claims = join_all(bound).await;
    let mut taken: Vec<String> =
        claims.into_iter().map(|claim| claim.spec.unwrap().volume_name.unwrap()).collect();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), COUNT);
    for volume in &taken {
        cluster.volume_phase(volume, "Bound").await;
    }
    // No other client writes to these objects, so nothing can be in the way.
    let refused: Vec<_> = stage
        .proxy
        .writes()
        .into_iter()
        .filter(|write| write.status.is_some_and(|status| !status.is_success()))
        .collect();
    assert!(refused.is_empty(), "{} refused writes, such as {:?}", refused.len(), refused.first());
}

async fn smallest_fit(stage: Stage) {
    let cluster = &stage.cluster;
    for (name, capacity) in [("v10", "10Gi"), ("v5", "5Gi"), ("v1", "1Gi")] {
        let shape = VolumeShape { capacity, ..VolumeShape::default() };
        cluster.shaped_volume(name, &shape, Value::Null).await;
    }
    let _daemon = stage.daemon().await;
    for name in ["v10", "v5", "v1"] {
        cluster.volume_phase(name, "Available").await;
    }
    cluster.shaped_claim("c1", &VolumeShape { capacity: "2Gi", ..VolumeShape::default() }).await;
    cluster.bound("c1", "v5").await;
}

async fn prebound_volume(stage: Stage) {
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    let claim_ref = json!({ "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "c2" });
    cluster.shaped_volume("v1", &VolumeShape::default(), claim_ref).await;
    cluster.volume_phase("v1", "Available").await;
    // Another claim that it would fit does not get it.
    cluster.claim("c1").await;
    cluster.event("c1", "FailedBinding").await;
    cluster.claim("c2").await;
    cluster.bound("c2", "v1").await;
    let volume = cluster.all::<PersistentVolume>().get("v1").await.unwrap();
    let annotations = volume.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key("pv.kubernetes.io/bound-by-controller"));
}

async fn prebound_claim(stage: Stage) {
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    cluster.claim_for("c1", "v2").await;
    cluster.volume("v1").await;
    cluster.volume_phase("v1", "Available").await;
    cluster.volume("v2").await;
    cluster.bound("c1", "v2").await;
    let annotations = claims.get("c1").await.unwrap().metadata.annotations.unwrap();
    assert!(!annotations.contains_key("pv.kubernetes.io/bound-by-controller"));
    cluster.volume_phase("v1", "Available").await;
}

/// A volume that names a claim that is there, whether the claim names it or not: nothing is left to choose,
/// and each step of the bind is one write.
async fn prebound_pair(stage: Stage) {
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    for (volume, claim, waits) in [("v1", "c1", "NamedVolumeMissing"), ("v2", "c2", "FailedBinding")] {
        if waits == "NamedVolumeMissing" {
            cluster.claim_for(claim, volume).await;
        } else {
            cluster.claim(claim).await;
        }
        cluster.event(claim, waits).await;
        let before = stage.proxy.writes().len();
        let claim_ref = json!({ "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": claim });
        cluster.shaped_volume(volume, &VolumeShape::default(), claim_ref).await;
        cluster.bound(claim, volume).await;

        let writes = stage.proxy.writes().into_iter().skip(before);
        let seen: Vec<_> =
            writes.map(|write| (write.path, write.status.map(|status| status.as_u16()))).collect();
        let volume = format!("/api/v1/persistentvolumes/{volume}");
        let claim = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{claim}");
        let expected = [volume.clone(), format!("{volume}/status"), claim.clone(), format!("{claim}/status")];
        assert_eq!(seen, expected.map(|path| (path, Some(200))));
    }
}

async fn provisioned(stage: Stage) {
    let _provisioner = stage.provisioner();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.class("fast", "Immediate").await;
    let shape = VolumeShape { class: "fast", ..VolumeShape::default() };
    let claim = cluster.shaped_claim("c1", &shape).await;
    let volume = format!("pvc-{}", claim.metadata.uid.unwrap());
    cluster.event("c1", "ExternalProvisioning").await;
    cluster.bound("c1", &volume).await;

    // Its policy is Delete: released, it is deleted by its provisioner.
    cluster.delete_claim("c1").await;
    let what = "the provisioner deletes the released volume";
    until(cluster.all(), &volume, what, |volume: Option<&PersistentVolume>| {
        volume.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some())
    })
    .await;
}

async fn first_consumer(stage: Stage) {
    let _provisioner = stage.provisioner();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.class("late", "WaitForFirstConsumer").await;
    let shape = VolumeShape { class: "late", ..VolumeShape::default() };
    // A volume that would fit: it is the scheduler's to choose.
    cluster.shaped_volume("v1", &shape, Value::Null).await;
    cluster.volume_phase("v1", "Available").await;
    let claim = cluster.shaped_claim("c1", &shape).await;
    let event = cluster.event("c1", "WaitForFirstConsumer").await;
    assert_eq!(event.message.unwrap(), "waiting for first consumer to be created before binding");

    let selected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n1" } } });
    patch(&cluster.namespaced::<PersistentVolumeClaim>(), "c1", selected).await;
    cluster.bound("c1", &format!("pvc-{}", claim.metadata.uid.unwrap())).await;
    cluster.volume_phase("v1", "Available").await;
}

/// S28: no object of that name could delay it, and the daemon makes sure of that first.
async fn label_class(stage: Stage) {
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    let shape = VolumeShape { class: "manual", ..VolumeShape::default() };
    cluster.shaped_volume("v1", &shape, Value::Null).await;
    cluster.shaped_claim("c1", &shape).await;
    cluster.bound("c1", "v1").await;
}

async fn whole_life(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    // The pod first, then what it waits for.
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.claim("c1").await;
    cluster.volume("v1").await;
    cluster.running("p1").await;
    cluster.published("n1", &["v1"]).await;
    cluster.delete_pod("p1").await;
    cluster.detached("v1", "n1").await;
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
}

/// S28: what a live read said of a class serves until the watch says more; it is not asked for again and again.
async fn unwatched_class(stage: Stage) {
    let _daemon = stage.daemon().await;
    stage.cluster.class("seen", "WaitForFirstConsumer").await;
    stage.cluster.shaped_claim("first", &VolumeShape { class: "seen", ..VolumeShape::default() }).await;
    stage.cluster.event("first", "WaitForFirstConsumer").await;

    stage.proxy.watches().delay("storageclasses");
    stage.cluster.class("unseen", "WaitForFirstConsumer").await;
    for claim in ["second", "third"] {
        stage.cluster.shaped_claim(claim, &VolumeShape { class: "unseen", ..VolumeShape::default() }).await;
        stage.cluster.event(claim, "WaitForFirstConsumer").await;
    }
    let reads = stage
        .requests()
        .into_iter()
        .filter(|entry| entry.verb == "get" && entry.resource == "storageclasses" && entry.name == "unseen")
        .count();
    assert!((1..=2).contains(&reads), "{reads} reads of the class");
    stage.proxy.watches().resume("storageclasses");
}
