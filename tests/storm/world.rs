//! The small world: three nodes, three disks (or a provisioner), six claims of one class and a second class to swap with,
//! and what each act does there.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use test_support::cluster::DRIVER;
use testbed::actors::{Attacher, Kubelets, Reaction, attachment_name};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    acts::{Act, Script, Undo, WATCHED},
    hands::{Hands, name},
};

mod all_on;
mod troubles;

pub const NODES: &str = "/api/v1/nodes";
/// Pods and claims of all namespaces.
pub const PODS: &str = "/api/v1/pods";
pub const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const NAMESPACES: &str = "/api/v1/namespaces";
/// That of the claims; the second one only where a script has two.
const NAMESPACE_NAMES: [&str; 2] = ["default", "other"];
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
pub const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

const CLASS_NAMES: [&str; 2] = ["fast", "slow"];
/// Says that a node's volumes are the daemon's to attach.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Between the name of a node and the number of a machine that has taken it.
const REPLACES: char = '~';
/// How the number of a machine begins that its kubelet reports.
const SYSTEM: &str = "system-";
/// A provisioner that is not there.
const MISTYPED: &str = "mistyped.example.com";
const ODD: [&str; 7] = ["status", "finalizers", "proxy", "a.b", "7", "true", "null"];

/// What has become of machines and the driver: which troubles there are now, so that the calm can end them.
#[derive(Debug, Default)]
struct Troubles {
    removed: BTreeSet<usize>,
    tainted: BTreeSet<usize>,
    /// How often each machine has booted since the beginning.
    boots: [usize; 3],
    /// How many machines have borne the name of each node before the one that does now.
    machines: [usize; 3],
}

/// What a stubborn writer undoes each time, and until when.
#[derive(Clone, Debug)]
pub struct Fight {
    pub undo: Undo,
    /// The key of the object.
    pub name: String,
    pub until: Instant,
}

/// The world, and those who act in it.
pub struct World {
    script: Script,
    hands: Hands,
    nodes: Vec<String>,
    /// Namespace and name of each claim.
    claims: Vec<(&'static str, String)>,
    volumes: Vec<String>,
    pods: usize,
    handles: usize,
    troubles: Arc<Mutex<Troubles>>,
    fights: Arc<Mutex<Vec<Fight>>>,
    pub attacher: Attacher,
    pub kubelets: Kubelets,
    /// What goes on beside the script, and ends with the acts.
    beside: JoinSet<()>,
}

impl World {
    pub async fn make(script: &Script, hands: Hands, attacher: Attacher, kubelets: Kubelets) -> Self {
        let mut world = Self {
            script: script.clone(),
            hands,
            nodes: names(script, "n", 3),
            claims: claims(script),
            volumes: names(script, "v", 6),
            pods: 0,
            handles: 0,
            troubles: Arc::default(),
            fights: Arc::default(),
            attacher,
            kubelets,
            beside: JoinSet::new(),
        };
        let second = json!({ "metadata": { "name": NAMESPACE_NAMES[1] } });
        world.hands.create(NAMESPACES, &second).await;
        world.hands.create(DRIVERS, &driver(true)).await;
        for class in 0..2 {
            world.make_class(class).await;
        }
        for node in 0..3 {
            world.make_node(node).await;
        }
        if !script.is_provisioned {
            for volume in 0..3 {
                world.make_volume(volume, false, Value::Null).await;
            }
        }
        if script.has_all {
            world.make_all_on().await;
        }
        for claim in 0..6 {
            world.make_claim(claim, 0, false).await;
        }
        if let Some(volume) = script.broken {
            let failing = Reaction::Fail("the disk is broken".to_owned());
            let name = world.volumes[volume].clone();
            world.attacher.change(|behaviour| {
                behaviour.attach_of.insert(name, failing);
            });
        }
        for pod in 0..4 {
            world.pod(pod, pod % 3, "main").await;
        }
        world
    }

