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
