//! The promises about a write of the binder to a volume or claim: S18 to S34; and of the expander to a claim: S51.
//!
//! In: the object before and after, and the knowledge of its writer. Out: the promises that the write breaks. A story knows
//! the objects at the time of the write. A history also knows what the writer had seen and read by then, and so the
//! possible basis of a decision.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{annotation, quantity::billionths, text};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const FINALIZERS: [&str; 2] =
    ["kubernetes.io/pv-controller", "external-provisioner.volume.kubernetes.io/finalizer"];

/// What of a volume is the binder's, and what the server adds to it; a path that ends with `/` is for all below it.
const OF_VOLUME: [&str; 15] = [
    "/metadata/resourceVersion",
    "/metadata/managedFields",
    "/metadata/finalizers",
    "/metadata/annotations/pv.kubernetes.io/bound-by-controller",
    "/metadata/annotations/pv.kubernetes.io/migrated-to",
    "/spec/claimRef/kind",
    "/spec/claimRef/apiVersion",
    "/spec/claimRef/namespace",
    "/spec/claimRef/name",
    "/spec/claimRef/uid",
    "/spec/claimRef/resourceVersion",
    "/spec/claimRef/fieldPath",
    "/status/phase",
    "/status/message",
    "/status/lastPhaseTransitionTime",
];

/// The same of a claim.
const OF_CLAIM: [&str; 14] = [
    "/metadata/resourceVersion",
    "/metadata/managedFields",
    "/metadata/annotations/pv.kubernetes.io/bind-completed",
    "/metadata/annotations/pv.kubernetes.io/bound-by-controller",
    "/metadata/annotations/pv.kubernetes.io/migrated-to",
    "/metadata/annotations/volume.kubernetes.io/selected-node",
    "/metadata/annotations/volume.kubernetes.io/storage-provisioner",
    "/metadata/annotations/volume.beta.kubernetes.io/storage-provisioner",
    "/spec/volumeName",
    "/spec/storageClassName",
    "/status/phase",
    "/status/accessModes",
    "/status/capacity/",
    "/status/currentVolumeAttributesClassName",
];

/// The same that is the expander's.
const OF_EXPANDED_CLAIM: [&str; 3] = [
    "/metadata/resourceVersion",
    "/metadata/managedFields",
    "/metadata/annotations/volume.kubernetes.io/storage-resizer",
];

/// The same of a recycler pod.
const OF_POD: [&str; 3] = ["/metadata/resourceVersion", "/metadata/managedFields", "/spec/schedulingGates"];

/// Kinds that the binder writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Volume,
    /// Named with its namespace: `default/data`.
    Claim,
    Class,
    Driver,
    Pod,
}

/// What a writer could know.
pub trait Known {
    /// All objects of a kind as they are, by name.
    fn all(&self, kind: Kind) -> Vec<(String, &Value)>;

    /// The states of an object on which the decision may rest, the present one first.
    fn states(&self, kind: Kind, name: &str) -> Vec<Option<&Value>>;

    /// What live reads of an object found before the write; none where reads are on no record.
    fn reads(&self, kind: Kind, name: &str) -> Option<Vec<Option<&Value>>>;

    /// Whether a volume was made for its claim so lately that the writer may not have seen it.
    fn is_new(&self, _volume: &str) -> bool {
        false
    }

    /// Whether a volume's reservation is the writer's own work.
    fn has_reserved(&self, _volume: &str) -> bool {
        false
    }

    /// Whether a claim that names a volume was Bound to it. Where that is on no record, its own phase has to say so: that of
    /// the volume does not say whose it was.
    fn had(&self, _volume: &Value, claim: &Value) -> bool {
        text(claim, "/status/phase") == "Bound"
    }

    /// Whether the data of a volume's last claim is gone.
    fn is_emptied(&self, volume: &Value) -> bool {
        text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle"
    }

    /// Whether the class of a claim leaves the choice of a volume to the scheduler.
    fn is_delayed(&self, claim: &Value) -> bool {
        let class = self.states(Kind::Class, class_of(claim)).first().copied().flatten();
        class.is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer")
    }
}

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub before: &'a Value,
    pub after: &'a Value,
}

