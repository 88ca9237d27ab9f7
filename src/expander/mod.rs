//! `persistentvolume-expander-controller`: claims whose volumes are to grow (pv-binder §15.3).
//!
//! In: claims and volumes from the shared tables, and the volume of a claim that waits, read live. Out: an event that says
//! who is to expand the volume; and for a volume of an in-tree plugin that a CSI driver took over, the annotation by which
//! that driver's external-resizer takes the claim for its own. The annotation is all that is written. Off by default.
//!
//! What has been dealt with is remembered of claims that wait: a volume is read once for each size that is asked for.

pub mod calls;
pub mod decide;
pub mod reasons;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    kinds::{Narrow as _, ObjectRef, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use tokio::time::Instant;

use self::{
    calls::{Answer, Call, STORAGE_RESIZER, annotate},
    decide::{Expansion, Resizer, expansion, is_left_to_kubelet, resizer},
    reasons::{ExpandingClaim, ExpansionReason},
};
use crate::controller::{
    Controller, Identity, Plan,
    keys::Keys,
    report::events::{EventUpdate, Topic},
};

/// Where the expansion of a claim stands whose volume was read, for explanations.
pub fn dry_run(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> ExpansionReason {
    match expansion(claim, Some(volume)) {
        Err(error) => ExpansionReason::Malformed(error.to_string()),
        Ok(None) => ExpansionReason::Settled,
        Ok(Some(_)) => match resizer(claim, volume) {
            None => ExpansionReason::NotBound(claim.spec.volume_name.clone()),
            Some(_) if is_left_to_kubelet(claim, volume) => ExpansionReason::Settled,
            Some(resizer) => ExpansionReason::Waits(resizer),
        },
    }
}

/// Who expands the volume.
const EXPANSION: Topic = "expansion";
/// That who expands it could not be written.
const FAILURE: Topic = "failure";

/// The controller.
#[derive(Debug)]
pub struct Expander {
    objects: Arc<Objects>,
    keys: Keys<ExpandingClaim, ExpansionReason>,
    /// Of claims that wait: who expands the volume, and whether the claim has been told to name that driver.
    expansions: BTreeMap<ExpandingClaim, (Expansion, Resizer, bool)>,
}

impl Expander {
    /// The controller over the shared tables.
    pub fn new(objects: Arc<Objects>) -> Self {
        Self { objects, keys: Keys::default(), expansions: BTreeMap::new() }
    }

    /// Reports where a claim stands, to operators and on the claim.
    fn stands(&mut self, key: &ExpandingClaim, claim: &PersistentVolumeClaim, reason: ExpansionReason) {
        let events = reason.event(claim).into_iter().collect();
        let mut hold = |topic, events| self.keys.events.push(EventUpdate::Hold(key.clone(), topic, events));
        match reason {
            ExpansionReason::Failed { .. } => {
                hold(FAILURE, events);
                self.keys.failed(key, reason);
            }
            ExpansionReason::Settled => {
                self.keys.events.push(EventUpdate::Forget(key.clone()));
                self.expansions.remove(key);
                self.keys.settled(key, reason);
            }
            _ => {
                let volume = self.objects.volumes.get(&claim.spec.volume_name);
                // A kubelet tells of what is left.
                let is_done = matches!(reason, ExpansionReason::Waits(_))
                    && volume.is_some_and(|volume| is_left_to_kubelet(claim, &volume));
                hold(EXPANSION, if is_done { Vec::new() } else { events });
                hold(FAILURE, Vec::new());
                self.keys.stands(key, if is_done { ExpansionReason::Settled } else { reason });
            }
        }
    }

    fn look(&mut self, key: &ExpandingClaim) -> Option<Call> {
        let Some(claim) = self.objects.claims.get(&key.0) else {
            self.expansions.remove(key);
            self.keys.events.push(EventUpdate::Forget(key.clone()));
            self.keys.gone(key);
            return None;
        };
        let volume = self.objects.volumes.get(&claim.spec.volume_name);
        let reason = match expansion(&claim, volume.as_deref()) {
            _ if self.objects.unreadable::<PersistentVolumeClaim>(&key.0).is_some() => {
                ExpansionReason::Unreadable
            }
            Err(error) => ExpansionReason::Malformed(error.to_string()),
            Ok(None) => ExpansionReason::Settled,
            Ok(Some(_)) if claim.spec.volume_name.is_empty() => ExpansionReason::Unnamed,
            Ok(Some(expansion)) => match self.expansions.get_mut(key) {
                Some((known, resizer, is_told)) if *known == expansion => {
                    let resizer = *resizer;
                    if let Resizer::Migrated { driver, .. } = resizer {
                        // Whoever has told it.
                        *is_told |= claim.metadata.annotation(STORAGE_RESIZER) == Some(driver);
                        if !*is_told {
                            let events = ExpansionReason::Waits(resizer).event(&claim).into_iter().collect();
                            self.keys.events.push(EventUpdate::Hold(key.clone(), EXPANSION, events));
                            self.keys.begins_to_read(key);
                            return Some(Call::Annotate(key.clone(), annotate(&claim, driver)));
                        }
                    }
                    ExpansionReason::Waits(resizer)
                }
                _ => {
                    self.keys.begins_to_read(key);
                    return Some(Call::Volume(key.clone(), expansion, claim.spec.volume_name.clone()));
                }
            },
        };
        self.stands(key, &claim, reason);
        None
    }

    /// Takes a volume that was read live.
    fn read(
        &mut self,
        (key, expansion): (&ExpandingClaim, Expansion),
        result: Result<PersistentVolume, CallError>,
        (now, jitter): (Instant, f64),
    ) {
        let Some(claim) = self.objects.claims.get(&key.0) else { return };
        let name = claim.spec.volume_name.clone();
        let reason = match result {
            Ok(volume) => match resizer(&claim, &volume) {
                Some(resizer) => {
                    self.objects.observe_response(volume);
                    self.expansions.insert(key.clone(), (expansion, resizer, false));
                    // Failures of the patch go on counting.
                    return;
                }
                None => ExpansionReason::NotBound(name),
            },
            Err(CallError::NotFound(_)) => ExpansionReason::Missing(name),
            // Only an edit makes it readable, of which the watch tells: the pause grows as after a refusal.
            Err(_) if self.objects.unreadable::<PersistentVolume>(&name).is_some() => {
                ExpansionReason::Unreadable
            }
            Err(error) => {
                self.keys.pause(key, &error, true, now, jitter);
                let reason = ExpansionReason::Failed { is_write: false, error: error.to_string() };
                return self.keys.failed(key, reason);
            }
        };
        self.keys.retries.failed(key, now, jitter);
        self.stands(key, &claim, reason);
    }
}

impl Controller for Expander {
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-expander-controller",
        component: "volume_expand",
        queues: &["volume_expand"],
        // Another process writes the same.
        role: None,
    };
    type Key = ExpandingClaim;
    type Reason = ExpansionReason;
    type Call = Call;
    type Answer = Answer;
    type Measures = ();

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            let claim = match object {
                ObjectRef::Claim(key) => Some(key),
                ObjectRef::Volume(name) => {
                    let volume = self.objects.volumes.get(&name);
                    volume.and_then(|volume| Some(volume.spec.claim_ref.as_ref()?.key()))
                }
                _ => None,
            };
            if let Some(claim) = claim {
                self.keys.changed(ExpandingClaim(claim), now);
            }
        }
    }

    fn answered(&mut self, call: Call, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        match call {
            Call::Volume(key, expansion, _) => {
                let result = result.and_then(|answer| match answer {
                    Answer::Volume(volume) => Ok(volume),
                    Answer::Claim(_) => Err(CallError::Unknown("another kind".to_owned())),
                });
                self.read((&key, expansion), result, (now, jitter));
                self.keys.ends(&key, now);
            }
            Call::Annotate(key, _) => {
                match &result {
                    Ok(Answer::Claim(claim)) => {
                        self.objects.observe_response(claim.clone());
                        if let Some((_, _, is_told)) = self.expansions.get_mut(&key) {
                            *is_told = true;
                        }
                    }
                    // It is decided anew, on the volume as it is then.
                    _ => drop(self.expansions.remove(&key)),
                }
                let error = self.keys.answered(&key, &result, false, now, jitter);
                if let Some(error) = error
                    && let Some(claim) = self.objects.claims.get(&key.0)
                {
                    let reason = ExpansionReason::Failed { is_write: true, error: error.to_string() };
                    self.stands(&key, &claim, reason);
                }
            }
        }
    }

    fn lead(&mut self, now: Instant) {
        self.keys.lead(now);
        // All others are as large as they are to be.
        self.objects.claims.for_each(|claim| {
            let volume = self.objects.volumes.get(&claim.spec.volume_name);
            if !matches!(expansion(claim, volume.as_deref()), Ok(None)) {
                self.keys.queue.push(ExpandingClaim(claim.key()));
            }
        });
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = Vec::new();
        while let Some(key) = self.keys.next(0, now) {
            calls.extend(self.look(&key));
        }
        self.keys.plan(calls, 0, now)
    }
}

#[cfg(test)]
mod tests;
