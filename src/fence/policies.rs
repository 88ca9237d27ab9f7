//! The fence as values: for each loop of KCM that mooring can take over, the policy and its binding.
//!
//! In: the table of loops. Out: the objects as JSON, complete with every default that an API server fills in, so that what
//! is stored can be compared with what is meant. The message of each denial carries a hash of both specs.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// API group and version of the policies.
pub const API: &str = "admissionregistration.k8s.io/v1";
/// Kind and plural of policies.
pub const POLICIES: (&str, &str) = ("ValidatingAdmissionPolicy", "validatingadmissionpolicies");
/// Kind and plural of bindings.
pub const BINDINGS: (&str, &str) = ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
/// While this is on it, a deleted policy goes on denying.
pub const FINALIZER: &str = "mooring.dev/fence";
/// Who raised the fence, when, and with which versions: an annotation.
pub const RAISED: &str = "mooring.dev/raised";

/// A switch asks mooring, on a policy, to begin nothing new: an annotation, whose value changes as long as it is asked for.
pub const DRAIN: &str = "mooring.dev/drain";
/// How the names of all fences begin.
pub const NAME_BEGINS: &str = "mooring-fence-";
/// How the mark of a content begins.
pub const MARK: &str = "(fence ";

/// A loop of KCM and what it writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Fence {
    /// The name of KCM's controller, as `--controllers` has it.
    pub controller: &'static str,
    /// The ServiceAccount in kube-system as which it writes (`--use-service-account-credentials`).
    pub account: &'static str,
    /// API group and resources that it creates, changes or deletes.
    pub writes: &'static [(&'static str, &'static [&'static str])],
}

const OF_ATTACHMENTS: (&str, &[&str]) =
    ("storage.k8s.io", &["volumeattachments", "volumeattachments/status"]);
const OF_NODES: (&str, &[&str]) = ("", &["nodes/status", "events"]);
const NEW_EVENTS: (&str, &[&str]) = ("events.k8s.io", &["events"]);
const OF_CLAIMS: (&str, &[&str]) = ("", &["persistentvolumeclaims", "persistentvolumeclaims/status"]);
const OF_VOLUMES: (&str, &[&str]) = ("", &["persistentvolumes", "persistentvolumes/status"]);

/// Each loop that mooring's `--controllers` can take.
///
/// KCM: cmd/kube-controller-manager/app/core.go, names of the clients; plugin/pkg/auth/authorizer/rbac/bootstrappolicy,
/// `controller_policy.go`, their rights. A test compares this with the audit log of a KCM that rules.
pub const FENCES: [Fence; 7] = [
    Fence {
        controller: "persistentvolume-attach-detach-controller",
        account: "attachdetach-controller",
        writes: &[OF_ATTACHMENTS, OF_NODES, NEW_EVENTS],
    },
    Fence {
        controller: "persistentvolume-binder-controller",
        account: "persistent-volume-binder",
        // Its pods are those of the recycler.
        writes: &[OF_VOLUMES, OF_CLAIMS, ("", &["pods", "events"]), NEW_EVENTS],
    },
    Fence {
        controller: "persistentvolumeclaim-protection-controller",
        account: "pvc-protection-controller",
        writes: &[OF_CLAIMS],
    },
    Fence {
        controller: "persistentvolume-protection-controller",
        account: "pv-protection-controller",
        writes: &[OF_VOLUMES],
    },
    Fence {
        controller: "volumeattributesclass-protection-controller",
        account: "volumeattributesclass-protection-controller",
        writes: &[("storage.k8s.io", &["volumeattributesclasses"])],
    },
    Fence {
        controller: "ephemeral-volume-controller",
        account: "ephemeral-volume-controller",
        writes: &[OF_CLAIMS, ("", &["events"]), NEW_EVENTS],
    },
    Fence {
        controller: "persistentvolume-expander-controller",
        account: "expand-controller",
        writes: &[OF_VOLUMES, OF_CLAIMS, ("", &["events"]), NEW_EVENTS],
    },
];

/// Denies what it matches, but lets the empty patches of nodes pass that KCM sends: denied, it would repeat them many times a
/// second. The order of that list means nothing.
const CHANGES_NO_LIST: &str = "request.resource.resource == 'nodes' && sets.equivalent(\
    dyn(object).?status.?volumesAttached.orValue([]), dyn(oldObject).?status.?volumesAttached.orValue([]))";

