//! `mooring observe` beside a process that rules: it writes nothing, tells what is unsafe, and finds alike what is.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use apiserver::connect::ApiServer;
use http::StatusCode;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume},
    storage::v1::VolumeAttachment,
};
use kube::api::{ListParams, PostParams};
use mooring::{
    cli::{self, Command},
    config::Config,
    explain::report::Verdict,
    observe::{
        ObserveOrder, ObserveStop,
        mutation::MutationKind,
        observe,
        summary::{Difference, DifferenceKind, Summary},
    },
    supervise::Threads,
};
use serde_json::{Value, json};
use test_support::{
    audit,
    backend::METRICS_READER,
    cluster::{patch_status, unique_name, within_deadline},
    control_plane::free_ports,
    daemon::Launch,
    process::Process,
    visitor::{Credentials, ask},
};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

use crate::{
    deploy::kubectl,
    harness::{attach_by_hand, attached_by_hand, publish_by_hand},
    stage::{PROGRAM, Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("observe_tells_a_disk_that_is_attached_twice", attached_twice).only_embedded(),
        story("observe_finds_a_ruler_alike_that_decides_as_mooring_does", alike).only_embedded(),
        story("observe_tells_what_the_ruler_does_not_do", not_done).only_embedded(),
        story("observe_that_ends_for_a_cause_has_its_summary", ended_for_a_cause).only_embedded(),
        story("observe_finds_kube_controller_manager_alike_and_only_reads", alike_to_kcm)
            .only_real_if_all("kube-controller-manager rules, and the audit log has all that was asked."),
        story("observe_tells_that_kube_controller_manager_attaches_a_disk_twice", kcm_attaches_twice)
            .only_real("kube-controller-manager rules."),
        story("observe_tells_what_admission_would_refuse_and_stores_nothing", rehearsed)
            .only_real("kube-apiserver admits and refuses dry runs."),
    ]
}

/// An observation in this process.
struct Observing {
    lines: Arc<Mutex<Vec<String>>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<(Summary, Result<(), ObserveStop>)>,
}

impl Observing {
    fn begin(stage: &Stage) -> Self {
        let words = ["mooring", "run", "--leader-elect=false", "--secure-port=0"];
        let Ok(cli) = cli::parse(words) else { panic!("{words:?}") };
        let Command::Run(args) = cli.command else { panic!("it is run") };
        let config = Config::try_from(*args).unwrap();
        let api = ApiServer::in_process(stage.proxied_client());
        let (stop, stopped) = oneshot::channel::<()>();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let shown = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            let show = move |difference: &Difference| {
                shown.lock().unwrap().push(difference.line());
            };
            let order = ObserveOrder { config, rehearses: false, audit_log: None };
            observe(order, &api, Threads::Shared, stop, show).await.unwrap()
        });
        Self { lines, stop, task }
    }

    /// What comes to be wanted soon after the start counts as wanted before.
    async fn settle() {
        sleep(Duration::from_secs(5)).await;
    }

    async fn tells(&self, part: &str) {
        let told = async {
            while !self.lines.lock().unwrap().iter().any(|line| line.contains(part)) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let told = within_deadline(part, told).await;
        told.unwrap_or_else(|error| panic!("{error}: {:#?}", self.lines.lock().unwrap()));
    }

    async fn end(self) -> Summary {
        drop(self.stop);
        let (summary, ended) = self.task.await.unwrap();
        ended.unwrap();
        summary
    }
}

/// The ruler is the test itself.
async fn attached_twice(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    let observing = Observing::begin(&stage);
    cluster.pod("p1", "n1", &["c1"]).await;
    attach_by_hand(cluster, "v1", "n1").await;
    attached_by_hand(&stage, "v1", "n1").await;
    publish_by_hand(cluster, "n1", &["v1"]).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    attach_by_hand(cluster, "v1", "n2").await;
    observing.tells("UNSAFE S1: ").await;
    observing.tells("is for one node alone; it is attached to node/n2 while node/n1 has it").await;
    let summary = observing.end().await;
    assert_eq!(summary.exit(), Verdict::Blocked, "{summary:#?}");
    let kinds: Vec<_> = summary.differences.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [DifferenceKind::Unsafe], "{summary:#?}");
    assert_eq!(stage.proxy.writes().len(), 0, "nothing is written");
}

