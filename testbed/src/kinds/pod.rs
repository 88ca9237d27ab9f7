//! Pods: admission, status, generation, and which fields of the spec may change.
//!
//! [`super::pod_spec`] has the defaults of a pod's spec and its validation.

use serde_json::{Value, json};

use super::{
    columns::{AGE, Column, NAME, age, column, text_or, wide},
    kind::{Kind, NameRule, Neighbours, Rules, immutable, keep_spec, keep_status},
    pod_spec,
};
use crate::{
    json,
    status::{Causes, Refusal},
};

/// How long a pod stays on a node that is not ready or unreachable, in seconds.
const TOLERATION_SECONDS: i64 = 300;

/// Taints that every pod tolerates for a while.
const TOLERATED: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "pods",
    singular: "pod",
    kind: "Pod",
    short_names: &["po"],
    namespaced: true,
    type_name: "core/v1.Pod",
    has_status: true,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[
        ("spec.nodeName", "/spec/nodeName"),
        ("spec.restartPolicy", "/spec/restartPolicy"),
        ("spec.schedulerName", "/spec/schedulerName"),
        ("spec.serviceAccountName", "/spec/serviceAccountName"),
        ("spec.hostNetwork", "/spec/hostNetwork"),
        ("status.phase", "/status/phase"),
        ("status.podIP", "/status/podIP"),
        ("status.nominatedNodeName", "/status/nominatedNodeName"),
    ],
    columns: COLUMNS,
    rules: &Pod,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", |pod, _| {
        let statuses = json::list(pod, "/status/containerStatuses");
        let ready = statuses.iter().filter(|status| status["ready"] == true).count();
        format!("{ready}/{}", json::list(pod, "/spec/containers").len()).into()
    }),
    column("Status", |pod, _| status(pod).into()),
    column("Restarts", restarts),
    AGE,
    wide("IP", |pod, _| text_or(pod, "/status/podIP", "<none>")),
    wide("Node", |pod, _| text_or(pod, "/spec/nodeName", "<none>")),
    wide("Nominated Node", |pod, _| text_or(pod, "/status/nominatedNodeName", "<none>")),
    wide("Readiness Gates", |_, _| "<none>".into()),
];

