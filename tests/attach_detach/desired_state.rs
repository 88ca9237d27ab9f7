//! `desired_state.yaml`, and random worlds: following what changed is as good as populating every pod again, populating
//! is idempotent, the desired state is what its pods wish, and withdrawing the pods in any order leaves nothing behind.
//!
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test attach_detach_cases` repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use apiserver::{
    ids::{DriverName, NodeName, PodKey, VolumeName},
    kinds::{CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod},
    tables::{ChangeSet, Objects, Stored},
};
use fastrand::Rng;
use libtest_mimic::{Failed, Trial};
use mooring::attach_detach::state::desired::{
    AttachSource, DesiredPod, DesiredState, DesiredVolume, PodFacts, attach_required::AttachRequired,
    populator, volume_name::VolumeId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::cases::comparison::Comparison;

/// Random worlds per run.
const WORLDS: u64 = 300;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    when: Vec<Step>,
    then: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    set: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    on: String,
    #[serde(default)]
    wants: Vec<String>,
    #[serde(default)]
    drop: Option<String>,
    touches: BTreeSet<String>,
}

pub fn trials(file: &Path) -> Vec<Trial> {
    super::each("desired state", file, |case: &Case| &case.name, super::always(run))
}

pub fn properties() -> Vec<Trial> {
    vec![Trial::test("desired state of random worlds", || {
        let seed = std::env::var("MOORING_SEED").ok().and_then(|text| text.parse().ok());
        for seed in seed.map_or(0..WORLDS, |seed| seed..seed + 1) {
            play(seed).map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        Ok(())
    })]
}

fn run(case: &Case, compared: &mut Comparison) {
    let mut desired = DesiredState::default();
    for (number, step) in case.when.iter().enumerate() {
        compared.step(number);
        let touched = match (&step.set, &step.drop) {
            (Some(pod), _) => desired.set(&PodKey::new("ns", pod), Some(wishes(pod, step))),
            (None, Some(pod)) => desired.set(&PodKey::new("ns", pod), None),
            (None, None) => panic!("a step sets or drops"),
        };
        let touched: BTreeSet<String> =
            touched.iter().map(|volume| volume.driver_and_handle().1.to_owned()).collect();
        compared.same(&["touches"], &step.touches, &touched);
    }
    compared.end();
    compared.same(&["then"], &case.then, &rows(&desired));
}

fn wishes(pod: &str, step: &Step) -> DesiredPod {
    let volumes = step.wants.iter().map(|name| {
        let wanted = DesiredVolume {
            exclusive_by_another: false,
            pod_volumes: [name.as_str()].into(),
            source: Some(AttachSource::PersistentVolume(VolumeName::from(name.as_str()))),
            spec_name: arcstr::ArcStr::from(name.as_str()),
            exclusive: true,
            current: true,
        };
        (VolumeId::csi(&DriverName::from("d"), name), wanted)
    });
    DesiredPod {
        pod: Arc::new(PodFacts {
            key: PodKey::new("ns", pod),
            uid: step.uid.as_deref().unwrap_or(pod).into(),
            created: None,
        }),
        node: NodeName::from(step.on.as_str()),
        volumes: volumes.map(|(id, wanted)| (id, Arc::new(wanted))).collect(),
        unresolved: Vec::new(),
        depends_on: Box::default(),
    }
}

/// "volume on node" -> pods.
fn rows(desired: &DesiredState) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for volume in desired.volumes() {
        for (node, wish) in desired.nodes(volume).into_iter().flatten() {
            let (_, handle) = volume.driver_and_handle();
            let pods: BTreeSet<String> =
                wish.pods.values().map(|(pod, _)| pod.key.name().to_owned()).collect();
            rows.insert(format!("{handle} on {node}"), pods.into_iter().collect());
        }
    }
    rows
}

/// A few objects that change at random; every part of them may be missing or wrong.
struct World {
    rng: Rng,
    objects: Objects,
    changes: Arc<ChangeSet>,
    desired: DesiredState,
    revision: u64,
}

/// Changes a world some times, and takes it down.
fn play(seed: u64) -> Result<(), String> {
    let objects = Objects::default();
    let changes = objects.subscribe();
    let desired = DesiredState::default();
    let mut world = World { rng: Rng::with_seed(seed), objects, changes, desired, revision: 0 };
    for _round in 0..10 {
        world.change();
        world.follow();
        for key in world.pods() {
            let touched = world.populate(&key);
            if !touched.is_empty() {
                return Err(format!("nothing woke {key}, for which {touched:?} changed"));
            }
        }
        world.check(&world.pods())?;
    }
    let mut keys = world.pods();
    world.rng.shuffle(&mut keys);
    while let Some(key) = keys.pop() {
        world.desired.set(&key, None);
        world.check(&keys)?;
    }
    if world.desired.volumes().next().is_some() {
        return Err("volumes are wanted by nobody".to_owned());
    }
    Ok(())
}

impl World {
    fn pods(&self) -> Vec<PodKey> {
        self.objects.pods.snapshot().into_keys().collect()
    }

    /// Populates the pods that changed, and those that wait for what changed: as the controller does.
    fn follow(&mut self) {
        for object in self.changes.take() {
            let pods = match &object {
                ObjectRef::Pod(key) => vec![key.clone()],
                _ => self.desired.dependants(&object),
            };
            for key in pods {
                self.populate(&key);
            }
        }
    }

    fn populate(&mut self, key: &PodKey) -> BTreeSet<VolumeId> {
        let pod = self.objects.get::<Pod>(key);
        let before = self.desired.pod(key);
        let wishes = pod.and_then(|pod| {
            let is_managed =
                self.objects.nodes.get(&pod.spec.node_name).is_some_and(|node| node.is_managed());
            populator::populate(&pod, &self.objects, &AttachRequired::default(), is_managed, before, |_| true)
        });
        self.desired.set(key, wishes)
    }

    /// The rows are what the pods wish, and what a pod waits for leads to it.
    fn check(&self, keys: &[PodKey]) -> Result<(), String> {
        let mut expected = BTreeMap::new();
        for key in keys {
            let Some(wishes) = self.desired.pod(key) else { continue };
            for volume in wishes.volumes.keys() {
                let row = (volume.clone(), wishes.node.clone());
                expected.entry(row).or_insert_with(BTreeSet::new).insert(key.clone());
            }
            if let Some(lost) =
                wishes.depends_on.iter().find(|object| !self.desired.dependants(object).contains(key))
            {
                return Err(format!("{lost} does not lead to {key}"));
            }
        }
        let mut seen = BTreeMap::new();
        for volume in self.desired.volumes() {
            for (node, wish) in self.desired.nodes(volume).into_iter().flatten() {
                let pods: BTreeSet<PodKey> = wish.pods.values().map(|(pod, _)| pod.key.clone()).collect();
                seen.insert((volume.clone(), node.clone()), pods);
            }
        }
        if seen == expected { Ok(()) } else { Err(format!("expected {expected:#?}\nseen {seen:#?}")) }
    }

    fn change(&mut self) {
        for index in 0..3 {
            let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": ""});
            let annotations = if self.rng.bool() { managed } else { Value::Null };
            self.put::<Node>(json!({"name": format!("n{index}"), "annotations": annotations}), json!({}));
        }
        for name in ["d", "ebs.csi.aws.com"] {
            let attach_required = [json!(true), json!(false), Value::Null][self.rng.usize(0..3)].clone();
            self.put::<CsiDriver>(
                json!({"name": name}),
                json!({"spec": {"attachRequired": attach_required}}),
            );
        }
        for index in 0..4 {
            let name = if index == 3 { "p0-v0".to_owned() } else { format!("c{index}") };
            self.change_claim(&name, index);
            self.change_volume(&name, index);
        }
        for index in 0..5 {
            self.change_pod(&format!("p{index}"));
        }
    }

    fn change_claim(&mut self, name: &str, index: u32) {
        let phase = ["Pending", "Bound", "Bound", "Lost"][self.rng.usize(0..4)];
        let uid = ["p0-0", "p0-1"][self.rng.usize(0..2)];
        let owners = json!([{"kind": "Pod", "name": "p0", "uid": uid, "controller": self.rng.bool()}]);
        self.put::<PersistentVolumeClaim>(
            json!({"namespace": "ns", "name": name, "uid": name, "ownerReferences": owners}),
            json!({"spec": {"volumeName": format!("pv{index}")}, "status": {"phase": phase}}),
        );
    }

    fn change_volume(&mut self, claim: &str, index: u32) {
        let uid = if self.rng.u32(0..4) > 0 { claim } else { "other" };
        let mode = ["ReadWriteOnce", "ReadWriteMany", "Rubbish"][self.rng.usize(0..3)];
        let mut spec = json!({"accessModes": [mode], "claimRef": {"uid": uid}});
        json_patch::merge(&mut spec, &self.source());
        self.put::<PersistentVolume>(json!({"name": format!("pv{index}")}), json!({"spec": spec}));
    }

    fn change_pod(&mut self, name: &str) {
        let mut volumes = Vec::new();
        for index in 0..self.rng.u32(0..4) {
            let mut volume = match self.rng.u32(0..4) {
                0 => self.source(),
                1 => json!({"ephemeral": {}}),
                _ => json!({"persistentVolumeClaim": {"claimName": format!("c{}", self.rng.u32(0..3))}}),
            };
            json_patch::merge(&mut volume, &json!({"name": format!("v{index}")}));
            volumes.push(volume);
        }
        let phase = ["Pending", "Running", "Running", "Succeeded"][self.rng.usize(0..4)];
        let uid = format!("{name}-{}", self.rng.u32(0..2));
        let node = format!("n{}", self.rng.u32(0..4));
        self.put::<Pod>(
            json!({"namespace": "ns", "name": name, "uid": uid}),
            json!({"spec": {"nodeName": node, "volumes": volumes}, "status": {"phase": phase}}),
        );
    }

    fn source(&mut self) -> Value {
        let disk = ["vol-1", "aws://z/1", "aws://z/vol-1"][self.rng.usize(0..3)];
        let handle = ["a", "b", ""][self.rng.usize(0..3)];
        match self.rng.u32(0..9) {
            0 => {
                json!({"awsElasticBlockStore": {"volumeID": disk}})
            }
            1 => json!({"awsElasticBlockStore": {"volumeID": self.rng.u32(..)}}),
            2 => json!({"iscsi": {"targetPortal": "p", "iqn": "i", "lun": self.rng.u32(0..2)}}),
            3 => json!({"fc": {"wwids": ["a"], "lun": self.rng.u32(0..2)}}),
            4 => json!({"flexVolume": {"driver": "example.com/x"}}),
            5 => json!({"nfs": {"server": "s"}}),
            6 => json!({"azureFile": {"secretName": "s", "shareName": "h"}}),
            _ => json!({"csi": {"driver": "d", "volumeHandle": handle}}),
        }
    }

    /// Replaces an object, leaves it as it is, or takes it away.
    fn put<T: Stored>(&mut self, mut metadata: Value, mut object: Value) {
        self.revision += 1;
        json_patch::merge(&mut metadata, &json!({"resourceVersion": self.revision.to_string()}));
        json_patch::merge(&mut object, &json!({"metadata": metadata}));
        let object: T = serde_json::from_value(object).expect("a narrow kind reads any object of its kind");
        let is_known = self.objects.get::<T>(&object.key()).is_some();
        match self.rng.u32(0..16) {
            0 => self.objects.delete(object),
            // Most objects stay as they are, so that few pods are looked at for their own sake.
            3.. if is_known => {}
            _ => self.objects.apply(object),
        }
    }
}
