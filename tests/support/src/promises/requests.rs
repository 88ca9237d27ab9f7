//! The promises about a single request of the daemon: S7, S12, S13, S23, S34, S35 and S50.

use serde_json::Value;

/// A request, as the audit log has it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `create`, `delete`, `patch`, …
    pub verb: &'a str,
    /// The plural, with the subresource: `nodes/status`.
    pub resource: &'a str,
    /// Null for reads.
    pub body: &'a Value,
}

/// The promises that a request breaks.
pub fn broken(request: Request<'_>) -> Vec<&'static str> {
    let Request { verb, resource, body } = request;
    let mut broken = Vec::new();
    let mut must = |holds: bool, rule| {
        if !holds {
            broken.push(rule);
        }
    };
    let preconditions = &body["preconditions"];
    let is_guarded = preconditions["uid"].is_string() && preconditions["resourceVersion"].is_string();
    match (verb, resource) {
        ("get" | "list" | "watch", _)
        | (_, "leases")
        // Reviews store nothing.
        | (
            "create",
            "volumeattachments" | "persistentvolumes" | "tokenreviews" | "subjectaccessreviews",
        ) => {}
        ("create", "persistentvolumeclaims") => {
            let owner = &body["metadata"]["ownerReferences"][0];
            let is_owned = owner["kind"] == "Pod" && owner["uid"].is_string();
            must(is_owned, "S50 a claim is created for no pod");
        }
        ("delete", "volumeattachments") => {
            must(is_guarded, "S7 a VolumeAttachment is deleted without its UID or its revision");
        }
        ("create", "pods") => {
            let gates = body["spec"]["schedulingGates"].as_array();
            let is_gated = gates.is_some_and(|gates| !gates.is_empty());
            must(is_gated, "S23 a recycler pod may run before the volume is proven to be released");
        }
        ("delete", "pods" | "persistentvolumes") => {
            must(is_guarded, "S35 a deletion names no UID or no revision");
        }
        (_, "volumeattachments" | "volumeattachments/status") => {
            must(false, "S12 a VolumeAttachment is neither created nor deleted");
        }
        ("patch", _) => {
            let metadata = &body["metadata"];
            let is_guarded = metadata["uid"].is_string() && metadata["resourceVersion"].is_string();
            must(is_guarded, "S35 a patch names no UID or no revision");
            if resource == "nodes/status" {
                let is_narrow = keys(body) == ["metadata", "status"]
                    && keys(metadata) == ["resourceVersion", "uid"]
                    && keys(&body["status"]) == ["volumesAttached"];
                must(is_narrow, "S13 more than volumesAttached of a node is written");
            }
            if resource == "volumeattributesclasses" {
                let is_narrow = keys(body) == ["metadata"]
                    && keys(metadata) == ["finalizers", "resourceVersion", "uid"];
                must(is_narrow, "S34 more than the finalizers of a VolumeAttributesClass is written");
            }
            if resource == "pods" {
                let is_narrow = keys(&body["spec"]) == ["schedulingGates"];
                must(is_narrow, "S34 more than the gates of a recycler pod is written");
            }
        }
        _ => must(false, "S35 an unexpected kind of write"),
    }
    broken
}

/// Sorted.
fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> =
        object.as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_request_that_breaks_a_promise_is_told_by_its_id() {
        let guards = json!({ "uid": "u", "resourceVersion": "7" });
        let node = json!({ "metadata": guards, "status": { "volumesAttached": [] } });
        let cases = [
            ("delete", "volumeattachments", json!({ "preconditions": guards }), ""),
            ("delete", "volumeattachments", json!({ "preconditions": { "uid": "u" } }), "S7"),
            ("delete", "volumeattachments", json!({}), "S7"),
            ("patch", "volumeattachments", json!({ "metadata": guards }), "S12"),
            ("update", "volumeattachments/status", json!({}), "S12"),
            ("patch", "nodes/status", node.clone(), ""),
            ("patch", "nodes/status", json!({ "metadata": guards, "status": { "volumesInUse": [] } }), "S13"),
            (
                "patch",
                "nodes/status",
                json!({ "metadata": guards, "spec": {}, "status": { "volumesAttached": [] } }),
                "S13",
            ),
            ("patch", "persistentvolumes", json!({ "metadata": { "uid": "u" } }), "S35"),
            ("patch", "persistentvolumes", json!({ "metadata": guards }), ""),
            ("create", "pods", json!({ "spec": { "schedulingGates": [{ "name": "g" }] } }), ""),
            ("create", "pods", json!({ "spec": {} }), "S23"),
            ("patch", "pods", json!({ "metadata": guards, "spec": { "schedulingGates": null } }), ""),
            ("patch", "pods", json!({ "metadata": guards, "spec": { "nodeName": "a" } }), "S34"),
            ("delete", "persistentvolumes", json!({ "preconditions": guards }), ""),
            ("delete", "persistentvolumes", json!({}), "S35"),
            ("delete", "pods", json!({ "preconditions": { "uid": "u" } }), "S35"),
            ("update", "persistentvolumeclaims", json!({ "metadata": guards }), "S35"),
            (
                "patch",
                "volumeattributesclasses",
                json!({ "metadata": { "uid": "u", "resourceVersion": "7", "finalizers": [] } }),
                "",
            ),
            ("patch", "volumeattributesclasses", json!({ "metadata": guards, "parameters": {} }), "S34"),
            ("list", "pods", json!(null), ""),
            (
                "create",
                "persistentvolumeclaims",
                json!({ "metadata": { "ownerReferences": [{ "kind": "Pod", "uid": "u" }] } }),
                "",
            ),
            ("create", "persistentvolumeclaims", json!({ "metadata": { "name": "c" } }), "S50"),
        ];
        for (verb, resource, body, id) in cases {
            let broken = broken(Request { verb, resource, body: &body });
            let ids: Vec<&str> = broken.iter().filter_map(|rule| rule.split(' ').next()).collect();
            let expected: Vec<&str> = Some(id).filter(|id| !id.is_empty()).into_iter().collect();
            assert_eq!(ids, expected, "{verb} {resource} {body}");
        }
    }
}
