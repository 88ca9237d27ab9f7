//! The fence on the real API server: what kube-controller-manager's loops write is what it names, and with it a whole
//! kube-controller-manager beside the daemon changes nothing.

use std::{collections::BTreeSet, process::Command};

use apiserver::connect::ApiServer;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use mooring::fence::{
    policies::{FENCES, Fence},
    probe::look,
    state::{FenceLook, FenceState},
};
use mooring::preflight::facts::{PreflightFacts, PreflightTopic};
use serde_json::json;
use test_support::{
    audit::Entry,
    cluster::{create, patch, until, within_deadline},
    control_plane::User,
    daemon::Launch,
    process::Process,
};

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("fence_names_every_write_of_the_loops", names_every_write)
            .only_real("kube-controller-manager writes, and the audit log says what and as whom."),
        story("fence_stands_until_its_finalizers_go", stands_until_its_finalizers_go)
            .only_real("kube-apiserver evaluates admission policies."),
        story("fence_keeps_a_whole_kube_controller_manager_from_writing", keeps_all_from_writing)
            .only_real("kube-apiserver denies what a real kube-controller-manager writes."),
        story("fence_s14_is_waited_for_and_its_loss_stops_what_cannot_be_taken_back", is_waited_for)
            .only_real("kube-apiserver evaluates admission policies."),
    ]
}

/// The two that mooring takes by default.
pub fn the_two() -> [&'static Fence; 2] {
    let [attach_detach, binder, ..] = &FENCES;
    [attach_detach, binder]
}

/// As installers start kube-controller-manager, each loop is a user of its own.
pub const STOCK_FLAGS: [&str; 4] = [
    "--use-service-account-credentials=true",
    "--kube-api-qps=1000",
    "--kube-api-burst=1000",
    "--pvclaimbinder-sync-period=500ms",
];

/// kube-controller-manager with [`STOCK_FLAGS`].
pub fn stock(stage: &Stage, controllers: &[&str], more: &[&str]) -> Process {
    stage.real().plane.controller_manager(controllers, &[&STOCK_FLAGS[..], more].concat())
}

/// Puts up the fences of these loops as their manifests have them.
async fn raise(stage: &Stage, fences: &[&Fence]) {
    for fence in fences {
        for object in fence.objects() {
            stage.cluster.apply(&object.to_string()).await;
        }
    }
    looks(stage, fences, "the fence is enforced", FenceLook::is_enforced).await;
}

