//! The ephemeral volume controller, ours in place of the stock one: a pod's claims come with the pod, and are its own (S50).

use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    authorization::v1::SubjectAccessReview,
    core::v1::{LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota},
    rbac::v1::ClusterRole,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use test_support::{
    audit::{DAEMON, NO_FINALIZERS, rights_used},
    cluster::{Cluster, NAMESPACE, create, patch, patch_status, until, within_deadline},
    daemon::{Daemon, Launch},
};
use testbed::faults::{CrashPoint, Storm, Write};
use tokio::time::sleep;

use crate::stage::{Stage, Story, seed, story};

const CONTROLLERS: &str = "--controllers=*,ephemeral-volume-controller";
const ROLE: &str = "mooring-ephemeral-volume";

pub fn stories() -> Vec<Story> {
    vec![
        story("ephemeral_s50_claims_come_with_their_pod", with_the_pod).also_real(
            "kube-apiserver validates owner references and the right to them, and completes templates.",
        ),
        story("ephemeral_claim_of_another_is_told_and_its_deletion_heals", of_another),
        story("ephemeral_claim_that_the_server_refuses_is_told_in_its_words", refused),
        story("ephemeral_claim_beyond_a_quota_is_told_and_comes_when_there_is_room", beyond_quota)
            .only_real("kube-apiserver counts claims against quotas."),
        story("ephemeral_s40_what_ranges_policies_and_roles_refuse_is_told_and_paused", refused_by_each)
            .only_real("kube-apiserver has limit ranges, policies, and rights on the finalizers of owners."),
        story("ephemeral_claim_in_a_namespace_that_goes_is_told_on_the_page", in_a_namespace_that_goes)
            .only_real(
                "kube-apiserver takes nothing new in a namespace that is being deleted, events neither.",
            ),
        story("ephemeral_e1_a_crash_at_each_write_leaves_one_claim", crashed),
        story("ephemeral_e6_a_storm_of_faults_leaves_each_pod_with_its_own_claim", stormy),
        story("ephemeral_e9_a_second_replica_makes_what_the_first_has_left", replicas),
    ]
}

/// A pod with one generic ephemeral volume, on a node.
pub async fn pod(stage: &Stage, name: &str) -> Pod {
    create(&stage.cluster.namespaced(), pod_of(name)).await
}

fn claim_spec() -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": { "requests": { "storage": "1Gi" } },
    })
}

fn pod_of(name: &str) -> Value {
    let template = json!({
        "metadata": { "labels": { "app": name }, "annotations": { "note": "scratch" } },
        "spec": claim_spec(),
    });
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
        },
    })
}

/// Waits for the claim of a pod.
pub async fn claim_of(stage: &Stage, pod: &Pod) -> PersistentVolumeClaim {
    let (name, uid) = (pod.metadata.name.clone().unwrap(), pod.metadata.uid.clone().unwrap());
    let is_its = move |claim: Option<&PersistentVolumeClaim>| {
        let owners = claim.and_then(|claim| claim.metadata.owner_references.as_ref());
        owners.is_some_and(|owners| owners.iter().any(|owner| owner.uid == uid))
    };
    let what = format!("{name} has its claim");
    let claim = until(stage.cluster.namespaced(), &format!("{name}-data"), &what, is_its).await;
    claim.expect("the condition asks for it")
}

async fn start(stage: &Stage) -> Daemon {
    stage.start_daemon(&Launch::alone().with(CONTROLLERS), &stage.proxy).await
}

fn created(stage: &Stage) -> usize {
    let requests = stage.requests();
    let is_one = |verb: &str, resource: &str| verb == "create" && resource == "persistentvolumeclaims";
    requests.iter().filter(|entry| is_one(&entry.verb, &entry.resource)).count()
}

