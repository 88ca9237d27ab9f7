//! Whether the daemon may make its writes: dry runs of the main kinds, before a loop is fenced off for it.
//!
//! In: a client with the daemon's rights, and the loops that it runs. Out: what is refused. Creates of VolumeAttachments are not
//! among them: the probe is one. A node shows what admission makes of a list that changes; of all other kinds an object that does not
//! exist is enough to see the rights, which are judged first.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::{
    ask::{NoAnswer, ask, lacks_right, read},
    policies::Fence,
};

/// Of objects that do not exist.
const NAME: &str = "mooring-rehearsal";

/// The writes of a loop of this account. `NODE` stands for a node.
fn writes(account: &str) -> &'static [(Method, &'static str)] {
    const VOLUME: (Method, &str) = (Method::PATCH, "/api/v1/persistentvolumes/mooring-rehearsal");
    const VOLUME_STATUS: (Method, &str) =
        (Method::PATCH, "/api/v1/persistentvolumes/mooring-rehearsal/status");
    const CLAIMS: &str = "/api/v1/namespaces/mooring-system/persistentvolumeclaims";
    const CLAIM: (Method, &str) =
        (Method::PATCH, "/api/v1/namespaces/mooring-system/persistentvolumeclaims/mooring-rehearsal");
    const CLAIM_STATUS: (Method, &str) =
        (Method::PATCH, "/api/v1/namespaces/mooring-system/persistentvolumeclaims/mooring-rehearsal/status");
    match account {
        "attachdetach-controller" => &[
            (Method::DELETE, "/apis/storage.k8s.io/v1/volumeattachments/mooring-rehearsal"),
            (Method::PATCH, "/api/v1/nodes/NODE/status"),
        ],
        "persistent-volume-binder" => &[VOLUME, VOLUME_STATUS, CLAIM, CLAIM_STATUS],
        "expand-controller" => &[CLAIM, CLAIM_STATUS],
        "pvc-protection-controller" => &[CLAIM],
        "pv-protection-controller" => &[VOLUME],
        "volumeattributesclass-protection-controller" => {
            &[(Method::PATCH, "/apis/storage.k8s.io/v1/volumeattributesclasses/mooring-rehearsal")]
        }
        "ephemeral-volume-controller" => &[(Method::POST, CLAIMS)],
        _ => &[],
    }
}

/// The list of a node with one entry more, for a dry run: what lets a list pass as it is may refuse each change of it.
pub fn changed_list(node: &Value) -> Value {
    let listed = node.pointer("/status/volumesAttached").and_then(Value::as_array);
    let entry = json!({ "name": NAME, "devicePath": "" });
    json!({ "volumesAttached": listed.into_iter().flatten().chain([&entry]).collect::<Vec<_>>() })
}

/// What it sends: with preconditions, as each write of the daemon (S35).
fn body(method: &Method, node: Option<&Value>) -> Value {
    let guard = json!({ "uid": NAME, "resourceVersion": "1" });
    match (method, node) {
        // The options of a DELETE with a body are read from that alone.
        (&Method::DELETE, _) => json!({ "dryRun": ["All"], "preconditions": guard }),
        (&Method::POST, _) => {
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": NAME, "uid": NAME });
            json!({ "metadata": { "name": NAME, "ownerReferences": [owner] } })
        }
        (_, Some(node)) => {
            let of = |path| node.pointer(path);
            let guard = of("/metadata/uid")
                .zip(of("/metadata/resourceVersion"))
                .map_or(guard, |(uid, revision)| json!({ "uid": uid, "resourceVersion": revision }));
            json!({ "metadata": guard, "status": changed_list(node) })
        }
        _ => json!({ "metadata": guard }),
    }
}

/// The first write that is refused or gets no answer, with the server's words; among them those of the lease, by namespace and
/// name, if there is an election.
pub async fn refused(client: &Client, fences: &[&Fence], lease: Option<[&str; 2]>) -> Option<String> {
    if let Some(lease) = lease
        && let Some(why) = refused_lease(client, lease).await
    {
        return Some(why);
    }
    for (method, path) in fences.iter().flat_map(|fence| writes(fence.account)) {
        let on_node = path.contains("NODE");
        // Who writes no node need not be allowed to read one.
        let nodes = if on_node { read(client, "/api/v1/nodes?limit=1").await } else { Ok(None) };
        let nodes = match nodes {
            Ok(nodes) => nodes.unwrap_or_default(),
            Err(why) => return Some(format!("no node can be read: {why}")),
        };
        let node = nodes.pointer("/items/0").unwrap_or(&Value::Null);
        let path =
            path.replace("NODE", node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(NAME));
        let body = body(method, on_node.then_some(node));
        let answer = ask(client, method.clone(), &format!("{path}?dryRun=All"), Some(&body)).await;
        match answer {
            // What does not exist, and a conflict.
            Ok(_) | Err(NoAnswer::Refused(404 | 409, _)) => {}
            Err(NoAnswer::Refused(_, words)) if !on_node && !lacks_right(&words) => {}
            Err(why) => return Some(format!("a dry run of {method} {path}: {why}")),
        }
    }
    None
}

