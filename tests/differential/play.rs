//! Plays a script on a cluster: one step, then wait until nothing moves any more.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use test_support::{
    actors::Kubelets,
    cluster::{Cluster, DRIVER, NAMESPACE},
};

use crate::{
    activity::Activity,
    outcome::{self, Noted},
    script::{Lane, NODES, Step, VOLUMES},
};

/// A cluster in which nothing has moved for so long is at rest: four times what KCM's binder lets
/// pass between two looks here, and more than its first pauses after an error.
pub const REST: Duration = Duration::from_secs(2);

/// One script's part of a cluster.
pub struct Stage<'a> {
    pub cluster: &'a Cluster,
    pub activity: &'a Activity,
    pub kubelets: &'a Kubelets,
    /// Begins the names of all that belongs to the script.
    pub prefix: String,
    /// Whether the volumes that people make are iSCSI volumes, which have no VolumeAttachments.
    pub is_iscsi: bool,
}

impl Stage<'_> {
    /// Plays a script. Returns what each of its steps has led to.
    pub async fn play(&self, script: &[Step]) -> Vec<Noted> {
        for (lane, binding_mode) in
            [(Lane::Provisioned, "Immediate"), (Lane::Delayed, "WaitForFirstConsumer")]
        {
            self.create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": { "name": self.class(lane) }, "provisioner": DRIVER, "reclaimPolicy": "Delete",
                "volumeBindingMode": binding_mode,
            }), &self.cluster.all::<StorageClass>())
            .await;
        }
        for node in 0..NODES - 1 {
            self.step(&Step::CreateNode(node)).await;
        }
        if self.is_iscsi {
            // So that more of the pods have one.
            for volume in 0..VOLUMES {
                self.step(&Step::CreateVolume { volume, reclaim_policy: "Retain", names_claim: false }).await;
            }
            self.activity.rest(&self.prefix, REST).await;
            for lane in [Lane::Named, Lane::Matched] {
                self.step(&Step::CreateClaim { lane, size: 1, mode: "ReadWriteOnce" }).await;
            }
            self.activity.rest(&self.prefix, REST).await;
        }
        let mut outcomes = Vec::new();
        for step in script {
            self.step(step).await;
            self.activity.rest(&self.prefix, REST).await;
            let outcome = outcome::outcome(self.cluster, self.activity, &self.prefix).await;
            outcomes.push((format!("{step:?}"), outcome));
        }
        outcomes
    }

    async fn step(&self, step: &Step) {
        let cluster = self.cluster;
        let volumes = cluster.all::<PersistentVolume>();
        let claims = cluster.namespaced::<PersistentVolumeClaim>();
        let (nodes, pods) = (cluster.all::<Node>(), cluster.namespaced::<Pod>());
        match step {
            Step::CreateVolume { volume, reclaim_policy, names_claim } => {
                let body = self.volume_object(*volume, reclaim_policy, *names_claim);
                self.create(body, &volumes).await;
            }
            Step::DeleteVolume(volume) => delete(&volumes, &self.volume(*volume)).await,
            Step::LoseVolume(volume) => cluster.delete_volume(&self.volume(*volume)).await,
            Step::FreeVolume(volume) => {
                let name = self.volume(*volume);
                let Some(found) = volumes.get_opt(&name).await.expect("look for a volume") else { return };
                if found.status.and_then(|status| status.phase).as_deref() == Some("Released") {
                    change(&volumes, &name, json!({ "spec": { "claimRef": null } })).await;
                }
            }
            Step::SetReclaimPolicy { volume, reclaim_policy } => {
                let policy = json!({ "spec": { "persistentVolumeReclaimPolicy": reclaim_policy } });
                change(&volumes, &self.volume(*volume), policy).await;
            }
            Step::CreateClaim { lane, size, mode } => {
                self.create(self.claim_object(*lane, *size, mode), &claims).await;
            }
            Step::DeleteClaim(lane) => delete(&claims, &self.claim(*lane)).await,
            Step::SelectNode { lane, node } => {
                let mark = json!({ "volume.kubernetes.io/selected-node": self.node(*node) });
                change(&claims, &self.claim(*lane), json!({ "metadata": { "annotations": mark } })).await;
            }
            Step::CreatePod { pod, node, lane } => {
                let has_node = nodes.get_opt(&self.node(*node)).await.expect("look for a node").is_some();
                if !has_node || self.has_waiting_pod(*lane).await {
                    return;
                }
                self.create(self.pod_object(*pod, *node, *lane), &pods).await;
            }
            Step::DeletePod(pod) => delete(&pods, &self.pod(*pod)).await,
            Step::RemovePod(pod) => {
                let now = DeleteParams::default().grace_period(0);
                expected(pods.delete(&self.pod(*pod), &now).await);
            }
            Step::Fail(node) => self.set_ready(*node, false).await,
            Step::Recover(node) => self.set_ready(*node, true).await,
            Step::DeleteNode(node) => {
                // On purpose that differs: of an iSCSI volume, KCM forgets with the node where it is.
                let name = self.node(*node);
                if !self.lists_iscsi(&name).await {
                    delete(&nodes, &name).await;
                }
            }
            Step::CreateNode(node) => {
                let managed = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
                let body = json!({ "metadata": { "name": self.node(*node), "annotations": managed } });
                self.create(body, &nodes).await;
                self.set_ready(*node, true).await;
            }
            Step::SetDefaultClass(is_default) => {
                let value = is_default.then_some("true");
                let mark = json!({ "storageclass.kubernetes.io/is-default-class": value });
                let classes = cluster.all::<StorageClass>();
                let name = self.class(Lane::Provisioned);
                change(&classes, &name, json!({ "metadata": { "annotations": mark } })).await;
            }
        }
    }

    /// Whether a pod waits for a lane's volume already. Of two of them, chance would choose the first.
    async fn has_waiting_pod(&self, lane: Lane) -> bool {
        let claim = self.claim(lane);
        let pods =
            self.cluster.namespaced::<Pod>().list(&ListParams::default()).await.expect("list the pods");
        pods.iter().any(|pod| {
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase != Some("Running") && claims.any(|source| source.claim_name == claim)
        })
    }

    async fn lists_iscsi(&self, node: &str) -> bool {
        let node = self.cluster.all::<Node>().get_opt(node).await.expect("look for a node");
        let attached = node.and_then(|node| node.status?.volumes_attached).unwrap_or_default();
        attached.iter().any(|volume| volume.name.starts_with("kubernetes.io/iscsi/"))
    }

    /// Whether the node's machine works: a kubelet that is there says so.
    async fn set_ready(&self, node: usize, is_ready: bool) {
        let name = self.node(node);
        self.kubelets.change(|behaviour| {
            if is_ready {
                behaviour.silent.remove(&name);
            } else {
                behaviour.silent.insert(name.clone());
            }
        });
        let condition = json!({
            "type": "Ready", "status": if is_ready { "True" } else { "Unknown" }, "reason": "Script",
            "message": "", "lastHeartbeatTime": null, "lastTransitionTime": null,
        });
        let body = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
        let nodes = self.cluster.all::<Node>();
        expected(nodes.patch_status(&name, &PatchParams::default(), &body).await);
    }

    async fn create<K>(&self, body: Value, api: &Api<K>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(body).expect("a well-formed object");
        expected(api.create(&PostParams::default(), &object).await);
    }

    fn volume_object(&self, volume: usize, reclaim_policy: &str, names_claim: bool) -> Value {
        let (lane, class) = if volume == VOLUMES - 1 {
            (Lane::Named, self.class(Lane::Named))
        } else {
            (Lane::Matched, self.class(Lane::Matched))
        };
        let modes: &[&str] =
            if volume.is_multiple_of(2) { &["ReadWriteOnce"] } else { &["ReadWriteOnce", "ReadWriteMany"] };
        let claim = json!({ "namespace": NAMESPACE, "name": self.claim(lane) });
        let iqn = format!("iqn.2001-04.com.example:{}", self.volume(volume));
        let iscsi = json!({ "targetPortal": "10.0.0.1:3260", "iqn": iqn, "lun": 0 });
        let csi = json!({ "driver": DRIVER, "volumeHandle": self.volume(volume) });
        json!({
            "metadata": { "name": self.volume(volume) },
            "spec": {
                "capacity": { "storage": format!("{}Gi", volume + 1) }, "accessModes": modes,
                "storageClassName": class, "persistentVolumeReclaimPolicy": reclaim_policy,
                "csi": (!self.is_iscsi).then_some(csi), "iscsi": self.is_iscsi.then_some(iscsi),
                "claimRef": names_claim.then_some(claim),
            },
        })
    }

    fn claim_object(&self, lane: Lane, size: u8, mode: &str) -> Value {
        json!({
            "metadata": { "name": self.claim(lane) },
            "spec": {
                "accessModes": [mode],
                "storageClassName": (lane != Lane::Unclassed).then(|| self.class(lane)),
                "volumeName": (lane == Lane::Named).then(|| self.volume(VOLUMES - 1)),
                "resources": { "requests": { "storage": format!("{size}Gi") } },
            },
        })
    }

    fn pod_object(&self, pod: usize, node: usize, lane: Lane) -> Value {
        json!({
            "metadata": { "name": self.pod(pod) },
            "spec": {
                "nodeName": self.node(node),
                "containers": [{ "name": "main", "image": "example.com/none" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": self.claim(lane) } }],
            },
        })
    }

    fn volume(&self, number: usize) -> String {
        format!("{}v{number}", self.prefix)
    }

    fn node(&self, number: usize) -> String {
        format!("{}n{number}", self.prefix)
    }

    fn pod(&self, number: usize) -> String {
        format!("{}p{number}", self.prefix)
    }

    fn claim(&self, lane: Lane) -> String {
        format!("{}{}", self.prefix, format!("{lane:?}").to_lowercase())
    }

    /// A class of its own for each lane, so that claims of different lanes never compete.
    fn class(&self, lane: Lane) -> String {
        format!("{}class-{}", self.prefix, format!("{lane:?}").to_lowercase())
    }
}

async fn delete<K>(api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    expected(api.delete(name, &DeleteParams::default()).await);
}

async fn change<K>(api: &Api<K>, name: &str, body: Value)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    expected(api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await);
}

/// A step meets what the steps before it have left: there may be nothing to change, something in the way,
/// or a change that is not allowed.
fn expected<T>(result: kube::Result<T>) {
    match result {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
        Err(error) => panic!("{error}"),
    }
}
