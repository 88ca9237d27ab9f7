//! What the small controllers are for, in scenes that no seed chooses: claims whose volumes are to grow, claims of pods'
//! ephemeral volumes, and classes of volume attributes. Each has a part of the cluster of its own, as a script has.

use futures::future::LocalBoxFuture;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use test_support::{
    attributes_class::VolumeAttributesClass,
    cluster::{Cluster, DRIVER, create, patch, patch_status, until},
};

use crate::{
    activity::Activity,
    outcome::{Noted, outcome},
    play::REST,
};

type Play = for<'a> fn(&'a mut Scene<'_>) -> LocalBoxFuture<'a, ()>;

/// All scenes by name, with a text of what kube-controller-manager does there: without it there is nothing to compare.
pub const SCENES: [(&str, &str, Play); 6] = [
    ("expands_csi", "waiting for an external controller", |scene| Box::pin(expands_csi(scene))),
    ("expands_migrated", "pxd.portworx.com", |scene| Box::pin(expands_migrated(scene))),
    ("expands_others", "waiting for an external controller", |scene| Box::pin(expands_others(scene))),
    ("ephemeral_claims", "blockOwnerDeletion", |scene| Box::pin(ephemeral_claims(scene))),
    ("ephemeral_claims_of_others", "pod is not owner", |scene| Box::pin(ephemeral_claims_of_others(scene))),
    ("attributes_classes", "kubernetes.io/vac-protection", |scene| Box::pin(attributes_classes(scene))),
];

/// Begins the names of all that belongs to a scene.
pub fn prefix(scene: &str) -> String {
    format!("{}-", scene.replace('_', "."))
}

/// A scene, and what has been noted of it.
pub struct Scene<'a> {
    cluster: &'a Cluster,
    activity: &'a Activity,
    pub prefix: String,
    pub noted: Vec<Noted>,
}

impl<'a> Scene<'a> {
    pub fn new(cluster: &'a Cluster, activity: &'a Activity, name: &str) -> Self {
        Self { cluster, activity, prefix: prefix(name), noted: Vec::new() }
    }

    fn name(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    /// Waits until nothing moves any more, and writes down what there is.
    async fn note(&mut self, what: &str) {
        self.activity.rest(&self.prefix, REST).await;
        let outcome = outcome(self.cluster, self.activity, &self.prefix).await;
        self.noted.push((what.to_owned(), outcome));
    }

    /// A class whose claims may grow.
    async fn class(&self) {
        let class = json!({
            "metadata": { "name": self.name("class") }, "provisioner": "example.com/none",
            "allowVolumeExpansion": true,
        });
        create(&self.cluster.all::<StorageClass>(), class).await;
    }

    /// A volume with this source, and its claim. Both have the name.
    async fn pair(&self, of: &str, source: (&str, Value), attributes: Option<&str>) {
        let (name, class) = (self.name(of), self.name("class"));
        let attributes = attributes.map(|of| self.name(of));
        let local = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "Exists" },
        ]}]}});
        let mut volume = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "persistentVolumeReclaimPolicy": "Retain", "volumeAttributesClassName": attributes,
                "nodeAffinity": (source.0 == "local").then_some(local),
            },
        });
        volume["spec"][source.0] = source.1;
        create(&self.cluster.all::<PersistentVolume>(), volume).await;
        let claim = json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeName": name,
                "volumeAttributesClassName": attributes, "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        create(&self.cluster.namespaced::<PersistentVolumeClaim>(), claim).await;
        self.cluster.claim_phase(&name, "Bound").await;
    }

    async fn change_claim(&self, of: &str, change: Value) {
        patch(&self.cluster.namespaced::<PersistentVolumeClaim>(), &self.name(of), change).await;
    }

    async fn request(&self, of: &str, size: &str) {
        self.change_claim(of, json!({ "spec": { "resources": { "requests": { "storage": size } } } })).await;
    }

    /// In the place of a resizer that has ended.
    async fn resized(&self, of: &str, size: &str) {
        let (name, capacity) = (self.name(of), json!({ "capacity": { "storage": size } }));
        patch(&self.cluster.all::<PersistentVolume>(), &name, json!({ "spec": capacity })).await;
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        patch_status(&claims, &name, json!({ "status": capacity })).await;
    }

    async fn delete_claim(&self, of: &str) {
        let claims = self.cluster.namespaced::<PersistentVolumeClaim>();
        claims.delete(&self.name(of), &DeleteParams::default()).await.expect("delete a claim");
    }

    /// A pod with one generic ephemeral volume.
    async fn pod(&self, of: &str, node: Option<String>) {
        let template = json!({
            "metadata": { "labels": { "app": of }, "annotations": { "note": "scratch" } },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": self.name("class"),
                "resources": { "requests": { "storage": "1Gi" }, "limits": { "storage": "2Gi" } },
            },
        });
        let pod = json!({
            "metadata": { "name": self.name(of) },
            "spec": {
                "nodeName": node, "containers": [{ "name": "main", "image": "example.com/none" }],
                "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
            },
        });
        create(&self.cluster.namespaced::<Pod>(), pod).await;
    }

    /// Waits until there is no such claim, or it is being deleted.
    async fn claim_goes(&self, of: &str) {
        let name = self.name(of);
        let is_going = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        };
        until(self.cluster.namespaced(), &name, &format!("claim {name} goes"), is_going).await;
    }

    async fn attributes_class(&self, of: &str) {
        self.cluster.attributes_class(&self.name(of)).await;
    }

    async fn delete_attributes_class(&self, of: &str) {
        let classes = self.cluster.all::<VolumeAttributesClass>();
        // It may be gone already when it is answered.
        classes.delete(&self.name(of), &DeleteParams::default()).await.map(drop).expect("delete a class");
    }
}

