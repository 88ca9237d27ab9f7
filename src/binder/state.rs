//! State: what decisions are made on. The tables, the indexes of them, the proofs, what is under way, and the [`Plugins`]
//! to which a decision may hand an object.
//!
//! In: objects as they change, requests as they are sent and answered, outcomes of live reads. Out: what
//! [`super::decide`] asks. Nothing here can reach the API server, a clock or a log.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    events::{Event, Involved},
    ids::{ClaimKey, ClassName, PodKey, ResourceVersion, Uid, VolumeName},
    kinds::{
        BindingMode, ClaimPhase, ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        StorageClass,
    },
    tables::Objects,
};
use educe::Educe;
use tokio::time::Instant;

use super::{
    annotations,
    calls::{Answer, Op, Purpose, Target, Write},
    decide::{
        decision::{ClaimDecision, VolumeDecision},
        proofs::{Proofs, Seen},
    },
    doubt::Doubts,
    matching::{
        choose_claim::ClaimIndex,
        choose_volume::VolumeIndex,
        predicate::{Comparisons, Requirements, held_by, mismatch_for_named, was_bound},
    },
    second_writer::content,
};
use crate::controller::{last_said::LastSaid, second_writer::SecondWriters, uses::ClaimPods};

/// Requests under way at once. Twice what the connection budget lets through, so that it never
/// idles; the rest stays here, where pairs that have begun go first.
const MOST_IN_FLIGHT: usize = 128;

/// If a volume was refused to so many claims that name it, those that are gone are forgotten.
const MOST_REFUSED: usize = 1_000;

/// Settings of the binder (pv-binder §12).
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default)]
pub struct BinderOptions {
    /// Whether provisioners are asked for volumes.
    #[educe(Default = true)]
    pub enable_dynamic_provisioning: bool,
    /// How often everything unsettled is looked at although nothing happened.
    #[educe(Default = Duration::from_mins(5))]
    pub sync_period: Duration,
}

/// Requests under way: the one owner of which claims and volumes may not be touched (S18, S38).
#[derive(Debug, Default)]
pub struct InFlight {
    /// Claims and volumes that may not be touched: a request about them is sent, or parked.
    pub(super) busy: BTreeSet<Target>,
    /// Requests sent and not yet answered.
    pub(super) sent: usize,
    /// Reads that come before anything else about their pair, by whose decision the request before was; each with whether it
    /// waits for the pause of its subject.
    pub(super) parked: BTreeMap<Target, (Op, bool)>,
}

impl InFlight {
    pub(super) fn is_full(&self) -> bool {
        self.sent >= MOST_IN_FLIGHT
    }

    /// A request is sent; from now on its claim and volume are busy.
    pub(super) fn send(&mut self, op: &Op) {
        self.busy.extend(op.touches());
        self.sent += 1;
    }

    /// Keeps a read for the next turn of its subject, or after the pause of that; its claim and volume stay busy.
    pub(super) fn park(&mut self, op: Op, pauses: bool) {
        self.parked.insert(op.subject.clone(), (op, pauses));
    }

    /// Whether a read of the subject waits for the pause of that.
    pub(super) fn pauses(&self, subject: &Target) -> bool {
        self.parked.get(subject).is_some_and(|(_, pauses)| *pauses)
    }
}

/// The cluster as known.
#[derive(Debug, Educe)]
#[educe(Default)]
pub struct State {
    /// Current objects.
    pub objects: Arc<Objects>,
    /// Settings.
    pub options: BinderOptions,
    /// Volumes by what claims look for.
    pub volumes: VolumeIndex,
    /// Claims by the volume that they name, and by what they wait for.
    pub claims: ClaimIndex,
    /// Pods that are not scheduled, and not over, by claim.
    pub pods: ClaimPods,
    /// The class that claims without one get.
    pub default_class: Option<ClassName>,
    /// Classes whose claims wait for their first consumer.
    pub(super) delaying: LastSaid<ClassName>,
    /// Outcomes of live reads.
    pub proofs: Proofs,
    /// Reservations of which it is not known whether they were made.
    pub doubts: Doubts,
    /// Requests under way.
    pub in_flight: InFlight,
    /// Annotations and finalizers that a webhook takes out, by the content of the write, and the revision of the object since
    /// which nobody but us has changed it: nothing waits for them.
    pub(super) stripped: BTreeMap<Target, (u64, Option<ResourceVersion>)>,
    /// Free volumes that were not to be reserved at this revision, and for which claims that name them, by UID: others
    /// that suit come first, and such a claim that has never had the volume keeps it from nobody.
    pub(super) unreservable: BTreeMap<VolumeName, (ResourceVersion, BTreeSet<Uid>)>,
    /// Free volumes whose reservation has failed again and again at this revision, which may be the server's fault: others that
    /// are as good come first. They stay with the claims that name them.
    pub(super) failing: BTreeMap<VolumeName, ResourceVersion>,
    /// What each claim that names no volume has tried in vain (L15).
    pub(super) tried: BTreeMap<ClaimKey, Tries>,
    /// What other binders were seen to write.
    pub writers: SecondWriters<Target>,
    /// Volumes that are recycled, deleted or made here.
    #[educe(Default = Box::new(NoPlugins))]
    pub plugins: Box<dyn Plugins>,
    /// What the decisions of a plan cost.
    pub compared: Comparisons,
}

