//! Which writes may land in the term of another leader (S37).

use apiserver::call::{Request, Verb};

/// Whether a write does no harm there. A create names no revision. Of a delete, of what nodes list, and of what volumes and
/// claims refer to, the revision is not enough: they are decided by more than the object that the request names. So are most phases of a volume or claim:
/// that a claim or volume is gone, or that a recycler failed. That it is bound or available is not: at the revision that
/// the patch names it is right under any leader.
pub fn may_be_late(request: &Request) -> bool {
    let target = request.target();
    let is_phase = matches!(target.plural, "persistentvolumes" | "persistentvolumeclaims")
        && target.subresource == "status"
        && request.verb == Verb::Patch;
    let phase = request.body.as_ref().and_then(|body| body.pointer("/status/phase")?.as_str());
    is_phase && matches!(phase, Some("Available" | "Bound" | "Pending"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn s37_only_what_is_right_whoever_leads_may_be_late() {
        let cases = [
            (Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments", false),
            (Verb::Delete, "/apis/storage.k8s.io/v1/volumeattachments/csi-1", false),
            (Verb::Patch, "/api/v1/nodes/n/status", false),
            (Verb::Patch, "/api/v1/persistentvolumes/v", false),
            (Verb::Patch, "/api/v1/namespaces/ns/persistentvolumeclaims/c", false),
        ];
        let volume = "/api/v1/persistentvolumes/v/status";
        let claim = "/api/v1/namespaces/ns/persistentvolumeclaims/c/status";
        for (path, phase, expected) in [
            (volume, json!("Bound"), true),
            (volume, json!("Available"), true),
            (volume, json!("Released"), false),
            (volume, json!("Failed"), false),
            (volume, Value::Null, false),
            (claim, json!("Bound"), true),
            (claim, json!("Lost"), false),
            (claim, Value::Null, false),
        ] {
            let body = Some(json!({"status": {"phase": phase}}));
            let request = Request { verb: Verb::Patch, path: path.to_owned(), body };
            assert_eq!(may_be_late(&request), expected, "{phase} {path}");
        }
        for (verb, path, expected) in cases {
            let request = Request { verb, path: path.to_owned(), body: None };
            assert_eq!(may_be_late(&request), expected, "{verb:?} {path}");
        }
    }
}