/// The promises that a write breaks.
pub fn broken(known: &impl Known, write: Write<'_>) -> Vec<String> {
    let is_expansion = write.kind == Kind::Claim
        && annotation(write.before, STORAGE_RESIZER) != annotation(write.after, STORAGE_RESIZER);
    let mut broken: Vec<String> = match write.kind {
        Kind::Claim if is_expansion => of_expansion(known, write),
        Kind::Volume => of_volume(known, write),
        Kind::Claim => of_claim(known, write),
        Kind::Class | Kind::Driver | Kind::Pod => Vec::new(),
    };
    let allowed = match write.kind {
        Kind::Volume => &OF_VOLUME[..],
        Kind::Claim if is_expansion => &OF_EXPANDED_CLAIM,
        Kind::Claim => &OF_CLAIM,
        Kind::Class | Kind::Driver => &[],
        Kind::Pod => &OF_POD,
    };
    let mut changed = Vec::new();
    differences("", write.before, write.after, &mut changed);
    let is_allowed = |pointer: &&String| {
        let is_it = |allowed: &&str| {
            pointer.as_str() == *allowed || allowed.ends_with('/') && pointer.starts_with(*allowed)
        };
        allowed.iter().any(is_it)
    };
    // Where the protection of claims is switched on, it puts back its own finalizer, and takes it off.
    let of_protection = |pointer: &&String| {
        let others = |claim: &Value| {
            let all = claim["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            all.into_iter().filter(|name| name != "kubernetes.io/pvc-protection").collect::<Vec<_>>()
        };
        write.kind == Kind::Claim
            && pointer.starts_with("/metadata/finalizers")
            && others(write.before) == others(write.after)
    };
    let others = changed.iter().filter(|pointer| !is_allowed(pointer) && !of_protection(pointer));
    let rule = if is_expansion { "S51" } else { "S34" };
    broken.extend(others.map(|pointer| format!("{rule} {pointer} is not the daemon's to write")));
    broken
}

/// S18: whether several claims that are Bound name the volume of one that it does not name. A claim that it names is bound
/// rightly: people, as a volume populator, have given it that of another, which is Bound until the daemon has seen that.
pub fn is_shared<'a>(claim: &Value, volume: Option<&Value>, claims: impl Iterator<Item = &'a Value>) -> bool {
    let name = text(claim, "/spec/volumeName");
    let is_named = volume.is_some_and(|it| text(it, "/spec/claimRef/uid") == text(claim, "/metadata/uid"));
    let has_it =
        |claim: &&Value| text(claim, "/status/phase") == "Bound" && text(claim, "/spec/volumeName") == name;
    !is_named && !name.is_empty() && claims.filter(has_it).count() > 1
}

/// The class of a claim or volume.
pub fn class_of(object: &Value) -> &str {
    annotation(object, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| text(object, "/spec/storageClassName"))
}

fn is_parked(volume: &Value) -> bool {
    matches!(text(volume, "/status/phase"), "Released" | "Failed")
}

/// What is collected.
#[derive(Default)]
struct Broken(Vec<String>);

impl Broken {
    fn unless(&mut self, holds: bool, rule: impl Into<String>) {
        if !holds {
            self.0.push(rule.into());
        }
    }
}