    async fn make_class(&self, class: usize) {
        let provisioner = if self.script.is_provisioned { DRIVER } else { "kubernetes.io/no-provisioner" };
        self.hands.create(CLASSES, &self.class(class, provisioner)).await;
    }

    fn class(&self, class: usize, provisioner: &str) -> Value {
        let (reclaimed, delayed) = (self.script.is_provisioned, self.script.is_delayed);
        json!({
            "metadata": { "name": CLASS_NAMES[class] },
            "provisioner": provisioner,
            "reclaimPolicy": if reclaimed { "Delete" } else { "Retain" },
            "volumeBindingMode": if delayed { "WaitForFirstConsumer" } else { "Immediate" },
            "allowVolumeExpansion": self.script.has_all,
        })
    }

    /// A node, with the machine and its boot as they are by now.
    async fn make_node(&self, node: usize) {
        let (boots, machines) = {
            let troubles = self.troubles.lock().unwrap();
            (troubles.boots[node], troubles.machines[node])
        };
        let name = &self.nodes[node];
        register(&self.hands, name, &machine(name, machines), boots).await;
    }

    fn node(&self, node: usize) -> String {
        format!("{NODES}/{}", self.nodes[node])
    }

    fn claim(&self, claim: usize) -> String {
        let (namespace, name) = &self.claims[claim];
        format!("{}/{name}", within(CLAIMS, namespace))
    }

    async fn make_claim(&self, claim: usize, class: usize, is_foreign: bool) {
        let (namespace, name) = &self.claims[claim];
        let mut object =
            json!({ "metadata": { "name": name, "annotations": {} }, "spec": claim_spec(class) });
        if is_foreign {
            object["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] =
                "other.example.com".into();
        }
        self.hands.create(&within(CLAIMS, namespace), &object).await;
    }

    /// One of the volumes made beforehand.
    async fn make_volume(&mut self, volume: usize, has_other_handle: bool, claim_ref: Value) {
        self.handles += usize::from(has_other_handle);
        let handle = if has_other_handle {
            format!("handle-{volume}-{}", self.handles)
        } else {
            format!("handle-{volume}")
        };
        self.make_volume_of(volume, &handle, claim_ref).await;
    }

    async fn make_volume_of(&self, volume: usize, handle: &str, claim_ref: Value) {
        let modes = if self.script.has_shared && volume == 2 {
            json!(["ReadWriteOnce", "ReadWriteMany"])
        } else {
            json!(["ReadWriteOnce"])
        };
        let mut object = json!({
            "metadata": { "name": self.volumes[volume] },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": modes, "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": claim_ref,
            },
        });
        if self.script.has_iscsi && volume == 1 {
            let target = json!({ "targetPortal": "10.0.0.1:3260", "iqn": format!("iqn.2024-01.example:{handle}"), "lun": 0 });
            object["spec"]["iscsi"] = target;
        } else {
            object["spec"]["csi"] = json!({ "driver": DRIVER, "volumeHandle": handle });
        }
        self.hands.create(VOLUMES, &object).await;
    }

    async fn pod(&mut self, claim: usize, node: usize, kind: &str) -> String {
        self.pods += 1;
        let is_odd = self.script.has_odd_names && self.pods < 4;
        let name =
            if is_odd { self.claims[self.pods - 1].1.clone() } else { format!("{kind}-{}", self.pods) };
        self.make_pod(&name, claim, node).await;
        format!("{}/{name}", within(PODS, self.claims[claim].0))
    }

    async fn make_pod(&self, name: &str, claim: usize, node: usize) {
        let (namespace, claim) = &self.claims[claim];
        let source = json!({ "persistentVolumeClaim": { "claimName": claim } });
        let mut object = pod_object(name, source);
        if !self.script.is_delayed {
            object["spec"]["nodeName"] = self.nodes[node].clone().into();
        }
        self.hands.create(&within(PODS, namespace), &object).await;
    }

