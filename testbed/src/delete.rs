//! Deletes: at once, after a grace period, or when the finalizers are gone.
//!
//! In: the store, a place, DeleteOptions. Out: the object or a `Status`, as the kind answers. The
//! states between (deletionTimestamp, grace period, the two finalizers of garbage collection) are
//! written as upstream writes them, so that watches show the same sequence.

use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    clock::{Clock, seconds_text},
    json,
    kinds::namespace,
    request::{Place, Query},
    schema::{decode::decode, types},
    status::{Causes, Refusal, success},
    store::{Object, Store},
    write::precondition_failed,
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// How to delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    grace: Option<i64>,
    uid: Option<String>,
    revision: Option<String>,
    policy: Option<String>,
}

impl DeleteOptions {
    /// Reads them from the body or, without one, from the query.
    ///
    /// # Errors
    /// Options that cannot be read or are not supported.
    pub fn parse(body: &[u8], query: &Query) -> Result<Self, Refusal> {
        let options = if body.is_empty() {
            let mut options = json!({});
            if let Some(seconds) = query.number("gracePeriodSeconds")? {
                json::set(&mut options, "/gracePeriodSeconds", seconds);
            }
            if !query.get("propagationPolicy").is_empty() {
                json::set(&mut options, "/propagationPolicy", query.get("propagationPolicy"));
            }
            if let Some(flag) = query.flag("orphanDependents")? {
                json::set(&mut options, "/orphanDependents", flag);
            }
            options
        } else {
            serde_json::from_slice(body).map_err(|error| Refusal::bad_request(error.to_string()))?
        };
        let kind = json::text(&options, "/kind");
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(Refusal::bad_request(format!("expected DeleteOptions, got {kind}")));
        }
        let options = decode(types(), "meta/v1.DeleteOptions", options)
            .map_err(|error| Refusal::bad_request(error.to_string()))?
            .value;
        if json::is_set(&options, "/dryRun") || !query.get("dryRun").is_empty() {
            return Err(Refusal::not_implemented("dryRun"));
        }
        let orphans = options.pointer("/orphanDependents").and_then(Value::as_bool);
        let text = |path: &str| options.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let mut policy = text("/propagationPolicy");
        let mut causes = Causes::default();
        if policy.is_some() && orphans.is_some() {
            causes.invalid(
                "propagationPolicy",
                &policy.clone().into(),
                "orphanDependents and deletionPropagation cannot be both set",
            );
        }
        let policies = ["Foreground", "Background", "Orphan"];
        if let Some(policy) = policy.as_deref().filter(|policy| !policies.contains(policy)) {
            causes.not_supported("propagationPolicy", &policy.into(), &policies);
        }
        if !causes.0.is_empty() {
            return Err(Refusal::invalid_kind("meta.k8s.io", "DeleteOptions", "", causes));
        }
        if let Some(orphans) = orphans {
            policy = Some(if orphans { "Orphan" } else { "Background" }.to_owned());
        }
        Ok(Self {
            grace: json::number(&options, "/gracePeriodSeconds")
                .map(|seconds| if seconds < 0 { 1 } else { seconds }),
            uid: text("/preconditions/uid"),
            revision: text("/preconditions/resourceVersion"),
            policy,
        })
    }
}

/// What a delete answers.
#[derive(Debug)]
pub enum Deletion {
    /// The object, gone or going.
    Object(Arc<Object>),
    /// A `Status` about the object.
    Status(Value),
}

/// How far a delete has come.
#[derive(Debug)]
pub enum Progress {
    /// It is done: the object is gone, or going.
    Done(Deletion),
    /// The object had no finalizers as it was read. It is to be removed, as [`remove`] does.
    Removes(Arc<Object>),
}

/// Deletes an object, or begins to, with nothing between the steps.
///
/// # Errors
/// See [`begin`].
pub fn delete(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    options: &DeleteOptions,
) -> Result<Deletion, Refusal> {
    match begin(store, clock, place, options)? {
        Progress::Done(deletion) => Ok(deletion),
        Progress::Removes(read) => remove(store, place, options, &read),
    }
}

