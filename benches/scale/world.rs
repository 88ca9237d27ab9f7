//! A large cluster: etcd filled before the API server starts, and updates that do not concern the subject.

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use test_support::{
    assets::Assets,
    control_plane::{self, ControlPlane, User},
};

use super::{Options, load::each};

/// Starts a control plane with so many nodes.
pub async fn plane(assets: &Assets, program: &Assets, nodes: usize, options: &Options) -> ControlPlane {
    let seeder = vec![
        program.binary("seed").display().to_string(),
        format!("--nodes={nodes}"),
        format!("--pods={}", options.pods),
        format!("--attached={}", options.attached),
        format!("--spare={}", options.spare),
    ];
    let plane_options = control_plane::Options {
        seeder: Some(seeder),
        without_records: true,
        // The default of 600 requests at once is shared by all levels; the stand-ins alone need most of it.
        api_server_flags: vec!["--max-requests-inflight=2000".to_owned()],
        ..control_plane::Options::default()
    };
    ControlPlane::start_with(assets, &plane_options).await
}

/// Name of a node.
pub fn node(number: usize) -> String {
    format!("n{number:03}")
}

/// Handle of the last attached volume of the last node.
pub fn last_handle(nodes: usize, options: &Options) -> String {
    format!("vol-0{:016x}", nodes * options.attached - 1)
}

/// Heartbeats of nodes, as kubelets send them, all over the cluster.
pub async fn node_updates(plane: &ControlPlane, nodes: usize, count: usize) {
    // Every node in turn, and not in the order of their names.
    let api = Api::all(plane.client(User::Kubelets));
    each(0..count, async |number| node_update(&api, number * 7919 % nodes).await).await;
}

/// The heartbeat of one node.
pub async fn node_update(api: &Api<Node>, number: usize) {
    let status = json!({ "status": { "conditions": [
        { "type": "Ready", "lastHeartbeatTime": Timestamp::now().to_string() },
    ]}});
    let patched = api.patch_status(&node(number), &PatchParams::default(), &Patch::Strategic(status)).await;
    patched.expect("patch the status of a node");
}

/// Namespaces and names of some pods, with and without volumes.
pub async fn some_pods(plane: &ControlPlane, count: usize) -> Vec<(String, String)> {
    let api: Api<Pod> = Api::all(plane.client(User::Kubelets));
    let limit = u32::try_from(count).expect("a number of pods");
    let list = api.list_metadata(&ListParams::default().limit(limit)).await.expect("list pods");
    let name = |pod: PartialObjectMeta<Pod>| Some((pod.metadata.namespace?, pod.metadata.name?));
    list.items.into_iter().filter_map(name).collect()
}

/// Status updates of these pods that change neither phase nor containers.
pub async fn pod_updates(plane: &ControlPlane, pods: &[(String, String)]) {
    let client = plane.client(User::Kubelets);
    each(0..pods.len(), async |number| {
        let (namespace, name) = &pods[number];
        let status = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": Timestamp::now().to_string() },
        ]}});
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let patched = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("patch the status of a pod");
    })
    .await;
}