async fn expands_csi(scene: &mut Scene<'_>) {
    scene.class().await;
    scene.pair("c", ("csi", json!({ "driver": DRIVER, "volumeHandle": "h" })), None).await;
    scene.note("a claim of a CSI volume is bound").await;
    scene.request("c", "2Gi").await;
    scene.note("it requests more").await;
    scene.resized("c", "2Gi").await;
    scene.note("it has got it").await;
    scene.request("c", "16Ei").await;
    scene.note("it requests more than 64 bits can say").await;
}

async fn expands_migrated(scene: &mut Scene<'_>) {
    let disk = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
    let sources = [
        ("awsElasticBlockStore", json!({ "volumeID": "vol-1" })),
        ("gcePersistentDisk", json!({ "pdName": "d" })),
        ("azureDisk", json!({ "diskName": "d", "diskURI": disk, "kind": "Managed" })),
        ("azureFile", json!({ "secretName": "s", "secretNamespace": "default", "shareName": "d" })),
        ("cinder", json!({ "volumeID": "d" })),
        ("vsphereVolume", json!({ "volumePath": "[store] d" })),
        ("portworxVolume", json!({ "volumeID": "d" })),
    ];
    scene.class().await;
    for (number, source) in sources.iter().enumerate() {
        scene.pair(&number.to_string(), source.clone(), None).await;
    }
    scene.note("claims of in-tree volumes are bound").await;
    for number in 0..sources.len() {
        scene.request(&number.to_string(), "2Gi").await;
    }
    scene.note("they request more").await;
    let none = json!({ "volume.kubernetes.io/storage-resizer": null });
    scene.change_claim("0", json!({ "metadata": { "annotations": none } })).await;
    scene.note("a person takes the annotation from one").await;
    scene.request("0", "3Gi").await;
    scene.note("it requests more").await;
    scene.resized("1", "2Gi").await;
    scene.note("another has got it").await;
}

