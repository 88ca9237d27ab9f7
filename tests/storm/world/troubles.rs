//! What people do to nodes and classes, what machines and the driver do, and those who undo each write.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use test_support::cluster::DRIVER;
use testbed::actors::{Reaction, attachment_name};
use tokio::time::Instant;

use super::{
    ATTACHMENTS, CLAIMS, CLASS_NAMES, CLASSES, DRIVERS, Fight, MANAGED, MISTYPED, NODES, PODS, VOLUMES,
    World, claim_spec, driver, machine, path_of, ready, register, within,
};
use crate::{
    acts::{Act, Back, Undo},
    hands::{Hands, name},
};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

impl World {
    /// What people do to nodes and classes, and what machines and the driver do.
    pub(super) async fn trouble(&mut self, act: &Act) {
        let hands = self.hands.clone();
        match *act {
            Act::EmptyList { node } => self.node_status(node, json!({ "volumesAttached": null })).await,
            Act::FalsifyList { node, volume } => {
                let entry = json!({ "name": format!("kubernetes.io/csi/{DRIVER}^handle-{}", volume % 3), "devicePath": "" });
                self.node_status(node, json!({ "volumesAttached": [entry] })).await;
            }
            Act::EmptyInUse { node } => self.node_status(node, json!({ "volumesInUse": null })).await,
            Act::RemakeClass { class } => {
                hands.remove(&format!("{CLASSES}/{}", CLASS_NAMES[class])).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.make_class(class).await;
            }
            Act::SwapClass { class, time } => {
                let path = format!("{CLASSES}/{}", CLASS_NAMES[class]);
                let (wrong, right) = (self.class(class, MISTYPED), self.class(class, DRIVER));
                if !self.script.is_provisioned {
                    return;
                }
                hands.remove(&path).await;
                hands.create(CLASSES, &wrong).await;
                self.beside.spawn(async move {
                    tokio::time::sleep(time).await;
                    hands.remove(&path).await;
                    hands.create(CLASSES, &right).await;
                });
            }
            Act::EditVolume { volume } => {
                let Some(volume) = self.volume_now(volume).await else { return };
                let is_fast = volume["spec"]["storageClassName"] == CLASS_NAMES[0];
                let body = json!({ "spec": { "storageClassName": CLASS_NAMES[usize::from(is_fast)] } });
                hands.patch(&format!("{VOLUMES}/{}", name(&volume)), &body).await;
            }
            Act::DeleteNode { node, back } => {
                self.stop(node);
                hands.remove(&self.node(node)).await;
                self.troubles.lock().unwrap().removed.insert(node);
                self.come_back(node, back);
            }
            Act::ReplaceMachine { node, after, lives, is_emptied } => {
                self.replace_machine(node, (after, lives), is_emptied).await;
            }
            Act::OutOfService { node, back } => {
                self.stop(node);
                let path = self.node(node);
                ready(&hands, &path, "Unknown").await;
                let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute" }]);
                hands.patch(&path, &json!({ "spec": { "taints": taint } })).await;
                self.troubles.lock().unwrap().tainted.insert(node);
                self.come_back(node, back);
            }
            Act::SwapDriver { is_gone, time } => {
                let path = format!("{DRIVERS}/{DRIVER}");
                hands.remove(&path).await;
                if !is_gone {
                    hands.create(DRIVERS, &driver(false)).await;
                }
                self.beside.spawn(async move {
                    tokio::time::sleep(time).await;
                    hands.remove(&path).await;
                    hands.create(DRIVERS, &driver(true)).await;
                });
            }
            Act::Unmanage { node, time } => {
                let path = self.node(node);
                hands.patch(&path, &json!({ "metadata": { "annotations": { MANAGED: null } } })).await;
                self.beside.spawn(async move {
                    tokio::time::sleep(time).await;
                    hands.patch(&path, &json!({ "metadata": { "annotations": { MANAGED: "true" } } })).await;
                });
            }
            Act::MakeAttachment { volume, node, is_misnamed } => {
                self.make_attachment(volume, node, is_misnamed).await;
            }
            Act::LabelVolume { volume, zone } => {
                let Some(volume) = self.volume_now(volume).await else { return };
                let labels = json!({ "topology.kubernetes.io/zone": format!("zone-{zone}"), "team": zone.to_string() });
                let body = json!({ "metadata": { "labels": labels } });
                hands.patch(&format!("{VOLUMES}/{}", name(&volume)), &body).await;
            }
            Act::Stubborn { undo, target, time } => {
                let (nodes, fights) = (self.nodes.clone(), Arc::clone(&self.fights));
                let until = Instant::now() + time;
                self.beside.spawn(async move {
                    let Some(object) = chosen(&hands, undo, target, &nodes).await else { return };
                    fights.lock().unwrap().push(Fight { undo, name: key_of(&object), until });
                    let _ = tokio::time::timeout_at(until, stubborn(hands, undo, object)).await;
                });
            }
            Act::Hang { node, time } => self.hang(node, time),
            Act::Silence { node, time } => self.silence(node, time),
            Act::FailAttach { volume, time } => self.fail(volume, time, true),
            Act::FailDetach { volume, time } => self.fail(volume, time, false),
            _ => self.edit(act).await,
        }
    }