async fn with_the_pod(stage: Stage) {
    let (_attacher, _kubelets, _provisioner) = (stage.attacher(), stage.kubelets(), stage.provisioner());
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.driver().await;
    cluster.class("fast", "Immediate").await;
    let before = pod(&stage, "before").await;
    let daemon = start(&stage).await;
    let first = claim_of(&stage, &before).await;
    let labels = first.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("app").map(String::as_str), Some("before"), "it comes from the template");

    let after = pod(&stage, "after").await;
    let claim = claim_of(&stage, &after).await;
    let owner = &claim.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    cluster.running("before").await;
    cluster.running("after").await;
    daemon.shows("ephemeral_volume_controller_create_total 2").await;
    daemon.shows("ephemeral_volume_controller_create_failures_total 0").await;

    // The pod is read again for the template.
    cluster.delete_claim("after-data").await;
    let again = claim_of(&stage, &after).await;
    assert_ne!(again.metadata.uid, claim.metadata.uid);
    let reads =
        stage.requests().iter().filter(|entry| entry.verb == "get" && entry.resource == "pods").count();
    assert_eq!(reads, 2, "that pod, and the one that was there before the daemon");
}

async fn of_another(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let daemon = start(&stage).await;
    cluster.claim("p1-data").await;
    let owner = pod(&stage, "p1").await;
    let words = "PVC default/p1-data was not created for pod default/p1 (pod is not owner)";
    cluster.event_with("p1", "FailedBinding", words).await;
    daemon.page_says("/debug/ephemeral-volumes", "ClaimNotOwnedByPod").await;
    assert_eq!(created(&stage), 1, "by hand");
    cluster.delete_claim("p1-data").await;
    claim_of(&stage, &owner).await;
    cluster.remove_pod("p1").await;
}

/// Whatever refuses: a quota, a webhook, a namespace that is being deleted, a missing right on the pod's finalizers.
async fn refused(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": format!("persistentvolumeclaims \"p1-data\" is forbidden: {NO_FINALIZERS}"),
    });
    let is_one = |write: &Write| write.is(&Method::POST, "/namespaces/default/persistentvolumeclaims");
    for _ in 0..3 {
        let _ = stage.proxy.answer(is_one, StatusCode::FORBIDDEN, status.clone());
    }
    let daemon = start(&stage).await;
    let owner = pod(&stage, "p1").await;
    cluster.event_with("p1", "FailedBinding", NO_FINALIZERS).await;
    daemon.page_says("/debug/ephemeral-volumes", "RetryBackoff").await;
    claim_of(&stage, &owner).await;
    daemon.shows("ephemeral_volume_controller_create_failures_total 3").await;
}

async fn beyond_quota(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let _daemon = start(&stage).await;
    let quotas = cluster.namespaced::<ResourceQuota>();
    let hard = json!({ "spec": { "hard": { "persistentvolumeclaims": "0" } } });
    let mut quota = hard.clone();
    quota["metadata"] = json!({ "name": "none" });
    create(&quotas, quota).await;
    // Nobody here keeps the status of quotas, which is what the server counts by.
    let status = |most: &str| {
        let list = json!({ "persistentvolumeclaims": most });
        json!({ "status": { "hard": list, "used": { "persistentvolumeclaims": "0" } } })
    };
    patch_status(&quotas, "none", status("0")).await;
    let owner = pod(&stage, "p1").await;
    cluster.event_with("p1", "FailedBinding", "exceeded quota: none").await;
    patch(&quotas, "none", json!({ "spec": { "hard": { "persistentvolumeclaims": "5" } } })).await;
    patch_status(&quotas, "none", status("5")).await;
    claim_of(&stage, &owner).await;
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
}

/// Waits until the API server heeds what it was just told to refuse.
async fn heeded(what: &str, waiting: impl Future<Output = ()>) {
    within_deadline(what, waiting).await.unwrap_or_else(|late| panic!("{late}"));
}

/// Waits until a claim such as that of the pod would be refused.
async fn refuses(stage: &Stage, pod: &str) {
    let claims = stage.cluster.namespaced::<PersistentVolumeClaim>();
    let claim = json!({ "metadata": { "name": format!("{pod}-data") }, "spec": claim_spec() });
    let claim = serde_json::from_value(claim).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    heeded("it is refused", async { while claims.create(&dry, &claim).await.is_ok() {} }).await;
}

