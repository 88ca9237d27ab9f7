//! People and their workloads: what the trial makes, what its acts do to it, and how it is taken away at the end.
//!
//! An act meets a cluster in trouble: a request of it may fail, and is not repeated. Only the set-up and the end insist.

use std::time::Duration;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSIDriver, StorageClass, VolumeAttachment},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use test_support::cluster::{Cluster, DRIVER, create};

use crate::{
    plan::Act,
    relabel::{self, POPULATED, RESTORED},
    stage::Stage,
};

/// StatefulSets with their replicas and access mode.
const STATEFUL_SETS: [(&str, usize, &str); 2] = [("web", 3, "ReadWriteOnce"), ("db", 2, "ReadWriteOncePod")];
/// Deployments with their replicas.
const DEPLOYMENTS: [(&str, usize); 6] =
    [("one", 1), ("roll", 1), ("shared", 3), ("scratch", 2), (POPULATED, 1), (RESTORED, 1)];
/// Claims of Deployments with their access mode. Those of the others tools make.
const CLAIMS: [(&str, &str); 3] =
    [("one", "ReadWriteOnce"), ("roll", "ReadWriteOnce"), ("shared", "ReadWriteMany")];
/// Volumes that are kept, and the claims on them.
const KEPT: usize = 2;

/// A request that is given up after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes all workloads.
pub async fn set_up(cluster: &Cluster) {
    let driver = json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true, "fsGroupPolicy": "None" } });
    create::<CSIDriver>(&cluster.all(), driver).await;
    let class = json!({
        "metadata": { "name": "fast" }, "provisioner": DRIVER, "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
    });
    create::<StorageClass>(&cluster.all(), class).await;
    for (name, mode) in CLAIMS {
        create::<PersistentVolumeClaim>(&cluster.namespaced(), claim(name, "fast", mode)).await;
    }
    for number in 0..KEPT {
        let name = format!("kept-{number}");
        let volume = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "kept",
                "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": DRIVER, "volumeHandle": name },
            },
        });
        create::<PersistentVolume>(&cluster.all(), volume).await;
        create::<PersistentVolumeClaim>(&cluster.namespaced(), claim(&name, "kept", "ReadWriteOnce")).await;
    }
    for (name, replicas, mode) in STATEFUL_SETS {
        let set = json!({
            "metadata": { "name": name },
            "spec": {
                "serviceName": name, "replicas": replicas, "selector": { "matchLabels": { "app": name } },
                "template": template(name, &Value::Null),
                "volumeClaimTemplates": [claim("data", "fast", mode)],
            },
        });
        create::<StatefulSet>(&cluster.namespaced(), set).await;
    }
    for (name, replicas) in DEPLOYMENTS {
        let volume = match name {
            "scratch" => {
                json!({ "ephemeral": { "volumeClaimTemplate": { "spec": claim("", "fast", "ReadWriteOnce")["spec"] } } })
            }
            _ => json!({ "persistentVolumeClaim": { "claimName": name } }),
        };
        // A pod of a rolling update may start elsewhere while the former still has the volume.
        let strategy = match name {
            "one" | POPULATED | RESTORED => json!({ "type": "Recreate" }),
            _ => json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } }),
        };
        let deployment = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "strategy": strategy,
                "template": template(name, &volume),
            },
        });
        create::<Deployment>(&cluster.namespaced(), deployment).await;
    }
}

fn claim(name: &str, class: &str, mode: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": [mode], "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn template(app: &str, volume: &Value) -> Value {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": "example.com/none", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        }],
    });
    if let Some(volume) = volume.as_object() {
        let mut volume = volume.clone();
        volume.insert("name".to_owned(), "data".into());
        spec["volumes"] = json!([volume]);
    }
    json!({ "metadata": { "labels": { "app": app } }, "spec": spec })
}

