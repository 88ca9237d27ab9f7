//! CSIDrivers: the capabilities of a driver, most of which are fixed after its installation.

use serde_json::{Value, json};

use super::{
    columns::{AGE, Column, NAME, column, flag},
    kind::{Kind, NameRule, Rules, immutable},
};
use crate::{json, status::Causes, validate::one_of};

/// Shortest time between two reports of how many volumes a node takes.
const SHORTEST_UPDATE_PERIOD_SECONDS: i64 = 10;
/// Bounds of a token's life.
const TOKEN_SECONDS: std::ops::RangeInclusive<i64> = 600..=1 << 32;

/// The kind.
pub static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "csidrivers",
    singular: "csidriver",
    kind: "CSIDriver",
    short_names: &[],
    namespaced: false,
    type_name: "storage/v1.CSIDriver",
    has_status: false,
    create_on_update: false,
    unconditional_update: false,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &Driver,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("AttachRequired", |driver, _| flag(driver, "/spec/attachRequired")),
    column("PodInfoOnMount", |driver, _| flag(driver, "/spec/podInfoOnMount")),
    column("StorageCapacity", |driver, _| flag(driver, "/spec/storageCapacity")),
    column("TokenRequests", |driver, _| joined(driver, "/spec/tokenRequests", "<unset>")),
    column("RequiresRepublish", |driver, _| flag(driver, "/spec/requiresRepublish")),
    column("Modes", |driver, _| joined(driver, "/spec/volumeLifecycleModes", "<none>")),
    AGE,
];

fn joined(driver: &Value, path: &str, none: &str) -> Value {
    let mut texts = Vec::new();
    for entry in json::list(driver, path) {
        texts.push(entry.as_str().unwrap_or_else(|| json::text(entry, "/audience")));
    }
    if texts.is_empty() { none.into() } else { texts.join(",").into() }
}

struct Driver;

impl Rules for Driver {
    fn default(&self, object: &mut Value) {
        for (field, value) in [
            ("attachRequired", true),
            ("podInfoOnMount", false),
            ("storageCapacity", false),
            ("requiresRepublish", false),
            ("seLinuxMount", false),
        ] {
            let path = format!("/spec/{field}");
            if !json::is_set(object, &path) {
                json::set(object, &path, value);
            }
        }
        json::set_missing(object, "/spec/fsGroupPolicy", "ReadWriteOnceWithFSType");
        if json::list(object, "/spec/volumeLifecycleModes").is_empty() {
            json::set(object, "/spec/volumeLifecycleModes", json!(["Persistent"]));
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if new.get("spec") != old.get("spec") {
            json::set(
                new,
                "/metadata/generation",
                json::number(old, "/metadata/generation").unwrap_or(0) + 1,
            );
        }
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        one_of(json::text(object, "/spec/fsGroupPolicy"), &policies, "spec.fsGroupPolicy", causes);
        for mode in json::list(object, "/spec/volumeLifecycleModes") {
            let modes = ["Persistent", "Ephemeral"];
            one_of(mode.as_str().unwrap_or_default(), &modes, "spec.volumeLifecycleModes", causes);
        }
        if let Some(period) = json::number(object, "/spec/nodeAllocatableUpdatePeriodSeconds")
            && period < SHORTEST_UPDATE_PERIOD_SECONDS
        {
            causes.invalid(
                "spec.nodeAllocatableUpdatePeriodSeconds",
                &period.into(),
                "must be greater than or equal to 10 seconds",
            );
        }
        let mut audiences = Vec::new();
        for (index, request) in json::list(object, "/spec/tokenRequests").iter().enumerate() {
            let audience = json::text(request, "/audience");
            if audiences.contains(&audience) {
                causes.duplicate(format!("spec.tokenRequests[{index}].audience"), &audience.into());
                continue;
            }
            audiences.push(audience);
            if let Some(seconds) = json::number(request, "/expirationSeconds")
                && !TOKEN_SECONDS.contains(&seconds)
            {
                let field = format!("spec.tokenRequests[{index}].expirationSeconds");
                causes.invalid(
                    field,
                    &seconds.into(),
                    "may not be less than 10 minutes or more than 2^32 seconds",
                );
            }
        }
        if json::is_set(object, "/spec/serviceAccountTokenInSecrets") && audiences.is_empty() {
            causes.invalid(
                "spec.serviceAccountTokenInSecrets",
                &Value::Null,
                "no tokenRequests are specified",
            );
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        immutable(new, old, "/spec/attachRequired", "spec.attachedRequired", causes);
        immutable(new, old, "/spec/volumeLifecycleModes", "spec.volumeLifecycleModes", causes);
    }
}
