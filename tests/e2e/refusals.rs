//! Writes that the API server refuses: users read why on the object that waits, in the server's own words (L18).

use http::{Method, StatusCode};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::PersistentVolume,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use test_support::cluster::{create, within_deadline};
use testbed::faults::Write;

use crate::stage::{Stage, Story, story};

/// What the policy says.
const WORDS: &str = "volumes are changed on Tuesdays";

/// Tries that fail where no policy can be set up.
const TRIES: usize = 4;

pub fn stories() -> Vec<Story> {
    vec![
        story("refused_writes_to_a_volume_are_told_on_its_claim", policy)
            .also_real("An admission policy refuses the write, in the words of kube-apiserver."),
    ]
}

/// An admission policy, such as one that exempts the stock binder alone, denies what the daemon writes to volumes.
async fn policy(stage: Stage) {
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.volume("v1").await;
    cluster.volume_phase("v1", "Available").await;
    deny(&stage).await;
    cluster.claim("c1").await;
    cluster.event_with("c1", "FailedBinding", WORDS).await;
    daemon.page_says("/debug/binder", WORDS).await;
    daemon.page_says("/debug/binder", "RetryBackoff").await;
    daemon.shows("mooring_waiting{kind=\"claim\",reason=\"RetryBackoff\"} 1").await;
    allow(&stage).await;
    cluster.bound("c1", "v1").await;
    assert!(!daemon.page("/debug/binder").await.contains(WORDS), "nothing fails any more");
}

async fn deny(stage: &Stage) {
    if !stage.is_real() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Invalid", "code": 422,
            "message": format!("persistentvolumes \"v1\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: {WORDS}"),
        });
        for _ in 0..TRIES {
            let is_one = |write: &Write| write.is(&Method::PATCH, "/persistentvolumes/v1");
            let _ = stage.proxy.answer(is_one, StatusCode::UNPROCESSABLE_ENTITY, status.clone());
        }
        return;
    }
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["persistentvolumes"],
    }]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tuesdays"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "object.metadata.name != 'v1'", "message": WORDS}],
        },
    });
    create(&stage.cluster.all::<ValidatingAdmissionPolicy>(), policy).await;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tuesdays"},
        "spec": {"policyName": "tuesdays", "validationActions": ["Deny"]},
    });
    create(&stage.cluster.all::<ValidatingAdmissionPolicyBinding>(), binding).await;
    // It takes the server a while to heed it.
    let touch = Patch::Merge(json!({ "metadata": { "labels": { "touched": "yes" } } }));
    let volumes = stage.cluster.all::<PersistentVolume>();
    let heeded = async { while volumes.patch("v1", &PatchParams::default(), &touch).await.is_ok() {} };
    within_deadline("the policy is heeded", heeded).await.expect("the policy is heeded");
}

async fn allow(stage: &Stage) {
    if stage.is_real() {
        let policies = stage.cluster.all::<ValidatingAdmissionPolicyBinding>();
        policies.delete("tuesdays", &DeleteParams::default()).await.expect("delete the binding");
        let policies = stage.cluster.all::<ValidatingAdmissionPolicy>();
        policies.delete("tuesdays", &DeleteParams::default()).await.expect("delete the policy");
    }
}