/// The claim of the pod is refused in these words, which its user and the page read, and is not asked for all the time. Nothing is
/// to be done about the pod when it is taken.
async fn refused_in_words(
    (stage, daemon): (&Stage, &Daemon),
    (name, words): (&str, &str),
    allow: impl Future<Output = ()>,
) {
    let before = created(stage);
    let owner = pod(stage, name).await;
    stage.cluster.event_with(name, "FailedBinding", words).await;
    daemon.page_says("/debug/ephemeral-volumes", words).await;
    let page: Value = serde_json::from_str(&daemon.page("/debug/ephemeral-volumes").await).unwrap();
    let row = &page["waiting"][0];
    assert!(row["reason"] == "RetryBackoff" && row["next"].is_string(), "{row}");
    allow.await;
    claim_of(stage, &owner).await;
    // The pauses double: more take longer than this waits.
    let tries = created(stage) - before;
    assert!((2..12).contains(&tries), "{tries} tries");
}

async fn refused_by_each(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let daemon = start(&stage).await;
    let told = (&stage, &daemon);

    let ranges = cluster.namespaced::<LimitRange>();
    let least = json!({ "type": "PersistentVolumeClaim", "min": { "storage": "2Gi" } });
    create(&ranges, json!({ "metadata": { "name": "large" }, "spec": { "limits": [least] } })).await;
    refuses(&stage, "small").await;
    let words = "minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi";
    refused_in_words(told, ("small", words), async {
        ranges.delete("large", &DeleteParams::default()).await.unwrap();
    })
    .await;

    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["persistentvolumeclaims"],
    }]);
    let words = "scratch space is for Tuesdays";
    let spec = json!({
        "failurePolicy": "Fail", "matchConstraints": { "resourceRules": rules },
        "validations": [{ "expression": "object.metadata.name != 'monday-data'", "message": words }],
    });
    create(
        &cluster.all::<ValidatingAdmissionPolicy>(),
        json!({ "metadata": { "name": "days" }, "spec": spec }),
    )
    .await;
    let bindings = cluster.all::<ValidatingAdmissionPolicyBinding>();
    let spec = json!({ "policyName": "days", "validationActions": ["Deny"] });
    create(&bindings, json!({ "metadata": { "name": "days" }, "spec": spec })).await;
    refuses(&stage, "monday").await;
    refused_in_words(told, ("monday", words), async {
        bindings.delete("days", &DeleteParams::default()).await.unwrap();
    })
    .await;

    stage.expects("the daemon's role does not allow what it asks for");
    let cluster_roles = cluster.all::<ClusterRole>();
    let all = cluster_roles.get(ROLE).await.unwrap().rules.unwrap();
    let is_of_finalizers = |resources: &Vec<String>| resources.contains(&"pods/finalizers".to_owned());
    let few: Vec<_> =
        all.iter().filter(|rule| !rule.resources.as_ref().is_some_and(is_of_finalizers)).collect();
    assert_eq!(few.len() + 1, all.len());
    patch(&cluster_roles, ROLE, json!({ "rules": few })).await;
    let right = json!({
        "namespace": NAMESPACE, "verb": "update", "resource": "pods", "subresource": "finalizers", "name": "p",
    });
    let review = json!({ "metadata": {}, "spec": { "user": DAEMON, "resourceAttributes": right } });
    let reviews = cluster.all::<SubjectAccessReview>();
    let gone = async { while create(&reviews, review.clone()).await.status.unwrap().allowed {} };
    heeded("the right is gone", gone).await;
    refused_in_words(told, ("owner", NO_FINALIZERS), async {
        patch(&cluster_roles, ROLE, json!({ "rules": all })).await;
    })
    .await;
    let used = rights_used(&stage.requests());
    assert!(used.iter().any(|right| right.resource == "pods/finalizers"), "{used:#?}");
}

