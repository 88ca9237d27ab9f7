//! The short forms of pv-binder.md §16.0, and the objects they stand for.
//!
//! In: a form of a case. Out: the whole object as the API server would store it, with its path. A form is a map; what
//! it leaves out has the fixtures' default. In names and references `v` stands for `volume<id>`, `c` for `claim<id>`
//! and `u` for `uid<id>`.

use serde_json::{Map, Value, json};

use crate::{case::Case, server::CLAIM_UID};

/// Marks, the annotations they stand for, and the values of those where a case gives none.
pub const MARKS: [(&str, &str, &str); 10] = [
    ("BC", "pv.kubernetes.io/bind-completed", "yes"),
    ("BBC", "pv.kubernetes.io/bound-by-controller", "yes"),
    ("SELNODE", "volume.kubernetes.io/selected-node", "node1"),
    ("DYN", "pv.kubernetes.io/provisioned-by", "kubernetes.io/mock-volume"),
    ("MIG", "pv.kubernetes.io/migrated-to", ""),
    ("SP", "volume.kubernetes.io/storage-provisioner", ""),
    ("SPB", "volume.beta.kubernetes.io/storage-provisioner", ""),
    ("SCB", "volume.beta.kubernetes.io/storage-class", ""),
    ("RUN", CLAIM_UID, "uid-of-an-earlier-claim"),
    ("PRERESIZE", "volume.alpha.kubernetes.io/pre-resize-capacity", ""),
];
/// An annotation of every object, which has to stay.
pub const KEPT: &str = "example.com/kept";
/// Short names of finalizers.
pub const FINALIZERS: [(&str, &str); 2] =
    [("ITF", "kubernetes.io/pv-controller"), ("EPF", "external-provisioner.volume.kubernetes.io/finalizer")];
/// Short names of access modes.
pub const MODES: [(&str, &str); 4] = [
    ("RWO", "ReadWriteOnce"),
    ("ROX", "ReadOnlyMany"),
    ("RWX", "ReadWriteMany"),
    ("RWOP", "ReadWriteOncePod"),
];

impl Case {
    pub fn volume(&self, form: &Map<String, Value>) -> (String, Value) {
        known(
            form,
            &[
                "name",
                "size",
                "ref",
                "phase",
                "message",
                "policy",
                "class",
                "marks",
                "labels",
                "mode",
                "modes",
                "vac",
                "terminating",
                "csi",
                "path",
                "finalizers",
            ],
        );
        let name = self.expand(text(form, "name").unwrap_or("v"));
        // `size: null` leaves it out.
        let capacity = match form.get("size") {
            Some(Value::Null) => json!({}),
            _ => json!({"storage": text(form, "size").unwrap_or("1Gi")}),
        };
        let mut spec = json!({
            "capacity": capacity,
            "accessModes": modes(form.get("modes")),
            "persistentVolumeReclaimPolicy": text(form, "policy").unwrap_or("Retain"),
            "storageClassName": text(form, "class").unwrap_or(""),
            "volumeMode": volume_mode(form),
            "futureField": {"kept": true},
        });
        match text(form, "csi") {
            Some("nfs") => spec["nfs"] = json!({"server": "s", "path": "/"}),
            Some("malformed") => spec["csi"] = json!("malformed"),
            Some(driver) => spec["csi"] = json!({"driver": driver, "volumeHandle": name}),
            None => match text(form, "path") {
                Some(path) => spec["hostPath"] = json!({"path": path}),
                None => spec["gcePersistentDisk"] = json!({"pdName": name}),
            },
        }
        if let Some(vac) = text(form, "vac") {
            spec["volumeAttributesClassName"] = json!(vac);
        }
        let reference = text(form, "ref").unwrap_or("-");
        if reference != "-" {
            let (claim, uid) = reference.split_once('@').unwrap_or((reference, ""));
            spec["claimRef"] = json!({
                "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default",
                "name": self.expand(claim), "uid": self.expand(uid),
            });
        }
        let object = json!({
            "metadata": metadata(form, &name, &format!("uid-of-{name}")),
            "spec": spec,
            "status": {
                "phase": text(form, "phase").unwrap_or("Available"),
                "message": text(form, "message").unwrap_or(""),
            },
        });
        (format!("/api/v1/persistentvolumes/{name}"), object)
    }

