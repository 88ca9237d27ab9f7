//! kubectl, unchanged, against the embedded server over HTTP.

use std::{path::Path, process::Stdio};

use libtest_mimic::Failed;
use mooring::embedded::{Server, serve};
use tokio::{io::AsyncWriteExt, net::TcpListener, process::Command};
use tokio_util::sync::CancellationToken;

const OBJECTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: d.io
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: fast, csi: {driver: d.io, volumeHandle: h}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c1}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p1}
spec:
  nodeName: n1
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: c1}}]
"#;

/// Every command people use here, and what its output has to hold.
const COMMANDS: &[(&str, &str)] = &[
    ("apply -f -", "pod/p1 created"),
    ("apply -f -", "pod/p1 unchanged"),
    (
        "get pods,nodes,pv,pvc,sc,va,csinodes,csidrivers,leases,events,configmaps",
        "persistentvolumeclaim/c1   Pending",
    ),
    ("get pv", "pv1    1Gi        RWO            Retain           Pending           fast           <unset>"),
    ("get pods -o wide", "p1     0/1     Pending   0"),
    ("describe pod p1", "ClaimName:   c1"),
    ("describe pvc c1", "Used By:       p1"),
    ("describe node n1", "Non-terminated Pods:          (1 in total)"),
    ("describe pv pv1", "VolumeHandle:      h"),
    ("patch pvc c1 -p {\"metadata\":{\"labels\":{\"a\":\"b\"}}}", "persistentvolumeclaim/c1 patched"),
    ("label node n1 zone=z1", "node/n1 labeled"),
    ("get pvc -l a=b -o name", "persistentvolumeclaim/c1"),
    ("wait pv/pv1 --for=jsonpath={.status.phase}=Pending --timeout=30s", "condition met"),
    ("explain pv.spec.csi.driver", "FIELD: driver <string>"),
    ("delete pod p1 --force --grace-period=0", "force deleted"),
    ("delete node n1", "node \"n1\" deleted"),
];

/// Runs the commands one after another.
pub async fn check(kubectl: &Path) -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, Server::default(), stop.clone()));
    let folder = std::env::temp_dir().join(format!("kubectl-{}", address.port()));
    for (command, expected) in COMMANDS {
        let mut child = Command::new(kubectl)
            .arg(format!("--server=http://{address}"))
            .arg(format!("--cache-dir={}", folder.display()))
            .args(command.split(' '))
            .env("KUBECONFIG", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A command that reads nothing closes its end.
            let _ = input.write_all(OBJECTS.as_bytes()).await;
        }
        let output = child.wait_with_output().await?;
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if !text.contains(expected) {
            return Err(format!("kubectl {command}: no {expected:?} in\n{text}").into());
        }
    }
    stop.cancel();
    serving.await?;
    std::fs::remove_dir_all(folder).ok();
    Ok(())
}
