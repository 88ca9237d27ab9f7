//! The cluster as a test sees it: it creates objects, waits for their state, and removes them.
//!
//! It waits with a watch of the one object. The deadline is generous, because it only ends a failure.
//! Nothing here sleeps or measures.

use std::{
    fmt::Debug,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{
    admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
    },
    core::v1::{Event, LimitRange, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota},
    storage::v1::{CSIDriver, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ClusterResourceScope, NamespaceResourceScope},
    runtime::{WatchStreamExt, wait::await_condition, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::attributes_class::VolumeAttributesClass;

/// The driver of all volumes, unless a test says otherwise.
pub const DRIVER: &str = "csi.example.com";
/// The namespace of everything namespaced.
pub const NAMESPACE: &str = "default";
/// Another one, of somebody else.
pub const ELSEWHERE: &str = "elsewhere";
/// How many nodes have booted.
static BOOTS: AtomicU64 = AtomicU64::new(0);
/// Longer than anything takes that works.
const DEADLINE: Duration = Duration::from_mins(2);

/// Waits, but not for ever.
///
/// # Errors
/// What was waited for in vain.
pub async fn within_deadline<T>(what: &str, future: impl Future<Output = T>) -> Result<T, String> {
    let result = tokio::time::timeout(DEADLINE, future).await;
    result.map_err(|_| format!("waited {} s in vain until {what}", DEADLINE.as_secs()))
}

/// Access to a cluster with all rights.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
}

/// What differs between volumes.
#[derive(Clone, Debug)]
pub struct VolumeShape {
    pub capacity: &'static str,
    pub access_modes: Vec<&'static str>,
    pub class: &'static str,
    pub reclaim_policy: &'static str,
}

impl Default for VolumeShape {
    fn default() -> Self {
        Self { capacity: "1Gi", access_modes: vec!["ReadWriteOnce"], class: "", reclaim_policy: "Retain" }
    }
}

impl Cluster {
    /// With the admin's client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The API of a cluster-scoped kind.
    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }

    /// The API of a namespaced kind, in the tests' namespace.
    pub fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A node whose kubelet leaves attaching to the controller. Each is a machine that has just booted: one of
    /// the same name has nothing mounted that an earlier one had.
    pub async fn node(&self, name: &str) -> Node {
        let node = json!({
            "metadata": {
                "name": name,
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
        });
        create(&self.all::<Node>(), node).await;
        let boot = format!("boot-{}", BOOTS.fetch_add(1, Ordering::Relaxed));
        let ready = json!({ "status": { "nodeInfo": { "bootID": boot }, "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": null, "lastTransitionTime": null,
        }]}});
        patch_status(&self.all::<Node>(), name, ready).await
    }

    /// A CSIDriver that wants attaching.
    pub async fn driver(&self) {
        let driver = json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true } });
        create(&self.all::<CSIDriver>(), driver).await;
    }

    /// A StorageClass of the driver.
    pub async fn class(&self, name: &str, binding_mode: &str) {
        let class = json!({
            "metadata": { "name": name }, "provisioner": DRIVER, "reclaimPolicy": "Delete",
            "volumeBindingMode": binding_mode,
        });
        create(&self.all::<StorageClass>(), class).await;
    }

    /// A VolumeAttributesClass of the driver.
    pub async fn attributes_class(&self, name: &str) -> VolumeAttributesClass {
        let class =
            json!({ "metadata": { "name": name }, "driverName": DRIVER, "parameters": { "iops": "100" } });
        create(&self.all(), class).await
    }

    /// A PersistentVolume of the default shape.
    pub async fn volume(&self, name: &str) -> PersistentVolume {
        self.shaped_volume(name, &VolumeShape::default(), Value::Null).await
    }

    /// A PersistentVolume; its handle is its name.
    pub async fn shaped_volume(&self, name: &str, shape: &VolumeShape, claim_ref: Value) -> PersistentVolume {
        create(&self.all(), volume_object(name, shape, &claim_ref)).await
    }

    /// A claim of the default shape.
    pub async fn claim(&self, name: &str) -> PersistentVolumeClaim {
        self.shaped_claim(name, &VolumeShape::default()).await
    }

    /// A claim.
    pub async fn shaped_claim(&self, name: &str, shape: &VolumeShape) -> PersistentVolumeClaim {
        create(&self.namespaced(), claim_object(name, shape)).await
    }

    /// A claim that names a VolumeAttributesClass.
    pub async fn claim_of_attributes_class(&self, name: &str, class: &str) {
        let mut claim = claim_object(name, &VolumeShape::default());
        claim["spec"]["volumeAttributesClassName"] = json!(class);
        create::<PersistentVolumeClaim>(&self.namespaced(), claim).await;
    }

    /// A volume and a claim that name each other, bound by the daemon. Nothing of it is left to do
    /// when this returns.
    pub async fn bound_pair(&self, volume: &str, claim: &str) {
        self.shaped_pair(volume, claim, &VolumeShape::default()).await;
    }

    /// The same of any shape.
    pub async fn shaped_pair(&self, volume: &str, claim: &str, shape: &VolumeShape) {
        self.intended_pair(volume, claim, shape).await;
        self.bound(claim, volume).await;
    }

    /// A volume and a claim, bound to each other by hand: for when no daemon runs.
    pub async fn pair_bound_by_hand(&self, volume: &str, claim: &str) {
        let shape = VolumeShape::default();
        self.intended_pair(volume, claim, &shape).await;
        patch_status(&self.all::<PersistentVolume>(), volume, json!({ "status": { "phase": "Bound" } }))
            .await;
        let claims = self.namespaced::<PersistentVolumeClaim>();
        let completed =
            json!({ "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } } });
        patch(&claims, claim, completed).await;
        let bound = json!({ "status": {
            "phase": "Bound", "accessModes": shape.access_modes, "capacity": { "storage": shape.capacity },
        }});
        patch_status(&claims, claim, bound).await;
    }

    /// A volume and a claim that name each other.
    pub async fn intended_pair(&self, volume: &str, claim: &str, shape: &VolumeShape) {
        let mut object = claim_object(claim, shape);
        object["spec"]["volumeName"] = volume.into();
        let made: PersistentVolumeClaim = create(&self.namespaced(), object).await;
        let claim_ref = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": NAMESPACE, "name": claim, "uid": made.metadata.uid,
        });
        self.shaped_volume(volume, shape, claim_ref).await;
    }

    /// A claim that names its volume.
    pub async fn claim_for(&self, name: &str, volume: &str) -> PersistentVolumeClaim {
        let mut object = claim_object(name, &VolumeShape::default());
        object["spec"]["volumeName"] = volume.into();
        create(&self.namespaced(), object).await
    }

    /// A pod that the scheduler has put on a node.
    pub async fn pod(&self, name: &str, node: &str, claims: &[&str]) -> Pod {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
            .collect();
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main", "image": "example.com/none" }],
                "volumes": volumes,
            },
        });
        create(&self.namespaced(), pod).await
    }

    /// Asks for a pod's deletion, as people do: its kubelet ends it.
    pub async fn delete_pod(&self, name: &str) {
        self.namespaced::<Pod>().delete(name, &DeleteParams::default()).await.expect("delete the pod");
    }

    /// Removes a pod object at once, as its kubelet does in the end.
    pub async fn remove_pod(&self, name: &str) {
        remove(&self.namespaced::<Pod>(), name).await;
    }

    /// Removes a node object.
    pub async fn remove_node(&self, name: &str) {
        remove(&self.all::<Node>(), name).await;
    }

    /// Deletes a claim in place of the controller that protects claims in use.
    pub async fn delete_claim(&self, name: &str) {
        remove(&self.namespaced::<PersistentVolumeClaim>(), name).await;
    }

    /// Deletes a volume in place of the controller that protects bound volumes.
    pub async fn delete_volume(&self, name: &str) {
        remove(&self.all::<PersistentVolume>(), name).await;
    }

    /// Waits until a node lists exactly these volumes of the driver as attached.
    pub async fn published(&self, node: &str, volumes: &[&str]) -> Node {
        let wanted: Vec<String> = volumes.iter().map(|volume| unique_name(volume)).collect();
        let what = format!("{node} lists exactly {volumes:?} as attached");
        let node = until(self.all(), node, &what, move |node: Option<&Node>| {
            node.is_some_and(|node| attached(node) == wanted)
        });
        node.await.expect("the condition asks for a node")
    }

    /// Waits until a pod runs, which is when its kubelet has mounted all it needs.
    pub async fn running(&self, pod: &str) {
        until(self.namespaced(), pod, &format!("pod {pod} runs"), |pod: Option<&Pod>| {
            pod.is_some_and(|pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running")))
        })
        .await;
    }

    /// Waits until a pod is gone.
    pub async fn pod_gone(&self, pod: &str) {
        until(self.namespaced(), pod, &format!("pod {pod} is gone"), |pod: Option<&Pod>| pod.is_none()).await;
    }

    /// Waits until the VolumeAttachment of a volume and node exists.
    pub async fn attachment(&self, volume: &str, node: &str) -> VolumeAttachment {
        let name = super::actors::attachment_name(volume, DRIVER, node);
        let what = format!("{volume} has a VolumeAttachment for {node}");
        let found =
            until(self.all(), &name, &what, |attachment: Option<&VolumeAttachment>| attachment.is_some());
        found.await.expect("the condition asks for it")
    }

    /// Waits until the driver has attached a volume to a node.
    pub async fn attached(&self, volume: &str, node: &str) {
        let name = super::actors::attachment_name(volume, DRIVER, node);
        let what = format!("{volume} is attached to {node}");
        until(self.all(), &name, &what, |attachment: Option<&VolumeAttachment>| {
            attachment.and_then(|attachment| attachment.status.as_ref()).is_some_and(|status| status.attached)
        })
        .await;
    }

    /// Waits until the driver has reported that it cannot detach.
    pub async fn detach_error(&self, volume: &str, node: &str) {
        let name = super::actors::attachment_name(volume, DRIVER, node);
        let what = format!("the detach of {volume} from {node} fails");
        until(self.all(), &name, &what, |attachment: Option<&VolumeAttachment>| {
            attachment.and_then(|attachment| attachment.status.as_ref()?.detach_error.as_ref()).is_some()
        })
        .await;
    }

    /// The VolumeAttachment of a volume and node, if there is one now.
    pub async fn attachment_now(&self, volume: &str, node: &str) -> Option<VolumeAttachment> {
        let name = super::actors::attachment_name(volume, DRIVER, node);
        self.all().get_opt(&name).await.expect("look for a VolumeAttachment")
    }

    /// Waits until the VolumeAttachment of a volume and node is gone.
    pub async fn detached(&self, volume: &str, node: &str) {
        let name = super::actors::attachment_name(volume, DRIVER, node);
        let what = format!("{volume} has no VolumeAttachment for {node}");
        until(self.all(), &name, &what, |attachment: Option<&VolumeAttachment>| attachment.is_none()).await;
    }

    /// Waits until a claim has a phase.
    pub async fn claim_phase(&self, claim: &str, phase: &'static str) -> PersistentVolumeClaim {
        let what = format!("claim {claim} is {phase}");
        let found = until(self.namespaced(), claim, &what, move |claim: Option<&PersistentVolumeClaim>| {
            claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some(phase)
        });
        found.await.expect("the condition asks for a claim")
    }

    /// Waits until a claim and a volume are bound to each other.
    pub async fn bound(&self, claim: &str, volume: &str) {
        let claim = self.claim_phase(claim, "Bound").await;
        assert_eq!(claim.spec.and_then(|spec| spec.volume_name).as_deref(), Some(volume));
        let volume = self.volume_phase(volume, "Bound").await;
        let reference = volume.spec.and_then(|spec| spec.claim_ref).expect("a bound volume names its claim");
        assert_eq!(reference.uid, claim.metadata.uid);
    }

    /// Waits until a volume is gone.
    pub async fn volume_gone(&self, volume: &str) {
        let what = format!("volume {volume} is gone");
        until(self.all(), volume, &what, |volume: Option<&PersistentVolume>| volume.is_none()).await;
    }

    /// Waits until a volume has a phase.
    pub async fn volume_phase(&self, volume: &str, phase: &'static str) -> PersistentVolume {
        let what = format!("volume {volume} is {phase}");
        let found = until(self.all(), volume, &what, move |volume: Option<&PersistentVolume>| {
            volume.and_then(|volume| volume.status.as_ref()?.phase.as_deref()) == Some(phase)
        });
        found.await.expect("the condition asks for a volume")
    }

    /// Waits until there is an event with this reason about an object of this name.
    pub async fn event(&self, about: &str, reason: &str) -> Event {
        self.event_with(about, reason, "").await
    }

    /// The same, with this text in its message.
    pub async fn event_with(&self, about: &str, reason: &str, text: &str) -> Event {
        self.event_that(about, reason, text, |_| true).await
    }

    /// The same, seen more than once.
    pub async fn repeated_event(&self, about: &str, reason: &str, text: &str) -> Event {
        self.event_that(about, reason, text, |event| event.count.is_some_and(|count| count > 1)).await
    }

    async fn event_that(
        &self,
        about: &str,
        reason: &str,
        text: &str,
        condition: impl Fn(&Event) -> bool,
    ) -> Event {
        let fields = format!("involvedObject.name={about},reason={reason}");
        let config = watcher::Config::default().fields(&fields);
        let events = watcher(Api::<Event>::all(self.client.clone()), config).touched_objects();
        let mut events = std::pin::pin!(events);
        let what = format!("there is an event {reason} about {about} {text}");
        let found = within_deadline(&what, async {
            loop {
                let Some(Ok(event)) = events.next().await else { continue };
                if event.message.as_ref().is_some_and(|message| message.contains(text)) && condition(&event) {
                    return event;
                }
            }
        });
        found.await.unwrap_or_else(|late| panic!("{late}"))
    }

    /// Clears away what stories leave behind, finalizers and all.
    pub async fn clear(&self) {
        // First what would refuse or hold up the rest, if a story ended before it could take it away.
        clear(&self.all::<ValidatingWebhookConfiguration>()).await;
        clear(&self.all::<ValidatingAdmissionPolicyBinding>()).await;
        clear(&self.all::<ValidatingAdmissionPolicy>()).await;
        clear(&self.namespaced::<LimitRange>()).await;
        clear(&self.namespaced::<ResourceQuota>()).await;
        clear(&self.namespaced::<Pod>()).await;
        clear(&Api::<Pod>::namespaced(self.client.clone(), ELSEWHERE)).await;
        clear(&self.all::<VolumeAttachment>()).await;
        clear(&self.namespaced::<PersistentVolumeClaim>()).await;
        clear(&self.all::<PersistentVolume>()).await;
        clear(&self.all::<Node>()).await;
        clear(&self.all::<StorageClass>()).await;
        clear(&self.all::<CSIDriver>()).await;
        clear(&self.all::<VolumeAttributesClass>()).await;
        self.namespaced::<Event>()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .ok();
    }

    /// Makes the other namespace, if it is not there yet.
    pub async fn make_elsewhere(&self) {
        self.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {ELSEWHERE}}}}}")).await;
    }

    /// Creates the objects of a manifest; those that exist are left as they are.
    pub async fn apply(&self, manifest: &str) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).expect("read the manifest");
        for document in documents {
            let path = path_of(&document);
            let request = http::Request::post(&path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(document.to_string().into_bytes())
                .unwrap();
            match self.client.request::<Value>(request).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
}

/// Where the API serves the objects of this one's kind.
pub fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let kind = text(&object["kind"]).to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

/// The name by which node status lists a volume.
pub fn unique_name(volume: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{volume}")
}

/// What a node lists as attached.
pub fn attached(node: &Node) -> Vec<String> {
    let listed = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
    listed.into_iter().flatten().map(|volume| volume.name.clone()).collect()
}

fn volume_object(name: &str, shape: &VolumeShape, claim_ref: &Value) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": shape.capacity },
            "accessModes": shape.access_modes,
            "storageClassName": shape.class,
            "persistentVolumeReclaimPolicy": shape.reclaim_policy,
            "csi": { "driver": DRIVER, "volumeHandle": name },
            "claimRef": claim_ref,
        },
    })
}

