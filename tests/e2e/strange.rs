//! What people and other controllers do in sequences that nobody plans: objects are made anew in another form, edited
//! crosswise, or go with their owner, and the daemon is away in between.

use http::Method;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use test_support::{
    actors::{Attacher, AttacherBehaviour, attachment_name},
    cluster::{
        Cluster, DRIVER, NAMESPACE, VolumeShape, attached, create, patch, patch_status, unique_name, until,
    },
    daemon::{Daemon, Launch},
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    let collects = "The garbage collector is real there.";
    vec![
        story("strange_s44_s45_volumes_whose_claims_were_swapped_are_given_back", swapped),
        story("strange_s43_a_disk_gets_its_zone_while_it_is_mounted", zone),
        story("strange_s16_a_driver_stops_and_starts_to_need_attaching", flips),
        story("strange_names_of_every_length_and_form", names)
            .also_real("kube-apiserver validates names, also those of events."),
        story("strange_s50_s52_a_pod_goes_after_the_claims_that_it_owns", foreground).only_real(collects),
        story("strange_a_namespace_goes_with_all_that_is_in_it", namespace).only_real(collects),
    ]
}

/// A daemon with all seven controllers.
async fn start(stage: &Stage) -> Daemon {
    stage.start_daemon(&Launch::alone().with("--controllers=storage"), &stage.proxy).await
}

/// The same after it was killed, and people acted.
async fn away(stage: &Stage, daemon: Daemon, act: impl Future<Output = ()>) -> Daemon {
    daemon.kill();
    act.await;
    start(stage).await
}

/// What the kubelet of a node reports.
async fn in_use(cluster: &Cluster, node: &str, volumes: &[String]) {
    patch_status::<Node>(&cluster.all(), node, json!({ "status": { "volumesInUse": volumes } })).await;
}

/// What the kubelet of a pod reports.
async fn runs(cluster: &Cluster, pod: &str) {
    let main = json!({
        "name": "main", "image": "", "imageID": "", "restartCount": 0, "ready": true, "state": { "running": {} },
    });
    let status = json!({ "status": { "phase": "Running", "containerStatuses": [main] } });
    patch_status(&cluster.namespaced::<Pod>(), pod, status).await;
}

/// Something later that shows the daemon has gone on.
async fn later(cluster: &Cluster, number: usize) {
    let name = |what: &str| format!("later-{what}{number}");
    let (node, pod) = (name("n"), name("p"));
    cluster.node(&node).await;
    let iscsi = json!({ "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-11.example:disk", "lun": number });
    create::<Pod>(&cluster.namespaced(), pod_of(&pod, &node, &json!([{ "name": "data", "iscsi": iscsi }])))
        .await;
    let is_listed = |node: Option<&Node>| node.is_some_and(|node| attached(node).len() == 1);
    until(cluster.all(), &node, "lists the volume", is_listed).await;
    cluster.remove_pod(&pod).await;
}

fn pod_of(name: &str, node: &str, volumes: &Value) -> Value {
    let containers = json!([{ "name": "main", "image": "example.com/none" }]);
    let spec = json!({ "nodeName": node, "containers": containers, "volumes": volumes });
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn of_claim(name: &str) -> Value {
    json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })
}

fn ephemeral(name: &str) -> Value {
    json!({ "name": name, "ephemeral": { "volumeClaimTemplate": { "spec": claim_spec("fast") } } })
}

fn claim_spec(class: &str) -> Value {
    let resources = json!({ "requests": { "storage": "1Gi" } });
    json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": resources })
}

async fn attachments_on(cluster: &Cluster, node: &str) -> Vec<VolumeAttachment> {
    let all = cluster.all::<VolumeAttachment>().list(&ListParams::default()).await.unwrap().items;
    all.into_iter().filter(|attachment| attachment.spec.node_name == node).collect()
}

