//! `persistentvolumeclaim-protection-controller`: a claim keeps its finalizer while a pod on a node names it.
//!
//! In: claims and pods as they change. Out: where the finalizer is missing, or has to go, one patch; and before one
//! goes, a live list of the namespace's pods that was asked for after the claim was seen to be deleted, shared by all
//! claims of the namespace that wait for it (KCM #109282). A pod that the tables show costs no request. The index of
//! the claims of all pods is kept only by a process that runs this controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    ids::{ClaimKey, PodKey, Uid},
    kinds::{Narrow, ObjectRef, PersistentVolumeClaim, Pod, PodVolumeSource},
    tables::Objects,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call},
    finalizer::{FinalizerStep, patch},
    keys::FinalizerKeys,
    reasons::ProtectionReason,
    second_writer::Protected,
    users::{is_owned, uses},
};
use crate::controller::{
    Controller, Identity, Plan,
    claim_pods::ClaimPods,
    keys::LOOKS,
    second_writer::{OwnedField, Role, WrittenObject},
};

/// KCM: pkg/volume/util/finalizer.go, PVCProtectionFinalizer.
pub const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

impl WrittenObject for ClaimKey {
    fn field(&self) -> OwnedField {
        OwnedField::ClaimFinalizer
    }

    fn kind(&self) -> &'static str {
        "claim_finalizer_added"
    }
}

impl Protected for ClaimKey {
    const FINALIZER: &str = CLAIM_FINALIZER;
    const ROLE: Role = Role {
        name: "claim protection controller",
        alarm: "second_claim_protection_controller",
        held: "no finalizer is taken off a claim",
        kinds: &["claim_finalizer_added", Self::REMOVED],
    };
    const REMOVED: &str = "claim_finalizer_removed";
}

/// The controller.
#[derive(Debug)]
pub struct ClaimProtection {
    objects: Arc<Objects>,
    keys: FinalizerKeys<ClaimKey>,
    /// Of pods that are on a node.
    users: ClaimPods,
    /// Claims that wait for a list of their namespace's pods, or for the end of the one that is under way.
    to_list: BTreeMap<String, BTreeSet<(ClaimKey, Uid)>>,
    /// Namespaces whose pods are being listed.
    listing: BTreeSet<String>,
    /// Claims that no pod uses, as a live list has just shown.
    unused: BTreeMap<ClaimKey, Uid>,
    leads: bool,
}

impl ClaimProtection {
    /// The controller over the shared tables.
    #[must_use]
    pub fn new(objects: Arc<Objects>) -> Self {
        Self {
            objects,
            keys: FinalizerKeys::default(),
            users: ClaimPods::default(),
            to_list: BTreeMap::new(),
            listing: BTreeSet::new(),
            unused: BTreeMap::new(),
            leads: false,
        }
    }

    /// Takes a pod as it is now. Returns the claims that it named before, or names now.
    fn pod_changed(&mut self, key: &PodKey, pod: Option<&Pod>) -> BTreeSet<ClaimKey> {
        let [before, now] = self.users.update(key, pod.filter(|pod| !pod.spec.node_name.is_empty()));
        before.into_iter().chain(now).collect()
    }

    /// Whether a pod that the tables show uses the claim for certain.
    fn is_used(&self, key: &ClaimKey, claim: &PersistentVolumeClaim) -> bool {
        let mut pods = self.users.of(key).filter_map(|pod| self.objects.pods.get(pod));
        pods.any(|pod| {
            pod.spec.volumes.iter().filter(|volume| pod.claim_of(volume).as_ref() == Some(key)).any(
                |volume| {
                    match volume.source {
                        PodVolumeSource::PersistentVolumeClaim(_) => true,
                        // Of one that is being deleted, and of which no container runs, a list tells whether its
                        // containers are gone for good.
                        PodVolumeSource::Ephemeral => {
                            let may_be_over = pod.metadata.is_terminating() && !pod.status.is_running;
                            !may_be_over && is_owned(claim, &pod.metadata.uid)
                        }
                        PodVolumeSource::InTree(_) => false,
                    }
                },
            )
        })
    }

    fn look(&mut self, key: &ClaimKey, now: Instant) -> Option<Call> {
        let unused = self.unused.remove(key);
        let Some(claim) = self.objects.claims.get(key) else {
            self.keys.gone(key);
            return None;
        };
        let step = FinalizerStep::of(&claim.metadata, CLAIM_FINALIZER);
        if step == FinalizerStep::Nothing {
            self.keys.keys.settled(key, ProtectionReason::Settled);
            return None;
        }
        if self.objects.unreadable::<PersistentVolumeClaim>(key).is_some() {
            self.keys.keys.stands(key, ProtectionReason::Unreadable);
            return None;
        }
        if step == FinalizerStep::Remove {
            if self.is_used(key, &claim) {
                self.keys.keys.stands(key, ProtectionReason::InUse("a pod uses it"));
                return None;
            }
            if self.keys.is_held(key, &self.objects, now) {
                return None;
            }
            let uid = claim.metadata.uid.clone();
            if unused.as_ref() != Some(&uid) {
                self.to_list.entry(key.namespace().to_owned()).or_default().insert((key.clone(), uid));
                return None;
            }
        }
        if step == FinalizerStep::Add && self.keys.is_undone(key, now) {
            return None;
        }
        self.keys.sends(key, step, now);
        let request = patch(PersistentVolumeClaim::path(key), &claim.metadata, CLAIM_FINALIZER, step);
        Some(Call::Claim(key.clone(), step, request))
    }

