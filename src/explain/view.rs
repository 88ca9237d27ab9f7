//! What an answer is made from: a snapshot, and the dry runs.
//!
//! In: a snapshot. Out: where each claim, volume and volume on a node stands, as the controllers say; and, if it is noted, what was
//! looked for and is not in the snapshot: what the reader reads next.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::{AttributesClassName, ClaimKey, NodeName, PodKey, VolumeName},
    kinds::{Meta, Node, ObjectRef, PersistentVolume, Pod},
    tables::{Objects, Stored},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    exclusive::{self, Twice},
    read::requests::Read,
    sidecars::Sidecars,
    snapshot::Snapshot,
};
use crate::{
    attach_detach::{
        self,
        dry_run::{NodeVolumeOutlook, volume_of},
        state::desired::volume_name::VolumeId,
    },
    binder::{
        self,
        calls::Target,
        dry_run::Place,
        reasons::{ClaimReason, VolumeReason},
    },
    controller::finalizer::Users as _,
    vac_protection::users::ClassUsers,
};

/// So many nodes and volumes are read by name. A volume on more nodes is looked for in the list of all attachments: one request, not
/// two for each node.
pub(super) const MANY_NODES: usize = 16;

/// See the module.
pub(super) struct View<'a> {
    pub snapshot: &'a Snapshot,
    sidecars: Sidecars<'a>,
    /// What the binder says of everything, where it was asked at once.
    pub binder: Option<binder::dry_run::Outlook>,
    indexes: Indexes,
    /// What the answer would have looked at, if that is noted.
    wanted: Option<RefCell<BTreeSet<Read>>>,
}

/// What is looked up more than once, made when it is first asked for.
#[derive(Default)]
struct Indexes {
    attach_detach: OnceCell<attach_detach::dry_run::Outlook>,
    wanting: OnceCell<BTreeMap<(VolumeId, NodeName), Vec<PodKey>>>,
    using: OnceCell<BTreeMap<ClaimKey, Vec<PodKey>>>,
    twice: OnceCell<BTreeMap<VolumeId, Twice>>,
    occupied: OnceCell<BTreeSet<NodeName>>,
    naming: OnceCell<BTreeMap<ClaimKey, Vec<Arc<PersistentVolume>>>>,
    naming_class: OnceCell<ClassUsers>,
    standing: OnceCell<BTreeMap<VolumeId, Vec<Arc<PersistentVolume>>>>,
}

