//! The floor under hearing of a node: a process that reads the watch, and throws away what it reads.

use std::path::Path;

use apiserver::connect::ApiServer;
use http_body_util::BodyExt;
use test_support::{
    control_plane::{ControlPlane, User},
    process::Process,
};

use super::floor::open_watch;

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
    let mut body = open_watch(&client, "/api/v1/nodes").await;
    body.frame().await.expect("a piece of the watch").expect("a piece of the watch");
    println!("{READS}");
    while let Some(frame) = body.frame().await {
        frame.expect("a piece of the watch");
    }
}