fn of_volume(known: &impl Known, write: Write<'_>) -> Vec<String> {
    let Write { name, before, after, .. } = write;
    let mut broken = Broken::default();
    let (held, holds) = (text(before, "/spec/claimRef/uid"), text(after, "/spec/claimRef/uid"));
    let (before_ref, after_ref) = (&before["spec"]["claimRef"], &after["spec"]["claimRef"]);
    if held != holds && !holds.is_empty() {
        for (other, _) in known.all(Kind::Volume).into_iter().filter(|(other, _)| other != name) {
            let other = other.as_str();
            let has_it = |volume: Option<&Value>| {
                volume.is_some_and(|it| text(it, "/spec/claimRef/uid") == holds && !is_parked(it))
            };
            let states = known.states(Kind::Volume, other);
            let is_so = states.first().copied().is_some_and(has_it);
            // What others reserve at the same time cannot be known.
            let is_known =
                known.has_reserved(other) || states.into_iter().all(has_it) && !known.is_new(other);
            broken.unless(!is_so || !is_known, format!("S19 the claim has {other} already"));
        }
        broken.unless(held.is_empty(), "S23 a volume is taken from one claim and given to another");
        if before_ref.is_null() {
            chosen(known, write, &mut broken);
        }
    }
    let (was, is) = (text(before, "/status/phase"), text(after, "/status/phase"));
    let is_free = before_ref.is_null() || points_elsewhere(known, name, before_ref);
    if is_free && (before_ref != after_ref || was != is && is == "Available") {
        owned(known, write, &mut broken);
    }
    let is_cleared = !before_ref.is_null() && after_ref.is_null();
    let is_own = annotation(before, BOUND_BY_CONTROLLER).is_some();
    broken.unless(!is_cleared || is_own, "S26 a user's reservation is removed");
    let key = |reference: &Value| format!("{}/{}", text(reference, "/namespace"), text(reference, "/name"));
    let named = |reference: &Value| !text(reference, "/name").is_empty();
    let is_moved = named(before_ref) && named(after_ref) && key(before_ref) != key(after_ref);
    let claims = known.states(Kind::Claim, &key(after_ref));
    // Anybody can make a claim that names a volume, with any annotation; only one that had it is its owner.
    let is_its = claims
        .into_iter()
        .flatten()
        .any(|claim| text(claim, "/spec/volumeName") == name && known.had(before, claim));
    broken.unless(!is_moved || is_its, "S26 a user's reservation is given to another claim");
    // People may have freed it and left the phase to us; then the reference is our own.
    let is_freed = held != holds
        && holds.is_empty()
        && is_parked(before)
        && before["metadata"]["deletionTimestamp"].is_null()
        && !known.has_reserved(name);
    broken.unless(!is_freed || known.is_emptied(before), "S25 a volume that is kept is freed");
    match is {
        _ if was == is => {}
        "Bound" => broken.unless(!holds.is_empty(), "S22 a volume is Bound without a claim's UID"),
        "Available" => broken.unless(holds.is_empty(), "S25 a volume of a claim becomes Available"),
        "Released" | "Failed" => {
            let key = key(after_ref);
            // A surplus volume of a claim that is bound to another is released, and a provisioned one that is being deleted
            // and that its claim does not name yet.
            let goes = !before["metadata"]["deletionTimestamp"].is_null()
                && annotation(before, "pv.kubernetes.io/provisioned-by").is_some()
                && text(before, "/spec/persistentVolumeReclaimPolicy") == "Delete";
            let lives = |claim: Option<&Value>| {
                claim.is_some_and(|claim| {
                    let named = text(claim, "/spec/volumeName");
                    let is_its = named == name || (named.is_empty() && !goes);
                    claim["metadata"]["uid"] == after_ref["uid"] && is_its
                })
            };
            let now = known.states(Kind::Claim, &key).first().copied().flatten();
            broken.unless(!lives(now), format!("S23 a volume becomes {is} although its claim lives"));
            if let Some(reads) = known.reads(Kind::Claim, &key) {
                let is_proven = reads.into_iter().any(|found| !lives(found));
                broken.unless(
                    is_proven,
                    format!("S23 a volume becomes {is}, and no live read found its claim gone"),
                );
            }
            let is_ours = is == "Released" || after["spec"]["csi"].is_null();
            broken.unless(is_ours, "S32 a volume of a driver becomes Failed");
        }
        other => broken.unless(false, format!("S34 {other:?} is no phase of volumes")),
    }
    broken.unless(others_finalizers(before) == others_finalizers(after), "S33 a finalizer of others changes");
    broken.0
}

/// Whether a claimRef points at a claim, by UID or by name alone, that has another volume.
fn points_elsewhere(known: &impl Known, volume: &str, reference: &Value) -> bool {
    let key = format!("{}/{}", text(reference, "/namespace"), text(reference, "/name"));
    let has_another = |claim: Option<&Value>| {
        claim.is_some_and(|claim| {
            let (named, uid) = (text(claim, "/spec/volumeName"), text(claim, "/metadata/uid"));
            !named.is_empty() && named != volume && ["", uid].contains(&text(reference, "/uid"))
        })
    };
    known.states(Kind::Claim, &key).into_iter().all(has_another)
}

