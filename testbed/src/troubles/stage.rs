//! The cluster of the demo: embedded API server, nodes, classes, existing volumes, a claim that can never
//! be bound, and the stand-ins.

use std::time::Duration;

use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::{CSIDriver, CSINode, StorageClass},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::script::{DELAYED_CLASS, IMMEDIATE_CLASS, STATIC_CLASS, Script};
use crate::{
    actors::{
        Attacher, AttacherBehaviour, KubeletBehaviour, Kubelets, PodGc, PodGcBehaviour, Protection,
        Provisioner, ProvisionerBehaviour, Reaction, Scheduler, Workload, WorkloadBehaviour,
    },
    clock::seconds_text,
};

/// The CSI driver of all volumes.
pub const DRIVER: &str = "disk.example.com";
/// The namespace of pods and claims.
pub const NAMESPACE: &str = "default";
/// The claim whose class does not exist.
pub const HOPELESS_CLAIM: &str = "needs-gold";

/// How long the storage system takes, about as a quick real one.
const CREATE_TIME: Duration = Duration::from_millis(200);
const ATTACH_TIME: Duration = Duration::from_millis(300);
const DETACH_TIME: Duration = Duration::from_millis(200);
/// How long pods stay on a node that does not answer; Kubernetes: 300 s.
pub const TOLERATION: Duration = Duration::from_secs(2);
/// How long a node has to be gone before its pods are removed; Kubernetes: 40 s.
pub const QUARANTINE: Duration = Duration::from_secs(5);

/// The stand-ins; they stop when dropped.
#[derive(Debug)]
pub struct Stage {
    /// Of all nodes.
    pub kubelets: Kubelets,
    /// Pods and claims.
    pub workload: Workload,
    _attacher: Attacher,
    _provisioner: Provisioner,
    _scheduler: Scheduler,
    _pod_gc: PodGc,
    _protection: Protection,
}

impl Stage {
    /// Sets up the cluster and starts the stand-ins.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub async fn set(client: &Client, script: &Script) -> Result<Self, kube::Error> {
        create(
            client,
            json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true } }),
            all::<CSIDriver>,
        )
        .await?;
        for name in script.nodes() {
            make_node(client, name).await?;
        }
        for (name, provisioner, mode, policy) in [
            (DELAYED_CLASS, DRIVER, "WaitForFirstConsumer", "Delete"),
            (IMMEDIATE_CLASS, DRIVER, "Immediate", "Delete"),
            (STATIC_CLASS, "kubernetes.io/no-provisioner", "Immediate", "Retain"),
        ] {
            let class = json!({
                "metadata": { "name": name }, "provisioner": provisioner, "reclaimPolicy": policy,
                "volumeBindingMode": mode,
            });
            create(client, class, all::<StorageClass>).await?;
        }
        let archived = script.seats().values().filter(|seat| seat.class == STATIC_CLASS);
        for (number, _) in archived.enumerate() {
            create(client, static_volume(number), all::<PersistentVolume>).await?;
        }
        let hopeless = json!({
            "metadata": { "name": HOPELESS_CLAIM },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "gold",
                "resources": { "requests": { "storage": "10Gi" } },
            },
        });
        create(client, hopeless, namespaced::<PersistentVolumeClaim>).await?;
        Ok(Self::start(client, script))
    }

    fn start(client: &Client, script: &Script) -> Self {
        let attacher = AttacherBehaviour {
            attach: Reaction::Succeed(ATTACH_TIME),
            detach: Reaction::Succeed(DETACH_TIME),
            workers: 1_000,
            ..AttacherBehaviour::default()
        };
        let provisioner = ProvisionerBehaviour {
            create: Reaction::Succeed(CREATE_TIME),
            delete: Reaction::Succeed(CREATE_TIME),
            ..ProvisionerBehaviour::default()
        };
        let workload = WorkloadBehaviour { seats: script.seats().clone(), toleration: Some(TOLERATION) };
        Self {
            kubelets: Kubelets::start(client.clone(), KubeletBehaviour::default()),
            workload: Workload::start(client.clone(), NAMESPACE, workload),
            _attacher: Attacher::start(client.clone(), DRIVER, attacher),
            _provisioner: Provisioner::start(client.clone(), DRIVER, provisioner),
            _scheduler: Scheduler::start(client.clone()),
            _pod_gc: PodGc::start(client.clone(), PodGcBehaviour { quarantine: QUARANTINE }),
            _protection: Protection::start(client.clone()),
        }
    }
}

/// Makes a node whose kubelet leaves attaching to the controller.
///
/// # Errors
/// The API server refuses it.
pub async fn make_node(client: &Client, name: &str) -> Result<(), kube::Error> {
    let node = json!({
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
    });
    create(client, node, all::<Node>).await?;
    let csi_node = json!({
        "metadata": { "name": name },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": name, "topologyKeys": [] }] },
    });
    match create(client, csi_node, all::<CSINode>).await {
        // It outlives the node object here, as nothing collects what has lost its owner.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        made => made?,
    }
    let ready = json!({ "status": node_status("True") });
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = PatchParams::default();
    nodes.patch_status(name, &parameters, &Patch::Merge(ready)).await?;
    // Admission taints a new node as not ready; the node lifecycle controller takes that away.
    nodes.patch(name, &parameters, &Patch::Merge(json!({ "spec": { "taints": null } }))).await?;
    Ok(())
}

/// A node's status: whether its kubelet is well, and that it has room.
pub fn node_status(ready: &str) -> Value {
    let (reason, message) = match ready {
        "True" => ("KubeletReady", "kubelet is posting ready status"),
        _ => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
    };
    let now = seconds_text(Timestamp::now());
    let room = json!({ "cpu": "4", "memory": "16Gi", "pods": "110" });
    json!({
        "capacity": room, "allocatable": room, "nodeInfo": { "kubeletVersion": "stand-in" },
        "conditions": [{
            "type": "Ready", "status": ready, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }],
    })
}

fn static_volume(number: usize) -> Value {
    let name = format!("archive-{number}");
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "100Gi" }, "accessModes": ["ReadWriteOnce"],
            "storageClassName": STATIC_CLASS, "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": DRIVER, "volumeHandle": name },
        },
    })
}

fn all<K>(client: Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    Api::all(client)
}

fn namespaced<K>(client: Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client, NAMESPACE)
}

async fn create<K>(client: &Client, object: Value, api: fn(Client) -> Api<K>) -> Result<(), kube::Error>
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    api(client.clone()).create(&PostParams::default(), &object).await.map(|_| ())
}
