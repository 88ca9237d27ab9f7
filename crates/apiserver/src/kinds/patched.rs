//! What a merge patch makes of the narrow form of an object, in the fields that the storage loops write.
//!
//! In: an object, and the body of a patch. Out: the object as it is then. What it names of others is not read: a patch may name
//! more than is kept of an object.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Meta, Node, PersistentVolume, PersistentVolumeClaim};
use crate::text::Text;

impl Node {
    /// Applies a patch.
    pub fn patch(&mut self, body: &Value) {
        set(&mut self.status.volumes_attached, body, "/status/volumesAttached");
    }
}

impl PersistentVolume {
    /// Applies a patch.
    pub fn patch(&mut self, body: &Value) {
        self.metadata.patch(body);
        if let Some(patch) = body.pointer("/spec/claimRef") {
            let mut claim = self.spec.claim_ref.take().unwrap_or_default();
            set(&mut claim.namespace, patch, "/namespace");
            set(&mut claim.name, patch, "/name");
            set(&mut claim.uid, patch, "/uid");
            self.spec.claim_ref = Some(claim).filter(|_| !patch.is_null());
        }
        set(&mut self.status.phase, body, "/status/phase");
    }
}

impl PersistentVolumeClaim {
    /// Applies a patch.
    pub fn patch(&mut self, body: &Value) {
        self.metadata.patch(body);
        set(&mut self.spec.storage_class_name, body, "/spec/storageClassName");
        set(&mut self.spec.volume_name, body, "/spec/volumeName");
        set(&mut self.status.phase, body, "/status/phase");
    }
}

impl Meta {
    /// Applies a patch, but for UID and revision, which it only compares.
    pub fn patch(&mut self, body: &Value) {
        set(&mut self.finalizers, body, "/metadata/finalizers");
        let Some(Value::Object(patch)) = body.pointer("/metadata/annotations") else { return };
        let kept = self.annotations.iter().filter(|(key, _)| !patch.contains_key(key.as_str()));
        let kept = kept.map(|(key, value)| (key.clone(), value.clone()));
        let put =
            patch.iter().filter_map(|(key, value)| Some((Text::from(key), Text::from(value.as_str()?))));
        *self.annotations = kept.chain(put).collect();
    }
}

/// Sets a field that a patch names; null takes it away.
fn set<T: Default + DeserializeOwned>(field: &mut T, patch: &Value, at: &str) {
    match patch.pointer(at) {
        None => {}
        Some(Value::Null) => *field = T::default(),
        Some(value) => {
            if let Ok(value) = T::deserialize(value) {
                *field = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_patch_sets_what_it_names_and_null_takes_it_away() {
        let marks =
            json!({ "pv.kubernetes.io/migrated-to": "d", "pv.kubernetes.io/bound-by-controller": "yes" });
        let claim = json!({ "namespace": "ns", "name": "c1", "uid": "u1" });
        let volume = |marks: Value, finalizers: Value, claim: Value, phase: &str| -> PersistentVolume {
            let metadata = json!({ "name": "v1", "annotations": marks, "finalizers": finalizers });
            let spec = json!({ "claimRef": claim });
            from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } })).unwrap()
        };
        let known = volume(marks.clone(), json!(["a"]), claim.clone(), "Released");
        let unbound = json!({ "namespace": "ns", "name": "c1" });
        let rows = [
            (json!({ "metadata": { "uid": "other" } }), known.clone()),
            (
                json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } }),
                volume(marks.clone(), json!(["a"]), unbound, "Released"),
            ),
            (
                json!({ "spec": { "claimRef": null }, "status": { "phase": "Available" } }),
                volume(marks, json!(["a"]), json!(null), "Available"),
            ),
            (
                json!({ "metadata": {
                    "finalizers": null,
                    "annotations": { "pv.kubernetes.io/migrated-to": null, "pv.kubernetes.io/bound-by-controller": "no" },
                } }),
                volume(json!({ "pv.kubernetes.io/bound-by-controller": "no" }), json!([]), claim, "Released"),
            ),
        ];
        for (patch, expected) in rows {
            let mut patched = known.clone();
            patched.patch(&patch);
            assert_eq!(patched, expected, "{patch}");
        }
    }
}
