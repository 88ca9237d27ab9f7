//! An API server in a map. Guards are honoured, each write of the binder is checked against the
//! invariants before it is applied, and everything that happens is on record for watches.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    call::{CallError, Request, Verb},
    kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
};
use mooring::binder::calls::{Answer, Call, Directory, Purpose, Write};
use serde_json::{Value, json};
use test_support::{
    promises::requests,
    store::{Refusal, Store},
};

use crate::invariants;

pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/";
pub const VOLUMES: &str = "/api/v1/persistentvolumes/";
pub const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses/";
pub const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers/";
pub const PODS: &str = "/api/v1/namespaces/default/pods/";
/// Where a recycler pod says whose volume it empties.
pub const CLAIM_UID: &str = "mooring.binder/claim-uid";

/// A change, as a watch tells it.
#[derive(Clone, Debug)]
pub struct Change {
    /// URL path of the object.
    pub path: String,
    /// The object, at the revision of the change; as it was last when it is gone.
    pub object: Value,
    /// Whether it is gone.
    pub gone: bool,
}

/// A live read.
#[derive(Clone, Debug)]
pub struct Read {
    /// URL path of the object.
    pub path: String,
    /// What was there.
    pub found: Option<Value>,
}

/// What the binder's tables show at a moment.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Revisions of the objects they have, by URL path.
    pub revisions: BTreeMap<String, u64>,
    /// How many changes the watch of a kind has delivered, by the beginning of URL paths.
    pub delivered: BTreeMap<&'static str, usize>,
}

/// A server.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// By URL path.
    pub store: Store<String>,
    /// What was read live since the binder started.
    pub reads: Vec<Read>,
    /// What the binder had seen when it decided on the request that is carried out; `None` for everything.
    pub seen: Option<Seen>,
    /// The volumes whose claimRef is the binder's work.
    pub reserved: BTreeSet<String>,
    /// Everything that happened.
    pub changes: Vec<Change>,
    /// Directories of the binder's machine.
    pub directories: BTreeSet<String>,
    /// How many writes of a kind are denied from now on.
    pub denied: BTreeMap<String, usize>,
    /// Kinds of writes out of which a webhook takes the change.
    pub stripped: BTreeSet<String>,
    /// How many directories cannot be made from now on.
    pub unmakable: usize,
    /// How many directories cannot be removed from now on.
    pub unremovable: usize,
    /// UIDs of volumes with those of the claims after which a pod has emptied them.
    pub emptied: BTreeSet<(String, String)>,
    /// By the UID of a recycler pod, how many live reads there had been when it was made.
    pub made_after: BTreeMap<String, usize>,
}

impl Server {
    pub fn new(objects: BTreeMap<String, Value>) -> Self {
        Self { store: Store::new(objects, 100), ..Self::default() }
    }

    pub fn revision(&self) -> u64 {
        self.store.revision()
    }