async fn expands_others(scene: &mut Scene<'_>) {
    let sources = [
        ("nfs", json!({ "server": "10.0.0.1", "path": "/" })),
        ("hostPath", json!({ "path": "/tmp/none" })),
        ("local", json!({ "path": "/mnt/none" })),
        ("iscsi", json!({ "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:d", "lun": 0 })),
        ("fc", json!({ "targetWWNs": ["500a0982991b8dc5"], "lun": 0 })),
    ];
    scene.class().await;
    for (number, source) in sources.iter().enumerate() {
        scene.pair(&number.to_string(), source.clone(), None).await;
    }
    for number in 0..sources.len() {
        scene.request(&number.to_string(), "2Gi").await;
    }
    scene.note("claims of volumes that no plugin expands request more").await;
}

async fn ephemeral_claims(scene: &mut Scene<'_>) {
    let node = scene.name("n");
    scene.pod("p", None).await;
    scene.note("a pod comes").await;
    scene.delete_claim("p-data").await;
    scene.note("its claim is deleted while it lives").await;
    scene.cluster.remove_pod(&scene.name("p")).await;
    scene.claim_goes("p-data").await;
    scene.note("the pod is gone").await;

    scene.cluster.node(&node).await;
    scene.pod("q", Some(node)).await;
    scene.note("a pod comes that is on a node").await;
    scene.delete_claim("q-data").await;
    scene.note("its claim is deleted while it runs").await;
    scene.cluster.delete_pod(&scene.name("q")).await;
    scene.cluster.pod_gone(&scene.name("q")).await;
    scene.note("the pod has ended").await;
}

async fn ephemeral_claims_of_others(scene: &mut Scene<'_>) {
    scene.cluster.claim(&scene.name("p-data")).await;
    scene.pod("p", None).await;
    scene.note("a pod comes whose claim is a person's").await;
    scene.delete_claim("p-data").await;
    scene.note("the person deletes it").await;

    scene.pod("q", None).await;
    scene.note("another pod comes").await;
    let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    scene.change_claim("q-data", hold).await;
    scene.cluster.remove_pod(&scene.name("q")).await;
    scene.claim_goes("q-data").await;
    scene.pod("q", None).await;
    scene.note("it is made anew, and its claim is held while it goes").await;
    scene.change_claim("q-data", json!({ "metadata": { "finalizers": null } })).await;
    scene.note("the claim is let go").await;
}

async fn attributes_classes(scene: &mut Scene<'_>) {
    scene.attributes_class("unused").await;
    scene.note("a class comes").await;
    scene.delete_attributes_class("unused").await;
    scene.note("it is deleted unused").await;

    scene.attributes_class("gold").await;
    scene.cluster.claim_of_attributes_class(&scene.name("c"), &scene.name("gold")).await;
    scene.note("a claim names one").await;
    scene.delete_attributes_class("gold").await;
    scene.note("it is deleted").await;
    scene.delete_claim("c").await;
    scene.note("the claim, too").await;

    scene.class().await;
    scene.attributes_class("silver").await;
    scene.pair("d", ("csi", json!({ "driver": DRIVER, "volumeHandle": "d" })), Some("silver")).await;
    scene.delete_attributes_class("silver").await;
    scene.note("one is deleted that a pair names").await;
    scene.delete_claim("d").await;
    scene.note("its claim is deleted").await;
    scene.cluster.delete_volume(&scene.name("d")).await;
    scene.note("its volume is deleted").await;

    scene.attributes_class("bronze").await;
    scene.cluster.claim(&scene.name("e")).await;
    let claims = scene.cluster.namespaced::<PersistentVolumeClaim>();
    let target = json!({ "targetVolumeAttributesClassName": scene.name("bronze"), "status": "InProgress" });
    let name = scene.name("e");
    patch_status(&claims, &name, json!({ "status": { "modifyVolumeStatus": target } })).await;
    scene.delete_attributes_class("bronze").await;
    scene.note("one is deleted that is being applied").await;
    patch_status(&claims, &name, json!({ "status": { "modifyVolumeStatus": null } })).await;
    scene.note("that ends").await;
}