    /// What people edit of volumes, classes, claims and pods.
    async fn edit(&self, act: &Act) {
        let hands = &self.hands;
        match *act {
            Act::EditPolicy { volume } => {
                let Some(volume) = self.volume_now(volume).await else { return };
                let is_kept = volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain";
                let policy = if is_kept { "Delete" } else { "Retain" };
                let body = json!({ "spec": { "persistentVolumeReclaimPolicy": policy } });
                hands.patch(&format!("{VOLUMES}/{}", name(&volume)), &body).await;
            }
            Act::SwapDefault { class } => {
                let path = format!("{CLASSES}/{}", CLASS_NAMES[class]);
                let Some(object) = hands.get(&path).await else { return };
                let is_default = object["metadata"]["annotations"][DEFAULT] == "true";
                let body = json!({ "metadata": { "annotations": { DEFAULT: (!is_default).to_string() } } });
                hands.patch(&path, &body).await;
            }
            Act::MakeClassless { claim } => {
                hands.remove(&self.claim(claim)).await;
                let (namespace, name) = &self.claims[claim];
                let mut object = json!({ "metadata": { "name": name }, "spec": claim_spec(0) });
                object["spec"]["storageClassName"] = Value::Null;
                hands.create(&within(CLAIMS, namespace), &object).await;
            }
            Act::CompletePod { pod, fails } => self.complete_pod(pod, fails).await,
            // The rest is the daemon's, and played where it is.
            _ => {}
        }
    }

    /// Its containers have ended, and are not started again.
    async fn complete_pod(&self, pod: usize, fails: bool) {
        let mut pods = self.hands.list(PODS).await;
        pods.retain(|pod| {
            pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
        });
        if pods.is_empty() {
            return;
        }
        let pod = &pods[pod % pods.len()];
        let mut statuses = pod["status"]["containerStatuses"].clone();
        for status in statuses.as_array_mut().into_iter().flatten() {
            let ended = json!({ "exitCode": i32::from(fails), "reason": "Completed" });
            (status["ready"], status["state"]) = (false.into(), json!({ "terminated": ended }));
        }
        let phase = if fails { "Failed" } else { "Succeeded" };
        let body = json!({ "status": { "phase": phase, "containerStatuses": statuses } });
        self.hands.patch(&format!("{}/status", path_of(PODS, pod)), &body).await;
    }

