//! Who else acts in the histories of the binder: users, a scheduler, a provisioner, a kubelet.
//!
//! In: the server, and chance. Out: what they did to it.

use fastrand::Rng;
use serde_json::{Value, json};

use crate::{
    invariants::MADE,
    server::{CLAIMS, CLASSES, PODS, Server, VOLUMES, text},
};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

pub fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

/// A user, an administrator, the scheduler or the provisioner does something. Deleted volumes linger or go at once.
pub fn somebody_acts(server: &mut Server, rng: &mut Rng, lingers: bool) {
    let claim = format!("{CLAIMS}c{}", rng.u32(1..4));
    let volume = format!("{VOLUMES}v{}", rng.u32(1..4));
    let size = format!("{}Gi", rng.u32(1..4));
    let fresh = format!("uid-{}", server.revision());
    match rng.u32(0..15) {
        12 => kubelet_acts(server, rng.u32(0..4) > 0),
        13 => {
            let pods: Vec<String> =
                server.store.objects.keys().filter(|path| path.starts_with(PODS)).cloned().collect();
            if let Some(pod) = pods.first() {
                server.remove(pod);
            }
        }
        0..3 if !server.store.objects.contains_key(&claim) => {
            let named = if rng.u32(0..6) == 0 { format!("v{}", rng.u32(1..4)) } else { String::new() };
            let class = pick(rng, &["", "", "gold", "wait", "none", "late", "manual"]);
            let class = if rng.u32(0..7) == 0 { Value::Null } else { json!(class) };
            let object = json!({
                "metadata": {"name": claim.rsplit('/').next(), "namespace": "default", "uid": fresh, "annotations": {"kept": "", MADE: server.revision().to_string()}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "volumeName": named, "storageClassName": class,
                    "resources": {"requests": {"storage": size}}, "unknown": {"kept": true},
                },
                "status": {"phase": "Pending"},
            });
            server.put(&claim, object);
        }
        3..5 if server.store.objects.contains_key(&claim) => {
            server.remove(&claim);
        }
        5..8 if !server.store.objects.contains_key(&volume) => {
            let mut object = json!({
                "metadata": {"name": volume.rsplit('/').next(), "uid": fresh, "annotations": {"kept": ""}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                    "storageClassName": pick(rng, &["", "", "gold", "wait", "none", "late", "manual"]),
                    "persistentVolumeReclaimPolicy": pick(rng, &["Retain", "Retain", "Delete"]),
                    "unknown": {"kept": true},
                },
                "status": {"phase": "Pending"},
            });
            if rng.u32(0..5) == 0 {
                let uid = server
                    .store
                    .objects
                    .get(&claim)
                    .filter(|_| rng.bool())
                    .map(|claim| text(claim, "/metadata/uid"));
                object["spec"]["claimRef"] = json!({
                    "namespace": "default", "name": claim.rsplit('/').next(), "uid": uid.unwrap_or(""),
                });
            }
            match rng.u32(0..3) {
                0 => object["spec"]["csi"] = json!({"driver": "d", "volumeHandle": fresh}),
                1 => {
                    object["spec"]["hostPath"] = json!({"path": format!("/data/{fresh}")});
                    object["spec"]["persistentVolumeReclaimPolicy"] = json!("Recycle");
                }
                _ => {}
            }
            server.put(&volume, object);
        }
        8 if server.store.objects.contains_key(&volume) => {
            // Protection keeps the object as long as it is Bound.
            if lingers && rng.bool() {
                server.patch(&volume, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
            } else {
                server.remove(&volume);
                collect_garbage(server);
            }
        }
        9 => {
            let phase = server.store.objects.get(&volume).map(|volume| text(volume, "/status/phase"));
            if phase == Some("Released") || phase == Some("Bound") && rng.bool() {
                let cleared = pick(rng, &[Value::Null, json!({"uid": null})]);
                server.patch(&volume, &json!({"spec": {"claimRef": cleared}}));
            }
        }
        10 => scheduler_acts(server, &claim, &volume, rng),
        11 if rng.u32(0..3) == 0 => {
            let marked = pick(rng, &[json!("true"), Value::Null]);
            let key = "storageclass.kubernetes.io/is-default-class";
            server.patch(&format!("{CLASSES}gold"), &json!({"metadata": {"annotations": {key: marked}}}));
        }
        14 if !server.store.objects.contains_key(&format!("{CLASSES}late")) => {
            late_class_comes(server, &fresh);
        }
        _ => provisioner_acts(server),
    }
}

/// A class comes, and at once what its watch may be late for: a claim of it, and a volume.
fn late_class_comes(server: &mut Server, fresh: &str) {
    let class = json!({
        "metadata": {"name": "late", "uid": "late", "annotations": {MADE: server.revision().to_string()}},
        "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer",
    });
    server.put(&format!("{CLASSES}late"), class);
    let made = server.revision().to_string();
    let object = |name: &str, spec: Value| {
        let metadata = json!({"name": name, "uid": format!("{name}-{fresh}"), "annotations": {MADE: made}});
        json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
    };
    let modes = ["ReadWriteOnce"];
    let mut claim = object(
        "c-late",
        json!({
            "accessModes": modes, "storageClassName": "late", "resources": {"requests": {"storage": "1Gi"}},
        }),
    );
    claim["metadata"]["namespace"] = json!("default");
    let mut volume = object(
        "v-late",
        json!({
            "accessModes": modes, "storageClassName": "late", "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
        }),
    );
    volume["status"]["phase"] = json!("Available");
    server.put(&format!("{VOLUMES}v-late"), volume);
    server.put(&format!("{CLAIMS}c-late"), claim);
}

/// Chooses a node or a volume for a claim that waits for its first consumer.
fn scheduler_acts(server: &mut Server, claim: &str, volume: &str, rng: &mut Rng) {
    let Some(object) = server.store.objects.get(claim) else { return };
    let class = text(object, "/spec/storageClassName").to_owned();
    let waits =
        ["wait", "none", "late"].contains(&class.as_str()) && text(object, "/spec/volumeName").is_empty();
    if !waits {
        return;
    }
    let uid = object["metadata"]["uid"].clone();
    let has_one = server.store.objects.values().any(|volume| volume["spec"]["claimRef"]["uid"] == uid);
    if rng.bool() {
        let selected = if rng.u32(0..4) == 0 { Value::Null } else { json!("n1") };
        server.patch(claim, &json!({"metadata": {"annotations": {SELECTED_NODE: selected}}}));
    } else if let Some(found) = server.store.objects.get(volume)
        && !has_one
        && found["spec"]["claimRef"].is_null()
        && text(found, "/status/phase") == "Available"
        && text(found, "/spec/storageClassName") == class
        && text(found, "/spec/capacity/storage")
            >= text(&server.store.objects[claim], "/spec/resources/requests/storage")
    {
        let reference = json!({"namespace": "default", "name": claim.rsplit('/').next(), "uid": uid});
        let marks = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
        server.patch(volume, &json!({"metadata": {"annotations": marks}, "spec": {"claimRef": reference}}));
    }
}

/// Deleted volumes go once they are Bound no longer.
fn protection_acts(server: &mut Server) {
    let gone: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, volume)| path.starts_with(VOLUMES) && text(volume, "/status/phase") != "Bound")
        .filter(|(_, volume)| !volume["metadata"]["deletionTimestamp"].is_null())
        .map(|(path, _)| path.clone())
        .collect();
    for path in gone {
        server.remove(&path);
        collect_garbage(server);
    }
}

