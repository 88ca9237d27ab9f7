//! What the answer to a request about one object has to show before anything is concluded from it.
//!
//! In: a body with status 200 or 201, and the request. Out: the object, or an unknown outcome. Who answers may be a
//! gateway that knows nothing of the request: `200 {}` is no claim without a UID, whose volume could be released
//! (S23), and no deletion.

use std::borrow::Cow;

use serde::Deserialize;

use super::{CallError, Request, Verb, answer::Answer};
use crate::{
    ids::ResourceVersion,
    kinds::{Meta, Narrow},
    protobuf::PREFIX,
    wire::Encoding,
};

/// Decodes the object that the request is about.
pub(super) fn object<T: Narrow>((encoding, body): &Answer, request: &Request) -> Result<T, CallError> {
    let unreadable = |why: &str| CallError::Unknown(format!("unreadable {} in the answer: {why}", T::KIND));
    let encoding = encoding.ok_or_else(|| unreadable("it does not say how it is encoded"))?;
    match encoding {
        Encoding::Json if kind(body).as_deref() != Some(T::KIND) => return Err(unreadable("another kind")),
        Encoding::Protobuf if !body.starts_with(PREFIX) => return Err(unreadable("no envelope")),
        Encoding::Json | Encoding::Protobuf => {}
    }
    let object: T = encoding.object(body).map_err(|error| unreadable(&error.to_string()))?;
    is_it(object.metadata(), &T::path(&object.key()), request).map_err(unreadable)?;
    Ok(object)
}

/// Whether what has that metadata and path is what the request is about; if not, why.
fn is_it(metadata: &Meta, path: &str, request: &Request) -> Result<(), &'static str> {
    if !is_whole(metadata) {
        return Err("no name, UID or revision");
    }
    if !is_asked_for(path, &metadata.name, request) {
        return Err("another object");
    }
    Ok(())
}

/// Whether the answer to a delete says what is left of the object, or that nothing is.
pub(super) fn deletion(body: &[u8], request: &Request) -> Result<(), CallError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Left {
        kind: String,
        status: serde_json::Value,
        metadata: Meta,
    }
    let left: Left = serde_json::from_slice(body).unwrap_or_default();
    let is_said = match left.kind.as_str() {
        "" => false,
        "Status" => left.status == "Success",
        _ => is_whole(&left.metadata) && *left.metadata.name == *request.target().name,
    };
    if is_said {
        return Ok(());
    }
    Err(CallError::Unknown("the answer to a delete is neither a Status nor the object".to_owned()))
}

fn kind(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<Kind<'_>>(body).ok().map(|object| object.kind.into_owned())
}

fn is_whole(metadata: &Meta) -> bool {
    !metadata.name.is_empty()
        && !metadata.uid.is_empty()
        && metadata.resource_version != ResourceVersion::default()
}

/// Whether that is the object of the request; of a create, one of that collection and name.
fn is_asked_for(path: &str, name: &str, request: &Request) -> bool {
    if request.verb != Verb::Create {
        return path == request.target().object(&request.path);
    }
    let asked = request.body.as_ref().and_then(|body| body.pointer("/metadata/name")?.as_str());
    path.rsplit_once('/').is_some_and(|(collection, _)| collection == request.path)
        && asked.is_none_or(|asked| asked == name)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::{Node, PersistentVolumeClaim};

    fn request(verb: Verb, path: &str) -> Request {
        Request { verb, path: path.to_owned(), body: None }
    }

    fn json(value: &Value) -> Answer {
        (Some(Encoding::Json), Bytes::from(value.to_string()))
    }

    fn claim() -> Value {
        json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "metadata": {"namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "5"},
        })
    }

    #[test]
    fn s23_an_answer_is_believed_if_it_shows_the_object_that_was_asked_for() {
        let get = request(Verb::Get, "/api/v1/namespaces/ns/persistentvolumeclaims/c");
        let patch = request(Verb::Patch, "/api/v1/namespaces/ns/persistentvolumeclaims/c/status");
        for request in [&get, &patch] {
            object::<PersistentVolumeClaim>(&json(&claim()), request).unwrap();
        }
        let mut odd = claim();
        odd["metadata"]["name"] = json!("status");
        for path in ["", "/status"].map(|part| format!("{}/status{part}", get.path.trim_end_matches("/c"))) {
            object::<PersistentVolumeClaim>(&json(&odd), &request(Verb::Patch, &path)).unwrap();
            object::<PersistentVolumeClaim>(&json(&claim()), &request(Verb::Patch, &path)).unwrap_err();
        }
        let mut answers = vec![
            json!({}),
            json!(null),
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}),
            json!({"metadata": claim()["metadata"]}),
        ];
        for (field, value) in [
            ("kind", json!("PersistentVolume")),
            ("kind", json!("")),
            ("/name", json!("d")),
            ("/name", json!("")),
            ("/namespace", json!("other")),
            ("/uid", json!("")),
            ("/uid", Value::Null),
            ("/resourceVersion", Value::Null),
        ] {
            let mut other = claim();
            match field.strip_prefix('/') {
                Some(field) => other["metadata"][field] = value,
                None => other[field] = value,
            }
            answers.push(other);
        }
        for answer in answers {
            let result = object::<PersistentVolumeClaim>(&json(&answer), &get);
            assert!(matches!(result, Err(CallError::Unknown(_))), "{answer}: {result:?}");
        }
        let unsaid = (None, Bytes::from(claim().to_string()));
        object::<PersistentVolumeClaim>(&unsaid, &get).expect_err("it may be anything");
        let bare = (Some(Encoding::Protobuf), Bytes::new());
        object::<Node>(&bare, &request(Verb::Get, "/api/v1/nodes/n")).expect_err("no envelope");
    }

    #[test]
    fn what_was_created_is_of_the_collection_and_has_the_name_it_was_given() {
        let create = |name: Value, path: &str| Request {
            body: Some(json!({"metadata": {"name": name}})),
            ..request(Verb::Create, path)
        };
        let cases = [
            (json!("c"), "/api/v1/namespaces/ns/persistentvolumeclaims", true),
            (Value::Null, "/api/v1/namespaces/ns/persistentvolumeclaims", true),
            (json!("d"), "/api/v1/namespaces/ns/persistentvolumeclaims", false),
            (json!("c"), "/api/v1/namespaces/other/persistentvolumeclaims", false),
        ];
        for (name, path, expected) in cases {
            let result = object::<PersistentVolumeClaim>(&json(&claim()), &create(name.clone(), path));
            assert_eq!(result.is_ok(), expected, "{name} {path}");
        }
    }

    #[test]
    fn s24_a_deletion_is_answered_by_a_status_or_by_what_is_left() {
        let delete = request(Verb::Delete, "/api/v1/namespaces/ns/persistentvolumeclaims/c");
        let mut other = claim();
        other["metadata"]["name"] = json!("d");
        let cases = [
            (json!({}), false),
            (json!({"kind": "Status", "status": "Failure"}), false),
            (json!({"kind": "Status", "status": "Success", "metadata": {}}), true),
            (claim(), true),
            (other, false),
            (json!("<html>"), false),
        ];
        for (answer, expected) in cases {
            assert_eq!(deletion(answer.to_string().as_bytes(), &delete).is_ok(), expected, "{answer}");
        }
    }
}
