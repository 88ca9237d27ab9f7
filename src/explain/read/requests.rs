//! A question to the API server: what it is called, how it is asked, and what comes back.
//!
//! In: what an answer needs. Out: the path and query of a `GET`. Names come from people and from other objects' references: one
//! that no object can have is not sent, and so cannot lead to another path.

use apiserver::{
    ids::NodeName,
    kinds::{CsiDriver, Narrow, ObjectRef, PersistentVolumeClaim, Pod, api_root},
    tables::Stored,
};
use derive_more::Display;

use crate::explain::{
    snapshot::{
        CLAIMS_THERE, DEPLOYED, EVENTS, EVENTS_THERE, LEASES, OWN_LEASES, OWN_NAMESPACE, PODS_THERE, Snapshot,
    },
    subject::is_name,
};
use crate::fence::policies::API;

/// Where most drivers, and the stock controllers, have their leases.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// Namespace of events about what has none.
const DEFAULT_NAMESPACE: &str = "default";
/// Most events of one object that are read: the API server keeps them for an hour, and each counts repetitions.
const MOST_EVENTS: usize = 500;
/// Most events about claims, or of one namespace, that are read: some megabytes.
const MOST_LISTED_EVENTS: usize = 5_000;

/// One question.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
#[display("{what}")]
pub struct Read {
    /// As what could not be seen is named.
    what: String,
    /// Path and query; none if no object can have such a name.
    pub(super) path: Option<String>,
    pub(super) comes: Comes,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Comes {
    /// One object, whole.
    Object(ObjectRef),
    /// What drivers have said on a node.
    CsiNode(NodeName),
    /// A list of few, whole: the kind of its items, and what has been read if that is all of it.
    Few(&'static str, Option<&'static str>),
    /// A list of many, narrow, in pages: the plural of its kind, and what has been read with it.
    Narrow(&'static str, &'static str),
}

impl Comes {
    /// The kind of what comes, and what has been read if that is all of it.
    pub(super) fn kind_and_noted(&self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Object(object) => (object.kind(), None),
            Self::CsiNode(_) => ("CSINode", None),
            Self::Few(kind, noted) => (kind, *noted),
            Self::Narrow(plural, noted) => (plural, Some(noted)),
        }
    }
}

impl Read {
    /// An object by its name.
    pub(in crate::explain) fn object(object: ObjectRef) -> Self {
        let (namespace, name) = object.names();
        let is_possible = is_name(name) && namespace.is_none_or(is_name);
        let path = is_possible.then(|| object.path());
        Self { what: object.to_string(), path, comes: Comes::Object(object) }
    }

    /// What drivers have said on a node.
    pub(in crate::explain) fn csi_node(node: &NodeName) -> Self {
        let path = format!("{}/csinodes/{node}", api_root("storage.k8s.io"));
        let comes = Comes::CsiNode(node.clone());
        Self::named(format!("csinode/{node}"), node.as_str(), path, comes)
    }

    /// Events about an object.
    pub(in crate::explain) fn events_about(object: &ObjectRef) -> Self {
        let ((namespace, name), kind) = (object.names(), object.kind());
        let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
        let selector = selected(&format!("involvedObject.kind={kind},involvedObject.name={name}"));
        let path = format!("/api/v1/namespaces/{namespace}/events?{selector}&limit={MOST_EVENTS}");
        let path = (is_name(name) && is_name(namespace)).then_some(path);
        Self { what: format!("events about {object}"), path, comes: Comes::Few("Event", None) }
    }

    /// Events about claims, as far as they fit an answer.
    pub(in crate::explain) fn claim_events() -> Self {
        let selector = selected(&format!("involvedObject.kind={}", PersistentVolumeClaim::KIND));
        let path = format!("/api/v1/events?{selector}&limit={MOST_LISTED_EVENTS}");
        let comes = Comes::Few("Event", Some(EVENTS));
        Self { what: "events about claims".to_owned(), path: Some(path), comes }
    }