// kube-apiserver: pkg/printers/internalversion/printers.go, printPod.
fn status(pod: &Value) -> String {
    let mut text = json::text(pod, "/status/phase");
    let reason = json::text(pod, "/status/reason");
    if !reason.is_empty() {
        text = reason;
    }
    let is_gated = json::list(pod, "/status/conditions")
        .iter()
        .any(|condition| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated");
    if is_gated {
        text = "SchedulingGated";
    }
    for container in json::list(pod, "/status/containerStatuses").iter().rev() {
        for state in ["waiting", "terminated"] {
            let reason = json::text(container, &format!("/state/{state}/reason"));
            if !reason.is_empty() {
                text = reason;
            }
        }
    }
    if json::is_set(pod, "/metadata/deletionTimestamp") {
        text = if reason == "NodeLost" { "Unknown" } else { "Terminating" };
    }
    text.to_owned()
}

fn restarts(pod: &Value, now: k8s_openapi::jiff::Timestamp) -> Value {
    let mut count = 0;
    let mut last: Option<Value> = None;
    for container in json::list(pod, "/status/containerStatuses") {
        count += json::number(container, "/restartCount").unwrap_or(0);
        if json::is_set(container, "/lastState/terminated/finishedAt") {
            last = Some(age(container, "/lastState/terminated/finishedAt", now));
        }
    }
    match last.as_ref().and_then(Value::as_str) {
        Some(ago) if count > 0 => format!("{count} ({ago} ago)").into(),
        _ => count.to_string().into(),
    }
}

struct Pod;

impl Rules for Pod {
    fn default(&self, object: &mut Value) {
        pod_spec::default(object);
    }

    fn admit_create(&self, object: &mut Value, _: &dyn Neighbours) -> Result<(), Refusal> {
        admit_priority(object)?;
        for key in TOLERATED {
            tolerate(object, key);
        }
        Ok(())
    }

    fn admit_update(&self, new: &mut Value, old: &Value) {
        for field in ["/spec/priority", "/spec/preemptionPolicy"] {
            if !json::is_set(new, field) {
                json::copy(old, new, field);
            }
        }
        for key in TOLERATED {
            tolerate(new, key);
        }
    }

    fn prepare_create(&self, object: &mut Value, _: &str) {
        json::set(object, "/metadata/generation", 1);
        let class = pod_spec::quality_of_service(object);
        json::set(object, "/status", json!({"phase": "Pending", "qosClass": class}));
        if !json::list(object, "/spec/schedulingGates").is_empty() {
            let condition = json!({
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null, "lastTransitionTime": null,
            });
            json::set(object, "/status/conditions", json!([condition]));
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_status(new, old);
        if new.get("spec") != old.get("spec") {
            json::set(
                new,
                "/metadata/generation",
                json::number(old, "/metadata/generation").unwrap_or(0) + 1,
            );
        }
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _: &str) {
        keep_spec(new, old);
        json::remove(new, "/metadata/deletionTimestamp");
        json::copy(old, new, "/metadata/ownerReferences");
        if json::text(new, "/status/qosClass").is_empty() {
            json::copy(old, new, "/status/qosClass");
        }
        if !json::is_set(new, "/status/observedGeneration") {
            json::copy(old, new, "/status/observedGeneration");
        }
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        pod_spec::validate(object, causes);
    }

    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidatePodUpdate.
    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        for list in ["containers", "initContainers"] {
            let path = format!("/spec/{list}");
            if json::list(new, &path).len() != json::list(old, &path).len() {
                causes.forbidden(format!("spec.{list}"), "pod updates may not add or remove containers");
                return;
            }
        }
        let mut comparable = new.clone();
        for list in ["containers", "initContainers"] {
            let path = format!("/spec/{list}");
            let before = json::list(old, &path).to_vec();
            for (container, before) in json::elements_mut(&mut comparable, &path).zip(&before) {
                json::copy(before, container, "/image");
            }
        }
        let deadline = "/spec/activeDeadlineSeconds";
        match (json::number(new, deadline), json::number(old, deadline)) {
            (Some(after), _) if after < 0 => {
                causes.invalid("spec.activeDeadlineSeconds", &after.into(), "must not be negative");
            }
            (Some(after), Some(before)) if after > before => {
                causes.invalid(
                    "spec.activeDeadlineSeconds",
                    &after.into(),
                    "must be less than or equal to previous value",
                );
            }
            (None, Some(_)) => {
                causes.invalid(
                    "spec.activeDeadlineSeconds",
                    &Value::Null,
                    "must not update from a positive integer to nil value",
                );
            }
            _ => {}
        }
        let lasting = |pod: &Value| -> Vec<Value> {
            let mut tolerations = json::list(pod, "/spec/tolerations").to_vec();
            for toleration in &mut tolerations {
                json::remove(toleration, "/tolerationSeconds");
            }
            tolerations
        };
        let tolerations = lasting(new);
        for toleration in lasting(old) {
            if !tolerations.contains(&toleration) {
                causes.forbidden(
                    "spec.tolerations",
                    "existing toleration can not be modified except its tolerationSeconds",
                );
                break;
            }
        }
        let gates = json::list(old, "/spec/schedulingGates");
        for (index, gate) in json::list(new, "/spec/schedulingGates").iter().enumerate() {
            if !gates.contains(gate) {
                causes.forbidden(format!("spec.schedulingGates[{index}].name"), "only deletion is allowed");
            }
        }
        for path in [deadline, "/spec/tolerations", "/spec/schedulingGates"] {
            json::copy(old, &mut comparable, path);
        }
        if comparable.get("spec") != old.get("spec") {
            causes.forbidden(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
            );
        }
    }

    fn validate_status(&self, new: &Value, old: &Value, causes: &mut Causes) {
        immutable(new, old, "/status/qosClass", "status.qosClass", causes);
    }
}

// kube-apiserver: plugin/pkg/admission/priority/admission.go.
fn admit_priority(object: &mut Value) -> Result<(), Refusal> {
    let class = json::text(object, "/spec/priorityClassName").to_owned();
    let priority = match class.as_str() {
        "" => 0,
        "system-cluster-critical" => 2_000_000_000,
        "system-node-critical" => 2_000_001_000,
        other => {
            let name = json::text(object, "/metadata/name");
            let detail = format!("no PriorityClass with name {other} was found");
            return Err(Refusal::forbidden(&KIND, name, &detail));
        }
    };
    if json::number(object, "/spec/priority").is_some_and(|given| given != priority) {
        let name = json::text(object, "/metadata/name");
        let detail = format!(
            "the integer value of priority must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(Refusal::forbidden(&KIND, name, &detail));
    }
    json::set(object, "/spec/priority", priority);
    json::set_default(object, "/spec/preemptionPolicy", "PreemptLowerPriority");
    Ok(())
}

// kube-apiserver: plugin/pkg/admission/defaulttolerationseconds/admission.go.
fn tolerate(object: &mut Value, key: &str) {
    let mut tolerations = json::list(object, "/spec/tolerations").to_vec();
    let is_tolerated = tolerations.iter().any(|toleration| {
        let (own, effect) = (json::text(toleration, "/key"), json::text(toleration, "/effect"));
        (own == key || own.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    });
    if !is_tolerated {
        tolerations.push(json!({
            "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS,
        }));
        json::set(object, "/spec/tolerations", tolerations);
    }
}