    async fn make_attachment(&self, volume: usize, node: usize, is_misnamed: bool) {
        let Some(volume) = self.volume_now(volume).await else { return };
        let Some(handle) = volume["spec"]["csi"]["volumeHandle"].as_str() else { return };
        let node = &self.nodes[node];
        let right = attachment_name(handle, DRIVER, node);
        let object = json!({
            "metadata": { "name": if is_misnamed { format!("by-hand-{node}") } else { right } },
            "spec": {
                "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": name(&volume) },
            },
        });
        self.hands.create(ATTACHMENTS, &object).await;
    }

    async fn node_status(&self, node: usize, status: Value) {
        self.hands.patch(&format!("{}/status", self.node(node)), &json!({ "status": status })).await;
    }

    fn stop(&self, node: usize) {
        let name = self.nodes[node].clone();
        self.kubelets.change(|kubelets| {
            kubelets.silent.insert(name);
        });
    }

    /// Ends what was done to a node, and what its kubelet does not do.
    fn come_back(&mut self, node: usize, back: Back) {
        let (hands, kubelets, name) = (self.hands.clone(), self.kubelets.handle(), self.nodes[node].clone());
        let troubles = Arc::clone(&self.troubles);
        self.beside.spawn(async move {
            tokio::time::sleep(back.after).await;
            let (boots, machines) = {
                let mut troubles = troubles.lock().unwrap();
                troubles.removed.remove(&node);
                troubles.tainted.remove(&node);
                troubles.boots[node] += usize::from(back.has_booted);
                (troubles.boots[node], troubles.machines[node])
            };
            kubelets.change(|behaviour| {
                behaviour.boots.insert(name.clone(), boots);
            });
            register(&hands, &name, &machine(&name, machines), boots).await;
            kubelets.change(|behaviour| {
                behaviour.silent.remove(&name);
            });
        });
    }

    /// The node goes, and after a while another machine has its name; the first one lives on after that.
    async fn replace_machine(&mut self, node: usize, (after, lives): (Duration, Duration), is_emptied: bool) {
        let hands = self.hands.clone();
        self.stop(node);
        hands.remove(&self.node(node)).await;
        self.troubles.lock().unwrap().removed.insert(node);
        if is_emptied {
            let mut pods = hands.list(PODS).await;
            pods.retain(|pod| pod["spec"]["nodeName"] == self.nodes[node]);
            for pod in &pods {
                hands.remove(&path_of(PODS, pod)).await;
            }
            if let Some(claim) = pods.iter().find_map(|pod| self.claim_of(pod)) {
                self.pod(claim, node, "main").await;
            }
        }
        let (kubelets, attacher) = (self.kubelets.handle(), self.attacher.handle());
        let (troubles, name) = (Arc::clone(&self.troubles), self.nodes[node].clone());
        self.beside.spawn(async move {
            tokio::time::sleep(after).await;
            let (boots, number) = {
                let mut troubles = troubles.lock().unwrap();
                troubles.removed.remove(&node);
                troubles.machines[node] += 1;
                (troubles.boots[node], troubles.machines[node])
            };
            let (first, second) = (machine(&name, number - 1), machine(&name, number));
            attacher.change(|behaviour| drop(behaviour.machines.insert(name.clone(), second.clone())));
            kubelets.change(|behaviour| drop(behaviour.machines.insert(name.clone(), second.clone())));
            register(&hands, &name, &second, boots).await;
            kubelets.change(|behaviour| {
                behaviour.silent.remove(&name);
            });
            tokio::time::sleep(lives).await;
            kubelets.change(|behaviour| {
                behaviour.dead.insert(first);
            });
        });
    }

    fn hang(&mut self, node: usize, time: Duration) {
        let (kubelets, name) = (self.kubelets.handle(), self.nodes[node].clone());
        kubelets.change(|behaviour| {
            behaviour.holding.insert(name.clone());
        });
        self.beside.spawn(async move {
            tokio::time::sleep(time).await;
            kubelets.change(|behaviour| {
                behaviour.holding.remove(&name);
            });
        });
    }

    /// As the node lifecycle controller does: Unknown after 40 s.
    fn silence(&mut self, node: usize, time: Duration) {
        let (kubelets, name) = (self.kubelets.handle(), self.nodes[node].clone());
        kubelets.change(|behaviour| {
            behaviour.silent.insert(name.clone());
        });
        let (hands, path, troubles) = (self.hands.clone(), self.node(node), Arc::clone(&self.troubles));
        self.beside.spawn(async move {
            let grace = Duration::from_secs(40);
            tokio::time::sleep(time.min(grace)).await;
            if time > grace {
                ready(&hands, &path, "Unknown").await;
                tokio::time::sleep(time.saturating_sub(grace)).await;
            }
            let is_gone = troubles.lock().unwrap().removed.contains(&node);
            let is_tainted = troubles.lock().unwrap().tainted.contains(&node);
            if !is_gone && !is_tainted {
                ready(&hands, &path, "True").await;
                kubelets.change(|behaviour| {
                    behaviour.silent.remove(&name);
                });
            }
        });
    }

    fn fail(&mut self, volume: usize, time: Duration, is_attach: bool) {
        let name = self.volumes[volume % 3].clone();
        let change = move |behaviour: &mut testbed::actors::AttacherBehaviour, fails: bool| {
            let map = if is_attach { &mut behaviour.attach_of } else { &mut behaviour.detach_of };
            if fails {
                map.insert(name.clone(), Reaction::Fail("the array is busy".to_owned()));
            } else {
                map.remove(&name);
            }
        };
        if is_attach && self.script.broken == Some(volume % 3) {
            return;
        }
        let attacher = self.attacher.handle();
        attacher.change(|behaviour| change(behaviour, true));
        self.beside.spawn(async move {
            tokio::time::sleep(time).await;
            attacher.change(|behaviour| change(behaviour, false));
        });
    }
}

