//! `mooring observe` beside a process that rules: it writes nothing, tells what is unsafe, and finds alike what is.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use apiserver::connect::ApiServer;
use k8s_openapi::api::core::v1::Node;
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
use serde_json::json;
use test_support::{
    audit,
    cluster::{patch_status, unique_name, within_deadline},
    daemon::Launch,
    process::Process,
};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

use crate::{
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

/// The program beside kube-controller-manager, with the rights of `deploy/observe` and the audit log.
async fn program(stage: &Stage) -> Process {
    for manifest in
        [include_str!("../../deploy/observe/namespace.yaml"), include_str!("../../deploy/observe/rbac.yaml")]
    {
        stage.cluster.apply(manifest).await;
    }
    let plane = &stage.real().plane;
    let token = plane.service_account_token(ACCOUNT, ACCOUNT).await;
    let kubeconfig = plane.kubeconfig(plane.url(), &token).display().to_string();
    let words = [
        "observe".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--audit-log={}", plane.audit_log().display()),
    ];
    let from = audit::length(&plane.audit_log());
    let process = Process::start("observe", Path::new(PROGRAM), &words, &[]);
    let lists = || {
        let entries = audit::read(&plane.audit_log(), from);
        let of_it = entries.into_iter().filter(|it| it.user.ends_with(ACCOUNT) && it.verb == "list");
        of_it.map(|it| it.resource).collect::<BTreeSet<_>>().len()
    };
    let listed = async {
        while lists() < 7 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    within_deadline("it lists all kinds", listed).await.unwrap();
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
    let mut observing = program(&stage).await;
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
    let entries = audit::read(&plane.audit_log(), from);
    let verbs: BTreeSet<String> =
        entries.into_iter().filter(|it| it.user.ends_with(ACCOUNT)).map(|it| it.verb).collect();
    let allowed = ["get", "list", "watch"].map(str::to_owned);
    assert!(!verbs.is_empty() && verbs.iter().all(|verb| allowed.contains(verb)), "{verbs:?}");
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
    let mut observing = program(&stage).await;
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
