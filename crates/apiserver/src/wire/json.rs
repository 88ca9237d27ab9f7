//! JSON: taken apart without copies (`RawValue`), so that each object is parsed by itself.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use super::{AttachmentNames, DecodeError, Head, ListPart, WatchEvent, WatchEventKind, values::ListMeta};
use crate::ids::{NodeName, Uid, VolumeName};

pub(super) fn decode<T: DeserializeOwned>(raw: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(raw).map_err(|error| DecodeError::json::<T>(raw, &error))
}

/// Reads what borrows from the bytes; that is ours alone and shallow, so the field is not looked for.
fn shallow<'de, T: Deserialize<'de>>(raw: &'de [u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(raw).map_err(|error| DecodeError::json::<serde::de::IgnoredAny>(raw, &error))
}

/// The part of the body that a value was borrowed from.
fn part(body: &Bytes, value: &RawValue) -> Bytes {
    body.slice_ref(value.get().as_bytes())
}

pub(super) fn list_parts(body: &Bytes) -> Result<Vec<ListPart>, DecodeError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Page<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
        metadata: ListMeta,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    let page: Page<'_> = shallow(body)?;
    if !page.kind.ends_with("List") {
        return Err(DecodeError::Kind("list"));
    }
    let said = page.metadata.part()?;
    let items = page.items.unwrap_or_default().into_iter().map(|item| ListPart::Item(part(body, item)));
    Ok(std::iter::once(said).chain(items).collect())
}

pub(super) fn watch_event(frame: &Bytes) -> Result<WatchEvent, DecodeError> {
    #[derive(Deserialize)]
    struct Event<'a> {
        r#type: WatchEventKind,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let event: Event<'_> = shallow(frame)?;
    Ok(WatchEvent { kind: event.r#type, object: part(frame, event.object) })
}

pub(super) fn head(raw: &[u8]) -> Result<Head, DecodeError> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    #[derive(Default)]
    struct Metadata<'a> {
        #[serde(borrow)]
        namespace: Cow<'a, str>,
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(borrow)]
        uid: Option<&'a RawValue>,
        #[serde(borrow)]
        resource_version: Option<&'a RawValue>,
    }
    fn lenient<T: DeserializeOwned>(value: Option<&RawValue>) -> Option<T> {
        value.and_then(|value| serde_json::from_str(value.get()).ok())
    }
    let Metadata { namespace, name, uid, resource_version } = shallow::<Object<'_>>(raw)?.metadata;
    Ok(Head {
        namespace: namespace.into(),
        name: name.into(),
        uid: lenient(uid).filter(|uid: &Uid| !uid.is_empty()),
        resource_version: lenient(resource_version),
    })
}

