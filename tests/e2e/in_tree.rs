//! In-tree volumes. Those without PersistentVolume: the API server takes the VolumeAttachments that stand for
//! them, and a daemon that starts later knows them again. And iSCSI, which has none.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, api::ListParams};
use serde_json::json;
use test_support::{
    actors::attachment_name,
    cluster::{Cluster, ELSEWHERE, attached, create, patch_status, until},
};

use crate::stage::{Stage, Story, story};

/// Driver and handle of each volume of the pod.
const VOLUMES: [(&str, &str); 7] = [
    ("ebs.csi.aws.com", "vol-1"),
    ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"),
    ("disk.csi.azure.com", "/subscriptions/1/disks/d"),
    ("file.csi.azure.com", "#s#h#azure-file#default"),
    ("cinder.csi.openstack.org", "volume"),
    ("csi.vsphere.vmware.com", "[ds] a.vmdk"),
    ("pxd.portworx.com", "volume"),
];

pub fn stories() -> Vec<Story> {
    vec![
        story("attach_and_detach_inline_volumes_of_all_in_tree_plugins", all_plugins)
            .also_real("kube-apiserver validates inline volumes of pods and attachments."),
        story("exclusive_s41_a_holder_in_another_namespace_is_not_named", holder_in_another_namespace),
        story("attach_an_iscsi_volume_to_one_node_after_the_other", iscsi),
        story("exclusive_iscsi_volume_stays_with_its_node_while_the_object_is_gone", iscsi_node_gone),
    ]
}

/// An exclusive volume that has no VolumeAttachment moves as carefully as any: by the nodes' lists.
async fn iscsi(stage: Stage) {
    let cluster = &stage.cluster;
    let _daemon = stage.daemon().await;
    two_want(cluster).await;
    cluster.remove_pod("p1").await;
    in_use(cluster, "n1", &[]).await;
    iscsi_listed(cluster, "n2", 0).await;
    cluster.published("n1", &[]).await;
    assert!(cluster.all::<VolumeAttachment>().list(&ListParams::default()).await.unwrap().items.is_empty());
}

/// The list of a node goes with its object, and what it listed is mounted still (S1, H9).
async fn iscsi_node_gone(stage: Stage) {
    let cluster = &stage.cluster;
    let _daemon = stage.daemon().await;
    two_want(cluster).await;
    cluster.remove_node("n1").await;
    // Something later that shows the daemon has gone on.
    cluster.node("n3").await;
    iscsi_pair(cluster, "v2", "c2", 1).await;
    cluster.pod("p3", "n3", &["c2"]).await;
    iscsi_listed(cluster, "n3", 1).await;
    cluster.published("n2", &[]).await;

    cluster.node("n1").await;
    iscsi_listed(cluster, "n1", 0).await;
    cluster.published("n2", &[]).await;
    in_use(cluster, "n1", &[iscsi_name(0).as_str()]).await;
    cluster.remove_pod("p1").await;
    in_use(cluster, "n1", &[]).await;
    iscsi_listed(cluster, "n2", 0).await;
    cluster.published("n1", &[]).await;
}

/// A pod on n1 uses an exclusive iSCSI volume, and one on n2 waits for it.
async fn two_want(cluster: &Cluster) {
    cluster.node("n1").await;
    cluster.node("n2").await;
    iscsi_pair(cluster, "v1", "c1", 0).await;
    cluster.pod("p1", "n1", &["c1"]).await;
    iscsi_listed(cluster, "n1", 0).await;
    cluster.event_with("p1", "SuccessfulAttachVolume", "\"v1\"").await;
    in_use(cluster, "n1", &[iscsi_name(0).as_str()]).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    cluster.event_with("p2", "FailedAttachVolume", "Volume is already used by pod(s) p1").await;
}

fn iscsi_name(lun: i32) -> String {
    format!("kubernetes.io/iscsi/10.0.0.1:3260:iqn.2026-11.example:disk:{lun}")
}

async fn iscsi_pair(cluster: &Cluster, volume: &str, claim: &str, lun: i32) {
    let source = json!({ "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-11.example:disk", "lun": lun });
    let spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "", "iscsi": source,
    });
    let object = json!({ "metadata": { "name": volume }, "spec": spec });
    create::<PersistentVolume>(&cluster.all(), object).await;
    cluster.claim(claim).await;
    cluster.bound(claim, volume).await;
}