    /// Events of a namespace, as far as they fit an answer.
    pub(in crate::explain) fn events_in(namespace: &str) -> Self {
        let read = Self::within(namespace, ("", "events"), Comes::Few("Event", Some(EVENTS_THERE)));
        Self { path: read.path.map(|path| format!("{path}?limit={MOST_LISTED_EVENTS}")), ..read }
    }

    /// All leases but those of nodes.
    pub(in crate::explain) fn leases() -> Self {
        let selector = selected("metadata.namespace!=kube-node-lease");
        let path = format!("{}/leases?{selector}", api_root("coordination.k8s.io"));
        let comes = Comes::Few("Lease", Some(LEASES));
        Self { what: "leases".to_owned(), path: Some(path), comes }
    }

    /// What shows that an attacher or provisioner is there: the drivers, and leases of all namespaces, or, of who may not see
    /// those, or where they are too large, at least where most are, and mooring's.
    pub(in crate::explain) fn programs(seen: &Snapshot) -> impl Iterator<Item = Self> {
        let there = Self::leases().is_unseen(seen).then_some([SYSTEM_NAMESPACE, OWN_NAMESPACE]);
        let there = there.into_iter().flatten().map(Self::leases_in);
        [Self::all::<CsiDriver>(), Self::leases()].into_iter().chain(there)
    }

    /// Whether it was made in vain.
    pub(in crate::explain) fn is_unseen(&self, seen: &Snapshot) -> bool {
        seen.unseen.iter().any(|unseen| unseen.what == self.what)
    }

    /// The policies that fence kube-controller-manager's loops off, or their bindings: without one, a policy denies nothing.
    pub(in crate::explain) fn of_fence(what: &'static str, (kind, plural): (&'static str, &str)) -> Self {
        let path = format!("/apis/{API}/{plural}?labelSelector=app.kubernetes.io%2Fpart-of%3Dmooring");
        Self { what: what.to_owned(), path: Some(path), comes: Comes::Few(kind, Some(what)) }
    }

    /// The Deployment that says which controllers mooring runs.
    pub(in crate::explain) fn deployed() -> Self {
        let selector = selected("metadata.name=mooring");
        let path = format!("/apis/apps/v1/namespaces/mooring-system/deployments?{selector}");
        Self { what: DEPLOYED.to_owned(), path: Some(path), comes: Comes::Few("Deployment", None) }
    }

    /// Leases of a namespace.
    pub(in crate::explain) fn leases_in(namespace: &str) -> Self {
        let noted = (namespace == OWN_NAMESPACE).then_some(OWN_LEASES);
        Self::within(namespace, ("coordination.k8s.io", "leases"), Comes::Few("Lease", noted))
    }

    /// Pods of a node.
    pub(in crate::explain) fn pods_on(node: &NodeName) -> Self {
        let path = format!("/api/v1/pods?{}", selected(&format!("spec.nodeName={node}")));
        let comes = Comes::Narrow(Pod::PLURAL, PODS_THERE);
        Self::named(format!("pods on {node}"), node.as_str(), path, comes)
    }

    /// Pods of a namespace.
    pub(in crate::explain) fn pods_in(namespace: &str) -> Self {
        Self::within(namespace, (Pod::GROUP, Pod::PLURAL), Comes::Narrow(Pod::PLURAL, PODS_THERE))
    }

    /// Claims of a namespace.
    pub(in crate::explain) fn claims_in(namespace: &str) -> Self {
        let plural = PersistentVolumeClaim::PLURAL;
        Self::within(namespace, (PersistentVolumeClaim::GROUP, plural), Comes::Narrow(plural, CLAIMS_THERE))
    }

    /// A whole kind.
    pub(in crate::explain) fn all<T: Stored>() -> Self {
        let path = Some(format!("{}/{}", api_root(T::GROUP), T::PLURAL));
        Self { what: T::PLURAL.to_owned(), path, comes: Comes::Narrow(T::PLURAL, T::PLURAL) }
    }

    fn within(namespace: &str, (group, plural): (&str, &str), comes: Comes) -> Self {
        let path = format!("{}/namespaces/{namespace}/{plural}", api_root(group));
        Self::named(format!("{plural} in {namespace}"), namespace, path, comes)
    }

    fn named(what: String, name: &str, path: String, comes: Comes) -> Self {
        Self { what, path: is_name(name).then_some(path), comes }
    }
}

