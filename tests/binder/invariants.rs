//! What a single write of the binder must not break (safety.md, S18 to S35).
//!
//! In: the server before the write, the object before and after. A broken promise panics. Nothing here
//! shares code with the binder.

use std::collections::BTreeSet;

use mooring::binder::decide::decision::WriteKind;
use serde_json::Value;

use crate::server::{CLAIM_UID, Server};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/";
const VOLUMES: &str = "/api/v1/persistentvolumes/";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses/";
/// Annotation: the server's revision when the object was made.
pub const MADE: &str = "made";

/// Checks one write.
pub fn check(server: &Server, kind: WriteKind, at: &str, before: &Value, after: &Value) {
    footprint(at, before, after);
    if kind == WriteKind::StartPod {
        return recycling(server, before, after);
    }
    if at.starts_with(VOLUMES) {
        claim_ref(server, at, before, after);
        volume_phase(server, kind, at, before, after);
        finalizers(at, before, after);
    } else {
        claim_spec(server, at, before, after);
        claim_status(server, at, before, after);
        provisioner(server, at, before, after);
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

fn class_of(object: &Value) -> &str {
    annotation(object, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| text(object, "/spec/storageClassName"))
}

fn is_delayed(server: &Server, claim: &Value) -> bool {
    let class = server.objects.get(&format!("{CLASSES}{}", class_of(claim)));
    class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer")
}

/// Whether the claim's class delayed its bind from the beginning: one that came later, while the claim was
/// being looked at, need not.
fn is_delayed_from_the_start(server: &Server, claim: &Value) -> bool {
    let class = server.objects.get(&format!("{CLASSES}{}", class_of(claim)));
    let made =
        |object: &Value| annotation(object, MADE).and_then(|made| made.parse::<u64>().ok()).unwrap_or(0);
    is_delayed(server, claim) && class.is_none_or(|class| made(class) <= made(claim))
}

/// S34: every write stays within the fields that are the binder's.
fn footprint(at: &str, before: &Value, after: &Value) {
    const OURS: [&str; 15] = [
        "/metadata/resourceVersion",
        "/metadata/finalizers",
        "/metadata/annotations/pv.kubernetes.io~1",
        "/metadata/annotations/volume.kubernetes.io~1selected-node",
        "/spec/schedulingGates",
        "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
        "/metadata/annotations/volume.beta.kubernetes.io~1storage-provisioner",
        "/spec/claimRef",
        "/spec/volumeName",
        "/spec/storageClassName",
        "/status/phase",
        "/status/message",
        "/status/accessModes",
        "/status/capacity",
        "/status/currentVolumeAttributesClassName",
    ];
    for operation in json_patch::diff(before, after).0 {
        let pointer = operation.path().to_string();
        assert!(OURS.iter().any(|ours| pointer.starts_with(ours)), "S34: {at}{pointer} is changed");
    }
}

fn claim_ref(server: &Server, at: &str, before: &Value, after: &Value) {
    let (from, to) = (text(before, "/spec/claimRef/uid"), text(after, "/spec/claimRef/uid"));
    if from != to && !to.is_empty() {
        for (path, other) in &server.objects {
            if !path.starts_with(VOLUMES) || path == at {
                continue;
            }
            let holds = |volume: Option<&Value>| {
                volume.is_some_and(|volume| text(volume, "/spec/claimRef/uid") == to && !is_released(volume))
            };
            // What others reserve at the same time cannot be known.
            let known =
                server.reserved.contains(path) || server.states_since_seen(path).into_iter().all(holds);
            assert!(!holds(Some(other)) || !known, "S19: {path} and {at} would hold the same claim");
        }
        // A pod that an earlier process asked for may have been made just now; it does not run yet.
        let emptied = pods_of(server, before)
            .any(|(path, _)| server.states_since_seen(path).into_iter().all(|pod| pod.is_some()));
        assert!(!emptied, "S23: {at} is given to a claim while a pod empties it");
        assert!(from.is_empty(), "S23: {at} is taken from one claim and given to another");
        if before["spec"]["claimRef"].is_null() {
            chosen(server, at, before, after);
        }
    }
    if !before["spec"]["claimRef"].is_null() && after["spec"]["claimRef"].is_null() {
        assert!(
            annotation(before, BOUND_BY_CONTROLLER).is_some(),
            "S26: a user's reservation of {at} is removed"
        );
    }
    if from != to && to.is_empty() {
        // People may have freed it and left the phase to us; then the reference is our own.
        let parked = matches!(text(before, "/status/phase"), "Released" | "Failed");
        let uids = (text(before, "/metadata/uid").to_owned(), from.to_owned());
        let emptied =
            before["spec"]["persistentVolumeReclaimPolicy"] == "Recycle" && server.emptied.contains(&uids);
        assert!(!parked || emptied || server.reserved.contains(at), "S25: {at} is freed");
        assert!(pods_of(server, before).next().is_none(), "S23: {at} is freed while a pod empties it");
    }
}

/// S27, S28: the volume was the binder's to choose, or the claim names it and it suits.
fn chosen(server: &Server, at: &str, before: &Value, after: &Value) {
    let claim = server.objects.get(&format!("{CLAIMS}{}", text(after, "/spec/claimRef/name")));
    let Some(claim) = claim.filter(|claim| claim["metadata"]["uid"] == after["spec"]["claimRef"]["uid"])
    else {
        // It went away meanwhile; the volume will be released.
        return;
    };
    if annotation(claim, BIND_COMPLETED).is_some() {
        return;
    }
    assert!(before["metadata"]["deletionTimestamp"].is_null(), "S27: {at} is being deleted");
    assert_eq!(class_of(before), class_of(claim), "S27: {at} is of another class");
    let mode = |object: &Value| match text(object, "/spec/volumeMode") {
        "" => "Filesystem".to_owned(),
        mode => mode.to_owned(),
    };
    assert_eq!(mode(before), mode(claim), "S27: {at} has another volumeMode");
    assert_eq!(
        text(before, "/spec/volumeAttributesClassName"),
        text(claim, "/spec/volumeAttributesClassName"),
        "S27: {at} has another attributes class"
    );
    let modes = |object: &Value| -> BTreeSet<String> {
        serde_json::from_value(object["spec"]["accessModes"].clone()).unwrap_or_default()
    };
    assert!(modes(before).is_superset(&modes(claim)), "S27: {at} lacks an access mode");
    if let (Some(size), Some(request)) = (
        gibibytes(text(before, "/spec/capacity/storage")),
        gibibytes(text(claim, "/spec/resources/requests/storage")),
    ) {
        assert!(size >= request, "S27: {at} is too small");
    }
    if text(claim, "/spec/volumeName").is_empty() {
        assert_eq!(text(before, "/status/phase"), "Available", "S27: {at} is not free");
        assert!(!is_delayed_from_the_start(server, claim), "S28: {at} is the scheduler's to choose");
    }
}

fn gibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("Gi")?.parse().ok()
}

fn volume_phase(server: &Server, kind: WriteKind, at: &str, before: &Value, after: &Value) {
    let phase = |object: &Value| text(object, "/status/phase").to_owned();
    if phase(after) == phase(before) {
        return;
    }
    let reference = &after["spec"]["claimRef"];
    match phase(after).as_str() {
        "Bound" => assert!(!text(after, "/spec/claimRef/uid").is_empty(), "S22: {at} is Bound to nobody"),
        "Available" => {
            assert!(text(after, "/spec/claimRef/uid").is_empty(), "S25: {at} is free and belongs to a claim");
        }
        "Released" | "Failed" => {
            let claim = format!("{CLAIMS}{}", reference["name"].as_str().unwrap());
            let name = after["metadata"]["name"].as_str().unwrap();
            let lives = |claim: Option<&Value>| {
                claim.is_some_and(|claim| {
                    let volume = text(claim, "/spec/volumeName");
                    claim["metadata"]["uid"] == reference["uid"] && (volume.is_empty() || volume == name)
                })
            };
            let proven = server.reads.iter().any(|read| read.path == claim && !lives(read.found.as_ref()));
            assert!(proven, "S23: {claim} was not asked for before {kind:?}");
            assert!(!lives(server.objects.get(&claim)), "S23: the claim of {at} lives");
            let external = !after["spec"]["csi"].is_null();
            assert!(phase(after) == "Released" || !external, "S32: {at} is not ours to fail");
        }
        other => panic!("the binder writes phase {other} to {at}"),
    }
}

/// S33: of the finalizers only the two of deletion protection change, and nobody else's order.
fn finalizers(at: &str, before: &Value, after: &Value) {
    const OURS: [&str; 2] =
        ["kubernetes.io/pv-controller", "external-provisioner.volume.kubernetes.io/finalizer"];
    let others = |object: &Value| -> Vec<String> {
        let all: Vec<String> =
            serde_json::from_value(object["metadata"]["finalizers"].clone()).unwrap_or_default();
        all.into_iter().filter(|name| !OURS.contains(&name.as_str())).collect()
    };
    assert_eq!(others(before), others(after), "S33: a finalizer of others on {at}");
}

fn claim_spec(server: &Server, at: &str, before: &Value, after: &Value) {
    let (named, name) = (text(before, "/spec/volumeName"), text(after, "/spec/volumeName"));
    if name != named {
        assert!(named.is_empty(), "S20: {at} changes its volume");
        // The volume may have gone meanwhile; what is written was true when it was seen.
        let protected = |volume: &Value| {
            volume["spec"]["claimRef"]["uid"] == after["metadata"]["uid"]
                && volume["status"]["phase"] == "Bound"
        };
        let states = server.states_since_seen(&format!("{VOLUMES}{name}"));
        let holds = states.into_iter().flatten().any(protected);
        assert!(holds, "S21: {at} names {name}, which does not name it or is not protected yet");
    }
    let (had, has) = (&before["spec"]["storageClassName"], &after["spec"]["storageClassName"]);
    if had != has {
        assert!(had.is_null(), "S30: {at} changes its class");
        let states = server.states_since_seen(&format!("{CLASSES}{}", has.as_str().unwrap_or_default()));
        let is_default = |class| DEFAULT_CLASS.iter().any(|key| annotation(class, key) == Some("true"));
        let marked = states.into_iter().flatten().any(is_default);
        assert!(marked, "S30: {at} gets a class that is not default");
    }
}

fn claim_status(server: &Server, at: &str, before: &Value, after: &Value) {
    let name = text(after, "/spec/volumeName");
    let volume = format!("{VOLUMES}{name}");
    let holds = |volume: Option<&Value>| {
        volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == after["metadata"]["uid"])
    };
    if after["status"]["phase"] == before["status"]["phase"] {
        if before["status"]["phase"] == "Bound" {
            assert_eq!(after["status"]["capacity"], before["status"]["capacity"], "S31: {at}");
        }
        return;
    }
    match text(after, "/status/phase") {
        "Bound" => {
            let completed = annotation(after, BIND_COMPLETED).is_some();
            assert!(!name.is_empty() && completed, "S22: {at} is Bound to nothing");
            // A volume's claimRef has one UID, so this is S18 too.
            let held = server.states_since_seen(&volume).into_iter().any(holds);
            assert!(held, "S18 S22: {at} is Bound to what does not hold it");
        }
        "Lost" if !name.is_empty() => {
            let mut reads = server.reads.iter().filter(|read| read.path == volume);
            assert!(reads.any(|read| !holds(read.found.as_ref())), "S24: {volume} was not asked for");
            let lost = server.states_since_seen(&volume).into_iter().any(|volume| !holds(volume));
            assert!(lost, "S24: the volume of {at} is there");
        }
        "Lost" | "Pending" => {}
        other => panic!("the binder writes phase {other} to {at}"),
    }
}

