//! PersistentVolumes: defaults, protection finalizer, validation, immutability of the source.
//!
//! The server checks the content of the sources CSI, hostPath, local and NFS. For other sources it only
//! checks that there is exactly one.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, access_modes, column, phase, text_or, wide},
    kind::{Kind, NameRule, Neighbours, Rules, immutable, keep_spec, keep_status},
};
use crate::{
    json,
    schema::{quantity, types},
    status::{Causes, Refusal},
    validate::{one_of, subdomain},
};

/// Path of the annotation that named the class before there was a field.
pub const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
/// Keeps a bound volume from going away.
const PROTECTION: &str = "kubernetes.io/pv-protection";
/// Modes that the API knows.
pub const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// Longest name of a CSI driver.
const DRIVER_NAME_LENGTH: usize = 63;

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "persistentvolumes",
    singular: "persistentvolume",
    kind: "PersistentVolume",
    short_names: &["pv"],
    namespaced: false,
    type_name: "core/v1.PersistentVolume",
    has_status: true,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[("name", "/metadata/name")],
    columns: COLUMNS,
    rules: &Volume,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Capacity", |volume, _| json::text(volume, "/spec/capacity/storage").into()),
    column("Access Modes", |volume, _| access_modes(volume, "/spec/accessModes").into()),
    column("Reclaim Policy", |volume, _| json::text(volume, "/spec/persistentVolumeReclaimPolicy").into()),
    column("Status", |volume, _| phase(volume).into()),
    column("Claim", |volume, _| claim(volume).into()),
    column("StorageClass", |volume, _| {
        text_or(volume, BETA_CLASS, json::text(volume, "/spec/storageClassName"))
    }),
    column("VolumeAttributesClass", |volume, _| {
        text_or(volume, "/spec/volumeAttributesClassName", "<unset>")
    }),
    column("Reason", |volume, _| json::text(volume, "/status/reason").into()),
    AGE,
    wide("VolumeMode", |volume, _| text_or(volume, "/spec/volumeMode", "<unset>")),
];

fn claim(volume: &Value) -> String {
    if !json::is_set(volume, "/spec/claimRef") {
        return String::new();
    }
    let part = |name: &str| json::text(volume, &format!("/spec/claimRef/{name}"));
    format!("{}/{}", part("namespace"), part("name"))
}

struct Volume;

impl Rules for Volume {
    fn default(&self, object: &mut Value) {
        json::set_default(object, "/status/phase", "Pending");
        json::set_default(object, "/spec/persistentVolumeReclaimPolicy", "Retain");
        json::set_missing(object, "/spec/volumeMode", "Filesystem");
        default_spec(object, "/spec");
    }

    fn admit_create(&self, object: &mut Value, _: &dyn Neighbours) -> Result<(), Refusal> {
        add_finalizer(object, PROTECTION);
        Ok(())
    }

    fn prepare_create(&self, object: &mut Value, now: &str) {
        json::set(object, "/status", serde_json::json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_status(new, old);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, now: &str) {
        const TRANSITION: &str = "/status/lastPhaseTransitionTime";
        keep_spec(new, old);
        let is_same_phase = json::text(new, "/status/phase") == json::text(old, "/status/phase");
        let is_unset = !json::is_set(new, TRANSITION);
        if is_same_phase && is_unset {
            json::copy(old, new, TRANSITION);
        } else if !is_same_phase && (is_unset || new.pointer(TRANSITION) == old.pointer(TRANSITION)) {
            json::set(new, TRANSITION, now);
        }
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        if let Some(spec) = object.get("spec") {
            validate_spec(spec, "spec", false, causes);
        }
    }

    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidatePersistentVolumeUpdate.
    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        let expand_secret = "/controllerExpandSecretRef";
        for source in sources() {
            let path = format!("/spec/{source}");
            let (mut new, old) = (new.pointer(&path).cloned(), old.pointer(&path));
            if let (Some(new), Some(old)) = (new.as_mut(), old)
                && !json::is_set(old, expand_secret)
            {
                json::remove(new, expand_secret);
            }
            if new.as_ref() != old {
                causes.forbidden(
                    "spec.persistentvolumesource",
                    "spec.persistentvolumesource is immutable after creation",
                );
            }
        }
        immutable(new, old, "/spec/volumeMode", "volumeMode", causes);
        if json::is_set(old, "/spec/nodeAffinity") {
            immutable(new, old, "/spec/nodeAffinity", "nodeAffinity", causes);
        }
        let class = "/spec/volumeAttributesClassName";
        if json::is_set(old, class) && !json::is_set(new, class) {
            causes
                .forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
        }
    }
}