fn selected(selector: &str) -> String {
    let encoded: String = form_urlencoded::byte_serialize(selector.as_bytes()).collect();
    format!("fieldSelector={encoded}")
}

#[cfg(test)]
mod tests {
    use apiserver::{ids::ClaimKey, kinds::VolumeAttachment};

    use super::*;

    fn attachment(name: &str) -> Read {
        Read::object(ObjectRef::Attachment(name.into()))
    }

    #[test]
    fn reads_are_asked_for_by_name_and_field_selector() {
        let claim = || ObjectRef::Claim(ClaimKey::new("shop", "data"));
        let cases = [
            (Read::object(claim()), "/api/v1/namespaces/shop/persistentvolumeclaims/data"),
            (attachment("csi-1"), "/apis/storage.k8s.io/v1/volumeattachments/csi-1"),
            (Read::csi_node(&"a".into()), "/apis/storage.k8s.io/v1/csinodes/a"),
            (
                Read::events_about(&claim()),
                "/api/v1/namespaces/shop/events?fieldSelector=involvedObject.kind%3DPersistentVolumeClaim\
                 %2CinvolvedObject.name%3Ddata&limit=500",
            ),
            (
                Read::events_about(&ObjectRef::Node("a".into())),
                "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DNode\
                 %2CinvolvedObject.name%3Da&limit=500",
            ),
            (
                Read::leases(),
                "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.namespace%21%3Dkube-node-lease",
            ),
            (Read::pods_on(&"a".into()), "/api/v1/pods?fieldSelector=spec.nodeName%3Da"),
            (Read::pods_in("shop"), "/api/v1/namespaces/shop/pods"),
            (Read::all::<VolumeAttachment>(), "/apis/storage.k8s.io/v1/volumeattachments"),
        ];
        for (read, expected) in cases {
            assert_eq!(read.path.as_deref(), Some(expected), "{read}");
        }
    }

    #[test]
    fn a_name_that_no_object_can_have_is_not_sent() {
        for name in ["", ".", "..", "../secrets/key", "a/b", "a?watch=1", "a%2fb", "a b", "é"] {
            let reads = [
                attachment(name),
                Read::csi_node(&name.into()),
                Read::pods_on(&name.into()),
                Read::pods_in(name),
                Read::events_in(name),
                Read::events_about(&ObjectRef::Claim(ClaimKey::new(name, "data"))),
            ];
            for read in reads {
                assert_eq!(read.path, None, "{read}");
            }
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
        let allows = |group: &str, resource: &str, verb: &str| {
            rules.iter().any(|rule| {
                has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
            })
        };
        assert!(!allows("", "configmaps", "get"));
        // `list` of one namespace, and `get` by name, are of the same resources.
        let claim = || ObjectRef::Claim(ClaimKey::new("shop", "data"));
        let reads = [
            Read::object(claim()),
            Read::object(ObjectRef::Node("a".into())),
            Read::object(ObjectRef::Pod(apiserver::ids::PodKey::new("shop", "p"))),
            Read::object(ObjectRef::Volume("v".into())),
            Read::object(ObjectRef::Class("c".into())),
            Read::object(ObjectRef::Driver("d".into())),
            Read::object(ObjectRef::AttributesClass("gold".into())),
            attachment("csi-1"),
            Read::csi_node(&"a".into()),
            Read::events_about(&claim()),
            Read::claim_events(),
            Read::leases(),
            Read::deployed(),
            Read::leases_in("kube-system"),
            Read::pods_on(&"a".into()),
            Read::pods_in("shop"),
            Read::claims_in("shop"),
            Read::events_in("shop"),
        ];
        for read in &reads {
            let path = read.path.clone().unwrap();
            let is_of_one = matches!(read.comes, Comes::Object(_) | Comes::CsiNode(_));
            let verb = if is_of_one { "get" } else { "list" };
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
        for kind in ["volumeattachments", "storageclasses", "csidrivers", "volumeattributesclasses"] {
            assert!(allows("storage.k8s.io", kind, "list"), "{kind}");
        }
    }
}
