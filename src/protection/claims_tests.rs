use std::{sync::Arc, time::Duration};

use apiserver::{call::Request, ids::ResourceVersion, kinds::Pod, wire::Encoding};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::controller::{
    Controller as _, Plan,
    finalizer::{
        calls::{Answer, Call},
        step::FinalizerStep,
    },
    keys::CALLS,
    report::Reason as _,
};

/// A claim that is being deleted, of the pod `owner` if that is not empty.
fn claim(owner: &str) -> PersistentVolumeClaim {
    let owners = json!([{"kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
    let claim = json!({"metadata": {
        "name": "p-data", "namespace": "ns", "uid": "c", "resourceVersion": "5",
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a", CLAIM_FINALIZER],
        "ownerReferences": if owner.is_empty() { json!([]) } else { owners },
    }});
    serde_json::from_value(claim).unwrap()
}

/// A pod of UID `u` with one volume, on that node.
fn pod(volume: &Value, node: &str, phase: &str, extra: &Value) -> Value {
    let mut metadata = json!({"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "3"});
    metadata.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    // Of what is written as in kubectl, a container runs until it is over.
    let (phase, state) = match phase {
        "over" => ("Running", "terminated"),
        phase => (phase, "running"),
    };
    let container = json!({"name": "c", "state": {state: {}}});
    json!({
        "metadata": metadata, "spec": {"nodeName": node, "volumes": [volume]},
        "status": {"phase": phase, "containerStatuses": [container]},
    })
}

/// pv-binder §15.1, as a live list says it, and as the tables say it.
#[test]
fn s52_a_claim_is_used_by_a_pod_that_is_on_a_node_and_names_it_whatever_its_phase() {
    let (named, other) = (
        json!({"name": "v", "persistentVolumeClaim": {"claimName": "p-data"}}),
        json!({"name": "v", "persistentVolumeClaim": {"claimName": "other"}}),
    );
    let own = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}});
    let going = |grace: i64| json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace});
    let stays = json!({});
    // what, volume, node, phase, the rest, the claim's owner; whether it is used
    let cases = [
        ("running", &named, "n", "Running", stays.clone(), "", true),
        ("done", &named, "n", "Succeeded", stays.clone(), "", true),
        ("failed", &named, "n", "Failed", stays.clone(), "", true),
        ("not on a node", &named, "", "Pending", stays.clone(), "", false),
        ("being deleted", &named, "n", "Running", going(30), "", true),
        ("shut down", &named, "n", "Running", going(0), "", true),
        ("another claim", &other, "n", "Running", stays.clone(), "", false),
        ("its own", &own, "n", "Running", stays.clone(), "u", true),
        ("its own, being deleted", &own, "n", "Running", going(30), "u", true),
        ("its own, being deleted, no container runs", &own, "n", "over", going(30), "u", true),
        ("its own, shut down", &own, "n", "over", going(0), "u", false),
        // As on a machine that is lost, whose kubelet says nothing any more.
        ("its own, forced, status still running", &own, "n", "Running", going(0), "u", false),
        ("the name of its own, another's", &own, "n", "Running", stays.clone(), "x", false),
        ("the name of its own, nobody's", &own, "n", "Running", stays, "", false),
    ];
    for (name, volume, node, phase, extra, owner, is_used) in cases {
        let (claim, pod) = (claim(owner), pod(volume, node, phase, &extra));
        let listed = uses(&serde_json::from_value(pod.clone()).unwrap()).collect();
        assert_eq!(ClaimUsers::shown_user(&listed, &claim).is_some(), is_used, "{name}");
        let objects = Arc::new(Objects::default());
        objects.apply::<Pod>(Encoding::Json.object(&pod.to_string().into()).unwrap());
        let mut controller = ClaimProtection::new(Arc::clone(&objects));
        controller.load(Instant::now());
        assert_eq!(controller.users.user(&claim, &objects).is_some(), is_used, "{name}");
    }
    let unknown = pod(&json!({"name": "v", "persistentVolumeClaim": 5}), "n", "Running", &json!({}));
    let listed = uses(&serde_json::from_value(unknown).unwrap()).collect();
    assert!(ClaimUsers::shown_user(&listed, &claim("")).is_some(), "S42");
}