/// The loop that goes on from what it remembers of volumes, which is wrong after another has ruled: it is freed as a new process
/// only. The others do what each object asks for, and write it at the revision that they have seen: they may go on at any time.
const WITH_MEMORY: &str = "attachdetach-controller";

impl Fence {
    /// All but these.
    pub fn others(these: &[&'static Self]) -> impl Iterator<Item = &'static Self> {
        FENCES.iter().filter(move |fence| !these.contains(fence))
    }

    /// Whether its loop has to be a new process before it may write again.
    pub fn has_memory(&self) -> bool {
        self.account == WITH_MEMORY
    }

    /// The one of KCM's controller of that name.
    pub fn of(controller: &str) -> Option<&'static Self> {
        FENCES.iter().find(|fence| fence.controller == controller)
    }

    /// Name of the policy, of its binding, and of the VolumeAttachment of its probe.
    pub fn name(&self) -> String {
        format!("{NAME_BEGINS}{}", self.account)
    }

    /// The user who is fenced off.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:kube-system:{}", self.account)
    }

    /// What tells one content of the fence from every other, within the message of a denial.
    pub fn mark(&self) -> String {
        let content = json!([self.policy_spec(""), self.binding()]).to_string();
        let digest = Sha256::digest(content.as_bytes());
        let head = digest.iter().take(6).fold(0_u64, |head, byte| head << 8 | u64::from(*byte));
        format!("{MARK}{head:012x})")
    }

    /// The spec of the policy.
    pub fn policy(&self) -> Value {
        self.policy_spec(&self.mark())
    }

    fn policy_spec(&self, mark: &str) -> Value {
        let rule = |group: &str, resources: &[&str], operations: &[&str]| {
            json!({
                "apiGroups": [group], "apiVersions": ["*"], "operations": operations,
                "resources": resources, "scope": "*",
            })
        };
        let mut rules: Vec<Value> = self
            .writes
            .iter()
            .map(|(group, resources)| rule(group, resources, &["CREATE", "UPDATE", "DELETE"]))
            .collect();
        if !self.writes.contains(&OF_ATTACHMENTS) {
            rules.push(rule("storage.k8s.io", &["volumeattachments"], &["CREATE"]));
        }
        let (user, name) = (self.user(), self.name());
        let whose = format!(
            "request.userInfo.username == '{user}' || (request.operation == 'CREATE' && request.dryRun && \
             request.resource.resource == 'volumeattachments' && request.name == '{name}')"
        );
        let is_let_pass = if self.writes.contains(&OF_NODES) { CHANGES_NO_LIST } else { "false" };
        let message = format!("mooring rules here, and {} must not write: {mark}", self.controller);
        json!({
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "resourceRules": rules,
            },
            "matchConditions": [{ "name": "fenced", "expression": whose }],
            "validations": [{
                "expression": is_let_pass, "message": message.trim_end(), "reason": "Forbidden",
            }],
        })
    }

    /// The spec of the binding.
    pub fn binding(&self) -> Value {
        json!({ "policyName": self.name(), "validationActions": ["Deny"] })
    }

    /// The policy and its binding, to be applied in this order: a policy without binding denies nothing.
    pub fn objects(&self) -> [Value; 2] {
        let object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": API,
                "kind": kind,
                "metadata": {
                    "name": self.name(),
                    "finalizers": [FINALIZER],
                    "labels": {
                        "app.kubernetes.io/part-of": "mooring",
                        "velero.io/exclude-from-backup": "true",
                    },
                    // Nobody who tidies up takes it down.
                    "annotations": {
                        "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
                        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
                        "helm.sh/resource-policy": "keep",
                        "kustomize.toolkit.fluxcd.io/prune": "disabled",
                    },
                },
                "spec": spec,
            })
        };
        [object(POLICIES.0, self.policy()), object(BINDINGS.0, self.binding())]
    }
}

/// Where an object of the fence is applied.
pub fn apply_path(plural: &str, name: &str) -> String {
    format!("{}?fieldManager=mooring-switch&force=true", path_of(plural, name))
}

/// Where an object of the fence is.
pub fn path_of(plural: &str, name: &str) -> String {
    format!("/apis/{API}/{plural}/{name}")
}