/// What of the lease is refused: to make it, if it is not there, and to update it. A PUT of one that is not there makes it.
async fn refused_lease(client: &Client, [namespace, name]: [&str; 2]) -> Option<String> {
    let all = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let path = format!("{all}/{name}");
    let lease = match read(client, &path).await {
        Ok(lease) => lease,
        Err(why) => return Some(format!("the lease cannot be read: {why}")),
    };
    let is_new = lease.is_none();
    let made = || {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": namespace }, "spec": { "leaseDurationSeconds": 1 },
        })
    };
    let lease = lease.unwrap_or_else(made);
    let made = is_new.then_some((Method::POST, all));
    for (method, path) in made.into_iter().chain([(Method::PUT, path)]) {
        match ask(client, method.clone(), &format!("{path}?dryRun=All"), Some(&lease)).await {
            Ok(_) | Err(NoAnswer::Refused(409, _)) => {}
            // To a POST it says that the namespace is not there.
            Err(NoAnswer::Refused(404, _)) if method == Method::PUT => {}
            Err(why) => return Some(format!("a dry run of {method} {path}: {why}")),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::fence::policies::FENCES;

    #[tokio::test]
    async fn s1_a_write_that_is_refused_is_told_before_anything_is_fenced_off() {
        // What is refused, with what, and what is told.
        const NO_RIGHT: &str = "it is forbidden: User \"mooring\" cannot";
        const LEASES: &str = "POST /apis/coordination.k8s.io/v1/namespaces/ns/leases";
        let cases = [
            ("", 404, "", None),
            (
                "PATCH /api/v1/nodes/n1/status",
                403,
                NO_RIGHT,
                Some("PATCH /api/v1/nodes/n1/status: it is forbidden"),
            ),
            ("PATCH /api/v1/nodes/n1/status", 400, "the webhook says no", Some("the webhook says no")),
            ("DELETE /apis/storage.k8s.io/v1/volumeattachments", 403, NO_RIGHT, Some("DELETE")),
            (
                "PATCH /api/v1/persistentvolumes/",
                403,
                NO_RIGHT,
                Some("persistentvolumes/mooring-rehearsal: it"),
            ),
            ("POST /api/v1/namespaces/mooring-system/persistentvolumeclaims", 422, "spec is empty", None),
            ("POST /api/v1/namespaces/mooring-system/persistentvolumeclaims", 403, NO_RIGHT, Some("POST")),
            ("PATCH /apis/storage.k8s.io/v1/volumeattributesclasses", 500, "late", Some("late")),
            ("GET /api/v1/nodes", 403, NO_RIGHT, Some("no node can be read")),
            (LEASES, 403, NO_RIGHT, Some("POST /apis/coordination.k8s.io/v1/namespaces/ns/leases: it")),
            (LEASES, 400, "the webhook says no", Some("the webhook says no")),
            (LEASES, 404, "namespaces \"ns\" not found", Some("not found")),
            ("PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/m", 403, NO_RIGHT, Some("PUT")),
            (
                "GET /apis/coordination.k8s.io/v1/namespaces/ns/leases/m",
                403,
                NO_RIGHT,
                Some("lease cannot be read"),
            ),
        ];
        for (refuses, code, words, told) in cases {
            let service = tower::service_fn(move |request: Request<Body>| async move {
                let line = format!("{} {}", request.method(), request.uri().path());
                let (is_read, query) = (request.method() == Method::GET, request.uri().query());
                assert!(is_read || query == Some("dryRun=All"), "{line}: nothing is stored");
                if line == "PATCH /api/v1/nodes/n1/status" {
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let names: Vec<&Value> = body["status"]["volumesAttached"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|it| &it["name"])
                        .collect();
                    assert_eq!(names, ["listed", NAME], "it changes the list");
                }
                let (code, message) = match line.as_str() {
                    line if !refuses.is_empty() && line.starts_with(refuses) => (code, words),
                    "GET /api/v1/nodes" | LEASES => (200, ""),
                    _ => (404, "not found"),
                };
                let items = [json!({
                    "metadata": { "name": "n1" }, "status": { "volumesAttached": [{ "name": "listed" }] },
                })];
                let answer = json!({ "kind": "Status", "status": "Failure", "message": message, "code": code,
                    "items": items });
                let answer =
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            });
            let fences: Vec<&Fence> = FENCES.iter().collect();
            let found = refused(&Client::new(service, "default"), &fences, Some(["ns", "m"])).await;
            assert_eq!(found.is_some(), told.is_some(), "{refuses} {code}: {found:?}");
            assert!(found.unwrap_or_default().contains(told.unwrap_or_default()), "{refuses} {code}");
        }
        let denies = tower::service_fn(|request: Request<Body>| async move {
            let code = if request.uri().path().contains("/nodes") { 500 } else { 404 };
            let answer = json!({ "kind": "Status", "message": "no", "code": code });
            Ok::<_, Infallible>(
                Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap(),
            )
        });
        let binder: Vec<&Fence> =
            FENCES.iter().filter(|it| it.account == "persistent-volume-binder").collect();
        assert_eq!(
            refused(&Client::new(denies, "default"), &binder, None).await,
            None,
            "the binder writes no node"
        );
        assert!(FENCES.iter().all(|fence| !writes(fence.account).is_empty()), "each loop writes");
    }
}