/// S45: a volume without claimRef, or with one that points at a claim which has another, is taken back by the claim that
/// is Bound to it, and is free for no other.
fn owned(known: &impl Known, write: Write<'_>, broken: &mut Broken) {
    let is_owner = |claim: Option<&Value>| {
        claim.is_some_and(|claim| {
            text(claim, "/spec/volumeName") == write.name
                && text(claim, "/status/phase") == "Bound"
                && annotation(claim, BIND_COMPLETED).is_some()
        })
    };
    let claims = known.all(Kind::Claim);
    let owners: Vec<&(String, &Value)> =
        claims.iter().filter(|(name, _)| known.states(Kind::Claim, name).into_iter().all(is_owner)).collect();
    let reference = &write.after["spec"]["claimRef"];
    let key = format!("{}/{}", text(reference, "/namespace"), text(reference, "/name"));
    let is_its = |name: &String, claim: &Value| {
        let uid = &reference["uid"];
        *uid == claim["metadata"]["uid"] || uid.is_null() && key == *name
    };
    let is_taken_back = owners.iter().any(|(name, claim)| is_its(name, claim));
    broken.unless(owners.is_empty() || is_taken_back, "S45 a volume of a Bound claim is another's, or free");
}

/// S27, S28: the volume was the binder's to choose, or the claim names it; and it suits.
fn chosen(known: &impl Known, write: Write<'_>, broken: &mut Broken) {
    let Write { before: volume, after, .. } = write;
    let reference = &after["spec"]["claimRef"];
    let key = format!("{}/{}", text(reference, "/namespace"), text(reference, "/name"));
    let claim = known.states(Kind::Claim, &key).first().copied().flatten();
    let Some(claim) = claim.filter(|claim| claim["metadata"]["uid"] == reference["uid"]) else {
        // It went away meanwhile; the volume will be released.
        return;
    };
    // It was bound to this one, whatever has become of either since (S45). Controllers alone write the phase.
    let is_bound = ["Bound", "Lost"].contains(&text(claim, "/status/phase"))
        && text(claim, "/spec/volumeName") == write.name;
    if annotation(claim, BIND_COMPLETED).is_some() || is_bound {
        return;
    }
    broken.unless(
        volume["metadata"]["deletionTimestamp"].is_null(),
        "S27 a volume is taken that is being deleted",
    );
    broken.unless(class_of(volume) == class_of(claim), "S27 a volume of another class is taken");
    let mode = |object| match text(object, "/spec/volumeMode") {
        "" => "Filesystem",
        mode => mode,
    };
    broken.unless(mode(volume) == mode(claim), "S27 a volume of another volumeMode is taken");
    let attributes = |object| text(object, "/spec/volumeAttributesClassName");
    broken
        .unless(attributes(volume) == attributes(claim), "S27 a volume of another attributes class is taken");
    let modes = |object: &Value| -> BTreeSet<String> {
        serde_json::from_value(object["spec"]["accessModes"].clone()).unwrap_or_default()
    };
    broken.unless(modes(volume).is_superset(&modes(claim)), "S27 a volume without an access mode is taken");
    let (size, request) =
        (text(volume, "/spec/capacity/storage"), text(claim, "/spec/resources/requests/storage"));
    if let (Some(size), Some(request)) = (billionths(size), billionths(request)) {
        broken.unless(size >= request, "S27 a volume that is too small is taken");
    }
    if text(claim, "/spec/volumeName").is_empty() {
        broken.unless(text(volume, "/status/phase") == "Available", "S27 a volume that is not free is taken");
        broken.unless(!known.is_delayed(claim), "S28 a volume is taken that is the scheduler's to choose");
    }
}