    pub fn claim(&self, form: &Map<String, Value>) -> (String, Value) {
        known(
            form,
            &[
                "name",
                "uid",
                "size",
                "vol",
                "phase",
                "class",
                "marks",
                "selector",
                "expressions",
                "mode",
                "modes",
                "vac",
                "cap",
                "odd_cap",
                "current_vac",
                "status_modes",
                "data_source",
                "terminating",
                "finalizers",
                "created",
            ],
        );
        let name = self.expand(text(form, "name").unwrap_or("c"));
        let uid = self.expand(text(form, "uid").unwrap_or("u"));
        let size = text(form, "size").unwrap_or("1Gi");
        let mut spec = json!({
            "resources": {"requests": {"storage": size}},
            "accessModes": modes(form.get("modes")),
            "volumeMode": volume_mode(form),
            "volumeName": self.expand(text(form, "vol").unwrap_or("")),
            "futureField": {"kept": true},
        });
        if let Some(class) = text(form, "class") {
            spec["storageClassName"] = json!(class);
        }
        if let Some(vac) = text(form, "vac") {
            spec["volumeAttributesClassName"] = json!(vac);
        }
        if let Some(source) = text(form, "data_source") {
            spec["dataSource"] = json!({"kind": "VolumeSnapshot", "name": source});
        }
        if form.contains_key("selector") || form.contains_key("expressions") {
            spec["selector"] = json!({
                "matchLabels": form.get("selector").cloned().unwrap_or(json!({})),
                "matchExpressions": form.get("expressions").cloned().unwrap_or(json!([])),
            });
        }
        let phase = text(form, "phase").unwrap_or("Pending");
        let mut status = json!({"phase": phase, "conditions": [{"type": "Unused", "status": "True"}]});
        let cap = text(form, "cap").or((phase == "Bound").then_some(size));
        if let Some(cap) = cap {
            status["capacity"] = json!({"storage": cap});
        }
        // Of a resource that the binder knows nothing about.
        if let Some(cap) = text(form, "odd_cap") {
            status["capacity"]["example.com/odd"] = json!(cap);
        }
        if phase == "Bound" {
            status["accessModes"] = modes(form.get("status_modes").or(form.get("modes")));
            if let Some(vac) = text(form, "current_vac").or(text(form, "vac")) {
                status["currentVolumeAttributesClassName"] = json!(vac);
            }
        }
        let mut object = json!({"metadata": metadata(form, &name, &uid), "spec": spec, "status": status});
        object["metadata"]["namespace"] = json!("default");
        (format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}"), object)
    }