/// Does one act, and returns what it has done. Machines without power, and nodes to come back, are handed back as errands.
pub async fn act(stage: &mut Stage, act: Act) -> (String, Vec<Errand>) {
    let people = People { cluster: stage.cluster.clone() };
    let mut errands = Vec::new();
    let what = match act {
        Act::Roll(which) => people.roll(which).await,
        Act::DeletePod(which) => people.delete_pod(which, &DeleteParams::default()).await,
        Act::ForceDeletePod(which) => {
            people.delete_pod(which, &DeleteParams::default().grace_period(0)).await
        }
        Act::Drain(which) => {
            let node = node_of(stage, which);
            errands.push(Errand::Uncordon(node.clone()));
            people.drain(&node).await
        }
        Act::Resize(which) => people.resize(which).await,
        Act::RenewClaims(which) => {
            let (name, replicas, _) = STATEFUL_SETS[which % STATEFUL_SETS.len()];
            errands.push(Errand::Scale(name, replicas));
            people.renew_claims(name).await
        }
        Act::DeleteNode(which) => {
            let index = which % stage.kubelets.len();
            let node = stage.kubelets[index].name.clone();
            errands.push(Errand::Restart(index));
            people
                .try_to("delete the node", people.all::<Node>().delete(&node, &DeleteParams::default()))
                .await
        }
        Act::CutPower(which) => {
            let index = which % stage.kubelets.len();
            let node = stage.kubelets[index].name.clone();
            if !stage.kubelets[index].has_power {
                return (format!("{node} has no power already"), errands);
            }
            stage.kubelets[index].kill();
            stage.kubelets[index].has_power = false;
            stage.order("off", &node).await;
            errands.push(Errand::Boot(index));
            people.taint(&node).await
        }
        Act::DeleteAttachment(which) => people.delete_attachment(which).await,
        Act::Reclaim(which) => {
            let name = format!("kept-{}", which % KEPT);
            errands.push(Errand::Claim(name.clone()));
            let claims = people.cluster.namespaced::<PersistentVolumeClaim>();
            let deletion = DeleteParams::default();
            people.try_to(&format!("give up claim {name}"), claims.delete(&name, &deletion)).await
        }
        Act::Populate => {
            errands.push(Errand::Populate);
            people.give_up(POPULATED).await
        }
        Act::Restore => {
            errands.push(Errand::Restore);
            let what = people.give_up(RESTORED).await;
            let volumes = people.all::<PersistentVolume>();
            people.try_to(&what, volumes.delete(RESTORED, &DeleteParams::default())).await
        }
    };
    (what, errands)
}

/// What ends an act, some seconds later.
#[derive(Clone, Debug)]
pub enum Errand {
    Uncordon(String),
    Scale(&'static str, usize),
    /// Of a kubelet, which makes its Node anew.
    Restart(usize),
    /// Of a machine, whose taint is taken off.
    Boot(usize),
    /// Clears `claimRef` of released volumes, and makes the claim anew.
    Claim(String),
    /// Makes a claim anew, and has it populated.
    Populate,
    /// Makes a volume and its claim anew, as a restore from a backup does.
    Restore,
    /// Of a node that a restore has brought back as it was, or not brought back: kubelets register once.
    Repair(usize),
}

/// What people do after a restore, which has undone errands.
pub fn after_restore(stage: &Stage) -> Vec<Errand> {
    let nodes = (0..stage.kubelets.len()).map(Errand::Repair);
    let sets = STATEFUL_SETS.map(|(name, replicas, _)| Errand::Scale(name, replicas));
    let claims = (0..KEPT).map(|number| Errand::Claim(format!("kept-{number}")));
    nodes.chain(sets).chain(claims).chain([Errand::Populate, Errand::Restore]).collect()
}

/// Runs an errand. False if it has to be repeated.
pub async fn run(stage: &mut Stage, errand: &Errand) -> bool {
    let people = People { cluster: stage.cluster.clone() };
    match errand {
        Errand::Uncordon(node) => {
            people.patch::<Node>(node, json!({ "spec": { "unschedulable": null } })).await
        }
        Errand::Scale(name, replicas) => people.scale(name, *replicas).await,
        Errand::Restart(index) => {
            stage.kubelets[*index].kill();
            stage.kubelets[*index].revive();
            true
        }
        Errand::Claim(name) => people.claim_anew(name).await,
        Errand::Populate => relabel::populate(&people.cluster).await,
        Errand::Restore => relabel::restore(&people.cluster).await,
        // Without power it is about to boot.
        Errand::Repair(index) if !stage.kubelets[*index].has_power => true,
        Errand::Repair(index) => {
            let node = stage.kubelets[*index].name.clone();
            let usual = json!({ "spec": { "unschedulable": null, "taints": null } });
            if !people.patch::<Node>(&node, usual).await {
                return false;
            }
            stage.kubelets[*index].kill();
            stage.kubelets[*index].revive();
            true
        }
        Errand::Boot(index) => {
            let node = stage.kubelets[*index].name.clone();
            // A machine with this taint is out of service: what runs there may be taken from it.
            if !people.patch::<Node>(&node, json!({ "spec": { "taints": null } })).await {
                return false;
            }
            stage.order("boot", &node).await;
            stage.kubelets[*index].has_power = true;
            stage.kubelets[*index].revive();
            true
        }
    }
}

fn node_of(stage: &Stage, which: usize) -> String {
    stage.kubelets[which % stage.kubelets.len()].name.clone()
}

struct People {
    cluster: Cluster,
}

impl People {
    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.cluster.all()
    }

