//! The Event object as JSON.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Report;
use crate::{ids::ResourceVersion, wire::rfc3339};

/// Longest message, in bytes: room for an error of a driver, of which the API server keeps 1 024, with
/// words around it, and for a list of pods that a reader still reads. The API server limits it only where
/// `eventTime` is set, and KCM not at all.
const MAX_MESSAGE: usize = 4_096;

/// Longest `reportingInstance` that the API server accepts, in bytes.
const MAX_INSTANCE: usize = 128;

/// Longest name of an object, in bytes.
const MAX_NAME: usize = 253;

/// Namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";

/// Namespace that an event is written to.
pub(super) fn namespace(report: &Report) -> &str {
    let namespace = &*report.event.involved.namespace;
    if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace }
}

/// URL path of a namespace's events.
pub(super) fn collection(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// What makes an event the same as another: equal in every process.
pub(super) fn digest(report: &Report) -> u64 {
    let event = &report.event;
    let mut hash = Sha256::new();
    let (uid, kind) = (event.involved.uid.to_string(), event.involved.kind);
    let told = event.subject.as_deref().unwrap_or(&event.message);
    for part in [report.component, kind, &uid, <&str>::from(event.r#type), event.reason, told] {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize().iter().take(8).fold(0, |digest, byte| digest << 8 | u64::from(*byte))
}

/// A name that no other event of this object has, and that a later process finds it by.
pub(super) fn name(report: &Report, digest: u64) -> String {
    let suffix = format!(".{digest:016x}");
    let object = truncated(&report.event.involved.name, MAX_NAME.saturating_sub(suffix.len()));
    format!("{}{suffix}", object.trim_end_matches(['.', '-']))
}

/// A new Event.
///
/// client-go: tools/record/event.go, makeEvent.
pub(super) fn creation(report: &Report, name: &str, instance: &str) -> Value {
    let recorded = rfc3339(report.time);
    let event = &report.event;
    let involved = &event.involved;
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace(report) },
        "involvedObject": {
            "apiVersion": involved.api_version,
            "kind": involved.kind,
            "namespace": &*involved.namespace,
            "name": &*involved.name,
            "uid": involved.uid,
            "resourceVersion": involved.resource_version.to_string(),
        },
        "type": <&str>::from(event.r#type),
        "reason": event.reason,
        "message": truncated(&event.message, MAX_MESSAGE),
        "source": { "component": report.component },
        "reportingComponent": report.component,
        "reportingInstance": truncated(instance, MAX_INSTANCE),
        "count": 1,
        "firstTimestamp": recorded,
        "lastTimestamp": recorded,
    })
}

/// A merge patch for an event that was seen again, if nobody has counted it since.
pub(super) fn repetition(report: &Report, count: u32, revision: ResourceVersion) -> Value {
    json!({
        "metadata": { "resourceVersion": revision },
        "count": count,
        "lastTimestamp": rfc3339(report.time),
        "message": truncated(&report.event.message, MAX_MESSAGE),
    })
}

/// How often an event was counted, how long ago it was last, unless the clock of its writer is ahead, and its revision.
pub(super) fn counted(body: &[u8], now: Timestamp) -> (u32, Option<Duration>, ResourceVersion) {
    let event: Value = serde_json::from_slice(body).unwrap_or_default();
    let revision = event.pointer("/metadata/resourceVersion").and_then(|text| text.as_str()?.parse().ok());
    let count = event.get("count").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
    let last = event.get("lastTimestamp").and_then(Value::as_str).and_then(|time| time.parse().ok());
    let (count, last) = (count.unwrap_or(1), last.unwrap_or(now));
    let age = Duration::try_from(now.duration_since(last)).ok();
    (count, age, ResourceVersion(revision.unwrap_or_default()))
}

/// As much of the text as fits, cut between characters.
fn truncated(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{CORE, Event, EventType, Involved, Novelty};

    fn report(namespace: &str, name: &str, message: &str) -> Report {
        let event = Event {
            involved: Involved {
                api_version: CORE,
                kind: "PersistentVolumeClaim",
                namespace: namespace.into(),
                name: name.into(),
                uid: "u-1".into(),
                resource_version: ResourceVersion(42),
            },
            r#type: EventType::Warning,
            reason: "ProvisioningFailed",
            message: message.to_owned(),
            novelty: Novelty::New,
            subject: None,
        };
        Report { time: now(), ..Report::new("persistentvolume-controller", event) }
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.123456789Z".parse().unwrap()
    }

    #[test]
    fn body_is_what_client_go_writes() {
        let report = report("apps", "data", "no such class");
        let digest = digest(&report);
        assert_eq!(name(&report, digest), format!("data.{digest:016x}"));
        assert_eq!(
            creation(&report, "data.1", "host_1"),
            json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": { "name": "data.1", "namespace": "apps" },
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": "apps",
                    "name": "data",
                    "uid": "u-1",
                    "resourceVersion": "42",
                },
                "type": "Warning",
                "reason": "ProvisioningFailed",
                "message": "no such class",
                "source": { "component": "persistentvolume-controller" },
                "reportingComponent": "persistentvolume-controller",
                "reportingInstance": "host_1",
                "count": 1,
                "firstTimestamp": "2026-01-02T03:04:05Z",
                "lastTimestamp": "2026-01-02T03:04:05Z",
            })
        );
        assert_eq!(
            repetition(&report, 3, ResourceVersion(7)),
            json!({
                "metadata": { "resourceVersion": "7" },
                "count": 3, "lastTimestamp": "2026-01-02T03:04:05Z", "message": "no such class",
            })
        );
    }

    #[test]
    fn s47_the_name_follows_from_what_is_said_and_of_what() {
        let one = report("apps", "data", "no such class");
        // Pinned: a process of another version finds it, too.
        assert_eq!(digest(&one), 10_272_644_735_317_399_484);
        let mut others = vec![report("apps", "data", "another"), one.clone(), one.clone(), one.clone()];
        others[1].event.involved.uid = "u-2".into();
        others[2].event.reason = "FailedBinding";
        others[3].component = "attachdetach-controller";
        for other in others {
            assert_ne!(digest(&one), digest(&other), "{other:?}");
        }
    }

    #[test]
    fn an_event_says_how_often_and_how_long_ago_it_was_told() {
        let event = |count: Value, last: &str| {
            let metadata = json!({ "resourceVersion": "7" });
            json!({ "metadata": metadata, "count": count, "lastTimestamp": last }).to_string()
        };
        for (body, expected) in [
            (event(json!(3), "2026-01-02T02:34:05Z"), (3, Some(1_800), 7)),
            // By a clock that is ahead.
            (event(json!(null), "2027-01-02T03:04:05Z"), (1, None, 7)),
            (String::new(), (1, Some(0), 0)),
        ] {
            let (count, age, revision) = counted(body.as_bytes(), now());
            assert_eq!((count, age.map(|age| age.as_secs()), revision.0), expected, "{body}");
        }
    }

    #[test]
    fn events_of_cluster_scoped_objects_go_to_default() {
        let report = report("", "pv-1", "");
        let body = creation(&report, "x", "host");
        assert_eq!(body["metadata"]["namespace"], json!("default"));
        assert_eq!(body["involvedObject"]["namespace"], json!(""));
        let mut of_group = report;
        of_group.event.involved.api_version = "storage.k8s.io/v1";
        assert_eq!(
            creation(&of_group, "x", "host")["involvedObject"]["apiVersion"],
            json!("storage.k8s.io/v1")
        );
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let report = report("apps", &"n".repeat(253), &"ä".repeat(3_000));
        assert_eq!(name(&report, 1).len(), 253);
        let odd = format!("x{}", "ä".repeat(3_000));
        assert_eq!(truncated(&odd, MAX_MESSAGE).len(), 4_095);
        let body = creation(&report, "x", &"h".repeat(300));
        assert_eq!(body["message"].as_str().unwrap().len(), MAX_MESSAGE);
        assert_eq!(body["reportingInstance"].as_str().unwrap().len(), 128);
    }
}
