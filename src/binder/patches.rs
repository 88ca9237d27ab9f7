//! The binder's writes, as JSON merge patches.
//!
//! In: the object in hand and what is to change. Out: a [`Write`] that names the object's UID and
//! revision, so that it does nothing to any other (S35), and only the fields that change, so that
//! fields unknown to us survive (S34). Leaving a key out of a merge patch keeps it: what has to go
//! is an explicit null.

use apiserver::{
    call::{Request, Verb},
    ids::{ClaimKey, ClassName, Uid, VolumeName},
    kinds::{Meta, Narrow, PersistentVolume, PersistentVolumeClaim, Pod, VolumePhase},
    text::{Text, TextMap},
};
use serde_json::{Map, Value, json};

use super::calls::{Write, WriteKind};
use crate::binder::annotations::{
    self, BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, MIGRATED_TO, SELECTED_NODE,
    STORAGE_PROVISIONER, YES,
};

/// A guarded patch of an object or of its status.
fn patch<T: Narrow>(kind: WriteKind, object: &T, subresource: &str, changes: Value) -> Write {
    let path = format!("{}{subresource}", T::path(&object.key()));
    let request = Request::patch(path, object.metadata(), changes);
    Write { kind, target: T::object_ref(object.key()), request, then: Vec::new(), claim: Uid::default() }
}

/// The markers among these that are not there yet: a value that is there stays, as another may have written it.
fn added(meta: &Meta, keys: &[&str]) -> Value {
    let lacking = keys.iter().filter(|key| !annotations::has(meta, key));
    let marks: Map<String, Value> = lacking.map(|key| ((*key).to_owned(), json!(YES))).collect();
    if marks.is_empty() { json!({}) } else { json!({"annotations": marks}) }
}

/// Notes on a claim or volume which CSI driver acts for its provisioner, or that none does, if that changes, and replaces
/// its finalizers, if they do.
pub fn annotate<T: Narrow>(object: &T, migrated_to: Option<Value>, finalizers: Option<&[Text]>) -> Write {
    let mut metadata = Map::new();
    if let Some(driver) = migrated_to {
        metadata.insert("annotations".to_owned(), json!({MIGRATED_TO: driver}));
    }
    if let Some(finalizers) = finalizers {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    patch(WriteKind::Annotate, object, "", json!({"metadata": metadata}))
}

/// Step 1 of a bind: the volume names the claim.
pub fn reserve_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim, by_us: bool) -> Write {
    let metadata = if by_us { added(&volume.metadata, &[BOUND_BY_CONTROLLER]) } else { json!({}) };
    let changes = json!({"metadata": metadata, "spec": {"claimRef": reference(claim)}});
    patch(WriteKind::ReserveVolume, volume, "", changes)
}

/// A claim as a volume refers to it.
pub fn reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "kind": PersistentVolumeClaim::KIND,
        "apiVersion": "v1",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
    })
}

/// Undoes step 1: the whole reference if the binder made it, else only the UID it added (S26).
pub fn unreserve_volume(volume: &PersistentVolume, by_us: bool) -> Write {
    let changes = if by_us {
        json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}, "spec": {"claimRef": null}})
    } else {
        json!({"spec": {"claimRef": {"uid": null}}})
    };
    patch(WriteKind::Unbind, volume, "", changes)
}

/// Points the reference at a claim that has the volume: it takes it back (S45), and no other meanwhile.
pub fn reserve_by_name(volume: &PersistentVolume, claim: &ClaimKey) -> Write {
    let reference = json!({"namespace": claim.namespace(), "name": claim.name(), "uid": null});
    patch(WriteKind::Unbind, volume, "", json!({"spec": {"claimRef": reference}}))
}

/// Step 2 of a bind, and every other phase of a volume. The message belongs to the phase, so that
/// of the phase before goes.
pub fn volume_phase(volume: &PersistentVolume, phase: VolumePhase, message: Option<&str>) -> Write {
    let kind = match phase {
        VolumePhase::Bound => WriteKind::VolumeBound,
        VolumePhase::Released => WriteKind::VolumeReleased,
        VolumePhase::Failed => WriteKind::VolumeFailed,
        _ => WriteKind::VolumeAvailable,
    };
    let claim = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.clone()).unwrap_or_default();
    Write { claim, ..patch(kind, volume, "/status", json!({"status": {"phase": phase, "message": message}})) }
}

/// Step 3 of a bind: the claim names the volume. `name` is left out when the claim names it
/// already, and then only the completion is noted.
pub fn name_volume(claim: &PersistentVolumeClaim, name: Option<&VolumeName>) -> Write {
    let added = |keys| added(&claim.metadata, keys);
    let changes = match name {
        Some(name) => {
            let metadata = added(&[BIND_COMPLETED, BOUND_BY_CONTROLLER]);
            json!({"metadata": metadata, "spec": {"volumeName": name}})
        }
        None => json!({"metadata": added(&[BIND_COMPLETED])}),
    };
    patch(WriteKind::NameVolume, claim, "", changes)
}