pub(super) fn attachment_names(raw: &[u8]) -> AttachmentNames {
    let object: Value = serde_json::from_slice(raw).unwrap_or_default();
    let name = |at| object.pointer(at).and_then(Value::as_str);
    AttachmentNames {
        node: name("/spec/nodeName").map(NodeName::from),
        volume: name("/spec/source/persistentVolumeName").map(VolumeName::from),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::ResourceVersion;
    use crate::kinds::{Node, Pod};
    use crate::wire::{Encoding, Status};

    fn bytes(value: &serde_json::Value) -> Bytes {
        Bytes::from(value.to_string())
    }

    #[test]
    fn a_page_is_taken_apart_and_its_items_are_not() {
        let body = bytes(&json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "41", "continue": "token", "remainingItemCount": 7},
            "items": [{"metadata": {"name": "a"}}, 5, {"metadata": {"name": "b", "creationTimestamp": "never"}}],
        }));
        let parts = list_parts(&body).unwrap();
        let meta = ListPart::Meta { revision: ResourceVersion(41), next: Some("token".to_owned()) };
        assert_eq!(parts[0], meta);
        let is_read = |part: &ListPart| match part {
            ListPart::Item(item) => Encoding::Json.object::<Pod>(item).is_ok(),
            ListPart::Meta { .. } => panic!("{part:?}"),
        };
        let read: Vec<bool> = parts[1..].iter().map(is_read).collect();
        assert_eq!(read, [true, false, false], "what cannot be read spoils itself alone");
    }

    #[test]
    fn the_last_page_has_no_next_and_an_empty_list_is_one() {
        let meta = json!({"resourceVersion": "41", "continue": ""});
        for items in [json!([]), json!(null)] {
            let body = bytes(&json!({"kind": "NodeList", "metadata": meta, "items": items}));
            let meta = ListPart::Meta { revision: ResourceVersion(41), next: None };
            assert_eq!(list_parts(&body), Ok(vec![meta]));
        }
    }

    #[test]
    fn what_is_no_list_is_no_empty_list() {
        let meta = json!({"resourceVersion": "41"});
        let cases = [
            json!({}),
            json!({"kind": "Status", "metadata": meta, "items": []}),
            json!({"kind": "NodeList", "metadata": {}, "items": []}),
            json!({"kind": "NodeList", "metadata": {"resourceVersion": ""}, "items": []}),
            json!({"kind": "NodeList", "items": []}),
            json!({"kind": "NodeList", "metadata": meta, "items": {}}),
        ];
        for body in cases {
            list_parts(&bytes(&body)).expect_err(&body.to_string());
        }
        let body = bytes(&json!({"kind": "NodeList", "metadata": meta, "items": [{}]}));
        for cut in 0..body.len() {
            list_parts(&body.slice(..cut)).expect_err("a page that is cut off");
        }
    }

    #[test]
    fn an_event_says_what_happened_and_to_what() {
        let types = [
            ("ADDED", WatchEventKind::Added),
            ("MODIFIED", WatchEventKind::Modified),
            ("DELETED", WatchEventKind::Deleted),
            ("BOOKMARK", WatchEventKind::Bookmark),
            ("ERROR", WatchEventKind::Error),
        ];
        for (text, kind) in types {
            let frame = Bytes::from(format!(
                r#"{{"type":"{text}","object":{{"metadata":{{"resourceVersion":"12"}}}}}}"#
            ));
            let event = watch_event(&frame).unwrap();
            assert_eq!(event.kind, kind);
            assert_eq!(
                Encoding::Json.head(&event.object).unwrap().resource_version,
                Some(ResourceVersion(12))
            );
        }
        for frame in [r#"{"type":"RENAMED","object":{}}"#, r#"{"type":"ADDED"}"#, "[]", "x"] {
            watch_event(&Bytes::from(frame)).expect_err(frame);
        }
    }

    #[test]
    fn the_head_of_what_cannot_be_read() {
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": 5, "resourceVersion": "x", "finalizers": 1}, "spec": [],
        });
        let head = head(pod.to_string().as_bytes()).unwrap();
        let expected = Head { namespace: "ns".into(), name: "p".into(), ..Head::default() };
        assert_eq!(head, expected);
        assert_eq!(head.key::<Pod>().to_string(), "ns/p");
        assert_eq!(head.key::<Node>().to_string(), "p");
        for raw in ["5", "{}", r#"{"metadata": {"name": 5}}"#] {
            super::head(raw.as_bytes()).expect_err(raw);
        }
    }

    #[test]
    fn an_error_names_the_field_and_quotes_nothing() {
        let cases = [
            json!({"metadata": {"creationTimestamp": "s3cret"}}),
            json!({"metadata": {"resourceVersion": "s3cret"}}),
            json!({"metadata": {"uid": {"s3cret": 1}}}),
            json!({"spec": {"volumes": "s3cret"}}),
            json!({"status": {"phase": ["s3cret"]}}),
        ];
        for pod in cases {
            let text = decode::<Pod>(pod.to_string().as_bytes()).unwrap_err().to_string();
            assert!(!text.contains("s3cret"), "{text}");
            let (outer, inner) = pod.as_object().unwrap().iter().next().unwrap();
            let path = format!("{outer}.{}", inner.as_object().unwrap().keys().next().unwrap());
            assert!(text.starts_with(&path), "{text}");
        }
        let text = watch_event(&Bytes::from(r#"{"type":"s3cret","object":{}}"#)).unwrap_err().to_string();
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn a_status_says_no_in_detail() {
        let full = json!({
            "kind": "Status", "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "busy",
            "details": {"name": "pv", "kind": "persistentvolumes", "uid": "u", "retryAfterSeconds": 3,
                "causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]},
        });
        let status: Status = decode(full.to_string().as_bytes()).unwrap();
        assert_eq!((status.code, &*status.reason, &*status.details.name), (429, "TooManyRequests", "pv"));
        assert_eq!(status.retry_after(), Some(std::time::Duration::from_secs(3)));
        let bare: Status = decode(br#"{"code": 410, "details": null}"#).unwrap();
        assert!(bare.is_expired() && bare.retry_after().is_none());
    }
}
