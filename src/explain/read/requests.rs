//! How a read is asked for: its path, or why there is nothing to ask.
//!
//! In: a [`Read`]. Out: the path and query of a `GET`. Names come from people and from other objects' references: one that
//! no object can have is not sent, and so cannot lead to another path.

use crate::explain::subject::is_name;
use crate::kube_api::{
    ids::NodeName,
    kinds::{
        CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment, api_root,
    },
};

use super::plan::Read;

/// Namespace of events about what has none.
const DEFAULT_NAMESPACE: &str = "default";
/// Most events of one object that are read: the API server keeps them for an hour, and each counts repetitions.
const MOST_EVENTS: usize = 500;

/// Most events about claims, or of one namespace, that are read: some megabytes.
const MOST_LISTED_EVENTS: usize = 5_000;

/// How a read is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// One object, as JSON.
    Object(String),
    /// A list of few, as JSON, and the kind of its items.
    Few(String, &'static str),
    /// Pods that are narrowed down, in pages.
    Pods(String),
    /// Claims that are narrowed down, in pages.
    Claims(String),
    /// A whole kind, in pages.
    Whole,
    /// No object can have such a name.
    Impossible,
}

/// The namespace, if there is one, the name, the kind and the path of an object.
fn parts(object: &ObjectRef) -> (Option<&str>, &str, &'static str, String) {
    match object {
        ObjectRef::Node(name) => (None, name.as_str(), Node::KIND, Node::path(name)),
        ObjectRef::Pod(key) => (Some(key.namespace()), key.name(), Pod::KIND, Pod::path(key)),
        ObjectRef::Volume(name) => {
            (None, name.as_str(), PersistentVolume::KIND, PersistentVolume::path(name))
        }
        ObjectRef::Claim(key) => {
            (Some(key.namespace()), key.name(), PersistentVolumeClaim::KIND, PersistentVolumeClaim::path(key))
        }
        ObjectRef::Attachment(name) => {
            (None, name.as_str(), VolumeAttachment::KIND, VolumeAttachment::path(name))
        }
        ObjectRef::Class(name) => (None, name.as_str(), StorageClass::KIND, StorageClass::path(name)),
        ObjectRef::Driver(name) => (None, name.as_str(), CsiDriver::KIND, CsiDriver::path(name)),
    }
}

/// The kind of an object, as in `kind:`.
pub(super) fn kind(object: &ObjectRef) -> &'static str {
    parts(object).2
}

