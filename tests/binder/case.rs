//! Cases as data: the short forms of pv-binder.md §16.0, and the objects they stand for.
//!
//! In: a YAML file. Out: whole objects as the API server would store them. A form is a map; what it
//! leaves out has the fixtures' default. In names and references `v` stands for `volume<id>`, `c`
//! for `claim<id>` and `u` for `uid<id>`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::server::CLAIM_UID;

/// A file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Volumes and classes that cases refer to by name.
    #[serde(default)]
    pub fixtures: BTreeMap<String, Vec<Map<String, Value>>>,
    /// The cases.
    pub cases: Vec<Case>,
}

/// Which decisions a case makes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Only about the first claim.
    #[default]
    Claim,
    /// Only about the first volume.
    Volume,
    /// About everything, through the planner.
    All,
}

/// One case.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Case {
    /// Row of the catalogue.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Which decisions are made.
    #[serde(default)]
    pub sync: Sync,
    /// Whether dynamic provisioning is off.
    #[serde(default)]
    pub no_provisioning: bool,
    /// Whether volumes are recycled.
    #[serde(default)]
    pub recycler: bool,
    /// Whether the host-path plugin provisions and deletes.
    #[serde(default)]
    pub host_path: bool,
    /// How many writes of a kind are denied.
    #[serde(default)]
    pub denied: BTreeMap<String, usize>,
    /// How many directories cannot be made.
    #[serde(default)]
    pub unmakable: usize,
    /// How many directories cannot be removed.
    #[serde(default)]
    pub unremovable: usize,
    /// A run is under way at the end, or failed: another process begins it anew.
    #[serde(default)]
    pub unfinished: bool,
    /// Name of a fixture whose volumes are there too.
    #[serde(default)]
    pub fixture: Option<String>,
    /// Classes.
    #[serde(default)]
    pub classes: Vec<Map<String, Value>>,
    /// Volumes.
    #[serde(default)]
    pub volumes: Vec<Map<String, Value>>,
    /// Claims.
    #[serde(default)]
    pub claims: Vec<Map<String, Value>>,
    /// Pods.
    #[serde(default)]
    pub pods: Vec<Map<String, Value>>,
    /// Names of nodes.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// What happens later, each after everything before has come to rest.
    #[serde(default)]
    pub when: Vec<Stage>,
    /// Who wins depends on who comes first, so a fault may change the end.
    #[serde(default)]
    pub racing: bool,
    /// What differs afterwards.
    #[serde(default)]
    pub then: Then,
    /// `Type Reason message`, each a prefix, in order.
    #[serde(default)]
    pub events: Vec<String>,
    /// What was measured, such as `took provision vendor.com/v 60s`; not compared where it is left out.
    #[serde(default)]
    pub measures: Option<Vec<String>>,
    /// The writes, by what they are for, in order; not compared where they are left out.
    #[serde(default)]
    pub writes: Option<Vec<String>>,
    /// Text of the event about the nearest volume; not compared where it is left out.
    #[serde(default)]
    pub nearest: Option<String>,
    /// Labels of reasons why something waited at one time or other.
    #[serde(default)]
    pub waited: Vec<String>,
    /// Label of the reason of the last decision about the first claim or volume.
    #[serde(default)]
    pub reason: Option<String>,
    /// The volume the first claim's first decision takes; `none` for none.
    #[serde(default)]
    pub chooses: Option<String>,
}

/// Something that happens later.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// New or replaced volumes.
    #[serde(default)]
    pub volumes: Vec<Map<String, Value>>,
    /// New or replaced claims.
    #[serde(default)]
    pub claims: Vec<Map<String, Value>>,
    /// New or replaced classes.
    #[serde(default)]
    pub classes: Vec<Map<String, Value>>,
    /// New or replaced pods.
    #[serde(default)]
    pub pods: Vec<Map<String, Value>>,
    /// Names of objects that are deleted.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Merge patches of objects, by name; of a recycler pod without the end of its name.
    #[serde(default)]
    pub patch: BTreeMap<String, Value>,
    /// How much time passes before.
    #[serde(default)]
    pub minutes: u64,
}

/// A stage with whole objects.
#[derive(Clone, Default)]
pub struct Later {
    /// By URL path.
    pub objects: BTreeMap<String, Value>,
    /// Names.
    pub delete: Vec<String>,
    /// Merge patches by name.
    pub patch: BTreeMap<String, Value>,
    /// How much time passes before.
    pub minutes: u64,
}

