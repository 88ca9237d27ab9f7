//! How far the work has got that takes more than one step: recycling a volume, deleting one, making one
//! for a claim.
//!
//! In: answers, and recycler pods as they change. Out: for a volume or a claim as it is now, the stage of
//! its run, if that run was begun for exactly this object; and when to begin again after a failure. A run
//! is known to this process alone: what an earlier one left is cleared away and begun anew.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::{ClaimKey, PodKey, ResourceVersion, Uid, VolumeName},
    kinds::{
        Narrow, OwnerReference, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase, RECYCLER_PREFIX,
        ReclaimPolicy, VolumePhase,
    },
    tables::Relation,
};
use tokio::time::Instant;

use super::directories::volume_name;
use crate::{
    binder::{calls::Target, events, reasons::Unprovisioned},
    controller::retry::RetryMap,
};

/// Annotation of a recycler pod: that claim's UID. Each pod of ours has had it since it was made.
pub const CLAIM_UID: &str = "mooring.binder/claim-uid";

/// Stage of what is done to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeStage {
    /// The recycler pod is made, and does not run.
    Created,
    /// The volume was read live at this revision, and is released.
    Proven(ResourceVersion),
    /// The recycler pod may run.
    Started,
    /// The storage is as it should be.
    Done,
    /// The volume's deletion was answered.
    Deleted,
    /// It failed, with this text for people.
    Failed(String),
}

/// What is done to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOperation {
    volume: Uid,
    claim: Uid,
    /// The recycler pod, if there is one.
    pub pod: Option<(PodKey, Uid)>,
    /// How far it has got.
    pub stage: VolumeStage,
}

/// Stage of making a volume for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStage {
    /// The storage is there; the object was refused so many times.
    Made(u32),
    /// The object was refused for good, with this text; removing the storage failed so many times.
    Undoing(String, u32),
    Failed(Unprovisioned),
}

/// Making a volume for a claim.
#[derive(Debug)]
struct ClaimOperation {
    claim: Uid,
    stage: Option<ClaimStage>,
    /// The scheduler was asked again since the last try.
    is_rescheduled: bool,
}

/// A pod that is called like a recycler pod.
#[derive(Debug)]
pub(super) struct Recycling {
    pod: Uid,
    pub(super) name: VolumeName,
    /// The volume that owns it; none owns one of kube-controller-manager's, which has the volume's name in its own.
    volume: Option<Uid>,
    /// Whether it is one of ours, of this or an earlier process.
    is_marked: bool,
    /// Its deletion was answered.
    is_deleted: bool,
}

#[derive(Debug, Default)]
pub struct Operations {
    pub(super) volumes: BTreeMap<VolumeName, VolumeOperation>,
    claims: BTreeMap<ClaimKey, ClaimOperation>,
    pub(super) pods: BTreeMap<PodKey, Recycling>,
    /// By the name of the volume; whether they count is up to the volume.
    pub(super) pods_of: Relation<VolumeName, PodKey>,
    /// Namespaces in which recycler pods are looked for. Elsewhere people may call pods as they like.
    namespaces: BTreeSet<String>,
    pub(crate) pauses: RetryMap<Target>,
}

impl Operations {
    /// No operations; recycler pods are looked for in these namespaces.
    pub fn new(namespaces: BTreeSet<String>) -> Self {
        Self { namespaces, ..Self::default() }
    }

    /// The run of a volume as it is.
    pub fn of_volume(&self, volume: &PersistentVolume) -> Option<&VolumeOperation> {
        let claim = &volume.spec.claim_ref.as_ref()?.uid;
        let run = self.volumes.get(&volume.key())?;
        (run.volume == volume.metadata.uid && run.claim == *claim).then_some(run)
    }

    fn of(&self, claim: &PersistentVolumeClaim) -> Option<&ClaimOperation> {
        self.claims.get(&claim.key()).filter(|operation| operation.claim == claim.metadata.uid)
    }

    /// The stage of making a volume for a claim.
    pub fn of_claim(&self, claim: &PersistentVolumeClaim) -> Option<&ClaimStage> {
        self.of(claim)?.stage.as_ref()
    }