impl<'a> View<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let (sidecars, indexes) = (Sidecars::new(snapshot), Indexes::default());
        Self { snapshot, sidecars, binder: None, indexes, wanted: None }
    }

    /// What an answer looks at, as far as that is known by now: what was read is not read again.
    pub fn noted<T>(snapshot: &'a Snapshot, answer: impl FnOnce(&Self) -> T) -> BTreeSet<Read> {
        let view = Self { wanted: Some(RefCell::default()), ..Self::new(snapshot) };
        answer(&view);
        view.wanted.map(RefCell::into_inner).unwrap_or_default()
    }

    /// What attach/detach says.
    pub fn attach_detach(&self) -> &attach_detach::dry_run::Outlook {
        self.indexes.attach_detach.get_or_init(|| self.snapshot.ask_attach_detach())
    }

    /// Whether it is noted.
    pub fn is_noted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Notes that this would be looked at.
    pub fn want(&self, read: impl FnOnce() -> Read) {
        if let Some(wanted) = &self.wanted {
            wanted.borrow_mut().insert(read());
        }
    }

    /// An object that is looked at by its name.
    pub fn read<T: Stored>(&self, key: &T::Key) -> Option<Arc<T>> {
        self.want(|| Read::object(T::object_ref(key.clone())));
        self.objects().get::<T>(key)
    }

    /// Notes that all of a kind would be looked at.
    pub fn list<T: Stored>(&self) {
        self.want(Read::all::<T>);
    }

    /// What is known of side-cars: drivers and leases are looked at.
    pub fn sidecars(&self) -> &Sidecars<'a> {
        if let Some(wanted) = &self.wanted {
            wanted.borrow_mut().extend(Read::programs(self.snapshot));
        }
        &self.sidecars
    }

    /// A node, with what drivers have said there.
    pub fn node(&self, name: &NodeName) -> Option<Arc<Node>> {
        self.want(|| Read::csi_node(name));
        self.read::<Node>(name)
    }

    /// Nodes with pods that use a claim.
    pub fn nodes_using(&self, claim: &ClaimKey) -> BTreeSet<NodeName> {
        let pods = self.users_of(claim).iter().filter_map(|pod| self.objects().pods.get(pod));
        pods.map(|pod| pod.spec.node_name.clone()).collect()
    }

    /// Whether more can become known of an object.
    pub fn is_open(&self, object: &ObjectRef) -> bool {
        !self.snapshot.holds(object)
            && !self.snapshot.is_absent(object)
            && !Read::object(object.clone()).is_unseen(self.snapshot)
    }

    pub fn objects(&self) -> &'a Objects {
        &self.snapshot.objects
    }

    pub fn now(&self) -> Timestamp {
        self.snapshot.taken_at
    }

    /// The same for questions about all claims and volumes: the binder is asked once.
    pub fn of_all(snapshot: &'a Snapshot) -> Self {
        Self { binder: Some(snapshot.ask_binder()), ..Self::new(snapshot) }
    }

    /// Where a claim stands.
    pub fn claim(&self, key: &ClaimKey) -> Place<ClaimReason> {
        match &self.binder {
            Some(all) => all.claims.get(key).cloned(),
            None => self.snapshot.ask_binder_of(Some(&Target::Claim(key.clone()))).claims.remove(key),
        }
        .unwrap_or_default()
    }

    /// Where a volume stands.
    pub fn volume(&self, name: &VolumeName) -> Place<VolumeReason> {
        match &self.binder {
            Some(all) => all.volumes.get(name).cloned(),
            None => self.snapshot.ask_binder_of(Some(&Target::Volume(name.clone()))).volumes.remove(name),
        }
        .unwrap_or_default()
    }

    /// Where a volume on a node stands.
    pub fn on_node(&self, volume: &VolumeId, node: &NodeName) -> Option<&NodeVolumeOutlook> {
        self.attach_detach().node_volumes.get(&(volume.clone(), node.clone()))
    }

    /// All nodes on which a volume is, may be, or is to be.
    pub fn nodes_of<'b>(
        &'b self,
        volume: &'b VolumeId,
    ) -> impl Iterator<Item = (&'b NodeName, &'b NodeVolumeOutlook)> {
        let first = (volume.clone(), NodeName::from(""));
        let node_volumes = self.attach_detach().node_volumes.range(first..);
        let of_it = node_volumes.take_while(move |((of, _), _)| of == volume);
        of_it.map(|((_, node), node_volume)| (node, node_volume))
    }

    /// Pods that want a volume on a node.
    pub fn users(&self, volume: &VolumeId, node: &NodeName) -> impl Iterator<Item = &PodKey> {
        let wanting = self.indexes.wanting.get_or_init(|| {
            let desired = self.attach_detach().desired.iter();
            let desired = desired.flat_map(|(pod, all)| all.iter().map(move |wanted| (pod, wanted)));
            index(desired.map(|(pod, it)| ((it.volume.clone(), it.node.clone()), pod.clone())))
        });
        wanting.get(&(volume.clone(), node.clone())).into_iter().flatten()
    }

    /// Volumes that name a claim of this name.
    pub fn volumes_naming(&self, claim: &ClaimKey) -> impl Iterator<Item = Arc<PersistentVolume>> {
        let naming = self.indexes.naming.get_or_init(|| {
            let volumes = self.objects().volumes.snapshot().into_values();
            index(volumes.filter_map(|volume| Some((volume.spec.claim_ref.as_ref()?.key(), volume))))
        });
        naming.get(claim).into_iter().flatten().cloned()
    }

    /// PersistentVolumes, by the volume that they stand for.
    pub fn standing(&self) -> &BTreeMap<VolumeId, Vec<Arc<PersistentVolume>>> {
        self.indexes.standing.get_or_init(|| {
            let volumes = self.objects().volumes.snapshot().into_iter();
            index(volumes.filter_map(|(name, volume)| Some((volume_of(self.objects(), &name)?, volume))))
        })
    }

    /// Claims and volumes that name a VolumeAttributesClass.
    pub fn naming_class(&self, class: &AttributesClassName) -> impl Iterator<Item = &ObjectRef> {
        let load = || {
            let mut users = ClassUsers::default();
            users.load(self.objects());
            users
        };
        self.indexes.naming_class.get_or_init(load).0.of(class)
    }

    /// Whether a node has volumes, or is to have some.
    pub fn has_volumes(&self, node: &NodeName) -> bool {
        let all = || self.attach_detach().node_volumes.keys().map(|(_, node)| node.clone()).collect();
        self.indexes.occupied.get_or_init(all).contains(node)
    }

    /// Volumes for one node alone that are on more.
    pub fn twice(&self) -> &BTreeMap<VolumeId, Twice> {
        self.indexes.twice.get_or_init(|| exclusive::look(self.snapshot, self.attach_detach()))
    }

    /// See [`users`].
    pub fn users_of(&self, claim: &ClaimKey) -> &[PodKey] {
        let using = self.indexes.using.get_or_init(|| users(self.objects()));
        using.get(claim).map(Vec::as_slice).unwrap_or_default()
    }

    /// The object of a subject as it was read, whole.
    pub fn whole(&self, subject: &ObjectRef) -> Option<&'a Value> {
        self.snapshot.details.get(subject)
    }

    /// Whether an object was looked for and is not there, could not be read, or was not looked for.
    pub fn missing<T: Stored>(&self, key: &T::Key) -> Missing {
        let object = T::object_ref(key.clone());
        if let Some(error) = self.objects().unreadable::<T>(key) {
            return Missing::Unreadable(error);
        }
        if self.snapshot.is_absent(&object) {
            return Missing::Absent;
        }
        let about = [object.to_string(), T::PLURAL.to_owned()];
        let unseen = self.snapshot.unseen.iter().find(|unseen| about.contains(&unseen.what));
        if unseen.is_some_and(|unseen| unseen.forbidden) {
            return Missing::Unseen("you may not read it".to_owned());
        }
        let unseen = unseen.or(self.snapshot.unseen.first());
        Missing::Unseen(unseen.map_or_else(|| "it was not read".to_owned(), |unseen| unseen.why.clone()))
    }

    /// Whether a node is known not to be there.
    pub fn is_gone(&self, name: &NodeName) -> bool {
        self.objects().nodes.get(name).is_none() && matches!(self.missing::<Node>(name), Missing::Absent)
    }

    /// What the reader has no right to see: what matters to the question, or, if nothing of that is missing, the rest.
    pub fn lacks_rights(&self, matters: impl Fn(&str) -> bool) -> Option<String> {
        let lacking = self.snapshot.unseen.iter().filter(|unseen| unseen.forbidden);
        let all: Vec<&str> = lacking.map(|unseen| unseen.what.as_str()).collect();
        let these: Vec<&str> = all.iter().copied().filter(|what| matters(what)).collect();
        let told = if these.is_empty() { all } else { these };
        (!told.is_empty()).then(|| told.join(", "))
    }
}

