//! `ephemeral-volume-controller`: the claims of pods' generic ephemeral volumes (pv-binder §15.4).
//!
//! In: pods and claims from the shared tables, and the templates of pods that are new to the watch. Out: for each volume
//! that has no claim, one POST of the claim `<pod>-<volume>`, which the pod of that UID owns; and an event on the pod if
//! there is a claim of that name that is not its own, or the server refuses to take one. Off by default.
//!
//! The template goes from the watch event to the POST, and is not kept: a pod whose claims exist costs nothing. It is
//! read with the pod if it is needed later, since the claim was deleted or a POST failed. Which pod a claim may be for
//! follows from its name, so there is no index.

pub mod calls;
pub mod decide;
pub mod reasons;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    call::CallError,
    ids::{ClaimKey, PodKey, Uid},
    kinds::{Keep as _, Narrow as _, ObjectRef, Pod, PodVolume, PodVolumeSource},
    tables::Objects,
    text::Text,
};
use prometheus::IntGauge;
use tokio::time::Instant;

use self::{
    calls::{Answer, Call, CreateCounts},
    decide::{ClaimStep, known, next_step},
    reasons::EphemeralReason,
};
use crate::{
    controller::{
        Controller, Identity, Plan,
        keys::Keys,
        report::events::{EventUpdate, Topic},
        undone::Undone,
    },
    metrics::Metrics,
};

/// What the events of a pod are about.
const CLAIMS: Topic = "claims";

/// The controller.
#[derive(Debug)]
pub struct EphemeralVolumes {
    objects: Arc<Objects>,
    keys: Keys<PodKey, EphemeralReason>,
    /// Of claims that were not made with their pod, by pod, with its UID, and volume: how often others have deleted each
    /// (S46).
    undone: BTreeMap<PodKey, (Uid, BTreeMap<Text, Undone>)>,
    /// Of templates that were just read: sent with the next plan.
    to_make: Vec<Call>,
    counts: CreateCounts,
}

impl EphemeralVolumes {
    /// The controller over the shared tables.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(objects: Arc<Objects>, metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counts = CreateCounts::new(metrics)?;
        let help = "Pods new to the watch whose templates of claims wait for their turn";
        let (waiting, shown) = (IntGauge::new("mooring_claim_templates", help)?, Arc::clone(&objects));
        let count = move |gauge: &IntGauge| {
            gauge.set(i64::try_from(shown.templates().len()).unwrap_or(i64::MAX));
        };
        metrics.register_scraped(waiting, count)?;
        Ok(Self { objects, keys: Keys::default(), undone: BTreeMap::new(), to_make: Vec::new(), counts })
    }

    /// The pods for whose volumes a claim of that name is.
    fn pods_of(&self, claim: &ClaimKey) -> Vec<PodKey> {
        let name = claim.name();
        let pod = |(at, _)| {
            let (pod, volume) = (name.get(..at)?, name.get(at + 1..)?);
            let key = PodKey::new(claim.namespace(), pod);
            let object = self.objects.pods.get(&key)?;
            let is_its = |known: &PodVolume| {
                known.source == PodVolumeSource::Ephemeral && known.name.as_str() == volume
            };
            object.spec.volumes.iter().any(is_its).then_some(key)
        };
        name.match_indices('-').filter_map(pod).collect()
    }

    /// Reports where a pod stands, to operators and on the pod.
    fn stands(&mut self, pod: &Pod, reason: EphemeralReason) {
        let key = pod.key();
        let events = reason.event(pod).into_iter().collect();
        self.keys.events.push(EventUpdate::Hold(key.clone(), CLAIMS, events));
        match reason {
            EphemeralReason::Settled => self.keys.settled(&key, reason),
            EphemeralReason::Failed(..) => self.keys.failed(&key, reason),
            _ => self.keys.stands(&key, reason),
        }
    }

    /// Whether a claim that is missing has to wait, as others have deleted it at once (S46): until then.
    fn is_undone(&mut self, key: &PodKey, volume: &Text, now: Instant) -> Option<Instant> {
        let (_, of_pod) = self.undone.get_mut(key)?;
        let undone = of_pod.get_mut(volume)?;
        undone.undone(now);
        let at = undone.pending(now)?;
        self.keys.retries.wait_until(key, at);
        Some(at)
    }

    fn look(&mut self, key: &PodKey, now: Instant) -> Option<Call> {
        let objects = Arc::clone(&self.objects);
        let pod = objects.pods.get(key).filter(|pod| pod.has_templates() && !pod.metadata.is_terminating());
        let Some(pod) = pod else {
            objects.templates().forget(key);
            self.undone.remove(key);
            self.keys.gone(key);
            self.keys.events.push(EventUpdate::Forget(key.clone()));
            return None;
        };
        let reason = match next_step(&pod, |claim| known(&objects, claim)) {
            _ if objects.unreadable::<Pod>(key).is_some() => {
                EphemeralReason::Unreadable(format!("pod {key}"))
            }
            ClaimStep::Create(volume, claim) if self.is_undone(key, &volume, now).is_some() => {
                EphemeralReason::Undone(volume, claim)
            }
            ClaimStep::Create(volume, claim) => {
                let uid = pod.metadata.uid.clone();
                let template = objects.templates().take(key, &uid, volume.as_str());
                if template.is_none() {
                    let (_, of_pod) =
                        self.undone.entry(key.clone()).or_insert((uid.clone(), BTreeMap::new()));
                    of_pod.entry(volume.clone()).or_insert_with(Undone::once).sent(now);
                }
                self.keys.begins_to_read(key);
                return Some(Call { pod: key.clone(), uid, volume, claim, template });
            }
            ClaimStep::NotOwned(volume, claim) => EphemeralReason::NotOwned(volume, claim),
            ClaimStep::Unreadable(claim) => EphemeralReason::Unreadable(format!("claim {claim}")),
            ClaimStep::Nothing => EphemeralReason::Settled,
        };
        objects.templates().forget(key);
        self.stands(&pod, reason);
        None
    }
}

