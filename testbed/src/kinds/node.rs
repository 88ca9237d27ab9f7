//! Nodes: taints on creation, and the fields that may not change.

use serde_json::{Value, json};

use super::{
    columns::{AGE, Column, NAME, column, text_or, wide},
    kind::{Kind, NameRule, Neighbours, Rules, keep_spec, keep_status},
};
use crate::{
    json,
    status::{Causes, Refusal},
    validate::{is_name_part, qualified_name},
};

/// Every new node has it, until a controller sees it ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "nodes",
    singular: "node",
    kind: "Node",
    short_names: &["no"],
    namespaced: false,
    type_name: "core/v1.Node",
    has_status: true,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: false,
    name_rule: NameRule::Subdomain,
    fields: &[("spec.unschedulable", "/spec/unschedulable")],
    columns: COLUMNS,
    rules: &Node,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", |node, _| conditions(node).into()),
    column("Roles", |node, _| roles(node).into()),
    AGE,
    column("Version", |node, _| json::text(node, "/status/nodeInfo/kubeletVersion").into()),
    wide("Internal-IP", |node, _| address(node, "InternalIP").into()),
    wide("External-IP", |node, _| address(node, "ExternalIP").into()),
    wide("OS-Image", |node, _| text_or(node, "/status/nodeInfo/osImage", "<unknown>")),
    wide("Kernel-Version", |node, _| text_or(node, "/status/nodeInfo/kernelVersion", "<unknown>")),
    wide("Container-Runtime", |node, _| {
        text_or(node, "/status/nodeInfo/containerRuntimeVersion", "<unknown>")
    }),
];

fn conditions(node: &Value) -> String {
    let ready = json::list(node, "/status/conditions").iter().find(|condition| condition["type"] == "Ready");
    let mut texts = vec![match ready.map(|condition| json::text(condition, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        texts.push("SchedulingDisabled");
    }
    texts.join(",")
}

fn roles(node: &Value) -> String {
    let mut roles = Vec::new();
    for (key, value) in json::map(node, "/metadata/labels").into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()) {
            roles.push(role);
        } else if key == "kubernetes.io/role"
            && let Some(role) = value.as_str().filter(|role| !role.is_empty())
        {
            roles.push(role);
        }
    }
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(node: &Value, kind: &str) -> String {
    let found = json::list(node, "/status/addresses").iter().find(|address| address["type"] == kind);
    found.map_or("<none>", |address| json::text(address, "/address")).to_owned()
}

struct Node;

impl Rules for Node {
    fn default(&self, object: &mut Value) {
        if !json::is_set(object, "/status/allocatable") && json::is_set(object, "/status/capacity") {
            let capacity = object.pointer("/status/capacity").cloned().unwrap_or_default();
            json::set(object, "/status/allocatable", capacity);
        }
        // kube-apiserver: pkg/apis/core/v1/conversion.go: the first of podCIDRs is also podCIDR.
        json::pair_first(object, "/spec/podCIDR", "/spec/podCIDRs", "");
    }

    // kube-apiserver: plugin/pkg/admission/nodetaint/admission.go.
    fn admit_create(&self, object: &mut Value, _: &dyn Neighbours) -> Result<(), Refusal> {
        let mut taints = json::list(object, "/spec/taints").to_vec();
        if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            json::set(object, "/spec/taints", taints);
        }
        Ok(())
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_status(new, old);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _: &str) {
        keep_spec(new, old);
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        validate_taints(object, causes);
    }

    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidateNodeUpdate.
    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        let cidrs = "/spec/podCIDRs";
        if !json::list(old, cidrs).is_empty() && json::list(old, cidrs) != json::list(new, cidrs) {
            causes
                .forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        let provider = "/spec/providerID";
        if !json::text(old, provider).is_empty() && json::text(old, provider) != json::text(new, provider) {
            causes.forbidden(
                "spec.providerID",
                "node updates may not change providerID except from \"\" to valid",
            );
        }
        let addresses = json::list(new, "/status/addresses");
        for (index, address) in addresses.iter().enumerate() {
            if addresses.iter().take(index).any(|other| other == address) {
                causes.duplicate(format!("status.addresses[{index}]"), address);
            }
        }
    }

    fn validate_status(&self, new: &Value, old: &Value, causes: &mut Causes) {
        self.validate_update(new, old, causes);
    }
}

fn validate_taints(object: &Value, causes: &mut Causes) {
    let taints = json::list(object, "/spec/taints");
    for (index, taint) in taints.iter().enumerate() {
        let field = format!("metadata.taints[{index}]");
        qualified_name(json::text(taint, "/key"), format!("{field}.key"), causes);
        let value = json::text(taint, "/value");
        if !value.is_empty() && !is_name_part(value) {
            causes.invalid(format!("{field}.value"), &value.into(), "a valid label must be empty or a name");
        }
        let effect = json::text(taint, "/effect");
        if effect.is_empty() {
            causes.required(format!("{field}.effect"), "");
        } else if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            causes.not_supported(
                format!("{field}.effect"),
                &effect.into(),
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            );
        }
        let is_same = |other: &&Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if taints.iter().take(index).any(|other| is_same(&other)) {
            causes.duplicate(&field, taint);
        }
    }
}