    pub fn class(form: &Map<String, Value>) -> (String, Value) {
        known(
            form,
            &["name", "provisioner", "delayed", "default", "created", "binding", "policy", "options"],
        );
        let name = text(form, "name").expect("a class has a name");
        let flag = |key| form.get(key).and_then(Value::as_bool).unwrap_or_default();
        let delayed = if flag("delayed") { "WaitForFirstConsumer" } else { "Immediate" };
        let mut metadata = metadata(form, name, &format!("uid-of-{name}"));
        metadata["creationTimestamp"] = json!(text(form, "created").unwrap_or("2026-01-01T00:00:00Z"));
        // `default: beta` is so by the beta annotation.
        let key = match form.get("default") {
            Some(Value::Bool(true)) => Some("storageclass.kubernetes.io/is-default-class"),
            Some(Value::String(beta)) if beta == "beta" => {
                Some("storageclass.beta.kubernetes.io/is-default-class")
            }
            _ => None,
        };
        if let Some(key) = key {
            metadata["annotations"] = json!({ key: "true" });
        }
        let object = json!({
            "metadata": metadata,
            "provisioner": text(form, "provisioner").unwrap_or("kubernetes.io/mock-volume"),
            "reclaimPolicy": text(form, "policy").unwrap_or("Delete"),
            "mountOptions": form.get("options").cloned().unwrap_or(json!([])),
            "volumeBindingMode": form.get("binding").cloned().unwrap_or(json!(delayed)),
        });
        (format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), object)
    }

    pub fn pod(&self, form: &Map<String, Value>) -> (String, Value) {
        known(
            form,
            &["name", "claim", "node", "phase", "recycles", "owner", "marks", "finalizers", "created"],
        );
        let name = text(form, "name").expect("a pod has a name");
        let mut metadata = metadata(form, name, &format!("uid-of-{name}"));
        metadata["namespace"] = json!("default");
        if let Some(volume) = text(form, "recycles") {
            let volume = self.expand(volume);
            let uid = text(form, "owner").map_or_else(|| format!("uid-of-{volume}"), str::to_owned);
            let owner = json!({"kind": "PersistentVolume", "name": volume, "uid": uid});
            metadata["ownerReferences"] = json!([owner]);
        }
        let claim = self.expand(text(form, "claim").unwrap_or("c"));
        let object = json!({
            "metadata": metadata,
            "spec": {
                "nodeName": text(form, "node").unwrap_or(""),
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
            "status": {"phase": text(form, "phase").unwrap_or("Pending")},
        });
        (format!("/api/v1/namespaces/default/pods/{name}"), object)
    }
}

fn metadata(form: &Map<String, Value>, name: &str, uid: &str) -> Value {
    let mut metadata = json!({"name": name, "uid": uid, "resourceVersion": "1"});
    let mut annotations = Map::new();
    for mark in form.get("marks").and_then(Value::as_array).into_iter().flatten() {
        let mark = mark.as_str().expect("marks are texts");
        let (short, value) = mark.split_once('=').unwrap_or((mark, ""));
        let known = MARKS.iter().find(|(mark, ..)| *mark == short);
        let (_, key, default) = known.unwrap_or_else(|| panic!("unknown mark {short}"));
        let value = if value.is_empty() { default } else { value };
        annotations.insert((*key).to_owned(), json!(value));
    }
    annotations.insert(KEPT.to_owned(), json!("true"));
    metadata["annotations"] = Value::Object(annotations);
    if let Some(created) = form.get("created") {
        metadata["creationTimestamp"] = created.clone();
    }
    if let Some(labels) = form.get("labels") {
        metadata["labels"] = labels.clone();
    }
    if let Some(finalizers) = form.get("finalizers") {
        let list = finalizers.as_array().expect("finalizers are a list").iter().map(|name| {
            FINALIZERS.iter().find(|(short, _)| name == short).map_or(name.clone(), |(_, long)| json!(long))
        });
        metadata["finalizers"] = list.collect();
    }
    if form.get("terminating").and_then(Value::as_bool).unwrap_or_default() {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    metadata
}

fn known(form: &Map<String, Value>, fields: &[&str]) {
    for key in form.keys() {
        assert!(fields.contains(&key.as_str()), "unknown field {key}");
    }
}

pub fn text<'a>(form: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    let value = form.get(key).filter(|value| !value.is_null())?;
    Some(value.as_str().unwrap_or_else(|| panic!("{key}: {value} is not a text; quote it")))
}

/// `none` leaves the field out.
fn volume_mode(form: &Map<String, Value>) -> Value {
    match text(form, "mode") {
        None => json!("Filesystem"),
        Some("none") => Value::Null,
        Some(mode) => json!(mode),
    }
}

/// `RWO+ROX` as a list.
fn modes(field: Option<&Value>) -> Value {
    let text = field.and_then(Value::as_str).unwrap_or("RWO+ROX");
    text.split('+')
        .map(|mode| {
            MODES.iter().find(|(short, _)| *short == mode).map_or(json!(mode), |(_, long)| json!(long))
        })
        .collect()
}