    async fn try_to<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> String {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(Ok(_)) => what.to_owned(),
            Ok(Err(kube::Error::Api(status))) => format!("{what}: {}", status.message),
            Ok(Err(error)) => format!("{what}: {error}"),
            Err(_) => format!("{what}: not answered"),
        }
    }

    async fn list<K>(&self, api: &Api<K>) -> Vec<K>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let listed = tokio::time::timeout(PATIENCE, api.list(&ListParams::default())).await;
        listed.ok().and_then(Result::ok).map(|list| list.items).unwrap_or_default()
    }

    async fn patch<K>(&self, name: &str, body: Value) -> bool
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let (api, parameters, patch) = (self.all::<K>(), PatchParams::default(), Patch::Merge(body));
        match tokio::time::timeout(PATIENCE, api.patch(name, &parameters, &patch)).await {
            Ok(Ok(_)) => true,
            // What is gone needs no patch.
            Ok(Err(kube::Error::Api(status))) => status.code == 404,
            _ => false,
        }
    }

    async fn roll(&self, which: usize) -> String {
        let index = which % (STATEFUL_SETS.len() + DEPLOYMENTS.len());
        let body = json!({ "spec": { "template": { "metadata": { "annotations": { "rolled": which.to_string() } } } } });
        let (parameters, body) = (PatchParams::default(), Patch::Merge(body));
        match STATEFUL_SETS.get(index) {
            Some((name, ..)) => {
                let api = self.cluster.namespaced::<StatefulSet>();
                self.try_to(&format!("roll {name}"), api.patch(name, &parameters, &body)).await
            }
            None => {
                let (name, _) = DEPLOYMENTS[index - STATEFUL_SETS.len()];
                let api = self.cluster.namespaced::<Deployment>();
                self.try_to(&format!("roll {name}"), api.patch(name, &parameters, &body)).await
            }
        }
    }

    async fn delete_pod(&self, which: usize, how: &DeleteParams) -> String {
        let pods = self.cluster.namespaced::<Pod>();
        let all = self.list(&pods).await;
        let Some(pod) = all.get(which % all.len().max(1)) else { return "no pod to delete".to_owned() };
        self.try_to(&format!("delete pod {}", pod.name_any()), pods.delete(&pod.name_any(), how)).await
    }

    async fn drain(&self, node: &str) -> String {
        self.patch::<Node>(node, json!({ "spec": { "unschedulable": true } })).await;
        let pods = self.cluster.namespaced::<Pod>();
        let is_there =
            |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node));
        for pod in self.list(&pods).await.iter().filter(|pod| is_there(pod)) {
            self.try_to("evict", pods.delete(&pod.name_any(), &DeleteParams::default())).await;
        }
        format!("drain {node}")
    }

    async fn resize(&self, which: usize) -> String {
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        let all = self.list(&claims).await;
        let is_fast = |claim: &&PersistentVolumeClaim| {
            claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_deref() == Some("fast"))
        };
        let fast: Vec<_> = all.iter().filter(is_fast).collect();
        let Some(claim) = fast.get(which % fast.len().max(1)) else { return "no claim to resize".to_owned() };
        let size =
            claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let gib: u32 = size.and_then(|size| size.0.strip_suffix("Gi")?.parse().ok()).unwrap_or(1);
        let body =
            json!({ "spec": { "resources": { "requests": { "storage": format!("{}Gi", gib + 1) } } } });
        let (name, parameters) = (claim.name_any(), PatchParams::default());
        self.try_to(&format!("resize {name}"), claims.patch(&name, &parameters, &Patch::Merge(body))).await
    }

    async fn scale(&self, name: &str, replicas: usize) -> bool {
        let sets = self.cluster.namespaced::<StatefulSet>();
        let (parameters, body) =
            (PatchParams::default(), Patch::Merge(json!({ "spec": { "replicas": replicas } })));
        let patched = tokio::time::timeout(PATIENCE, sets.patch(name, &parameters, &body)).await;
        matches!(patched, Ok(Ok(_)))
    }

    async fn renew_claims(&self, set: &str) -> String {
        self.scale(set, 0).await;
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        for claim in self.list(&claims).await {
            let name = claim.name_any();
            if name.starts_with(&format!("data-{set}-")) {
                self.try_to("delete a claim", claims.delete(&name, &DeleteParams::default())).await;
            }
        }
        format!("renew the claims of {set}")
    }

    /// Deletes a claim, and the pods that use it.
    async fn give_up(&self, name: &str) -> String {
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        let what =
            self.try_to(&format!("give up {name}"), claims.delete(name, &DeleteParams::default())).await;
        let pods = self.cluster.namespaced::<Pod>();
        for pod in self.list(&pods).await.iter().filter(|pod| pod.name_any().starts_with(&format!("{name}-")))
        {
            self.try_to("delete a pod", pods.delete(&pod.name_any(), &DeleteParams::default())).await;
        }
        what
    }

    async fn taint(&self, node: &str) -> String {
        let taints = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }]);
        self.patch::<Node>(node, json!({ "spec": { "taints": taints } })).await;
        format!("cut the power of {node}")
    }

    async fn delete_attachment(&self, which: usize) -> String {
        let attachments = self.all::<VolumeAttachment>();
        let all = self.list(&attachments).await;
        let Some(one) = all.get(which % all.len().max(1)) else {
            return "no attachment to delete".to_owned();
        };
        self.try_to("delete an attachment", attachments.delete(&one.name_any(), &DeleteParams::default()))
            .await
    }

    /// Clears `claimRef` of what is released.
    async fn free_released(&self) {
        for volume in self.list(&self.all::<PersistentVolume>()).await {
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Released") && volume.name_any().starts_with("kept-") {
                self.patch::<PersistentVolume>(&volume.name_any(), json!({ "spec": { "claimRef": null } }))
                    .await;
            }
        }
    }

    async fn claim_anew(&self, name: &str) -> bool {
        self.free_released().await;
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        let anew = serde_json::from_value(claim(name, "kept", "ReadWriteOnce")).expect("a claim");
        let parameters = PostParams::default();
        match tokio::time::timeout(PATIENCE, claims.create(&parameters, &anew)).await {
            Ok(Ok(_)) => true,
            // It may be there, made by an errand whose answer was lost. While it is being deleted, it is too early.
            Ok(Err(kube::Error::Api(status))) => {
                status.code == 409 && !status.message.starts_with("object is being deleted")
            }
            _ => false,
        }
    }
}