/// Which volumes a claim has tried in vain: what was refused to another, or once, it may have. Each is tried once before one is
/// tried again; but one that has changed since may have every second try, so that who puts it right is not made to wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    /// At which revision.
    volumes: BTreeMap<VolumeName, ResourceVersion>,
    /// The last try was one of a volume that had changed.
    is_again: bool,
}

impl State {
    /// The indexes are still to be loaded.
    pub fn new(objects: Arc<Objects>, options: BinderOptions) -> Self {
        Self { objects, options, ..Self::default() }
    }

    /// Takes in every object there is, but for pods.
    pub(super) fn load(&mut self, now: Instant) {
        for (name, volume) in &self.objects.volumes.snapshot() {
            self.volumes.update(name, Some(volume));
            self.plugins.changed(&ObjectRef::Volume(name.clone()), &self.objects, now);
        }
        for (key, claim) in &self.objects.claims.snapshot() {
            self.claims.update(key, Some(claim));
        }
        for class in self.objects.classes.snapshot().into_keys() {
            self.observe_delay(&class, now);
        }
        self.observe_default_class();
    }

    /// Takes whether a class, as it is, or its absence, delays the bind of its claims.
    pub(super) fn observe_delay(&mut self, name: &ClassName, now: Instant) {
        self.delaying.observe(name, self.delays(name), now);
    }

    /// Whether a class delays the bind of its claims, if it is there.
    fn delays(&self, name: &ClassName) -> Option<bool> {
        let class = self.objects.classes.get(name)?;
        Some(class.volume_binding_mode == Some(BindingMode::WaitForFirstConsumer))
    }

    /// Looks for the default class again. Returns whether it is another.
    pub(super) fn observe_default_class(&mut self) -> bool {
        let default = default_class(self.objects.classes.snapshot().values());
        let has_changed = default != self.default_class;
        self.default_class = default;
        has_changed
    }

    /// Whether nothing may be decided about a volume, nor be written to it: a request about it is under way, a pod empties
    /// it, it cannot be read, or it is still to be read who changed it.
    pub fn is_busy(&self, name: &VolumeName) -> bool {
        let target = Target::Volume(name.clone());
        self.in_flight.busy.contains(&target)
            || self.writers.has_to_read(&target)
            || self.plugins.is_at_work(name, &self.objects)
            || self.objects.unreadable::<PersistentVolume>(name).is_some()
    }

    /// A volume as last seen.
    pub fn volume(&self, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
        self.objects.volumes.get(name)
    }

    /// The claims one of which has a volume, although the volume does not name it (S45): they were bound to it, as phase or
    /// marker says, and live. If any is Bound, those that are. Of several nobody knows which: age proves nothing.
    pub fn owners(&self, volume: &VolumeName) -> Vec<Arc<PersistentVolumeClaim>> {
        let named = self.claims.bound_to(volume).filter_map(|key| self.namer(volume, key));
        let (bound, others): (Vec<_>, Vec<_>) =
            named.filter(|claim| was_bound(claim)).partition(|claim| claim.status.phase == ClaimPhase::Bound);
        if bound.is_empty() { others } else { bound }
    }