/// Removes an object that had no finalizers when it was read: also if it has some since, unless the request names a
/// revision (kubernetes#77988).
///
/// # Errors
/// It is gone, is another one, or has changed and the request names the revision.
// kube-apiserver: apiserver/pkg/storage/etcd3/store.go, conditionalDelete.
pub fn remove(
    store: &mut Store,
    place: &Place,
    options: &DeleteOptions,
    read: &Object,
) -> Result<Deletion, Refusal> {
    let Some(object) = store.get(place.kind, &place.key()) else {
        return Err(Refusal::not_found(place.kind, &place.name));
    };
    let uid = json::text(&object.value, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return Err(precondition_failed(place, "UID", wanted, uid));
    }
    if options.revision.is_some() && object.revision != read.revision {
        let (wanted, found) = (read.revision.to_string(), object.revision.to_string());
        return Err(precondition_failed(place, "ResourceVersion", &wanted, &found));
    }
    let deleted = store.delete(place.kind, &place.key()).unwrap_or(object);
    Ok(answer(place, &deleted))
}

/// Begins to delete an object: all but the removal of one that nothing holds.
///
/// # Errors
/// It does not exist, is not the one meant, or may not be deleted.
// kube-apiserver: apiserver/pkg/registry/generic/registry/store.go, Delete.
pub fn begin(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    options: &DeleteOptions,
) -> Result<Progress, Refusal> {
    let kind = place.kind;
    if *kind == namespace::KIND && namespace::IMMORTAL.contains(&place.name.as_str()) {
        return Err(Refusal::forbidden(kind, &place.name, "this namespace may not be deleted"));
    }
    let Some(old) = store.get(kind, &place.key()) else {
        return Err(Refusal::not_found(kind, &place.name));
    };
    check_preconditions(place, options, &old)?;
    if *kind == namespace::KIND {
        let namespace = delete_namespace(store, clock, place, options, &old);
        return Ok(Progress::Done(Deletion::Object(namespace)));
    }
    let mut object = old.value.clone();
    let is_deleting = json::is_set(&object, "/metadata/deletionTimestamp");
    let mut left = 0;
    let is_graceful = match graceful(clock, place, options, &mut object) {
        Grace::Pending => return Ok(Progress::Done(answer(place, &old))),
        Grace::None => false,
        Grace::Seconds(seconds) => {
            left = seconds;
            true
        }
    };
    // Events are not garbage-collected.
    if kind.plural != "events" {
        collect_garbage(options, &mut object);
    }
    let has_finalizers = !json::list(&object, "/metadata/finalizers").is_empty();
    if !is_graceful && has_finalizers {
        if !is_deleting {
            bump_generation(&mut object);
            json::set(&mut object, "/metadata/deletionTimestamp", clock.text());
        }
        json::set(&mut object, "/metadata/deletionGracePeriodSeconds", 0);
    }
    let mut last = Arc::clone(&old);
    if (is_graceful || has_finalizers) && object != old.value {
        last = store.put(kind, &place.key(), object);
    }
    if has_finalizers || left > 0 {
        return Ok(Progress::Done(Deletion::Object(last)));
    }
    Ok(Progress::Removes(last))
}

fn answer(place: &Place, object: &Arc<Object>) -> Deletion {
    if place.kind.returns_deleted {
        return Deletion::Object(Arc::clone(object));
    }
    let mut details = json!({
        "name": place.name, "kind": place.kind.plural, "uid": json::text(&object.value, "/metadata/uid"),
    });
    if !place.kind.group.is_empty() {
        json::set(&mut details, "/group", place.kind.group);
    }
    Deletion::Status(success(Some(details)))
}

fn check_preconditions(place: &Place, options: &DeleteOptions, object: &Object) -> Result<(), Refusal> {
    let refuse = |what: &str, wanted: &str, found: &str| {
        let detail = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been deleted and then recreated"
        );
        // Upstream names the kind here where it names the resource elsewhere.
        let is_resource_named = *place.kind == namespace::KIND;
        let named = if is_resource_named { place.kind.plural } else { place.kind.kind };
        Err(Refusal::conflict(place.kind, &place.name, &detail).naming(named))
    };
    let uid = json::text(&object.value, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return refuse("UID", wanted, uid);
    }
    let revision = object.revision.to_string();
    match options.revision.as_deref().filter(|wanted| *wanted != revision) {
        Some(wanted) => refuse("ResourceVersion", wanted, &revision),
        None => Ok(()),
    }
}

