//! Creates and updates: from a body to a committed object.
//!
//! In: the store, a place, the object that the client sends. Out: the committed object, or a refusal.
//! The steps have the order of the real server, because it decides which error a request with two faults
//! gets.

use std::sync::Arc;

use serde_json::Value;

use super::{
    clock::Clock,
    json,
    kinds::{kind::Kind, namespace},
    managed::{self, Writer},
    request::{FieldValidation, Place, WriteOptions, key},
    schema::{decode::decode, types},
    status::{Causes, Refusal},
    store::{Object, Store},
    validate,
};

/// Letters of generated names: no vowels, so no words.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix of a generated name.
const NAME_PREFIX_LENGTH: usize = 58;
/// Generated letters.
const NAME_SUFFIX_LENGTH: usize = 5;

/// An object that a write led to.
#[derive(Debug)]
pub struct Written {
    /// The object.
    pub object: Arc<Object>,
    /// Was it created?
    pub is_new: bool,
}

/// Reads the object of a body and brings it into its type's shape.
///
/// # Errors
/// It is not JSON, of another kind, of a wrong shape or, where that matters, has unknown fields.
pub fn read(
    kind: &Kind,
    body: &[u8],
    options: WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let object: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the body is not valid JSON: {error}")))?;
    if !object.is_object() {
        return Err(Refusal::bad_request("the body is not an object"));
    }
    let version = json::text(&object, "/apiVersion");
    let found = json::text(&object, "/kind");
    if (!version.is_empty() && version != kind.api_version()) || (!found.is_empty() && found != kind.kind) {
        return Err(Refusal::bad_request(format!(
            "{found} in version {version:?} cannot be handled as a {}",
            kind.kind
        )));
    }
    let refuse = |detail: &str| {
        let message =
            format!("{} in version \"v1\" cannot be handled as a {}: {detail}", kind.kind, kind.kind);
        Refusal::bad_request(message)
    };
    shape(kind, object, options, warnings).map_err(|detail| refuse(&detail))
}

/// Brings an object into its type's shape and fills in defaults.
///
/// # Errors
/// A value its field cannot hold, or an unknown field under strict validation.
pub fn shape(
    kind: &Kind,
    object: Value,
    options: WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Value, String> {
    let decoded = decode(types(), kind.type_name, object).map_err(|error| error.to_string())?;
    match options.validation {
        FieldValidation::Strict if !decoded.unknown.is_empty() => {
            let fields: Vec<String> =
                decoded.unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
            return Err(format!("strict decoding error: {}", fields.join(", ")));
        }
        FieldValidation::Warn => {
            for field in &decoded.unknown {
                warnings.push(format!("unknown field {field:?}"));
            }
        }
        _ => {}
    }
    let mut object = decoded.value;
    for unkept in ["/apiVersion", "/kind", "/metadata/managedFields", "/metadata/selfLink"] {
        json::remove(&mut object, unkept);
    }
    kind.rules.default(&mut object);
    Ok(object)
}

/// Gives the object the request's namespace.
///
/// # Errors
/// It names another one.
pub fn place_in_namespace(place: &Place, object: &mut Value) -> Result<(), Refusal> {
    if !place.kind.namespaced {
        json::remove(object, "/metadata/namespace");
        return Ok(());
    }
    let namespace = json::text(object, "/metadata/namespace");
    if !namespace.is_empty() && namespace != place.namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    json::set(object, "/metadata/namespace", place.namespace.clone());
    Ok(())
}

/// Takes out what the body of a POST has no say in. A PUT that creates keeps it, as upstream's does.
pub fn wipe_system_fields(object: &mut Value) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        json::remove(object, &format!("/metadata/{field}"));
    }
}