    /// The claims that name a volume: there may be as many as the cluster has.
    pub(super) fn naming(&self, volume: VolumeName) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        self.claims.naming(&volume).filter_map(move |key| self.namer(&volume, key))
    }

    /// The claims that name a volume and take it if it refers to none: those that were bound to it, and those that it suits.
    pub(super) fn takers(
        &self,
        volume: &PersistentVolume,
    ) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let suits = |claim: &PersistentVolumeClaim| {
            Requirements::of(claim)
                .is_ok_and(|requirements| mismatch_for_named(volume, &requirements).is_none())
        };
        self.naming(volume.key()).filter(move |claim| was_bound(claim) || suits(claim))
    }

    /// A claim, if it names the volume, as the tables show it.
    fn namer(&self, volume: &VolumeName, key: &ClaimKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.compared.update(|count| count + 1);
        self.objects.claims.get(key).filter(|claim| claim.spec.volume_name == *volume)
    }

    /// A volume that a claim may look for: none that belongs to another claim, which is about to take it back, and none
    /// that another names and would take now, if it may.
    pub fn unowned(&self, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
        let volume = self.volume(name)?;
        let is_named = || self.takers(&volume).any(|claim| !self.is_refused(name, &claim));
        let is_taken = volume.spec.claim_ref.is_none() && (!self.owners(name).is_empty() || is_named());
        (!is_taken).then_some(volume)
    }

    /// Whether a volume was not to be reserved for a claim.
    pub(super) fn is_refused(&self, name: &VolumeName, claim: &PersistentVolumeClaim) -> bool {
        self.unreservable.get(name).is_some_and(|(_, claims)| claims.contains(&claim.metadata.uid))
    }

    /// Notes that a volume was not to be reserved for a claim. Returns whether that is new for one that names it.
    pub(super) fn note_refused(&mut self, name: &VolumeName, claim: &PersistentVolumeClaim) -> bool {
        let revision = self.volume(name).map(|volume| volume.metadata.resource_version).unwrap_or_default();
        let (refused, claims) = self.unreservable.entry(name.clone()).or_default();
        if mem::replace(refused, revision) != revision {
            claims.clear();
        }
        if claims.len() >= MOST_REFUSED && !claims.contains(&claim.metadata.uid) {
            let naming = self.claims.naming(name).filter_map(|key| self.objects.claims.get(key));
            let there: BTreeSet<Uid> = naming.map(|claim| claim.metadata.uid.clone()).collect();
            claims.retain(|uid| there.contains(uid));
        }
        claim.spec.volume_name == *name && claims.insert(claim.metadata.uid.clone())
    }

    /// Notes that a claim has tried a volume in vain, as it is. When it has tried all, it begins anew.
    pub(super) fn note_tried(&mut self, claim: &ClaimKey, volume: &VolumeName, revision: ResourceVersion) {
        let tried = self.tried.entry(claim.clone()).or_default();
        let before = tried.volumes.insert(volume.clone(), revision);
        let is_again = before.is_some_and(|before| !tried.is_again && before != revision);
        if before.is_some() && !is_again {
            tried.volumes = BTreeMap::from([(volume.clone(), revision)]);
        }
        tried.is_again = is_again;
    }

    /// Whether a claim has not tried a volume in vain, as it is, since it has tried all.
    pub(super) fn is_open(&self, claim: &ClaimKey, volume: &PersistentVolume) -> bool {
        let Some(tried) = self.tried.get(claim) else { return true };
        let before = tried.volumes.get(&volume.key());
        before.is_none_or(|before| !tried.is_again && *before != volume.metadata.resource_version)
    }

    /// Whether others that are as good come before a free volume.
    pub(super) fn is_passed_over(&self, volume: &PersistentVolume) -> bool {
        let name = volume.key();
        self.unreservable.contains_key(&name)
            || self.failing.get(&name) == Some(&volume.metadata.resource_version)
    }

    /// Whether the API server has answered the same write about this object, as it is, without the change.
    pub(super) fn is_stripped(&self, target: &Target, revision: ResourceVersion, write: &Write) -> bool {
        self.stripped.get(target) == Some(&(content(write), Some(revision)))
    }

    /// Whether a volume has the UID of a claim.
    pub(super) fn is_held(&self, claim: &PersistentVolumeClaim) -> bool {
        let key = claim.key();
        let mut volumes = self.volumes.referring_to(&key).filter_map(|name| self.volume(name));
        volumes.any(|volume| held_by(&volume, claim))
    }

    /// A class as last seen; no class for the empty name.
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        if name.is_empty() { None } else { self.objects.classes.get(&ClassName::from(name)) }
    }

    /// Whether a claim takes no free volume, but only one that is reserved for it. A class that is gone may be made anew.
    pub(super) fn is_delayed(&self, requirements: &Requirements<'_>) -> bool {
        let name = ClassName::from(requirements.class);
        self.delaying.says(&name, self.delays(&name))
    }

    /// Revision of the newest claim in our tables, at least of the one that a request is about: one whose change is of
    /// no interest here comes into the table without being told of.
    pub(super) fn newest_claim(&self, subject: &Target) -> ResourceVersion {
        let own = match subject {
            Target::Claim(key) => self.objects.claims.get(key).map(|claim| claim.metadata.resource_version),
            Target::Volume(_) => None,
        };
        own.unwrap_or_default().max(self.objects.claims.observed())
    }

    /// What was proven of the claims that name a volume was proven of the volume as it was. The read that proved
    /// it may be the change.
    pub(super) fn unprove_claims_of(&mut self, name: &VolumeName) {
        let seen = Seen::of(&self.objects, name);
        for key in self.claims.naming(name) {
            self.proofs.forget_claim_unless(key, seen);
        }
    }
}