    /// Whether the scheduler was asked for another node since the last try, which it answers at once.
    pub fn is_rescheduled(&self, claim: &PersistentVolumeClaim) -> bool {
        self.of(claim).is_some_and(|operation| operation.is_rescheduled)
    }

    /// The recycler pods of a volume: those that it owns, those of ours that an earlier volume of its name owned, and, before
    /// it is emptied, one that is called as kube-controller-manager calls its own. Another pod that merely names it does not
    /// count, as any user may make one and keep it.
    pub fn pods(&self, volume: &PersistentVolume) -> impl Iterator<Item = (&PodKey, &Uid)> {
        let owner = &volume.metadata.uid;
        let is_recycled = volume.spec.reclaim_policy == ReclaimPolicy::Recycle
            && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
        let pods = self.pods_of.of(volume.key()).filter_map(|key| Some((key, self.pods.get(key)?)));
        let counts = move |pod: &Recycling| match &pod.volume {
            Some(of) => pod.is_marked || of == owner,
            None => is_recycled,
        };
        pods.filter(move |(_, pod)| counts(pod)).map(|(key, pod)| (key, &pod.pod))
    }

    /// Whether the deletion of this pod was answered.
    pub fn is_deleted(&self, pod: &Pod) -> bool {
        self.pods.get(&pod.key()).is_some_and(|known| known.is_deleted && known.pod == pod.metadata.uid)
    }

    /// Takes a pod's current content, or its absence. Returns the volume whose recycler pod it is or was.
    pub fn pod_changed(&mut self, key: &PodKey, pod: Option<&Pod>, now: Instant) -> Option<VolumeName> {
        let after = pod.and_then(|pod| Some((self.recycling(pod)?, pod)));
        let mut is_deleted = false;
        let before = self.pods.remove(key);
        if let Some(before) = &before {
            self.pods_of.remove(&before.name, key);
            is_deleted = before.is_deleted;
            if after.as_ref().is_none_or(|(after, _)| after.pod != before.pod) {
                is_deleted = false;
                self.pod_ended(&before.name, &before.pod, Err(events::POD_DELETED.to_owned()), now);
            }
        }
        let Some((recycling, pod)) = after else { return before.map(|before| before.name) };
        let name = recycling.name.clone();
        self.pods_of.insert(name.clone(), key.clone());
        self.pods.insert(key.clone(), Recycling { is_deleted, ..recycling });
        let result = match pod.status.phase {
            PodPhase::Succeeded => Ok(()),
            PodPhase::Failed => Err(events::pod_failed(&pod.status.message)),
            _ => return Some(name),
        };
        self.pod_ended(&name, &pod.metadata.uid, result, now);
        Some(name)
    }

    /// Notes how the pod of a run ended; what came first counts.
    fn pod_ended(&mut self, name: &VolumeName, uid: &Uid, result: Result<(), String>, now: Instant) {
        let Some(run) = self.volumes.get_mut(name) else { return };
        let is_its = run.pod.as_ref().is_some_and(|(_, pod)| pod == uid);
        let is_open =
            matches!(run.stage, VolumeStage::Created | VolumeStage::Proven(_) | VolumeStage::Started);
        if !is_its || !is_open {
            return;
        }
        match result {
            Ok(()) => run.stage = VolumeStage::Done,
            Err(text) => {
                run.stage = VolumeStage::Failed(text);
                self.pauses.failed(&Target::Volume(name.clone()), now, 0.0);
            }
        }
    }

    /// What is done to a volume, for the claim that it refers to, has got to this stage.
    fn volume_at(&mut self, volume: &PersistentVolume, pod: Option<(PodKey, Uid)>, stage: VolumeStage) {
        let Some(reference) = &volume.spec.claim_ref else { return };
        let (of_volume, claim) = (volume.metadata.uid.clone(), reference.uid.clone());
        self.volumes.insert(volume.key(), VolumeOperation { volume: of_volume, claim, pod, stage });
    }

    /// A recycler pod was made for a volume as it is. One made for a volume that has since been made anew under
    /// its name is left over, and not of a run.
    pub fn pod_created(&mut self, volume: &PersistentVolume, pod: &Pod) {
        if owner(pod).is_some_and(|owner| owner.uid == volume.metadata.uid) {
            let made = (pod.key(), pod.metadata.uid.clone());
            self.volume_at(volume, Some(made), VolumeStage::Created);
        }
    }

