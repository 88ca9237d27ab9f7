//! `doctor`, `node`, `whatif` and `repair` on a cluster that is there: what they read is enough to answer, and what is
//! proposed is what is sent.

use std::path::PathBuf;

use apiserver::{
    connect::ApiServer,
    ids::{ClaimKey, PodKey},
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use mooring::explain::{
    doctor::doctor,
    drain::drain,
    read::{Question, Reader},
    repair::{Repair, repair},
    report::Verdict,
    snapshot::{DEPLOYED, FENCE, FENCE_BINDINGS, Snapshot, Unseen},
    whatif::{WhatIfChange, whatif},
};
use serde_json::json;
use test_support::{cluster::VolumeShape, control_plane::User};

use crate::stage::{PROGRAM, Stage, Story, story};

/// Where the claims of the stories are.
const NAMESPACE: &str = "default";

pub fn stories() -> Vec<Story> {
    vec![
        story("questions_read_all_that_their_answers_need", reads_enough),
        story("questions_are_answered_and_a_repair_is_sent", program)
            .only_real("The program asks with a kubeconfig, and kubectl sends the repair."),
    ]
}

async fn look(stage: &Stage, question: Question) -> Snapshot {
    let reader = Reader::new(&ApiServer::in_process(stage.proxied_client()), None).unwrap();
    let snapshot = reader.read(&question).await.unwrap();
    // The embedded server has no admission policies and no Deployments.
    let absent = [FENCE, FENCE_BINDINGS, DEPLOYED];
    let unseen = snapshot.unseen.iter().filter(|unseen| !absent.contains(&unseen.what.as_str()));
    assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&Unseen>::new(), "{question:?}");
    snapshot
}

/// A pod with a volume on n1, and a volume whose claim is gone.
async fn cluster(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.shaped_pair("v2", "c2", &VolumeShape::default()).await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.published("n1", &["v1"]).await;
    cluster.delete_claim("c2").await;
    cluster.volume_phase("v2", "Released").await;
}

async fn reads_enough(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    cluster(&stage).await;

    let snapshot = look(&stage, Question::Cluster(NAMESPACE.to_owned())).await;
    let findings = doctor(&snapshot, None);
    assert_eq!(findings.unchecked, []);
    assert!(findings.findings.iter().any(|it| it.reason == "Retained"), "{findings:?}");
    assert!(!matches!(findings.verdict, Verdict::Blocked | Verdict::Waiting), "{findings:?}");
    // Nothing in this namespace suffers from what the cluster has.
    let findings = doctor(&snapshot, Some("other"));
    assert_eq!(findings.findings, []);

    let snapshot = look(&stage, Question::Drain("n1".into())).await;
    let view = drain(&snapshot, &"n1".into(), None);
    assert_eq!((view.volumes.len(), view.exists), (1, Some(true)), "{view:?}");
    assert_eq!(view.volumes[0].pod.as_deref(), Some("default/p1"), "{view:?}");

    for (change, told) in [
        (WhatIfChange::DeletePod(PodKey::new(NAMESPACE, "p1")), "volumes that leave its node: 1 of 1"),
        (WhatIfChange::DeleteClaim(ClaimKey::new(NAMESPACE, "c1")), "default/c1 goes after 1 pod"),
        (WhatIfChange::Taint("n1".into()), "1 volume when the 1 pod of n1 is removed"),
        (WhatIfChange::DeleteNode("n1".into()), "1 pod removed"),
        (WhatIfChange::Taint("gone".into()), "node/gone does not exist"),
    ] {
        let snapshot = look(&stage, Question::Change(change.clone())).await;
        let found = whatif(&snapshot, &change);
        assert!(found.summary.contains(told), "{found:?}");
    }

    for (what, is_proposed) in [
        (Repair::Free("v2".into()), true),
        (Repair::Free("v1".into()), false),
        (Repair::Relink(ClaimKey::new(NAMESPACE, "c1"), "v2".into()), false),
        (Repair::Unstick("csi-none".into()), false),
    ] {
        let snapshot = look(&stage, Question::Repair(what.clone())).await;
        let advice = repair(&snapshot, &what);
        assert_eq!(!advice.requests.is_empty(), is_proposed, "{advice:?}");
    }
}

async fn program(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    cluster(&stage).await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let asked = async |line: &str| ask(&kubeconfig, line).await;

    let (code, stdout) = asked("doctor").await;
    assert!(code == 0 && stdout.contains("Retained"), "{code}: {stdout}");
    assert!(!stdout.contains("not checked"), "{stdout}");
    let (code, stdout) = asked("doctor -n other").await;
    assert!(code == 0 && stdout.starts_with("Nothing is blocked, waits or is at risk."), "{code}: {stdout}");
    let (code, stdout) = asked("doctor -o json").await;
    let findings: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, findings["kind"].as_str()), (0, Some("Findings")));
    let (code, stdout) = asked("node n1 --drain").await;
    assert!(code == 1 && stdout.contains("1 in use"), "{code}: {stdout}");
    let (code, stdout) = asked("node nowhere").await;
    assert_eq!(code, 3, "{stdout}");
    let (code, stdout) = asked("whatif delete pod p1 -o yaml").await;
    assert!(code == 0 && stdout.contains("kind: Consequences"), "{code}: {stdout}");
    for line in ["whatif taint n1", "whatif delete-node n1", "whatif delete pvc c1", "whatif delete pod/p1"] {
        let (code, stdout) = asked(line).await;
        assert!(code <= 2 && stdout.starts_with("WHAT IF  "), "{line}: {code}: {stdout}");
    }
    let manifest = kubeconfig.with_file_name("claim.yaml");
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "c9" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    std::fs::write(&manifest, claim.to_string()).unwrap();
    let (code, stdout) = asked(&format!("whatif bind -f {}", manifest.display())).await;
    assert!(code <= 2 && stdout.contains("default/c9 would"), "{code}: {stdout}");

    let (code, stdout) = asked("repair free pv/v1 --yes").await;
    assert!(code == 2 && stdout.starts_with("REFUSED"), "{code}: {stdout}");
    let (code, proposed) = asked("repair free pv/v2").await;
    assert!(code == 0 && proposed.contains("PATCH /api/v1/persistentvolumes/v2"), "{code}: {proposed}");
    assert!(proposed.ends_with("Nothing was sent. The same command with --yes sends it.\n"), "{proposed}");
    let volumes: Api<PersistentVolume> = Api::all(plane.client(User::Admin));
    let reference = async || volumes.get("v2").await.unwrap().spec.unwrap().claim_ref.unwrap();
    assert!(reference().await.uid.is_some());
    let (code, stdout) = asked("repair free pv/v2 --yes").await;
    assert!(code == 0 && stdout.contains("SENT  ") && stdout.contains("explain pv/v2"), "{code}: {stdout}");
    assert_eq!(reference().await.uid, None);
    stage.cluster.volume_phase("v2", "Available").await;
    let (code, stdout) = asked("repair free pv/v2 --yes").await;
    assert!(code == 2 && stdout.starts_with("REFUSED"), "{code}: {stdout}");
}

/// The exit code, and stdout, which has no line that a terminal of eighty columns breaks but commands and requests.
async fn ask(kubeconfig: &PathBuf, line: &str) -> (i32, String) {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(line.split(' ')).arg("--kubeconfig").arg(kubeconfig);
    let output = command.output().await.unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let code = output.status.code().unwrap();
    assert!(code != 4 && code != 5, "{line}: {code}: {stdout}{stderr}");
    (code, stdout)
}
