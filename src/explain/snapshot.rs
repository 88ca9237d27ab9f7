//! What was read of a cluster for one answer, and what could not be read.
//!
//! In: objects as JSON or as narrow kinds, and what was looked for in vain. Out: tables for the dry runs, whole objects
//! for evidence, and what is known to be absent; and what the controllers would do next. What was not looked for is neither there nor absent: nothing is
//! concluded from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::{NodeName, ResourceVersion},
    kinds::{Narrow, ObjectRef, Pod},
    tables::{Objects, Stored},
    with_kind, with_object,
};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Event},
    jiff::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    attach_detach::{self, AttachDetachOptions},
    binder::{self, BinderOptions, calls::Target},
    durations::parse_duration,
    fence::arguments::{is_on, is_rolling, of_deployment, value},
};

/// Something that the reader was not allowed to see, or that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Unseen {
    /// What: `persistentvolumes`, `node/a`, `leases in kube-system`.
    pub what: String,
    /// Why not, in the server's words.
    pub why: String,
    /// Whether the reader lacks the right, rather than the server an answer.
    pub forbidden: bool,
}

/// Leases, for [`Snapshot::note_read`].
pub const LEASES: &str = "leases";
/// Where mooring has its lease, unless it is told otherwise.
pub const OWN_NAMESPACE: &str = "mooring-system";
/// Leases there, where nobody else may write, likewise.
pub const OWN_LEASES: &str = "leases of mooring";
/// The policies of the fence, as a read of them is named.
pub const FENCE: &str = "policies of the fence";
/// Their bindings, likewise.
pub const FENCE_BINDINGS: &str = "bindings of the fence";
/// The Deployment of mooring, likewise.
pub const DEPLOYED: &str = "deployments of mooring";
/// All pods of the one node or namespace that was asked about, for [`Snapshot::note_read`].
pub const PODS_THERE: &str = "pods there";
/// Events, for [`Snapshot::note_read`].
pub const EVENTS: &str = "events";
/// All claims of the one namespace that was asked about, for [`Snapshot::note_read`].
pub const CLAIMS_THERE: &str = "claims there";
/// Events of the one namespace that was asked about, for [`Snapshot::note_read`].
pub const EVENTS_THERE: &str = "events there";

/// Why a kind is in [`Snapshot::unseen`] of which the server says that there is no such.
pub const NOT_SERVED: &str = "the API server does not serve this kind";

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Narrow objects, for the dry runs.
    pub objects: Arc<Objects>,
    /// The few objects that were read by name, whole, for evidence.
    pub details: BTreeMap<ObjectRef, Value>,
    /// Events about them.
    pub events: Vec<Event>,
    /// Leases by which attachers, provisioners and controllers show that they are there.
    pub leases: Vec<Lease>,
    /// Other objects that were read whole (CSINodes, the pods of drivers), by kind and name.
    pub others: BTreeMap<(String, String), Value>,
    /// What could not be read.
    pub unseen: Vec<Unseen>,
    /// When it was read, by the API server's clock if that is known.
    pub taken_at: Timestamp,
    /// The revision of the newest list.
    pub revision: Option<ResourceVersion>,
    /// By resource: the revision of the list of all its objects. Two lists are of two moments.
    pub listed_at: BTreeMap<&'static str, ResourceVersion>,
    /// Flags of attach/detach; kube-controller-manager's defaults where they are not known.
    pub attach_detach: AttachDetachOptions,
    listed: BTreeSet<&'static str>,
    absent: BTreeSet<ObjectRef>,
    unreadable: BTreeSet<ObjectRef>,
}

impl Snapshot {
    /// Nothing has been read yet.
    pub fn new(taken_at: Timestamp) -> Self {
        Self { taken_at, ..Self::default() }
    }

