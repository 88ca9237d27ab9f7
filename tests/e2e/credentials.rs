//! What a daemon shows and believes changes while it runs, outside of a cluster: its credential plugin hangs, or prints
//! a secret and fails; the API server has another certificate authority, or is behind a proxy.

use std::{fs, path::PathBuf};

use k8s_openapi::{
    api::coordination::v1::Lease,
    jiff::{SignedDuration, Timestamp},
};
use kube::Api;
use serde_json::{Value, json};
use test_support::{
    actors::{Attacher, AttacherBehaviour},
    cluster::{Cluster, DRIVER, until, within_deadline},
    control_plane::{ControlPlane, User},
    daemon::Launch,
    process::{Log, temporary_folder},
};
use testbed::forward_proxy::ForwardProxy;

use crate::{
    replicas::{new_holder, prepare},
    stage::{DAEMON_NAMESPACE, PROGRAM, Stage, Story, install, story},
};

/// Printed by a plugin that fails.
const SECRET: &str = "a-token-that-nobody-may-read";
/// Credentials that expire so soon are renewed, and hold until then.
const SOON: SignedDuration = SignedDuration::from_secs(59);

pub fn stories() -> Vec<Story> {
    vec![
        story("credentials_l15_a_plugin_that_hangs_or_fails_under_a_leader_keeps_nothing_waiting", plugin)
            .only_real("A process asks a credential plugin."),
        story(
            "credentials_m14_a_rotated_authority_ends_the_leader_and_is_read_by_the_next_process",
            rotation,
        )
        .only_real("A process believes an authority, which kube-apiserver changes."),
        story("credentials_m3_a_daemon_reaches_a_server_that_only_its_proxy_can_look_up", behind_a_proxy)
            .only_real("kube-apiserver's certificate has the name that is looked up."),
    ]
}

/// A plugin that does what stands in a file of its folder.
struct Script(PathBuf);

impl Script {
    fn new() -> Self {
        Self(temporary_folder("plugin"))
    }

    fn does(&self, text: &str) {
        let (new, file) = (self.0.join("new"), self.0.join("script"));
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn gives(&self, token: &str) {
        let expires = Timestamp::now() + SOON;
        let given = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": { "token": token, "expirationTimestamp": expires },
        });
        self.does(&format!("printf %s '{given}'"));
    }

    /// A kubeconfig whose user has this plugin.
    fn kubeconfig(&self, stage: &Stage) -> PathBuf {
        let plane = &stage.real().plane;
        let written = fs::read(plane.kubeconfig(plane.url(), "")).unwrap();
        let mut config: Value = serde_json::from_slice(&written).unwrap();
        config["users"][0]["user"] = json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": [self.0.join("script")],
        }});
        let file = self.0.join("kubeconfig");
        fs::write(&file, config.to_string()).unwrap();
        file
    }
}

/// Waits until it is logged.
async fn logged(log: &Log, text: &str) {
    let found = log.find(|line| line.contains(text).then_some(()));
    let found = within_deadline(&format!("{text:?} is logged"), found).await;
    assert!(matches!(found, Ok(Some(()))), "{text:?}: {}", log.tail(20));
}

async fn plugin(stage: Stage) {
    let _attacher = stage.attacher();
    let script = Script::new();
    script.gives(&stage.real().token);
    let launch = Launch::replica(DAEMON_NAMESPACE);
    let daemon = launch.start_process(PROGRAM, &script.kubeconfig(&stage));
    let log = stage.log_of(&daemon);
    // It has credentials when it serves. They are to be renewed as soon as may be, and this is what it meets.
    daemon.url().await;
    script.does("exec sleep 1000");
    daemon.ready().await;
    for number in 1..=3 {
        prepare(&stage, number).await;
    }
    let cluster = &stage.cluster;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    // Before it led, the lease may have been that of an earlier story.
    let holder = new_holder(&stage, "").await;
    logged(&log, "did not end within 30 s and was ended").await;

    script.does(&format!("echo {SECRET}; echo {SECRET} >&2; exit 3"));
    logged(&log, "of the kubeconfig failed (exit status: 3)").await;
    cluster.pod("p2", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;

    script.gives(&stage.real().token);
    cluster.pod("p3", "n3", &["c3"]).await;
    cluster.published("n3", &["v3"]).await;
    assert_eq!(new_holder(&stage, "").await, holder, "it has led all the time");
    assert_eq!(log.count(SECRET), 0, "{}", log.tail(20));
}

/// Watches, writes that wait for `100 Continue`, and the lease go through one tunnel each.
async fn behind_a_proxy(stage: Stage) {
    let _attacher = stage.attacher();
    let real = stage.real();
    let server = real.plane.url().strip_prefix("https://").unwrap().parse().unwrap();
    for protocol in ["http", "socks5"] {
        let proxy = ForwardProxy::start(&[("kubernetes.default.svc:443", server)]).await.unwrap();
        let written = real.plane.kubeconfig("https://kubernetes.default.svc", &real.token);
        let mut config: Value = serde_json::from_slice(&fs::read(&written).unwrap()).unwrap();
        config["clusters"][0]["cluster"]["proxy-url"] = format!("{protocol}://{}", proxy.address()).into();
        fs::write(&written, config.to_string()).unwrap();
        let daemon = Launch::replica(DAEMON_NAMESPACE).start_process(PROGRAM, &written);
        stage.log_of(&daemon);
        daemon.ready().await;
        let cluster = &stage.cluster;
        let [node, volume, claim, pod] = ["n", "v", "c", "p"].map(|kind| format!("{kind}-{protocol}"));
        cluster.node(&node).await;
        cluster.bound_pair(&volume, &claim).await;
        cluster.pod(&pod, &node, &[&claim]).await;
        cluster.published(&node, &[&volume]).await;
        assert!(proxy.asked().len() > 1, "more than one connection goes through the proxy");
        assert_eq!(daemon.terminate().await, Some(0));
    }
}

/// A leader loses its lease and ends, as for any outage, and the process that is started again, as a kubelet does, reads what is
/// there now and leads, though the standby beside it does not reach the server. (It ends after three minutes:
/// crates/apiserver/src/connect.)
async fn rotation(stage: Stage) {
    let mut plane = ControlPlane::start(&stage.real().assets).await;
    let token = install(&plane).await;
    let cluster = Cluster::new(plane.client(User::Admin));
    let kubeconfig = plane.kubeconfig(plane.url(), &token);
    let launch = Launch::replica(DAEMON_NAMESPACE);
    let leader = launch.start_process(PROGRAM, &kubeconfig);
    leader.ready().await;
    let held = |lease: Option<&Lease>| {
        lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_ref()).is_some_and(|it| !it.is_empty())
    };
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    until(leases, "mooring", "somebody leads", held).await;
    let standby = launch.start_process(PROGRAM, &kubeconfig);
    standby.ready().await;
    let log = leader.log().cloned().unwrap_or_default();

    plane.rotate_authority().await;
    assert_eq!(leader.ended().await, Some(1));
    assert!(log.tail(5).contains("lost: not renewed within"), "{}", log.tail(20));
    assert!(log.count("certificate") > 0, "{}", log.tail(20));

    let cluster = Cluster::new(plane.client(User::Admin));
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default());
    let next = launch.start_process(PROGRAM, &kubeconfig);
    next.ready().await;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    assert_eq!(standby.visit("/livez", None).await.0, http::StatusCode::OK);
    assert!(standby.log().is_some_and(|log| log.count("certificate") > 0), "it does not reach the server");
}
