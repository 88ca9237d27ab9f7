//! The common part of the stand-ins' decision tables. The cases are in `tests/cases/actors`: objects (a
//! patch on a small complete object of the kind), the key of the decision, and the write that follows.

use std::{fmt::Debug, path::Path};

use kube::{Resource, runtime::watcher::Event};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    mirror::{Mirror, Touched},
    work::Write,
};

/// One row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    #[serde(rename = "given")]
    pub objects: Vec<Value>,
    pub about: String,
    /// Seconds since the objects were seen.
    #[serde(default)]
    pub after: u64,
    /// The write: method, path, and what its body contains. Null for none.
    pub then: Value,
}

/// The cases of a stand-in.
pub fn cases(table: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/actors");
    let text = std::fs::read_to_string(folder.join(format!("{table}.yaml"))).unwrap();
    let mut cases: Vec<Case> = serde_saphyr::from_str(&text).unwrap();
    assert!(!cases.is_empty());
    for object in cases.iter_mut().flat_map(|case| &mut case.objects) {
        *object = whole(object);
    }
    cases
}

/// `{Pod: db-0, spec: …}` as an object.
fn whole(short: &Value) -> Value {
    let (kind, name) =
        short.as_object().unwrap().iter().find(|(key, _)| key.starts_with(char::is_uppercase)).unwrap();
    let mut object = match kind.as_str() {
        "Pod" => json!({ "metadata": { "namespace": "ns" }, "spec": { "containers": [] } }),
        "PersistentVolumeClaim" => json!({ "metadata": { "namespace": "ns" } }),
        "Node" => json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        "StorageClass" => json!({ "provisioner": "driver" }),
        _ => json!({}),
    };
    let mut patch = short.clone();
    patch.as_object_mut().unwrap().remove(kind);
    json_patch::merge(&mut object, &patch);
    let identity = json!({ "kind": kind, "metadata": { "name": name, "uid": format!("{}-uid", name.as_str().unwrap()) } });
    json_patch::merge(&mut object, &identity);
    object
}

/// Puts an object into a mirror.
pub fn apply<K>(mirror: &mut Mirror<K>, object: &Value) -> Vec<Touched<K>>
where
    K: Resource + DeserializeOwned + Debug,
{
    mirror.apply(Event::Apply(serde_json::from_value(object.clone()).unwrap()))
}

/// Compares the write with the one expected.
pub fn expect(name: &str, write: Option<&Write>, then: &Value) {
    let found = write.map_or(
        Value::Null,
        |write| json!({ "method": write.method.as_str(), "path": write.path, "body": write.body }),
    );
    let mut expected = found.clone();
    match then {
        Value::Object(_) => json_patch::merge(&mut expected, then),
        other => expected = other.clone(),
    }
    assert_eq!(found, expected, "{name}");
}
