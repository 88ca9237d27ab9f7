//! PersistentVolumeClaims: defaults, the default StorageClass, the protection finalizer, the fields that
//! may change after creation.

use serde_json::{Value, json};

use super::{
    class,
    columns::{AGE, Column, NAME, access_modes, column, phase, text_or, wide},
    kind::{Kind, NameRule, Neighbours, Rules, immutable, keep_spec, keep_status},
    volume::{BETA_CLASS, access_modes_of, add_finalizer, positive_quantity},
};
use crate::{
    json,
    schema::quantity,
    status::{Causes, Refusal},
    validate::{one_of, subdomain},
};

/// Keeps a claim that pods use from going away.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const CLASS: &str = "/spec/storageClassName";
const REQUEST: &str = "/spec/resources/requests/storage";

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    kind: "PersistentVolumeClaim",
    short_names: &["pvc"],
    namespaced: true,
    type_name: "core/v1.PersistentVolumeClaim",
    has_status: true,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[("name", "/metadata/name")],
    columns: COLUMNS,
    rules: &Claim,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", |claim, _| phase(claim).into()),
    column("Volume", |claim, _| json::text(claim, "/spec/volumeName").into()),
    column("Capacity", |claim, _| bound(claim, json::text(claim, "/status/capacity/storage")).into()),
    column("Access Modes", |claim, _| bound(claim, &access_modes(claim, "/status/accessModes")).into()),
    column("StorageClass", |claim, _| text_or(claim, BETA_CLASS, json::text(claim, CLASS))),
    column("VolumeAttributesClass", |claim, _| text_or(claim, "/spec/volumeAttributesClassName", "<unset>")),
    AGE,
    wide("VolumeMode", |claim, _| text_or(claim, "/spec/volumeMode", "<unset>")),
];

/// What is known of a volume only once there is one.
fn bound(claim: &Value, text: &str) -> String {
    if json::text(claim, "/spec/volumeName").is_empty() { String::new() } else { text.to_owned() }
}

struct Claim;

impl Rules for Claim {
    fn default(&self, object: &mut Value) {
        json::set_default(object, "/status/phase", "Pending");
        json::set_missing(object, "/spec/volumeMode", "Filesystem");
    }

    fn admit_create(&self, object: &mut Value, neighbours: &dyn Neighbours) -> Result<(), Refusal> {
        add_finalizer(object, PROTECTION);
        if !json::is_set(object, CLASS)
            && !json::is_set(object, BETA_CLASS)
            && let Some(default) = class::default_class(&neighbours.all(&class::KIND))
        {
            json::set(object, CLASS, default);
        }
        Ok(())
    }

    // kube-apiserver: plugin/pkg/admission/storage/persistentvolume/resize/admission.go.
    fn review_update(&self, new: &Value, old: &Value, neighbours: &dyn Neighbours) -> Result<(), Refusal> {
        let size = |claim: &Value| quantity::number(json::text(claim, REQUEST)).unwrap_or_default();
        if size(new) <= size(old) {
            return Ok(());
        }
        let refuse = |detail: &str| Err(Refusal::forbidden(&KIND, json::text(old, "/metadata/name"), detail));
        if json::text(old, "/status/phase") != "Bound" {
            return refuse("Only bound persistent volume claims can be expanded");
        }
        let name =
            if json::is_set(new, BETA_CLASS) { json::text(new, BETA_CLASS) } else { json::text(new, CLASS) };
        let is_expandable = neighbours.all(&class::KIND).iter().any(|class| {
            json::text(class, "/metadata/name") == name
                && class.pointer("/allowVolumeExpansion") == Some(&Value::Bool(true))
        });
        if name.is_empty() || !is_expandable {
            return refuse(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            );
        }
        Ok(())
    }

