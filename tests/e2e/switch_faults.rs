//! `mooring switch` while others fail: the daemon and kube-controller-manager are killed on the way, and one of two API servers
//! is late.

use std::{path::Path, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::Value;
use test_support::{
    audit::DAEMON,
    cluster::within_deadline,
    control_plane::{AnotherApiServer, User},
    wire::Balancer,
};

use crate::{
    fence::the_two,
    stage::{DAEMON_NAMESPACE, Stage, Story, story},
    switching::{Installed, Movers, Site, churn, deployment, signal},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("switch_goes_on_whoever_is_killed", whoever_is_killed)
            .only_real_if_all("Processes are killed, and leases expire in real time."),
        story("switch_waits_for_an_api_server_that_is_late", late_server)
            .only_real_if_all("Each kube-apiserver reads policies by itself."),
    ]
}

const OVER: [&str; 3] = ["--to", "mooring", "--yes"];
const BACK: [&str; 3] = ["--to", "kube-controller-manager", "--yes"];

/// Who is killed (SIGKILL) when the switch says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Daemon,
    Manager,
}

/// Switches, while somebody is killed when it says that. No process of kube-controller-manager that runs behind the fence is left
/// when the fence goes.
async fn switch(
    installed: &Installed,
    words: &[&str],
    movers: &mut Movers<'_>,
    kill: Option<(&str, Killed)>,
) {
    let (mut was_killed, mut fenced_off) = (false, None);
    let mut going = installed.begin(words);
    while let Some(line) = going.line().await {
        movers.go().await;
        if line.contains("stop mooring") {
            fenced_off = installed.manager();
        }
        if line.contains("take the fence down") {
            assert_ne!(installed.manager(), fenced_off, "it was denied writes, and goes on");
        }
        let Some((_, killed)) = kill.filter(|(at, _)| line.contains(at)) else { continue };
        assert!(!was_killed, "{line} is said once");
        was_killed = true;
        match killed {
            Killed::Daemon => installed.kill_daemon().await,
            Killed::Manager => installed.kill_manager().await,
        }
    }
    let (code, said) = going.ended().await;
    assert!(code == Some(0) && said.contains("done"), "{code:?} {said}");
    assert_eq!(was_killed, kill.is_some(), "{said}");
    movers.arrive().await;
}

/// The same command ends with done, and nobody breaks a promise.
async fn whoever_is_killed(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let mut deployment = deployment();
    deployment["spec"]["replicas"] = 2.into();
    let installed = Installed::at(&stage, Site { deployment, ..Site::default() }).await;
    let mut movers = Movers::start(&stage).await;
    let rounds = [
        [("raise the fence", Killed::Manager), ("let mooring finish", Killed::Daemon)],
        [
            ("wait until mooring leads", Killed::Daemon),
            ("hold kube-controller-manager's lease", Killed::Manager),
        ],
        [("raise the fence", Killed::Daemon), ("give up kube-controller-manager's lease", Killed::Manager)],
    ];
    for (round, [over, back]) in rounds.into_iter().enumerate() {
        switch(&installed, &OVER, &mut movers, Some(over)).await;
        churn(&stage, 2 * round).await;
        switch(&installed, &BACK, &mut movers, Some(back)).await;
        churn(&stage, 2 * round + 1).await;
    }
    installed.ends_well().await;
}

/// What a server's audit log says, line by line.
fn audited(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).expect("read the audit log");
    // The last line may still be being written.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Whether it is the answer to a probe of one of the fences that are raised.
fn is_probe(entry: &Value) -> bool {
    let name = entry["requestObject"]["metadata"]["name"].as_str().unwrap_or_default();
    entry["verb"] == "create" && the_two().iter().any(|fence| fence.name() == name)
}

fn is_denied(entry: &Value) -> bool {
    is_probe(entry) && entry["responseStatus"]["code"] == 403
}

fn is_passed(entry: &Value) -> bool {
    is_probe(entry) && entry["responseStatus"]["code"] == 201
}

/// Whether it is a write of the lease of that name by which the holder becomes nobody, or somebody.
fn gives(entry: &Value, lease: &str, to_nobody: bool) -> bool {
    let object = &entry["objectRef"];
    let holder = entry["responseObject"]["spec"]["holderIdentity"].as_str();
    object["resource"] == "leases"
        && object["name"] == lease
        && holder.is_some_and(|it| it.is_empty() == to_nobody)
}

fn by(entry: &Value, user: &str) -> bool {
    entry["user"]["username"] == user
}

fn time<'a>(entry: &'a Value, stage: &str) -> &'a str {
    entry[stage].as_str().expect("a time")
}

/// The users who look at the fence.
fn lookers() -> [String; 2] {
    [DAEMON.to_owned(), format!("system:serviceaccount:{DAEMON_NAMESPACE}:switcher")]
}

/// Waits until each of these users has had such answers from a server in three looks, each at two fences.
async fn answered(log: &Path, before: usize, users: &[String], is_it: fn(&Value) -> bool) {
    let enough = async {
        let mut pause = tokio::time::interval(Duration::from_millis(100));
        loop {
            pause.tick().await;
            let entries = audited(log).split_off(before);
            let count =
                |user: &String| entries.iter().filter(|entry| by(entry, user) && is_it(entry)).count();
            if users.iter().all(|user| count(user) >= 6) {
                return;
            }
        }
    };
    within_deadline("each has asked the first server", enough).await.unwrap_or_else(|late| panic!("{late}"));
}