/// A controller that leads, over a claim that is being deleted and a pod that uses it, or none.
fn stage(is_used: bool) -> (Arc<Objects>, ClaimProtection, Instant) {
    let (objects, now) = (Arc::new(Objects::default()), Instant::now());
    objects.apply(claim(""));
    if is_used {
        objects.apply(user());
    }
    let mut controller = ClaimProtection::new(Arc::clone(&objects));
    controller.load(now);
    assert!(controller.plan(now).calls.is_empty(), "another process leads");
    controller.lead(now);
    (objects, controller, now)
}

fn user() -> Pod {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "p-data"}});
    serde_json::from_value(pod(&volume, "n", "Running", &json!({}))).unwrap()
}

fn only(plan: &Plan<ClaimProtection>) -> Call<ClaimKey> {
    let [call] = &plan.calls[..] else { panic!("{:?}", plan.calls) };
    call.clone()
}

fn patch_of(call: &Call<ClaimKey>) -> &Request {
    let Call::Patch(_, FinalizerStep::Remove, request) = call else { panic!("{call:?}") };
    request
}

#[test]
fn s52_before_the_finalizer_goes_the_pods_are_listed_and_it_goes_at_the_revision_that_was_seen() {
    let (_, mut controller, now) = stage(false);
    let list = only(&controller.plan(now));
    assert!(
        matches!(&list, Call::Users(NamespacePods(namespace), claims) if namespace == "ns" && claims.len() == 1)
    );
    assert!(controller.plan(now).calls.is_empty(), "it is being asked");
    controller.answered(list, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
    let write = only(&controller.plan(now));
    let expected = json!({"metadata": {"uid": "c", "resourceVersion": "5", "finalizers": ["a"]}});
    assert_eq!(patch_of(&write).body, Some(expected));
    controller.answered(write, Err(CallError::Conflict("modified".to_owned())), now, 0.0);
    let later = controller.plan(now).wake_at.unwrap();
    assert!(matches!(only(&controller.plan(later)), Call::Users(..)), "what was proven is old");
}

#[test]
fn a_pod_that_the_tables_show_costs_no_request_and_its_end_is_noticed() {
    let (objects, mut controller, now) = stage(true);
    let plan = controller.plan(now);
    assert_eq!((plan.calls.len(), plan.wake_at), (0, None));
    let mut last = user();
    last.metadata.resource_version = ResourceVersion(9);
    let key = ObjectRef::Pod(last.key());
    objects.delete(last);
    controller.changed([key].into(), now);
    assert!(matches!(only(&controller.plan(now)), Call::Users(..)));
    // As if no pod had ever named it.
    assert_eq!(controller.users.0.of(&claim("").key()).count(), 0);
}

/// The pod that kept the claim is gone: that it is still blamed would be wrong.
#[test]
fn s48_a_patch_that_meets_conflicts_or_a_busy_server_again_and_again_is_told() {
    let told = |plan: &Plan<ClaimProtection>| -> Vec<_> {
        plan.reports.iter().filter_map(|report| Some(report.reason.as_ref()?.code())).collect()
    };
    let busy = || CallError::Throttled { message: "busy".to_owned(), after: Duration::from_secs(1) };
    let conflict = || CallError::Conflict("modified".to_owned());
    for (error, tries) in [(busy(), 1), (conflict(), 3)] {
        let (objects, mut controller, mut now) = stage(true);
        assert_eq!(told(&controller.plan(now)), ["Terminating"]);
        let mut ended = user();
        ended.metadata.resource_version = ResourceVersion(9);
        let key = ObjectRef::Pod(ended.key());
        objects.delete(ended);
        controller.changed([key].into(), now);
        for number in 1..=tries {
            let list = only(&controller.plan(now));
            controller.answered(list, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
            let write = only(&controller.plan(now));
            controller.answered(write, Err(error.clone()), now, 0.0);
            let plan = controller.plan(now);
            let expected: &[&str] = if number == tries { &["RetryBackoff"] } else { &[] };
            assert_eq!(told(&plan), expected, "{error} {number}");
            now = plan.wake_at.unwrap();
        }
    }
}

#[test]
fn a_pod_that_the_list_alone_shows_keeps_the_claim_and_so_does_a_list_that_fails() {
    let in_use: Pod = {
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "p-data"}});
        serde_json::from_value(pod(&volume, "n", "Running", &json!({}))).unwrap()
    };
    let unknown = CallError::Unknown("cut".to_owned());
    for result in [Ok(Answer::Users(uses(&in_use).collect())), Err(unknown)] {
        let (_, mut controller, now) = stage(false);
        let list = only(&controller.plan(now));
        controller.answered(list, result, now, 0.0);
        let plan = controller.plan(now);
        assert!(plan.calls.is_empty());
        assert!(matches!(only(&controller.plan(plan.wake_at.unwrap())), Call::Users(..)), "asked again");
    }
}