/// Changed fields of the forms, by name.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Of volumes.
    #[serde(default)]
    pub volumes: BTreeMap<String, Map<String, Value>>,
    /// Of claims.
    #[serde(default)]
    pub claims: BTreeMap<String, Map<String, Value>>,
    /// Names of objects that are gone.
    #[serde(default)]
    pub gone: Vec<String>,
    /// Objects that are new, by path; `null` for any content.
    #[serde(default)]
    pub made: BTreeMap<String, Value>,
}

/// Objects of a case: what the server stores, and what our tables show where that differs.
#[derive(Clone, Default)]
pub struct Start {
    /// Whether dynamic provisioning is off.
    pub no_provisioning: bool,
    /// Whether volumes are recycled.
    pub recycler: bool,
    /// Whether the host-path plugin provisions and deletes.
    pub host_path: bool,
    /// How many writes of a kind are denied.
    pub denied: BTreeMap<String, usize>,
    /// How many directories cannot be made.
    pub unmakable: usize,
    /// How many directories cannot be removed.
    pub unremovable: usize,
    /// By URL path.
    pub server: BTreeMap<String, Value>,
    /// By URL path: another content, or `None` for not there.
    pub cache: BTreeMap<String, Option<Value>>,
}

impl Case {
    /// `v`, `c` and `u` with or without a suffix, for this case.
    fn expand(&self, text: &str) -> String {
        for (short, long) in [("v", "volume"), ("c", "claim"), ("u", "uid")] {
            if let Some(rest) = text.strip_prefix(short)
                && (rest.is_empty() || rest.starts_with(['_', '-']))
            {
                return format!("{long}{}{rest}", self.id);
            }
        }
        text.to_owned()
    }

    /// The same, also behind the prefix of recycler pods.
    fn expand_pod(&self, text: &str) -> String {
        match text.strip_prefix("recycler-for-") {
            Some(volume) => format!("recycler-for-{}", self.expand(volume)),
            None => self.expand(text),
        }
    }

    /// The objects the case starts with.
    pub fn start(&self, fixtures: &BTreeMap<String, Vec<Map<String, Value>>>) -> Start {
        let mut start = Start {
            no_provisioning: self.no_provisioning,
            recycler: self.recycler,
            host_path: self.host_path,
            denied: self.denied.clone(),
            unmakable: self.unmakable,
            unremovable: self.unremovable,
            ..Start::default()
        };
        for name in &self.nodes {
            let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            start.server.insert(format!("/api/v1/nodes/{name}"), node);
        }
        let fixture = self.fixture.as_ref().map(|name| &fixtures[name]);
        for form in fixture.into_iter().flatten().chain(&self.volumes) {
            place(&mut start, form, |form| self.volume(form));
        }
        for form in &self.claims {
            place(&mut start, form, |form| self.claim(form));
        }
        for form in &self.classes {
            place(&mut start, form, Self::class);
        }
        for form in &self.pods {
            place(&mut start, form, |form| self.pod(form));
        }
        start
    }

    /// What happens later.
    pub fn later(&self) -> Vec<Later> {
        let stage = |stage: &Stage| {
            let mut case = self.clone();
            case.fixture = None;
            case.volumes.clone_from(&stage.volumes);
            case.claims.clone_from(&stage.claims);
            case.classes.clone_from(&stage.classes);
            case.pods.clone_from(&stage.pods);
            Later {
                objects: case.start(&BTreeMap::new()).server,
                delete: stage.delete.iter().map(|name| self.expand(name)).collect(),
                patch: stage.patch.iter().map(|(name, body)| (self.expand_pod(name), body.clone())).collect(),
                minutes: stage.minutes,
            }
        };
        self.when.iter().map(stage).collect()
    }

    /// The objects the case ends with.
    pub fn end(&self, fixtures: &BTreeMap<String, Vec<Map<String, Value>>>) -> BTreeMap<String, Value> {
        let mut case = self.clone();
        for stage in &self.when {
            for (forms, new, default) in [
                (&mut case.volumes, &stage.volumes, "v"),
                (&mut case.claims, &stage.claims, "c"),
                (&mut case.classes, &stage.classes, "class"),
                (&mut case.pods, &stage.pods, "pod"),
            ] {
                let name = |form: &Map<String, Value>| self.expand(text(form, "name").unwrap_or(default));
                let gone: Vec<String> = stage.delete.iter().map(|name| self.expand(name)).collect();
                forms.retain(|form| {
                    !gone.contains(&name(form)) && !new.iter().any(|new| name(new) == name(form))
                });
                forms.extend(new.clone());
            }
        }
        let change =
            |forms: &mut Vec<Map<String, Value>>, then: &BTreeMap<String, Map<String, Value>>, default| {
                for (name, fields) in then {
                    let wanted = self.expand(name);
                    let form = forms
                        .iter_mut()
                        .find(|form| self.expand(text(form, "name").unwrap_or(default)) == wanted)
                        .unwrap_or_else(|| panic!("{name} is not in the case"));
                    form.extend(fields.clone());
                }
            };
        change(&mut case.volumes, &self.then.volumes, "v");
        change(&mut case.claims, &self.then.claims, "c");
        let mut objects = case.start(fixtures).server;
        let gone: Vec<String> = self.then.gone.iter().map(|name| self.expand(name)).collect();
        objects.retain(|path, _| !gone.iter().any(|name| path.rsplit('/').next() == Some(name)));
        objects.extend(self.then.made.clone());
        objects
    }