    /// Takes an object that was read whole. Objects of kinds without a table are kept as they are.
    ///
    /// # Errors
    /// The object cannot be read: its kind, name, and what is wrong with it.
    pub fn take(&mut self, object: Value) -> Result<(), String> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let metadata = object.get("metadata");
        let text = |field| metadata.and_then(|it| it.get(field)).and_then(Value::as_str).unwrap_or_default();
        let name = match text("namespace") {
            "" => text("name").to_owned(),
            namespace => format!("{namespace}/{}", text("name")),
        };
        let taken = match kind.as_str() {
            "Event" => serde_json::from_value(object).map(|event| self.events.push(event)),
            "Lease" => serde_json::from_value(object).map(|lease| self.leases.push(lease)),
            narrow => with_kind!(KIND = narrow, |Kind| self.take_narrow::<Kind>(object), else {
                self.others.insert((kind.clone(), name.clone()), object);
                Ok(())
            }),
        };
        taken.map_err(|error| format!("{kind} {name}: {error}"))
    }

    fn take_narrow<T: Stored>(&mut self, object: Value) -> Result<(), serde_json::Error> {
        let narrow: T = serde_json::from_value(object.clone())?;
        self.details.insert(T::object_ref(narrow.key()), object);
        self.objects.apply(narrow);
        Ok(())
    }

    /// Notes that a kind was listed whole, in all namespaces.
    pub fn note_listed<T: Stored>(&mut self) {
        self.listed.insert(T::PLURAL);
    }

    /// Notes that an object was looked for by name and is not there.
    pub fn note_absent(&mut self, object: ObjectRef) {
        self.absent.insert(object);
    }

    /// Notes that the CSINode of a node was looked for and is not there.
    pub fn note_no_csi_node(&mut self, node: &NodeName) {
        self.others.insert(("CSINode".to_owned(), node.to_string()), Value::Null);
    }

    /// The CSINode of a node, if it was read; null if there is none.
    pub(super) fn csi_node(&self, node: &NodeName) -> Option<&Value> {
        self.others.get(&("CSINode".to_owned(), node.to_string()))
    }

    /// Notes that an object is there and cannot be read.
    pub fn note_unreadable(&mut self, object: ObjectRef) {
        self.unreadable.insert(object);
    }

    /// Whether a kind was listed whole.
    pub fn is_listed<T: Stored>(&self) -> bool {
        self.listed.contains(T::PLURAL)
    }

    /// The same, and each object of it could be read.
    pub fn is_whole<T: Stored>(&self) -> bool {
        self.is_listed::<T>() && !self.unreadable.iter().any(|object| object.kind() == T::KIND)
    }

    /// Notes that something without a table (`leases`, `events`) was read, whole.
    pub fn note_read(&mut self, what: &'static str) {
        self.listed.insert(what);
    }

    /// Whether something without a table was read, whole.
    pub fn was_read(&self, what: &str) -> bool {
        self.listed.contains(what)
    }

    /// Whether all pods were read that the question is about.
    pub(super) fn sees_pods(&self) -> bool {
        self.is_listed::<Pod>() || self.was_read(PODS_THERE)
    }

    /// A copy that goes its own way: for questions about what would be.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { objects: Arc::new((*self.objects).clone()), ..self.clone() }
    }

    /// Changes an object of a copy.
    pub fn change<T: Stored>(&self, key: &T::Key, change: impl FnOnce(&mut T)) {
        let Some(object) = self.objects.get::<T>(key) else { return };
        let mut changed = T::clone(&object);
        change(&mut changed);
        // Of two with one revision, the first would stay.
        self.objects.prove_gone::<T>(key, object.metadata().resource_version);
        self.objects.apply(changed);
    }

    /// Takes an object out of a copy, where it is known to be gone.
    pub fn remove<T: Stored>(&mut self, key: &T::Key) {
        if let Some(object) = self.objects.get::<T>(key) {
            self.objects.prove_gone::<T>(key, object.metadata().resource_version);
        }
        self.note_absent(T::object_ref(key.clone()));
    }

    /// The Deployment of mooring, if it is to be seen.
    pub(super) fn deployment(&self) -> Option<&Value> {
        self.others.get(&("Deployment".to_owned(), "mooring-system/mooring".to_owned()))
    }

    /// The arguments of who rules: of mooring's Deployment, if it runs, is settled, and waits for no fence. Behind one it rules or
    /// kube-controller-manager does, with flags of its own.
    pub(super) fn ruler_flags(&self) -> Option<Vec<&str>> {
        let deployment = self.deployment().filter(|it| !is_rolling(it))?;
        let runs = deployment.pointer("/spec/replicas").is_none_or(|replicas| *replicas != 0);
        let words = of_deployment(Some(deployment));
        (runs && !is_on(&words, "--fence", false)).then_some(words)
    }

    /// What attach/detach would do next, with the flags of who rules as far as they are to be seen.
    pub fn ask_attach_detach(&self) -> attach_detach::dry_run::Outlook {
        let is_absent = |object: &ObjectRef| self.is_absent(object);
        let mut options = self.attach_detach;
        if let Some(words) = self.ruler_flags() {
            options.force.on_timeout = !is_on(&words, "--disable-force-detach-on-timeout", false);
            let gone = value(&words, "--force-detach-gone-node-after");
            options.force.gone = gone.and_then(|it| parse_duration(it).ok()).unwrap_or(options.force.gone);
        }
        attach_detach::dry_run::dry_run(&self.objects, options, &is_absent, self.taken_at)
    }

    /// What the binder would do next, with kube-controller-manager's defaults.
    pub fn ask_binder(&self) -> binder::dry_run::Outlook {
        self.ask_binder_of(None)
    }

    /// The same about a claim or volume alone: its write is not left to another that needs the same volume.
    pub(super) fn ask_binder_of(&self, only: Option<&Target>) -> binder::dry_run::Outlook {
        let options = BinderOptions::default();
        binder::dry_run::dry_run(&self.objects, &options, only, &|object| self.is_absent(object))
    }

    /// The keys of all objects of a kind that are meant, in their order.
    pub(super) fn keys<T: Stored>(&self, is_meant: impl Fn(&T) -> bool) -> Vec<T::Key> {
        let mut keys = Vec::new();
        T::table(&self.objects).for_each(|object| keys.extend(is_meant(object).then(|| object.key())));
        keys.sort();
        keys
    }

    /// The objects themselves.
    pub(super) fn all<T: Stored>(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.keys(is_meant).iter().filter_map(|key| self.objects.get::<T>(key)).collect()
    }

    /// Whether an object was taken.
    pub fn holds(&self, object: &ObjectRef) -> bool {
        self.found(object).0
    }

    /// Whether an object is known not to be there.
    pub fn is_absent(&self, object: &ObjectRef) -> bool {
        let (is_there, plural) = self.found(object);
        let is_missing = !is_there && self.listed.contains(plural) && !self.unreadable.contains(object);
        is_missing || self.absent.contains(object)
    }

    /// Whether an object was taken, and the plural of its kind.
    fn found(&self, object: &ObjectRef) -> (bool, &'static str) {
        with_object!(object, |key: Kind| (self.objects.get::<Kind>(key).is_some(), Kind::PLURAL))
    }
}

