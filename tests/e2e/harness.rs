//! The test support itself, with a test in the daemon's role: if these fail, the stories mean
//! nothing.

use http::{Method, StatusCode};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use test_support::{
    actors::attachment_name,
    attributes_class::VolumeAttributesClass,
    cluster::{Cluster, DRIVER, ELSEWHERE, create, patch, patch_status, unique_name, until},
    history::Change,
    writes,
};
use testbed::faults::{CrashPoint, Write};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("harness_stand_ins_follow_a_controller", stand_ins_follow_a_controller),
        story("harness_checkers_see_wrongdoing", checkers_see_wrongdoing)
            .also_real("Who wrote what is in the audit log there, and what there was in etcd."),
        story("harness_checkers_know_who_did_it", checkers_know_who_did_it)
            .also_real("Who wrote what is in the audit log there, and what there was in etcd."),
        story("harness_checkers_see_wrong_writes", checkers_see_wrong_writes),
        story("harness_proxy_disturbs_one_write", proxy_disturbs_one_write)
            .also_real("The proxy stands between sockets there."),
        story("harness_proxy_stops_the_world", proxy_stops_the_world),
        story("harness_provisioner_serves_a_binder", provisioner_serves_a_binder),
    ]
}

pub async fn attach_by_hand(cluster: &Cluster, volume: &str, node: &str) {
    let attachment = json!({
        "metadata": { "name": attachment_name(volume, DRIVER, node) },
        "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": volume } },
    });
    create(&cluster.all::<VolumeAttachment>(), attachment).await;
}

pub async fn publish_by_hand(cluster: &Cluster, node: &str, volumes: &[&str]) {
    let list: Vec<_> =
        volumes.iter().map(|volume| json!({ "name": unique_name(volume), "devicePath": "" })).collect();
    patch_status(&cluster.all::<Node>(), node, json!({ "status": { "volumesAttached": list } })).await;
}

async fn delete_attachment_by_hand(cluster: &Cluster, volume: &str, node: &str) {
    let name = attachment_name(volume, DRIVER, node);
    cluster.all::<VolumeAttachment>().delete(&name, &DeleteParams::default()).await.unwrap();
}

pub async fn attached_by_hand(stage: &Stage, volume: &str, node: &str) {
    let name = attachment_name(volume, DRIVER, node);
    until(stage.cluster.all(), &name, "the attacher attaches", |attachment: Option<&VolumeAttachment>| {
        attachment.and_then(|attachment| attachment.status.as_ref()).is_some_and(|status| status.attached)
    })
    .await;
}

/// Whether a node reports a volume in use.
async fn in_use(stage: &Stage, volume: &str, node: &str, expected: bool) {
    let name = unique_name(volume);
    let what = format!("{node} reports {volume} in use: {expected}");
    until(stage.cluster.all(), node, &what, |node: Option<&Node>| {
        let list = node.and_then(|node| node.status.as_ref()?.volumes_in_use.as_ref());
        list.is_some_and(|list| list.contains(&name)) == expected
    })
    .await;
}

async fn stand_ins_follow_a_controller(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;

    in_use(&stage, "v1", "n1", true).await;
    attach_by_hand(cluster, "v1", "n1").await;
    attached_by_hand(&stage, "v1", "n1").await;
    publish_by_hand(cluster, "n1", &["v1"]).await;
    cluster.running("p1").await;

    cluster.delete_pod("p1").await;
    cluster.pod_gone("p1").await;
    in_use(&stage, "v1", "n1", false).await;
    publish_by_hand(cluster, "n1", &[]).await;
    delete_attachment_by_hand(cluster, "v1", "n1").await;
    cluster.detached("v1", "n1").await;
}

