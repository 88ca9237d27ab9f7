//! What there is, and what people do, where all seven controllers are on: claims that are to grow, pods with generic
//! ephemeral volumes, classes of volume attributes.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::cluster::DRIVER;

use super::{CLAIMS, CLASS_NAMES, PODS, VOLUMES, World, claim_spec, path_of, pod_object, within};
use crate::acts::Act;

const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";
const NAMES: [&str; 2] = ["gold", "silver"];

impl World {
    pub(super) async fn make_all_on(&self) {
        self.make_attributes_class(0).await;
        self.make_in_tree_volume().await;
    }

    async fn make_attributes_class(&self, class: usize) {
        let object = json!({
            "metadata": { "name": NAMES[class] },
            "driverName": DRIVER,
            "parameters": { "iops": "100" },
        });
        self.hands.create(CLASSES, &object).await;
    }

    /// A volume of an in-tree plugin that a CSI driver took over, for the first claim. No such driver runs here.
    async fn make_in_tree_volume(&self) {
        let object = json!({
            "metadata": { "name": self.volumes[3] },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS_NAMES[0],
                "awsElasticBlockStore": { "volumeID": "vol-1" },
                "claimRef": { "namespace": self.claims[0].0, "name": self.claims[0].1 },
            },
        });
        self.hands.create(VOLUMES, &object).await;
    }

    /// A pod with a generic ephemeral volume.
    async fn ephemeral_pod(&mut self, node: usize, is_taken: bool) {
        self.pods += 1;
        let name = format!("ephemeral-{}", self.pods);
        let namespace = self.claims[2 * node].0;
        if is_taken {
            let claim = json!({ "metadata": { "name": format!("{name}-data") }, "spec": claim_spec(0) });
            self.hands.create(&within(CLAIMS, namespace), &claim).await;
        }
        let template = json!({ "metadata": { "labels": { "app": name } }, "spec": claim_spec(0) });
        let mut object = pod_object(&name, json!({ "ephemeral": { "volumeClaimTemplate": template } }));
        if !self.script.is_delayed {
            object["spec"]["nodeName"] = self.nodes[node].clone().into();
        }
        self.hands.create(&within(PODS, namespace), &object).await;
    }

    /// A claim that a pod controls, among those that are there.
    async fn ephemeral_claim(&self, claim: usize) -> Option<Value> {
        let mut all = self.hands.list(CLAIMS).await;
        all.retain(|claim| claim["metadata"]["ownerReferences"].is_array());
        (!all.is_empty()).then(|| all.swap_remove(claim % all.len()))
    }

    /// What people do.
    pub(super) async fn act_for_all(&mut self, act: &Act) {
        let hands = self.hands.clone();
        match *act {
            Act::Enlarge { claim, is_done } => {
                let path = self.claim(claim);
                let Some(object) = hands.get(&path).await else { return };
                let requests = &object["spec"]["resources"]["requests"];
                let size =
                    requests["storage"].as_str().and_then(|size| size.strip_suffix("Gi")?.parse().ok());
                let size = json!({ "storage": format!("{}Gi", size.unwrap_or(1) + 1) });
                let more = json!({ "spec": { "resources": { "requests": size } } });
                if hands.patch(&path, &more).await.is_some() && is_done {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    hands.patch(&format!("{path}/status"), &json!({ "status": { "capacity": size } })).await;
                }
            }
            Act::EphemeralPod { node, is_taken } => self.ephemeral_pod(node, is_taken).await,
            Act::DeleteEphemeralClaim { claim, by_force } => {
                let Some(claim) = self.ephemeral_claim(claim).await else { return };
                hands.end(&path_of(CLAIMS, &claim), by_force).await;
            }
            Act::MakeAttributesClass { class } => self.make_attributes_class(class).await,
            Act::DeleteAttributesClass { class, by_force } => {
                hands.end(&format!("{CLASSES}/{}", NAMES[class]), by_force).await;
            }
            Act::UseAttributesClass { claim, class } => {
                let body = json!({ "spec": { "volumeAttributesClassName": NAMES[class] } });
                hands.patch(&self.claim(claim), &body).await;
            }
            _ => {}
        }
    }
}