    /// The volume, among those that are there.
    async fn volume_now(&self, volume: usize) -> Option<Value> {
        let all = self.hands.list(VOLUMES).await;
        (!all.is_empty()).then(|| all[volume % all.len()].clone())
    }

    /// A volume that names a claim which does not name it yet.
    async fn half_bound(&self) -> Option<Value> {
        let claims = self.hands.list(CLAIMS).await;
        let is_open = |claim: &Value| claim["spec"]["volumeName"].is_null();
        let uids: Vec<&Value> =
            claims.iter().filter(|it| is_open(it)).map(|claim| &claim["metadata"]["uid"]).collect();
        let volumes = self.hands.list(VOLUMES).await;
        volumes.into_iter().find(|volume| uids.contains(&&volume["spec"]["claimRef"]["uid"]))
    }

    /// A claim of a pod that runs on the node, or else that claim.
    async fn used_claim(&self, claim: usize, node: usize) -> usize {
        let pods = self.hands.list(PODS).await;
        let runs_here =
            |pod: &&Value| pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] == self.nodes[node];
        let used: Vec<&Value> = pods.iter().filter(runs_here).collect();
        let chosen = (!used.is_empty()).then(|| used[claim % used.len()]);
        chosen.and_then(|pod| self.claim_of(pod)).unwrap_or(claim)
    }

    /// Which of the claims a pod uses.
    fn claim_of(&self, pod: &Value) -> Option<usize> {
        let used = &pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
        let is_it =
            |(namespace, name): &(&str, String)| pod["metadata"]["namespace"] == *namespace && used == name;
        self.claims.iter().position(is_it)
    }

    async fn remake_volume(&mut self, volume: usize, has_other_handle: bool, keeps_claim: bool) {
        let hands = self.hands.clone();
        if self.script.is_provisioned {
            let Some(old) = self.volume_now(volume).await else { return };
            return self.restore_volume(old, has_other_handle, keeps_claim).await;
        }
        let volume = volume % 3;
        let path = format!("{VOLUMES}/{}", self.volumes[volume]);
        let Some(old) = hands.get(&path).await else { return };
        hands.remove(&path).await;
        let claim_ref = if keeps_claim { old["spec"]["claimRef"].clone() } else { Value::Null };
        self.make_volume(volume, has_other_handle, claim_ref).await;
    }

    /// Makes a provisioned volume anew under its name, as a restore does: with its disk, or that of a snapshot; for whoever
    /// has the name of its claim, or for nobody.
    async fn restore_volume(&mut self, mut volume: Value, has_other_handle: bool, keeps_claim: bool) {
        if volume["spec"]["csi"].is_null() {
            return;
        }
        self.hands.remove(&format!("{VOLUMES}/{}", name(&volume))).await;
        let metadata = &volume["metadata"];
        volume["metadata"] = json!({ "name": metadata["name"], "labels": metadata["labels"], "annotations": metadata["annotations"] });
        volume["status"] = Value::Null;
        if has_other_handle {
            self.handles += 1;
            volume["spec"]["csi"]["volumeHandle"] = format!("disk-restored-{}", self.handles).into();
        }
        let claim = &volume["spec"]["claimRef"];
        volume["spec"]["claimRef"] = match keeps_claim && claim.is_object() {
            true if has_other_handle => claim.clone(),
            true => json!({ "namespace": claim["namespace"], "name": claim["name"] }),
            false => Value::Null,
        };
        self.hands.create(VOLUMES, &volume).await;
    }