/// Creates an object.
///
/// # Errors
/// Admission, validation, or the name is taken.
pub fn create(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    mut object: Value,
    writer: &Writer,
) -> Result<Arc<Object>, Refusal> {
    let kind = place.kind;
    let now = clock.text();
    managed::note(kind, &Value::Null, &mut object, writer, &now);
    json::set(&mut object, "/metadata/creationTimestamp", now.clone());
    json::set(&mut object, "/metadata/uid", new_uid());
    let prefix = json::text(&object, "/metadata/generateName");
    if json::text(&object, "/metadata/name").is_empty() && !prefix.is_empty() {
        let name = generate_name(prefix);
        json::set(&mut object, "/metadata/name", name);
        // What is derived from the name could not be derived before.
        kind.rules.default(&mut object);
    }
    admit_into_namespace(store, place, &object)?;
    kind.rules.admit_create(&mut object, store)?;
    place_in_namespace(place, &mut object)?;
    kind.rules.prepare_create(&mut object, &now);

    let name = json::text(&object, "/metadata/name").to_owned();
    let mut causes = Causes::default();
    kind.rules.validate(&object, &mut causes);
    // Upstream's validation of events leaves metadata to the generic one, which comes later.
    if causes.0.is_empty() || kind.plural != "events" {
        validate::metadata(kind, &object, &mut causes);
    }
    if !causes.0.is_empty() {
        return Err(Refusal::invalid(kind, &name, causes));
    }
    let key = key(kind, &place.namespace, &name);
    // What is no number counts as none.
    let revision = json::remove(&mut object, "/metadata/resourceVersion");
    let revision = revision.as_ref().and_then(Value::as_str).and_then(|text| text.parse::<u64>().ok());
    if revision.is_some_and(|revision| revision > 0) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Refusal::plain(500, "", message));
    }
    if store.get(kind, &key).is_some() {
        return Err(Refusal::already_exists(kind, &name));
    }
    Ok(store.put(kind, &key, object))
}

/// Admission of the namespace's life: it has to exist and must not be on its way out.
// kube-apiserver: plugin/pkg/admission/namespace/lifecycle/admission.go, Admit.
fn admit_into_namespace(store: &Store, place: &Place, object: &Value) -> Result<(), Refusal> {
    if !place.kind.namespaced {
        return Ok(());
    }
    let Some(found) = store.get(&namespace::KIND, &place.namespace) else {
        return Err(Refusal::not_found(&namespace::KIND, &place.namespace));
    };
    if json::is_set(&found.value, "/metadata/deletionTimestamp") {
        let detail = format!(
            "unable to create new content in namespace {} because it is being terminated",
            place.namespace
        );
        let name = json::text(object, "/metadata/name");
        let message = format!("namespace {} is being terminated", place.namespace);
        let refusal = Refusal::forbidden(place.kind, name, &detail);
        return Err(refusal.with_cause("NamespaceTerminating", "metadata.namespace", &message));
    }
    Ok(())
}

/// Puts a new version of an object in the place of the one before.
///
/// # Errors
/// The revision is not the object's, or validation or admission say no.
// kube-apiserver: apiserver/pkg/registry/rest/update.go, BeforeUpdate.
pub fn replace(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    old: &Arc<Object>,
    mut new: Value,
    writer: &Writer,
) -> Result<Arc<Object>, Refusal> {
    let kind = place.kind;
    let is_status = place.subresource == "status";
    managed::note(kind, &old.value, &mut new, writer, &clock.text());
    place_in_namespace(place, &mut new)?;
    let revision = json::text(&new, "/metadata/resourceVersion");
    if revision.is_empty() || revision == "0" {
        if !kind.unconditional_update {
            let mut causes = Causes::default();
            causes.invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            return Err(Refusal::invalid_kind(kind.group, kind.plural, &place.name, causes));
        }
    } else {
        let Ok(revision) = revision.parse::<u64>() else {
            return Err(Refusal::plain(500, "", format!("invalid resource version {revision:?}")));
        };
        if revision != old.revision {
            return Err(Refusal::stale(kind, &place.name));
        }
    }
    json::set(&mut new, "/metadata/resourceVersion", old.revision.to_string());
    json::copy(&old.value, &mut new, "/metadata/generation");
    if is_status {
        kind.rules.prepare_status(&mut new, &old.value, &clock.text());
    } else {
        kind.rules.admit_update(&mut new, &old.value);
        kind.rules.prepare_update(&mut new, &old.value);
    }
    json::set_default(&mut new, "/metadata/uid", json::text(&old.value, "/metadata/uid"));
    json::copy(&old.value, &mut new, "/metadata/creationTimestamp");
    if json::is_set(&old.value, "/metadata/deletionTimestamp") {
        json::copy(&old.value, &mut new, "/metadata/deletionTimestamp");
    }
    if !json::is_set(&new, "/metadata/deletionGracePeriodSeconds") {
        json::copy(&old.value, &mut new, "/metadata/deletionGracePeriodSeconds");
    }
    check_update(place, &new, &old.value)?;
    kind.rules.review_update(&new, &old.value, store)?;
    if goes_away(kind, &new, &old.value) {
        store.delete(kind, &place.key());
        return Ok(Object::at(new, old.revision));
    }
    if managed::is_the_same(&new, &old.value) {
        return Ok(Arc::clone(old));
    }
    Ok(store.put(kind, &place.key(), new))
}