/// Wrongdoing by the daemon's account is told.
async fn checkers_see_wrongdoing(stage: Stage) {
    for rule in [
        "S1 ", "S2 ", "S3 ", "S7 ", "S10 ", "S13 ", "S18 ", "S21 ", "S22 ", "S34 ", "S35 ", "S41 ", "S49 ",
        "S50 ", "S51 ",
    ] {
        stage.expects(rule);
    }
    let hands = Cluster::new(stage.daemons_client());
    do_wrong(&stage, &hands).await;

    // Told in a namespace whose users must not learn its name.
    stage.cluster.make_elsewhere().await;
    let told = json!({
        "metadata": { "name": "told" },
        "involvedObject": { "kind": "Pod", "namespace": ELSEWHERE, "name": "p" },
        "message": "it is reserved for of-v1.", "source": { "component": "persistentvolume-controller" },
    });
    create::<Event>(&Api::namespaced(hands.client.clone(), ELSEWHERE), told).await;
}

/// The same by another's is not held against the daemon. (Of events the audit log tells nothing: who is named in them has
/// told them.)
async fn checkers_know_who_did_it(stage: Stage) {
    do_wrong(&stage, &stage.cluster).await;
}

/// Does by these hands what breaks promises.
async fn do_wrong(stage: &Stage, hands: &Cluster) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    for volume in ["v1", "v2", "v3"] {
        cluster.pair_bound_by_hand(volume, &format!("of-{volume}")).await;
        attach_by_hand(cluster, volume, "n1").await;
        attached_by_hand(stage, volume, "n1").await;
    }
    assert_eq!(stage.violations().await, Vec::<String>::new());

    // An exclusive volume on two nodes.
    attach_by_hand(hands, "v1", "n2").await;
    // Deleted while published.
    publish_by_hand(cluster, "n1", &["v2", "v3"]).await;
    delete_attachment_by_hand(hands, "v2", "n1").await;
    // Deleted while in use.
    let in_use = json!({ "status": { "volumesInUse": [unique_name("v3")] } });
    patch_status(&cluster.all::<Node>(), "n1", in_use).await;
    publish_by_hand(cluster, "n1", &["v2"]).await;
    delete_attachment_by_hand(hands, "v3", "n1").await;
    // Published without being attached.
    publish_by_hand(hands, "n1", &["v2", "nothing"]).await;
    // A second claim that is Bound to a volume.
    cluster.claim("c4").await;
    let claims = hands.namespaced::<PersistentVolumeClaim>();
    patch(&claims, "c4", json!({ "spec": { "volumeName": "v3" } })).await;
    patch_status(&claims, "c4", json!({ "status": { "phase": "Bound" } })).await;
    // A claim of no pod, and a resizer for a volume of a driver.
    create(
        &claims,
        json!({ "metadata": { "name": "nobodys" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        }}),
    )
    .await;
    let resizer = json!({ "volume.kubernetes.io/storage-resizer": "csi.example.com" });
    patch_status(&claims, "of-v1", json!({ "metadata": { "annotations": resizer } })).await;
    // A class that a claim has named for a while loses its finalizer.
    let finalizers = |names: &[&str]| json!({ "metadata": { "finalizers": names } });
    let (classes, own) = (hands.all::<VolumeAttributesClass>(), cluster.all::<VolumeAttributesClass>());
    cluster.attributes_class("gold").await;
    patch(&own, "gold", finalizers(&["kubernetes.io/vac-protection", "example.com/other"])).await;
    cluster.claim_of_attributes_class("c5", "gold").await;
    let nodes = cluster.all::<Node>();
    for count in 0..20 {
        patch(&nodes, "n1", json!({ "metadata": { "annotations": { "count": count.to_string() } } })).await;
    }
    own.delete("gold", &DeleteParams::default()).await.unwrap();
    patch(&classes, "gold", finalizers(&["example.com/other"])).await;
}

