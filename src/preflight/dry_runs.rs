//! Writes that are tried and not carried out: the objects of the fence and of `deploy`, and a patch of a node as the daemon.
//!
//! In: a client with the user's rights. Out: what was refused, in the server's words, and what was not checked, and why. An
//! admission policy, a webhook or a quota refuses a dry run as it would the write; who may not write learns nothing of them.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::fence::{
    ask::{LONGEST_ANSWER, NoAnswer, answer, apply, lacks_right, read, text, try_delete},
    policies::{BINDINGS, Fence, POLICIES, apply_path, path_of},
    probe::hidden,
    rehearsal::changed_list,
};

/// As whom the daemon writes.
pub(super) const DAEMON_USER: &str = "system:serviceaccount:mooring-system:mooring";

/// The objects of `deploy/kustomization.yaml`, each in the order in which it is applied.
const DEPLOY: [&str; 8] = [
    include_str!("../../deploy/namespace.yaml"),
    include_str!("../../deploy/rbac.yaml"),
    include_str!("../../deploy/flowschemas.yaml"),
    include_str!("../../deploy/deployment.yaml"),
    include_str!("../../deploy/service.yaml"),
    include_str!("../../deploy/metrics-reader.yaml"),
    include_str!("../../deploy/networkpolicy.yaml"),
    include_str!("../../deploy/pdb.yaml"),
];

/// What came of some dry runs.
#[derive(Debug, Default)]
struct DryRuns {
    refused: Vec<String>,
    unchecked: Vec<String>,
}

impl DryRuns {
    fn note(&mut self, what: &str, answer: Result<Value, NoAnswer>) {
        match answer {
            Ok(_) => {}
            // A namespace is not there yet, or the server does not let this user write at all: nothing has judged the object.
            Err(NoAnswer::Refused(code, why)) if code != 404 && !lacks_right(&why) => {
                self.refused.push(format!("{what}: {why}"));
            }
            Err(why) => self.unchecked.push(format!("{what}, because {why}")),
        }
    }

    fn value(self) -> Value {
        json!({ "refused": self.refused, "unchecked": self.unchecked })
    }
}

/// Whether the user could put up the fence and take it down again, and it could be proven: null, or why not.
pub(super) async fn fence(client: &Client, fences: &[&Fence]) -> Result<Value, NoAnswer> {
    for fence in fences {
        for (object, (_, plural)) in fence.objects().iter().zip([POLICIES, BINDINGS]) {
            let path = format!("{}&dryRun=All", apply_path(plural, &fence.name()));
            let tried = match apply(client, &path, object).await {
                Ok(_) => try_delete(client, &path_of(plural, &fence.name())).await,
                Err(error) => Err(error),
            };
            match tried {
                Ok(()) => {}
                Err(NoAnswer::Refused(_, why)) => return Ok(json!(why)),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(hidden(client).await.map_or(Value::Null, Value::String))
}

/// Whether the objects of `deploy` would be accepted.
pub(super) async fn manifests(client: &Client) -> Value {
    let mut runs = DryRuns::default();
    for object in DEPLOY.iter().flat_map(|file| serde_saphyr::from_multiple(file).unwrap_or_default()) {
        let (what, path) = applied(&object);
        // One that is there was accepted, with the images of this cluster, which the one that is shipped does not have.
        if object.get("kind") == Some(&json!("Deployment"))
            && matches!(read(client, path.split('?').next().unwrap_or_default()).await, Ok(Some(_)))
        {
            continue;
        }
        runs.note(&what, apply(client, &path, &object).await);
    }
    runs.value()
}

/// Kind and name of an object, and where its dry run is applied.
fn applied(object: &Value) -> (String, String) {
    let text = |at: &str| text(object, at);
    let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let namespace = match text("/metadata/namespace") {
        "" => String::new(),
        namespace => format!("/namespaces/{namespace}"),
    };
    let plural = match kind.to_lowercase() {
        kind if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    let asked = "fieldManager=mooring-preflight&force=true&dryRun=All";
    (format!("{kind} {name}"), format!("{root}/{version}{namespace}/{plural}/{name}?{asked}"))
}

/// Whether a patch of a node's list by the daemon would be accepted. As the daemon, if the user may impersonate it.
pub(super) async fn node_status(client: &Client) -> Result<Value, NoAnswer> {
    let nodes = read(client, "/api/v1/nodes?limit=1").await?.unwrap_or_default();
    let mut runs = DryRuns::default();
    let node = nodes.pointer("/items/0").unwrap_or(&Value::Null);
    let Some(name) = node.pointer("/metadata/name").and_then(Value::as_str) else {
        runs.unchecked.push("a patch of a node's status, because there is no node".to_owned());
        return Ok(runs.value());
    };
    let request = Request::patch(format!("/api/v1/nodes/{name}/status?dryRun=All"))
        .header("content-type", "application/merge-patch+json")
        .header("impersonate-user", DAEMON_USER)
        .header("impersonate-group", "system:serviceaccounts")
        .header("impersonate-group", "system:serviceaccounts:mooring-system")
        .header("impersonate-group", "system:authenticated")
        .body(json!({ "status": changed_list(node) }).to_string().into_bytes())
        .map_err(|error| NoAnswer::Unknown(error.to_string()))?;
    runs.note(
        &format!("a patch of nodes/status of {name} as the daemon"),
        answer(client, request, LONGEST_ANSWER).await,
    );
    Ok(runs.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_its_path() {
        let objects = DEPLOY.iter().flat_map(|file| serde_saphyr::from_multiple(file).unwrap());
        let paths: Vec<String> = objects.map(|object: Value| applied(&object).1).collect();
        for begins in [
            "/api/v1/namespaces/mooring-system?fieldManager=",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/mooring?",
            "/apis/apps/v1/namespaces/mooring-system/deployments/mooring?",
            "/apis/networking.k8s.io/v1/namespaces/mooring-system/networkpolicies/mooring?",
            "/apis/policy/v1/namespaces/mooring-system/poddisruptionbudgets/mooring?",
        ] {
            assert!(paths.iter().any(|path| path.starts_with(begins)), "{begins}: {paths:#?}");
        }
        let kustomization = include_str!("../../deploy/kustomization.yaml");
        assert_eq!(kustomization.matches(".yaml\n").count(), DEPLOY.len());
    }

    #[test]
    fn who_may_not_write_has_checked_nothing() {
        let refused = |code, words: &str| Err(NoAnswer::Refused(code, words.to_owned()));
        // What the server says, and whether that is a refusal.
        let cases = [
            (
                refused(403, r#"users "x" is forbidden: User "jane" cannot impersonate resource "users""#),
                false,
            ),
            (refused(403, r#"admission webhook "nodes.example.com" denied the request"#), true),
            (refused(403, r#"pods "x" is forbidden: exceeded quota"#), true),
            (refused(404, r#"namespaces "mooring-system" not found"#), false),
            (refused(422, "spec: invalid"), true),
            (Err(NoAnswer::Unknown("timed out".to_owned())), false),
        ];
        for (answer, expected) in cases {
            let (mut runs, told) = (DryRuns::default(), format!("{answer:?}"));
            runs.note("it", answer);
            assert_eq!((runs.refused.len() == 1, runs.unchecked.len() == 1), (expected, !expected), "{told}");
        }
    }
}
