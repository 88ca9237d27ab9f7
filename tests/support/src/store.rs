//! An API server of values: objects with revisions, preconditions and finalizers, as the real one keeps them.
//!
//! In: objects and requests. Out: the object that a request would produce, so that a check can judge it first; the
//! resulting object; or a refusal. Cases of both controllers and histories of the binder run on it, and add their own
//! checks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotFound,
    AlreadyExists,
    /// The field of the metadata that differs.
    Conflict(&'static str),
}

/// The objects, by what their users call them.
#[derive(Clone, Debug, Default)]
pub struct Store<K> {
    pub objects: BTreeMap<K, Value>,
    revision: u64,
}

impl<K: Ord + Clone> Store<K> {
    /// With objects as they are at a revision.
    pub fn new(objects: BTreeMap<K, Value>, revision: u64) -> Self {
        Self { objects, revision }
    }

    /// That of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Creates or replaces an object, which gets a new revision.
    pub fn put(&mut self, key: &K, mut object: Value) -> &Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(key.clone(), object);
        &self.objects[key]
    }

    /// Takes an object away. What is left has the revision of its end.
    pub fn remove(&mut self, key: &K) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        Some(object)
    }

    /// An object that a request names.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, key: &K) -> Result<&Value, Refusal> {
        self.objects.get(key).ok_or(Refusal::NotFound)
    }

    /// Whether a new object may have the name.
    ///
    /// # Errors
    /// Another has it.
    pub fn free(&self, key: &K) -> Result<(), Refusal> {
        if self.objects.contains_key(key) { Err(Refusal::AlreadyExists) } else { Ok(()) }
    }

    /// What a merge patch makes of an object. UID and revision that it names have to be the object's.
    ///
    /// # Errors
    /// There is no such object, or it is another, or has changed.
    pub fn patched(&self, key: &K, body: &Value) -> Result<Value, Refusal> {
        let before = self.get(key)?;
        guards(&body["metadata"], before)?;
        let mut after = before.clone();
        json_patch::merge(&mut after, body);
        Ok(after)
    }

    /// The object that a deletion would take, if its preconditions hold.
    ///
    /// # Errors
    /// There is no such object, or it is another, or has changed.
    pub fn deletable(&self, key: &K, preconditions: &Value) -> Result<&Value, Refusal> {
        let object = self.get(key)?;
        guards(preconditions, object)?;
        Ok(object)
    }

    /// Whether nothing holds an object that is deleted.
    pub fn goes_at_once(object: &Value) -> bool {
        object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    }
}

/// Whether the UID and the revision that are named, if they are, are those of an object.
fn guards(named: &Value, object: &Value) -> Result<(), Refusal> {
    for guard in ["uid", "resourceVersion"] {
        let expected = &named[guard];
        if !expected.is_null() && *expected != object["metadata"][guard] {
            return Err(Refusal::Conflict(guard));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_as_the_server_refuses_them() {
        let object =
            json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": { "a": 1, "b": 2 } });
        let mut store = Store::new(BTreeMap::from([("here", object)]), 7);
        let body = |uid: &str, revision: &str| json!({ "metadata": { "uid": uid, "resourceVersion": revision }, "spec": { "a": null } });
        assert_eq!(store.free(&"here"), Err(Refusal::AlreadyExists));
        assert_eq!(store.free(&"new"), Ok(()));
        assert_eq!(store.patched(&"gone", &json!({})), Err(Refusal::NotFound));
        assert_eq!(store.patched(&"here", &body("other", "7")), Err(Refusal::Conflict("uid")));
        assert_eq!(store.patched(&"here", &body("u", "6")), Err(Refusal::Conflict("resourceVersion")));
        let after = store.patched(&"here", &body("u", "7")).unwrap();
        assert_eq!(after["spec"], json!({ "b": 2 }));
        assert_eq!(store.put(&"here", after)["metadata"]["resourceVersion"], "8");
        assert_eq!(store.deletable(&"here", &json!({ "uid": "other" })), Err(Refusal::Conflict("uid")));
        assert!(store.deletable(&"here", &json!({ "uid": "u" })).is_ok_and(Store::<&str>::goes_at_once));
        assert_eq!(store.remove(&"here").unwrap()["metadata"]["resourceVersion"], "9");
        assert_eq!((store.remove(&"here"), store.revision()), (None, 9));
    }
}
