//! What an operator installs: every manifest is accepted by the API server as it is, a pod of the
//! Deployment passes the admission of its namespace, a component adds its flag and its rights, and the flags
//! that can be copied are those that kube-controller-manager has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::DeleteParams, api::PostParams};
use mooring::config::Controllers;
use serde_json::{Value, json};
use test_support::{cluster::until, control_plane::User, visitor::Authority};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("deploy_manifests_are_accepted", accepted)
            .only_real("kube-apiserver validates manifests, and admits pods."),
        story("deploy_components_add_a_flag_and_its_rights", components)
            .only_real("kubectl builds components, and kube-apiserver validates them."),
        story("deploy_serves_with_the_certificate_of_a_secret", certificate)
            .only_real("kubectl builds the overlay, and kube-apiserver validates it."),
        story("deploy_monitors_and_rules_fit_the_operators_definitions", monitors)
            .only_real("kube-apiserver validates by definitions of custom resources."),
        story("deploy_flags_of_kube_controller_manager_are_those_pinned", pinned_flags)
            .only_real("kube-controller-manager says which flags it has."),
        story("deploy_kube_controller_manager_runs_none_of_the_seven", handed_over)
            .only_real("kube-controller-manager says which controllers it runs."),
    ]
}

async fn accepted(stage: Stage) {
    let said = kubectl(&stage, &["apply", "--kustomize", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy")]);
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

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/observe");
    let said = kubectl(&stage, &["apply", "--kustomize", folder]);
    for object in ["serviceaccount/mooring-observe", "deployment.apps/mooring-observe"] {
        assert!(said.contains(object), "{said}");
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

/// kubectl with all rights on the stage's server. Returns what it says.
pub fn kubectl(stage: &Stage, arguments: &[&str]) -> String {
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let mut kubectl = Command::new(stage.real().assets.binary("kubectl"));
    kubectl.env("HOME", kubeconfig.parent().unwrap()).env("KUBECONFIG", &kubeconfig);
    let output = kubectl.args(arguments).output().expect("run kubectl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The Prometheus operator's own definitions, of the version that dashboards/tools pins.
fn definitions_of_the_operator() -> PathBuf {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/tools");
    let module = "github.com/prometheus-operator/prometheus-operator";
    let mut folder = String::new();
    for arguments in [vec!["mod", "download", module], vec!["list", "-m", "-f", "{{.Dir}}", module]] {
        let output = Command::new("go").current_dir(tools).args(&arguments).output().expect("run go");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder = String::from_utf8(output.stdout).unwrap();
    }
    Path::new(folder.trim()).join("example/prometheus-operator-crd")
}

fn established(definition: Option<&CustomResourceDefinition>) -> bool {
    let status = definition.and_then(|definition| definition.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// The API server itself holds them against the schemas; a field that is not in these is an error, too.
async fn monitors(stage: Stage) {
    let folder = definitions_of_the_operator();
    let definitions = Api::<CustomResourceDefinition>::all(stage.cluster.client.clone());
    for kind in ["podmonitors", "servicemonitors", "prometheusrules"] {
        let file = folder.join(format!("monitoring.coreos.com_{kind}.yaml"));
        let name = format!("{kind}.monitoring.coreos.com");
        kubectl(&stage, &["apply", "--server-side", "-f", file.to_str().unwrap()]);
        // `kubectl wait` fails on a definition that has no conditions yet.
        until(definitions.clone(), &name, "a definition that is served", established).await;
    }
    let components = ["pod-monitor", "service-monitor", "prometheus-rules", "scrape-annotations"];
    let objects = overlay(&stage, &components);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("monitors.json");
    let said = dry_run(&stage, &objects, &file);
    for kind in ["podmonitor.", "servicemonitor.", "prometheusrule.", "secret/mooring-scraper"] {
        assert!(said.contains(kind), "{said}");
    }

    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    let port = &deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0];
    assert_eq!(annotations["prometheus.io/port"], port["containerPort"].to_string());
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    for endpoints in [
        &of_kind("PodMonitor")["spec"]["podMetricsEndpoints"],
        &of_kind("ServiceMonitor")["spec"]["endpoints"],
    ] {
        assert!(
            endpoints.as_array().unwrap().iter().all(|endpoint| endpoint["port"] == port["name"]),
            "{endpoints}"
        );
    }
    // The job's name is the one that alerts and dashboards look for.
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"], "mooring");
    for kind in ["podmonitors", "servicemonitors", "prometheusrules"] {
        kubectl(&stage, &["delete", "crd", &format!("{kind}.monitoring.coreos.com")]);
    }
}

/// The overlay of an operator, as kubectl prints it.
pub fn overlay(stage: &Stage, components: &[&str]) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("overlay-{}", components.len()));
    overlay_with(stage, components, &folder, json!({}))
}

/// One that brings more, in a folder of its own.
fn overlay_with(stage: &Stage, components: &[&str], folder: &Path, more: Value) -> Vec<Value> {
    fs::create_dir_all(folder).unwrap();
    // Kustomize takes folders by relative path only.
    let to_root = "../".repeat(folder.canonicalize().unwrap().components().count() - 1);
    let here = fs::canonicalize(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = |folder: &str| format!("{to_root}{}/{folder}", here.strip_prefix("/").unwrap().display());
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [path("deploy")],
        "components": components.iter().map(|name| path(&format!("deploy/optional/{name}"))).collect::<Vec<_>>(),
        "images": [{ "name": "mooring", "newName": "registry.example/mooring", "newTag": "built" }],
    });
    let Value::Object(more) = more else { panic!("{more}") };
    kustomization.as_object_mut().unwrap().extend(more);
    fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let kubectl = stage.real().assets.binary("kubectl");
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().expect("run kubectl");
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

    // Protection needs no rights of its own, and its flag names what runs.
    let protection = overlay(&stage, &["protection"]);
    let container = &of_kind(&protection, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let before = of_kind(&base, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0].clone();
    let added: Vec<&str> = container["args"].as_array().unwrap()[before["args"].as_array().unwrap().len()..]
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let list = added.first().and_then(|flag| flag.strip_prefix("--controllers=")).expect("one flag");
    let expected = Controllers::parse("*,pvc-protection,pv-protection").unwrap().running;
    assert!(added.len() == 1 && Controllers::parse(list).unwrap().running == expected, "{added:?}");
    assert_eq!(rights(&protection), [roles, cluster_roles]);

    // Those of the other small controllers bring their rights, and lists of several components add up.
    let all = overlay(&stage, &["protection", "vac-protection", "ephemeral-volume", "expander", "recycler"]);
    let container = &of_kind(&all, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let flags = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
    let lists: Vec<&str> = flags.filter_map(|flag| flag.strip_prefix("--controllers=")).collect();
    let running = Controllers::parse(&lists.join(",")).unwrap().running;
    assert_eq!((lists.len(), running), (4, Controllers::parse("storage").unwrap().running));
    assert_eq!(rights(&all), [roles + 1, cluster_roles + 2]);
}

/// As deploy/README.md has it: the operator brings a certificate, under a name that the component knows.
async fn certificate(stage: Stage) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("overlay-serving-certificate");
    fs::create_dir_all(&folder).unwrap();
    let identity = Authority::another().vouch_for_server();
    for (from, to) in [(&identity.certificate, "tls.crt"), (&identity.key, "tls.key")] {
        fs::copy(from, folder.join(to)).unwrap();
    }
    let readme = include_str!("../../deploy/README.md");
    let (_, generators) = readme.split_once("```yaml\ngeneratorOptions").unwrap();
    let (generators, _) = generators.split_once("```").unwrap();
    let generators: Value = serde_saphyr::from_str(&format!("generatorOptions{generators}")).unwrap();
    let objects = overlay_with(&stage, &["serving-certificate"], &folder, generators);

    let find = |kind: &str, name: &str| {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        objects.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {name} of {objects:#?}"))
    };
    let pod = &find("Deployment", "mooring")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let folder_of = |flag: &str| {
        let arguments = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
        let files: Vec<&str> = arguments.filter_map(|argument| argument.strip_prefix(flag)).collect();
        let [file] = files.as_slice() else { panic!("{container:#}") };
        file.rsplit_once('/').map(|(folder, name)| (folder.to_owned(), name.to_owned())).unwrap()
    };
    let mount = &container["volumeMounts"][0];
    let mounted = mount["mountPath"].as_str().unwrap().to_owned();
    assert_eq!(folder_of("--tls-cert-file="), (mounted.clone(), "tls.crt".to_owned()));
    assert_eq!(folder_of("--tls-private-key-file="), (mounted, "tls.key".to_owned()));
    let volume = &pod["volumes"][0];
    assert_eq!(volume["name"], mount["name"]);
    let secret = find("Secret", volume["secret"]["secretName"].as_str().unwrap());
    assert!(secret["data"]["tls.crt"].is_string() && secret["data"]["tls.key"].is_string(), "{secret:#}");
    assert_eq!(secret["metadata"]["namespace"], "mooring-system");
    let file = folder.join("all.json");
    dry_run(&stage, &objects, &file);
}

/// What the server says to all of these, by way of a file.
fn dry_run(stage: &Stage, objects: &[Value], file: &Path) -> String {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(file, list.to_string()).unwrap();
    let path = file.to_str().unwrap();
    let strict = ["--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts"];
    kubectl(stage, &[&["apply"][..], &strict, &["-f", path]].concat())
}

/// With the flag that docs/operating.md has for it, kube-controller-manager runs none of the controllers that mooring has, and all
/// others.
async fn handed_over(stage: Stage) {
    let page = include_str!("../../docs/operating.md");
    let flag = page.lines().find_map(|line| line.strip_prefix("--controllers=")).expect("a flag");
    let appended = page.lines().find(|line| line.starts_with(",-")).expect("what is appended");
    let whole = format!("{flag}{appended}");
    let off = |list: &str| -> Vec<String> {
        list.split(',').filter_map(|word| word.strip_prefix('-')).map(str::to_owned).collect()
    };
    let [two, seven] = [flag, &whole].map(off);
    let running = |names: &[String]| Controllers::parse(&names.join(",")).unwrap().running;
    assert!(flag.starts_with("*,bootstrapsigner,tokencleaner,-"), "not kubeadm's: {flag}");
    assert_eq!(running(&two), Controllers::parse("*").unwrap().running);
    assert_eq!((seven.len(), running(&seven)), (7, Controllers::parse("storage").unwrap().running));
    let list: Vec<&str> = whole.split(',').collect();
    let stock = stage.real().plane.controller_manager(&list, &[]);
    for name in &seven {
        let is_off = format!("controller is disabled\" controller=\"{name}\"");
        stock.log().find(|line| line.contains(&is_off).then_some(())).await.expect("it runs");
    }
    // The others have begun.
    stock.log().find(|line| line.contains("Starting GC controller").then_some(())).await.expect("it runs");
    for begins in [
        "Starting attach detach controller",
        "Starting persistent volume controller",
        "Starting PVC protection controller",
        "Starting PV protection controller",
        "Starting ephemeral volume controller",
        "Starting expand controller",
        "Starting VAC protection controller",
    ] {
        assert_eq!(stock.log().count(begins), 0, "{begins}");
    }
}

/// The list is made by this test: on a new release it says what to write there.
async fn pinned_flags(stage: Stage) {
    let binary = stage.real().assets.binary("kube-controller-manager");
    let output = Command::new(binary).arg("--help").output().expect("run kube-controller-manager");
    let help = String::from_utf8(output.stdout).unwrap();
    let controllers = help.lines().find_map(|line| line.trim_start().strip_prefix("All controllers: "));
    for name in controllers.expect("a list of controllers").split(", ") {
        assert!(Controllers::parse(&format!("*,-{name},{name}")).is_ok(), "{name} is not known");
    }
    let mut flags: Vec<String> = help.lines().filter_map(flag_of_help).collect();
    flags.sort();
    let found = flags.join("\n") + "\n";
    assert!(
        found == include_str!("../../src/cli/kcm_flags.txt"),
        "src/cli/kcm_flags.txt is not what --help lists, which is:\n{found}"
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
