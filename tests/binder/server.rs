//! An API server in a map. Guards are honoured, each write of the binder is checked against the
//! invariants before it is applied, and everything that happens is on record for watches.

use std::collections::{BTreeMap, BTreeSet};

use mooring::{
    binder::{
        decision::{Target, Write},
        op::{Answer, Call},
    },
    kube_api::{
        call::{CallError, Request, Verb},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
};
use serde_json::{Value, json};

use crate::invariants;

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

/// A server.
#[derive(Debug, Default)]
pub struct Server {
    /// By URL path.
    pub objects: BTreeMap<String, Value>,
    /// Paths that were read live since the binder started.
    pub read: Vec<String>,
    /// Whether watches lag behind, so that a write may rest on what was true a moment ago.
    pub lags: bool,
    /// The volumes whose claimRef is the binder's work.
    pub reserved: BTreeSet<String>,
    /// Everything that happened.
    pub changes: Vec<Change>,
    revision: u64,
}

impl Server {
    pub fn new(objects: BTreeMap<String, Value>) -> Self {
        Self { objects, revision: 100, ..Self::default() }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Creates or replaces an object, as somebody else.
    pub fn put(&mut self, path: &str, object: Value) {
        self.objects.insert(path.to_owned(), object);
        self.reserved.remove(path);
        self.touch(path);
    }

    /// Merges into an object, as somebody else.
    pub fn patch(&mut self, path: &str, body: &Value) {
        if let Some(object) = self.objects.get_mut(path) {
            json_patch::merge(object, body);
            self.reserved.remove(path);
            self.touch(path);
        }
    }

    /// Gives an object a new revision, and tells of it.
    pub fn touch(&mut self, path: &str) -> Value {
        self.revision += 1;
        let object = self.objects.get_mut(path).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = object.clone();
        self.changes.push(Change { path: path.to_owned(), object: object.clone(), gone: false });
        object
    }

    /// Removes an object, and tells of it with the revision of the deletion.
    pub fn remove(&mut self, path: &str) -> Value {
        self.revision += 1;
        let mut object = self.objects.remove(path).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.changes.push(Change { path: path.to_owned(), object: object.clone(), gone: true });
        object
    }

    /// Carries out a request of the binder.
    pub fn perform(&mut self, call: &Call) -> Result<Answer, CallError> {
        match call {
            Call::Read { target, .. } => {
                let path = path(target);
                self.read.push(path.clone());
                match self.objects.get(&path) {
                    Some(object) => Ok(answer(target, object)),
                    None => Err(CallError::NotFound(path)),
                }
            }
            Call::Write(write) => self.write(write),
        }
    }

    fn write(&mut self, write: &Write) -> Result<Answer, CallError> {
        let Request { verb, path: url, body } = &write.request;
        assert_eq!(*verb, Verb::Patch);
        let body = body.as_ref().unwrap();
        let (at, status) = match url.strip_suffix("/status") {
            Some(at) => (at, true),
            None => (url.as_str(), false),
        };
        assert_eq!(at, path(&write.target));
        let Some(before) = self.objects.get(at).cloned() else {
            return Err(CallError::NotFound(at.to_owned()));
        };
        for guard in ["uid", "resourceVersion"] {
            let expected = body["metadata"].get(guard).expect("S35: a write names UID and revision");
            if *expected != before["metadata"][guard] {
                return Err(CallError::Conflict(format!("{guard} of {at}")));
            }
        }
        let mut after = before.clone();
        json_patch::merge(&mut after, body);
        // The server keeps the other half as it is, whatever the body says.
        let other = if status { "spec" } else { "status" };
        assert_eq!(after[other], before[other], "a write to the wrong half of {at}");
        invariants::check(self, write.kind, at, &before, &after);
        if after["spec"]["claimRef"] != before["spec"]["claimRef"] {
            self.reserved.insert(at.to_owned());
        }
        self.objects.insert(at.to_owned(), after);
        let after = self.touch(at);
        Ok(answer(&write.target, &after))
    }
}

/// URL path of an object.
pub fn path(target: &Target) -> String {
    match target {
        Target::Claim(key) => PersistentVolumeClaim::path(key),
        Target::Volume(name) => PersistentVolume::path(name),
    }
}

fn answer(target: &Target, object: &Value) -> Answer {
    match target {
        Target::Claim(_) => Answer::Claim(decode(object)),
        Target::Volume(_) => Answer::Volume(decode(object)),
    }
}

/// As the binder reads it.
pub fn decode<T: Narrow>(object: &Value) -> T {
    let mut object: T = serde_json::from_str(&object.to_string()).expect("a readable object");
    object.trim();
    object
}