    /// A volume was read live.
    pub fn proven(&mut self, volume: &PersistentVolume) {
        let pod = match self.of_volume(volume) {
            Some(VolumeOperation { stage: VolumeStage::Created | VolumeStage::Proven(_), pod, .. }) => {
                pod.clone()
            }
            Some(_) => return,
            None => None,
        };
        self.volume_at(volume, pod, VolumeStage::Proven(volume.metadata.resource_version));
    }

    /// A step that rested on a proof was made. The pod it started may have ended before the answer came.
    pub fn advance(&mut self, volume: &VolumeName, stage: VolumeStage) {
        let Some(run) = self.volumes.get_mut(volume) else { return };
        match run.stage {
            VolumeStage::Proven(_) => run.stage = stage,
            VolumeStage::Done if stage == VolumeStage::Deleted => run.stage = stage,
            _ => {}
        }
    }

    /// The step that rested on a proof was not made, and when it is the proof will be old.
    pub fn unproven(&mut self, volume: &VolumeName) {
        if let Some(run) = self.volumes.get_mut(volume)
            && let VolumeStage::Proven(_) = run.stage
        {
            run.stage = VolumeStage::Created;
        }
    }

    /// What was to be done to a volume failed.
    pub fn volume_failed(&mut self, volume: &PersistentVolume, text: String, now: Instant) {
        self.volume_at(volume, None, VolumeStage::Failed(text));
        self.pauses.failed(&Target::Volume(volume.key()), now, 0.0);
    }

    /// The deletion of a pod was answered.
    pub fn pod_deleted(&mut self, pod: &PodKey) {
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.is_deleted = true;
        }
    }

    /// Making a volume for a claim has got to this stage.
    pub fn claim_at(&mut self, claim: &PersistentVolumeClaim, stage: ClaimStage) {
        let is_rescheduled = self.is_rescheduled(claim);
        let claim_uid = claim.metadata.uid.clone();
        let operation = ClaimOperation { claim: claim_uid, stage: Some(stage), is_rescheduled };
        self.claims.insert(claim.key(), operation);
    }

    /// The scheduler was asked for another node. There is a pause before the next try.
    pub fn reschedule(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let (stage, claim_uid) = (self.of_claim(claim).cloned(), claim.metadata.uid.clone());
        let operation = ClaimOperation { claim: claim_uid, stage, is_rescheduled: true };
        self.claims.insert(claim.key(), operation);
        let target = Target::Claim(claim.key());
        if !self.pauses.waits(&target) {
            self.pauses.failed(&target, now, 0.0);
        }
    }

    /// Making a volume for a claim failed.
    pub fn claim_failed(&mut self, claim: &PersistentVolumeClaim, why: Unprovisioned, now: Instant) {
        self.claim_at(claim, ClaimStage::Failed(why));
        self.pauses.failed(&Target::Claim(claim.key()), now, 0.0);
    }

    /// Forgets what was done, or what is gone.
    pub fn forget(&mut self, target: &Target) {
        self.end(target);
        self.pauses.clear(target);
    }

    /// A volume is there. If it is of another claim than the one its run was begun for, or of none, that run
    /// counts for nothing, not even when it comes back to that claim. If it is the one that was being made for
    /// its claim, that is over: from then on its directory goes with the volume and not before.
    pub fn volume_seen(&mut self, volume: &PersistentVolume) {
        let name = volume.key();
        if self.volumes.contains_key(&name) && self.of_volume(volume).is_none() {
            self.forget(&Target::Volume(name));
        }
        if let Some(reference) = &volume.spec.claim_ref
            && volume.key() == volume_name(&reference.uid)
            && self.claims.get(&reference.key()).is_some_and(|it| it.claim == reference.uid)
        {
            self.forget(&Target::Claim(reference.key()));
        }
    }

    /// The targets whose pause is over: their failed operations are forgotten, so that they begin anew.
    pub fn take_due(&mut self, now: Instant) -> Vec<Target> {
        let due = self.pauses.take_due(now);
        for target in &due {
            self.end(target);
        }
        due
    }

    fn end(&mut self, target: &Target) {
        match target {
            Target::Claim(key) => drop(self.claims.remove(key)),
            Target::Volume(name) => drop(self.volumes.remove(name)),
        }
    }

    /// The pod, if it looks like a recycler pod. Outside of the templates' namespaces it is one that was made from a template
    /// which has moved since: it says whose run it is, and the volume's UID.
    fn recycling(&self, pod: &Pod) -> Option<Recycling> {
        let meta = &pod.metadata;
        let named = meta.name.strip_prefix(RECYCLER_PREFIX)?;
        let owner = owner(pod);
        let (is_marked, is_here) =
            (meta.annotation(CLAIM_UID).is_some(), self.namespaces.contains(&*meta.namespace));
        if !is_here && (owner.is_none() || !is_marked) {
            return None;
        }
        Some(Recycling {
            pod: meta.uid.clone(),
            name: VolumeName::from(owner.map_or(named, |owner| owner.name.as_str())),
            volume: owner.map(|owner| owner.uid.clone()),
            is_marked: is_marked && is_here,
            is_deleted: false,
        })
    }
}