/// Everything here is written by hand, and taken for the daemon's.
async fn checkers_see_wrong_writes(stage: Stage) {
    let cluster = &stage.cluster;
    let (volumes, claims) =
        (cluster.all::<PersistentVolume>(), cluster.namespaced::<PersistentVolumeClaim>());
    let wrong = async || {
        let history = stage.history().await;
        // But for claims: these are people's to create.
        let is_claim =
            |change: &&Change| change.resource == "persistentvolumeclaims" && change.before.is_none();
        let everything =
            history.iter().filter(|change| !is_claim(change)).map(|change| change.revision).collect();
        writes::check(&history, &everything)
    };
    for number in 1..=3 {
        cluster.pair_bound_by_hand(&format!("v{number}"), &format!("c{number}")).await;
    }
    assert_eq!(wrong().await, Vec::<String>::new());

    let uid = async |claim: &str| claims.get(claim).await.unwrap().metadata.uid;
    let give = |claim: &str, uid: Option<String>| {
        let of =
            json!({ "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": uid });
        json!({ "spec": { "claimRef": of } })
    };
    let ask = |provisioner: &str| json!({ "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": provisioner } } });
    patch(&volumes, "v1", json!({ "metadata": { "labels": { "a": "b" } } })).await;
    patch(&volumes, "v3", json!({ "metadata": { "finalizers": ["example.com/mine"] } })).await;
    patch_status(&claims, "c1", json!({ "status": { "capacity": { "storage": "2Gi" } } })).await;
    patch(&volumes, "v2", give("c1", uid("c1").await)).await;
    patch_status(&volumes, "v1", json!({ "status": { "phase": "Failed" } })).await;
    patch(&volumes, "v1", json!({ "spec": { "claimRef": null } })).await;
    create(&cluster.all::<CSIDriver>(), json!(driver("one"))).await;
    patch(&claims, "c3", ask("one")).await;
    patch(&claims, "c3", ask("another")).await;
    cluster.class("late", "WaitForFirstConsumer").await;
    let made = json!({
        "metadata": { "name": "c4" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    create(&claims, made).await;
    cluster.volume("v4").await;
    patch(&volumes, "v4", give("c4", uid("c4").await)).await;
    patch(&claims, "c4", json!({ "spec": { "storageClassName": "late" } })).await;
    patch(&claims, "c4", ask("one")).await;
    // Released and Lost although both are there; a claim that names what does not name it, and then something else.
    patch_status(&volumes, "v3", json!({ "status": { "phase": "Released" } })).await;
    patch_status(&claims, "c3", json!({ "status": { "phase": "Lost" } })).await;
    cluster.claim("c5").await;
    patch(&claims, "c5", json!({ "spec": { "volumeName": "v3" } })).await;
    patch_status(&claims, "c5", json!({ "status": { "phase": "Bound" } })).await;
    // Named after another volume.
    let misnamed = json!({
        "metadata": { "name": attachment_name("v1", DRIVER, "n1") },
        "spec": { "attacher": DRIVER, "nodeName": "n1", "source": { "persistentVolumeName": "v3" } },
    });
    create(&cluster.all::<VolumeAttachment>(), misnamed).await;
    let seen = wrong().await;
    for rule in (19..=34).chain([9]) {
        let rule = format!("S{rule} ");
        // The server keeps the name of a claim's volume.
        let expected = rule != "S20 ";
        assert_eq!(seen.iter().any(|line| line.starts_with(&rule)), expected, "{rule}: {seen:#?}");
    }
    patch(&volumes, "v3", json!({ "metadata": { "finalizers": null } })).await;
}

/// The daemon's place is taken by a client that goes through the proxy, and writes drivers, which no
/// controller reads here.
fn proxied_drivers(stage: &Stage) -> Api<CSIDriver> {
    Api::all(stage.proxied_client())
}

fn driver(name: &str) -> CSIDriver {
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": {} })).unwrap()
}

async fn proxy_disturbs_one_write(stage: Stage) {
    let direct = stage.cluster.all::<CSIDriver>();
    let proxied = proxied_drivers(&stage);
    let is_create = |write: &Write| write.is(&Method::POST, "/csidrivers");
    let parameters = PostParams::default();

    let held = stage.proxy.hold(is_create);
    let creating = tokio::spawn({
        let (proxied, parameters) = (proxied.clone(), parameters.clone());
        async move { proxied.create(&parameters, &driver("held")).await }
    });
    assert_eq!(held.reached().await.body["metadata"]["name"], "held");
    assert!(direct.get_opt("held").await.unwrap().is_none());
    held.release();
    creating.await.unwrap().unwrap();
    assert!(direct.get_opt("held").await.unwrap().is_some());

    let dropped = stage.proxy.drop_unsent(is_create);
    proxied.create(&parameters, &driver("unsent")).await.unwrap_err();
    dropped.reached().await;
    assert!(direct.get_opt("unsent").await.unwrap().is_none());

    let _lost = stage.proxy.drop_answer(is_create);
    proxied.create(&parameters, &driver("lost")).await.unwrap_err();
    assert!(direct.get_opt("lost").await.unwrap().is_some());

    let busy = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503 });
    let _answered = stage.proxy.answer(is_create, StatusCode::SERVICE_UNAVAILABLE, busy);
    proxied.create(&parameters, &driver("answered")).await.unwrap_err();
    assert!(direct.get_opt("answered").await.unwrap().is_none());

    let statuses: Vec<_> =
        stage.proxy.writes().iter().map(|write| write.status.map(|s| s.as_u16())).collect();
    assert_eq!(statuses, [Some(201), None, Some(201), Some(503)]);
}