    /// Takes a live list of the pods of a namespace, for the claims that it was asked for.
    fn listed(
        &mut self,
        claims: Vec<(ClaimKey, Uid)>,
        result: Result<Answer, CallError>,
        (now, jitter): (Instant, f64),
    ) {
        let pods = match result {
            Ok(Answer::Pods(pods)) => pods,
            Ok(Answer::Claim(_) | Answer::Volume(_) | Answer::Owners(_)) => return,
            Err(error) => {
                for (key, _) in &claims {
                    self.keys.keys.pause(key, &error, now, jitter);
                    self.keys.keys.failed(key, ProtectionReason::Failed(error.to_string()));
                }
                return;
            }
        };
        for (key, uid) in claims {
            let Some(claim) = self.objects.claims.get(&key) else { continue };
            // One made anew under the name may have a pod that began after the list did: it asks for its own.
            if claim.metadata.uid != uid {
                continue;
            }
            if pods.iter().any(|pod| uses(pod, &claim)) {
                // The watch is about to tell of that pod, and tells of its end.
                self.keys.keys.retries.failed(&key, now, jitter);
                self.keys.keys.stands(&key, ProtectionReason::InUse("a pod uses it, as a live list shows"));
            } else {
                self.unused.insert(key.clone(), uid);
                self.keys.keys.queue.push(key);
            }
        }
    }
}

impl Controller for ClaimProtection {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolumeclaim-protection-controller",
        component: "persistentvolumeclaim-protection-controller",
        queues: &["pvcprotection"],
        role: Some(ClaimKey::ROLE),
    };
    type Key = ClaimKey;
    type Reason = ProtectionReason;
    type Call = Call;
    type Answer = Answer;
    type Measures = ();

    fn load(&mut self, now: Instant) {
        for (key, pod) in self.objects.pods.snapshot() {
            self.pod_changed(&key, Some(&pod));
        }
        for (key, claim) in self.objects.claims.snapshot() {
            self.keys.others.observed(&key, Some(&claim.metadata), false, now);
        }
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            let claims = match object {
                ObjectRef::Claim(key) => {
                    let claim = self.objects.claims.get(&key);
                    let meta = claim.as_ref().map(|claim| &claim.metadata);
                    self.keys.others.observed(&key, meta, self.leads, now);
                    BTreeSet::from([key])
                }
                ObjectRef::Pod(key) => {
                    let pod = self.objects.pods.get(&key);
                    self.pod_changed(&key, pod.as_deref())
                }
                _ => continue,
            };
            for claim in claims.into_iter().filter(|_| self.leads) {
                self.keys.keys.changed(claim, now);
            }
        }
    }

    fn answered(&mut self, call: Call, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        match call {
            Call::Claim(key, step, _) => {
                if let (FinalizerStep::Add, Ok(Answer::Claim(claim))) = (step, &result) {
                    self.objects.observe_response(claim.clone());
                }
                self.keys.patched(&key, &result, now, jitter);
            }
            Call::Pods(namespace, claims) => {
                self.keys.keys.queue.at(now);
                self.listing.remove(&namespace);
                self.listed(claims, result, (now, jitter));
            }
            Call::ClaimOwner(key, uid) => self.keys.owner_read((key, uid), result, now, jitter),
            Call::Volume(..) | Call::VolumeOwner(..) => {}
        }
    }

    fn lead(&mut self, now: Instant) {
        self.leads = true;
        self.keys.others.writers.lead(now);
        self.keys.keys.queue.at(now);
        self.keys.keys.queue.extend(self.objects.claims.snapshot().into_keys());
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = Vec::new();
        for _ in 0..LOOKS {
            let Some(key) = self.keys.keys.next(self.listing.len(), now) else { break };
            calls.extend(match self.keys.reads_first(&key) {
                Some(uid) => Some(Call::ClaimOwner(key, uid)),
                None => self.look(&key, now),
            });
        }
        for (namespace, claims) in std::mem::take(&mut self.to_list) {
            if self.listing.contains(&namespace) {
                // That one was asked for before these claims were seen to be deleted.
                self.to_list.insert(namespace, claims);
            } else {
                self.listing.insert(namespace.clone());
                calls.push(Call::Pods(namespace, claims.into_iter().collect()));
            }
        }
        self.keys.plan(calls, self.listing.len(), now)
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
