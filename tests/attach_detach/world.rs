//! A small API server of values for the stories: objects as JSON, and what our requests make of them.
//!
//! In: short forms of objects (`tests/cases/attach_detach/controller.yaml` explains them) and requests. Out:
//! objects, answers, and the first broken promise: S1–S3, S7, S9, S10, S12, S13 and S35 are checked at every write.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    call::{CallError, Request},
    ids::{DriverName, NodeName},
    kinds::Meta,
    tables::{Objects, Stored},
    wire::Encoding,
};
use k8s_openapi::jiff::Timestamp;
use mooring::attach_detach::{
    calls::{Answer, AttachmentRequest, Call},
    state::desired::volume_name::VolumeId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::{
    promises::{
        attachments::{self, Volume, misnamed},
        requests,
    },
    store::{Refusal, Store},
};

/// Short forms of objects, by kind and name. `null` removes one.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Forms {
    nodes: BTreeMap<String, Option<NodeForm>>,
    volumes: BTreeMap<String, Option<VolumeForm>>,
    claims: BTreeMap<String, Option<Value>>,
    pods: BTreeMap<String, Option<PodForm>>,
    attachments: BTreeMap<String, Option<AttachmentForm>>,
    drivers: BTreeMap<String, Option<Value>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NodeForm {
    lists: Option<Vec<String>>,
    uses: Option<Vec<String>>,
    ready: Option<bool>,
    out_of_service: Option<bool>,
    patch: Value,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct VolumeForm {
    modes: Option<Vec<String>>,
    patch: Value,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PodForm {
    on: Option<String>,
    wants: Option<Vec<String>>,
    patch: Value,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum AttachmentForm {
    State(String),
    Patch(Value),
}

/// Kind and name of an object.
pub type Key = (&'static str, String);

/// The server.
pub struct World {
    uids: u64,
    pub store: Store<Key>,
    /// What every node ever was, oldest first.
    nodes: BTreeMap<String, Vec<Value>>,
    /// UIDs of VolumeAttachments that were attached at some revision.
    ever_attached: BTreeSet<String>,
    /// Nodes that were never there, for the watch to tell of their end.
    pub strays: Vec<Value>,
    pub wall: Timestamp,
    /// The manager that everything bears which the case changes.
    pub others: Option<String>,
}

/// The volume that a word of a case stands for: `v1` is a handle of the driver `d`, anything with a slash a
/// unique volume name.
pub fn volume(word: &str) -> VolumeId {
    if word.contains('/') {
        return VolumeId::parse(word).unwrap_or_else(|| panic!("{word} is no unique volume name"));
    }
    VolumeId::csi(&DriverName::from("d"), word)
}

/// The word for a volume.
pub fn word(volume: &str) -> &str {
    volume.strip_prefix("kubernetes.io/csi/d^").unwrap_or(volume)
}

/// Volume and node of `<volume> on <node>`.
pub fn pair(text: &str) -> (VolumeId, NodeName) {
    let (name, node) = text.rsplit_once(" on ").unwrap_or_else(|| panic!("{text}: want <volume> on <node>"));
    (volume(name), NodeName::from(node))
}

impl World {
    pub fn new() -> Self {
        let wall = Timestamp::from_second(1_000_000).unwrap();
        Self {
            uids: 0,
            store: Store::new(BTreeMap::new(), 100),
            nodes: BTreeMap::new(),
            ever_attached: BTreeSet::new(),
            strays: Vec::new(),
            wall,
            others: None,
        }
    }

    /// Makes, changes or removes what the forms name.
    pub fn set(&mut self, forms: &Forms) {
        for (name, form) in &forms.nodes {
            let object = form.as_ref().map(|form| self.node(name, form));
            if object.is_none() && !self.store.objects.contains_key(&("node", name.clone())) {
                let mut stray = self.node(name, &NodeForm::default());
                stray["metadata"]["name"] = json!(name);
                stray["metadata"]["resourceVersion"] = json!(self.store.revision().to_string());
                self.strays.push(stray);
            }
            self.put("node", name, object);
        }
        for (name, form) in &forms.volumes {
            let object = form.as_ref().map(|form| self.volume(name, form));
            self.put("volume", name, object);
            if form.is_some() && !self.store.objects.contains_key(&("claim", name.clone())) {
                self.claim(name, &Value::Null);
            }
        }
        for (name, patch) in &forms.claims {
            match patch {
                Some(patch) => self.claim(name, patch),
                None => self.put("claim", name, None),
            }
        }
        for (name, form) in &forms.pods {
            let object = form.as_ref().map(|form| self.pod(name, form));
            self.put("pod", name, object);
        }
        for (text, form) in &forms.attachments {
            let (name, object) = self.attachment(text, form.as_ref());
            self.put("attachment", &name, object);
        }
        for (name, patch) in &forms.drivers {
            let object = patch.as_ref().map(|patch| json!({"metadata": {"uid": name}, "spec": patch}));
            self.put("driver", name, object);
        }
    }

    fn put(&mut self, kind: &'static str, name: &str, object: Option<Value>) {
        let key = (kind, name.to_owned());
        let Some(object) = object else {
            self.store.remove(&key);
            return;
        };
        let object = self.store.put(&key, merge(object, &json!({"metadata": {"name": name}})));
        match kind {
            "node" => self.nodes.entry(name.to_owned()).or_default().push(object.clone()),
            "attachment" if object["status"]["attached"] == true => {
                self.ever_attached.extend(object["metadata"]["uid"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    /// The object as it is, or a new one of this content and a UID of its own.
    fn base(&mut self, kind: &'static str, name: &str, new: Value) -> Value {
        if let Some(object) = self.store.objects.get(&(kind, name.to_owned())) {
            return object.clone();
        }
        self.uids += 1;
        let mut object = new;
        json_patch::merge(&mut object, &json!({"metadata": {"uid": format!("{name}-{}", self.uids)}}));
        object
    }

    fn node(&mut self, name: &str, form: &NodeForm) -> Value {
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        let mut new =
            json!({"metadata": {"annotations": annotations}, "status": {"nodeInfo": {"bootID": "boot"}}});
        new["status"]["conditions"] = ready(true, Timestamp::from_second(0).unwrap());
        let mut object = self.base("node", name, new);
        let status = &mut object["status"];
        if let Some(lists) = &form.lists {
            let entry = |name: &String| json!({"name": volume(name), "devicePath": ""});
            status["volumesAttached"] = lists.iter().map(entry).collect();
        }
        if let Some(uses) = &form.uses {
            status["volumesInUse"] = uses.iter().map(|name| json!(volume(name))).collect();
        }
        if let Some(is_ready) = form.ready {
            status["conditions"] = ready(is_ready, self.wall);
        }
        if let Some(out_of_service) = form.out_of_service {
            let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            object["spec"]["taints"] = if out_of_service { taint } else { json!([]) };
        }
        merge(object, &form.patch)
    }

    fn volume(&mut self, name: &str, form: &VolumeForm) -> Value {
        let new = json!({"spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": name},
            "claimRef": {"namespace": "ns", "name": name, "uid": format!("claim-{name}")},
        }});
        let mut object = self.base("volume", name, new);
        if let Some(modes) = &form.modes {
            object["spec"]["accessModes"] = json!(modes);
        }
        merge(object, &form.patch)
    }

    fn claim(&mut self, name: &str, patch: &Value) {
        let new = json!({
            "metadata": {"namespace": "ns"}, "spec": {"volumeName": name}, "status": {"phase": "Bound"},
        });
        let mut object = self.base("claim", name, new);
        object["metadata"]["uid"] = json!(format!("claim-{name}"));
        self.put("claim", name, Some(merge(object, patch)));
    }

    fn pod(&mut self, name: &str, form: &PodForm) -> Value {
        let created = self.wall.checked_add(std::time::Duration::from_secs(self.store.revision())).unwrap();
        let mut object = self.base(
            "pod",
            name,
            json!({"metadata": {"namespace": "ns", "creationTimestamp": created}, "status": {"phase": "Pending"}}),
        );
        if let Some(node) = &form.on {
            object["spec"]["nodeName"] = json!(node);
        }
        if let Some(claims) = &form.wants {
            let source = |name: &String| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
            object["spec"]["volumes"] = claims.iter().map(source).collect();
        }
        merge(object, &form.patch)
    }

    fn attachment(&mut self, text: &str, form: Option<&AttachmentForm>) -> (String, Option<Value>) {
        let (volume, node) = pair(text);
        let name = volume.attachment_name(&node).as_str().to_owned();
        let Some(form) = form else { return (name, None) };
        let (driver, handle) = volume.driver_and_handle();
        let object = self.base(
            "attachment",
            &name,
            json!({
                "metadata": {"finalizers": ["external-attacher/d"]},
                "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": handle}},
            }),
        );
        let patch = match form {
            AttachmentForm::Patch(patch) => patch.clone(),
            AttachmentForm::State(state) => match state.as_str() {
                "attaching" => json!({"status": {"attached": false}}),
                "attached" => json!({"status": {"attached": true, "attachError": null}}),
                "failed" => json!({"status": {"attached": false, "attachError": {"message": "no"}}}),
                "terminating" => json!({
                    "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"attached": true},
                }),
                _ => panic!("{state} is no state of an attachment"),
            },
        };
        let object = merge(object, &patch);
        let name = object["metadata"]["name"].as_str().unwrap_or(&name).to_owned();
        (name, Some(object))
    }

    /// What the nodes list.
    pub fn lists(&self) -> BTreeMap<String, BTreeSet<String>> {
        let nodes = self.store.objects.iter().filter(|((kind, _), _)| *kind == "node");
        nodes.map(|((_, name), node)| (name.clone(), listed(node))).collect()
    }

    /// Another writer writes to the attachment that a call is about.
    pub fn overtake(&mut self, call: &Call) {
        let Call::Attachment(volume, node, _) = call else { return };
        let key = ("attachment", volume.attachment_name(node).as_str().to_owned());
        if let Some(object) = self.store.objects.get(&key).cloned() {
            self.store.put(&key, object);
        }
    }

    /// Carries a call out. The outer error is a broken promise.
    pub fn perform(&mut self, call: &Call) -> Result<Result<Answer, CallError>, String> {
        match call {
            Call::Attachment(volume, node, AttachmentRequest::Create(request)) => {
                self.create(volume, node, request)
            }
            Call::Attachment(volume, node, AttachmentRequest::Delete(.., request)) => {
                self.delete(volume, node, request)
            }
            Call::Attachment(_, _, AttachmentRequest::Read(name)) => {
                Ok(self.read("attachment", name.as_str()))
            }
            Call::PatchNode(name, _, request) => self.patch_node(name, request),
            Call::ReadNode(name) => Ok(self.read("node", name.as_str())),
            Call::ReadOwner(..) => Ok(Ok(Answer::Owners(self.others.iter().cloned().collect()))),
        }
    }

    /// What a server answers on which a webhook takes the change out of each patch.
    pub fn leave(&mut self, call: &Call) -> Result<Result<Answer, CallError>, String> {
        match call {
            Call::PatchNode(name, ..) => Ok(self.read("node", name.as_str())),
            other => Err(format!("only a patch leaves an object as it is: {other:?}")),
        }
    }

    fn read(&self, kind: &'static str, name: &str) -> Result<Answer, CallError> {
        let object =
            self.store.get(&(kind, name.to_owned())).map_err(|refusal| refused(refusal, name))?.clone();
        Ok(if kind == "node" { Answer::Node(decode(object)) } else { Answer::Attachment(decode(object)) })
    }

    fn create(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        request: &Request,
    ) -> Result<Result<Answer, CallError>, String> {
        let body = request.body.clone().unwrap_or_default();
        let name = volume.attachment_name(node).as_str().to_owned();
        if let Err(refusal) = self.store.free(&("attachment", name.clone())) {
            return Ok(Err(refused(refusal, &name)));
        }
        let volumes: BTreeMap<&str, (Volume, bool)> = self
            .store
            .objects
            .iter()
            .filter(|((kind, _), _)| *kind == "volume")
            .map(|((_, name), object)| (name.as_str(), Volume::of(object)))
            .collect();
        let (driver, handle) = volume.driver_and_handle();
        let meant = Volume::Csi(driver.to_owned(), handle.to_owned());
        let source = body["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
        let named = volumes.get(source).map(|(volume, _)| volume);
        if let Some(rule) = [Some(&meant), named].into_iter().flatten().find_map(|of| misnamed(&body, of)) {
            return Err(format!("{rule}: {body}"));
        }
        let all = self.store.objects.iter().filter(|((kind, _), _)| *kind == "attachment");
        let all = all.map(|(_, object)| object).chain(std::iter::once(&body));
        let volume_of = |of: &Value| {
            volumes.get(of["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default())
        };
        if let Some(nodes) = attachments::spread(&body, all, volume_of) {
            return Err(format!("S1: {volume} created for {node}, and then it is on {nodes:?}"));
        }
        let object = self.base("attachment", &name, body);
        self.put(
            "attachment",
            &name,
            Some(merge(object, &json!({"metadata": {"finalizers": ["external-attacher/d"]}}))),
        );
        Ok(self.read("attachment", &name))
    }

    fn delete(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        request: &Request,
    ) -> Result<Result<Answer, CallError>, String> {
        let name = volume.attachment_name(node).as_str().to_owned();
        check("volumeattachments", request)?;
        if self.store.objects.contains_key(&("node", node.as_str().to_owned())) {
            let states: Vec<&Value> = self.nodes[node.as_str()].iter().collect();
            // When force is due is what the cases are about.
            let is_forced = |node: &Value| node["status"]["conditions"][0]["status"] != "True";
            if let Some(rule) = attachments::deleted_early(volume.as_str(), &states, is_forced) {
                return Err(format!("{rule}: {volume} on {node}"));
            }
        }
        let preconditions = request.body.as_ref().map_or(&Value::Null, |body| &body["preconditions"]);
        let object = match self.store.deletable(&("attachment", name.clone()), preconditions) {
            Ok(object) => object.clone(),
            Err(refusal) => return Ok(Err(refused(refusal, &name))),
        };
        if Store::<Key>::goes_at_once(&object) {
            self.put("attachment", &name, None);
            return Ok(Ok(Answer::Gone));
        }
        let going = json!({"metadata": {"deletionTimestamp": self.wall}});
        self.put("attachment", &name, Some(merge(object, &going)));
        Ok(self.read("attachment", &name))
    }

    fn patch_node(
        &mut self,
        name: &NodeName,
        request: &Request,
    ) -> Result<Result<Answer, CallError>, String> {
        let body = request.body.clone().unwrap_or_default();
        check("nodes/status", request)?;
        let key = ("node", name.to_string());
        let after = match self.store.patched(&key, &body) {
            Ok(after) => after,
            Err(refusal) => return Ok(Err(refused(refusal, name.as_str()))),
        };
        let attachment_of = |name: &str| {
            let attachment = self.store.objects.get(&("attachment", name.to_owned()))?;
            let uid = attachment["metadata"]["uid"].as_str().unwrap_or_default();
            Some((attachment, self.ever_attached.contains(uid)))
        };
        let before = self.store.objects.get(&key);
        let broken = attachments::listed_falsely(name.as_str(), before, &after, attachment_of);
        if !broken.is_empty() {
            return Err(format!("{broken:?}: {name}"));
        }
        self.put("node", name.as_str(), Some(after));
        Ok(self.read("node", name.as_str()))
    }
}

fn refused(refusal: Refusal, name: &str) -> CallError {
    match refusal {
        Refusal::NotFound => CallError::NotFound(name.to_owned()),
        Refusal::AlreadyExists => CallError::AlreadyExists(format!("{name} already exists")),
        Refusal::Conflict("uid") => CallError::Conflict(format!("{name} has another UID")),
        Refusal::Conflict(_) => CallError::Conflict(format!("{name} has been modified")),
    }
}

/// What holds of every request.
fn check(resource: &str, request: &Request) -> Result<(), String> {
    let verb = format!("{:?}", request.verb).to_lowercase();
    let verb = verb.as_str();
    let body = request.body.as_ref().unwrap_or(&Value::Null);
    let broken = requests::broken(requests::Request { verb, resource, body });
    if broken.is_empty() { Ok(()) } else { Err(format!("{broken:?}: {request:?}")) }
}

fn listed(node: &Value) -> BTreeSet<String> {
    attachments::listed(node).map(|name| word(name).to_owned()).collect()
}

fn ready(is_ready: bool, since: Timestamp) -> Value {
    json!([{"type": "Ready", "status": if is_ready { "True" } else { "Unknown" }, "lastTransitionTime": since}])
}

fn merge(mut object: Value, patch: &Value) -> Value {
    if !patch.is_null() {
        json_patch::merge(&mut object, patch);
    }
    object
}

/// A narrow kind reads any object of its kind.
pub fn decode<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of the kind")
}

/// Puts an object into a table as a watch does; one that cannot be read is marked.
pub fn apply<T: Stored>(objects: &Objects, object: &Value, deleted: bool) {
    let read = serde_json::from_value::<T>(object.clone()).map(|mut object| {
        object.trim();
        object
    });
    match read {
        Ok(object) if deleted => objects.delete(object),
        Ok(object) => objects.apply(object),
        Err(_) if deleted => objects.delete::<T>(decode(json!({"metadata": object["metadata"]}))),
        Err(error) => {
            let meta: Meta = decode(object["metadata"].clone());
            let names = Encoding::Json.attachment_names(&object.to_string().into());
            let known = (Some(meta.uid.clone()), Some(meta.resource_version), names);
            objects.note_unreadable::<T>(None, &T::key_of(&meta), known, error.to_string());
        }
    }
}