async fn iscsi_listed(cluster: &Cluster, node: &str, lun: i32) {
    let listed = move |node: Option<&Node>| node.is_some_and(|node| attached(node) == [iscsi_name(lun)]);
    until(cluster.all(), node, "lists the volume", listed).await;
}

/// The kubelet of the node reports.
async fn in_use(cluster: &Cluster, node: &str, volumes: &[&str]) {
    patch_status::<Node>(&cluster.all(), node, json!({ "status": { "volumesInUse": volumes } })).await;
}

async fn all_plugins(stage: Stage) {
    let cluster = &stage.cluster;
    let daemon = stage.daemon().await;
    cluster.node("n1").await;
    let pod = json!({
        "metadata": {"name": "p1"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "example.com/none"}],
            "volumes": [
                {"name": "ebs", "awsElasticBlockStore": {"volumeID": "aws://us-west-2a/vol-1", "partition": 1}},
                {"name": "gce", "gcePersistentDisk": {"pdName": "disk", "readOnly": true}},
                {"name": "azure-disk", "azureDisk": {
                    "diskName": "d", "diskURI": "/subscriptions/1/disks/d", "kind": "Managed"}},
                {"name": "azure-file", "azureFile": {"secretName": "s", "shareName": "h"}},
                {"name": "cinder", "cinder": {"volumeID": "volume", "fsType": "ext4"}},
                {"name": "vsphere", "vsphereVolume": {"volumePath": "[ds] a.vmdk", "storagePolicyName": "gold"}},
                {"name": "portworx", "portworxVolume": {"volumeID": "volume"}},
            ],
        },
    });
    create::<Pod>(&cluster.namespaced(), pod).await;

    let attachments = cluster.all::<VolumeAttachment>();
    for (driver, handle) in VOLUMES {
        let name = attachment_name(handle, driver, "n1");
        let made = until(attachments.clone(), &name, "is created", |attachment| attachment.is_some()).await;
        let spec = made.unwrap().spec;
        assert_eq!((spec.attacher.as_str(), spec.node_name.as_str()), (driver, "n1"));
        assert_eq!(spec.source.inline_volume_spec.unwrap().csi.unwrap().volume_handle, handle);
        let status = json!({"status": {"attached": true}});
        patch_status::<VolumeAttachment>(&attachments, &name, status).await;
    }
    let mut names: Vec<String> =
        VOLUMES.iter().map(|(driver, handle)| format!("kubernetes.io/csi/{driver}^{handle}")).collect();
    names.sort();
    let lists = |node: Option<&Node>| node.is_some_and(|node| attached(node) == names);
    until(cluster.all(), "n1", "lists all volumes", lists).await;
    cluster.event_with("p1", "SuccessfulAttachVolume", "\"csi.vsphere.vmware.com-[ds] a.vmdk\"").await;

    // The next daemon knows all of them, or it could not detach them.
    daemon.kill();
    let _daemon = stage.daemon().await;
    cluster.remove_pod("p1").await;
    for (driver, handle) in VOLUMES {
        let name = attachment_name(handle, driver, "n1");
        until(attachments.clone(), &name, "is gone", |attachment| attachment.is_none()).await;
    }
    until(cluster.all(), "n1", "lists nothing", |node: Option<&Node>| {
        node.is_some_and(|node| attached(node).is_empty())
    })
    .await;
}

/// Pods of two namespaces can only share a volume that both name themselves, or whose handle two volumes have.
async fn holder_in_another_namespace(stage: Stage) {
    let cluster = &stage.cluster;
    let _daemon = stage.daemon().await;
    let pod = |name: &str, node: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "example.com/none"}],
                "volumes": [{"name": "data", "cinder": {"volumeID": "shared"}}],
            },
        })
    };
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.make_elsewhere().await;
    let elsewhere: Api<Pod> = Api::namespaced(cluster.client.clone(), ELSEWHERE);
    create(&elsewhere, pod("hidden", "n1")).await;
    let name = attachment_name("shared", "cinder.csi.openstack.org", "n1");
    let made = |attachment: Option<&VolumeAttachment>| attachment.is_some();
    until(cluster.all(), &name, "is created", made).await;
    let attached = json!({ "status": { "attached": true } });
    patch_status::<VolumeAttachment>(&cluster.all(), &name, attached).await;
    create::<Pod>(&cluster.namespaced(), pod("p2", "n2")).await;
    let text = "Volume is already used by 1 pod(s) in different namespaces";
    cluster.event_with("p2", "FailedAttachVolume", text).await;
    cluster.event_with("p2", "HeldByNode", "n1").await;
}