/// Each of two volumes is pointed at the claim of the other: under running pods, while the daemon is away, and again when
/// it is back.
async fn swapped(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    let mut daemon = start(&stage).await;
    cluster.node("n3").await;
    for (volume, claim, pod, node) in [("v1", "c1", "p1", "n1"), ("v2", "c2", "p2", "n2")] {
        cluster.node(node).await;
        cluster.bound_pair(volume, claim).await;
        cluster.pod(pod, node, &[claim]).await;
        cluster.running(pod).await;
    }
    let before = stage.history().await.len();
    let volumes = cluster.all::<PersistentVolume>();
    let claim_of = async |volume: &str| volumes.get(volume).await.unwrap().spec.unwrap().claim_ref.unwrap();
    let (one, other) = (claim_of("v1").await, claim_of("v2").await);
    let point = async |volume: &str, claim: &k8s_openapi::api::core::v1::ObjectReference| {
        let reference = json!({ "name": claim.name, "uid": claim.uid });
        patch(&volumes, volume, json!({ "spec": { "claimRef": reference } })).await;
    };
    let swap = async || {
        point("v1", &other).await;
        point("v2", &one).await;
    };
    for is_away in [true, false] {
        if is_away {
            daemon = away(&stage, daemon, swap()).await;
        } else {
            swap().await;
        }
        for (volume, claim) in [("v1", &one), ("v2", &other)] {
            until(volumes.clone(), volume, "it is given back", |volume: Option<&PersistentVolume>| {
                let reference = volume.and_then(|volume| volume.spec.as_ref()?.claim_ref.as_ref());
                reference.is_some_and(|reference| reference.uid == claim.uid && reference.name == claim.name)
            })
            .await;
        }
        cluster.bound("c1", "v1").await;
        cluster.bound("c2", "v2").await;
    }
    for change in stage.history().await.iter().skip(before) {
        let phase = change.after.as_ref().map(|after| &after["status"]["phase"]);
        assert_ne!(phase, Some(&json!("Lost")), "{}", change.name);
        assert_ne!(change.resource, "volumeattachments", "nothing is taken from a running pod");
    }
    for (claim, pod, next) in [("c1", "p1", "q1"), ("c2", "p2", "q2")] {
        cluster.delete_pod(pod).await;
        cluster.pod(next, "n3", &[claim]).await;
        cluster.running(next).await;
    }
}

/// The handle of an in-tree disk has its zone in it: another volume, for all that the API shows.
async fn zone(stage: Stage) {
    const DRIVER: &str = "pd.csi.storage.gke.io";
    let cluster = &stage.cluster;
    let daemon = start(&stage).await;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.claim_for("c1", "v1").await;
    let spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "gcePersistentDisk": { "pdName": "disk" }, "claimRef": { "namespace": NAMESPACE, "name": "c1" },
    });
    let volumes = cluster.all::<PersistentVolume>();
    create(&volumes, json!({ "metadata": { "name": "v1" }, "spec": spec })).await;
    cluster.bound("c1", "v1").await;
    let handle = |zone: &str| format!("projects/UNSPECIFIED/zones/{zone}/disks/disk");
    let attach = async |handle: &str, node: &str| {
        let (attachments, name) = (cluster.all::<VolumeAttachment>(), attachment_name(handle, DRIVER, node));
        until(attachments.clone(), &name, "is created", |attachment| attachment.is_some()).await;
        patch_status(&attachments, &name, json!({ "status": { "attached": true } })).await;
        let listed = format!("kubernetes.io/csi/{DRIVER}^{handle}");
        let is_listed = |node: Option<&Node>| node.is_some_and(|node| attached(node).contains(&listed));
        until(cluster.all(), node, "lists the volume", is_listed).await;
        listed
    };
    cluster.pod("p1", "n1", &["c1"]).await;
    let listed = attach(&handle("UNSPECIFIED"), "n1").await;
    in_use(cluster, "n1", std::slice::from_ref(&listed)).await;
    runs(cluster, "p1").await;

    let label = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "us-a" } } });
    let daemon = away(&stage, daemon, async { drop(patch(&volumes, "v1", label).await) }).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    later(cluster, 1).await;
    cluster.remove_pod("p1").await;
    later(cluster, 2).await;
    assert_eq!(attached(&cluster.all::<Node>().get("n1").await.unwrap()), [listed], "it is mounted");
    assert!(attachments_on(cluster, "n2").await.is_empty());
    // It dies between the list and the deletion: neither list nor volume explain the attachment's name any more.
    let caught = stage.proxy.drop_unsent(|write| write.is(&Method::DELETE, "/volumeattachments/"));
    in_use(cluster, "n1", &[]).await;
    caught.reached().await;
    let _daemon = away(&stage, daemon, async {}).await;
    attach(&handle("us-a"), "n2").await;
    assert!(attachments_on(cluster, "n1").await.is_empty());
}