fn claim_object(name: &str, shape: &VolumeShape) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": shape.access_modes,
            "storageClassName": shape.class,
            "resources": { "requests": { "storage": shape.capacity } },
        },
    })
}

/// Creates an object.
pub async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + Debug,
{
    let object: K = serde_json::from_value(object).expect("a well-formed object");
    api.create(&PostParams::default(), &object).await.expect("create an object")
}

/// Merge-patches an object.
pub async fn patch<K>(api: &Api<K>, name: &str, body: Value) -> K
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await.expect("patch an object")
}

/// Merge-patches an object's status.
pub async fn patch_status<K>(api: &Api<K>, name: &str, body: Value) -> K
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await.expect("patch a status")
}

/// The same under the name of a manager.
pub async fn patch_status_as<K>(manager: &str, api: &Api<K>, name: &str, body: Value) -> K
where
    K: Clone + DeserializeOwned + Debug,
{
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    api.patch_status(name, &params, &Patch::Merge(body)).await.expect("patch a status")
}

/// Waits until an object, or its absence, is as it should be.
pub async fn until<K>(
    api: Api<K>,
    name: &str,
    what: &str,
    condition: impl Fn(Option<&K>) -> bool,
) -> Option<K>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    match within_deadline(what, Box::pin(await_condition(api.clone(), name, condition))).await {
        Ok(object) => object.expect("watch one object"),
        Err(late) => {
            let now = api.get_opt(name).await;
            panic!("{late}; it is {now:?}")
        }
    }
}

/// Deletes an object at once, whatever protects it.
async fn remove<K>(api: &Api<K>, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let parameters = DeleteParams::default().grace_period(0);
    match api.delete(name, &parameters).await {
        Ok(answer) if answer.as_ref().left().is_some_and(|left| !left.finalizers().is_empty()) => {}
        Ok(_) => return,
        Err(kube::Error::Api(status)) if status.code == 404 => return,
        Err(error) => panic!("cannot delete {name}: {error}"),
    }
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    match api.patch(name, &PatchParams::default(), &free).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("cannot free {name}: {error}"),
    }
}

async fn clear<K>(api: &Api<K>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let objects = api.list(&ListParams::default()).await.expect("list what is left");
    let removals = objects.items.iter().map(|object| async move { remove(api, &object.name_any()).await });
    futures::future::join_all(removals).await;
}
