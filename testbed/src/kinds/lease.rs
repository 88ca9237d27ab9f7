//! Leases, for leader election.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, column},
    kind::{Kind, NameRule, Rules},
};
use crate::{json, status::Causes};

/// The kind.
pub static KIND: Kind = Kind {
    group: "coordination.k8s.io",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    short_names: &[],
    namespaced: true,
    type_name: "coordination/v1.Lease",
    has_status: false,
    create_on_update: true,
    unconditional_update: false,
    returns_deleted: false,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &Lease,
};

const COLUMNS: &[Column] =
    &[NAME, column("Holder", |lease, _| json::text(lease, "/spec/holderIdentity").into()), AGE];

struct Lease;

impl Rules for Lease {
    fn prepare_create(&self, object: &mut Value, _: &str) {
        drop_gated(object);
    }

    fn prepare_update(&self, new: &mut Value, _: &Value) {
        drop_gated(new);
    }

    // kube-apiserver: pkg/apis/coordination/validation/validation.go, ValidateLeaseSpec.
    fn validate(&self, object: &Value, causes: &mut Causes) {
        if let Some(seconds) =
            json::number(object, "/spec/leaseDurationSeconds").filter(|seconds| *seconds <= 0)
        {
            causes.invalid("spec.leaseDurationSeconds", &seconds.into(), "must be greater than 0");
        }
        if let Some(count) = json::number(object, "/spec/leaseTransitions").filter(|count| *count < 0) {
            causes.invalid("spec.leaseTransitions", &count.into(), "must be greater than or equal to 0");
        }
    }
}

/// Coordinated leader election is behind a gate that is off by default.
fn drop_gated(object: &mut Value) {
    for field in ["strategy", "preferredHolder"] {
        json::remove(object, &format!("/spec/{field}"));
    }
}
