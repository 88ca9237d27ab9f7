//! Who wrote a field last, as the API server keeps it in `metadata.managedFields`.
//!
//! In: the JSON of an object that was read live, and the field. Out: the managers that own it. No watch keeps
//! any of this: it is large, and asked for only when something is suspicious. The server takes a field away from
//! its former owners with each change by an update, so the owner is who changed it last; of a field that was taken
//! out (the last entry of a list, say) there is none.

use serde::Deserialize;
use serde_json::Value;

use super::ids::Uid;

/// A field whose owner matters (S14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedField {
    /// `status.volumesAttached` of a Node.
    VolumesAttached,
    /// `spec` of a VolumeAttachment, which never changes: who owns it has created the object.
    AttachmentSpec,
    /// `status.phase` of a PersistentVolume or PersistentVolumeClaim.
    Phase,
}

impl OwnedField {
    /// The field for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VolumesAttached => "status.volumesAttached",
            Self::AttachmentSpec => "spec",
            Self::Phase => "status.phase",
        }
    }

    /// Where a set of fields (`fieldsV1`) has it.
    fn pointer(self) -> &'static str {
        match self {
            Self::VolumesAttached => "/f:status/f:volumesAttached",
            Self::AttachmentSpec => "/f:spec",
            Self::Phase => "/f:status/f:phase",
        }
    }
}

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
    fields: Value,
}

/// The managers that own a field of the object with this UID, in the order of the server's entries. Nothing if that
/// is not the object, or if the field has no owner.
///
/// # Errors
/// The body is no object with metadata.
pub fn owners(body: &[u8], uid: &Uid, field: OwnedField) -> Result<Vec<String>, serde_json::Error> {
    let Object { metadata } = serde_json::from_slice(body)?;
    if metadata.uid != *uid {
        return Ok(Vec::new());
    }
    let entries = metadata.managed_fields.into_iter();
    let owning = entries.filter(|entry| entry.fields.pointer(field.pointer()).is_some());
    Ok(owning.map(|entry| entry.manager).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let cases = [
            (vec![], OwnedField::VolumesAttached, vec![]),
            (vec![&conditions, &list], OwnedField::VolumesAttached, vec!["agent"]),
            (vec![&conditions], OwnedField::VolumesAttached, vec![]),
            (vec![&finalizers, &spec], OwnedField::AttachmentSpec, vec!["kubectl-create"]),
            (vec![&finalizers], OwnedField::Phase, vec![]),
            (vec![&finalizers, &phase], OwnedField::Phase, vec![kcm]),
        ];
        for (entries, field, expected) in cases {
            let body = json!({"metadata": {"uid": "u", "managedFields": entries}}).to_string();
            assert_eq!(owners(body.as_bytes(), &"u".into(), field).unwrap(), expected, "{body}");
            assert!(owners(body.as_bytes(), &"another".into(), field).unwrap().is_empty());
        }
        assert!(owners(b"{}", &"u".into(), OwnedField::Phase).is_err());
    }
}
