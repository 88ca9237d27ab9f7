//! kubectl, unchanged, against the embedded server over HTTP.

use std::{net::SocketAddr, path::Path, process::Stdio};

use libtest_mimic::Failed;
use testbed::{Server, serve};
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
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: va1}
spec: {attacher: d.io, nodeName: n1, source: {persistentVolumeName: pv1}}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: d.io, nodeID: n1}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: d.io}
spec: {attachRequired: true}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: l1}
spec: {holderIdentity: someone, leaseDurationSeconds: 15}
---
apiVersion: v1
kind: Event
metadata: {name: e1}
involvedObject: {kind: Pod, namespace: default, name: p1}
reason: Tested
type: Normal
"#;

/// An object of each kind, as kubectl prints it, and a line of its description.
const EACH: [(&str, &str); 10] = [
    ("pod/p1", "ClaimName:   c1"),
    ("node/n1", "Non-terminated Pods:          (1 in total)"),
    ("persistentvolume/pv1", "VolumeHandle:      h"),
    ("persistentvolumeclaim/c1", "Used By:       p1"),
    ("storageclass.storage.k8s.io/fast", "Provisioner:           d.io"),
    ("volumeattachment.storage.k8s.io/va1", "Attacher:   d.io"),
    ("csinode.storage.k8s.io/n1", "Node ID:  n1"),
    ("csidriver.storage.k8s.io/d.io", "Attach Required:"),
    ("lease.coordination.k8s.io/l1", "Holder Identity:         someone"),
    ("event/e1", "Reason:                Tested"),
];

/// These the commands below delete.
const GONE: [&str; 2] = ["pod/p1", "node/n1"];

/// Other commands people use here, and what their output has to hold.
const COMMANDS: &[(&str, &str)] = &[
    (
        "get pods,nodes,pv,pvc,sc,va,csinodes,csidrivers,leases,events,configmaps",
        "persistentvolumeclaim/c1   Pending",
    ),
    ("get pv", "pv1    1Gi        RWO            Retain           Pending           fast           <unset>"),
    ("get pods -o wide", "p1     0/1     Pending   0"),
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
    let call = Call { kubectl, address, folder: &folder };
    for (verb, options, outcome) in [
        ("apply", "-f -", "created"),
        ("apply", "-f -", "unchanged"),
        ("get", "-o name", ""),
        ("patch", "-p {\"metadata\":{\"labels\":{\"x\":\"y\"}}}", "patched"),
        ("apply", "-f -", "unchanged"),
    ] {
        let each = EACH.map(|(object, _)| object);
        let named = if verb == "apply" { String::new() } else { format!(" {}", each.join(" ")) };
        let expected = each.map(|object| format!("{object} {outcome}").trim_end().to_owned());
        call.make(&format!("{verb}{named} {options}"), &expected).await?;
    }
    for (object, line) in EACH {
        call.make(&format!("describe {object}"), &[line.to_owned()]).await?;
    }
    for (command, expected) in COMMANDS {
        call.make(command, &[(*expected).to_owned()]).await?;
    }
    let left = EACH.map(|(object, _)| object).into_iter().filter(|object| !GONE.contains(object));
    for object in left {
        let (kind, name) = object.split_once('/').unwrap_or_default();
        let deleted = format!("{kind} \"{name}\" deleted");
        call.make(&format!("delete {object} --wait=false"), &[deleted]).await?;
    }
    stop.cancel();
    serving.await?;
    std::fs::remove_dir_all(folder).ok();
    Ok(())
}

/// How kubectl is called.
struct Call<'a> {
    kubectl: &'a Path,
    address: SocketAddr,
    folder: &'a Path,
}

impl Call<'_> {
    /// Runs one command: it has to succeed and to print all that is expected.
    async fn make(&self, command: &str, expected: &[String]) -> Result<(), Failed> {
        let mut child = Command::new(self.kubectl)
            .arg(format!("--server=http://{}", self.address))
            .arg(format!("--cache-dir={}", self.folder.display()))
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
        let missing = expected.iter().find(|expected| !text.contains(expected.as_str()));
        if output.status.success() && missing.is_none() {
            return Ok(());
        }
        Err(format!("kubectl {command}: {}, missing: {missing:?}, in\n{text}", output.status).into())
    }
}