    /// Every state of an object from the one that the binder had seen to the one it has now. A decision may
    /// rest on any of them, and on no other.
    pub fn states_since_seen(&self, path: &str) -> Vec<Option<&Value>> {
        let mut states = vec![self.store.objects.get(path)];
        let Some(seen) = &self.seen else { return states };
        let known = seen.revisions.get(path);
        let delivered = seen.delivered.iter().find(|(kind, _)| path.starts_with(**kind));
        let delivered = delivered.map_or(0, |(_, delivered)| *delivered);
        let revision = |object: &Value| object["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok();
        if known.is_none() {
            states.push(None);
        }
        for (number, change) in self.changes.iter().enumerate().filter(|(_, change)| change.path == path) {
            if known.map_or(number >= delivered, |known| revision(&change.object) >= Some(*known)) {
                states.push((!change.gone).then_some(&change.object));
            }
        }
        states
    }

    /// Creates or replaces an object, as somebody else.
    pub fn put(&mut self, path: &str, object: Value) {
        self.reserved.remove(path);
        self.commit(path, object);
    }

    /// Merges into an object, as somebody else.
    pub fn patch(&mut self, path: &str, body: &Value) {
        if let Ok(object) = self.store.patched(&path.to_owned(), body) {
            self.put(path, object);
        }
    }

    /// Gives an object a new revision, and tells of it.
    pub fn touch(&mut self, path: &str) -> Value {
        self.commit(path, self.store.objects[path].clone())
    }

    fn commit(&mut self, path: &str, object: Value) -> Value {
        let object = self.store.put(&path.to_owned(), object).clone();
        if object["status"]["phase"] == "Succeeded"
            && let Some(claim) = object["metadata"]["annotations"][CLAIM_UID].as_str()
        {
            let volume = object["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap();
            self.emptied.insert((volume.to_owned(), claim.to_owned()));
        }
        self.changes.push(Change { path: path.to_owned(), object: object.clone(), gone: false });
        object
    }

    /// Removes an object, and tells of it with the revision of the deletion.
    pub fn remove(&mut self, path: &str) -> Value {
        let object = self.store.remove(&path.to_owned()).unwrap();
        self.changes.push(Change { path: path.to_owned(), object: object.clone(), gone: true });
        object
    }

    /// Carries out a request of the binder.
    pub fn perform(&mut self, call: &Call) -> Result<Answer, CallError> {
        match call {
            Call::Write(write) if self.denies(write) => {
                Err(CallError::Refused { code: 403, message: "no".to_owned() })
            }
            Call::Write(write) => {
                check_request(write);
                match write.request.verb {
                    Verb::Create => self.create(write),
                    Verb::Delete => self.delete(write),
                    _ => self.write(write),
                }
            }
            Call::Read { target: ObjectRef::Class(name), purpose: Purpose::ProveNoClass } => {
                let path = StorageClass::path(name);
                match self.store.objects.get(&path) {
                    Some(object) => Ok(Answer::Class(decode(object))),
                    None => Err(CallError::NotFound(path)),
                }
            }
            // Whoever else writes here is no controller.
            Call::Read { purpose: Purpose::LearnOwner(_), .. } => {
                Ok(Answer::Owners(vec!["kubectl-edit".to_owned()]))
            }
            Call::Read { target, .. } => {
                let path = path(target);
                let found = self.store.objects.get(&path).cloned();
                self.reads.push(Read { path: path.clone(), found });
                match self.store.objects.get(&path) {
                    Some(object) => Ok(answer(target, object)),
                    None => Err(CallError::NotFound(path)),
                }
            }
            Call::Directory(directory) => Ok(Answer::Directory(self.act(directory))),
        }
    }

    /// Whether a policy denies a write.
    fn denies(&mut self, write: &Write) -> bool {
        let Some(left) = self.denied.get_mut(<&str>::from(write.kind)).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    }

    fn act(&mut self, directory: &Directory) -> Result<(), String> {
        let failures = match directory {
            Directory::Make(_) => &mut self.unmakable,
            Directory::Remove(_) => &mut self.unremovable,
        };
        if *failures > 0 {
            *failures -= 1;
            return Err("the disk is on fire".to_owned());
        }
        match directory {
            Directory::Make(path) => {
                self.directories.insert(path.clone());
            }
            Directory::Remove(path) => {
                invariants::check_removal(self, path);
                self.directories.remove(path);
            }
        }
        Ok(())
    }

    fn create(&mut self, write: &Write) -> Result<Answer, CallError> {
        let mut object = write.request.body.clone().unwrap();
        let at = path(&write.target);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        assert_eq!(format!("{}/{name}", write.request.path), at);
        self.store.free(&at).map_err(|refusal| refused(refusal, &at))?;
        object["metadata"]["uid"] = match write.target {
            ObjectRef::Pod(_) => json!(format!("uid-of-{name}-{}", self.revision())),
            _ => json!(format!("uid-of-{name}")),
        };
        object["status"] = json!({"phase": "Pending"});
        invariants::check_creation(self, write.kind, &object);
        if let ObjectRef::Pod(_) = write.target {
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            self.made_after.insert(uid, self.reads.len());
        }
        let object = self.commit(&at, object);
        Ok(answer(&write.target, &object))
    }

    fn delete(&mut self, write: &Write) -> Result<Answer, CallError> {
        let at = path(&write.target);
        assert_eq!(write.request.path, at);
        let preconditions = &write.request.body.as_ref().unwrap()["preconditions"];
        let object = self.store.deletable(&at, preconditions).map_err(|refusal| refused(refusal, &at))?;
        let mut object = object.clone();
        invariants::check_deletion(self, write.kind, &at);
        if Store::<String>::goes_at_once(&object) {
            self.remove(&at);
        } else {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.commit(&at, object);
        }
        Ok(Answer::Deleted)
    }

    fn write(&mut self, write: &Write) -> Result<Answer, CallError> {
        let Request { verb, path: url, body } = &write.request;
        assert_eq!(*verb, Verb::Patch);
        let body = body.as_ref().unwrap();
        let object = path(&write.target);
        let (at, status) = (object.as_str(), *url != object);
        assert!(!status || *url == format!("{at}/status"), "{url} is not of {at}");
        let after = self.store.patched(&object, body).map_err(|refusal| refused(refusal, at))?;
        let before = self.store.objects[at].clone();
        if self.stripped.contains(<&str>::from(write.kind)) {
            return Ok(answer(&write.target, &before));
        }
        // The server keeps the other half as it is, whatever the body says.
        let other = if status { "spec" } else { "status" };
        assert_eq!(after[other], before[other], "a write to the wrong half of {at}");
        invariants::check(self, write.kind, at, &before, &after);
        if after["spec"]["claimRef"] != before["spec"]["claimRef"] {
            self.reserved.insert(at.to_owned());
        }
        let after = self.commit(at, after);
        let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        if finalizers(&before) > 0
            && finalizers(&after) == 0
            && !after["metadata"]["deletionTimestamp"].is_null()
        {
            invariants::check_end(self, &after);
            self.remove(at);
        }
        Ok(answer(&write.target, &after))
    }
}

fn refused(refusal: Refusal, at: &str) -> CallError {
    match refusal {
        Refusal::NotFound => CallError::NotFound(at.to_owned()),
        Refusal::AlreadyExists => CallError::AlreadyExists(at.to_owned()),
        Refusal::Conflict(guard) => CallError::Conflict(format!("{guard} of {at}")),
    }
}

/// What holds of every request.
fn check_request(write: &Write) {
    let Request { verb, path, body } = &write.request;
    let is_status = *path == format!("{}/status", self::path(&write.target));
    let resource = match (&write.target, is_status) {
        (ObjectRef::Claim(_), false) => "persistentvolumeclaims",
        (ObjectRef::Claim(_), true) => "persistentvolumeclaims/status",
        (ObjectRef::Volume(_), false) => "persistentvolumes",
        (ObjectRef::Volume(_), true) => "persistentvolumes/status",
        _ => "pods",
    };
    let verb = format!("{verb:?}").to_lowercase();
    let verb = verb.as_str();
    let request = requests::Request { verb, resource, body: body.as_ref().unwrap_or(&Value::Null) };
    let broken = requests::broken(request);
    assert!(broken.is_empty(), "{path}: {broken:?}");
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// URL path of an object.
pub fn path(target: &ObjectRef) -> String {
    match target {
        ObjectRef::Claim(key) => PersistentVolumeClaim::path(key),
        ObjectRef::Volume(name) => PersistentVolume::path(name),
        ObjectRef::Pod(key) => Pod::path(key),
        other => panic!("the binder does not write to {other}"),
    }
}

fn answer(target: &ObjectRef, object: &Value) -> Answer {
    match target {
        ObjectRef::Claim(_) => Answer::Claim(decode(object)),
        ObjectRef::Volume(_) => Answer::Volume(decode(object)),
        _ => Answer::Pod(decode(object)),
    }
}

/// As the binder reads it.
pub fn decode<T: Narrow>(object: &Value) -> T {
    let mut object: T = serde_json::from_str(&object.to_string()).expect("a readable object");
    object.trim();
    object
}