    fn prepare_create(&self, object: &mut Value, _: &str) {
        json::set(object, "/status", json!({"phase": "Pending"}));
        normalise_sources(object, None);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_status(new, old);
        normalise_sources(new, Some(old));
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _: &str) {
        keep_spec(new, old);
    }

    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidatePersistentVolumeClaimSpec.
    fn validate(&self, object: &Value, causes: &mut Causes) {
        let Some(spec) = object.get("spec") else { return };
        access_modes_of(spec, "spec", causes);
        let field = "spec.resources[storage]";
        match spec.pointer("/resources/requests/storage") {
            None => causes.required(field, ""),
            Some(request) => {
                positive_quantity(request, field, causes);
            }
        }
        let class = json::text(object, CLASS);
        if !class.is_empty() {
            subdomain(class, "spec.storageClassName", causes);
        }
        one_of(json::text(spec, "/volumeMode"), &["Block", "Filesystem"], "spec.volumeMode", causes);
        validate_selector(spec, causes);
        for source in ["dataSource", "dataSourceRef"] {
            validate_source(spec, source, causes);
        }
        let (source, reference) = (spec.get("dataSource"), spec.get("dataSourceRef"));
        if let (Some(source), Some(reference)) = (source, reference) {
            let is_foreign = !json::text(reference, "/namespace").is_empty();
            let is_same =
                ["apiGroup", "kind", "name"].iter().all(|part| source.get(part) == reference.get(part));
            if is_foreign || !is_same {
                causes.invalid("spec", source, "dataSource must match dataSourceRef");
            }
        }
    }

    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidatePersistentVolumeClaimUpdate.
    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        let (mut comparable, mut before) = (new.clone(), old.clone());
        if json::text(old, "/spec/volumeName").is_empty() {
            json::copy(new, &mut before, "/spec/volumeName");
        }
        let is_named_later =
            !json::is_set(old, CLASS) && !json::is_set(old, BETA_CLASS) && json::is_set(new, CLASS);
        let takes_class = !json::is_set(old, CLASS)
            && json::is_set(old, BETA_CLASS)
            && old.pointer(BETA_CLASS) == new.pointer(CLASS);
        if takes_class {
            json::remove(&mut comparable, CLASS);
        }
        let is_free = !json::is_set(new, BETA_CLASS) || new.pointer(BETA_CLASS) == new.pointer(CLASS);
        if !(takes_class && is_free) {
            let field = "metadata.annotations.volume.beta.kubernetes.io/storage-class";
            if json::text(new, BETA_CLASS) != json::text(old, BETA_CLASS) {
                causes.invalid(field, &json::text(new, BETA_CLASS).into(), "field is immutable");
            }
            if is_named_later {
                json::copy(old, &mut comparable, CLASS);
            }
        }
        if json::text(new, "/status/phase") == "Bound" {
            json::copy(old, &mut comparable, REQUEST);
            json::copy(old, &mut comparable, "/spec/volumeAttributesClassName");
        }
        if comparable.get("spec") != before.get("spec") {
            causes.forbidden(
                "spec",
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            );
        }
        let size = |claim: &Value, path: &str| quantity::number(json::text(claim, path)).unwrap_or_default();
        if size(new, REQUEST) < size(old, REQUEST)
            && size(new, REQUEST) <= size(old, "/status/capacity/storage")
        {
            causes.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
        }
        immutable(new, old, "/spec/volumeMode", "volumeMode", causes);
        let class = "/spec/volumeAttributesClassName";
        if json::is_set(old, class) && !json::is_set(new, class) {
            causes
                .forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
        }
    }

    fn validate_status(&self, new: &Value, _: &Value, causes: &mut Causes) {
        for (resource, amount) in json::map(new, "/status/capacity").into_iter().flatten() {
            if amount.as_str().and_then(quantity::number).is_none_or(|number| number < 0) {
                causes.invalid(
                    format!("status.capacity[{resource}]"),
                    amount,
                    "must be greater than or equal to 0",
                );
            }
        }
    }
}

/// Keeps `dataSource` and `dataSourceRef` alike, and drops data sources that could never be used.
// kube-apiserver: pkg/api/persistentvolumeclaim/util.go, EnforceDataSourceBackwardsCompatibility.
fn normalise_sources(object: &mut Value, old: Option<&Value>) {
    let had_source = old.is_some_and(|old| json::is_set(old, "/spec/dataSource"));
    if !had_source && json::is_set(object, "/spec/dataSource") && !json::is_set(object, "/spec/dataSourceRef")
    {
        let group = json::text(object, "/spec/dataSource/apiGroup");
        let kind = json::text(object, "/spec/dataSource/kind");
        let is_usable = matches!(
            (group, kind),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        );
        if !is_usable {
            json::remove(object, "/spec/dataSource");
        }
    }
    // References to other namespaces are behind a gate that is off.
    let had_reference = old.is_some_and(|old| json::is_set(old, "/spec/dataSourceRef"));
    if !json::text(object, "/spec/dataSourceRef/namespace").is_empty() {
        if had_reference {
            return;
        }
        json::remove(object, "/spec/dataSourceRef");
    }
    let (source, reference) = ("/spec/dataSource", "/spec/dataSourceRef");
    let (from, to) = match (json::is_set(object, source), json::is_set(object, reference)) {
        (true, false) => (source, reference),
        (false, true) => (reference, source),
        _ => return,
    };
    if let Some(mut value) = object.pointer(from).cloned() {
        json::remove(&mut value, "/namespace");
        json::set(object, to, value);
    }
}

fn validate_source(spec: &Value, source: &str, causes: &mut Causes) {
    let Some(reference) = spec.get(source) else { return };
    for part in ["name", "kind"] {
        if json::text(reference, &format!("/{part}")).is_empty() {
            causes.required(format!("spec.{source}.{part}"), "");
        }
    }
    let group = json::text(reference, "/apiGroup");
    let kind = json::text(reference, "/kind");
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        causes.invalid(
            format!("spec.{source}"),
            &kind.into(),
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
}

fn validate_selector(spec: &Value, causes: &mut Causes) {
    for (index, expression) in json::list(spec, "/selector/matchExpressions").iter().enumerate() {
        let field = format!("spec.selector.matchExpressions[{index}]");
        let has_values = !json::list(expression, "/values").is_empty();
        match json::text(expression, "/operator") {
            "In" | "NotIn" if !has_values => {
                causes.required(
                    format!("{field}.values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                );
            }
            "Exists" | "DoesNotExist" if has_values => {
                causes.forbidden(format!("{field}.values"), "may not be specified");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            operator => {
                causes.invalid(
                    format!("{field}.operator"),
                    &operator.into(),
                    "not a valid selector operator",
                );
            }
        }
        let key = json::text(expression, "/key");
        if !crate::validate::is_qualified_name(key) {
            causes.invalid(format!("{field}.key"), &key.into(), "a qualified name is needed");
        }
    }
}
