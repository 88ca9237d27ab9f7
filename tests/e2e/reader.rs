//! The offline reader of explanations on a cluster that is there: what it asks for, what it may not see, and that the
//! controllers, asked over what it read, say what they do.

use std::sync::{Arc, Mutex};

use apiserver::{
    connect::{ApiServer, Choice},
    ids::{ClaimKey, VolumeName},
    kinds::ObjectRef,
};
use kube::{Client, client::Body};
use mooring::{
    attach_detach::{self, AttachDetachOptions, decide::verdict::Waiting, state::actual::AttachmentCall},
    binder::{self, BinderOptions},
    explain::{
        read::{Question, Reader},
        snapshot::Snapshot,
        subject,
    },
};
use serde_json::json;
use test_support::{
    actors::{Reaction, attachment_name},
    cluster::{Cluster, DRIVER},
    control_plane::User,
};

use crate::stage::{PROGRAM, Stage, Story, story};

/// Where the claims of the stories are.
const NAMESPACE: &str = "default";

pub fn stories() -> Vec<Story> {
    vec![
        story("reader_asks_by_name_where_it_can", asks_by_name),
        story("reader_lists_volumes_for_a_claim_that_looks_for_one", lists_candidates),
        story("reader_finds_who_holds_a_volume", finds_the_holder),
        story(
            "reader_finds_who_holds_a_volume_under_the_stock_loops",
            finds_the_holder_under_the_stock_loops,
        )
        .only_real("The stock controllers are at work there."),
        story("reader_sees_an_attachment_that_does_not_go", sees_a_stuck_attachment),
        story("commands_answer_where_the_stock_loops_rule", commands)
            .only_real("The stock controllers are at work there."),
        story("reader_of_one_namespace_says_what_it_may_not_see", one_namespace)
            .only_real("kube-apiserver refuses by roles."),
    ]
}

/// What was asked for: path and query.
type Asked = Arc<Mutex<Vec<String>>>;

/// A reader with all rights, and what it asks for.
fn reader(stage: &Stage) -> (Reader, Asked) {
    let asked = Asked::default();
    let (client, record) = (stage.proxied_client(), Arc::clone(&asked));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        assert_eq!(request.method(), http::Method::GET, "a reader only reads");
        record.lock().unwrap().push(request.uri().to_string());
        let client = client.clone();
        async move { client.send(request).await }
    });
    let api = ApiServer::in_process(Client::new(service, NAMESPACE));
    (Reader::new(&api, None).unwrap(), asked)
}

async fn read(reader: &Reader, kind: &str, name: &str) -> Snapshot {
    let subject = subject::named(kind, NAMESPACE, name).unwrap();
    reader.read(&Question::Object(subject)).await.unwrap()
}

/// How the volume stands on each node: what it waits for, and the next write.
fn node_volumes(snapshot: &Snapshot) -> Vec<(String, Option<Waiting>, Option<AttachmentCall>)> {
    let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
    let options = AttachDetachOptions::default();
    let outlook = attach_detach::dry_run::dry_run(&snapshot.objects, options, &is_absent, snapshot.taken_at);
    outlook
        .node_volumes
        .into_iter()
        .map(|((_, node), node_volume)| (node.to_string(), node_volume.waiting, node_volume.write))
        .collect()
}

/// The code of a claim's reason; none if it is settled.
fn reason(snapshot: &Snapshot, claim: &str) -> Option<&'static str> {
    let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
    let outlook = binder::dry_run::dry_run(&snapshot.objects, &BinderOptions::default(), None, &is_absent);
    let place = outlook.claims.get(&ClaimKey::new(NAMESPACE, claim)).cloned().unwrap_or_default();
    assert_eq!(place.write, None);
    place.reason.as_ref().map(|reason| reason.code())
}

