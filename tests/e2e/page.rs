//! The page of one person (`mooring explain --serve`): who is let in, what it says to one who may read little, how it ends.

use std::{path::Path, process::Stdio};

use serde_json::json;
use test_support::{cluster::Cluster, control_plane::User};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

use crate::stage::{PROGRAM, Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("page_of_one_person_is_for_who_has_its_address", for_one)
            .only_real("The program serves, with the rights of a kubeconfig."),
        story("page_of_one_namespace_claims_nothing_of_what_it_may_not_read", of_one_namespace)
            .only_real("The program serves, with the rights of a kubeconfig."),
        story("page_of_one_person_in_a_browser", in_a_browser)
            .only_real("A browser opens what the program serves."),
    ]
}

/// A page that is served.
struct Served {
    program: Child,
    /// Address and port.
    host: String,
    /// The path that was printed, with its secret.
    path: String,
}

impl Served {
    async fn start(kubeconfig: &Path, flags: &[&str]) -> Self {
        let mut program = Command::new(PROGRAM);
        program.args(["explain", "--serve", "--kubeconfig"]).arg(kubeconfig).args(flags);
        let mut program = program.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut printed = BufReader::new(program.stdout.take().unwrap());
        let mut address = String::new();
        printed.read_line(&mut address).await.unwrap();
        let (host, path) = address.trim_end().strip_prefix("http://").unwrap().split_once('/').unwrap();
        Self { program, host: host.to_owned(), path: format!("/{path}") }
    }

    /// The whole answer, asked for under a name.
    async fn asked(&self, path: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// A page of what the address leads to.
    async fn page(&self, under: &str) -> String {
        self.asked(&format!("{}{under}", self.path), &self.host).await
    }

    /// As with Ctrl-C.
    async fn interrupted(mut self) {
        let id = self.program.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
        assert_eq!(self.program.wait().await.unwrap().code(), Some(0));
    }
}

async fn for_one(stage: Stage) {
    stage.cluster.node("n1").await;
    stage.cluster.pair_bound_by_hand("v1", "c1").await;
    stage.cluster.claim("c2").await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let served = Served::start(&kubeconfig, &[]).await;
    assert!(served.host.starts_with("127.0.0.1:"), "{}", served.host);

    let waiting = served.page("").await;
    assert!(waiting.starts_with("HTTP/1.1 200 ") && waiting.contains("NoClassAndNoMatch"), "{waiting}");
    let node = served.page("node/n1").await;
    assert!(node.starts_with("HTTP/1.1 200 ") && node.contains("It has 0 volumes."), "{node}");

    let secret = served.path.split('/').nth(2).unwrap();
    let other = if secret.ends_with('0') { "1" } else { "0" };
    let wrong = served.path.replace(secret, &format!("{}{other}", &secret[..secret.len() - 1]));
    let refused = [
        (wrong.as_str(), served.host.as_str()),
        ("/", &served.host),
        ("/explain/", &served.host),
        (&served.path, "rebound.example"),
    ];
    for (path, host) in refused {
        let answer = served.asked(path, host).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && !answer.contains("NoClassAndNoMatch"),
            "{path}: {answer}"
        );
    }
    served.interrupted().await;

    // Of a namespace that was named, what something of it waits for.
    let served = Served::start(&kubeconfig, &["-n", "kube-public"]).await;
    let waiting = served.page("").await;
    assert!(waiting.contains("Nothing is waiting."), "{waiting}");
    served.interrupted().await;
}

/// The browser is there with `MOORING_BROWSER=1`; without, the same addresses are asked for.
async fn in_a_browser(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.pod("p2", "n2", &["c1"]).await;
    cluster.claim("c2").await;
    daemon.page_says("/debug/binder", "NoClassAndNoMatch").await;
    daemon.page_says("/debug/attach-detach", "HeldByNode").await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let served = Served::start(&kubeconfig, &[]).await;
    let pages = [
        ("", "NoClassAndNoMatch"),
        ("o/pod/default/p2", "HeldByNode"),
        ("o/pvc/default/c2", "NoClassAndNoMatch"),
        ("node/n1", "v1"),
    ];
    for (under, what) in pages {
        let page = served.page(under).await;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains(what), "{under}: {page}");
    }
    if std::env::var("MOORING_BROWSER").is_ok_and(|value| value == "1") {
        let mut run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/run"));
        run.args(pages.map(|(under, _)| format!("http://{}{}{under}", served.host, served.path)));
        let output = run.kill_on_drop(true).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        eprintln!("{said}");
    }
    served.interrupted().await;
}

async fn of_one_namespace(stage: Stage) {
    let plane = &stage.real().plane;
    let admin = Cluster::new(plane.client(User::Admin));
    let (role, name, namespace) = ("rbac.authorization.k8s.io/v1", "page-tenant", "default");
    for manifest in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } }),
        json!({
            "apiVersion": role, "kind": "Role", "metadata": { "name": name, "namespace": namespace },
            "rules": [{ "apiGroups": [""], "resources": ["pods", "persistentvolumeclaims"], "verbs": ["get", "list"] }],
        }),
        json!({
            "apiVersion": role, "kind": "RoleBinding", "metadata": { "name": name, "namespace": namespace },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
        }),
    ] {
        admin.apply(&manifest.to_string()).await;
    }
    stage.cluster.claim("c2").await;
    let token = plane.service_account_token(namespace, name).await;
    let served = Served::start(&plane.kubeconfig(plane.url(), &token), &[]).await;
    for under in ["", "node/n1"] {
        let page = served.page(under).await;
        assert!(page.contains("What is not known") && page.contains("is forbidden"), "{under}: {page}");
        for claim in ["Nothing is waiting.", "no volume is attached", "that you may not see"] {
            assert!(!page.contains(claim), "{under}: {page}");
        }
    }
    served.interrupted().await;
}
