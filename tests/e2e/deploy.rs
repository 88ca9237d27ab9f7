//! What an operator installs: every manifest is accepted by the API server as it is, a pod of the
//! Deployment passes the admission of its namespace, a component adds its flag and its rights, and the flags
//! that can be copied are those that kube-controller-manager has.

use std::{fs, path::Path, process::Command};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, api::DeleteParams, api::PostParams};
use serde_json::{Value, json};

use crate::{
    stage::{Place, Stage, Story, story},
    support::control_plane::User,
};

pub fn stories() -> Vec<Story> {
    vec![
        story("deploy_manifests_are_accepted", accepted).at(Place::RealServer),
        story("deploy_components_add_a_flag_and_its_rights", components).at(Place::RealServer),
        story("deploy_flags_of_kube_controller_manager_are_those_pinned", pinned_flags).at(Place::RealServer),
    ]
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
    for kind in [
        "namespace",
        "deployment",
        "service",
        "poddisruptionbudget",
        "flowschema",
        "prioritylevel",
        "networkpolicy",
        "clusterrole.rbac.authorization.k8s.io/mooring-metrics-reader",
    ] {
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

/// The overlay of an operator, as kubectl prints it.
fn overlay(stage: &Stage, components: &[&str]) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("overlay-{}", components.len()));
    fs::create_dir_all(&folder).unwrap();
    // Kustomize takes folders by relative path only.
    let to_root = "../".repeat(folder.canonicalize().unwrap().components().count() - 1);
    let here = fs::canonicalize(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = |folder: &str| format!("{to_root}{}/{folder}", here.strip_prefix("/").unwrap().display());
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [path("deploy")],
        "components": components.iter().map(|name| path(&format!("deploy/optional/{name}"))).collect::<Vec<_>>(),
        "images": [{ "name": "mooring", "newName": "registry.example/mooring", "newTag": "built" }],
    });
    fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let kubectl = stage.real().assets.binary("kubectl");
    let output = Command::new(kubectl).arg("kustomize").arg(&folder).output().expect("run kubectl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap()
}

async fn components(stage: Stage) {
    let of_kind = |objects: &[Value], kind: &str| -> Vec<Value> {
        objects.iter().filter(|object| object["kind"] == kind).cloned().collect()
    };
    let base = overlay(&stage, &[]);
    let deployment = &of_kind(&base, "Deployment")[0];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example/mooring:built");
    let version = env!("CARGO_PKG_VERSION");
    for labels in [&deployment["metadata"]["labels"], &deployment["spec"]["template"]["metadata"]["labels"]] {
        assert_eq!(labels["app.kubernetes.io/version"], version);
    }
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], json!({ "app.kubernetes.io/name": "mooring" }));
    // The tag that is installed without an overlay.
    let kustomization = include_str!("../../deploy/kustomization.yaml");
    assert!(kustomization.contains(&format!("newTag: {version}\n")));

    let both = overlay(&stage, &["recycler", "host-path"]);
    let container = &of_kind(&both, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let mut expected = of_kind(&base, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0].clone();
    let arguments = expected["args"].as_array_mut().unwrap();
    arguments.extend([json!("--enable-recycler"), json!("--enable-hostpath-provisioner")]);
    assert_eq!(*container, expected);
    let rights = |objects: &[Value]| ["Role", "ClusterRole"].map(|kind| of_kind(objects, kind).len());
    let ([roles, cluster_roles], added) = (rights(&base), rights(&both));
    assert_eq!(added, [roles + 1, cluster_roles + 1]);
}

/// The list is made by this test: on a new release it says what to write there.
async fn pinned_flags(stage: Stage) {
    let binary = stage.real().assets.binary("kube-controller-manager");
    let output = Command::new(binary).arg("--help").output().expect("run kube-controller-manager");
    let help = String::from_utf8(output.stdout).unwrap();
    let mut flags: Vec<String> = help.lines().filter_map(flag_of_help).collect();
    flags.sort();
    let found = flags.join("\n") + "\n";
    assert!(
        found == include_str!("../control-plane/kcm-flags.txt"),
        "tests/control-plane/kcm-flags.txt is not what --help lists, which is:\n{found}"
    );
}

/// `name kind default`, where a boolean is one that takes no value from the next argument.
fn flag_of_help(line: &str) -> Option<String> {
    let flag = line.trim_start();
    if line.len() - flag.len() > 6 {
        return None;
    }
    let (_, flag) =
        flag.split_once("--").filter(|(before, _)| before.is_empty() || before.ends_with(", "))?;
    let (name, rest) = flag.split_at(flag.find(' ').unwrap_or(flag.len()));
    // One space before the kind, at least two before the text.
    let kind = rest.strip_prefix(' ').filter(|rest| !rest.starts_with(' '));
    let kind = kind.and_then(|rest| rest.split(' ').next()).filter(|kind| !kind.contains("[="));
    let default = line.trim_end().strip_suffix(')').and_then(|line| line.split_once("(default "));
    let mut text = format!("{name} {}", kind.unwrap_or("bool"));
    if let Some((_, default)) = default {
        text.push(' ');
        text.push_str(default);
    }
    Some(text)
}