async fn asks_by_name(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.published("n1", &["v1"]).await;

    let attachment = attachment_name("v1", DRIVER, "n1");
    for (kind, name) in [("pvc", "c1"), ("pod", "p1"), ("va", attachment.as_str()), ("node", "n1")] {
        let (reader, asked) = reader(&stage);
        let snapshot = read(&reader, kind, name).await;
        assert_eq!(snapshot.unseen, [], "{kind}");
        let asked = asked.lock().unwrap().clone();
        let lists: Vec<&String> = asked
            .iter()
            .filter(|uri| {
                ["persistentvolumes?", "volumeattachments?", "claims?", "/leases"]
                    .iter()
                    .any(|list| uri.contains(list))
            })
            .collect();
        // Of a node, all that is attached there; of an attachment, whether the disk is on a second node, too.
        let is_meant = |list: &&String| kind != "pod" && kind != "pvc" && list.contains("volumeattachments?");
        assert!(lists.iter().all(is_meant) && lists.len() <= 1, "{kind}: {lists:?}");
        assert!(asked.len() <= 14, "{kind}: {} requests: {asked:#?}", asked.len());
        // The volume on the other node is none of its business.
        assert!(snapshot.objects.volumes.get(&VolumeName::from("v2")).is_none(), "{kind}");
        assert!(snapshot.objects.attachments.get(&attachment.as_str().into()).is_some(), "{kind}");
        let node_volumes = node_volumes(&snapshot);
        assert_eq!(node_volumes, [("n1".to_owned(), None, None)], "{kind}");
        if kind != "node" {
            assert_eq!(reason(&snapshot, "c1"), None, "{kind}");
        }
    }
}

async fn lists_candidates(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.pair_bound_by_hand("v1", "c1").await;
    cluster.claim("c2").await;
    let (reader, asked) = reader(&stage);
    let snapshot = read(&reader, "pvc", "c2").await;
    assert_eq!(snapshot.unseen, []);
    assert!(snapshot.objects.volumes.get(&VolumeName::from("v1")).is_some());
    let lists = asked.lock().unwrap().iter().filter(|uri| uri.contains("/persistentvolumes?")).count();
    assert_eq!(lists, 1);
    assert_eq!(reason(&snapshot, "c2"), Some("NoClassAndNoMatch"));
}

async fn finds_the_holder(stage: Stage) {
    let _daemon = stage.daemon().await;
    holder(&stage).await;
}

/// The stock loops rule, and no daemon runs.
async fn finds_the_holder_under_the_stock_loops(stage: Stage) {
    let loops = ["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"];
    let _stock = stage.real().plane.controller_manager(
        &loops,
        &["--kube-api-qps=-1", "--kube-api-burst=-1", "--pvclaimbinder-sync-period=500ms"],
    );
    holder(&stage).await;
}

async fn holder(stage: &Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.pod("p2", "n2", &["c1"]).await;
    cluster.event("p2", "FailedAttachVolume").await;

    for (kind, name) in [("pod", "p2"), ("pvc", "c1"), ("pv", "v1")] {
        let (reader, _) = reader(stage);
        let snapshot = read(&reader, kind, name).await;
        assert_eq!(snapshot.unseen, [], "{kind}");
        let node_volumes = node_volumes(&snapshot);
        let waiting =
            node_volumes.iter().find(|(node, ..)| node == "n2").map(|(_, waiting, _)| waiting.clone());
        let code = waiting.flatten().map(<&str>::from);
        assert_eq!(code, Some("HeldByNode"), "{kind}: {node_volumes:?}");
        assert!(node_volumes.iter().any(|(node, ..)| node == "n1"), "{kind}: {node_volumes:?}");
    }
    let (reader, _) = reader(stage);
    let snapshot = read(&reader, "pod", "p2").await;
    let told =
        |event: &k8s_openapi::api::core::v1::Event| event.reason.as_deref() == Some("FailedAttachVolume");
    assert!(snapshot.events.iter().any(told), "{:?}", snapshot.events);
}