/// The ruler is a daemon, which writes through another proxy.
async fn alike(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    let rulers = stage.another_proxy().await;
    let observing = Observing::begin(&stage);
    Observing::settle().await;
    let _ruler = stage.start_daemon(&Launch::alone(), &rulers).await;
    for number in 1..=3 {
        cluster.bound_pair(&format!("v{number}"), &format!("c{number}")).await;
        cluster.pod(&format!("p{number}"), "n1", &[&format!("c{number}")]).await;
        cluster.running(&format!("p{number}")).await;
    }
    cluster.delete_pod("p1").await;
    cluster.detached("v1", "n1").await;
    cluster.pod("p4", "n2", &["c1"]).await;
    cluster.running("p4").await;
    let summary = observing.end().await;
    assert_eq!(summary.exit(), Verdict::Healthy, "{summary:#?}");
    assert_eq!(summary.differences, []);
    for kind in [MutationKind::Attach, MutationKind::Detach, MutationKind::List, MutationKind::NameVolume] {
        let tally = &summary.mutations[&kind];
        assert_eq!(tally.acts, tally.mooring_first + tally.ruler_first, "{kind:?}: {summary:#?}");
        assert!(tally.acts > 0, "{kind:?}: {summary:#?}");
    }
    assert_eq!(stage.proxy.writes().len(), 0, "nothing is written");
}

/// The controllers that are observed.
const LOOPS: [&str; 2] = ["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"];
/// Each loop is a user of its own, without a limit, and looks at every claim twice a second instead of every 15 seconds.
const QUICK: [&str; 4] = [
    "--use-service-account-credentials=true",
    "--kube-api-qps=1000",
    "--kube-api-burst=1000",
    "--pvclaimbinder-sync-period=500ms",
];
/// The account of `deploy/observe`, and its namespace.
const ACCOUNT: &str = "mooring-observe";
const DEPLOYMENT: &str = include_str!("../../deploy/observe/deployment.yaml");

/// What the container of `deploy/observe` is started with, but for the port.
fn arguments(port: u16) -> Vec<String> {
    let deployment: Value = serde_saphyr::from_str(DEPLOYMENT).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
    let served = format!("--secure-port={}", container["ports"][0]["containerPort"]);
    let (of_port, mut rest): (Vec<&str>, Vec<&str>) = arguments.partition(|argument| *argument == served);
    assert_eq!(of_port.len(), 1, "{served}");
    let port = format!("--secure-port={port}");
    rest.push(&port);
    rest.into_iter().map(str::to_owned).collect()
}

