//! Questions of the command line: what a person waits for an answer, in a cluster of this size.
//!
//! Of each kind one, asked with `mooring explain` and the like, of the API server alone.

use std::{path::Path, process::Stdio, time::Duration};

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::VolumeAttachment};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;
use test_support::{
    cluster::{NAMESPACE, create},
    control_plane::{ControlPlane, User},
};
use tokio::{
    process::Command,
    time::{Instant, interval},
};

use super::{cost, load::Load};

/// How often it is looked at what a process uses.
const LOOK: Duration = Duration::from_millis(2);

/// A claim that no volume fits, so that all have to be looked at.
pub const LOOKING: &str = "looking";

/// What an answer took.
#[derive(Debug)]
pub struct Asked {
    pub question: String,
    pub wall: Duration,
    pub cpu: Duration,
    pub peak: u64,
    pub code: Option<i32>,
    /// What it says first.
    pub first_line: String,
}

/// Asks of the first node and what is on it.
pub async fn all(plane: &ControlPlane, load: &Load, mooring: &Path) -> Vec<Asked> {
    let claim = json!({
        "metadata": { "name": LOOKING },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": { "requests": { "storage": "100Ti" } },
        },
    });
    create(&load.cluster.namespaced::<PersistentVolumeClaim>(), claim).await;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let mut answers = Vec::new();
    for question in questions(load).await {
        eprintln!("mooring {question}");
        answers.push(ask(mooring, &kubeconfig, question).await);
    }
    answers
}

/// What is asked, with the names that the seeder gives.
async fn questions(load: &Load) -> Vec<String> {
    let attachments = load.cluster.all::<VolumeAttachment>();
    let first = attachments.list(&ListParams::default().limit(1)).await.expect("list an attachment");
    let first = first.items.into_iter().next().expect("an attachment");
    let volume = first.spec.source.persistent_volume_name.as_deref().expect("the volume of an attachment");
    vec![
        "explain pvc data-database-00000 -n team-00".to_owned(),
        "explain pod database-00000 -n team-00".to_owned(),
        "explain node n000".to_owned(),
        "explain sc standard".to_owned(),
        format!("explain va {}", first.name_any()),
        format!("explain pv {volume}"),
        format!("explain pvc {LOOKING} -n {NAMESPACE}"),
        "node n000".to_owned(),
        "doctor".to_owned(),
    ]
}

/// Asks one question.
pub async fn ask(mooring: &Path, kubeconfig: &Path, question: String) -> Asked {
    let mut command = Command::new(mooring);
    command.args(question.split(' ')).arg("--kubeconfig").arg(kubeconfig);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let begin = Instant::now();
    let child = command.spawn().expect("start mooring");
    let process = child.id().expect("the process has just been started");
    let ended = child.wait_with_output();
    tokio::pin!(ended);
    let (mut looks, mut cpu, mut peak) = (interval(LOOK), Duration::ZERO, 0);
    let output = loop {
        tokio::select! {
            output = &mut ended => break output.expect("what mooring says"),
            _ = looks.tick() => {
                cpu = cpu.max(cost::cpu(process));
                peak = peak.max(cost::peak_memory(process));
            }
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let first_line = said.lines().next().unwrap_or_default().to_owned();
    Asked { question, wall: begin.elapsed(), cpu, peak, code: output.status.code(), first_line }
}