/// What of the workloads does not run yet. What was released after the errand for it is cleared now, and tools go on.
pub async fn not_running(cluster: &Cluster) -> Vec<String> {
    People { cluster: cluster.clone() }.free_released().await;
    relabel::populate(cluster).await;
    relabel::restore(cluster).await;
    let mut missing = Vec::new();
    let all = ListParams::default();
    let (sets, deployments, claims) = (
        cluster.namespaced::<StatefulSet>().list(&all).await,
        cluster.namespaced::<Deployment>().list(&all).await,
        cluster.namespaced::<PersistentVolumeClaim>().list(&all).await,
    );
    let (Ok(sets), Ok(deployments), Ok(claims)) = (sets, deployments, claims) else {
        return vec!["the API server does not answer".to_owned()];
    };
    for (name, replicas, _) in STATEFUL_SETS {
        let status = sets.items.iter().find(|set| set.name_any() == name).and_then(|set| set.status.clone());
        let ready = status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let updated = status.as_ref().is_some_and(|status| status.current_revision == status.update_revision);
        if ready != i32::try_from(replicas).expect("a few") || !updated {
            missing.push(format!("StatefulSet {name}: {ready} of {replicas} run"));
        }
    }
    for (name, replicas) in DEPLOYMENTS {
        let status =
            deployments.items.iter().find(|it| it.name_any() == name).and_then(|it| it.status.clone());
        let ready = status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let updated = status.as_ref().and_then(|status| status.updated_replicas).unwrap_or_default();
        if ready != i32::try_from(replicas).expect("a few") || updated != ready {
            missing.push(format!("Deployment {name}: {ready} of {replicas} run, {updated} of the last kind"));
        }
    }
    for claim in claims {
        let phase = claim.status.as_ref().and_then(|status| status.phase.clone());
        if phase.as_deref() != Some("Bound") {
            missing.push(format!("claim {}: {phase:?}", claim.name_any()));
        }
    }
    missing
}

