//! Objects of a case, made on a real API server. It sets their UIDs, their revisions and the time of their creation itself; all
//! other times of a case are moved to its clock.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{coordination::v1::Lease, storage::v1::CSINode},
    jiff::{Timestamp, ToSpan},
};
use kube::{Api, Client, api::DeleteParams};
use serde_json::{Value, json};

/// In place of the namespace of the cases.
pub const NAMESPACE: &str = "default";

/// What was made of a case.
#[derive(Default)]
pub struct Made {
    leases: Vec<(String, String)>,
    plugins: Vec<String>,
    /// What the server did not take, in its words.
    pub refused: Vec<String>,
}

impl Made {
    /// `driver`: that of the case.
    pub async fn of(client: &Client, mut objects: Vec<Value>, now: Timestamp, driver: &str) -> Self {
        let mut made = Self::default();
        let mut uids = BTreeMap::new();
        let shift = Timestamp::now().as_second() - now.as_second();
        // The plugin of the driver runs on each node, if the case does not say otherwise.
        if !objects.iter().any(|object| object["kind"] == "CSINode") {
            with_plugins(&mut objects, driver);
        }
        // A volume names its claim by its UID, which the server has to give first.
        let rank = |object: &Value| match object["kind"].as_str() {
            Some("PersistentVolumeClaim") => 1,
            Some("Pod") => 3,
            Some("VolumeAttachment" | "Event") => 4,
            Some("PersistentVolume") => 2,
            _ => 0,
        };
        objects.sort_by_key(rank);
        for object in objects {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let moved = moved(&object, shift, &uids);
            match create(client, moved).await {
                Ok(found) => {
                    let new = found["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                    if !uid.is_empty() {
                        uids.insert(uid, new);
                    }
                    let text = |field: &str| found["metadata"][field].as_str().unwrap_or_default().to_owned();
                    match found["kind"].as_str() {
                        Some("Lease") => made.leases.push((text("namespace"), text("name"))),
                        Some("CSINode") => made.plugins.push(text("name")),
                        _ => {}
                    }
                }
                Err(error) => made.refused.push(error),
            }
        }
        made
    }

    pub async fn take_away(&self, client: &Client) {
        for (namespace, name) in &self.leases {
            let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
            leases.delete(name, &DeleteParams::default()).await.unwrap();
        }
        for name in &self.plugins {
            let plugins: Api<CSINode> = Api::all(client.clone());
            plugins.delete(name, &DeleteParams::default()).await.unwrap();
        }
    }
}

/// Adds that the plugin of this driver runs on each node of which nothing is said.
pub fn with_plugins(objects: &mut Vec<Value>, driver: &str) {
    let names = |kind: &str| -> Vec<Value> {
        let all = objects.iter().filter(|object| object["kind"] == kind);
        all.map(|object| object["metadata"]["name"].clone()).collect()
    };
    let said = names("CSINode");
    let plugins = names("Node").into_iter().filter(|name| !said.contains(name)).map(|name| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
            "spec": { "drivers": [{ "name": driver, "nodeID": name }] },
        })
    });
    let plugins: Vec<Value> = plugins.collect();
    objects.extend(plugins);
}

/// A value with the server's times, namespace and UIDs.
fn moved(value: &Value, shift: i64, uids: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let mut value = moved(value, shift, uids);
                if let Some(time) = value.as_str().filter(|_| key.ends_with("Time")).map(str::to_owned) {
                    value = json!(time.replace('Z', ".000000Z"));
                }
                (key.clone(), value)
            })
            .collect(),
        Value::Array(all) => all.iter().map(|one| moved(one, shift, uids)).collect(),
        Value::String(text) if text == "shop" => json!(NAMESPACE),
        Value::String(text) => match (text.parse::<Timestamp>(), uids.get(text)) {
            (Ok(time), _) => json!(time.checked_add(shift.seconds()).unwrap()),
            (_, Some(uid)) => json!(uid),
            _ => value.clone(),
        },
        other => other.clone(),
    }
}

/// Creates an object, gives it its status, and asks for its deletion if it has been.
async fn create(client: &Client, mut object: Value) -> Result<Value, String> {
    let (kind, name) = (object["kind"].as_str().unwrap().to_owned(), object["metadata"]["name"].clone());
    let name = name.as_str().unwrap().to_owned();
    let version = object["apiVersion"].as_str().unwrap_or(match kind.as_str() {
        "StorageClass" | "CSIDriver" | "VolumeAttachment" | "CSINode" | "VolumeAttributesClass" => {
            "storage.k8s.io/v1"
        }
        _ => "v1",
    });
    let version = version.to_owned();
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let ending = if kind.ends_with('s') { "es" } else { "s" };
    let plural = format!("{}{ending}", kind.to_lowercase());
    let path = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    };
    let deleted = object["metadata"]["deletionTimestamp"].is_string();
    for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    if deleted && object["metadata"]["finalizers"].is_null() {
        object["metadata"]["finalizers"] = json!(["example.com/stays"]);
    }
    if kind == "Pod" && object["spec"]["containers"].is_null() {
        object["spec"]["containers"] = json!([{ "name": "main", "image": "example.com/none" }]);
    }
    if kind == "VolumeAttributesClass" && object["parameters"].is_null() {
        object["parameters"] = json!({ "tier": "any" });
    }
    for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
            let spec = &mut volume["ephemeral"]["volumeClaimTemplate"]["spec"];
            if spec["resources"].is_null() {
                spec["accessModes"] = json!(["ReadWriteOnce"]);
                spec["resources"] = json!({ "requests": { "storage": "1Gi" } });
            }
        }
    }
    for taint in object["spec"]["taints"].as_array_mut().into_iter().flatten() {
        taint["effect"] = json!("NoExecute");
    }
    let status = object.as_object_mut().unwrap().remove("status");
    let send = async |request: http::request::Builder, body: &Value| {
        let request = request.body(body.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await.map_err(|error| match error {
            kube::Error::Api(status) => format!("{kind} {name}: {}", status.message),
            error => panic!("{kind} {name}: {error}"),
        })
    };
    let mut found =
        send(http::Request::post(&path).header("content-type", "application/json"), &object).await?;
    if let Some(status) = status {
        let request = http::Request::patch(format!("{path}/{name}/status"));
        let request = request.header("content-type", "application/merge-patch+json");
        found = send(request, &json!({ "status": status })).await?;
    }
    if deleted {
        send(http::Request::delete(format!("{path}/{name}")), &json!({})).await?;
    }
    Ok(found)
}