/// The metrics are for who may read those of mooring.
async fn serves(stage: &Stage, port: u16) {
    let reader = stage.visitor("prometheus", &[METRICS_READER]).await;
    let url = format!("https://127.0.0.1:{port}");
    let asked = async |credentials: Credentials| {
        let client = credentials.client(&url);
        loop {
            if let Some(answer) = ask(&client, "/metrics").await {
                return answer;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let answers = async { (asked(Credentials::default()).await, asked(Credentials::token(reader)).await) };
    let (nobody, reader) = within_deadline("it serves", answers).await.unwrap();
    assert_eq!(nobody.0, StatusCode::UNAUTHORIZED);
    assert_eq!(reader.0, StatusCode::OK, "{}", reader.1);
    assert!(reader.1.contains("\nmooring_observe_acts_total{"), "{}", reader.1);
}

/// The program beside kube-controller-manager, with the arguments and the rights of `deploy/observe`, and the audit log.
async fn program(stage: &Stage, more: &[&str]) -> Process {
    for manifest in
        [include_str!("../../deploy/observe/namespace.yaml"), include_str!("../../deploy/observe/rbac.yaml")]
    {
        stage.cluster.apply(manifest).await;
    }
    let plane = &stage.real().plane;
    let token = plane.service_account_token(ACCOUNT, ACCOUNT).await;
    let kubeconfig = plane.kubeconfig(plane.url(), &token).display().to_string();
    let [port] = free_ports();
    let mut words = arguments(port);
    words.push(format!("--kubeconfig={kubeconfig}"));
    words.push(format!("--audit-log={}", plane.audit_log().display()));
    words.extend(more.iter().map(|flag| (*flag).to_owned()));
    let from = audit::length(&plane.audit_log());
    let process = Process::start("observe", Path::new(PROGRAM), &words, &[]);
    let lists = || {
        let entries = audit::read(&plane.audit_log(), from);
        let of_it = entries.into_iter().filter(|it| it.user.ends_with(ACCOUNT) && it.verb == "list");
        // Which authorities of clients there are is read for the port.
        of_it.filter(|it| it.resource != "configmaps").map(|it| it.resource).collect::<BTreeSet<_>>().len()
    };
    let listed = async {
        while lists() < 7 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    within_deadline("it lists all kinds", listed).await.unwrap();
    serves(stage, port).await;
    Observing::settle().await;
    process
}

async fn alike_to_kcm(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    let plane = &stage.real().plane;
    let from = audit::length(&plane.audit_log());
    let mut observing = program(&stage, &[]).await;
    let _kcm = plane.controller_manager(&LOOPS, &QUICK);
    for round in 0..3 {
        for number in 0..4 {
            let name = format!("{round}-{number}");
            cluster.bound_pair(&format!("v{name}"), &format!("c{name}")).await;
            cluster.pod(&format!("p{name}"), "n1", &[&format!("c{name}")]).await;
        }
        for number in 0..4 {
            cluster.running(&format!("p{round}-{number}")).await;
        }
        for number in 0..2 {
            let name = format!("{round}-{number}");
            cluster.delete_pod(&format!("p{name}")).await;
            cluster.detached(&format!("v{name}"), "n1").await;
            cluster.pod(&format!("q{name}"), "n2", &[&format!("c{name}")]).await;
            cluster.running(&format!("q{name}")).await;
        }
    }
    let status = observing.terminate().await;
    let output = observing.log().tail(200);
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("ALIKE: "), "{output}");
    for account in ["attachdetach-controller", "persistent-volume-binder"] {
        assert!(output.contains(&format!("system:serviceaccount:kube-system:{account}")), "{output}");
    }
    only_reads(&stage, from);
}

/// Since that place of the audit log the account has asked for nothing else, but who asks for its metrics.
fn only_reads(stage: &Stage, from: usize) {
    let entries = audit::read(&stage.real().plane.audit_log(), from);
    let of_it = entries.into_iter().filter(|it| it.user.ends_with(ACCOUNT));
    let is_read = |it: &audit::Entry| ["get", "list", "watch"].contains(&it.verb.as_str());
    let (reads, others): (Vec<_>, Vec<_>) = of_it.partition(is_read);
    let others: BTreeSet<String> =
        others.into_iter().map(|it| format!("{} {}", it.verb, it.resource)).collect();
    assert!(!reads.is_empty());
    assert_eq!(others, ["create subjectaccessreviews", "create tokenreviews"].map(str::to_owned).into());
}

/// A kube-controller-manager that starts anew takes an attachment for uncertain that its node does not list, and what is
/// uncertain keeps no other node from attaching (H1).
async fn kcm_attaches_twice(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    attach_by_hand(cluster, "v1", "n1").await;
    attached_by_hand(&stage, "v1", "n1").await;
    let in_use = json!({ "status": { "volumesInUse": [unique_name("v1")] } });
    patch_status(&cluster.all::<Node>(), "n1", in_use).await;
    let from = audit::length(&stage.real().plane.audit_log());
    let mut observing = program(&stage, &[]).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    let _kcm = stage.real().plane.controller_manager(&LOOPS, &QUICK);
    let told = observing.log().find(|line| line.contains("UNSAFE S1: ").then(|| line.to_owned()));
    let told = within_deadline("the second attachment is told", told).await.unwrap().unwrap_or_default();
    let by = ", by system:serviceaccount:kube-system:attachdetach-controller)";
    assert!(told.ends_with(by), "{told}");
    let status = observing.terminate().await;
    let output = observing.log().tail(200);
    assert_eq!(status.code(), Some(2), "{output}");
    eprintln!("observed: {output}");
    only_reads(&stage, from);
}

/// There is no ruler at all.
async fn not_done(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    let observing = Observing::begin(&stage);
    Observing::settle().await;
    cluster.pod("p1", "n1", &["c1"]).await;
    observing.tells("WAIT: mooring creates the attachment volumeattachment/").await;
    let summary = observing.end().await;
    assert_eq!(summary.exit(), Verdict::Waiting, "{summary:#?}");
    assert_eq!(summary.differences.len(), 1, "{summary:#?}");
    assert_eq!(stage.proxy.writes().len(), 0, "nothing is written");
}

/// What was seen until then is not lost.
async fn ended_for_a_cause(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    let backup = stage.embedded().backup();
    let observing = Observing::begin(&stage);
    Observing::settle().await;
    cluster.pod("p1", "n1", &["c1"]).await;
    observing.tells("WAIT: mooring creates the attachment volumeattachment/").await;
    stage.history_ends().await;
    stage.embedded().restore(&backup, 0);
    let (summary, ended) = within_deadline("it ends", observing.task).await.unwrap().unwrap();
    let told = ended.unwrap_err().to_string();
    assert!(told.starts_with("etcd was restored"), "{told}");
    assert_eq!(summary.differences.len(), 1, "{summary:#?}");
}

/// Denies dry runs of attachments; the probes of a fence name another attacher.
const FROZEN: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [storage.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [volumeattachments]}
  matchConditions: [{name: driver, expression: \"object.spec.attacher != 'mooring.dev'\"}]
  validations: [{expression: 'false', message: attachments are frozen}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen}
spec: {policyName: frozen, validationActions: [Deny]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: rehearses}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mooring}
subjects: [{kind: ServiceAccount, name: mooring-observe, namespace: mooring-observe}]
";

/// With the rights of a daemon, beside nobody who rules: a policy refuses attachments, and nothing refuses the binder.
async fn rehearsed(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.pair_bound_by_hand("v1", "c1").await;
    cluster.apply(FROZEN).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let spec = json!({ "attacher": "x", "nodeName": "n1", "source": { "persistentVolumeName": "v1" } });
    let tried: VolumeAttachment =
        serde_json::from_value(json!({ "metadata": { "name": "tried" }, "spec": spec })).unwrap();
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    let is_enforced = async {
        while attachments.create(&trial, &tried).await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    within_deadline("the policy is enforced", is_enforced).await.unwrap();

    let mut observing = program(&stage, &["--dry-run-writes"]).await;
    cluster.volume("v2").await;
    cluster.claim("c2").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    let told = observing.log().find(|line| line.contains(" REFUSED: ").then(|| line.to_owned()));
    let told = within_deadline("the refusal is told", told).await.unwrap().unwrap_or_default();
    assert!(told.contains("POST /apis/storage.k8s.io/v1/volumeattachments would be refused: 422 "), "{told}");
    assert!(told.contains("attachments are frozen"), "{told}");
    // Nobody makes the volume Available, so the binder gets no further.
    let is_by_the_binder = |it: &audit::Entry| {
        it.user.ends_with(ACCOUNT) && it.verb == "patch" && it.resource.starts_with("persistentvolumes")
    };
    let binds = async {
        while !audit::dry_runs(&stage.real().plane.audit_log()).iter().any(is_by_the_binder) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    within_deadline("the binder's write is rehearsed", binds).await.unwrap();
    let status = observing.terminate().await;
    let output = observing.log().tail(200);
    assert_eq!(status.code(), Some(1), "{output}");
    assert_eq!(output.matches(" REFUSED: ").count(), 1, "{output}");
    assert_eq!(attachments.list(&ListParams::default()).await.unwrap().items.len(), 0);
    let volumes = cluster.all::<PersistentVolume>();
    assert_eq!(volumes.get("v2").await.unwrap().spec.unwrap().claim_ref, None, "a dry run stores nothing");

    let kinds = ["validatingadmissionpolicybinding", "validatingadmissionpolicy"]
        .map(|kind| format!("{kind}/frozen"));
    kubectl(&stage, &["delete", &kinds[0], &kinds[1], "clusterrolebinding/rehearses"]);
}