/// Adds a finalizer that is not there.
pub fn add_finalizer(object: &mut Value, finalizer: &str) {
    let mut finalizers = json::list(object, "/metadata/finalizers").to_vec();
    if !finalizers.iter().any(|value| value == finalizer) {
        finalizers.push(finalizer.into());
        json::set(object, "/metadata/finalizers", finalizers);
    }
}

/// Fills in what a volume's spec, inline or not, gets when decoded.
pub fn default_spec(object: &mut Value, spec: &str) {
    if json::is_set(object, &format!("{spec}/hostPath"))
        && !json::is_set(object, &format!("{spec}/hostPath/type"))
    {
        json::set(object, &format!("{spec}/hostPath/type"), "");
    }
    for (source, field, value) in [
        ("iscsi", "iscsiInterface", "default"),
        ("rbd", "pool", "rbd"),
        ("rbd", "user", "admin"),
        ("rbd", "keyring", "/etc/ceph/keyring"),
        ("scaleIO", "storageMode", "ThinProvisioned"),
        ("scaleIO", "fsType", "xfs"),
        ("azureDisk", "cachingMode", "ReadWrite"),
        ("azureDisk", "fsType", "ext4"),
        ("azureDisk", "kind", "Shared"),
    ] {
        if json::is_set(object, &format!("{spec}/{source}")) {
            json::set_default(object, &format!("{spec}/{source}/{field}"), value);
        }
    }
    if json::is_set(object, &format!("{spec}/azureDisk"))
        && !json::is_set(object, &format!("{spec}/azureDisk/readOnly"))
    {
        json::set(object, &format!("{spec}/azureDisk/readOnly"), false);
    }
}

/// The names of all volume sources.
fn sources() -> impl Iterator<Item = &'static str> {
    const OTHERS: [&str; 9] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    ];
    let fields = types().get("core/v1.PersistentVolumeSpec").map(|described| described.fields.as_slice());
    fields.unwrap_or_default().iter().map(|field| field.name).filter(|name| !OTHERS.contains(name))
}

