//! Runs `tests/cases/attach_detach/populator.yaml`: each case is one call of the populator's function
//! over a small world of objects. The words are explained at the top of the file.

// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;

use libtest_mimic::{Arguments, Failed, Trial};
use mooring::{
    attach_detach::{
        desired_state::{PodWishes, WhyUnresolved},
        populator,
    },
    kube_api::kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    state::{Objects, Stored},
};
use serde::Deserialize;
use serde_json::{Value, json};

type Patches = BTreeMap<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    before: Option<Patches>,
    #[serde(default)]
    given: Patches,
    then: Then,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Then {
    nothing: bool,
    volumes: BTreeMap<String, Facts>,
    unresolved: Vec<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    exclusive: bool,
    current: bool,
}

fn main() {
    let text = include_str!("cases/attach_detach/populator.yaml");
    let cases: Vec<Case> = serde_saphyr::from_str(text).expect("populator.yaml");
    let trials = cases
        .into_iter()
        .map(|case| Trial::test(format!("populator: {}", case.name), move || run(&case)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn run(case: &Case) -> Result<(), Failed> {
    let before = case.before.as_ref().and_then(|patches| look(patches, None));
    let wishes = look(&case.given, before.as_ref());
    let seen = match wishes {
        None => Then { nothing: true, ..Then::default() },
        Some(wishes) => Then {
            nothing: false,
            volumes: wishes
                .volumes
                .iter()
                .map(|(id, volume)| {
                    (id.to_string(), Facts { exclusive: volume.exclusive, current: volume.current })
                })
                .collect(),
            unresolved: wishes.unresolved.iter().map(|entry| code(&entry.why).to_owned()).collect(),
        },
    };
    if seen == case.then {
        return Ok(());
    }
    Err(format!("expected {:#?}\nseen {seen:#?}", case.then).into())
}

fn look(patches: &Patches, before: Option<&PodWishes>) -> Option<PodWishes> {
    let objects = Objects::default();
    let world = json!({
        "node": {"metadata": {"name": "n1", "annotations": {
            "volumes.kubernetes.io/controller-managed-attach-detach": "true"}}},
        "pod": {"metadata": {"namespace": "ns", "name": "web", "uid": "web-1"},
            "spec": {"nodeName": "n1", "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
            "status": {"phase": "Running"}},
        "claim": {"metadata": {"namespace": "ns", "name": "data", "uid": "data-1"},
            "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}},
        "volume": {"metadata": {"name": "pv1"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "ns", "name": "data", "uid": "data-1"}}},
    });
    let object = |name: &str| -> Option<Value> {
        let mut object = world.get(name).cloned().unwrap_or_else(|| json!({"metadata": {"name": "d"}}));
        match patches.get(name) {
            None => world.get(name).is_some().then_some(object),
            Some(Value::Null) => None,
            Some(patch) => {
                json_patch::merge(&mut object, patch);
                Some(object)
            }
        }
    };
    apply::<Node>(&objects, object("node"));
    apply::<PersistentVolumeClaim>(&objects, object("claim"));
    apply::<PersistentVolume>(&objects, object("volume"));
    apply::<CsiDriver>(&objects, object("driver"));
    let pod: Pod = decode(object("pod").expect("every case has the pod"));
    populator::wishes(&pod, &objects, before)
}

fn apply<T: Stored>(objects: &Objects, object: Option<Value>) {
    if let Some(object) = object {
        objects.apply::<T>(decode(object));
    }
}

fn decode<T: Stored>(object: Value) -> T {
    let mut object = object;
    if let Some(metadata) = object.get_mut("metadata") {
        json_patch::merge(metadata, &json!({"resourceVersion": "1"}));
    }
    serde_json::from_value(object).expect("a narrow kind reads any object of its kind")
}

fn code(why: &WhyUnresolved) -> &'static str {
    match why {
        WhyUnresolved::NodeNotManaged(_) => "NodeNotManaged",
        WhyUnresolved::ClaimMissing(_) => "ClaimMissing",
        WhyUnresolved::ClaimNotOwnedByPod(_) => "ClaimNotOwnedByPod",
        WhyUnresolved::ClaimNotBound(_) => "ClaimNotBound",
        WhyUnresolved::VolumeMissing(_) => "VolumeMissing",
        WhyUnresolved::VolumeBoundElsewhere(_) => "VolumeBoundElsewhere",
        WhyUnresolved::MalformedSource(_) => "MalformedSource",
    }
}