    fn volume(&self, form: &Map<String, Value>) -> (String, Value) {
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

    fn claim(&self, form: &Map<String, Value>) -> (String, Value) {
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

    fn class(form: &Map<String, Value>) -> (String, Value) {
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

    fn pod(&self, form: &Map<String, Value>) -> (String, Value) {
        known(form, &["name", "claim", "node", "phase", "recycles", "owner", "marks", "finalizers"]);
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

fn place(
    start: &mut Start,
    form: &Map<String, Value>,
    build: impl Fn(&Map<String, Value>) -> (String, Value),
) {
    let mut form = form.clone();
    let cached = form.remove("cached");
    let stored = form.remove("stored").and_then(|stored| stored.as_bool()).unwrap_or(true);
    let (path, object) = build(&form);
    if stored {
        start.server.insert(path.clone(), object);
    } else {
        start.cache.insert(path.clone(), Some(object));
    }
    match cached {
        None => {}
        Some(Value::Bool(false)) => {
            start.cache.insert(path, None);
        }
        Some(Value::Object(other)) => {
            form.extend(other);
            let mut stale = build(&form).1;
            stale["metadata"]["resourceVersion"] = json!("0");
            start.cache.insert(path, Some(stale));
        }
        Some(other) => panic!("cached: {other}"),
    }
}

fn metadata(form: &Map<String, Value>, name: &str, uid: &str) -> Value {
    let mut metadata = json!({"name": name, "uid": uid, "resourceVersion": "1"});
    let mut annotations = Map::new();
    for mark in form.get("marks").and_then(Value::as_array).into_iter().flatten() {
        let mark = mark.as_str().expect("marks are texts");
        let (short, value) = mark.split_once('=').unwrap_or((mark, ""));
        let (key, default) = match short {
            "BC" => ("pv.kubernetes.io/bind-completed", "yes"),
            "BBC" => ("pv.kubernetes.io/bound-by-controller", "yes"),
            "SELNODE" => ("volume.kubernetes.io/selected-node", "node1"),
            "DYN" => ("pv.kubernetes.io/provisioned-by", "kubernetes.io/mock-volume"),
            "MIG" => ("pv.kubernetes.io/migrated-to", ""),
            "SP" => ("volume.kubernetes.io/storage-provisioner", ""),
            "SPB" => ("volume.beta.kubernetes.io/storage-provisioner", ""),
            "SCB" => ("volume.beta.kubernetes.io/storage-class", ""),
            "RUN" => (CLAIM_UID, "uid-of-an-earlier-claim"),
            "PRERESIZE" => ("volume.alpha.kubernetes.io/pre-resize-capacity", ""),
            other => panic!("unknown mark {other}"),
        };
        let value = if value.is_empty() { default } else { value };
        annotations.insert(key.to_owned(), json!(value));
    }
    annotations.insert("example.com/kept".to_owned(), json!("true"));
    metadata["annotations"] = Value::Object(annotations);
    if let Some(labels) = form.get("labels") {
        metadata["labels"] = labels.clone();
    }
    if let Some(finalizers) = form.get("finalizers") {
        let list =
            finalizers.as_array().expect("finalizers are a list").iter().map(|name| match name.as_str() {
                Some("ITF") => json!("kubernetes.io/pv-controller"),
                Some("EPF") => json!("external-provisioner.volume.kubernetes.io/finalizer"),
                _ => name.clone(),
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

fn text<'a>(form: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
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
        .map(|mode| match mode {
            "RWO" => json!("ReadWriteOnce"),
            "ROX" => json!("ReadOnlyMany"),
            "RWX" => json!("ReadWriteMany"),
            "RWOP" => json!("ReadWriteOncePod"),
            other => json!(other),
        })
        .collect()
}