#[cfg(test)]
mod tests {
    use apiserver::{
        ids::ClaimKey,
        kinds::{PersistentVolume, PersistentVolumeClaim},
    };
    use serde_json::json;

    use super::*;
    #[test]
    fn what_was_not_looked_for_is_not_absent() {
        let mut snapshot = Snapshot::new(Timestamp::UNIX_EPOCH);
        let claim = |name: &str| ObjectRef::Claim(ClaimKey::new("shop", name));
        let object = json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "metadata": { "name": "here", "namespace": "shop", "uid": "u", "resourceVersion": "7" },
        });
        assert_eq!(snapshot.take(object.clone()), Ok(()));
        assert_eq!(snapshot.details.get(&claim("here")), Some(&object));
        snapshot.note_absent(claim("gone"));
        let known =
            |snapshot: &Snapshot| ["here", "gone", "other"].map(|name| snapshot.is_absent(&claim(name)));
        assert_eq!(known(&snapshot), [false, true, false]);
        snapshot.note_listed::<PersistentVolumeClaim>();
        assert_eq!(known(&snapshot), [false, true, true]);
    }

    #[test]
    fn s42_an_object_of_a_list_that_cannot_be_read_is_not_absent() {
        let mut snapshot = Snapshot::new(Timestamp::UNIX_EPOCH);
        snapshot.note_listed::<PersistentVolume>();
        snapshot.note_unreadable(ObjectRef::Volume("odd".into()));
        assert!(!snapshot.is_absent(&ObjectRef::Volume("odd".into())));
        assert!(snapshot.is_absent(&ObjectRef::Volume("gone".into())));
    }

    #[test]
    fn s42_an_object_that_cannot_be_read_is_named() {
        let mut snapshot = Snapshot::new(Timestamp::UNIX_EPOCH);
        let object = json!({ "kind": "Node", "metadata": { "name": "a" }, "status": 7 });
        let error = snapshot.take(object).unwrap_err();
        assert!(error.starts_with("Node a: invalid type"), "{error}");
    }
}