/// The volume that owns a pod.
fn owner(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().find(|owner| owner.kind == PersistentVolume::KIND)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decode<T: serde::de::DeserializeOwned>(object: &Value) -> T {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    fn volume(name: &str) -> PersistentVolume {
        decode(&json!({
            "metadata": {"name": name, "uid": "uid-v", "resourceVersion": "5"},
            "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "uid-c"}},
        }))
    }

    fn pod(namespace: &str, uid: &str, phase: &str) -> Pod {
        decode(&json!({
            "metadata": {
                "namespace": namespace, "name": format!("recycler-for-v-{uid}"), "uid": uid,
                "ownerReferences": [{"kind": "PersistentVolume", "name": "v", "uid": "uid-v"}],
            },
            "status": {"phase": phase},
        }))
    }

    fn operations() -> Operations {
        Operations::new([String::from("default")].into())
    }

    #[test]
    fn only_the_end_of_its_own_pod_ends_a_run() {
        let now = Instant::now();
        let (mut operations, volume) = (operations(), volume("v"));
        let told =
            |operations: &mut Operations, pod: &Pod| operations.pod_changed(&pod.key(), Some(pod), now);
        let own = pod("default", "own", "Pending");
        assert_eq!(told(&mut operations, &own), Some(volume.key()));
        operations.pod_created(&volume, &own);
        assert_eq!(told(&mut operations, &pod("default", "other", "Succeeded")), Some(volume.key()));
        assert_eq!(operations.of_volume(&volume).unwrap().stage, VolumeStage::Created);
        // Elsewhere, and of another volume, a name means nothing.
        assert_eq!(told(&mut operations, &pod("people", "own", "Succeeded")), None);
        assert_eq!(operations.of_volume(&volume).unwrap().stage, VolumeStage::Created);
        assert_eq!(operations.pods(&volume).count(), 2);
        told(&mut operations, &pod("default", "own", "Succeeded"));
        assert_eq!(operations.of_volume(&volume).unwrap().stage, VolumeStage::Done);
        // What came first counts.
        assert_eq!(operations.pod_changed(&own.key(), None, now), Some(volume.key()));
        assert_eq!(operations.of_volume(&volume).unwrap().stage, VolumeStage::Done);
        assert_eq!(operations.pods(&volume).count(), 1);

        let mut another_claim = volume.clone();
        another_claim.spec.claim_ref.as_mut().unwrap().uid = "uid-d".into();
        let mut made_anew = volume.clone();
        made_anew.metadata.uid = "uid-w".into();
        assert_eq!((operations.of_volume(&another_claim), operations.of_volume(&made_anew)), (None, None));
    }

    #[test]
    fn the_pods_of_a_volume_are_those_it_owns_and_those_we_made_for_one_of_its_name() {
        let now = Instant::now();
        // Namespace, owner, whether it has our mark, whether it counts.
        let rows = [
            ("default", "uid-v", true, true),
            ("default", "uid-v", false, true),
            ("default", "old", true, true),
            ("default", "old", false, false),
            ("template-was-here", "uid-v", true, true),
            ("template-was-here", "uid-v", false, false),
            ("template-was-here", "old", true, false),
        ];
        for (namespace, owner, marked, counts) in rows {
            let mut operations = operations();
            let mut pod = pod(namespace, "p", "Running");
            pod.metadata.owner_references[0].uid = owner.into();
            if marked {
                let marked: Pod = decode(&json!({"metadata": {"annotations": {CLAIM_UID: "uid-c"}}}));
                pod.metadata.annotations = marked.metadata.annotations;
            }
            operations.pod_changed(&pod.key(), Some(&pod), now);
            assert_eq!(operations.pods(&volume("v")).count() == 1, counts, "{namespace} {owner} {marked}");
        }
    }

    #[test]
    fn a_pod_that_was_made_anew_under_its_name_is_another_one() {
        let now = Instant::now();
        let (mut operations, volume) = (operations(), volume("v"));
        let own = pod("default", "own", "Pending");
        operations.pod_changed(&own.key(), Some(&own), now);
        let mut made_anew = volume.clone();
        made_anew.metadata.uid = "uid-w".into();
        operations.pod_created(&made_anew, &own);
        assert_eq!(operations.of_volume(&made_anew), None, "S23 the pod is of the volume before it");
        operations.pod_created(&volume, &own);
        operations.pod_deleted(&own.key());
        assert!(operations.is_deleted(&own));
        let mut anew = pod("default", "own", "Succeeded");
        anew.metadata.uid = "anew".into();
        operations.pod_changed(&own.key(), Some(&anew), now);
        let deleted = "failed to recycle volume: recycler pod was deleted".to_owned();
        assert_eq!(operations.of_volume(&volume).unwrap().stage, VolumeStage::Failed(deleted));
        assert!(!operations.is_deleted(&own));
    }

    #[test]
    fn a_proof_is_for_the_next_step_only() {
        let (mut operations, volume) = (operations(), volume("v"));
        let own = pod("default", "own", "Pending");
        let stage = |operations: &Operations| operations.of_volume(&volume).map(|run| run.stage.clone());
        operations.pod_created(&volume, &own);
        operations.proven(&volume);
        assert_eq!(stage(&operations), Some(VolumeStage::Proven(ResourceVersion(5))));
        operations.unproven(&volume.key());
        assert_eq!(stage(&operations), Some(VolumeStage::Created));
        operations.advance(&volume.key(), VolumeStage::Started);
        assert_eq!(stage(&operations), Some(VolumeStage::Created), "nothing starts without a proof");
        operations.proven(&volume);
        operations.advance(&volume.key(), VolumeStage::Started);
        operations.proven(&volume);
        assert_eq!(stage(&operations), Some(VolumeStage::Started), "a late read takes nothing back");

        let mut operations = self::operations();
        let stage = |operations: &Operations| operations.of_volume(&volume).map(|run| run.stage.clone());
        operations.proven(&volume);
        operations.advance(&volume.key(), VolumeStage::Done);
        operations.advance(&volume.key(), VolumeStage::Started);
        assert_eq!(stage(&operations), Some(VolumeStage::Done), "the end may be told before the answer");
        operations.advance(&volume.key(), VolumeStage::Deleted);
        assert_eq!(stage(&operations), Some(VolumeStage::Deleted));
    }

    #[test]
    fn a_failed_run_is_forgotten_after_its_pause_and_the_next_pause_is_longer() {
        let now = Instant::now();
        let (mut operations, volume) = (operations(), volume("v"));
        let target = Target::Volume(volume.key());
        operations.volume_failed(&volume, "no".to_owned(), now);
        let first = operations.pauses.next_due().unwrap();
        assert_eq!(operations.take_due(now), vec![]);
        assert_eq!(operations.take_due(first), vec![target.clone()]);
        assert_eq!(operations.of_volume(&volume), None);
        operations.volume_failed(&volume, "no".to_owned(), first);
        assert_eq!(operations.pauses.next_due().unwrap() - first, 2 * (first - now));
        operations.forget(&target);
        assert_eq!((operations.pauses.next_due(), operations.of_volume(&volume)), (None, None));
    }
}