/// The claims of a pod's volumes.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimKey> {
    pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume))
}

/// Whether a pod is on a node and has not ended.
pub(super) fn runs_on(pod: &Pod, node: &NodeName) -> bool {
    pod.spec.node_name == *node && !pod.is_terminated()
}

/// What keeps an object that is being deleted.
pub(super) fn finalizers(metadata: &Meta) -> String {
    metadata.finalizers.iter().map(|it| &**it).collect::<Vec<_>>().join(", ")
}

/// Pods on nodes that use a claim and have not ended: those for which it is protected.
// KCM: pkg/controller/volume/pvcprotection, podUsesPVC.
pub(super) fn users(objects: &Objects) -> BTreeMap<ClaimKey, Vec<PodKey>> {
    let pods = objects.pods.snapshot().into_iter();
    let pods = pods.filter(|(_, pod)| !pod.spec.node_name.is_empty() && !pod.is_terminated());
    let claims = |(key, pod): (PodKey, Arc<Pod>)| {
        claims_of(&pod).map(|claim| (claim, key.clone())).collect::<Vec<_>>()
    };
    index(pods.flat_map(claims))
}

/// Values by their keys, in their order.
pub(super) fn index<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut index: BTreeMap<K, Vec<V>> = BTreeMap::new();
    for (key, value) in pairs {
        index.entry(key).or_default().push(value);
    }
    index
}

/// Why an object is in no table.
pub(super) enum Missing {
    /// It does not exist.
    Absent,
    /// It cannot be read.
    Unreadable(String),
    /// The reader could not see it, in the server's words.
    Unseen(String),
}

/// The narrow form of an object.
pub(super) fn get<T: Stored>(view: &View<'_>, key: &T::Key) -> Option<Arc<T>> {
    view.objects().get::<T>(key)
}
