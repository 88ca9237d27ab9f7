//! VolumeAttachments: a spec that never changes and a status only the attacher writes.

use serde_json::{Value, json};

use super::{
    columns::{AGE, Column, NAME, column, flag},
    kind::{Kind, NameRule, Rules, immutable, keep_spec, keep_status},
    volume::{default_spec, driver_name, validate_spec},
};
use crate::{json, status::Causes, validate::subdomain};

/// Longest message of an attach or detach error, in bytes.
const MESSAGE_SIZE: usize = 1024;

/// The kind.
pub static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "volumeattachments",
    singular: "volumeattachment",
    kind: "VolumeAttachment",
    short_names: &["va"],
    namespaced: false,
    type_name: "storage/v1.VolumeAttachment",
    has_status: true,
    create_on_update: false,
    unconditional_update: false,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &Attachment,
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Attacher", |attachment, _| json::text(attachment, "/spec/attacher").into()),
    column("PV", |attachment, _| json::text(attachment, "/spec/source/persistentVolumeName").into()),
    column("Node", |attachment, _| json::text(attachment, "/spec/nodeName").into()),
    column("Attached", |attachment, _| flag(attachment, "/status/attached")),
    AGE,
];

struct Attachment;

impl Rules for Attachment {
    fn default(&self, object: &mut Value) {
        const INLINE: &str = "/spec/source/inlineVolumeSpec";
        if json::is_set(object, INLINE) {
            default_spec(object, INLINE);
        }
    }

    fn prepare_create(&self, object: &mut Value, _: &str) {
        json::set(object, "/status", json!({"attached": false}));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_status(new, old);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _: &str) {
        keep_spec(new, old);
        for field in ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"] {
            json::copy(old, new, &format!("/metadata/{field}"));
        }
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        driver_name(json::text(object, "/spec/attacher"), "spec.attacher", causes);
        subdomain(json::text(object, "/spec/nodeName"), "spec.nodeName", causes);
        let name = object.pointer("/spec/source/persistentVolumeName");
        let inline = object.pointer("/spec/source/inlineVolumeSpec");
        let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        match (name, inline) {
            (None, None) => causes.required("spec.source", one),
            (Some(_), Some(_)) => causes.forbidden("spec.source", one),
            (Some(name), None) if name == "" => {
                causes.required(
                    "spec.source.persistentVolumeName",
                    "must specify non empty persistentVolumeName",
                );
            }
            (None, Some(spec)) => validate_spec(spec, "spec.source.inlineVolumeSpec", true, causes),
            (Some(_), None) => {}
        }
        if let Some(name) = name.and_then(Value::as_str) {
            subdomain(name, "spec.source.persistentVolumeName", causes);
        }
        for error in ["attachError", "detachError"] {
            if json::text(object, &format!("/status/{error}/message")).len() > MESSAGE_SIZE {
                causes.too_long(format!("status.{error}.message"), MESSAGE_SIZE);
            }
            if json::number(object, &format!("/status/{error}/errorCode")).is_some_and(|code| code < 0) {
                causes.invalid(format!("status.{error}.errorCode"), &Value::Null, "must not be negative");
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        immutable(new, old, "/spec", "spec", causes);
    }

    fn validate_status(&self, new: &Value, old: &Value, causes: &mut Causes) {
        self.validate(new, causes);
        self.validate_update(new, old, causes);
    }
}