async fn proxy_stops_the_world(stage: Stage) {
    let direct = stage.cluster.all::<CSIDriver>();
    let parameters = PostParams::default();
    for (number, point) in CrashPoint::ALL.into_iter().enumerate() {
        let name = format!("crash-{number}");
        let counted = stage.proxy.counted();
        let caught = stage.proxy.crash_at(counted + 2, point);
        let proxied = proxied_drivers(&stage);
        proxied.create(&parameters, &driver(&format!("{name}-1"))).await.unwrap();
        let second = tokio::spawn({
            let (proxied, parameters, name) = (proxied.clone(), parameters.clone(), name.clone());
            async move { proxied.create(&parameters, &driver(&format!("{name}-2"))).await }
        });
        caught.reached().await;
        let third = tokio::spawn({
            let (proxied, parameters, name) = (proxied.clone(), parameters.clone(), name.clone());
            async move { proxied.create(&parameters, &driver(&format!("{name}-3"))).await }
        });
        // Reads still pass.
        let committed = proxied.get_opt(&format!("{name}-2")).await.unwrap().is_some();
        assert_eq!(committed, point != CrashPoint::BeforeSending, "{point:?}");
        if point == CrashPoint::AfterAnswer {
            second.await.unwrap().unwrap();
        } else {
            assert!(!second.is_finished());
            second.abort();
        }
        assert!(!third.is_finished());
        third.abort();
        stage.proxy.thaw();
        assert!(direct.get_opt(&format!("{name}-3")).await.unwrap().is_none());
    }
}

async fn provisioner_serves_a_binder(stage: Stage) {
    let _provisioner = stage.provisioner();
    let cluster = &stage.cluster;
    cluster.class("fast", "WaitForFirstConsumer").await;
    let shape = test_support::cluster::VolumeShape { class: "fast", ..Default::default() };
    let claim = cluster.shaped_claim("c1", &shape).await;
    let claims = cluster.namespaced::<k8s_openapi::api::core::v1::PersistentVolumeClaim>();
    let marks = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/storage-provisioner": DRIVER,
        "volume.kubernetes.io/selected-node": "n1",
    }}});
    patch(&claims, "c1", marks).await;
    let name = format!("pvc-{}", claim.metadata.uid.unwrap());
    let volumes = cluster.all::<PersistentVolume>();
    until(volumes.clone(), &name, "the provisioner makes a volume", |volume: Option<&PersistentVolume>| {
        volume.is_some()
    })
    .await;

    cluster.delete_claim("c1").await;
    patch_status(&volumes, &name, json!({ "status": { "phase": "Released" } })).await;
    let what = "the provisioner lets go of the deleted volume";
    until(volumes.clone(), &name, what, |volume: Option<&PersistentVolume>| {
        volume.is_none_or(|volume| {
            let finalizers = volume.metadata.finalizers.iter().flatten();
            volume.metadata.deletion_timestamp.is_some()
                && !finalizers.into_iter().any(|name| name.starts_with("external-provisioner"))
        })
    })
    .await;
}