/// Fields of a claim's status that have to change, as they are named there; what has to go is null.
pub type StatusChange = Map<String, Value>;

/// Step 4 of a bind, and every other status of a claim.
pub fn claim_status(kind: WriteKind, claim: &PersistentVolumeClaim, status: &StatusChange) -> Write {
    patch(kind, claim, "/status", json!({"status": status}))
}

/// A new capacity in the status of a claim that has this one.
pub fn capacity(before: &TextMap, after: &TextMap) -> Value {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let gone = gone.map(|key| (key.to_string(), Value::Null));
    let set = after.iter().map(|(key, quantity)| (key.to_string(), json!(quantity)));
    gone.chain(set).collect()
}

/// Gives a claim that has no class the default one (pv-binder §8).
pub fn assign_class(claim: &PersistentVolumeClaim, class: &ClassName) -> Write {
    patch(WriteKind::AssignClass, claim, "", json!({"spec": {"storageClassName": class}}))
}

/// Asks an external provisioner for a volume (pv-binder §7.2).
pub fn ask_provisioner(claim: &PersistentVolumeClaim, provisioner: &str) -> Write {
    let marks = json!({STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner});
    patch(WriteKind::AskProvisioner, claim, "", json!({"metadata": {"annotations": marks}}))
}

/// Asks the scheduler to choose a node again.
pub fn unselect_node(claim: &PersistentVolumeClaim) -> Write {
    patch(WriteKind::Reschedule, claim, "", json!({"metadata": {"annotations": {SELECTED_NODE: null}}}))
}

/// Lets a pod be scheduled: it keeps these gates only.
pub fn start_pod(pod: &Pod, gates: &[Value]) -> Write {
    let gates = if gates.is_empty() { Value::Null } else { json!(gates) };
    patch(WriteKind::StartPod, pod, "", json!({"spec": {"schedulingGates": gates}}))
}

