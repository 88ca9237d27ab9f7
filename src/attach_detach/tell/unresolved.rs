//! Tells a pod that waits why one of its volumes is not in the desired state (S48). A verdict tells of a volume that is.
//!
//! In: pods some of whose volumes are unresolved, as that is learnt. Out: an event for each such pod that has waited for
//! a while, and when there may be more to tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    events::{Event, EventType, Involved, Novelty},
    ids::PodKey,
    kinds::{Pod, PodPhase},
};
use tokio::time::Instant;

use super::{
    announcer::{LONG, NOTEWORTHY},
    state::AttachDetachKey,
};
use crate::{
    attach_detach::{
        actual::state::{ActualState, NodeVolume},
        desired::{
            state::{DesiredPod, Unresolved, WhyUnresolved},
            volume_name::VolumeKind,
        },
        known::Known,
    },
    controller::report::events::EventUpdate,
};

/// Pods that wait for a volume that is unresolved.
#[derive(Clone, Debug, Default)]
pub(super) struct UnresolvedPods {
    /// A replica that stands by tells nothing.
    leads: bool,
    look_at: BTreeSet<(Instant, PodKey)>,
    /// How many looks at each pod are ahead.
    ahead: BTreeMap<PodKey, usize>,
}

impl UnresolvedPods {
    /// This process leads from now on.
    pub(super) fn lead<'a>(
        &mut self,
        pods: impl Iterator<Item = (&'a PodKey, &'a [Unresolved])>,
        now: Instant,
    ) {
        self.leads = true;
        for (pod, found) in pods {
            self.found(pod, found, now);
        }
    }

    /// Takes what was found of a pod.
    pub(super) fn found(&mut self, pod: &PodKey, found: &[Unresolved], now: Instant) {
        if !self.leads {
            return;
        }
        for patience in found.iter().filter_map(|unresolved| patience(&unresolved.why)) {
            self.look_at(now + patience, pod);
        }
    }

    fn look_at(&mut self, at: Instant, pod: &PodKey) {
        if self.look_at.insert((at, pod.clone())) {
            *self.ahead.entry(pod.clone()).or_default() += 1;
        }
    }

    /// When there may be more to tell.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.look_at.first().map(|(at, _)| *at)
    }

    /// What there is to tell by now.
    pub(super) fn take_due(&mut self, known: Known<'_>) -> Vec<EventUpdate<AttachDetachKey>> {
        let mut due = BTreeSet::new();
        while self.look_at.first().is_some_and(|(at, _)| *at <= known.now) {
            let Some((_, pod)) = self.look_at.pop_first() else { break };
            match self.ahead.get_mut(&pod) {
                Some(ahead) if *ahead > 1 => *ahead -= 1,
                _ => drop(self.ahead.remove(&pod)),
            }
            due.insert(pod);
        }
        let mut news = Vec::new();
        for pod in due {
            let (events, is_attached) = events(&pod, known);
            let is_told = events.iter().any(|(_, events)| !events.is_empty());
            news.extend(events.into_iter().map(|(volume, events)| {
                let key = AttachDetachKey::PodVolume(pod.clone(), volume);
                EventUpdate::Hold(key, "unresolved", events)
            }));
            // That may end. A look that is ahead finds it, too.
            if (is_attached || is_told) && !self.ahead.contains_key(&pod) {
                self.look_at(known.now + LONG, &pod);
            }
        }
        news
    }
}

/// How long the pod waits before it is told; `None` if another attaches its volume.
fn patience(why: &WhyUnresolved) -> Option<std::time::Duration> {
    match why {
        // Its kubelet attaches.
        WhyUnresolved::NodeNotManaged(_) => None,
        // It may be one that needs no attaching.
        WhyUnresolved::FlexVolumeUnsupported(_) => Some(LONG),
        _ => Some(NOTEWORTHY),
    }
}

/// The events that hold of each volume of a pod that is unresolved, and whether one of these is attached for it all the
/// same.
fn events(key: &PodKey, known: Known<'_>) -> (Vec<(String, Vec<Event>)>, bool) {
    let Some(desired) = known.desired.pod(key) else { return (Vec::new(), false) };
    // One that runs has its volumes.
    let is_waiting = |pod: &Arc<Pod>| {
        pod.metadata.uid == desired.pod.uid
            && !pod.metadata.is_terminating()
            && pod.status.phase == PodPhase::Pending
    };
    let pod = known.objects.pods.get(key).filter(is_waiting);
    let mut is_attached = false;
    let mut events = |unresolved: &Unresolved| {
        let pod = pod.as_deref()?;
        patience(&unresolved.why).filter(|_| is_without(desired, unresolved, known.actual))?;
        if is_attached_for(pod, desired, unresolved, known) {
            is_attached = true;
            return None;
        }
        Some(event(pod, unresolved))
    };
    let unresolved = desired.unresolved.iter();
    let unresolved = unresolved.map(|of| (of.pod_volume.clone(), events(of).into_iter().collect()));
    (unresolved.collect(), is_attached)
}