/// Where the objects are of which it is undone.
fn list_of(undo: Undo) -> &'static str {
    match undo {
        Undo::Attachment | Undo::Deletion => ATTACHMENTS,
        Undo::List => NODES,
        Undo::BindCompleted | Undo::ClaimPhase | Undo::Provisioner | Undo::Protection => CLAIMS,
        Undo::ClaimRef | Undo::Phase => VOLUMES,
    }
}

/// The key of an object.
fn key_of(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    namespace.unwrap_or_default() + name(object)
}

/// The object, among those that are there; a node may be gone.
async fn chosen(hands: &Hands, undo: Undo, target: usize, nodes: &[String]) -> Option<Value> {
    if undo == Undo::List {
        return Some(json!({ "metadata": { "name": nodes[target % nodes.len()] } }));
    }
    let mut all = hands.list(list_of(undo)).await;
    (!all.is_empty()).then(|| all.swap_remove(target % all.len()))
}

/// Undoes each write of a kind to one object, at once, for as long as it is polled.
async fn stubborn(hands: Hands, undo: Undo, chosen: Value) {
    let list = list_of(undo);
    let path = path_of(list, &chosen);
    let spec = hands.get(&path).await.map(|object| object["spec"].clone());
    if undo == Undo::Deletion {
        // Who needs it goes, so that there is a deletion to undo.
        for pod in hands.list(PODS).await {
            if spec.as_ref().is_some_and(|spec| spec["nodeName"] == pod["spec"]["nodeName"]) {
                hands.delete(&path_of(PODS, &pod)).await;
            }
        }
    }
    loop {
        // A script that looks again and again; the daemon's answer comes in between.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let Some(object) = hands.get(&path).await else {
            if undo == Undo::Deletion {
                hands.create(list, &json!({ "metadata": { "name": name(&chosen) }, "spec": spec })).await;
            }
            continue;
        };
        match undo {
            Undo::Attachment => hands.remove(&path).await,
            Undo::List if !object["status"]["volumesAttached"].is_null() => {
                let body = json!({ "status": { "volumesAttached": null } });
                hands.patch(&format!("{path}/status"), &body).await;
            }
            Undo::ClaimRef if !object["spec"]["claimRef"].is_null() => {
                hands.patch(&path, &json!({ "spec": { "claimRef": null } })).await;
            }
            Undo::BindCompleted
                if !object["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_null() =>
            {
                let body =
                    json!({ "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": null } } });
                hands.patch(&path, &body).await;
            }
            Undo::Phase if object["status"]["phase"] == "Bound" => {
                hands.patch(&format!("{path}/status"), &json!({ "status": { "phase": "Available" } })).await;
            }
            Undo::ClaimPhase if object["status"]["phase"] == "Bound" => {
                hands.patch(&format!("{path}/status"), &json!({ "status": { "phase": "Pending" } })).await;
            }
            Undo::Provisioner if !object["metadata"]["annotations"][PROVISIONER].is_null() => {
                let none =
                    json!({ PROVISIONER: null, "volume.beta.kubernetes.io/storage-provisioner": null });
                hands.patch(&path, &json!({ "metadata": { "annotations": none } })).await;
            }
            Undo::Protection if !object["metadata"]["finalizers"].is_null() => {
                hands.patch(&path, &json!({ "metadata": { "finalizers": null } })).await;
            }
            _ => {}
        }
    }
}