/// What is mounted stays attached when the driver needs it no longer, and holds when it needs it again.
async fn flips(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    let drivers = cluster.all::<CSIDriver>();
    let needs = async |is_needed: bool| {
        drivers.delete(DRIVER, &DeleteParams::default()).await.ok();
        let spec = json!({ "attachRequired": is_needed });
        create(&drivers, json!({ "metadata": { "name": DRIVER }, "spec": spec })).await;
    };
    needs(true).await;
    let daemon = start(&stage).await;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    in_use(cluster, "n1", &[unique_name("v1")]).await;
    runs(cluster, "p1").await;
    let stays = async || {
        let attachment = cluster.attachment_now("v1", "n1").await;
        assert!(attachment.is_some_and(|attachment| attachment.metadata.deletion_timestamp.is_none()));
        assert!(cluster.attachment_now("v1", "n2").await.is_none());
    };

    let _daemon = away(&stage, daemon, needs(false)).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    runs(cluster, "p2").await;
    cluster.remove_pod("p1").await;
    later(cluster, 1).await;
    stays().await;
    needs(true).await;
    later(cluster, 2).await;
    stays().await;
    in_use(cluster, "n1", &[]).await;
    cluster.published("n2", &["v1"]).await;
    cluster.detached("v1", "n1").await;
}

/// 253 characters, digits and dots; a driver in capitals, and a handle that looks like everything.
async fn names(stage: Stage) {
    const DRIVER: &str = "CSI.Example.COM";
    const HANDLE: &str = "a^b c/\u{fc}\n%2F'\"\u{1f4be}^";
    let cluster = &stage.cluster;
    let _attacher = Attacher::start(cluster.client.clone(), DRIVER, AttacherBehaviour::default());
    let _kubelets = stage.kubelets();
    let daemon = start(&stage).await;
    let long = |first: &str| format!("{first}.{}", ["0123456789-x"; 20].join("."))[..253].to_owned();
    let [volume, claim, class, one, other] = ["0", "1", "2.3", "4-p", "5-p"].map(long);
    let nodes = ["10.0.0.1", "n2"].map(long);
    for node in &nodes {
        cluster.node(node).await;
    }
    // The annotation is the class, whatever the field says.
    let meta = |name: &str| json!({ "name": name, "annotations": { "volume.beta.kubernetes.io/storage-class": class } });
    let spec = json!({
        "capacity": { "storage": "1e9" }, "accessModes": ["ReadWriteOncePod"], "storageClassName": "other",
        "volumeMode": "Block", "csi": { "driver": DRIVER, "volumeHandle": HANDLE },
    });
    create::<PersistentVolume>(&cluster.all(), json!({ "metadata": meta(&volume), "spec": spec })).await;
    let spec = json!({
        "accessModes": ["ReadWriteOncePod"], "volumeMode": "Block",
        "resources": { "requests": { "storage": "999999999" } },
    });
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    create(&claims, json!({ "metadata": meta(&claim), "spec": spec })).await;
    cluster.bound(&claim, &volume).await;
    let pod = async |name: &str, node: &str| {
        let data = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
        create::<Pod>(&cluster.namespaced(), pod_of(name, node, &data)).await;
    };
    pod(&one, &nodes[0]).await;
    cluster.running(&one).await;
    cluster.event(&one, "SuccessfulAttachVolume").await;
    let daemon = away(&stage, daemon, pod(&other, &nodes[1])).await;
    cluster.event(&other, "HeldByNode").await;
    cluster.delete_pod(&one).await;
    cluster.running(&other).await;
    let _daemon = away(&stage, daemon, cluster.delete_pod(&other)).await;
    let name = attachment_name(HANDLE, DRIVER, &nodes[1]);
    until(cluster.all(), &name, "is gone", |it: Option<&VolumeAttachment>| it.is_none()).await;
    claims.delete(&claim, &DeleteParams::default()).await.unwrap();
    cluster.volume_phase(&volume, "Released").await;
}