fn of_claim(known: &impl Known, write: Write<'_>) -> Vec<String> {
    let Write { before, after, .. } = write;
    let mut broken = Broken::default();
    let uid = &after["metadata"]["uid"];
    let (named, name) = (text(before, "/spec/volumeName"), text(after, "/spec/volumeName"));
    let states = known.states(Kind::Volume, name);
    let refers = |volume: &Value| volume["spec"]["claimRef"]["uid"] == *uid;
    let holds = |volume: Option<&Value>| volume.is_some_and(refers);
    if named != name {
        broken.unless(named.is_empty(), "S20 a claim's volumeName has changed");
        // The volume may have gone meanwhile; what is written was true when it was seen.
        let mut all = states.iter().flatten();
        let is_kept = all.any(|volume| refers(volume) && text(volume, "/status/phase") == "Bound");
        broken.unless(is_kept, "S21 a claim names a volume that does not name it, or is not protected yet");
    }
    let (had, has) = (&before["spec"]["storageClassName"], &after["spec"]["storageClassName"]);
    if had != has {
        let is_default =
            |class: &Value| DEFAULT_CLASS.iter().any(|key| annotation(class, key) == Some("true"));
        let classes = known.states(Kind::Class, has.as_str().unwrap_or_default());
        let is_right = had.is_null() && classes.into_iter().flatten().any(is_default);
        broken.unless(is_right, "S30 a claim gets a class that is not the default, or a second one");
    }
    let (was, is) = (text(before, "/status/phase"), text(after, "/status/phase"));
    match is {
        _ if was == is => {
            let is_same = before["status"]["capacity"] == after["status"]["capacity"];
            broken.unless(
                was != "Bound" || is_same,
                "S31 the capacity of a bound claim changes without its phase",
            );
        }
        "Bound" => {
            let is_complete = annotation(after, BIND_COMPLETED).is_some() && !name.is_empty();
            let is_held = states.iter().copied().any(holds);
            // A volume's claimRef has one UID, so this is S18 too.
            let rule = "S22 a claim is Bound without volume, annotation or the volume's consent";
            broken.unless(is_complete && is_held, rule);
        }
        "Lost" if !name.is_empty() => {
            let is_lost = states.iter().any(|volume| !holds(*volume));
            broken.unless(is_lost, "S24 a claim is Lost although its volume is there and names it");
            if let Some(reads) = known.reads(Kind::Volume, name) {
                let is_proven = reads.into_iter().any(|found| !holds(found));
                broken.unless(
                    is_proven,
                    "S24 a claim is Lost, and no live read found its volume gone or another's",
                );
            }
        }
        "Lost" | "Pending" => {}
        other => broken.unless(false, format!("S34 {other:?} is no phase of claims")),
    }
    let (asked, asks) = (annotation(before, PROVISIONER), annotation(after, PROVISIONER));
    if asked != asks {
        // One that is not installed has not begun.
        let may_begin =
            |asked: &str| known.states(Kind::Driver, asked).into_iter().any(|driver| driver.is_some());
        let is_first = asked.is_none_or(|asked| asked.starts_with("kubernetes.io/") || !may_begin(asked));
        broken.unless(is_first, "S29 a claim is handed from one provisioner to another");
        let is_selected = annotation(after, SELECTED_NODE).is_some();
        let rule = "S28 a provisioner is asked before a node is selected";
        broken.unless(is_selected || !known.is_delayed(after), rule);
    }
    broken.0
}

/// S51: the resizer is named of a Bound claim whose volume names it, and has an in-tree source.
fn of_expansion(known: &impl Known, write: Write<'_>) -> Vec<String> {
    let Write { before, after, .. } = write;
    let mut broken = Broken::default();
    let volumes = known.states(Kind::Volume, text(before, "/spec/volumeName"));
    let is_its = |volume: &&Value| {
        let (csi, reference) = (&volume["spec"]["csi"], &volume["spec"]["claimRef"]);
        csi.is_null() && reference["uid"] == before["metadata"]["uid"]
    };
    let is_bound = text(before, "/status/phase") == "Bound"
        && volumes.into_iter().flatten().any(|volume| is_its(&volume));
    broken.unless(is_bound, "S51 a resizer is named for a claim without in-tree volume of its own");
    broken.unless(annotation(after, STORAGE_RESIZER).is_some(), "S51 a resizer is taken from a claim");
    broken.0
}

/// Of the finalizers only the two of deletion protection change, and no one else's order.
fn others_finalizers(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // Of a volume that is being deleted the protection controllers take theirs off, where they are switched on.
    let is_going = !object["metadata"]["deletionTimestamp"].is_null();
    let is_of_protection = |name: &&str| is_going && *name == "kubernetes.io/pv-protection";
    all.filter(|name| !FINALIZERS.contains(name) && !is_of_protection(name)).collect()
}

/// Where two objects differ, as paths; keys with slashes are not escaped.
fn differences(at: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    let none = Map::new();
    let (one, other) = match (before, after) {
        (Value::Object(one), Value::Object(other)) => (one, other),
        (Value::Object(one), Value::Null) => (one, &none),
        (Value::Null, Value::Object(other)) => (&none, other),
        _ => {
            if before != after {
                found.push(at.to_owned());
            }
            return;
        }
    };
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let side = |side: &Map<String, Value>| side.get(key).cloned().unwrap_or_default();
        differences(&format!("{at}/{key}"), &side(one), &side(other), found);
    }
}

#[cfg(test)]
mod tests;
