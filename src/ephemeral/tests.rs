use apiserver::{call::CallError, kinds::PersistentVolumeClaim, wire::Encoding};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{calls::Call, *};
use crate::controller::played::{Played, error, play};

impl Played for EphemeralVolumes {
    fn shown(call: &Call) -> Value {
        match &call.template {
            Some(template) => {
                decide::claim(&call.pod, &call.uid, call.claim.name(), template).body.unwrap_or_default()
            }
            None => json!(format!("read {}, create {}", call.pod, call.claim)),
        }
    }

    fn answer(call: &Call, said: &Value, revision: u64) -> Result<PersistentVolumeClaim, CallError> {
        if said != "created" {
            return Err(error(said));
        }
        let mut body = decide::claim(&call.pod, &call.uid, call.claim.name(), &json!({})).body.unwrap();
        body["metadata"]["namespace"] = call.pod.namespace().into();
        body["metadata"]["uid"] = format!("uid-{revision}").into();
        body["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(Encoding::Json.object(&Bytes::from(body.to_string())).unwrap())
    }
}

#[test]
fn cases() {
    play(include_str!("../../tests/cases/ephemeral/controller.yaml"), |objects| {
        EphemeralVolumes::new(objects, &Metrics::default()).unwrap()
    });
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