/// The pod waits for its claim to go, which a pod on a node keeps from going, until its kubelet has had its last word.
async fn foreground(stage: Stage) {
    let _collector = stage.real().plane.controller_manager(&["garbage-collector-controller"], &[]);
    let (_attacher, _provisioner) = (stage.attacher(), stage.provisioner());
    let cluster = &stage.cluster;
    let mut daemon = start(&stage).await;
    cluster.node("n1").await;
    cluster.class("fast", "Immediate").await;
    let (pods, claims) = (cluster.namespaced::<Pod>(), cluster.namespaced::<PersistentVolumeClaim>());
    for is_away in [false, true] {
        let kubelets = stage.kubelets();
        create(&pods, pod_of("p1", "n1", &json!([ephemeral("data")]))).await;
        cluster.running("p1").await;
        let volume = claims.get("p1-data").await.unwrap().spec.unwrap().volume_name.unwrap();
        // The kubelet is silent until both are being deleted.
        drop(kubelets);
        pods.delete("p1", &DeleteParams::foreground()).await.unwrap();
        let is_going = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        };
        until(claims.clone(), "p1-data", "is being deleted", is_going).await;
        if is_away {
            daemon = away(&stage, daemon, async {}).await;
        }
        let _kubelets = stage.kubelets();
        cluster.pod_gone("p1").await;
        cluster.volume_gone(&volume).await;
        cluster.detached(&volume, "n1").await;
        assert!(claims.get_opt("p1-data").await.unwrap().is_none(), "no claim is made for a pod that goes");
    }
}

/// All goes in the order in which others delete it; events are refused meanwhile. The next namespace of that name has other
/// claims of the same names.
async fn namespace(stage: Stage) {
    const NAME: &str = "goes";
    let others = ["garbage-collector-controller", "namespace-controller"];
    let _others = stage.real().plane.controller_manager(&others, &[]);
    let (_attacher, _provisioner, _kubelets) = (stage.attacher(), stage.provisioner(), stage.kubelets());
    let cluster = &stage.cluster;
    let mut daemon = start(&stage).await;
    cluster.node("n1").await;
    cluster.class("fast", "Immediate").await;
    let (namespaces, volumes) = (cluster.all::<Namespace>(), cluster.all::<PersistentVolume>());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), NAME);
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAME);
    for kept in ["v1", "v2"] {
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAME}}}}}")).await;
        let reserved = json!({ "namespace": NAME, "name": "kept" });
        cluster.shaped_volume(kept, &VolumeShape::default(), reserved).await;
        for (name, class) in [("kept", ""), ("made", "fast")] {
            create(&claims, json!({ "metadata": { "name": name }, "spec": claim_spec(class) })).await;
        }
        let all = json!([of_claim("kept"), of_claim("made"), ephemeral("own")]);
        create(&pods, pod_of("p1", "n1", &all)).await;
        let runs = |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
        };
        until(pods.clone(), "p1", "runs", runs).await;
        let made = volumes.list(&ListParams::default()).await.unwrap().items;
        let made: Vec<String> = made.into_iter().filter_map(|volume| volume.metadata.name).collect();
        namespaces.delete(NAME, &DeleteParams::default()).await.unwrap();
        if kept == "v2" {
            daemon = away(&stage, daemon, async {}).await;
        }
        until(namespaces.clone(), NAME, "is gone", |it: Option<&Namespace>| it.is_none()).await;
        cluster.volume_phase(kept, "Released").await;
        for volume in made.iter().filter(|name| name.starts_with("pvc-")) {
            cluster.volume_gone(volume).await;
        }
        cluster.published("n1", &[]).await;
        cluster.detached(kept, "n1").await;
    }
}
