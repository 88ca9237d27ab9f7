//! Who wrote a field last, as the API server keeps it in `metadata.managedFields`.
//!
//! In: the JSON of an object that was read live, and the field. Out: the managers that own it. No watch keeps
//! any of this: it is large, and asked for only when something is suspicious. The server takes a field away from
//! its former owners with each change by an update, so the owner is who changed it last; of a field that was taken
//! out (the last entry of a list, say) there is none.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::ids::Uid;

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: Uid,
    managed_fields: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    manager: String,
    #[serde(rename = "fieldsV1")]
    fields: Box<RawValue>,
}

impl Entry {
    /// Whether it owns a field. One that is nested deeper than any object owns nothing: who writes such a thing may not keep the
    /// other entries from being read.
    fn owns(&self, field: &str) -> bool {
        serde_json::from_str::<Value>(self.fields.get()).is_ok_and(|fields| fields.pointer(field).is_some())
    }
}

/// The managers that own a field of the object with this UID, in the order of the server's entries. Nothing if that
/// is not the object, or if the field has no owner. The field is a JSON pointer into a set of fields (`fieldsV1`), such as
/// `/f:status/f:phase`.
///
/// # Errors
/// The body is no object with metadata.
pub fn owners(body: &[u8], uid: &Uid, field: &str) -> Result<Vec<String>, serde_json::Error> {
    let Object { metadata } = serde_json::from_slice(body)?;
    if metadata.uid != *uid {
        return Ok(Vec::new());
    }
    let entries = metadata.managed_fields.into_iter();
    let owning = entries.filter(|entry| entry.owns(field));
    Ok(owning.map(|entry| entry.manager).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s14_an_entry_that_is_nested_too_deep_hides_no_other() {
        let deep = format!("{}1{}", "{\"f:a\":".repeat(200), "}".repeat(200));
        let other = r#"{"f:status":{"f:phase":{}}}"#;
        let body = format!(
            r#"{{"metadata":{{"uid":"u","managedFields":[{{"manager":"a","fieldsV1":{deep}}},{{"manager":"b","fieldsV1":{other}}}]}}}}"#
        );
        assert_eq!(owners(body.as_bytes(), &"u".into(), "/f:status/f:phase").unwrap(), ["b"]);
    }

    #[test]
    fn s14_the_owner_of_a_field_is_not_whoever_wrote_something_else() {
        let entry = |manager: &str, subresource: &str, fields: Value| {
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                   "fieldsV1": fields, "subresource": subresource, "time": "2026-01-01T00:00:00Z"})
        };
        let conditions =
            entry("kube-controller-manager", "status", json!({"f:status": {"f:conditions": {}}}));
        let finalizers = entry("kube-controller-manager", "", json!({"f:metadata": {"f:finalizers": {}}}));
        let list = entry("agent", "status", json!({"f:status": {"f:volumesAttached": {}}}));
        let phase = entry("kube-controller-manager", "status", json!({"f:status": {"f:phase": {}}}));
        let spec = entry("kubectl-create", "", json!({"f:spec": {"f:attacher": {}}}));
        let kcm = "kube-controller-manager";
        let protection = json!({".": {}, "v:\"kubernetes.io/pvc-protection\"": {}});
        let protection =
            entry("kube-controller-manager", "", json!({"f:metadata": {"f:finalizers": protection}}));
        let cases = [
            (vec![&finalizers], "/f:metadata/f:finalizers/v:\"kubernetes.io~1pvc-protection\"", vec![]),
            (
                vec![&protection, &list],
                "/f:metadata/f:finalizers/v:\"kubernetes.io~1pvc-protection\"",
                vec![kcm],
            ),
            (vec![&protection], "/f:metadata/f:finalizers/v:\"kubernetes.io~1pv-protection\"", vec![]),
            (vec![], "/f:status/f:volumesAttached", vec![]),
            (vec![&conditions, &list], "/f:status/f:volumesAttached", vec!["agent"]),
            (vec![&conditions], "/f:status/f:volumesAttached", vec![]),
            (vec![&finalizers, &spec], "/f:spec", vec!["kubectl-create"]),
            (vec![&finalizers], "/f:status/f:phase", vec![]),
            (vec![&finalizers, &phase], "/f:status/f:phase", vec![kcm]),
        ];
        for (entries, field, expected) in cases {
            let body = json!({"metadata": {"uid": "u", "managedFields": entries}}).to_string();
            assert_eq!(owners(body.as_bytes(), &"u".into(), field).unwrap(), expected, "{body}");
            assert!(owners(body.as_bytes(), &"another".into(), field).unwrap().is_empty());
        }
        assert!(owners(b"{}", &"u".into(), "/f:status/f:phase").is_err());
    }
}