    async fn remake_used_volume(&mut self, claim: usize, node: usize) {
        let hands = self.hands.clone();
        let claim = self.used_claim(claim, node).await;
        let Some(object) = hands.get(&self.claim(claim)).await else { return };
        let of_claim = |name: &str| object["spec"]["volumeName"] == name;
        let volume = self.volumes.iter().position(|name| of_claim(name)).filter(|volume| *volume < 3);
        let provisioned = hands.list(VOLUMES).await.into_iter().find(|volume| of_claim(name(volume)));
        let provisioned = provisioned.filter(|_| self.script.is_provisioned);
        let uses =
            |pod: &&Value| pod["spec"]["nodeName"] == self.nodes[node] && self.claim_of(pod) == Some(claim);
        let first = hands.list(PODS).await.iter().find(uses).map(|pod| path_of(PODS, pod));
        match (provisioned, volume) {
            (Some(old), _) => self.restore_volume(old, true, true).await,
            (None, Some(volume)) => self.remake_volume(volume, true, true).await,
            (None, None) => return,
        }
        self.pod(claim, node, "main").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        if let Some(first) = first {
            hands.end(&first, false).await;
        }
    }

    async fn crowd(&mut self, claim: usize) {
        let cordon = |is_cordoned: bool| json!({ "spec": { "unschedulable": is_cordoned } });
        for node in 0..3 {
            self.hands.patch(&self.node(node), &cordon(true)).await;
        }
        // The pods that there are at first use the others.
        let claim = 4 + claim % 2;
        for pod in 0..60 {
            self.pod(claim, pod % 3, "crowd").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for node in 0..3 {
            self.hands.patch(&self.node(node), &cordon(false)).await;
        }
    }

    pub async fn act(&mut self, act: &Act) {
        let hands = self.hands.clone();
        match *act {
            Act::Pod { claim, node } => drop(self.pod(claim, node, "main").await),
            Act::BriefPod { claim, node, after } => {
                let pod = self.pod(claim, node, "brief").await;
                tokio::time::sleep(after).await;
                hands.remove(&pod).await;
            }
            Act::Crowd { claim } => self.crowd(claim).await,
            Act::DeletePod { pod, by_force } => {
                let pods = hands.list(PODS).await;
                if pods.is_empty() {
                    return;
                }
                hands.end(&path_of(PODS, &pods[pod % pods.len()]), by_force).await;
            }
            Act::RemakePod { pod, claim, node } => {
                let pods = hands.list(PODS).await;
                if pods.is_empty() {
                    return;
                }
                let pod = &pods[pod % pods.len()];
                hands.remove(&path_of(PODS, pod)).await;
                self.make_pod(name(pod), claim, node).await;
            }
            Act::DeleteClaim { claim, by_force } => hands.end(&self.claim(claim), by_force).await,
            Act::MakeClaim { claim, class, is_foreign } => self.make_claim(claim, class, is_foreign).await,
            Act::RemakeClaim { claim, node, has_volume } => {
                let claim = self.used_claim(claim, node).await;
                hands.remove(&self.claim(claim)).await;
                if has_volume {
                    let (namespace, name) = &self.claims[claim];
                    let reference = json!({ "namespace": namespace, "name": name });
                    self.make_volume(3 + claim % 3, false, reference).await;
                }
                self.make_claim(claim, 0, false).await;
            }
            Act::DeleteVolume { volume, by_force } => {
                let half_bound = self.half_bound().await;
                let Some(volume) = half_bound.or(self.volume_now(volume).await) else { return };
                let path = format!("{VOLUMES}/{}", name(&volume));
                hands.end(&path, by_force).await;
            }
            Act::MakeVolume { volume, has_other_handle } => {
                if !self.script.is_provisioned {
                    self.make_volume(volume % 3, has_other_handle, Value::Null).await;
                }
            }
            Act::MakeTwin { volume } => {
                if !self.script.is_provisioned {
                    self.make_volume_of(3 + volume % 3, &format!("handle-{}", volume % 3), Value::Null).await;
                }
            }
            Act::RemakeVolume { volume, has_other_handle, keeps_claim } => {
                self.remake_volume(volume, has_other_handle, keeps_claim).await;
            }
            Act::RemakeUsedVolume { claim, node } => self.remake_used_volume(claim, node).await,
            Act::ClearRef { volume, is_uid_only } => {
                let Some(volume) = self.volume_now(volume).await else { return };
                let claim_ref = if is_uid_only { json!({ "uid": null }) } else { Value::Null };
                let body = json!({ "spec": { "claimRef": claim_ref } });
                hands.patch(&format!("{VOLUMES}/{}", name(&volume)), &body).await;
            }
            Act::EditRef { volume: number, claim, lacks_uid } => {
                let Some(volume) = self.volume_now(number).await else { return };
                // In every second case that of a claim which has another volume, if it has one.
                let known =
                    hands.get(&self.claim(claim)).await.filter(|_| (number + claim).is_multiple_of(2));
                let uid = known.filter(|claim| claim["spec"]["volumeName"].is_string());
                let uid = uid.map_or(json!("of-another"), |claim| claim["metadata"]["uid"].clone());
                let uid = if lacks_uid { Value::Null } else { uid };
                let (namespace, name_of_claim) = &self.claims[claim];
                let reference = json!({ "namespace": namespace, "name": name_of_claim, "uid": uid });
                let body = json!({ "spec": { "claimRef": reference } });
                hands.patch(&format!("{VOLUMES}/{}", name(&volume)), &body).await;
            }
            Act::DeleteAttachment { attachment, takes_finalizers } => {
                let all = hands.list(ATTACHMENTS).await;
                if all.is_empty() {
                    return;
                }
                let path = format!("{ATTACHMENTS}/{}", name(&all[attachment % all.len()]));
                hands.end(&path, takes_finalizers).await;
            }
            _ => {
                self.act_for_all(act).await;
                self.trouble(act).await;
            }
        }
    }

    /// Ends all troubles: machines and driver are well again, and nothing more is done by people. Returns what stubborn
    /// writers undid.
    pub async fn calm(&mut self) -> Vec<Fight> {
        self.beside.shutdown().await;
        let mut fights = mem::take(&mut *self.fights.lock().unwrap());
        for fight in &mut fights {
            fight.until = fight.until.min(Instant::now());
        }
        let broken = self.script.broken.map(|volume| self.volumes[volume].clone());
        self.attacher.change(|behaviour| {
            behaviour.attach_of.retain(|name, _| Some(name) == broken.as_ref());
            behaviour.detach_of.clear();
        });
        for node in 0..3 {
            self.make_node(node).await;
        }
        let machines = self.troubles.lock().unwrap().machines;
        let replaced = self.nodes.iter().zip(machines);
        let dead = replaced.flat_map(|(name, count)| (0..count).map(move |number| machine(name, number)));
        self.kubelets.change(|kubelets| {
            kubelets.dead.extend(dead);
            kubelets.silent.clear();
            kubelets.holding.clear();
        });
        let path = format!("{DRIVERS}/{DRIVER}");
        if self.hands.get(&path).await.is_none_or(|driver| driver["spec"]["attachRequired"] == false) {
            self.hands.remove(&path).await;
            self.hands.create(DRIVERS, &driver(true)).await;
        }
        for (class, name) in CLASS_NAMES.iter().enumerate() {
            let path = format!("{CLASSES}/{name}");
            if self.hands.get(&path).await.is_some_and(|class| class["provisioner"] == MISTYPED) {
                self.hands.remove(&path).await;
            }
            self.make_class(class).await;
        }
        fights
    }
}

fn driver(attach_required: bool) -> Value {
    json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": attach_required } })
}

/// A machine that bears the name of a node, after so many others.
fn machine(node: &str, number: usize) -> String {
    if number == 0 { node.to_owned() } else { format!("{node}{REPLACES}{number}") }
}

/// The machine behind a node, as its kubelet says.
pub fn machine_of<'a>(name: &'a str, node: &'a Value) -> &'a str {
    let uuid = node["status"]["nodeInfo"]["systemUUID"].as_str();
    uuid.and_then(|uuid| uuid.strip_prefix(SYSTEM)).unwrap_or(name)
}

/// The node whose name a machine bears, or bore once.
pub fn node_of(machine: &str) -> &str {
    machine.split_once(REPLACES).map_or(machine, |(node, _)| node)
}

/// What a kubelet says as it begins: its node is there, well and without taints.
async fn register(hands: &Hands, name: &str, machine: &str, boots: usize) {
    let metadata = json!({ "name": name, "annotations": { MANAGED: "true" } });
    let info =
        json!({ "bootID": format!("boot-{machine}-{boots}"), "systemUUID": format!("{SYSTEM}{machine}") });
    hands.create(NODES, &json!({ "metadata": metadata, "status": { "nodeInfo": info } })).await;
    let path = format!("{NODES}/{name}");
    hands.patch(&path, &json!({ "metadata": metadata, "spec": { "taints": null } })).await;
    hands.patch(&format!("{path}/status"), &json!({ "status": { "nodeInfo": info } })).await;
    ready(hands, &path, "True").await;
}

async fn ready(hands: &Hands, path: &str, status: &str) {
    let condition = json!({ "type": "Ready", "status": status, "reason": "Kubelet", "message": "" });
    hands.patch(&format!("{path}/status"), &json!({ "status": { "conditions": [condition] } })).await;
}

/// Names of the nodes, claims or volumes of a script, by their letter.
pub fn names(script: &Script, letter: &str, count: usize) -> Vec<String> {
    let seed = usize::try_from(script.seed).unwrap_or(0);
    let name = |number: usize| match number {
        _ if !script.has_odd_names || number > 3 => format!("{letter}{number}"),
        // As long as a name may be; that of a node, a claim, a volume and a pod in turn.
        _ if number == seed % 3 => "x".repeat(253),
        _ => ODD[(seed + number) % ODD.len()].to_owned(),
    };
    (0..count).map(name).collect()
}

/// Namespace and name of each claim of a script.
fn claims(script: &Script) -> Vec<(&'static str, String)> {
    let names = names(script, "c", 6);
    let place =
        |number: usize| if script.has_namespaces && number > 2 { (1, number - 3) } else { (0, number) };
    let places = (0..6).map(place);
    places.map(|(namespace, name)| (NAMESPACE_NAMES[namespace], names[name].clone())).collect()
}

/// Pods or claims of one namespace.
fn within(list: &str, namespace: &str) -> String {
    list.replacen("/api/v1", &format!("{NAMESPACES}/{namespace}"), 1)
}

/// The path of an object of a list.
fn path_of(list: &str, object: &Value) -> String {
    let list =
        object["metadata"]["namespace"].as_str().map_or_else(|| list.to_owned(), |it| within(list, it));
    format!("{list}/{}", name(object))
}

/// What all claims ask for.
fn claim_spec(class: usize) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS_NAMES[class],
        "resources": { "requests": { "storage": "1Gi" } },
    })
}

/// A pod with one volume.
fn pod_object(name: &str, mut volume: Value) -> Value {
    volume["name"] = "data".into();
    json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [volume],
        },
    })
}

/// The name of the VolumeAttachment of a disk, as kubelets name disks, on a machine.
pub fn attachment_of(disk: &str, machine: &str) -> Option<String> {
    let (driver, handle) = disk.strip_prefix("kubernetes.io/csi/")?.split_once('^')?;
    Some(attachment_name(handle, driver, machine))
}

/// Whether the volumes of a node are the daemon's to attach.
pub fn is_managed(node: &Value) -> bool {
    node["metadata"]["annotations"][MANAGED].is_string()
}

/// Plural of a watched kind.
pub fn watched(kind: usize) -> &'static str {
    WATCHED[kind % WATCHED.len()]
}
