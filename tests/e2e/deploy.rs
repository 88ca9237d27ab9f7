//! What an operator installs: every manifest is accepted by the API server as it is, and a pod of the
//! Deployment passes the admission of its namespace.

use std::process::Command;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, api::DeleteParams, api::PostParams};
use serde_json::json;

use crate::{
    stage::{Place, Stage, Story, story},
    support::control_plane::User,
};

pub fn stories() -> Vec<Story> {
    vec![story("deploy_manifests_are_accepted", accepted).at(Place::RealServer)]
}

async fn accepted(stage: Stage) {
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let home = kubeconfig.parent().unwrap();
    let output = Command::new(stage.real().assets.binary("kubectl"))
        .env("HOME", home)
        .env("KUBECONFIG", &kubeconfig)
        .args(["apply", "--kustomize", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy")])
        .output()
        .expect("run kubectl");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for kind in ["namespace", "deployment", "service", "poddisruptionbudget", "flowschema", "prioritylevel"] {
        assert!(said.contains(kind), "{said}");
    }

    let client = &stage.cluster.client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "mooring-system");
    let template = deployments.get("mooring").await.unwrap().spec.unwrap().template;
    let pod = json!({
        "metadata": { "name": "mooring-0", "labels": template.metadata.unwrap().labels },
        "spec": template.spec,
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "mooring-system");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    pods.delete("mooring-0", &DeleteParams::default().grace_period(0)).await.unwrap();
}