/// Looks until it is so.
async fn looks(
    stage: &Stage,
    fences: &[&Fence],
    what: &str,
    is_so: impl Fn(&FenceLook) -> bool,
) -> FenceLook {
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let api = ApiServer::read("--kubeconfig", &kubeconfig).await.unwrap();
    let looking = async {
        loop {
            let seen = look(&api, fences, |_| {}).await;
            if is_so(&seen) {
                return seen;
            }
            // The server reads policies once a second.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within_deadline(what, looking).await.unwrap_or_else(|late| panic!("{late}"))
}

/// Writes of the loops' users.
fn writes(requests: &[Entry]) -> impl Iterator<Item = (&Entry, &'static Fence)> {
    let verbs = ["create", "update", "patch", "delete", "deletecollection"];
    requests.iter().filter(move |entry| verbs.contains(&entry.verb.as_str())).filter_map(|entry| {
        FENCES.iter().find(|fence| fence.user() == entry.user).map(|fence| (entry, fence))
    })
}

/// What moves each of the seven loops.
async fn churn(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    // Bound, attached, moved, released.
    cluster.bound_pair("v1", "c1").await;
    for node in ["n1", "n2"] {
        cluster.pod("p1", node, &["c1"]).await;
        cluster.published(node, &["v1"]).await;
        cluster.delete_pod("p1").await;
        cluster.pod_gone("p1").await;
        cluster.detached("v1", node).await;
    }
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
    cluster.delete_volume("v1").await;
    cluster.volume_gone("v1").await;
    // Provisioned.
    cluster.driver().await;
    cluster.class("quick", "Immediate").await;
    let claim = |name: &str| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": "quick", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    };
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    create(&claims, claim("c2")).await;
    cluster.claim_phase("c2", "Bound").await;
    // With a claim of its own.
    let pod = json!({
        "metadata": { "name": "p2" },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": claim("")["spec"] } } }],
        },
    });
    create(&cluster.namespaced::<Pod>(), pod).await;
    cluster.claim_phase("p2-data", "Bound").await;
    cluster.delete_pod("p2").await;
}

/// What the fence names is what the loops write: by the audit log of a kube-controller-manager that rules.
async fn names_every_write(stage: Stage) {
    let loops: Vec<&str> = FENCES.iter().map(|fence| fence.controller).collect();
    let _stock = stock(&stage, &loops, &[]);
    let (_attacher, _provisioner, _kubelets) = (stage.attacher(), stage.provisioner(), stage.kubelets());
    churn(&stage).await;
    let cluster = &stage.cluster;
    // Recycled, by a pod.
    let recycled = json!({
        "metadata": { "name": "v3" },
        "spec": {
            "capacity": { "storage": "3Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Recycle", "hostPath": { "path": "/data/v3" },
        },
    });
    create(&cluster.all::<PersistentVolume>(), recycled).await;
    cluster.claim("c3").await;
    cluster.bound("c3", "v3").await;
    cluster.delete_claim("c3").await;
    let pod = "recycler-for-v3";
    until(cluster.namespaced::<Pod>(), pod, "a recycler pod", |pod: Option<&Pod>| pod.is_some()).await;
    // A class of attributes that goes, and a claim that is expanded.
    cluster.attributes_class("gold").await;
    cluster
        .all::<test_support::attributes_class::VolumeAttributesClass>()
        .delete("gold", &DeleteParams::default())
        .await
        .unwrap();
    let classes = cluster.all::<k8s_openapi::api::storage::v1::StorageClass>();
    patch(&classes, "quick", json!({ "allowVolumeExpansion": true })).await;
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    // The admission plugin hears of the class by a watch of its own.
    let larger = Patch::Merge(json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } }));
    let enlarged = async {
        while claims.patch("c2", &PatchParams::default(), &larger).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within_deadline("the claim is enlarged", enlarged).await.unwrap_or_else(|late| panic!("{late}"));

    let all_have_written = async {
        loop {
            let requests = stage.requests();
            let users: BTreeSet<&str> = writes(&requests).map(|(_, fence)| fence.account).collect();
            if users.len() == FENCES.len() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let found = within_deadline("each loop has written", all_have_written).await;
    let requests = stage.requests();
    let written: BTreeSet<(&str, &str, String)> = writes(&requests)
        .map(|(entry, fence)| {
            (fence.account, entry.verb.as_str(), format!("{}/{}", entry.group, entry.resource))
        })
        .collect();
    assert!(found.is_ok(), "{written:#?}");
    let is_open = |(entry, fence): &(&Entry, &Fence)| {
        let of_group = fence.writes.iter().filter(|(group, _)| *group == entry.group);
        entry.user != fence.user() || !of_group.flat_map(|(_, all)| *all).any(|it| *it == entry.resource)
    };
    let open: Vec<_> = writes(&requests)
        .filter(is_open)
        .map(|(entry, fence)| format!("{} {} {}/{}", fence.account, entry.verb, entry.group, entry.resource))
        .collect();
    assert_eq!(open, Vec::<String>::new(), "{written:#?}");
}

/// Enforced within seconds; deleted, it still denies; changed, it counts as gone.
async fn stands_until_its_finalizers_go(stage: Stage) {
    let fences = the_two();
    let client = &stage.cluster.client;
    preflight(&stage).await;
    let before = looks(&stage, &fences, "no fence", |look| !look.is_enforced()).await;
    assert_eq!(before.states, [FenceState::Absent, FenceState::Absent], "{before:?}");
    assert!(
        before.server.is_some() && before.leases.as_ref().is_some_and(|leases| leases.len() == 1),
        "{before:?}"
    );
    raise(&stage, &fences).await;

    let raised = looks(&stage, &fences, "the fence is enforced", FenceLook::is_enforced).await;
    assert!(raised.is_new(), "{raised:?}");

    let [_, binder] = fences;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let actions = |actions: &str| json!({ "spec": { "validationActions": [actions] } });
    patch(&bindings, &binder.name(), actions("Warn")).await;
    let warned = looks(&stage, &fences, "Warn is no fence", |look| !look.is_enforced()).await;
    assert!(matches!(warned.states[..], [FenceState::Enforced, FenceState::Gone(_)]), "{warned:?}");
    patch(&bindings, &binder.name(), actions("Deny")).await;
    looks(&stage, &fences, "the fence is enforced again", FenceLook::is_enforced).await;

    policies.delete(&binder.name(), &DeleteParams::default()).await.unwrap();
    bindings.delete(&binder.name(), &DeleteParams::default()).await.unwrap();
    // The server reads policies once a second.
    let deleted = tokio::time::Instant::now();
    while deleted.elapsed() < std::time::Duration::from_secs(4) {
        let left = looks(&stage, &fences, "it is answered", |_| true).await;
        assert_eq!(left.states, [FenceState::Enforced, FenceState::Enforced]);
    }
    let off = json!({ "metadata": { "finalizers": null } });
    patch(&bindings, &binder.name(), off.clone()).await;
    patch(&policies, &binder.name(), off).await;
    looks(&stage, &fences, "it is gone", |look| look.states[1] == FenceState::Absent).await;

    raise(&stage, &fences).await;
    taken_down_by_hand(&stage);
    looks(&stage, &fences, "it is taken down by hand", FenceLook::is_absent).await;
}

/// As the page says that is for who has no `mooring` to run.
fn taken_down_by_hand(stage: &Stage) {
    let page = include_str!("../../docs/runbooks/MooringFencedWithoutRuler.md");
    let (_, step) = page.split_once("Take the fence down, and see that no policy is left:").unwrap();
    let commands = step.split("```").nth(1).unwrap().strip_prefix("console\n").unwrap();
    let lines = commands.lines().map(|line| line.trim_start().trim_start_matches("$ "));
    let script: Vec<&str> = ["set -ex"].into_iter().chain(lines).collect();
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let kubectl = stage.real().assets.binary("kubectl");
    let path = format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.env("PATH", path).env("HOME", kubeconfig.parent().unwrap()).env("KUBECONFIG", &kubeconfig);
    let output = shell.arg("-c").arg(script.join("\n")).output().expect("run a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let patched =
        |kind: &str| said.lines().filter(|line| line.starts_with(kind) && line.ends_with(" patched")).count();
    assert_eq!(
        ["validatingadmissionpolicybinding", "validatingadmissionpolicy."].map(patched),
        [2, 2],
        "{said}"
    );
}

/// All objects of `deploy` and of the fence are accepted, and nothing of it is stored.
async fn preflight(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let client = ApiServer::read("--kubeconfig", &kubeconfig).await.unwrap().client().unwrap();
    let facts = PreflightFacts::read(&client, &the_two()).await.unwrap();
    for topic in [PreflightTopic::Manifests, PreflightTopic::NodeStatus] {
        assert_eq!(facts.of(topic), Ok(&json!({ "refused": [], "unchecked": [] })), "{topic:?}");
    }
    assert_eq!(facts.of(PreflightTopic::Fence), Ok(&json!(null)));
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    assert!(deployments.get_opt("mooring").await.unwrap().is_none(), "a dry run stores nothing");
}

/// With the fence up, none of the loops that mooring has taken writes anything, whatever happens.
async fn keeps_all_from_writing(stage: Stage) {
    let fences = the_two();
    let (_attacher, _provisioner, _kubelets) = (stage.attacher(), stage.provisioner(), stage.kubelets());
    raise(&stage, &fences).await;
    let launch = Launch::replica(DAEMON_NAMESPACE).with("--fence");
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let stock = stock(&stage, &["*"], &[]);
    stock
        .log()
        .find(|line| line.contains("Starting attach detach controller").then_some(()))
        .await
        .expect("it runs");
    churn(&stage).await;
    let cluster = &stage.cluster;
    for number in 4..16 {
        let (volume, claim, pod) = (format!("v{number}"), format!("c{number}"), format!("p{number}"));
        let node = if number < 10 { "n1" } else { "n2" };
        cluster.bound_pair(&volume, &claim).await;
        cluster.pod(&pod, node, &[&claim]).await;
        cluster.running(&pod).await;
    }
    // As it does when it has caught up: the same set, in an order of its own. When that is depends on its back-off.
    let plane = &stage.real().plane;
    let token = plane.service_account_token("kube-system", "attachdetach-controller").await;
    let by_it = ApiServer::read("--kubeconfig", &plane.kubeconfig(plane.url(), &token)).await.unwrap();
    let nodes: Api<Node> = Api::all(by_it.client().unwrap());
    let by_it =
        PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
    for name in ["n1", "n2"] {
        let status = nodes.get(name).await.unwrap().status.unwrap_or_default();
        let mut list = status.volumes_attached.unwrap_or_default();
        assert_eq!(list.len(), 6);
        list.reverse();
        let reversed = Patch::Merge(json!({ "status": { "volumesAttached": list } }));
        nodes.patch_status(name, &by_it, &reversed).await.expect("the fence lets it pass");
    }
    // That is no second writer, for whom nothing would be detached (S14).
    cluster.delete_pod("p15").await;
    cluster.pod_gone("p15").await;
    cluster.detached("v15", "n2").await;

    let requests = stage.requests();
    for fence in fences {
        let denied = |(entry, by): &(&Entry, &Fence)| by.account == fence.account && entry.code == 403;
        assert!(writes(&requests).any(|write| denied(&write)), "{} has tried nothing", fence.account);
    }
    // A patch of a node that changes no set may pass.
    let is_taken = |fence: &Fence| fences.iter().any(|taken| taken.account == fence.account);
    let written = |entry: &Entry| entry.code < 300 && entry.resource != "nodes/status";
    let written: Vec<_> =
        writes(&requests).filter(|(entry, fence)| is_taken(fence) && written(entry)).collect();
    assert!(written.is_empty(), "{written:#?}");
    for kind in ["node_list_changed", "attachment_created"] {
        daemon.shows(&format!("mooring_foreign_writes_total{{kind=\"{kind}\"}} 0")).await;
    }
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;
}

/// With `--fence` the daemon leads once it has seen the fence, and takes nothing away after the fence is lost.
async fn is_waited_for(stage: Stage) {
    let fences = the_two();
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    let launch = Launch::replica(DAEMON_NAMESPACE).with("--fence");
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
    let daemon = stage.begin_daemon(&launch, &stage.proxy);
    let log = stage.log_of(&daemon);
    log.find(|line| line.contains("waiting for the fence").then_some(())).await.expect("it waits");
    daemon.shows("mooring_fence{state=\"absent\"} 1").await;
    let is_led = async || leases.get_opt("mooring").await.unwrap().is_some();
    assert!(!is_led().await, "it must not stand for election");
    cluster.node("n1").await;
    raise(&stage, &fences).await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    // A create of kube-controller-manager may be under way for a minute.
    daemon.page_says("/debug/attach-detach", "before it was fenced off").await;
    cluster.running("p1").await;

    let [attach_detach, _] = fences;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let actions = |actions: &str| json!({ "spec": { "validationActions": [actions] } });
    patch(&bindings, &attach_detach.name(), actions("Audit")).await;
    daemon.shows("mooring_alarm{alarm=\"fence_lost\"} 1").await;
    daemon.page_says("/readyz?verbose", "has another content than this version's").await;
    daemon.shows("mooring_fence{state=\"lost\"} 1").await;
    // What a rollout starts meanwhile waits, and must not end who leads.
    let next = stage.begin_daemon(&launch, &stage.proxy);
    next.shows("mooring_election_fitness{fitness=\"unfenced\"} 1").await;
    next.shows("mooring_fence{state=\"waiting\"} 1").await;
    assert_eq!(next.visit("/readyz", None).await.0, 500);
    cluster.delete_pod("p1").await;
    cluster.pod_gone("p1").await;
    daemon.page_says("/debug/attach-detach", "the fence is gone").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p2", "n1", &["c2"]).await;
    cluster.running("p2").await;
    cluster.attached("v1", "n1").await;

    patch(&bindings, &attach_detach.name(), actions("Deny")).await;
    daemon.shows("mooring_alarm{alarm=\"fence_lost\"} 0").await;
    next.ready().await;
    cluster.detached("v1", "n1").await;
}