impl Controller for EphemeralVolumes {
    const IDENTITY: Identity = Identity {
        name: "ephemeral-volume-controller",
        component: "ephemeral_volume",
        queues: &["ephemeral_volume"],
        // A claim that another process makes of the same template is as good.
        role: None,
    };
    type Key = PodKey;
    type Reason = EphemeralReason;
    type Call = Call;
    type Answer = Answer;
    type Measures = ();

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in objects {
            match object {
                ObjectRef::Pod(key) => {
                    let pod = self.objects.pods.get(&key);
                    let needs_none = pod.as_ref().is_none_or(|pod| !pod.has_templates());
                    // One of that name that had some may have waited.
                    if needs_none && pod.is_some() && !self.keys.is_unsettled(&key) {
                        continue;
                    }
                    // Nothing waits for what failed of an earlier pod of its name.
                    let is_another = |pod: &Arc<Pod>| {
                        self.undone.get(&key).is_some_and(|(uid, _)| *uid != pod.metadata.uid)
                    };
                    if needs_none || pod.as_ref().is_some_and(is_another) {
                        self.keys.retries.clear(&key);
                        self.undone.remove(&key);
                    }
                    self.keys.push(key, now);
                }
                ObjectRef::Claim(claim) => {
                    for pod in self.pods_of(&claim) {
                        self.keys.changed(pod, now);
                    }
                }
                _ => {}
            }
        }
    }

    fn answered(&mut self, call: Call, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        self.counts.count(&call, result.is_err());
        if let Ok(Answer::Claim(claim)) = &result {
            self.objects.observe_response((**claim).clone());
        }
        let Some(pod) = self.objects.pods.get(&call.pod).filter(|pod| pod.metadata.uid == call.uid) else {
            // Another of its name has neither failed nor lost its templates.
            return self.keys.ends(&call.pod, now);
        };
        if let Ok(Answer::Template(template)) = result {
            return self.to_make.push(Call { template: Some(template), ..call });
        }
        let what = call.what();
        let Call { pod: key, uid, volume, template, .. } = call;
        if result.is_err() {
            self.objects.templates().forget(&key);
            self.undone.entry(key.clone()).or_insert_with(|| (uid, BTreeMap::new()));
        }
        if let Some(undone) = self.undone.get_mut(&key).and_then(|(_, of_pod)| of_pod.get_mut(&volume)) {
            match &result {
                Ok(_) => undone.landed(now, jitter),
                Err(_) => undone.withdrawn(now),
            }
        }
        if let Some(error) = self.keys.answered(&key, &result, template.is_none(), now, jitter) {
            let reason = EphemeralReason::Failed(volume, format!("{what}: {error}"));
            match error {
                // Whose it is, the watch tells.
                CallError::AlreadyExists(_) => self.keys.failed(&key, reason),
                _ => self.stands(&pod, reason),
            }
        }
    }

    fn lead(&mut self, now: Instant) {
        self.keys.lead(now);
        self.objects.templates().want();
        self.objects.pods.for_each(|pod| {
            if pod.has_templates() {
                self.keys.queue.push(pod.key());
            }
        });
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let mut calls = std::mem::take(&mut self.to_make);
        while let Some(key) = self.keys.next(0, now) {
            calls.extend(self.look(&key, now));
        }
        self.keys.plan(calls, 0, now)
    }
}

#[cfg(test)]
mod tests;
