//! The ways to install other than the kustomization: the chart of Helm has the same objects, and the static pod's user has the
//! same rights and no more.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};
use test_support::{
    actors::{Attacher, AttacherBehaviour},
    assets::Assets,
    cluster::{Cluster, DRIVER, until},
    control_plane::{ControlPlane, User},
    daemon::Launch,
    process::temporary_folder,
    visitor::Authority,
};

use crate::{
    deploy::{kubectl, overlay},
    stage::{PROGRAM, Stage, Story, story},
};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/mooring");

/// Of `deploy/optional` all but `prometheus-rules`, which the chart does not have.
const COMPONENTS: [&str; 14] = [
    "recycler",
    "host-path",
    "protection",
    "vac-protection",
    "ephemeral-volume",
    "expander",
    "fence",
    "explain-reader",
    "serving-certificate",
    "debug-reader",
    "pod-monitor",
    "service-monitor",
    "scrape-annotations",
    "priority-quota",
];

pub fn stories() -> Vec<Story> {
    vec![
        story("packages_chart_has_the_objects_of_the_kustomization", same_objects)
            .only_real("kubectl builds the kustomization, and kube-apiserver validates both."),
        story("packages_chart_of_an_observer_is_deploy_observe_and_grants_no_write", observer)
            .only_real("kubectl builds the kustomization, and kube-apiserver validates what helm renders."),
        story("packages_static_pod_rules_with_its_client_certificate", static_pod)
            .only_real("A process has a kubeconfig and a client certificate, and kube-apiserver its rights."),
    ]
}

/// helm with arguments: what it prints, or its complaint.
fn helm(arguments: &[&str]) -> Result<String, String> {
    let program = Assets::helm().unwrap_or_else(|why| panic!("{why}")).binary("helm");
    let home = temporary_folder("helm");
    let output = Command::new(program).env("HOME", home).args(arguments).output().expect("run helm");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// What the chart renders with these components and settings.
fn rendered(components: &[&str], settings: &[&str]) -> Vec<Value> {
    rendered_in("mooring-system", components, settings)
}

fn rendered_in(namespace: &str, components: &[&str], settings: &[&str]) -> Vec<Value> {
    let (namespace, components) =
        (format!("--namespace={namespace}"), format!("components={}", json!(components)));
    // The oldest that is supported. A helm that is built from source takes Kubernetes 1.20 for granted.
    let mut arguments = vec!["template", "mooring", CHART, &namespace, "--kube-version=1.33.0"];
    arguments.push("--set-json");
    arguments.push(&components);
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    serde_saphyr::from_multiple(&helm(&arguments).unwrap()).unwrap()
}

/// Objects by kind, namespace and name.
fn named(objects: Vec<Value>) -> BTreeMap<[String; 3], Value> {
    let name = |object: &Value| {
        ["/kind", "/metadata/namespace", "/metadata/name"]
            .map(|path| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned())
    };
    objects.into_iter().map(|object| (name(&object), object)).collect()
}

fn without_labels(object: &mut Value, names: &[&str]) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) else { return };
    labels.retain(|label, _| !names.contains(&label.as_str()));
    if labels.is_empty() {
        metadata.remove("labels");
    }
}

