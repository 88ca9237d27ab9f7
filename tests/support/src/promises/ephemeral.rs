//! The promise about claims that the daemon creates: S50.
//!
//! In: the claim, and all that the pods of its namespace ever were. Out: what is wrong with it.

use serde_json::Value;

use super::text;

/// S50: a claim is created for a generic ephemeral volume of a pod that exists or existed, which owns it by its UID, and of
/// nothing but the template.
pub fn made_for_no_pod<'a>(claim: &Value, mut pods: impl Iterator<Item = &'a Value>) -> Option<String> {
    let owners = claim["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [owner] = owners else { return Some(format!("S50 a claim is created for {} owners", owners.len())) };
    let is_bound =
        owner["kind"] == "Pod" && owner["controller"] == true && owner["blockOwnerDeletion"] == true;
    if !is_bound {
        return Some("S50 a claim is created that no pod controls".to_owned());
    }
    let same = ["/metadata/namespace", "/metadata/name", "/metadata/uid"];
    let wanted = [text(claim, "/metadata/namespace"), text(owner, "/name"), text(owner, "/uid")];
    let Some(pod) = pods.find(|pod| same.map(|pointer| text(pod, pointer)) == wanted) else {
        return Some(format!(
            "S50 a claim is created for the pod {} {}, which never was",
            wanted[1], wanted[2]
        ));
    };
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let mut templates = volumes.filter_map(|volume| {
        let name = format!("{}-{}", wanted[1], volume["name"].as_str()?);
        let template = volume.pointer("/ephemeral/volumeClaimTemplate")?;
        (name == text(claim, "/metadata/name")).then_some(template)
    });
    let Some(template) = templates.next() else {
        return Some("S50 a claim is created for no volume of its pod".to_owned());
    };
    let parts = ["/metadata/labels", "/metadata/annotations", "/spec"];
    let lacking = parts.into_iter().find(|part| {
        let of = |object: &Value| object.pointer(part).cloned().unwrap_or_default();
        !is_part(&of(template), &of(claim))
    });
    lacking.map(|part| format!("S50 a claim is created without all of its template: {part}"))
}

/// Whether all of one is in the other, to which the API server has added what is missing.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Null, _) => true,
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|whole| is_part(value, whole)))
        }
        (Value::Object(part), Value::Null) => part.is_empty(),
        _ => part == whole,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s50_a_claim_is_told_that_is_for_no_pod_or_not_of_its_template() {
        let template =
            json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "storageClassName": "fast" } });
        let volumes = json!([
            { "name": "data", "ephemeral": { "volumeClaimTemplate": template } },
            { "name": "named", "persistentVolumeClaim": { "claimName": "p-named" } },
        ]);
        let pod = json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" }, "spec": { "volumes": volumes },
        });
        let claim = |name: &str, owners: &Value, labels: &Value, class: &str| {
            json!({
                "metadata": { "namespace": "ns", "name": name, "labels": labels, "ownerReferences": owners },
                "spec": { "storageClassName": class, "volumeMode": "Filesystem" },
            })
        };
        let owner = |uid: &str, controls: bool| json!([{ "kind": "Pod", "name": "p", "uid": uid, "controller": controls, "blockOwnerDeletion": true }]);
        let (right, labels) = (owner("u", true), json!({ "a": "b", "added": "c" }));
        let cases = [
            (claim("p-data", &right, &labels, "fast"), false),
            (claim("p-data", &json!([]), &labels, "fast"), true),
            (claim("p-data", &json!([right[0], right[0]]), &labels, "fast"), true),
            (claim("p-data", &owner("u", false), &labels, "fast"), true),
            (claim("p-data", &owner("earlier", true), &labels, "fast"), true),
            (claim("p-named", &right, &labels, "fast"), true),
            (claim("p-other", &right, &labels, "fast"), true),
            (claim("p-data", &right, &json!({}), "fast"), true),
            (claim("p-data", &right, &labels, "slow"), true),
        ];
        for (claim, is_told) in cases {
            assert_eq!(made_for_no_pod(&claim, [&pod].into_iter()).is_some(), is_told, "{claim}");
        }
    }
}
