//! What a single write of the binder must not break (safety.md, S18 to S35), by what a history knows: what had been seen
//! and read, and which pods empty volumes.
//!
//! In: the server before the write, the object before and after. A broken promise panics. The promises that stories check
//! as well are in [`test_support::promises`]; nothing here shares code with the binder.

use mooring::binder::calls::WriteKind;
use serde_json::Value;
use test_support::promises::bindings::{self, Kind, Known, Write, class_of};

use crate::server::{CLAIM_UID, CLAIMS, CLASSES, DRIVERS, Server, VOLUMES, text};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation: the server's revision when the object was made.
pub const MADE: &str = "made";

/// Checks one write: what it may change at all, and what a history knows of recycler pods.
pub fn check(server: &Server, kind: WriteKind, at: &str, before: &Value, after: &Value) {
    let (of, name) = kind_and_name(at);
    let broken = bindings::broken(server, Write { kind: of, name: &name, before, after });
    assert!(broken.is_empty(), "{at}: {broken:?}");
    match of {
        Kind::Pod if kind == WriteKind::StartPod => recycling(server, before, after),
        Kind::Volume => emptied_by_no_pod(server, at, before, after),
        Kind::Pod | Kind::Claim | Kind::Class | Kind::Driver => {}
    }
}

/// S23: a volume that a pod empties is neither given to a claim nor freed.
fn emptied_by_no_pod(server: &Server, at: &str, before: &Value, after: &Value) {
    let (from, to) = (text(before, "/spec/claimRef/uid"), text(after, "/spec/claimRef/uid"));
    if from == to {
        return;
    }
    // A pod that an earlier process asked for may have been made just now; it does not run yet.
    let is_known = |path: &String| server.states_since_seen(path).into_iter().all(|pod| pod.is_some());
    let is_emptied = pods_of(server, before).any(|(path, _)| to.is_empty() || is_known(path));
    assert!(!is_emptied, "S23: {at} changes hands while a pod empties it");
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

fn kind_and_name(path: &str) -> (Kind, String) {
    let of = |kind, begin: &str| Some((kind, path.strip_prefix(begin)?.to_owned()));
    of(Kind::Volume, VOLUMES)
        .or_else(|| of(Kind::Class, CLASSES))
        .or_else(|| of(Kind::Driver, DRIVERS))
        .or_else(|| path.strip_prefix(CLAIMS).map(|name| (Kind::Claim, format!("default/{name}"))))
        .unwrap_or_else(|| (Kind::Pod, path.to_owned()))
}

fn path_of(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Volume => format!("{VOLUMES}{name}"),
        Kind::Class => format!("{CLASSES}{name}"),
        Kind::Driver => format!("{DRIVERS}{name}"),
        Kind::Claim => format!("{CLAIMS}{}", name.strip_prefix("default/").unwrap_or(name)),
        Kind::Pod => name.to_owned(),
    }
}

impl Known for Server {
    fn all(&self, kind: Kind) -> Vec<(String, &Value)> {
        let named = self.store.objects.iter().map(|(path, object)| (kind_and_name(path), object));
        named.filter(|((of, _), _)| *of == kind).map(|((_, name), object)| (name, object)).collect()
    }

    fn states(&self, kind: Kind, name: &str) -> Vec<Option<&Value>> {
        self.states_since_seen(&path_of(kind, name))
    }

    fn reads(&self, kind: Kind, name: &str) -> Option<Vec<Option<&Value>>> {
        let path = path_of(kind, name);
        Some(self.reads.iter().filter(|read| read.path == path).map(|read| read.found.as_ref()).collect())
    }

    fn has_reserved(&self, volume: &str) -> bool {
        self.reserved.contains(&path_of(Kind::Volume, volume))
    }

    fn is_emptied(&self, volume: &Value) -> bool {
        let uids = (text(volume, "/metadata/uid").to_owned(), text(volume, "/spec/claimRef/uid").to_owned());
        volume["spec"]["persistentVolumeReclaimPolicy"] == "Recycle" && self.emptied.contains(&uids)
    }

    /// From the beginning: a class that came later, while the claim was being looked at, need not be known.
    fn is_delayed(&self, claim: &Value) -> bool {
        let class = self.store.objects.get(&path_of(Kind::Class, class_of(claim)));
        let made =
            |object: &Value| annotation(object, MADE).and_then(|made| made.parse::<u64>().ok()).unwrap_or(0);
        is_delayed(self, claim) && class.is_none_or(|class| made(class) <= made(claim))
    }
}

fn is_delayed(server: &Server, claim: &Value) -> bool {
    let class = server.store.objects.get(&path_of(Kind::Class, class_of(claim)));
    class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer")
}

/// Whether the claim a volume refers to is there, and not another volume's.
fn is_used(server: &Server, volume: &Value) -> bool {
    let claim = format!("{CLAIMS}{}", text(volume, "/spec/claimRef/name"));
    server.store.objects.get(&claim).is_some_and(|claim| {
        let named = text(claim, "/spec/volumeName");
        let goes = !volume["metadata"]["deletionTimestamp"].is_null()
            && volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"].is_string()
            && text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete";
        claim["metadata"]["uid"] == volume["spec"]["claimRef"]["uid"]
            && (named == text(volume, "/metadata/name") || (named.is_empty() && !goes))
    })
}

/// The recycler pods of a volume.
fn pods_of<'a>(server: &'a Server, volume: &'a Value) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let meta = &volume["metadata"];
    server.store.objects.iter().filter(move |(path, pod)| {
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
    if let Some(now) = server.store.objects.get(&path) {
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
        // Its gates the request has to have.
        WriteKind::CreatePod => {}
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
        let pod = &server.store.objects[at];
        let owner = &pod["metadata"]["ownerReferences"][0];
        let volume = server.store.objects.get(&format!("{VOLUMES}{}", text(owner, "/name")));
        let is_owned = volume.is_some_and(|volume| volume["metadata"]["uid"] == owner["uid"]);
        // One that is called as kube-controller-manager calls the pod of a volume that is about to be emptied.
        let named = at.split_once("/pods/recycler-for-").map_or("", |(_, name)| name);
        let named = server.store.objects.get(&format!("{VOLUMES}{named}")).filter(|_| owner.is_null());
        let is_of_kcm = named.is_some_and(|volume| {
            is_released(volume) && volume["spec"]["persistentVolumeReclaimPolicy"] == "Recycle"
        });
        let is_ours = at.contains("/pods/recycler-for-") && (is_owned || is_marked(pod));
        assert!(is_ours || is_of_kcm, "{at} is not ours");
        return;
    }
    assert_eq!(kind, WriteKind::DeleteVolume);
    let volume = &server.store.objects[at];
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
    for (at, volume) in server.store.objects.iter().filter(|(at, _)| at.starts_with(VOLUMES)) {
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
    let claims = || server.store.objects.iter().filter(|(path, _)| path.starts_with(CLAIMS));
    let volumes = || server.store.objects.iter().filter(|(path, _)| path.starts_with(VOLUMES));
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
            let holder = server.store.objects.get(&format!("{VOLUMES}{name}"));
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

fn gibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("Gi")?.parse().ok()
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