/// A claim goes with its namespace, whose pod still runs: the API server takes neither another claim nor an event.
async fn in_a_namespace_that_goes(stage: Stage) {
    const NAME: &str = "going";
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let daemon = start(&stage).await;
    cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAME}}}}}")).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAME);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), NAME);
    create(&pods, pod_of("p1")).await;
    until(claims.clone(), "p1-data", "is made", |claim| claim.is_some()).await;
    let namespaces = cluster.all::<Namespace>();
    namespaces.delete(NAME, &DeleteParams::default()).await.unwrap();
    claims.delete("p1-data", &DeleteParams::default()).await.unwrap();
    patch(&claims, "p1-data", json!({ "metadata": { "finalizers": null } })).await;
    let words = "unable to create new content in namespace going because it is being terminated";
    daemon.page_says("/debug/ephemeral-volumes", words).await;
    // Each refused create has an event, which is refused too.
    daemon.has_counted("mooring_events_dropped_total{cause=\"failed\"}").await;
    pods.delete("p1", &DeleteParams::default().grace_period(0)).await.unwrap();
    daemon.shows("mooring_waiting{kind=\"ephemeral_volumes\",reason=\"RetryBackoff\"} 0").await;
    let _others = stage.real().plane.controller_manager(&["namespace-controller"], &[]);
    until(namespaces, NAME, "is gone", |namespace| namespace.is_none()).await;
}

async fn crashed(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    for (number, point) in CrashPoint::ALL.into_iter().enumerate() {
        let daemon = start(&stage).await;
        let caught = stage.proxy.crash_at(stage.proxy.counted() + 1, point);
        let owner = pod(&stage, &format!("p{number}")).await;
        caught.reached().await;
        daemon.kill();
        stage.proxy.thaw();
        let daemon = start(&stage).await;
        claim_of(&stage, &owner).await;
        daemon.kill();
    }
    let claims = cluster.namespaced::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    assert_eq!(claims.items.len(), CrashPoint::ALL.len());
}

/// Stand-in for the garbage collector: deletes claims whose pod is gone.
async fn collect(cluster: Cluster) {
    let (pods, claims) = (cluster.namespaced::<Pod>(), cluster.namespaced::<PersistentVolumeClaim>());
    loop {
        let all = claims.list(&ListParams::default()).await.unwrap();
        let living = pods.list(&ListParams::default()).await.unwrap();
        let uids: Vec<_> = living.items.iter().map(|pod| pod.metadata.uid.as_deref().unwrap()).collect();
        for claim in all.items {
            let owners = claim.metadata.owner_references.unwrap_or_default();
            if !owners.iter().any(|owner| uids.contains(&owner.uid.as_str())) {
                cluster.delete_claim(&claim.metadata.name.unwrap()).await;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Pods come, are made anew under their names, and lose their claims, while a third of all writes goes wrong.
async fn stormy(stage: Stage) {
    const PODS: usize = 8;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let _daemon = start(&stage).await;
    let collecting = tokio::spawn(collect(cluster.clone()));
    stage.proxy.begin(&Storm::new(seed()));
    let mut pods = Vec::new();
    for round in 0..6 {
        for number in 0..PODS {
            let name = format!("p{number}");
            if round > 0 {
                cluster.remove_pod(&name).await;
            }
            pods.push(pod(&stage, &name).await);
            // A person, before the daemon has seen the new pod, or after.
            if number % 3 == 0 {
                cluster.delete_claim(&format!("{name}-data")).await;
            }
        }
        if round % 2 == 1 {
            claim_of(&stage, pods.last().unwrap()).await;
        }
    }
    assert!(stage.proxy.calm() > 0, "this was no storm");
    for owner in pods.split_off(pods.len() - PODS) {
        claim_of(&stage, &owner).await;
    }
    collecting.abort();
}

async fn replicas(stage: Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    let launch = Launch::replica("default").with(CONTROLLERS);
    let first = stage.start_daemon(&launch, &stage.proxy).await;
    let one = pod(&stage, "p1").await;
    claim_of(&stage, &one).await;
    let second = stage.start_daemon(&launch, &stage.proxy).await;
    first.kill();
    let two = pod(&stage, "p2").await;
    claim_of(&stage, &two).await;
    assert_eq!(created(&stage), 2, "one for each pod");
    let page: Value = serde_json::from_str(&second.page("/debug/ephemeral-volumes").await).unwrap();
    assert_eq!(page["waiting"], json!([]));
}
