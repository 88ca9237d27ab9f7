use apiserver::{call::CallError, kinds::PersistentVolumeClaim, wire::Encoding};
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::controller::played::{Played, error, play};

impl Played for EphemeralVolumes {
    fn shown(call: &Call) -> Value {
        match &call.template {
            Some(template) => {
                decide::claim(&call.pod, &call.uid, call.claim.name(), template).body.unwrap_or_default()
            }
            None => json!(format!("read {}", call.pod)),
        }
    }

    fn answer(call: &Call, said: &Value, revision: u64) -> Result<Answer, CallError> {
        if said["kind"] == "Pod" {
            return call.template(&Bytes::from(said.to_string())).map(Answer::Template);
        }
        if said != "created" {
            return Err(error(said));
        }
        let mut body = decide::claim(&call.pod, &call.uid, call.claim.name(), &json!({})).body.unwrap();
        body["metadata"]["namespace"] = call.pod.namespace().into();
        body["metadata"]["uid"] = format!("uid-{revision}").into();
        body["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(Answer::Claim(Box::new(Encoding::Json.object(&Bytes::from(body.to_string())).unwrap())))
    }
}

#[test]
fn cases() {
    play(include_str!("../../tests/cases/ephemeral/controller.yaml"), |objects| {
        EphemeralVolumes::new(objects, &Metrics::default()).unwrap()
    });
}

/// The row; the pod's volume, and whether the pod is being deleted; the namespace of the claim that is there; the answer; how
/// many requests are counted, and how many that failed.
type Row<'a> = (&'a str, Option<(&'a Value, bool)>, &'a str, &'a Value, [u32; 2]);

/// Each row of kube-controller-manager's test of one turn, and what it counts in it.
// KCM: pkg/controller/volume/ephemeral/controller_test.go, TestSyncHandler.
#[test]
fn each_row_of_kcm_counts_as_there() {
    let template = json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
    let claimed = json!({"persistentVolumeClaim": {"claimName": "p-data"}});
    let conflict = json!({"refused": "the quota has been modified"});
    let created = json!("created");
    let rows: [Row<'_>; 7] = [
        ("create", Some((&template, false)), "", &created, [1, 0]),
        ("no-such-pod", None, "", &created, [0, 0]),
        ("pod-deleted", Some((&template, true)), "", &created, [0, 0]),
        ("no-volumes", Some((&claimed, false)), "", &created, [0, 0]),
        ("create-with-other-PVC", Some((&template, false)), "other", &created, [1, 0]),
        ("wrong-PVC-owner", Some((&template, false)), "ns", &created, [0, 0]),
        ("create-conflict", Some((&template, false)), "", &conflict, [1, 1]),
    ];
    for (name, pod, claim, said, counts) in rows {
        let (objects, metrics, now) = (Arc::new(Objects::default()), Metrics::default(), Instant::now());
        let mut controller = EphemeralVolumes::new(Arc::clone(&objects), &metrics).unwrap();
        controller.load(now);
        if !claim.is_empty() {
            let claim = json!({"metadata": {"name": "p-data", "namespace": claim, "uid": "c", "resourceVersion": "1"}});
            objects.apply(Encoding::Json.object::<PersistentVolumeClaim>(&claim.to_string().into()).unwrap());
        }
        if let Some((source, is_going)) = pod {
            let mut volume = source.clone();
            volume["name"] = "data".into();
            let deleted = is_going.then_some("2026-01-01T00:00:00Z");
            let pod = json!({
                "metadata": {
                    "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "2", "deletionTimestamp": deleted,
                },
                "spec": {"volumes": [volume]},
            });
            objects.apply(Encoding::Json.object::<Pod>(&pod.to_string().into()).unwrap());
        }
        controller.lead(now);
        controller.changed([ObjectRef::Pod(PodKey::new("ns", "p"))].into(), now);
        for call in controller.plan(now).calls {
            assert!(call.template.is_none(), "{name}: it was not there when the pod came");
            let template = Ok(Answer::Template(json!({})));
            controller.answered(call, template, now, 0.0);
        }
        for call in controller.plan(now).calls {
            let answer = EphemeralVolumes::answer(&call, said, 3);
            controller.answered(call, answer, now, 0.0);
        }
        let text = metrics.text().unwrap();
        for (metric, count) in ["create_total", "create_failures_total"].into_iter().zip(counts) {
            let line = format!("ephemeral_volume_controller_{metric} {count}\n");
            assert!(text.contains(&line), "{name}: {line}{text}");
        }
    }
}

/// What waits is bounded, and pods whose claims exist leave nothing behind.
#[test]
fn many_pods_at_once_get_their_claims_in_turn_and_leave_nothing_behind() {
    const PODS: usize = 1_000;
    let (objects, now) = (Arc::new(Objects::default()), Instant::now());
    let mut controller = EphemeralVolumes::new(Arc::clone(&objects), &Metrics::default()).unwrap();
    controller.load(now);
    controller.lead(now);
    let mut keys = BTreeSet::new();
    for number in 0..PODS {
        let name = format!("p-{number}");
        let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        let pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
            "spec": {"volumes": [volume]},
        });
        let raw = Bytes::from(pod.to_string());
        objects.add(Encoding::Json.object::<Pod>(&raw).unwrap(), (Encoding::Json, &raw));
        keys.insert(ObjectRef::Pod(PodKey::new("ns", &name)));
    }
    controller.changed(keys, now);
    let mut made = 0;
    loop {
        let plan = controller.plan(now);
        if plan.calls.is_empty() && plan.wake_at.is_none() {
            break;
        }
        assert!(plan.calls.len() <= crate::controller::keys::CALLS, "{} at once", plan.calls.len());
        for call in plan.calls {
            assert!(call.template.is_some(), "it comes with the event");
            made += 1;
            let answer = EphemeralVolumes::answer(&call, &json!("created"), 10_000 + made);
            controller.answered(call, answer, now, 0.0);
        }
    }
    assert_eq!((made, objects.claims.len()), (PODS as u64, PODS));
    assert!(
        objects.templates().is_empty() && controller.undone.is_empty() && controller.keys.queue.is_empty()
    );
}