/// One of two servers, which stands still for a while.
struct Late<'a> {
    other: u32,
    balancer: &'a Balancer,
    /// The audit log of the other one.
    first: &'a Path,
    /// How long that log was then.
    frozen_at: Option<usize>,
}

impl Late<'_> {
    /// Switches. From one step on the server stands still, until those who look have had many answers of the other one.
    async fn switch(
        &mut self,
        installed: &Installed,
        words: &[&str],
        movers: &mut Movers<'_>,
        (at, users, is_it): (&str, &[String], fn(&Value) -> bool),
    ) {
        let mut going = installed.begin(words);
        while let Some(line) = going.line().await {
            if let Some(before) = self.frozen_at.take() {
                answered(self.first, before, users, is_it).await;
                signal("-CONT", self.other);
                self.balancer.put_back();
            }
            if line.contains(at) {
                signal("-STOP", self.other);
                self.balancer.take_out();
                self.frozen_at = Some(audited(self.first).len());
            }
            movers.go().await;
        }
        let (code, said) = going.ended().await;
        assert!(code == Some(0) && said.contains("done"), "{code:?} {said}");
        movers.arrive().await;
    }
}

/// Starts it, and waits until it serves and has its lease.
async fn another_api_server(stage: &Stage, leases: &Api<Lease>) -> (AnotherApiServer, String) {
    let plane = &stage.real().plane;
    let other = plane.another_api_server();
    let url = format!("https://127.0.0.1:{}", other.port);
    let client = plane.client_at(&url, Some(&plane.token(User::Admin)));
    let serving = async {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        loop {
            pause.tick().await;
            let readyz = http::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(readyz).await.is_ok() && identities(leases).await.len() == 2 {
                return;
            }
        }
    };
    within_deadline("there are two API servers", serving).await.unwrap_or_else(|late| panic!("{late}"));
    (other, url)
}

/// The leases by which API servers identify themselves.
async fn identities(leases: &Api<Lease>) -> Vec<String> {
    let list = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    let found = leases.list(&list).await.unwrap();
    found.items.into_iter().filter_map(|lease| lease.metadata.name).collect()
}

/// A server that stands still when the fence is raised, and when it is taken down, is waited for: mooring leads, and
/// kube-controller-manager is let go, after that server has been seen to do the same as the other.
async fn late_server(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let plane = &stage.real().plane;
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), "kube-system");
    let first_alone = identities(&leases).await;
    let (mut other, url) = another_api_server(&stage, &leases).await;
    let balancer = Balancer::before([plane.url(), &url]).await;
    let site = Site { servers: Some(balancer.url().to_owned()), ..Site::default() };
    let installed = Installed::at(&stage, site).await;
    let mut movers = Movers::start(&stage).await;
    let (first, second) = (plane.audit_log(), other.audit_log.clone());
    let begun = [&first, &second].map(|log| audited(log).len());

    let [daemon, switcher] = lookers();
    let mut late = Late { other: other.process.id(), balancer: &balancer, first: &first, frozen_at: None };
    late.switch(
        &installed,
        &OVER,
        &mut movers,
        ("raise the fence", &lookers(), is_denied as fn(&Value) -> bool),
    )
    .await;
    let back = ("take the fence down", std::slice::from_ref(&switcher), is_passed as fn(&Value) -> bool);
    late.switch(&installed, &BACK, &mut movers, back).await;
    churn(&stage, 1).await;

    let [of_first, of_second] =
        [(&first, begun[0]), (&second, begun[1])].map(|(log, before)| audited(log).split_off(before));
    let both = || of_first.iter().chain(&of_second);
    let taken = both().filter(|entry| by(entry, &daemon) && gives(entry, "mooring", false));
    let taken = taken.map(|entry| time(entry, "requestReceivedTimestamp")).min().expect("mooring has led");
    let denied = of_second.iter().find(|entry| by(entry, &daemon) && is_denied(entry));
    let denied = time(denied.expect("the second server was asked"), "stageTimestamp");
    assert!(denied < taken, "mooring has led since {taken}, and the second server denies since {denied}");

    let given = both().find(|entry| by(entry, &switcher) && gives(entry, "kube-controller-manager", true));
    let given = time(given.expect("the lease was given up"), "requestReceivedTimestamp");
    let last_denied = of_second.iter().rposition(|entry| by(entry, &switcher) && is_denied(entry));
    let after = &of_second[last_denied.expect("the switch has asked it")..];
    let passed = after.iter().find(|entry| by(entry, &switcher) && is_passed(entry));
    let passed = time(passed.expect("the second server lets it pass"), "stageTimestamp");
    assert!(
        passed < given,
        "the lease was given up at {given}, and the second server lets pass since {passed}"
    );

    // Else the next fence would wait a minute for the server that is gone.
    installed.ends_well().await;
    other.process.kill();
    for name in identities(&leases).await {
        if !first_alone.contains(&name) {
            leases.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    }
}