/// Deletes exactly this object, in any phase, unless it was changed. The revision is named also where any would do:
/// without it the API server loses a finalizer that was put on while it deleted (kubernetes#77988, S35).
pub fn delete<T: Narrow>(kind: WriteKind, object: &T) -> Write {
    let Meta { uid, resource_version, .. } = object.metadata();
    let preconditions = json!({"uid": uid, "resourceVersion": resource_version});
    let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
    let request = Request { verb: Verb::Delete, path: T::path(&object.key()), body: Some(body) };
    Write { kind, target: T::object_ref(object.key()), request, then: Vec::new(), claim: Uid::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv", "uid": "pv-uid", "resourceVersion": "7"},
            "spec": {"capacity": {"storage": "1Gi"}},
        }))
        .unwrap()
    }

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "c", "uid": "c-uid", "resourceVersion": "9"},
            "status": {"capacity": {"storage": "1Gi", "odd": "1"}},
        }))
        .unwrap()
    }

    fn marked(meta: &Value, annotations: Value) -> Value {
        let mut meta = meta.clone();
        meta["annotations"] = annotations;
        meta
    }

    #[test]
    fn every_write_to_a_volume_is_a_guarded_patch_of_what_changes() {
        let pv = "/api/v1/persistentvolumes/pv";
        let of_volume = json!({"uid": "pv-uid", "resourceVersion": "7"});
        let reference = json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "ns", "name": "c",
            "uid": "c-uid", "resourceVersion": "9",
        });
        let cases = [
            (
                reserve_volume(&volume(), &claim(), true),
                pv.to_owned(),
                json!({
                    "metadata": marked(&of_volume, json!({"pv.kubernetes.io/bound-by-controller": "yes"})),
                    "spec": {"claimRef": reference},
                }),
            ),
            (
                reserve_volume(&volume(), &claim(), false),
                pv.to_owned(),
                json!({"metadata": of_volume, "spec": {"claimRef": reference}}),
            ),
            (
                annotate(&volume(), Some(Value::Null), None),
                pv.to_owned(),
                json!({"metadata": marked(&of_volume, json!({"pv.kubernetes.io/migrated-to": null}))}),
            ),
            (
                annotate(&volume(), None, Some(&["a".into()])),
                pv.to_owned(),
                json!({"metadata": {"uid": "pv-uid", "resourceVersion": "7", "finalizers": ["a"]}}),
            ),
            (
                unreserve_volume(&volume(), true),
                pv.to_owned(),
                json!({
                    "metadata": marked(&of_volume, json!({"pv.kubernetes.io/bound-by-controller": null})),
                    "spec": {"claimRef": null},
                }),
            ),
            (
                unreserve_volume(&volume(), false),
                pv.to_owned(),
                json!({"metadata": of_volume, "spec": {"claimRef": {"uid": null}}}),
            ),
            (
                reserve_by_name(&volume(), &claim().key()),
                pv.to_owned(),
                json!({
                    "metadata": of_volume,
                    "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": null}},
                }),
            ),
            (
                volume_phase(&volume(), VolumePhase::Bound, None),
                format!("{pv}/status"),
                json!({"metadata": of_volume, "status": {"phase": "Bound", "message": null}}),
            ),
            (
                volume_phase(&volume(), VolumePhase::Failed, Some("no")),
                format!("{pv}/status"),
                json!({"metadata": of_volume, "status": {"phase": "Failed", "message": "no"}}),
            ),
        ];
        for (write, path, body) in cases {
            assert_eq!(write.request, Request { verb: Verb::Patch, path, body: Some(body) });
        }
    }

    #[test]
    fn a_marker_that_is_there_keeps_its_value() {
        let (mut volume, mut claim) = (volume(), claim());
        volume.metadata.annotations.insert(BOUND_BY_CONTROLLER, "by hand");
        claim.metadata.annotations.insert(BOUND_BY_CONTROLLER, "by hand");
        let annotations = |write: Write| write.request.body.unwrap()["metadata"]["annotations"].clone();
        assert_eq!(annotations(reserve_volume(&volume, &claim, true)), Value::Null);
        let named = annotations(name_volume(&claim, Some(&VolumeName::from("pv"))));
        assert_eq!(named, json!({"pv.kubernetes.io/bind-completed": "yes"}));
    }

    #[test]
    fn s35_what_is_deleted_or_started_is_named_by_uid_and_revision() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "p-uid", "resourceVersion": "3"},
        }))
        .unwrap();
        let options = |preconditions: Value| json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        let cases = [
            (
                delete(WriteKind::DeleteVolume, &volume()),
                Verb::Delete,
                "/api/v1/persistentvolumes/pv",
                options(json!({"uid": "pv-uid", "resourceVersion": "7"})),
            ),
            (
                delete(WriteKind::DeletePod, &pod),
                Verb::Delete,
                "/api/v1/namespaces/ns/pods/p",
                options(json!({"uid": "p-uid", "resourceVersion": "3"})),
            ),
            (
                start_pod(&pod, &[]),
                Verb::Patch,
                "/api/v1/namespaces/ns/pods/p",
                json!({"metadata": {"uid": "p-uid", "resourceVersion": "3"}, "spec": {"schedulingGates": null}}),
            ),
            (
                unselect_node(&claim()),
                Verb::Patch,
                "/api/v1/namespaces/ns/persistentvolumeclaims/c",
                json!({"metadata": {
                    "uid": "c-uid", "resourceVersion": "9",
                    "annotations": {"volume.kubernetes.io/selected-node": null},
                }}),
            ),
        ];
        for (write, verb, path, body) in cases {
            assert_eq!(write.request, Request { verb, path: path.to_owned(), body: Some(body) });
        }
    }

    #[test]
    fn every_write_to_a_claim_is_a_guarded_patch_of_what_changes() {
        let pvc = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
        let of_claim = json!({"uid": "c-uid", "resourceVersion": "9"});
        let change = StatusChange::from_iter([
            ("phase".to_owned(), json!("Lost")),
            ("capacity".to_owned(), Value::Null),
        ]);
        let cases = [
            (
                name_volume(&claim(), Some(&VolumeName::from("pv"))),
                pvc.to_owned(),
                json!({
                    "metadata": marked(&of_claim, json!({
                        "pv.kubernetes.io/bind-completed": "yes",
                        "pv.kubernetes.io/bound-by-controller": "yes",
                    })),
                    "spec": {"volumeName": "pv"},
                }),
            ),
            (
                name_volume(&claim(), None),
                pvc.to_owned(),
                json!({"metadata": marked(&of_claim, json!({"pv.kubernetes.io/bind-completed": "yes"}))}),
            ),
            (
                claim_status(WriteKind::ClaimLost, &claim(), &change),
                format!("{pvc}/status"),
                json!({"metadata": of_claim, "status": {"phase": "Lost", "capacity": null}}),
            ),
            (
                annotate(&claim(), Some(json!("d")), None),
                pvc.to_owned(),
                json!({"metadata": marked(&of_claim, json!({"pv.kubernetes.io/migrated-to": "d"}))}),
            ),
            (
                assign_class(&claim(), &ClassName::from("gold")),
                pvc.to_owned(),
                json!({"metadata": of_claim, "spec": {"storageClassName": "gold"}}),
            ),
            (
                ask_provisioner(&claim(), "csi.example.com"),
                pvc.to_owned(),
                json!({"metadata": marked(&of_claim, json!({
                    "volume.kubernetes.io/storage-provisioner": "csi.example.com",
                    "volume.beta.kubernetes.io/storage-provisioner": "csi.example.com",
                }))}),
            ),
        ];
        for (write, path, body) in cases {
            assert_eq!(write.request, Request { verb: Verb::Patch, path, body: Some(body) });
        }
    }
}