enum Grace {
    /// The kind or the object has none: it goes as soon as it can.
    None,
    /// So many seconds are written into the object.
    Seconds(i64),
    /// A grace period is running already and this request does not shorten it.
    Pending,
}

// kube-apiserver: apiserver/pkg/registry/rest/delete.go, BeforeDelete.
fn graceful(clock: &Clock, place: &Place, options: &DeleteOptions, object: &mut Value) -> Grace {
    if !place.kind.is_graceful() {
        return Grace::None;
    }
    let now = clock.now();
    let running = json::number(object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0);
    if json::is_set(object, "/metadata/deletionTimestamp") {
        if running == 0 {
            return Grace::None;
        }
        let Some(mut seconds) = options.grace.filter(|seconds| *seconds < running) else {
            return Grace::Pending;
        };
        let end = json::text(object, "/metadata/deletionTimestamp").parse::<Timestamp>().unwrap_or(now);
        let mut end = end.checked_sub(SignedDuration::from_secs(running - seconds)).unwrap_or(now);
        if end < now {
            end = now;
            seconds = seconds.min(1);
        }
        json::set(object, "/metadata/deletionTimestamp", seconds_text(end));
        json::set(object, "/metadata/deletionGracePeriodSeconds", seconds);
        return Grace::Seconds(seconds);
    }
    let own = json::number(object, "/spec/terminationGracePeriodSeconds").unwrap_or(0);
    let mut seconds = options.grace.unwrap_or(own);
    let is_unscheduled = json::text(object, "/spec/nodeName").is_empty();
    if is_unscheduled || matches!(json::text(object, "/status/phase"), "Failed" | "Succeeded") {
        seconds = 0;
    }
    if seconds < 0 {
        seconds = 1;
    }
    let end = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    json::set(object, "/metadata/deletionTimestamp", seconds_text(end));
    json::set(object, "/metadata/deletionGracePeriodSeconds", seconds);
    bump_generation(object);
    Grace::Seconds(seconds)
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) =
        json::number(object, "/metadata/generation").filter(|generation| *generation > 0)
    {
        json::set(object, "/metadata/generation", generation + 1);
    }
}

/// Puts or takes the finalizers by which the garbage collector learns of the policy.
// kube-apiserver: apiserver/pkg/registry/generic/registry/store.go, deletionFinalizersForGarbageCollection.
fn collect_garbage(options: &DeleteOptions, object: &mut Value) {
    let before = json::list(object, "/metadata/finalizers").to_vec();
    let wanted = match options.policy.as_deref() {
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        Some(_) => None,
        None => {
            [ORPHAN, FOREGROUND].into_iter().find(|name| before.iter().any(|finalizer| finalizer == name))
        }
    };
    let mut after = before.clone();
    after.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
    after.extend(wanted.map(Value::from));
    let is_same = before.len() == after.len() && before.iter().all(|finalizer| after.contains(finalizer));
    if is_same {
        return;
    }
    if after.is_empty() {
        json::remove(object, "/metadata/finalizers");
    } else {
        json::set(object, "/metadata/finalizers", after);
    }
}

/// Marks a namespace as terminating; another actor empties it.
// kube-apiserver: pkg/registry/core/namespace/storage/storage.go, Delete.
fn delete_namespace(
    store: &mut Store,
    clock: &Clock,
    place: &Place,
    options: &DeleteOptions,
    old: &Arc<Object>,
) -> Arc<Object> {
    if json::is_set(&old.value, "/metadata/deletionTimestamp") {
        return Arc::clone(old);
    }
    let mut object = old.value.clone();
    json::set(&mut object, "/metadata/deletionTimestamp", clock.text());
    json::set(&mut object, "/status/phase", "Terminating");
    collect_garbage(options, &mut object);
    store.put(place.kind, &place.key(), object)
}