#[test]
fn claims_of_a_namespace_share_a_list_that_was_asked_for_after_they_were_seen_to_be_deleted() {
    let (objects, mut controller, now) = stage(false);
    let first = only(&controller.plan(now));
    let mut late = claim("");
    late.metadata.name = "late".into();
    let (key, uid) = (late.key(), late.metadata.uid.clone());
    objects.apply(late);
    controller.changed([ObjectRef::Claim(key.clone())].into(), now);
    assert!(controller.plan(now).calls.is_empty());
    controller.answered(first, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
    let calls = controller.plan(now).calls;
    assert!(
        matches!(&calls[..], [Call::Patch(..), Call::Users(_, claims)] if *claims == [(key, uid)]),
        "the first goes, the other is asked for: {calls:?}"
    );
}

/// What the first lists have shown would be old when the last are answered.
#[test]
fn l15_of_many_namespaces_a_few_are_listed_at_once_and_what_nothing_uses_goes_meanwhile() {
    let (objects, mut controller, now) = stage(false);
    for number in 0..40 {
        let mut claim = claim("");
        claim.metadata.namespace = format!("ns-{number}").into();
        let key = claim.key();
        objects.apply(claim);
        controller.changed([ObjectRef::Claim(key)].into(), now);
    }
    let mut lists = controller.plan(now).calls;
    assert_eq!(lists.len(), CALLS);
    assert!(controller.plan(now).calls.is_empty());
    for _ in 0..3 {
        controller.answered(lists.pop().unwrap(), Ok(Answer::Users(BTreeSet::new())), now, 0.0);
        let write = only(&controller.plan(now));
        patch_of(&write);
        let Call::Patch(key, ..) = &write else { panic!("{write:?}") };
        let mut gone = PersistentVolumeClaim::clone(&objects.claims.get(key).unwrap());
        gone.metadata.resource_version = ResourceVersion(9);
        objects.delete(gone);
        controller.answered(write, Err(CallError::NotFound("gone".to_owned())), now, 0.0);
        lists.push(only(&controller.plan(now)));
        assert!(matches!(lists.last(), Some(Call::Users(..))), "{lists:?}");
    }
}

/// Its pod began while the pages came in, behind those that were read.
#[test]
fn s34_a_claim_made_anew_while_pods_are_listed_keeps_its_finalizer_until_a_list_of_its_own() {
    let (objects, mut controller, now) = stage(false);
    let list = only(&controller.plan(now));
    let mut anew = claim("");
    anew.metadata.uid = "d".into();
    anew.metadata.resource_version = ResourceVersion(9);
    let key = anew.key();
    objects.delete(claim(""));
    objects.apply(anew);
    controller.changed([ObjectRef::Claim(key.clone())].into(), now);
    controller.answered(list, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
    let next = only(&controller.plan(now));
    assert!(matches!(&next, Call::Users(_, claims) if *claims == [(key, "d".into())]), "{next:?}");
}

#[test]
fn e11_nothing_is_taken_off_during_the_grace_after_a_restore() {
    let (objects, mut controller, now) = stage(false);
    objects.restore_grace().begin(now);
    let plan = controller.plan(now);
    assert!(plan.calls.is_empty());
    assert!(plan.wake_at.unwrap() > now + Duration::from_mins(4));
}

#[test]
fn e11_a_list_whose_answer_comes_during_the_grace_proves_nothing_after_it() {
    let (objects, mut controller, now) = stage(false);
    let list = only(&controller.plan(now));
    objects.restore_grace().begin(now);
    controller.changed([ObjectRef::Claim(claim("").key())].into(), now);
    assert!(controller.plan(now).calls.is_empty());
    controller.answered(list, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
    let later = controller.plan(now).wake_at.unwrap();
    assert!(matches!(only(&controller.plan(later)), Call::Users(..)), "what was proven is old");
}

#[test]
fn s40_a_list_of_pods_is_asked_for_again_when_the_server_says() {
    let (objects, mut controller, now) = stage(false);
    let list = only(&controller.plan(now));
    let refused = CallError::Throttled { after: Duration::from_secs(30), message: "busy".to_owned() };
    controller.answered(list, Err(refused), now, 0.0);
    let key = claim("").key();
    assert!(objects.claims.get(&key).is_some());
    controller.changed([ObjectRef::Claim(key)].into(), now + Duration::from_secs(1));
    let plan = controller.plan(now + Duration::from_secs(29));
    assert!(plan.calls.is_empty(), "{:?}", plan.calls);
    assert!(matches!(only(&controller.plan(plan.wake_at.unwrap())), Call::Users(..)));
}

#[test]
fn s40_a_claim_that_is_gone_leaves_no_failures_behind() {
    let (objects, mut controller, now) = stage(false);
    let list = only(&controller.plan(now));
    controller.answered(list, Err(CallError::Unknown("cut".to_owned())), now, 0.0);
    let mut gone = claim("");
    gone.metadata.resource_version = ResourceVersion(9);
    let key = gone.key();
    objects.delete(gone);
    controller.changed([ObjectRef::Claim(key.clone())].into(), now);
    assert!(controller.plan(now + Duration::from_secs(9)).calls.is_empty());
    assert_eq!(controller.keys.retries.failures(&key), 0);
}

#[test]
fn l15_namespaces_whose_claims_go_all_the_time_keep_no_other_from_its_list() {
    // A claim of "ns" waits.
    let (objects, mut controller, mut now) = stage(false);
    let mut number = 0;
    let mut deletes = |controller: &mut ClaimProtection, namespace: &str, now: Instant| {
        number += 1;
        let mut claim = claim("");
        (claim.metadata.namespace, claim.metadata.name) = (namespace.into(), format!("c-{number}").into());
        objects.apply(claim.clone());
        controller.changed([ObjectRef::Claim(claim.key())].into(), now);
    };
    for busy in 0..CALLS {
        deletes(&mut controller, &format!("busy-{busy:02}"), now);
    }
    let mut lists = controller.plan(now).calls;
    for _ in 0..2 * CALLS {
        now += Duration::from_millis(1);
        let list = lists.remove(0);
        let Call::Users(NamespacePods(namespace), _) = &list else { panic!("{list:?}") };
        if namespace == "ns" {
            return;
        }
        // While it is listed.
        deletes(&mut controller, namespace, now);
        controller.answered(list, Ok(Answer::Users(BTreeSet::new())), now, 0.0);
        let mut calls = controller.plan(now).calls;
        while let Some(call) = calls.pop() {
            if let Call::Users(..) = call {
                lists.push(call);
                continue;
            }
            controller.answered(call, Err(CallError::NotFound("gone".to_owned())), now, 0.0);
            calls.extend(controller.plan(now).calls);
        }
    }
    panic!("it is never listed");
}
