//! `populator.yaml`: each case is one call of the populator's function over a small world of objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use apiserver::{
    kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    tables::{Objects, Stored},
};
use libtest_mimic::{Failed, Trial};
use mooring::attach_detach::state::desired::{
    AttachSource, DesiredPod, DesiredVolume, WhyUnresolved, attach_required::AttachRequired, populator,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use test_support::cases::comparison::Comparison;

use super::volumes::problem;

type Patches = BTreeMap<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    #[serde(default)]
    before: Option<Patches>,
    #[serde(default)]
    given: Patches,
    #[serde(default)]
    also: Vec<Value>,
    then: Then,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Then {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    nothing: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    volumes: BTreeMap<String, PlanFacts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unresolved: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wakes: Option<BTreeSet<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PlanFacts {
    exclusive: bool,
    current: bool,
    /// Compared where a case says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    says: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Value>,
}

pub fn trials(file: &Path) -> Vec<Trial> {
    super::each("populator", file, |case: &Case| &case.name, run)
}

fn run(case: &Case, compared: &mut Comparison) -> Result<(), Failed> {
    let before = case.before.as_ref().and_then(|patches| look(patches, &case.also, None));
    let wishes = look(&case.given, &case.also, before.as_ref());
    let again = look(&case.given, &case.also, wishes.as_ref());
    if again != wishes {
        return Err(format!("populating again makes {again:#?}\nof {wishes:#?}").into());
    }
    let seen = match wishes {
        None => Then { nothing: true, ..Then::default() },
        Some(wishes) => Then {
            nothing: false,
            volumes: wishes
                .volumes
                .iter()
                .map(|(id, volume)| (id.to_string(), facts(volume, case.then.volumes.get(id.as_str()))))
                .collect(),
            unresolved: wishes.unresolved.iter().map(|entry| why(&entry.why)).collect(),
            wakes: case
                .then
                .wakes
                .as_ref()
                .map(|_| wishes.depends_on.iter().map(ToString::to_string).collect()),
        },
    };
    compared.same(&["then"], &case.then, &seen);
    Ok(())
}

fn facts(volume: &DesiredVolume, expected: Option<&PlanFacts>) -> PlanFacts {
    let source = match &volume.source {
        None => Value::Null,
        Some(AttachSource::PersistentVolume(name)) => json!(name),
        Some(AttachSource::Inline(spec)) => Value::clone(spec),
    };
    PlanFacts {
        exclusive: volume.exclusive,
        current: volume.current,
        says: expected.and_then(|facts| facts.says.as_ref()).map(|_| volume.spec_name.to_string()),
        source: expected.and_then(|facts| facts.source.as_ref()).map(|_| source),
    }
}

fn why(why: &WhyUnresolved) -> String {
    match why {
        WhyUnresolved::MalformedSource(_, error) => format!("{}: {}", <&str>::from(why), problem(error)),
        _ => <&str>::from(why).to_owned(),
    }
}

fn look(patches: &Patches, also: &[Value], before: Option<&DesiredPod>) -> Option<DesiredPod> {
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
    for object in also {
        match object["kind"].as_str() {
            Some("PersistentVolume") => apply::<PersistentVolume>(&objects, Some(object.clone())),
            Some("PersistentVolumeClaim") => apply::<PersistentVolumeClaim>(&objects, Some(object.clone())),
            kind => panic!("unknown kind {kind:?}"),
        }
    }
    let pod: Pod = decode(object("pod").expect("every case has the pod"));
    let is_managed = objects.nodes.get(&pod.spec.node_name).is_some_and(|node| node.is_managed());
    populator::populate(&pod, &objects, &AttachRequired::default(), is_managed, before, |_| true)
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