/// Whether its node has not the volume that the pod was given before. That a list has one whose VolumeAttachment is gone
/// tells a process that starts of no pod that was given it (S47).
fn is_without(desired: &DesiredPod, unresolved: &Unresolved, actual: &ActualState) -> bool {
    let Some((volume, _)) = desired.volume(&unresolved.pod_volume) else { return true };
    let node_volume = actual.node_volume(volume, &desired.node);
    let is_there = |it: &&NodeVolume| volume.kind() == VolumeKind::NoOp || it.attachment().is_some();
    !node_volume.filter(is_there).is_some_and(NodeVolume::is_attached)
}

/// Whether its node has the volume that its claim named, by a VolumeAttachment that is not older than the pod: a process
/// before this one made it for that pod, and the PersistentVolume is gone since (S47).
fn is_attached_for(pod: &Pod, desired: &DesiredPod, unresolved: &Unresolved, known: Known<'_>) -> bool {
    let WhyUnresolved::ClaimNotBound(claim) = &unresolved.why else { return false };
    let Some(claim) = known.objects.claims.get(claim) else { return false };
    let created = pod.metadata.creation_timestamp;
    known.actual.attachments_of(&claim.spec.volume_name).any(|name| {
        known.objects.attachments.get(&name).is_some_and(|attachment| {
            let is_older = attachment.metadata.creation_timestamp.is_some_and(|made| Some(made) < created);
            let is_there = attachment.status.attached && !attachment.metadata.is_terminating();
            attachment.spec.node_name == desired.node && is_there && !is_older
        })
    })
}

fn event(pod: &Pod, Unresolved { pod_volume, why }: &Unresolved) -> Event {
    Event {
        involved: Involved::object(pod),
        r#type: EventType::Warning,
        reason: "FailedAttachVolume",
        message: format!("Volume \"{pod_volume}\" cannot be attached yet: {}", sentence(why)),
        novelty: Novelty::default(),
        subject: None,
    }
}

/// What is wrong. It names no claim of another namespace (S41).
fn sentence(why: &WhyUnresolved) -> String {
    match why {
        WhyUnresolved::NodeNotManaged(node) => format!("the kubelet of node \"{node}\" attaches by itself"),
        WhyUnresolved::ClaimMissing(claim) => {
            format!("PersistentVolumeClaim \"{}\" does not exist", claim.name())
        }
        WhyUnresolved::ClaimNotOwnedByPod(claim) => {
            format!("PersistentVolumeClaim \"{}\" was not created for this pod", claim.name())
        }
        WhyUnresolved::ClaimNotBound(claim) => {
            format!("PersistentVolumeClaim \"{}\" is not bound", claim.name())
        }
        WhyUnresolved::VolumeMissing(volume) => format!("PersistentVolume \"{volume}\" does not exist"),
        WhyUnresolved::VolumeBoundElsewhere(volume) => {
            format!("PersistentVolume \"{volume}\" is bound to another claim")
        }
        WhyUnresolved::MalformedSource(Some(volume), error) => {
            format!("PersistentVolume \"{volume}\": {error}")
        }
        WhyUnresolved::MalformedSource(None, error) => error.to_string(),
        WhyUnresolved::FlexVolumeUnsupported(driver) => format!("FlexVolume is not supported ({driver})"),
        WhyUnresolved::Unreadable(object, error) => format!("{object} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use apiserver::{
        ids::ClaimKey,
        tables::{Objects, VecMap},
    };
    use serde_json::json;

    use super::*;
    use crate::attach_detach::{
        actual::state::ActualState,
        desired::state::{DesiredState, PodFacts},
    };

    /// Each change of what a pod waits for has a look at it; one that is told is looked at again, once.
    #[test]
    fn looks_at_a_pod_do_not_add_up() {
        let (key, start) = (PodKey::new("ns", "p"), Instant::now());
        let why = WhyUnresolved::ClaimMissing(ClaimKey::new("ns", "c"));
        let found = [Unresolved { pod_volume: "v".to_owned(), why }];
        let (objects, actual) = (Objects::default(), ActualState::default());
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": "Pending"},
        });
        objects.apply::<Pod>(serde_json::from_value(pod).unwrap());
        let mut desired = DesiredState::default();
        let facts = PodFacts { key: key.clone(), uid: "u".into(), created: None };
        let waiting = DesiredPod {
            pod: Arc::new(facts),
            node: "n".into(),
            volumes: VecMap::default(),
            unresolved: found.to_vec(),
            depends_on: Box::default(),
        };
        desired.set(&key, Some(waiting));
        let mut pods = UnresolvedPods { leads: true, ..UnresolvedPods::default() };
        for second in 0..5 {
            pods.found(&key, &found, start + std::time::Duration::from_secs(second));
        }
        let mut now = start;
        for _ in 0..20 {
            now = pods.next_at().unwrap();
            let known = Known { objects: &objects, desired: &desired, actual: &actual, now };
            assert!(!pods.take_due(known).is_empty());
        }
        assert_eq!(pods.look_at.len(), 1);
        assert!(now > start + 10 * LONG);
    }
}
