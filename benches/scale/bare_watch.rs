//! The floor under hearing of a node: a process that reads the watch, and throws away what it reads.

use std::path::Path;

use apiserver::{connect::ApiServer, wire::Accept};
use http_body_util::BodyExt;
use kube::client::Body;

use test_support::{
    control_plane::{ControlPlane, User},
    process::Process,
};

/// What it says when it has read something.
const READS: &str = "reads";

/// Starts it; it has read something then.
pub async fn start(plane: &ControlPlane) -> Process {
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::ControllerManager));
    let bench = std::env::current_exe().expect("the path of this program");
    let process =
        Process::start("bare watch", &bench, &[format!("--bare-watch={}", kubeconfig.display())], &[]);
    let reads = process.log().find(|line| (line == READS).then_some(())).await;
    assert!(reads.is_some(), "nothing is read:\n{}", process.log().tail(30));
    process
}

/// Reads for ever, over a connection as mooring's.
pub async fn watch(kubeconfig: &Path) {
    let server = ApiServer::read("--bare-watch", kubeconfig).await.expect("a kubeconfig");
    let client = server.client().expect("a client");
    let request = http::Request::get("/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion=0");
    let request = request.header(http::header::ACCEPT, Accept::Protobuf.watch()).body(Body::empty());
    let answer = client.send(request.expect("a request")).await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.status());
    let mut body = answer.into_body();
    body.frame().await.expect("a piece of the watch").expect("a piece of the watch");
    println!("{READS}");
    while let Some(frame) = body.frame().await {
        frame.expect("a piece of the watch");
    }
}