fn provisioner(server: &Server, at: &str, before: &Value, after: &Value) {
    let (asked, asks) = (annotation(before, PROVISIONER), annotation(after, PROVISIONER));
    if asked == asks {
        return;
    }
    let migrated = asked.is_none_or(|asked| asked.starts_with("kubernetes.io/"));
    assert!(migrated, "S29: {at} is handed from {asked:?} to {asks:?}");
    let selected = annotation(after, SELECTED_NODE).is_some();
    assert!(
        selected || !is_delayed_from_the_start(server, after),
        "S28: {at} asks before a node is selected"
    );
}

/// Whether the claim a volume refers to is there, and not another volume's.
fn is_used(server: &Server, volume: &Value) -> bool {
    let claim = format!("{CLAIMS}{}", text(volume, "/spec/claimRef/name"));
    server.objects.get(&claim).is_some_and(|claim| {
        let named = text(claim, "/spec/volumeName");
        claim["metadata"]["uid"] == volume["spec"]["claimRef"]["uid"]
            && (named.is_empty() || named == text(volume, "/metadata/name"))
    })
}

/// The recycler pods of a volume.
fn pods_of<'a>(server: &'a Server, volume: &'a Value) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let meta = &volume["metadata"];
    server.objects.iter().filter(move |(path, pod)| {
        let owner = &pod["metadata"]["ownerReferences"][0];
        path.contains("/pods/")
            && owner["name"] == meta["name"]
            && (owner["uid"] == meta["uid"] || is_marked(pod))
    })
}