/// Makes volumes for claims that ask, and deletes those that were released (pv-binder §7.5).
pub fn provisioner_acts(server: &mut Server) {
    protection_acts(server);
    let asking: Vec<Value> = server
        .store
        .objects
        .iter()
        .filter(|(path, claim)| {
            let annotations = &claim["metadata"]["annotations"];
            let waits = ["wait", "none", "late"].contains(&text(claim, "/spec/storageClassName"));
            path.starts_with(CLAIMS)
                && text(claim, "/spec/volumeName").is_empty()
                && annotations[PROVISIONER] == "d"
                && (!waits || !annotations[SELECTED_NODE].is_null())
        })
        .map(|(_, claim)| claim.clone())
        .collect();
    for claim in asking {
        let name = format!("pvc-{}", text(&claim, "/metadata/uid"));
        if server.store.objects.contains_key(&format!("{VOLUMES}{name}")) {
            continue;
        }
        let object = json!({
            "metadata": {
                "name": name, "uid": format!("of-{name}"),
                "annotations": {"pv.kubernetes.io/provisioned-by": "d"},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": claim["spec"]["resources"]["requests"],
                "storageClassName": claim["spec"]["storageClassName"],
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": "d", "volumeHandle": name},
                "claimRef": {
                    "namespace": "default", "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"],
                },
            },
            "status": {"phase": "Pending"},
        });
        server.put(&format!("{VOLUMES}{name}"), object);
    }
    let released: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, volume)| path.starts_with(VOLUMES) && text(volume, "/status/phase") == "Released")
        .filter(|(_, volume)| volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "d")
        .map(|(path, _)| path.clone())
        .collect();
    for path in released {
        server.remove(&path);
    }
}

/// Runs the pods that may run to their end.
pub fn kubelet_acts(server: &mut Server, well: bool) {
    let runnable: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, pod)| path.starts_with(PODS) && text(pod, "/status/phase") == "Pending")
        .filter(|(_, pod)| pod["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty))
        .map(|(path, _)| path.clone())
        .collect();
    for path in runnable {
        let phase = if well { "Succeeded" } else { "Failed" };
        server.patch(&path, &json!({"status": {"phase": phase}}));
    }
}

/// A pod goes when the volume that owns it is gone.
fn collect_garbage(server: &mut Server) {
    let uids: Vec<Value> =
        server.store.objects.values().map(|object| object["metadata"]["uid"].clone()).collect();
    let orphans: Vec<String> = server
        .store
        .objects
        .iter()
        .filter(|(path, pod)| {
            path.starts_with(PODS) && !uids.contains(&pod["metadata"]["ownerReferences"][0]["uid"])
        })
        .map(|(path, _)| path.clone())
        .collect();
    for path in orphans {
        server.remove(&path);
    }
}

pub fn touch_any(server: &mut Server, rng: &mut Rng) {
    let paths: Vec<String> = server.store.objects.keys().cloned().collect();
    let path = pick(rng, &paths);
    server.touch(&path);
}
