//! What waits in one namespace, told to a user who may read nothing outside of it.
//!
//! In: the namespace's claims and pods, and the events about them. Out: a finding for each claim or pod that waits, with
//! its reason where that can be told from these alone, and else with the last event's words: more is not known.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::groups::{Groups, Victim};
use crate::{
    binder::matching::predicate::claim_class,
    explain::{
        claim, links::Link, pod, report::Verdict, said::last_word, snapshot::PODS_THERE, subject::Subject,
        view::View,
    },
    kube_api::{
        ids::{ClaimKey, PodKey, Uid},
        kinds::{ClaimPhase, Narrow, PersistentVolume, Pod, PodPhase},
    },
};

/// So many claims, and pods, are asked about: each costs a walk over those that were read.
const MOST: usize = 500;

/// The reason of what cannot be told.
const FORBIDDEN: &str = "Forbidden";

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>) {
    // With all volumes, the binder was asked itself.
    let is_asked = view.snapshot.is_listed::<PersistentVolume>();
    let waiting = if is_asked { BTreeMap::new() } else { claims(view, groups) };
    if view.snapshot.was_read(PODS_THERE) {
        pods(view, &waiting, groups);
    }
}

/// What is asked about.
struct Asked {
    subject: Subject,
    uid: Uid,
    unit: &'static str,
    /// What it may share with others.
    about: String,
    since: Option<Timestamp>,
}

/// Claims that wait, each with the group that it is in.
fn claims(view: &View<'_>, groups: &mut Groups<'_>) -> BTreeMap<ClaimKey, usize> {
    let mut open: BTreeMap<ClaimKey, Asked> = BTreeMap::new();
    view.objects().claims.for_each(|claim| {
        if claim.status.phase != ClaimPhase::Bound || claim.metadata.is_terminating() {
            let asked = Asked {
                subject: Subject::Claim(claim.key()),
                uid: claim.metadata.uid.clone(),
                unit: "claim",
                about: claim_class(claim).to_owned(),
                since: claim.metadata.creation_timestamp,
            };
            open.insert(claim.key(), asked);
        }
    });
    let mut waiting = BTreeMap::new();
    for (key, asked) in open.into_iter().take(MOST) {
        let link = claim::link(view, &key);
        if let Some(index) = note(view, groups, &link, asked) {
            waiting.insert(key, index);
        }
    }
    waiting
}

/// Pods that have not started and wait for a volume.
fn pods(view: &View<'_>, waiting: &BTreeMap<ClaimKey, usize>, groups: &mut Groups<'_>) {
    let mut pending: BTreeMap<PodKey, Arc<Pod>> = BTreeMap::new();
    view.objects().pods.for_each(|pod| {
        let waits = pod.status.phase == PodPhase::Pending && !pod.metadata.is_terminating();
        if waits && claims_of(pod).next().is_some() {
            pending.insert(pod.key(), Arc::new(pod.clone()));
        }
    });
    for (key, pod) in pending.into_iter().take(MOST) {
        let causes: BTreeSet<usize> =
            claims_of(&pod).filter_map(|claim| waiting.get(&claim)).copied().collect();
        if !causes.is_empty() {
            for index in causes {
                groups.suffers(Some(index), &key);
            }
            continue;
        }
        let links = pod::links(view, &key);
        // That no node was found is no matter of volumes.
        let of_volumes = links.iter().skip(1).filter(|link| link.verdict != Verdict::Healthy);
        let Some(worst) = of_volumes.max_by_key(|link| link.verdict) else { continue };
        let asked = Asked {
            subject: Subject::Pod(key.clone()),
            uid: pod.metadata.uid.clone(),
            unit: "pod",
            about: named(&worst.step.object),
            since: pod.metadata.creation_timestamp,
        };
        if let Some(index) = note(view, groups, worst, asked) {
            groups.suffers(Some(index), &key);
        }
    }
}

fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimKey> {
    pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume))
}

/// An object of a chain, as it is typed.
fn named(object: &Value) -> String {
    let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default();
    Subject::new(text("kind"), text("namespace"), text("name")).map(|it| it.to_string()).unwrap_or_default()
}

/// Adds what waits to the group of its cause. What cannot be told, and of which no event says anything, is left out.
fn note(view: &View<'_>, groups: &mut Groups<'_>, link: &Link, asked: Asked) -> Option<usize> {
    let Asked { subject, uid, unit, about, since } = asked;
    let mut link = link.clone();
    if link.verdict == Verdict::Forbidden {
        link.step.message = last_word(view, &uid)?;
        FORBIDDEN.clone_into(&mut link.step.reason);
    }
    groups.note_link(&link, about, Victim { subject, unit, since, next_at: None })
}