/// How it is asked for.
pub(super) fn request(read: &Read) -> Request {
    match read {
        Read::Object(object) => {
            let (namespace, name, _, path) = parts(object);
            if is_name(name) && namespace.is_none_or(is_name) {
                Request::Object(path)
            } else {
                Request::Impossible
            }
        }
        Read::CsiNode(node) => {
            on_node(node, || Request::Object(format!("{}/csinodes/{node}", api_root("storage.k8s.io"))))
        }
        Read::EventsAbout(object) => {
            let (namespace, name, kind, _) = parts(object);
            if !is_name(name) || !namespace.is_none_or(is_name) {
                return Request::Impossible;
            }
            let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
            let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
            let path = format!("/api/v1/namespaces/{namespace}/events");
            Request::Few(format!("{path}?{}&limit={MOST_EVENTS}", selected(&selector)), "Event")
        }
        Read::Leases(None) => {
            let path = format!("{}/leases", api_root("coordination.k8s.io"));
            Request::Few(format!("{path}?{}", selected("metadata.namespace!=kube-node-lease")), "Lease")
        }
        Read::Leases(Some(namespace)) => {
            let path = format!("{}/namespaces/{namespace}/leases", api_root("coordination.k8s.io"));
            Request::Few(path, "Lease")
        }
        Read::PodsOn(node) => on_node(node, || {
            Request::Pods(format!("/api/v1/pods?{}", selected(&format!("spec.nodeName={node}"))))
        }),
        Read::PodsIn(namespace) if is_name(namespace) => {
            Request::Pods(format!("/api/v1/namespaces/{namespace}/pods?"))
        }
        Read::ClaimsIn(namespace) if is_name(namespace) => {
            Request::Claims(format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims?"))
        }
        Read::EventsIn(namespace) if is_name(namespace) => {
            Request::Few(format!("/api/v1/namespaces/{namespace}/events?limit={MOST_LISTED_EVENTS}"), "Event")
        }
        Read::PodsIn(_) | Read::ClaimsIn(_) | Read::EventsIn(_) => Request::Impossible,
        Read::ClaimEvents => {
            let selector = selected(&format!("involvedObject.kind={}", PersistentVolumeClaim::KIND));
            Request::Few(format!("/api/v1/events?{selector}&limit={MOST_LISTED_EVENTS}"), "Event")
        }
        Read::All(_) => Request::Whole,
    }
}

fn on_node(node: &NodeName, request: impl FnOnce() -> Request) -> Request {
    if is_name(node.as_str()) { request() } else { Request::Impossible }
}

fn selected(selector: &str) -> String {
    let encoded: String = form_urlencoded::byte_serialize(selector.as_bytes()).collect();
    format!("fieldSelector={encoded}")
}

/// A page of a list whose path has a `?` or not.
pub(super) fn page(path: &str, limit: usize, next: Option<&str>) -> String {
    let mut uri = match path.chars().last() {
        Some('?') => format!("{path}limit={limit}"),
        _ if path.contains('?') => format!("{path}&limit={limit}"),
        _ => format!("{path}?limit={limit}"),
    };
    if let Some(token) = next {
        uri.push_str("&continue=");
        uri.extend(form_urlencoded::byte_serialize(token.as_bytes()));
    }
    uri
}

/// An attachment of that name, for tests of other rooms.
#[cfg(test)]
pub(super) fn attachment(name: &str) -> Read {
    Read::Object(ObjectRef::Attachment(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::ids::ClaimKey;

    #[test]
    fn reads_are_asked_for_by_name_and_field_selector() {
        let claim = || ObjectRef::Claim(ClaimKey::new("shop", "data"));
        let object = |path: &str| Request::Object(path.to_owned());
        let cases = [
            (Read::Object(claim()), object("/api/v1/namespaces/shop/persistentvolumeclaims/data")),
            (attachment("csi-1"), object("/apis/storage.k8s.io/v1/volumeattachments/csi-1")),
            (Read::CsiNode("a".into()), object("/apis/storage.k8s.io/v1/csinodes/a")),
            (
                Read::EventsAbout(claim()),
                Request::Few(
                    "/api/v1/namespaces/shop/events?fieldSelector=involvedObject.kind%3DPersistentVolumeClaim\
                     %2CinvolvedObject.name%3Ddata&limit=500"
                        .to_owned(),
                    "Event",
                ),
            ),
            (
                Read::EventsAbout(ObjectRef::Node("a".into())),
                Request::Few(
                    "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DNode\
                     %2CinvolvedObject.name%3Da&limit=500"
                        .to_owned(),
                    "Event",
                ),
            ),
            (
                Read::Leases(None),
                Request::Few(
                    "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.namespace%21%3Dkube-node-lease"
                        .to_owned(),
                    "Lease",
                ),
            ),
            (
                Read::PodsOn("a".into()),
                Request::Pods("/api/v1/pods?fieldSelector=spec.nodeName%3Da".to_owned()),
            ),
            (Read::PodsIn("shop".to_owned()), Request::Pods("/api/v1/namespaces/shop/pods?".to_owned())),
        ];
        for (read, expected) in cases {
            assert_eq!(request(&read), expected, "{read}");
        }
    }

    #[test]
    fn a_name_that_no_object_can_have_is_not_sent() {
        for name in ["", ".", "..", "../secrets/key", "a/b", "a?watch=1", "a%2fb", "a b", "é"] {
            assert_eq!(request(&attachment(name)), Request::Impossible, "{name:?}");
            assert_eq!(request(&Read::CsiNode(name.into())), Request::Impossible, "{name:?}");
            assert_eq!(request(&Read::PodsOn(name.into())), Request::Impossible, "{name:?}");
            assert_eq!(request(&Read::PodsIn(name.to_owned())), Request::Impossible, "{name:?}");
            let claim = ObjectRef::Claim(ClaimKey::new(name, "data"));
            assert_eq!(request(&Read::EventsAbout(claim)), Request::Impossible, "{name:?}");
        }
    }

    #[test]
    fn the_role_for_those_who_ask_has_all_that_is_read() {
        let role = include_str!("../../../deploy/optional/explain-reader/rbac.yaml");
        let role: serde_json::Value = serde_saphyr::from_str(role).unwrap();
        let has = |rule: &serde_json::Value, field: &str, word: &str| {
            rule[field].as_array().unwrap().iter().any(|it| it == word)
        };
        let rules = role["rules"].as_array().unwrap();
        let (named, whole): (Vec<_>, Vec<_>) =
            rules.iter().partition(|rule| rule["resourceNames"].is_array());
        let allows = |group: &str, resource: &str, verb: &str| {
            whole.iter().any(|rule| {
                has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
            })
        };
        // Of ConfigMaps the one that says who vouches for a daemon.
        assert!(!allows("", "configmaps", "get"));
        assert_eq!(named.len(), 1);
        assert_eq!(
            *named[0],
            serde_json::json!({
                "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mooring-explain-ca"],
                "verbs": ["get"],
            })
        );
        // `list` of one namespace, and `get` by name, are of the same resources.
        let claim = || ObjectRef::Claim(ClaimKey::new("shop", "data"));
        let reads = [
            Read::Object(claim()),
            Read::Object(ObjectRef::Node("a".into())),
            Read::Object(ObjectRef::Pod(crate::kube_api::ids::PodKey::new("shop", "p"))),
            Read::Object(ObjectRef::Volume("v".into())),
            Read::Object(ObjectRef::Class("c".into())),
            Read::Object(ObjectRef::Driver("d".into())),
            attachment("csi-1"),
            Read::CsiNode("a".into()),
            Read::EventsAbout(claim()),
            Read::ClaimEvents,
            Read::Leases(None),
            Read::Leases(Some("kube-system")),
            Read::PodsOn("a".into()),
            Read::PodsIn("shop".to_owned()),
            Read::ClaimsIn("shop".to_owned()),
            Read::EventsIn("shop".to_owned()),
        ];
        for read in &reads {
            let (path, verb) = match request(read) {
                Request::Object(path) => (path, "get"),
                Request::Few(path, _) | Request::Pods(path) | Request::Claims(path) => (path, "list"),
                other => panic!("{read}: {other:?}"),
            };
            let path = path.split('?').next().unwrap();
            let mut parts: Vec<&str> = path.split('/').skip(1).collect();
            let group = if parts.remove(0) == "api" { "" } else { parts.remove(0) };
            parts.remove(0);
            if parts[0] == "namespaces" {
                parts.drain(..2);
            }
            assert!(allows(group, parts[0], verb), "{verb} {path}");
        }
        for kind in ["nodes", "pods", "persistentvolumes", "persistentvolumeclaims"] {
            assert!(allows("", kind, "list"), "{kind}");
        }
        for kind in ["volumeattachments", "storageclasses", "csidrivers"] {
            assert!(allows("storage.k8s.io", kind, "list"), "{kind}");
        }
    }

    #[test]
    fn pages_are_asked_for_with_the_token_of_the_last() {
        assert_eq!(page("/api/v1/pods", 5, None), "/api/v1/pods?limit=5");
        assert_eq!(page("/api/v1/pods?", 5, None), "/api/v1/pods?limit=5");
        assert_eq!(page("/api/v1/pods?x=1", 5, Some("t&/")), "/api/v1/pods?x=1&limit=5&continue=t%26%2F");
    }
}