/// Whether a pod is of the daemon's making.
fn is_marked(pod: &Value) -> bool {
    pod["metadata"]["annotations"][CLAIM_UID].is_string()
}

/// S23: a pod is let go only on a volume that nobody uses, as a live read after its creation shows.
fn recycling(server: &Server, before: &Value, after: &Value) {
    assert!(
        after["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty),
        "the pod stays where it is"
    );
    let owner = &before["metadata"]["ownerReferences"][0];
    let path = format!("{VOLUMES}{}", owner["name"].as_str().unwrap());
    let made_after = server.made_after[before["metadata"]["uid"].as_str().unwrap()];
    // What was read once the pod was there shows a volume that may be emptied; that nobody uses it holds.
    let since = server.reads.get(made_after..).unwrap_or_default();
    let read = since.iter().rfind(|read| read.path == path);
    let volume = read.and_then(|read| read.found.as_ref());
    let volume = volume.unwrap_or_else(|| panic!("S23: {path} was not read after its pod was made"));
    assert_eq!(volume["metadata"]["uid"], owner["uid"], "S23: a pod of another volume");
    assert!(is_released(volume), "S23: {path} is emptied and not released");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Recycle", "S23: {path}");
    assert_eq!(
        before["metadata"]["annotations"][CLAIM_UID], volume["spec"]["claimRef"]["uid"],
        "S23: {path}"
    );
    if let Some(now) = server.objects.get(&path) {
        assert!(!is_used(server, now), "S23: {path} is emptied and used");
    }
    let source = before["spec"]["volumes"][0].as_object().unwrap();
    let scrubs = ["hostPath", "nfs"].iter().any(|key| {
        let same =
            |field: &str| source.get(*key).is_some_and(|own| own[field] == volume["spec"][*key][field]);
        same("path") && same("server")
    });
    assert!(scrubs, "{path} is not what {source:?} empties");
    // Another may have been asked for by an earlier process, and made just now.
    let known = pods_of(server, volume)
        .filter(|(path, _)| server.states_since_seen(path).into_iter().all(|pod| pod.is_some()));
    assert_eq!(known.count(), 1, "two pods empty {path}");
}

fn is_released(volume: &Value) -> bool {
    matches!(text(volume, "/status/phase"), "Released" | "Failed")
}

/// Checks a new object.
pub fn check_creation(server: &Server, kind: WriteKind, object: &Value) {
    match kind {
        WriteKind::CreatePod => {
            let gates = object["spec"]["schedulingGates"].as_array();
            assert!(gates.is_some_and(|gates| !gates.is_empty()), "S23: a pod runs before the proof");
        }
        WriteKind::CreateVolume => {
            let path = text(object, "/spec/hostPath/path");
            assert!(server.directories.contains(path), "{path} was not made");
            let name = text(object, "/metadata/name");
            assert_eq!(name, format!("pvc-{}", text(object, "/spec/claimRef/uid")), "name of the volume");
        }
        other => panic!("{other:?} creates"),
    }
}

/// Checks a deletion.
pub fn check_deletion(server: &Server, kind: WriteKind, at: &str) {
    if kind == WriteKind::DeletePod {
        let pod = &server.objects[at];
        let owner = &pod["metadata"]["ownerReferences"][0];
        let volume = server.objects.get(&format!("{VOLUMES}{}", text(owner, "/name")));
        let is_owned = volume.is_some_and(|volume| volume["metadata"]["uid"] == owner["uid"]);
        assert!(at.contains("/pods/recycler-for-") && (is_owned || is_marked(pod)), "{at} is not ours");
        return;
    }
    assert_eq!(kind, WriteKind::DeleteVolume);
    let volume = &server.objects[at];
    let path = text(volume, "/spec/hostPath/path");
    assert!(!path.is_empty() && volume["spec"]["csi"].is_null(), "S32: {at} is not ours to delete");
    assert!(is_released(volume) && !is_used(server, volume), "S23: {at} is deleted and used");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete", "S23: {at}");
    check_end(server, volume);
    assert!(server.reads.iter().any(|read| read.path == at), "S23: {at} was not read");
}

/// Checks that an object may go for good, by a deletion or with its last finalizer.
pub fn check_end(server: &Server, object: &Value) {
    let deletes = object["spec"]["persistentVolumeReclaimPolicy"] == "Delete";
    let stored = server.directories.contains(text(object, "/spec/hostPath/path"));
    assert!(!deletes || !stored, "{} goes before its storage", object["metadata"]["name"]);
}

/// Checks that a directory may be removed.
pub fn check_removal(server: &Server, path: &str) {
    for (at, volume) in server.objects.iter().filter(|(at, _)| at.starts_with(VOLUMES)) {
        if text(volume, "/spec/hostPath/path") == path {
            assert!(
                is_released(volume) && !is_used(server, volume),
                "S23: the data of {at} is deleted and used"
            );
            assert!(server.reads.iter().any(|read| read.path == *at), "S23: {at} was not read");
            assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete", "S23: {at}");
        }
    }
}

/// What must hold once nothing is left to do (L1, L2, L10 to L12).
///
/// # Errors
/// What does not.
pub fn settled(server: &Server) -> Result<(), String> {
    let claims = || server.objects.iter().filter(|(path, _)| path.starts_with(CLAIMS));
    let volumes = || server.objects.iter().filter(|(path, _)| path.starts_with(VOLUMES));
    let claim_by_uid = |uid: &str| claims().find(|(_, claim)| text(claim, "/metadata/uid") == uid);
    for (path, volume) in volumes() {
        let uid = text(volume, "/spec/claimRef/uid");
        let phase = text(volume, "/status/phase");
        let recyclable = volume["spec"]["hostPath"].is_object();
        if recyclable && volume["spec"]["persistentVolumeReclaimPolicy"] == "Recycle" && is_released(volume) {
            return Err(format!("{path} is {phase} and not recycled"));
        }
        let name = text(volume, "/metadata/name");
        if uid.is_empty() {
            if phase != "Available" {
                return Err(format!("{path} belongs to nobody and is {phase}"));
            }
        } else if let Some((of, claim)) = claim_by_uid(uid) {
            let named = text(claim, "/spec/volumeName");
            let fits = named == name && phase == "Bound" && claim["status"]["phase"] == "Bound";
            let unfit = named.is_empty() || named == name;
            let stuck = unfit && is_stuck(claim, volume);
            if !(fits || stuck || is_parked(volume, phase)) {
                return Err(format!("L12: {path} ({phase}) and {of} are neither bound nor apart"));
            }
        } else if !matches!(phase, "Released" | "Failed") {
            return Err(format!("L11: the claim of {path} is gone, and it is {phase}"));
        }
    }
    for (path, claim) in claims() {
        let phase = text(claim, "/status/phase");
        let name = text(claim, "/spec/volumeName");
        // Upstream never corrects the phase of a claim that waits for a provisioner (pv-binder §2.1.A-4c).
        if phase == "Bound" && !name.is_empty() {
            let holder = server.objects.get(&format!("{VOLUMES}{name}"));
            if holder.is_none_or(|volume| volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"]) {
                return Err(format!("S22: {path} is Bound to {name:?}, which does not hold it"));
            }
        }
        let open = name.is_empty() && annotation(claim, BIND_COMPLETED).is_none();
        let held = volumes().any(|(_, volume)| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
        if open && !held && !is_delayed(server, claim) {
            let free = volumes().find(|(_, volume)| {
                text(volume, "/status/phase") == "Available"
                    && volume["spec"]["claimRef"].is_null()
                    && !is_stuck(claim, volume)
            });
            if let Some((volume, _)) = free {
                return Err(format!("L1: {path} waits although {volume} is free and fits"));
            }
        }
    }
    Ok(())
}

/// Whether a volume does not suit a claim. One of a finished size is enough here.
fn is_stuck(claim: &Value, volume: &Value) -> bool {
    let size = |object: &Value, pointer: &str| gibibytes(text(object, pointer)).unwrap_or_default();
    class_of(claim) != class_of(volume)
        || size(volume, "/spec/capacity/storage") < size(claim, "/spec/resources/requests/storage")
}

/// Whether a volume waits for whoever deletes it, or for an administrator.
fn is_parked(volume: &Value, phase: &str) -> bool {
    matches!(phase, "Released" | "Failed") || !volume["metadata"]["deletionTimestamp"].is_null()
}