/// Takes all workloads and claims away. Kept volumes stay.
pub async fn take_away(client: &Client) {
    async fn delete_all<K>(client: &Client)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(client.clone(), test_support::cluster::NAMESPACE);
        api.delete_collection(&DeleteParams::background(), &ListParams::default())
            .await
            .expect("take away workloads");
    }
    delete_all::<StatefulSet>(client).await;
    delete_all::<Deployment>(client).await;
    delete_all::<PersistentVolumeClaim>(client).await;
}

/// What is left of volumes when nobody needs any.
pub async fn left(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    let all = ListParams::default();
    let (pods, attachments, volumes, claims, nodes) = (
        cluster.namespaced::<Pod>().list(&all).await,
        cluster.all::<VolumeAttachment>().list(&all).await,
        cluster.all::<PersistentVolume>().list(&all).await,
        cluster.namespaced::<PersistentVolumeClaim>().list(&all).await,
        cluster.all::<Node>().list(&all).await,
    );
    let (Ok(pods), Ok(attachments), Ok(volumes), Ok(claims), Ok(nodes)) =
        (pods, attachments, volumes, claims, nodes)
    else {
        return vec!["the API server does not answer".to_owned()];
    };
    left.extend(pods.iter().map(|pod| format!("pod {}", pod.name_any())));
    left.extend(claims.iter().map(|claim| format!("claim {}", claim.name_any())));
    let of_nodes =
        attachments.iter().map(|it| format!("VolumeAttachment {} on {}", it.name_any(), it.spec.node_name));
    left.extend(of_nodes);
    let made = volumes.iter().filter(|volume| {
        let name = volume.name_any();
        name != RESTORED && !name.starts_with("kept-")
    });
    left.extend(made.map(|volume| format!("PersistentVolume {}", volume.name_any())));
    for node in nodes {
        let status = node.status.clone().unwrap_or_default();
        let listed = status.volumes_attached.unwrap_or_default().into_iter().map(|volume| volume.name);
        for volume in listed.chain(status.volumes_in_use.unwrap_or_default()) {
            left.push(format!("{volume} in the status of {}", node.name_any()));
        }
    }
    left
}
