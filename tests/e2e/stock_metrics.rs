//! The metrics that `docs/metrics.md` calls kube-controller-manager's, held against the page of a real one whose loops
//! have bound, attached and detached: name, type and labels.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;
use test_support::{
    cluster::{Cluster, create, within_deadline},
    control_plane::{User, free_ports},
    visitor::{Credentials, ask},
};

use crate::stage::{Stage, Story, story};

/// Of kube-controller-manager's, those that it shows once something happens that does not happen here, and why not.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("attach_detach_controller_attachdetach_controller_forced_detaches", "nothing is detached by force"),
    ("leader_election_slowpath_total", "the lease is renewed as it is"),
    ("rest_client_request_retries_total", "nothing has to be repeated"),
    ("running_managed_controllers", "it shows the controllers of clouds and of nodes there (differences)"),
    ("volume_operation_errors_total", "the provisioner does as it is asked"),
    ("volume_operation_total_errors", "the same, under the name that is hidden since"),
];

pub fn stories() -> Vec<Story> {
    vec![
        story("metrics_that_are_called_stock_are_those_of_the_stock_loops", compared)
            .only_real("The stock controllers are at work there."),
    ]
}

/// A family: its type, and the names of its labels.
type Family = (String, BTreeSet<String>);

/// What the page of metrics shows, without the `le` of histograms.
fn shown(page: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((series, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| series.strip_suffix(part));
            let name = base.filter(|base| families.contains_key(*base)).unwrap_or(series);
            let Some((_, known)) = families.get_mut(name) else { continue };
            let labels = labels.rsplit_once('}').map_or(labels, |(labels, _)| labels);
            // A value may have a comma, but no `="` in it.
            let names = labels.split("=\"").filter_map(|part| part.rsplit([',', '{']).next());
            let names = names.map(str::trim).filter(|name| !name.is_empty() && !name.ends_with('"'));
            known.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    families
}

/// What is documented as the same as kube-controller-manager's.
fn documented() -> BTreeMap<String, Family> {
    let page = include_str!("../../docs/metrics.md");
    let sections = page.split("\n### `").skip(1).filter_map(|section| section.split_once("`\n\n"));
    let stock = sections.filter(|(_, text)| text.contains(" · kcm · kube-controller-manager: the same\n"));
    let family = |text: &str| {
        let kind = text.split(" · ").next().unwrap().to_owned();
        let text = text.split("\n## ").next().unwrap();
        let labels =
            text.lines().filter_map(|line| Some(line.strip_prefix("* `")?.split_once('`')?.0.to_owned()));
        (kind, labels.collect())
    };
    stock.map(|(name, text)| (name.to_owned(), family(text))).collect()
}

/// The controllers whose metrics ours are called like.
const LOOPS: [&str; 3] = [
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "ephemeral-volume-controller",
];

async fn compared(stage: Stage) {
    let plane = &stage.real().plane;
    let [port] = free_ports();
    let token = plane.token(User::ControllerManager);
    let kubeconfig = plane.kubeconfig(plane.url(), &token).display().to_string();
    let flags = [
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--pvclaimbinder-sync-period=500ms",
        "--bind-address=127.0.0.1",
        &format!("--secure-port={port}"),
        &format!("--authentication-kubeconfig={kubeconfig}"),
        &format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=true",
    ];
    let _stock = plane.controller_manager(&LOOPS, &flags);

    let (_attacher, _provisioner) = (stage.attacher(), stage.provisioner());
    let (_kubelets, _protection) = (stage.kubelets(), stage.protection());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c4").await;
    cluster.volume("v3").await;
    cluster.pod("p2", "n1", &["c4"]).await;
    cluster.running("p2").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    cluster.class("quick", "Immediate").await;
    for (name, class) in [("c2", "quick"), ("c3", "unknown")] {
        let made = json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        create(&claims, made).await;
    }
    cluster.claim_phase("c2", "Bound").await;
    cluster.delete_pod("p1").await;
    cluster.detached("v1", "n1").await;

    // One about whom the API server has to be asked.
    for manifest in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "scraper", "namespace": "default" } }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "stock-metrics" },
            "rules": [{ "nonResourceURLs": ["/metrics", "/metrics/slis", "/healthz"], "verbs": ["get"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "stock-metrics" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stock-metrics" },
            "subjects": [{ "kind": "ServiceAccount", "name": "scraper", "namespace": "default" }],
        }),
    ] {
        Cluster::new(plane.client(User::Admin)).apply(&manifest.to_string()).await;
    }
    let token = plane.service_account_token("default", "scraper").await;
    let client = Credentials::token(token).client(&format!("https://127.0.0.1:{port}"));
    let expected = documented();
    let missing = async || {
        let mut page = String::new();
        ask(&client, "/healthz").await?;
        for path in ["/metrics", "/metrics/slis"] {
            page += &ask(&client, path).await.filter(|(status, _)| status.is_success()).map(|it| it.1)?;
        }
        let shown = shown(&page);
        let is_excused = |name: &str| NOT_SHOWN.iter().any(|(excused, _)| *excused == name);
        let left = expected.keys().filter(|name| !shown.contains_key(*name) && !is_excused(name));
        let left: Vec<String> = left.cloned().collect();
        Some((left, shown))
    };
    // Counts of volumes are made now and then.
    let mut last = None;
    let all = async {
        let mut pause = tokio::time::interval(std::time::Duration::from_millis(500));
        loop {
            pause.tick().await;
            if let Some((left, shown)) = missing().await {
                if left.is_empty() {
                    return shown;
                }
                last = Some(left);
            }
        }
    };
    let shown = within_deadline("kube-controller-manager shows what we call its metrics", all).await;
    let shown = shown.unwrap_or_else(|late| panic!("{late}: {last:?}"));
    let mut different = Vec::new();
    for (name, (kind, labels)) in &expected {
        let Some((stock_kind, stock_labels)) = shown.get(name) else { continue };
        if kind != stock_kind || labels != stock_labels {
            different.push(format!("{name}: {kind} {labels:?}, there {stock_kind} {stock_labels:?}"));
        }
    }
    let needless: Vec<_> = NOT_SHOWN.iter().filter(|(name, _)| shown.contains_key(*name)).collect();
    assert!(different.is_empty() && needless.is_empty(), "{different:#?}\n{needless:?}");
}
