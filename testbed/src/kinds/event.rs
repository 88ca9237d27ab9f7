//! Events (core/v1): the reports of controllers for people.

use serde_json::Value;

use super::{
    columns::{Column, age, column, wide},
    kind::{Kind, NameRule, Rules},
};
use crate::{json, status::Causes, validate::qualified_name};

/// Longest action, reason and instance of a new-style event.
const NAME_LENGTH: usize = 128;
/// Longest message of a new-style event.
const MESSAGE_LENGTH: usize = 1024;

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    namespaced: true,
    type_name: "core/v1.Event",
    has_status: false,
    create_on_update: true,
    unconditional_update: true,
    returns_deleted: false,
    name_rule: NameRule::PathSegment,
    fields: &[
        ("involvedObject.kind", "/involvedObject/kind"),
        ("involvedObject.namespace", "/involvedObject/namespace"),
        ("involvedObject.name", "/involvedObject/name"),
        ("involvedObject.uid", "/involvedObject/uid"),
        ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
        ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
        ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
        ("reason", "/reason"),
        ("reportingComponent", "/reportingComponent"),
        ("source", "/source/component"),
        ("type", "/type"),
    ],
    columns: COLUMNS,
    rules: &Event,
};

const COLUMNS: &[Column] = &[
    column("Last Seen", last_seen),
    column("Type", |event, _| json::text(event, "/type").into()),
    column("Reason", |event, _| json::text(event, "/reason").into()),
    column("Object", |event, _| {
        let kind = json::text(event, "/involvedObject/kind").to_ascii_lowercase();
        let name = json::text(event, "/involvedObject/name");
        if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
    }),
    wide("Subobject", |event, _| json::text(event, "/involvedObject/fieldPath").into()),
    wide("Source", |event, _| {
        let component = json::text(event, "/source/component");
        let component =
            if component.is_empty() { json::text(event, "/reportingComponent") } else { component };
        let host = json::text(event, "/source/host");
        if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
    }),
    column("Message", |event, _| json::text(event, "/message").trim().into()),
    wide("First Seen", |event, now| {
        let has_first = json::is_set(event, "/firstTimestamp");
        age(event, if has_first { "/firstTimestamp" } else { "/eventTime" }, now)
    }),
    Column { kind: "integer", ..wide("Count", |event, _| count(event).into()) },
    wide("Name", |event, _| json::text(event, "/metadata/name").into()),
];

fn count(event: &Value) -> i64 {
    let series = json::number(event, "/series/count");
    series.or_else(|| json::number(event, "/count")).filter(|count| *count > 0).unwrap_or(1)
}

fn last_seen(event: &Value, now: k8s_openapi::jiff::Timestamp) -> Value {
    for path in ["/series/lastObservedTime", "/lastTimestamp", "/firstTimestamp"] {
        if json::is_set(event, path) {
            return age(event, path, now);
        }
    }
    age(event, "/eventTime", now)
}

struct Event;

impl Rules for Event {
    // kube-apiserver: pkg/apis/core/validation/events.go, legacyValidateEvent.
    fn validate(&self, object: &Value, causes: &mut Causes) {
        let namespace = json::text(object, "/metadata/namespace");
        let involved = json::text(object, "/involvedObject/namespace");
        let field = "involvedObject.namespace";
        let detail = "does not match event.namespace";
        let is_cluster_wide = involved.is_empty() && matches!(namespace, "default" | "kube-system");
        if !json::is_set(object, "/eventTime") {
            if involved != namespace && !(involved.is_empty() && namespace == "default") {
                causes.invalid(field, &involved.into(), detail);
            }
            return;
        }
        if involved.is_empty() && !is_cluster_wide {
            causes.invalid(field, &involved.into(), detail);
        }
        let controller = json::text(object, "/reportingComponent");
        if controller.is_empty() {
            causes.required("reportingComponent", "");
        } else {
            qualified_name(controller, "reportingComponent", causes);
        }
        for name in ["reportingInstance", "action", "reason"] {
            let text = json::text(object, &format!("/{name}"));
            if text.is_empty() {
                causes.required(name, "");
            }
            if text.len() > NAME_LENGTH {
                causes.invalid(name, &"".into(), "can have at most 128 characters");
            }
        }
        if json::text(object, "/message").len() > MESSAGE_LENGTH {
            causes.invalid("message", &"".into(), "can have at most 1024 characters");
        }
    }
}