async fn sees_a_stuck_attachment(stage: Stage) {
    let (attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    attacher.change(|behaviour| behaviour.detach = Reaction::Fail("cannot detach now".to_owned()));
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.delete_pod("p1").await;
    cluster.detach_error("v1", "n1").await;

    let (reader, _) = reader(&stage);
    let attachment = attachment_name("v1", DRIVER, "n1");
    let snapshot = read(&reader, "va", &attachment).await;
    assert_eq!(snapshot.unseen, []);
    let found = snapshot.objects.attachments.get(&attachment.as_str().into()).unwrap();
    assert!(found.metadata.is_terminating() && found.status.detach_error.is_some());
    let node_volumes = node_volumes(&snapshot);
    let [(node, Some(waiting), None)] = node_volumes.as_slice() else { panic!("{node_volumes:?}") };
    assert_eq!((node.as_str(), <&str>::from(waiting)), ("n1", "DetachError"));
    attacher.change(|behaviour| behaviour.detach = Reaction::Succeed(std::time::Duration::ZERO));
    cluster.detached("v1", "n1").await;
}

/// By its own kubeconfig, over the network.
async fn one_namespace(stage: Stage) {
    let plane = &stage.real().plane;
    let admin = Cluster::new(plane.client(User::Admin));
    let role = "rbac.authorization.k8s.io/v1";
    for manifest in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "tenant", "namespace": NAMESPACE } }),
        json!({
            "apiVersion": role, "kind": "Role", "metadata": { "name": "tenant", "namespace": NAMESPACE },
            "rules": [{
                "apiGroups": [""], "resources": ["pods", "persistentvolumeclaims", "events"],
                "verbs": ["get", "list"],
            }],
        }),
        json!({
            "apiVersion": role, "kind": "RoleBinding", "metadata": { "name": "tenant", "namespace": NAMESPACE },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant" },
            "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": NAMESPACE }],
        }),
    ] {
        admin.apply(&manifest.to_string()).await;
    }
    stage.cluster.pair_bound_by_hand("v1", "c1").await;
    stage.cluster.claim("c2").await;
    stage.cluster.pod("p1", "n1", &["c1"]).await;

    let token = plane.service_account_token(NAMESPACE, "tenant").await;
    let kubeconfig = plane.kubeconfig(plane.url(), &token);
    let choice = Choice { kubeconfig: Some(kubeconfig), ..Choice::default() };
    let api = ApiServer::choose(&choice).await.unwrap();
    let reader = Reader::new(&api, None).unwrap();
    let forbidden = async |kind: &str, name: &str| -> Vec<String> {
        let snapshot = read(&reader, kind, name).await;
        assert!(snapshot.unseen.iter().all(|unseen| unseen.forbidden), "{:?}", snapshot.unseen);
        snapshot.unseen.into_iter().map(|unseen| unseen.what).collect()
    };
    assert_eq!(forbidden("pvc", "c1").await, ["pv/v1"]);
    assert_eq!(
        forbidden("pvc", "c2").await,
        [
            "csidrivers",
            "leases",
            "leases in kube-system",
            "leases in mooring-system",
            "persistentvolumes",
            "storageclasses"
        ]
    );
    assert_eq!(forbidden("pod", "p1").await, ["csinode/n1", "node/n1", "pv/v1"]);
    // Events about nodes are in the namespace.
    let of_node = ["csinode/n1", "node/n1", "pods on n1", "volumeattachments"];
    assert_eq!(forbidden("node", "n1").await, of_node);
    // The program says the same, and its exit code tells it from an answer.
    let asked = async |words: &[&str]| {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(words).arg("--kubeconfig").arg(choice.kubeconfig.as_ref().unwrap());
        let output = command.output().await.unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), stdout, String::from_utf8(output.stderr).unwrap())
    };
    let (code, stdout, stderr) = asked(&["explain", "pvc", "c2", "-o", "json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, answer["verdict"].as_str()), (Some(6), Some("Forbidden")), "{stdout}{stderr}");
    assert_eq!(answer["unseen"][4]["what"], "persistentvolumes");
    let admin_token = plane.token(User::Admin);
    let (code, stdout, stderr) = asked(&["explain", "pvc/c2", "--token", &admin_token]).await;
    assert_eq!(code, Some(2), "{stdout}{stderr}");
    assert!(stdout.contains("NoClassAndNoMatch") && !stdout.contains('\u{1b}'), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    let (code, stdout, stderr) = asked(&["explain", "pvc/none", "--token", &admin_token, "-o", "yaml"]).await;
    assert_eq!(code, Some(3), "{stdout}{stderr}");
    let (code, stdout, stderr) = asked(&["explain", "pvc/c1", "--token", "stranger"]).await;
    assert_eq!((code, stdout.as_str()), (Some(5), ""), "{stderr}");
    // Of a cluster of which one sees one namespace, that is told, and what could not be checked.
    let (code, stdout, stderr) = asked(&["doctor"]).await;
    assert_eq!(code, Some(6), "{stdout}{stderr}");
    let unchecked = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, unchecked) = unchecked.split_once("not checked: you may not read: ").unwrap_or_default();
    for what in ["nodes", "pods of other namespaces", "persistentvolumes", "volumeattachments", "leases"] {
        assert!(unchecked.split(", ").any(|named| named == what), "{what}: {stdout}");
    }
    // What of it needs a person is found all the same.
    stage.cluster.pod("p2", "n1", &["nowhere"]).await;
    let (code, stdout, stderr) = asked(&["doctor"]).await;
    assert_eq!(code, Some(2), "{stdout}{stderr}");
    let found = "1 BLOCKED  ClaimMissing pvc/nowhere  1 pod  1 pod waiting";
    assert!(stdout.contains(found) && stdout.contains("mooring explain pod/p2 -n"), "{stdout}");
    let (code, stdout, stderr) = asked(&["repair", "free", "pv/v1", "--yes"]).await;
    assert!(code == Some(6) && stdout.starts_with("REFUSED"), "{stdout}{stderr}");
    // A server that does not know who asks.
    let stranger = Choice { token: Some("stranger".to_owned()), ..choice };
    let reader = Reader::new(&ApiServer::choose(&stranger).await.unwrap(), None).unwrap();
    let subject = subject::named("pvc", NAMESPACE, "c1").unwrap();
    let error = reader.read(&Question::Object(subject)).await.unwrap_err();
    assert!(error.contains("does not accept the credentials"), "{error}");
}

/// `doctor`, `node`, `whatif` and `repair` as they are typed, and a repair that the stock binder finishes.
async fn commands(stage: Stage) {
    let plane = &stage.real().plane;
    let loops = ["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"];
    let quick = ["--kube-api-qps=-1", "--kube-api-burst=-1", "--pvclaimbinder-sync-period=500ms"];
    let _stock = plane.controller_manager(&loops, &quick);
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.published("n1", &["v1"]).await;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let asked = async |words: &str| {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(words.split(' ')).arg("--kubeconfig").arg(&kubeconfig);
        let output = command.output().await.unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), stdout, String::from_utf8(output.stderr).unwrap())
    };

    let (code, stdout, stderr) = asked("node n1").await;
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("n1  Ready") && stdout.contains("default/p1"), "{stdout}");
    let (code, stdout, stderr) = asked("whatif delete pod p1 -o json").await;
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, answer["effects"][0]["action"].as_str()),
        (Some(0), Some("Detach")),
        "{stdout}{stderr}"
    );
    let (code, stdout, _) = asked("repair free v1").await;
    assert!(code == Some(2) && stdout.starts_with("REFUSED"), "{stdout}");
    cluster.claim("c2").await;
    let (code, stdout, stderr) = asked("doctor").await;
    assert_eq!(code, Some(2), "{stdout}{stderr}");
    assert!(stdout.contains("NoClassAndNoMatch") && stdout.contains("mooring explain pvc/c2"), "{stdout}");

    // Under the name by which kubectl finds it, what it names can be typed.
    let plugin = kubeconfig.with_file_name("kubectl-mooring");
    std::os::unix::fs::symlink(PROGRAM, &plugin).unwrap();
    let mut command = tokio::process::Command::new(&plugin);
    let output = command.arg("doctor").arg("--kubeconfig").arg(&kubeconfig).output().await.unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains(" kubectl mooring explain pvc/c2"), "{stdout}");

    // A claim that was deleted and made anew finds its volume with the former claim's data.
    cluster.bound_pair("v3", "c3").await;
    cluster.delete_claim("c3").await;
    cluster.volume_phase("v3", "Released").await;
    cluster.claim_for("c3", "v3").await;
    let (code, proposed, stderr) = asked("repair relink c3 v3").await;
    assert!(code == Some(0) && proposed.contains("PATCH /api/v1/persistentvolumes/v3"), "{proposed}{stderr}");
    cluster.volume_phase("v3", "Released").await;
    let (code, stdout, stderr) = asked("repair relink c3 v3 --yes").await;
    assert!(
        code == Some(0) && stdout.contains("SENT  ") && stdout.contains("explain pvc/c3 -n "),
        "{stdout}{stderr}"
    );
    cluster.bound("c3", "v3").await;
}
