//! Faults that are objects of the cluster: webhooks, and the fence that is not there.

use std::time::Duration;

use k8s_openapi::ByteString;
use kube::Client;
use mooring::fence::policies::FENCES;
use serde_json::{Value, json};
use test_support::{cluster::path_of, visitor::Authority};

use crate::{plan::Fault, stage::Stage};

/// Where nobody listens.
const NOBODY: &str = "127.0.0.1:1";

/// Of each object.
const NAME: &str = "trial";

/// A request is given up after this, and sent again if it matters.
const PATIENCE: Duration = Duration::from_secs(3);

/// By then an API server answers that another fault has stopped.
const LONGEST: Duration = Duration::from_mins(2);

/// What the daemon's fence is made of.
pub fn fence() -> Vec<Value> {
    FENCES.iter().flat_map(mooring::fence::policies::Fence::objects).collect()
}

/// The objects that a fault puts up.
pub fn of(fault: Fault, stage: &Stage) -> Vec<Value> {
    match fault {
        Fault::FailWebhook => vec![webhook(NOBODY)],
        Fault::SlowWebhook => vec![webhook(&stage.slow_webhook.address.to_string())],
        _ => Vec::new(),
    }
}

/// A webhook without which nobody but people writes volumes, claims or VolumeAttachments.
fn webhook(address: &str) -> Value {
    let authority = std::fs::read(Authority::of_the_test().file()).expect("read the authority");
    let rule = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": resources });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": NAME },
        "webhooks": [{
            "name": "trial.mooring.dev",
            "clientConfig": { "url": format!("https://{address}/"), "caBundle": ByteString(authority) },
            "rules": [
                rule("", &["persistentvolumes", "persistentvolumes/status"]),
                rule("", &["persistentvolumeclaims", "persistentvolumeclaims/status"]),
                rule("storage.k8s.io", &["volumeattachments", "volumeattachments/status"]),
            ],
            "matchConditions": [{ "name": "whose", "expression": "request.userInfo.username != 'admin'" }],
            "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 10, "admissionReviewVersions": ["v1"],
        }],
    })
}

/// Creates objects, and insists.
pub async fn make(client: &Client, objects: &[Value]) {
    for object in objects {
        insist(client, "POST", &path_of(object), object).await;
    }
}

/// Deletes objects, the last first, with their finalizers.
pub async fn remove(client: &Client, objects: &[Value]) {
    for object in objects.iter().rev() {
        let path = format!("{}/{}", path_of(object), object["metadata"]["name"].as_str().expect("a name"));
        if object["metadata"]["finalizers"].is_array() {
            insist(client, "PATCH", &path, &json!({ "metadata": { "finalizers": null } })).await;
        }
        insist(client, "DELETE", &path, &json!({})).await;
    }
}

/// Asks until it is done, or is done already.
async fn insist(client: &Client, method: &str, path: &str, body: &Value) {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let asking = async {
        let mut pause = tokio::time::interval(Duration::from_millis(200));
        loop {
            pause.tick().await;
            let request = http::Request::builder()
                .method(method)
                .uri(path)
                .header(http::header::CONTENT_TYPE, content)
                .body(body.to_string().into_bytes())
                .expect("a request");
            match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
                Ok(Ok(_)) => return,
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 422 => {
                    panic!("{path}: {}", status.message)
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(LONGEST, asking).await.unwrap_or_else(|_| panic!("{method} {path} is not done"));
}