/// Checks the modes of a volume or a claim.
pub fn access_modes_of(spec: &Value, path: &str, causes: &mut Causes) {
    let modes = json::list(spec, "/accessModes");
    let field = format!("{path}.accessModes");
    if modes.is_empty() {
        causes.required(&field, "at least 1 access mode is required");
    }
    for mode in modes {
        one_of(mode.as_str().unwrap_or_default(), &ACCESS_MODES, &field, causes);
    }
    let is_known_other =
        |mode: &Value| mode != "ReadWriteOncePod" && ACCESS_MODES.iter().any(|known| mode == known);
    if modes.iter().any(|mode| mode == "ReadWriteOncePod") && modes.iter().any(is_known_other) {
        causes.forbidden(field, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Checks that a quantity is more than nothing.
pub fn positive_quantity(value: &Value, field: &str, causes: &mut Causes) {
    if value.as_str().and_then(quantity::number).is_none_or(|number| number <= 0) {
        causes.invalid(field, value, "must be greater than zero");
    }
}

/// Checks the name of a CSI driver.
pub fn driver_name(name: &str, field: &str, causes: &mut Causes) {
    if name.is_empty() {
        causes.required(field, "");
        return;
    }
    if name.len() > DRIVER_NAME_LENGTH {
        causes.too_long(field, DRIVER_NAME_LENGTH);
    }
    subdomain(&name.to_ascii_lowercase(), field, causes);
}

/// Checks the spec of a volume, which may be inline in a VolumeAttachment.
// kube-apiserver: pkg/apis/core/validation/validation.go, ValidatePersistentVolumeSpec.
pub fn validate_spec(spec: &Value, path: &str, is_inline: bool, causes: &mut Causes) {
    let field = |name: &str| format!("{path}.{name}");
    if is_inline {
        for name in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
            if spec.get(name).is_some() {
                causes.forbidden(field(name), "may not be specified in the context of inline volumes");
            }
        }
        if spec.get("csi").is_none() {
            causes.required(field("csi"), "has to be specified in the context of inline volumes");
        }
    }
    access_modes_of(spec, path, causes);
    let policy = json::text(spec, "/persistentVolumeReclaimPolicy");
    if is_inline {
        if !policy.is_empty() && policy != "Retain" {
            causes.forbidden(
                field("persistentVolumeReclaimPolicy"),
                "may only be Retain in the context of inline volumes",
            );
        }
        if json::text(spec, "/volumeMode") == "Block" {
            causes.forbidden(field("volumeMode"), "may only be Filesystem in the context of inline volumes");
        }
    } else {
        validate_capacity(spec, &field("capacity"), causes);
        if !policy.is_empty() {
            one_of(policy, &["Delete", "Recycle", "Retain"], field("persistentVolumeReclaimPolicy"), causes);
        }
        one_of(json::text(spec, "/volumeMode"), &["Block", "Filesystem"], field("volumeMode"), causes);
        let class = json::text(spec, "/storageClassName");
        if !class.is_empty() {
            subdomain(class, field("storageClassName"), causes);
        }
        if json::is_set(spec, "/nodeAffinity") {
            validate_affinity(spec, path, causes);
        }
    }
    let mut found = 0;
    for source in sources().filter(|source| spec.get(source).is_some()) {
        found += 1;
        if found > 1 {
            causes.forbidden(field(source), "may not specify more than 1 volume type");
        } else {
            validate_source(spec, source, path, causes);
        }
    }
    if found == 0 {
        causes.required(path, "must specify a volume type");
    }
    if json::is_set(spec, "/volumeAttributesClassName") {
        let class = json::text(spec, "/volumeAttributesClassName");
        if class.is_empty() {
            causes.required(field("volumeAttributesClassName"), "an empty string is disallowed");
        } else {
            subdomain(class, field("volumeAttributesClassName"), causes);
        }
        if spec.get("csi").is_none() {
            causes.required(field("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

fn validate_capacity(spec: &Value, field: &str, causes: &mut Causes) {
    let capacity = json::map(spec, "/capacity");
    if capacity.is_none_or(serde_json::Map::is_empty) {
        causes.required(field, "");
    }
    if capacity.is_none_or(|capacity| capacity.len() > 1 || !capacity.contains_key("storage")) {
        causes.not_supported(field, spec.get("capacity").unwrap_or(&Value::Null), &["storage"]);
    }
    for (resource, amount) in capacity.into_iter().flatten() {
        let field = format!("{field}[{resource}]");
        if amount.as_str().and_then(quantity::number).is_some_and(|number| number < 0) {
            causes.invalid(&field, amount, "must be greater than or equal to 0");
        }
        positive_quantity(amount, &field, causes);
    }
}

fn validate_affinity(spec: &Value, path: &str, causes: &mut Causes) {
    let field = format!("{path}.nodeAffinity.required");
    if !json::is_set(spec, "/nodeAffinity/required") {
        causes.required(field, "must specify required node constraints");
        return;
    }
    let terms = json::list(spec, "/nodeAffinity/required/nodeSelectorTerms");
    if terms.is_empty() {
        causes.required(format!("{field}.nodeSelectorTerms"), "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        for (position, expression) in json::list(term, "/matchExpressions").iter().enumerate() {
            let field = format!("{field}.nodeSelectorTerms[{index}].matchExpressions[{position}]");
            match json::text(expression, "/operator") {
                "In" | "NotIn" if json::list(expression, "/values").is_empty() => {
                    causes.required(format!("{field}.values"), "must be specified");
                }
                "Exists" | "DoesNotExist" if !json::list(expression, "/values").is_empty() => {
                    causes.forbidden(format!("{field}.values"), "may not be specified");
                }
                "Gt" | "Lt" if json::list(expression, "/values").len() != 1 => {
                    causes.required(format!("{field}.values"), "must be specified single value");
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
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
}

fn validate_source(spec: &Value, source: &str, path: &str, causes: &mut Causes) {
    let field = format!("{path}.{source}");
    let required: &[&str] = match source {
        "csi" => &["volumeHandle"],
        "hostPath" | "local" => &["path"],
        "nfs" => &["server", "path"],
        _ => &[],
    };
    if source == "csi" {
        driver_name(json::text(spec, "/csi/driver"), &format!("{field}.driver"), causes);
        for secret in [
            "controllerPublishSecretRef",
            "controllerExpandSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            for part in ["name", "namespace"] {
                if spec.pointer(&format!("/csi/{secret}")).is_some()
                    && json::text(spec, &format!("/csi/{secret}/{part}")).is_empty()
                {
                    causes.required(format!("{field}.{secret}.{part}"), "");
                }
            }
        }
    }
    for name in required {
        if json::text(spec, &format!("/{source}/{name}")).is_empty() {
            causes.required(format!("{field}.{name}"), "");
        }
    }
    let location = json::text(spec, &format!("/{source}/path"));
    if matches!(source, "hostPath" | "local") && location.split('/').any(|part| part == "..") {
        causes.invalid(format!("{field}.path"), &location.into(), "must not contain '..'");
    }
    if source == "nfs" && !location.is_empty() && !location.starts_with('/') {
        causes.invalid(format!("{field}.path"), &location.into(), "must be an absolute path");
    }
    if source == "hostPath"
        && location == "/"
        && json::text(spec, "/persistentVolumeReclaimPolicy") == "Recycle"
    {
        causes.forbidden(
            format!("{path}.persistentVolumeReclaimPolicy"),
            "may not be 'recycle' for a hostPath mount of '/'",
        );
    }
    if source == "local" && !json::is_set(spec, "/nodeAffinity") {
        causes.required(format!("{path}.nodeAffinity"), "Local volume requires node affinity");
    }
}
