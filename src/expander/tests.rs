use apiserver::{call::CallError, kinds::Narrow, wire::Encoding};
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::controller::played::{Played, error, play};

fn read<T: Narrow>(object: &Value, revision: u64) -> T {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    Encoding::Json.object(&Bytes::from(object.to_string())).unwrap()
}

impl Played for Expander {
    fn shown(call: &Call) -> Value {
        match call {
            Call::Volume(_, _, name) => json!(format!("read {name}")),
            Call::Annotate(_, request) => {
                let mut body = request.body.clone().unwrap();
                assert!(body["metadata"]["resourceVersion"].is_string() && request.path.ends_with("/status"));
                body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                body
            }
        }
    }

    fn answer(_: &Call, said: &Value, revision: u64) -> Result<Answer, CallError> {
        match said["kind"].as_str() {
            Some("PersistentVolume") => Ok(Answer::Volume(read(said, revision))),
            Some("PersistentVolumeClaim") => Ok(Answer::Claim(read(said, revision))),
            _ => Err(error(said)),
        }
    }
}

#[test]
fn cases() {
    play(include_str!("../../tests/cases/expander/controller.yaml"), Expander::new);
}
