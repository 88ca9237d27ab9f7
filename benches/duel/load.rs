//! The work: nodes, volumes, claims and pods, created many at a time.
//!
//! No volume is mounted here, so `volumesInUse` stays empty and a detach waits for no kubelet. Volumes
//! bear external-attacher's finalizer from the start, as after their first attach.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::CSINode,
    },
    jiff::Timestamp,
};
use kube::api::ListParams;
use serde_json::json;
use test_support::cluster::{Cluster, DRIVER, NAMESPACE, VolumeShape, create, patch_status};
use tokio::time::sleep;

/// Requests of ours at once.
const CONCURRENCY: usize = 32;

/// How long a claim has to be there before its volume: a subject has looked at it by then, and found none.
const IN_VAIN: Duration = Duration::from_millis(500);

/// Makes the work.
#[derive(Clone)]
pub struct Load {
    pub cluster: Cluster,
    pub nodes: usize,
}

/// Name of a volume, and of a claim and its pod. The volume of a claim need not be its namesake.
pub fn name(number: usize) -> String {
    format!("v{number:05}")
}

impl Load {
    /// The driver and the nodes with its plugin.
    pub async fn prepare(&self) {
        self.cluster.driver().await;
        each(0..self.nodes, async |number| {
            let node = self.node(number);
            self.cluster.node(&node).await;
            let csi_node = json!({
                "metadata": { "name": node },
                "spec": { "drivers": [{ "name": DRIVER, "nodeID": node }] },
            });
            create(&self.cluster.all::<CSINode>(), csi_node).await;
        })
        .await;
    }

    /// The node of a volume's pod.
    pub fn node(&self, number: usize) -> String {
        format!("n{:03}", number % self.nodes)
    }

    /// A heartbeat of every node, as kubelets send one every five minutes at least. A subject then
    /// holds no revision of a node that it has got by writing it, and KCM sees that nothing is
    /// mounted: it takes a volume for mounted until the first status of its node after the attach.
    pub async fn heartbeats(&self) {
        each(0..self.nodes, async |number| {
            let status = json!({ "status": { "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": Timestamp::now().to_string(), "lastTransitionTime": null,
            }]}});
            patch_status(&self.cluster.all::<Node>(), &self.node(number), status).await;
        })
        .await;
    }

    /// Creates volumes.
    pub async fn volumes(&self, numbers: Range<usize>) {
        each(numbers, async |number| {
            let volume = json!({
                "metadata": {
                    "name": name(number),
                    "finalizers": [format!("external-attacher/{}", DRIVER.replace('.', "-"))],
                },
                "spec": {
                    "capacity": { "storage": "1Gi" },
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": { "driver": DRIVER, "volumeHandle": name(number) },
                },
            });
            create(&self.cluster.all::<PersistentVolume>(), volume).await;
        })
        .await;
    }

    /// Makes volumes free, as a binder does when it first sees them.
    pub async fn available(&self, numbers: Range<usize>) {
        each(numbers, async |number| {
            let status = json!({ "status": { "phase": "Available" } });
            patch_status(&self.cluster.all::<PersistentVolume>(), &name(number), status).await;
        })
        .await;
    }

    /// Creates claims; which volume each gets is for the subject to decide.
    pub async fn claims(&self, numbers: Range<usize>) {
        each(numbers, async |number| {
            self.cluster.claim(&name(number)).await;
        })
        .await;
    }

    /// Creates claims, lets the subject look at them in vain, and then creates volumes.
    pub async fn volumes_after_claims(&self, numbers: Range<usize>) {
        self.claims(numbers.clone()).await;
        sleep(IN_VAIN).await;
        self.volumes(numbers).await;
    }

    /// Creates pairs that are bound already.
    pub async fn bound_pairs(&self, numbers: Range<usize>) {
        each(numbers, async |number| {
            self.cluster.pair_bound_by_hand(&name(number), &name(number)).await;
        })
        .await;
    }

    /// Creates volumes that were released, by earlier claims of the names of `claims` others.
    pub async fn released(&self, numbers: Range<usize>, claims: usize) {
        each(numbers, async |number| {
            let reference = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE,
                "name": name(number.checked_rem(claims).unwrap_or(number)), "uid": format!("gone-{number}"),
            });
            let volume = format!("released-{number:05}");
            self.cluster.shaped_volume(&volume, &VolumeShape::default(), reference).await;
            let status = json!({ "status": { "phase": "Released" } });
            patch_status(&self.cluster.all::<PersistentVolume>(), &volume, status).await;
        })
        .await;
    }

    /// The volumes that claims got.
    pub async fn volumes_of(&self, numbers: Range<usize>) -> Vec<String> {
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        let list = claims.list(&ListParams::default()).await.expect("list the claims");
        let bound: BTreeMap<String, String> = list
            .items
            .into_iter()
            .filter_map(|claim| Some((claim.metadata.name?, claim.spec?.volume_name?)))
            .collect();
        numbers.map(|number| bound[&name(number)].clone()).collect()
    }

    /// Creates the pods of claims.
    pub async fn pods(&self, numbers: Range<usize>) {
        each(numbers, async |number| {
            self.cluster.pod(&name(number), &self.node(number), &[&name(number)]).await;
        })
        .await;
    }

    /// Removes the pods of claims, without grace.
    pub async fn remove_pods(&self, numbers: Range<usize>) {
        each(numbers, async |number| self.cluster.remove_pod(&name(number)).await).await;
    }
}

/// Does something for each number, many at a time.
pub async fn each(numbers: Range<usize>, act: impl AsyncFn(usize)) {
    stream::iter(numbers).for_each_concurrent(CONCURRENCY, |number| act(number)).await;
}