/// Has the server take them, without keeping them. It does not know the kinds of the Prometheus operator.
fn accepted(stage: &Stage, objects: &BTreeMap<[String; 3], Value>) {
    let is_known = |object: &&Value| object["apiVersion"] != "monitoring.coreos.com/v1";
    let items: Vec<&Value> = objects.values().filter(is_known).collect();
    let file = temporary_folder("packages").join("all.json");
    fs::write(&file, json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let flags =
        ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", file];
    kubectl(stage, &flags);
}

fn are_same(chart: &BTreeMap<[String; 3], Value>, kustomization: &BTreeMap<[String; 3], Value>) {
    for (name, object) in kustomization {
        let rendered = chart.get(name).unwrap_or_else(|| panic!("the chart has no {name:?}"));
        assert_eq!(rendered, object, "{name:?}: {rendered:#} {object:#}");
    }
    assert_eq!(chart.len(), kustomization.len(), "{:?}", chart.keys());
}

async fn same_objects(stage: Stage) {
    let lint = helm(&["lint", "--strict", "--namespace=mooring-system", CHART]);
    assert!(lint.unwrap().contains("0 chart(s) failed"));
    let elsewhere =
        helm(&["template", "mooring", CHART, "--kube-version=1.33.0", "--namespace=storage"]).unwrap_err();
    assert!(elsewhere.contains("mooring rules from the namespace mooring-system"), "{elsewhere}");
    let components = Path::new(CHART).join("../../optional").read_dir().unwrap();
    let mut components: Vec<String> =
        components.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    components.retain(|name| name != "prometheus-rules");
    components.sort();
    let mut known = COMPONENTS.map(str::to_owned);
    known.sort();
    assert_eq!(components, known, "the chart has each component");

    for components in [[].as_slice(), COMPONENTS.as_slice()] {
        let settings = ["image.repository=registry.example/mooring", "image.tag=built"];
        let mut chart = named(rendered(components, &settings));
        let mut kustomization = named(overlay(&stage, components));
        // Helm makes the namespace of a release, and keeps the release in it.
        kustomization.retain(|[kind, ..], _| kind != "Namespace");
        for object in chart.values_mut() {
            assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
            without_labels(object, &["app.kubernetes.io/managed-by", "helm.sh/chart"]);
        }
        // kustomize labels the base, and no component of an overlay.
        if !components.is_empty() {
            let labels = ["version", "component", "part-of"].map(|name| format!("app.kubernetes.io/{name}"));
            for object in chart.values_mut().chain(kustomization.values_mut()) {
                without_labels(object, &labels.each_ref().map(String::as_str));
            }
        }
        are_same(&chart, &kustomization);
        accepted(&stage, &chart);
        accepted(&stage, &kustomization);
    }

    for (setting, complaint) in [
        ("mode=both", "mode"),
        ("components={recyclr}", "components"),
        ("mode=observe,components={recycler}", "components"),
        ("replica=3", "replica"),
        ("image.digest=sha256:1", "digest"),
        ("runAsUser=0", "runAsUser"),
    ] {
        let refused = helm(&["template", "mooring", CHART, "--set", setting]).unwrap_err();
        assert!(
            refused.contains("values don't meet the specifications of the schema"),
            "{setting}: {refused}"
        );
        assert!(refused.contains(complaint), "{setting}: {refused}");
    }
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let notes = |components: &str| {
        let arguments = ["install", "mooring", CHART, "--dry-run=client", "--namespace=mooring-system"];
        // Other stories have applied the same objects.
        let more =
            ["--take-ownership", "--kubeconfig", kubeconfig.to_str().unwrap(), "--set-json", components];
        helm(&[arguments.as_slice(), &more].concat()).unwrap()
    };
    for (components, switches_by_flag) in [("components=[]", true), (r#"components=["fence"]"#, false)] {
        let said = notes(components);
        let (flag, command) =
            ("\n  ,-persistentvolume-attach-detach-controller,", "mooring switch --to mooring");
        assert_eq!(
            (said.contains(flag), said.contains(command)),
            (switches_by_flag, !switches_by_flag),
            "{said}"
        );
    }
    let digest = format!("image.digest=sha256:{}", "0".repeat(64));
    let deployment =
        &named(rendered(&[], &[&digest]))[&["Deployment", "mooring-system", "mooring"].map(str::to_owned)];
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &json!(format!("mooring@sha256:{}", "0".repeat(64))));
}

async fn observer(stage: Stage) {
    let objects = named(rendered(&[], &["mode=observe"]));
    accepted(&stage, &objects);
    let of_kind =
        |kind: &str| objects.values().filter(|object| object["kind"] == kind).cloned().collect::<Vec<_>>();
    let deployment = &of_kind("Deployment")[0]["spec"];
    assert_eq!(deployment["template"]["spec"]["containers"][0]["args"][0], "observe");
    // No lease, and nothing that writes but the questions about who asks.
    assert!(of_kind("Role").is_empty());
    for rule in of_kind("ClusterRole").iter().filter_map(|role| role["rules"].as_array()).flatten() {
        let asks = [json!(["tokenreviews"]), json!(["subjectaccessreviews"])].contains(&rule["resources"]);
        let verbs = rule["verbs"].as_array().unwrap();
        let reads = verbs.iter().all(|verb| ["get", "list", "watch"].map(Value::from).contains(verb));
        assert!(reads || asks && *verbs == [json!("create")], "{rule}");
    }

    let mut chart = named(rendered_in("mooring-observe", &[], &["mode=observe"]));
    let labels =
        ["version", "component", "part-of", "managed-by"].map(|it| format!("app.kubernetes.io/{it}"));
    for object in chart.values_mut() {
        without_labels(
            object,
            &[&["helm.sh/chart"], labels.each_ref().map(String::as_str).as_slice()].concat(),
        );
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/observe");
    let built = serde_saphyr::from_multiple(&kubectl(&stage, &["kustomize", folder])).unwrap();
    let mut kustomization = named(built);
    kustomization.retain(|[kind, ..], _| kind != "Namespace");
    are_same(&chart, &kustomization);
}

/// What a manifest grants: kind and rules of each role.
fn granted(manifest: &str) -> Vec<(Value, Value)> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    let roles = documents.into_iter().filter(|document| document["rules"].is_array());
    roles.map(|role| (role["kind"].clone(), role["rules"].clone())).collect()
}

/// A kubeconfig whose user has the client certificate that the kubelet's manifest of the pod is for.
fn kubeconfig_of(plane: &ControlPlane) -> PathBuf {
    let identity = Authority::of_the_test().vouch("mooring", &[]);
    let file = plane.kubeconfig(plane.url(), "");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["users"][0]["user"] =
        json!({ "client-certificate": identity.certificate, "client-key": identity.key });
    fs::write(&file, config.to_string()).unwrap();
    file
}

async fn static_pod(stage: Stage) {
    let rights = include_str!("../../deploy/static-pod/rbac.yaml");
    assert_eq!(granted(rights), granted(include_str!("../../deploy/rbac.yaml")));
    let manifest = include_str!("../../deploy/static-pod/pod.yaml");
    let pod: Value = serde_saphyr::from_str(manifest).unwrap();
    accepted(&stage, &named(vec![pod.clone()]));

    let plane = ControlPlane::start(&stage.real().assets).await;
    let cluster = Cluster::new(plane.client(User::Admin));
    for manifest in [rights, include_str!("../../deploy/static-pod/flowschemas.yaml")] {
        cluster.apply(manifest).await;
    }
    let arguments = pod["spec"]["containers"][0]["args"].as_array().unwrap().iter().filter_map(Value::as_str);
    let flags: Vec<&str> = arguments.filter(|argument| !argument.starts_with("--kubeconfig=")).collect();
    assert_eq!(flags[0], "run");
    let launch = flags[1..].iter().fold(Launch::plain(), |launch, flag| launch.with(flag));
    // The test reads the address in the log.
    let launch = launch.with("--logging-format=text").with_authorities_of_the_cluster();
    let daemon = launch.start_process(PROGRAM, &kubeconfig_of(&plane));
    daemon.ready().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    let is_held = |lease: Option<&Lease>| {
        lease.is_some_and(|lease| lease.spec.as_ref().unwrap().holder_identity.is_some())
    };
    until(leases, "mooring", "a leader", is_held).await;

    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default());
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
}