fn check_update(place: &Place, new: &Value, old: &Value) -> Result<(), Refusal> {
    let kind = place.kind;
    let mut causes = Causes::default();
    validate::metadata_update(new, old, &mut causes);
    validate::finalizers(kind, new, &mut causes);
    if place.subresource == "status" {
        kind.rules.validate_status(new, old, &mut causes);
    } else {
        kind.rules.validate(new, &mut causes);
        kind.rules.validate_update(new, old, &mut causes);
    }
    if causes.0.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid(kind, json::text(new, "/metadata/name"), causes))
}

/// Does the update take the last finalizer of an object that waits only for that?
// kube-apiserver: apiserver/pkg/registry/generic/registry/store.go, ShouldDeleteDuringUpdate.
fn goes_away(kind: &Kind, new: &Value, old: &Value) -> bool {
    json::list(new, "/metadata/finalizers").is_empty()
        && json::is_set(old, "/metadata/deletionTimestamp")
        && json::number(old, "/metadata/deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (*kind != namespace::KIND || json::list(new, "/spec/finalizers").is_empty())
}

/// Replaces an object by the one of a PUT, or creates it where its kind allows that.
///
/// # Errors
/// See [`replace`] and [`create`].
pub fn put(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    new: Value,
    writer: &Writer,
) -> Result<Written, Refusal> {
    check_name(place, &new)?;
    let mut placed = new.clone();
    place_in_namespace(place, &mut placed)?;
    let Some(old) = store.get(place.kind, &place.key()) else {
        let uid = json::text(&new, "/metadata/uid");
        if !place.kind.create_on_update || !place.subresource.is_empty() {
            return Err(Refusal::not_found(place.kind, &place.name));
        }
        if !uid.is_empty() {
            return Err(precondition_failed(place, "UID", uid, ""));
        }
        let mut new = new;
        json::remove(&mut new, "/metadata/resourceVersion");
        let object = create(store, clock, place, new, writer)?;
        return Ok(Written { object, is_new: true });
    };
    let (wanted, found) = (json::text(&new, "/metadata/uid"), json::text(&old.value, "/metadata/uid"));
    if !wanted.is_empty() && wanted != found {
        return Err(precondition_failed(place, "UID", wanted, found));
    }
    Ok(Written { object: replace(store, clock, place, &old, new, writer)?, is_new: false })
}

/// Checks that an object is the one the URL names.
///
/// # Errors
/// It has another name, or none.
pub fn check_name(place: &Place, object: &Value) -> Result<(), Refusal> {
    let name = json::text(object, "/metadata/name");
    if name == place.name {
        return Ok(());
    }
    Err(Refusal::bad_request(match name {
        "" => "name must be provided".to_owned(),
        name => {
            format!("the name of the object ({name}) does not match the name on the URL ({})", place.name)
        }
    }))
}

/// What the storage says of a precondition that does not hold.
pub(super) fn precondition_failed(place: &Place, what: &str, wanted: &str, found: &str) -> Refusal {
    let detail = format!(
        "StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
    );
    Refusal::conflict(place.kind, &place.name, &detail)
}

/// Assigns a pod to a node: what a scheduler's POST of a Binding does.
///
/// # Errors
/// The pod is gone, going or assigned already.
// kube-apiserver: pkg/registry/core/pod/storage/storage.go, BindingREST.
pub fn bind(store: &mut Store, clock: &Clock, place: &Place, binding: &Value) -> Result<(), Refusal> {
    let node = json::text(binding, "/target/name");
    if json::text(binding, "/metadata/name") != place.name {
        return Err(Refusal::bad_request("name in URL does not match name in Binding object"));
    }
    let kind = json::text(binding, "/target/kind");
    if node.is_empty() || !matches!(kind, "" | "Node") {
        // Upstream returns an untyped error here, which becomes a 500.
        return Err(Refusal::plain(500, "", "target: a node is required"));
    }
    let Some(pod) = store.get(place.kind, &place.key()) else {
        return Err(Refusal::not_found(place.kind, &place.name));
    };
    let refuse =
        |detail: String| Err(Refusal::conflict(place.kind, &place.name, &detail).naming("pods/binding"));
    let (uid, found) = (json::text(binding, "/metadata/uid"), json::text(&pod.value, "/metadata/uid"));
    if !uid.is_empty() && uid != found {
        return Err(precondition_failed(place, "UID", uid, found));
    }
    let revision = json::text(binding, "/metadata/resourceVersion");
    if !revision.is_empty() && revision != pod.revision.to_string() {
        return Err(Refusal::stale(place.kind, &place.name));
    }
    if json::is_set(&pod.value, "/metadata/deletionTimestamp") {
        return refuse(format!("pod {} is being deleted, cannot be assigned to a host", place.name));
    }
    let assigned = json::text(&pod.value, "/spec/nodeName");
    if !assigned.is_empty() {
        return refuse(format!("pod {} is already assigned to node {assigned:?}", place.name));
    }
    if !json::list(&pod.value, "/spec/schedulingGates").is_empty() {
        return refuse(format!("pod {} has non-empty .spec.schedulingGates", place.name));
    }
    let mut bound = pod.value.clone();
    json::set(&mut bound, "/spec/nodeName", node);
    json::remove(&mut bound, "/status/nominatedNodeName");
    for map in ["annotations", "labels"] {
        for (name, value) in json::map(binding, &format!("/metadata/{map}")).into_iter().flatten() {
            let name = name.replace('~', "~0").replace('/', "~1");
            json::set(&mut bound, &format!("/metadata/{map}/{name}"), value.clone());
        }
    }
    let mut conditions = json::list(&bound, "/status/conditions").to_vec();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    conditions.push(serde_json::json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": clock.text(),
    }));
    json::set(&mut bound, "/status/conditions", conditions);
    store.put(place.kind, &place.key(), bound);
    Ok(())
}

/// Makes the namespaces that are there from the start.
pub fn preset(store: &mut Store, clock: &Clock) {
    for name in namespace::PRESET {
        let mut object = serde_json::json!({
            "metadata": {"name": name, "uid": new_uid(), "creationTimestamp": clock.text()},
        });
        namespace::KIND.rules.default(&mut object);
        namespace::KIND.rules.prepare_create(&mut object, "");
        store.put(&namespace::KIND, name, object);
    }
}

fn generate_name(prefix: &str) -> String {
    let mut name: String = prefix.chars().take(NAME_PREFIX_LENGTH).collect();
    for _ in 0..NAME_SUFFIX_LENGTH {
        name.push(fastrand::choice(NAME_LETTERS).copied().map_or('x', char::from));
    }
    name
}

fn new_uid() -> String {
    // The version and the variant of a random UUID (RFC 9562).
    let bits = (fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let mut uid = String::with_capacity(36);
    for (index, digit) in hex.chars().enumerate() {
        if matches!(index, 8 | 12 | 16 | 20) {
            uid.push('-');
        }
        uid.push(digit);
    }
    uid
}