/// The class for claims without one: the newest of those marked, the first by name among equals
/// (pv-binder §8).
// KCM: pkg/volume/util/storageclass.go, GetDefaultClass.
fn default_class<'a>(classes: impl Iterator<Item = &'a Arc<StorageClass>>) -> Option<ClassName> {
    let marked = classes.filter(|class| annotations::is_default_class(&class.metadata));
    let first = marked.min_by_key(|class| (Reverse(class.metadata.creation_timestamp), class.key()));
    first.map(|class| class.key())
}

/// What recycles, deletes and makes volumes for the binder, if anything does ([`crate::host_plugins`]). What an
/// implementation leaves out is what a binder without such plugins does.
pub trait Plugins: fmt::Debug + Send {
    /// Whether volumes of this provisioner are made and deleted here.
    fn provisions(&self, _provisioner: &str) -> bool {
        false
    }

    /// What has to be done about a volume before anything else is decided about it.
    fn first(&self, _volume: &PersistentVolume, _view: &State) -> Option<VolumeDecision> {
        None
    }

    /// Recycles or deletes a volume whose claim is proven gone, as its policy says; `None` if nothing here does.
    fn reclaim(&self, _: &PersistentVolume, _: &ClaimRef, _: &State) -> Option<VolumeDecision> {
        None
    }

    /// Makes a volume for a claim of a provisioner that is here; `None` if the claim has to name that first.
    fn provision(&self, _: &PersistentVolumeClaim, _: &StorageClass, _: &State) -> Option<ClaimDecision> {
        None
    }

    /// Whether nothing else is decided about a volume, as a pod is at work on it.
    fn is_at_work(&self, _volume: &VolumeName, _objects: &Objects) -> bool {
        false
    }

    /// The pods at work, by UID, with the volume of each.
    fn pods_at_work(&self, _objects: &Objects) -> BTreeMap<Uid, (PodKey, Involved)> {
        BTreeMap::new()
    }

    /// An object changed; how it is now, the tables show. Returns the claims and volumes that this concerns.
    fn changed(&mut self, _object: &ObjectRef, _objects: &Objects, _now: Instant) -> Vec<Target> {
        Vec::new()
    }

    /// The step about a volume that rested on a proof is not made now, and the proof will be old when it is.
    fn unproven(&mut self, _volume: &VolumeName) {}

    /// Keys whose failed work may begin anew.
    fn take_due(&mut self, _now: Instant) -> Vec<Target> {
        Vec::new()
    }

    /// When the next of them is due.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Takes the answer to a request that it asked for. Returns how the subject goes on, if not as usual.
    fn answered(
        &mut self,
        _op: &Op,
        _result: &Result<Answer, CallError>,
        _objects: &Objects,
        _now: Instant,
    ) -> Option<Then> {
        None
    }
}

/// No plugins.
#[derive(Debug)]
pub struct NoPlugins;

impl Plugins for NoPlugins {}

/// How the subject of a request goes on.
#[derive(Debug)]
pub enum Then {
    /// It is looked at again.
    Look,
    /// The same, and this is told: the answer to a request of a plugin shows that an earlier write was made.
    Tell(Event),
    /// The same, after a pause that is longer each time.
    Failed,
    /// The same, after a pause if that happens again and again.
    Conflicted,
    /// The same, after a pause that depends on the error.
    Pause(CallError),
    /// The same, at this time.
    At(Instant),
    /// The request, a read, is repeated after such a pause; until then nothing is decided about the pair.
    Repeat(CallError),
    /// The object of the request is read before anything else is decided about the pair.
    Read(Purpose),
}
