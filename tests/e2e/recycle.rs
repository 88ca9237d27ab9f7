//! Recycling and the host-path plugin, which are off unless asked for: pods that empty volumes, and
//! directories of this machine.

use std::path::Path;

use futures::{StreamExt, TryStreamExt};
use http::Method;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use test_support::{
    cluster::{create, patch, patch_status, until, within_deadline},
    daemon::Launch,
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("recycle_empties_the_volume_and_gives_it_back", recycled)
            .also_real("kube-apiserver validates the recycler's pod, and its role has to allow it."),
        story("recycle_says_what_its_pod_died_of", failed),
        story("recycle_off_marks_the_volume_failed", off),
        story("host_path_is_made_bound_and_deleted", host_path)
            .also_real("kube-apiserver validates the volume that is made, and a role has to allow it."),
    ]
}

fn recycling() -> Launch {
    Launch::alone().with("--enable-recycler")
}

/// A volume that is recycled, bound to a claim that is then deleted.
async fn used_volume(stage: &Stage, name: &str) {
    let volume = json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "3Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Recycle",
            "storageClassName": "",
            "hostPath": { "path": format!("/data/{name}") },
        },
    });
    create(&stage.cluster.all::<PersistentVolume>(), volume).await;
    stage.cluster.claim("c1").await;
    stage.cluster.bound("c1", name).await;
    stage.cluster.delete_claim("c1").await;
}

/// Waits for a recycler pod that may run.
async fn recycler(stage: &Stage) -> Pod {
    let is_it = |pod: &Pod| {
        let spec = pod.spec.as_ref().unwrap();
        pod.name_any().starts_with("recycler-for-")
            && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
    };
    let pods = watcher(stage.cluster.namespaced::<Pod>(), watcher::Config::default()).applied_objects();
    let mut found = pods.try_filter(|pod| std::future::ready(is_it(pod))).boxed();
    let pod = within_deadline("a recycler pod may run", async { found.next().await.unwrap().unwrap() }).await;
    pod.unwrap_or_else(|late| panic!("{late}"))
}

async fn ends(stage: &Stage, pod: &Pod, status: Value) {
    patch_status(&stage.cluster.namespaced::<Pod>(), &pod.name_any(), json!({ "status": status })).await;
}

/// The answer to the first pod's creation is lost, so that pod is not trusted, and goes.
async fn recycled(stage: Stage) {
    let lost = stage.proxy.drop_answer(|write| write.method == Method::POST && write.path.ends_with("/pods"));
    let _daemon = stage.start_daemon(&recycling(), &stage.proxy).await;
    used_volume(&stage, "v1").await;
    let pod = recycler(&stage).await;
    assert!(lost.is_reached());
    let created: Vec<Value> = stage
        .proxy
        .all_writes()
        .into_iter()
        .filter(|write| write.method == Method::POST && write.path.ends_with("/pods"))
        .map(|write| write.body["metadata"]["name"].clone())
        .collect();
    // Both are called as kube-controller-manager would call them: the second is made when the first is gone.
    assert_eq!(created, ["recycler-for-v1", "recycler-for-v1"]);
    let pods = stage.cluster.namespaced::<Pod>();
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 1);

    let volume = stage.cluster.all::<PersistentVolume>().get("v1").await.unwrap();
    let owner = &pod.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("PersistentVolume", volume.uid().as_ref()));
    let spec = pod.spec.clone().unwrap();
    assert_eq!(spec.active_deadline_seconds, Some(90));
    assert_eq!(spec.volumes.unwrap()[0].host_path.as_ref().unwrap().path, "/data/v1");
    let event = json!({
        "metadata": { "name": "told-of-the-pod" },
        "involvedObject": { "kind": "Pod", "namespace": "default", "name": pod.name_any(), "uid": pod.uid() },
        "type": "Warning", "reason": "FailedMount", "message": "no such directory",
    });
    create(&stage.cluster.namespaced::<Event>(), event).await;
    let told = stage.cluster.event_with("v1", "RecyclerPod", "Recycler pod: no such directory").await;
    assert_eq!(told.type_.as_deref(), Some("Warning"));

    ends(&stage, &pod, json!({ "phase": "Succeeded" })).await;
    let volume = stage.cluster.volume_phase("v1", "Available").await;
    assert_eq!(volume.spec.unwrap().claim_ref, None);
    stage.cluster.pod_gone(&pod.name_any()).await;
    stage.cluster.event_with("v1", "VolumeRecycled", "Volume recycled").await;
}

async fn failed(stage: Stage) {
    let _daemon = stage.start_daemon(&recycling(), &stage.proxy).await;
    used_volume(&stage, "v1").await;
    let first = recycler(&stage).await;
    ends(&stage, &first, json!({ "phase": "Failed", "message": "it rained" })).await;
    let volume = stage.cluster.volume_phase("v1", "Failed").await;
    let text = "Recycle failed: failed to recycle volume: it rained";
    assert_eq!(volume.status.unwrap().message.as_deref(), Some(text));
    stage.cluster.event_with("v1", "VolumeFailedRecycle", text).await;
    // It is tried again, by another pod.
    stage.cluster.pod_gone(&first.name_any()).await;
    let second = recycler(&stage).await;
    assert_ne!(second.uid(), first.uid());
    ends(&stage, &second, json!({ "phase": "Succeeded" })).await;
    stage.cluster.volume_phase("v1", "Available").await;
}

async fn off(stage: Stage) {
    let _daemon = stage.daemon().await;
    used_volume(&stage, "v1").await;
    let volume = stage.cluster.volume_phase("v1", "Failed").await;
    let text = "No recycler plugin found for the volume!";
    assert_eq!(volume.status.unwrap().message.as_deref(), Some(text));
    stage.cluster.event_with("v1", "VolumeFailedRecycle", text).await;
}

async fn host_path(stage: Stage) {
    let launch = Launch::alone().with("--enable-hostpath-provisioner");
    let _daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let class = json!({
        "metadata": { "name": "here" }, "provisioner": "kubernetes.io/host-path", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    });
    create(&stage.cluster.all::<StorageClass>(), class).await;
    let claim = json!({
        "metadata": { "name": "c1" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "here",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = create(&stage.cluster.namespaced::<PersistentVolumeClaim>(), claim).await;
    let uid = claim.uid().unwrap();
    let name = format!("pvc-{uid}");
    stage.cluster.bound("c1", &name).await;
    let told = format!("Successfully provisioned volume {name} using kubernetes.io/host-path");
    stage.cluster.event_with("c1", "ProvisioningSucceeded", &told).await;
    let path = format!("/tmp/hostpath_pv/{uid}");
    assert!(Path::new(&path).is_dir());

    // The protection controllers, which would do it, are not there.
    let free = json!({ "metadata": { "finalizers": ["kubernetes.io/pv-controller"] } });
    patch(&stage.cluster.all::<PersistentVolume>(), &name, free).await;
    stage.cluster.delete_claim("c1").await;
    stage.cluster.volume_gone(&name).await;
    assert!(!Path::new(&path).exists());
    let gone = |volume: Option<&PersistentVolume>| volume.is_none();
    until(stage.cluster.all(), &name, "the volume is gone", gone).await;
}
