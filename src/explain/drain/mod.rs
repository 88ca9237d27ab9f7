//! One node: which volumes it has, and what still holds those that are to leave it.
//!
//! In: a snapshot, the node's name, and an earlier snapshot if there is one. Out: counts, a row for each volume, and for
//! each attacher how many are in its queue; how fast they leave only if two snapshots show it.

mod sheet;

use std::{collections::BTreeMap, sync::Arc};

use apiserver::{
    ids::NodeName,
    kinds::{Narrow, Node, ObjectRef, Pod, VolumeAttachment},
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    age,
    answer::FLAGS,
    attachment, foreign, node,
    read::requests::Read,
    report::{API_VERSION, Observed, Verdict},
    sidecars::{Presence, Sidecar},
    snapshot::{Snapshot, Unseen},
    subject::field,
    table::{Facts, fill, find},
    view::{View, get},
};
use crate::attach_detach::{
    decide::{force::Unforced, verdict::Waiting},
    dry_run::NodeVolumeOutlook,
    state::desired::volume_name::VolumeId,
};

/// How far a volume is from having left the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DrainStage {
    /// A pod that is not being deleted uses it.
    InUse,
    /// A pod that is ending uses it, or the kubelet has not unmounted it.
    Mounted,
    /// It is unmounted, and taken off the node's status next.
    DetachesNext,
    /// The driver's attacher is asked to detach it.
    Detaching,
    /// On its way to the node.
    Attaching,
}

/// A volume of the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainedVolume {
    /// The PersistentVolume, or the handle if there is none.
    pub volume: String,
    /// The driver, or the plugin.
    pub driver: String,
    /// Its claim.
    pub claim: Option<String>,
    /// A pod here that uses it.
    pub pod: Option<String>,
    /// How far it is.
    pub stage: DrainStage,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// What has to happen.
    pub waits_for: String,
    /// Whether it is taken away in any case, at a time that the controller alone knows.
    #[serde(skip)]
    pub(in crate::explain) is_timed: bool,
    /// Whether nothing takes it away but its kubelet, which does not report, or a person.
    #[serde(skip)]
    pub(in crate::explain) is_stuck: bool,
}

/// What an attacher has to do, on all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainQueue {
    /// The driver.
    pub driver: String,
    /// Attachments that it has yet to make or take away, on all nodes: it works through one queue.
    pub waiting: usize,
    /// How many it took away in a second, if two snapshots show it.
    pub per_second: Option<f64>,
    /// How long the queue takes at this rate.
    pub seconds_left: Option<u64>,
    /// Whether it runs with the default limit of requests.
    pub is_limited: bool,
    /// Whether there is such a program at all; none if that could not be told.
    pub is_there: Option<bool>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainView {
    /// Version of the form.
    pub api_version: &'static str,
    /// `NodeVolumes`.
    pub kind: &'static str,
    /// The node.
    pub node: String,
    /// How it stands with the drain.
    pub verdict: Verdict,
    /// What was looked at.
    pub observed: Observed,
    /// Whether there is such a node; none if that could not be told.
    pub exists: Option<bool>,
    /// Whether its kubelet reports that it is well.
    pub ready: bool,
    /// Since when it is not.
    pub unready_since: Option<Timestamp>,
    /// Whether new pods are kept away; none if the node was not read whole.
    pub cordoned: Option<bool>,
    /// Its taints that keep new pods away, or end those that are there: `key:effect`.
    pub taints: Vec<String>,
    /// Whether only what a drain still waits for is printed.
    #[serde(skip)]
    pub is_drained: bool,
    /// How many left it since the earlier look, if there was one.
    pub detached: Option<usize>,
    /// Each volume, those that hold the node longest first.
    pub volumes: Vec<DrainedVolume>,
    /// Each attacher with something to do here.
    pub attachers: Vec<DrainQueue>,
    /// What could not be read.
    pub unseen: Vec<Unseen>,
    /// What cannot be known, a sentence each.
    pub unknown: Vec<String>,
}

/// Looks at one node.
pub fn drain(snapshot: &Snapshot, name: &NodeName, earlier: Option<&Snapshot>) -> DrainView {
    look(&View::new(snapshot), name, earlier)
}

/// The same; what it looks at is noted.
pub(in crate::explain) fn look(view: &View<'_>, name: &NodeName, earlier: Option<&Snapshot>) -> DrainView {
    node::on_node(view, name);
    let (snapshot, node) = (view.snapshot, get::<Node>(view, name));
    let on_node = || view.attach_detach().node_volumes.iter().filter(|((_, node), _)| node == name);
    let mut volumes: Vec<DrainedVolume> =
        on_node().filter_map(|((volume, _), it)| node_volume(view, name, volume, it)).collect();
    let foreign: Vec<_> = foreign(view, name).collect();
    let hides = foreign.contains(&None)
        || on_node().any(|((volume, _), _)| attachment::unread(view, volume, name).is_some());
    volumes.extend(foreign.into_iter().flatten());
    volumes.sort_by(|one, other| {
        let key = |it: &DrainedVolume| (it.stage, it.since.unwrap_or(Timestamp::MAX));
        key(one).cmp(&key(other)).then_with(|| one.volume.cmp(&other.volume))
    });
    let attachers = queues(view, earlier, &volumes);
    let detached = earlier.map(|earlier| left(earlier, snapshot, |it| it.spec.node_name == *name));
    let mut unknown = Vec::new();
    if earlier.is_none() && !volumes.is_empty() {
        unknown.push("how fast volumes leave (-w shows it)".to_owned());
    }
    if volumes.iter().any(|volume| volume.is_timed) && snapshot.ruler_flags().is_none() {
        unknown.push(FLAGS.to_owned());
    }
    let is_missing = snapshot.is_absent(&ObjectRef::Node(name.clone()));
    let exists = if node.is_some() { Some(true) } else { is_missing.then_some(false) };
    let ready = node.as_ref().and_then(|node| node.ready().cloned());
    let is_ready = node.as_ref().is_some_and(|node| node.is_ready());
    let whole = snapshot.details.get(&ObjectRef::Node(name.clone()));
    let unschedulable = whole.map(|it| it.pointer("/spec/unschedulable").and_then(Value::as_bool));
    let cordoned = unschedulable.map(Option::unwrap_or_default);
    let mut answer = DrainView {
        api_version: API_VERSION,
        kind: "NodeVolumes",
        node: name.to_string(),
        verdict: Verdict::Healthy,
        observed: Observed::of(snapshot),
        exists,
        ready: is_ready,
        unready_since: ready.filter(|_| !is_ready).and_then(|ready| ready.last_transition_time),
        cordoned,
        taints: whole.map(taints).unwrap_or_default(),
        is_drained: false,
        detached,
        volumes,
        attachers,
        unseen: snapshot.unseen.clone(),
        unknown,
    };
    answer.verdict = if hides { Verdict::Forbidden } else { verdict(snapshot, &answer) };
    answer
}

/// Taints by which the cluster itself says that a node is cordoned or not Ready, which is told already.
const TOLD: [&str; 3] =
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable"];

/// Taints that keep new pods away, or end those that are there.
fn taints(node: &Value) -> Vec<String> {
    let all = node.pointer("/spec/taints").and_then(Value::as_array).into_iter().flatten();
    all.map(|taint| (field(taint, "key"), field(taint, "effect")))
        .filter(|(key, effect)| !TOLD.contains(key) && *effect != "PreferNoSchedule")
        .map(|(key, effect)| format!("{key}:{effect}"))
        .collect()
}

fn verdict(snapshot: &Snapshot, of: &DrainView) -> Verdict {
    if of.volumes.is_empty() {
        return match of.exists {
            Some(false) => Verdict::NotFound,
            None => Verdict::Forbidden,
            _ if !snapshot.sees_pods() || !snapshot.is_listed::<VolumeAttachment>() => Verdict::Forbidden,
            _ => Verdict::Healthy,
        };
    }
    let is_stuck = |volume: &DrainedVolume| {
        let is_late = !volume.is_timed && age::is_long(volume.since, snapshot.taken_at);
        volume.stage != DrainStage::InUse && (volume.is_stuck || is_late)
    };
    let is_leaving = of.cordoned == Some(true) || !of.ready;
    if !is_leaving && of.volumes.iter().all(|volume| volume.stage == DrainStage::InUse) {
        return Verdict::Healthy;
    }
    let lacks_attacher = of.attachers.iter().any(|queue| queue.is_there == Some(false));
    if lacks_attacher || of.volumes.iter().any(is_stuck) { Verdict::Blocked } else { Verdict::Waiting }
}

/// A volume of the node; none if it is neither there nor wanted there.
fn node_volume(
    view: &View<'_>,
    name: &NodeName,
    volume: &VolumeId,
    outlook: &NodeVolumeOutlook,
) -> Option<DrainedVolume> {
    let node = get::<Node>(view, name);
    let attachment = get::<VolumeAttachment>(view, &volume.attachment_name(name));
    let mut pods: Vec<_> = view.users(volume, name).filter_map(|pod| get::<Pod>(view, pod)).collect();
    // As long as one stays, the end of the others frees nothing.
    pods.sort_by_key(|pod| pod.metadata.is_terminating());
    let is_used = node.as_ref().is_some_and(|node| node.uses(volume.as_str()));
    let is_listed = node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
    if attachment.is_none() && !is_used && !is_listed && pods.is_empty() {
        return None;
    }
    let (driver, handle) = volume.driver_and_handle();
    // Of two that stand for it the one that is attached.
    let all = view.standing().get(volume).map(Vec::as_slice).unwrap_or_default();
    let source = attachment.as_ref().and_then(|it| it.spec.source.persistent_volume_name.clone());
    let object = all.iter().find(|it| Some(it.key()) == source).or(all.first());
    let persistent = source.or(object.map(|it| it.key()));
    let claim = object.and_then(|it| Some(it.spec.claim_ref.as_ref()?.key()));
    let unread = attachment::unread(view, volume, name);
    let forced_at = outlook.waiting.as_ref().and_then(Waiting::forced_at).filter(|_| unread.is_none());
    if forced_at.is_some() {
        view.want(Read::deployed);
    }
    let is_stuck = match outlook.waiting {
        Some(Waiting::DetachWaitingForUnmount { unforced } | Waiting::DetachWaitingForNode { unforced }) => {
            // A kubelet that starts again reports within minutes.
            let since = node.as_deref().and_then(Node::ready).map(|ready| ready.last_transition_time);
            let is_late = since.is_none_or(|since| age::is_long(since, view.now()));
            unforced == Unforced::SwitchedOff && unread.is_none() && is_late
        }
        _ => false,
    };
    let unread = unread.map(|link| (DrainStage::Mounted, None, link.step.message));
    let known = attachment.as_deref().and_then(detaching).or(unread);
    let (stage, since, waits_for) =
        known.unwrap_or_else(|| stage(node.as_deref(), attachment.as_deref(), &pods, is_used, outlook));
    Some(DrainedVolume {
        volume: match persistent {
            Some(name) => name.to_string(),
            None if handle.is_empty() => volume.to_string(),
            None => handle.to_owned(),
        },
        driver: if driver.is_empty() { volume.plugin() } else { driver }.to_owned(),
        claim: claim.map(|claim| claim.to_string()),
        pod: pods.first().map(|pod| pod.key().to_string()),
        stage,
        since: since.filter(|since| *since <= view.now()),
        waits_for: match forced_at {
            Some(at) => {
                let patience = age::between(view.now(), at);
                told("+drain timed", &[("told", &waits_for), ("patience", &patience)])
            }
            None if is_stuck => told("+drain never forced", &[("told", &waits_for)]),
            None => waits_for,
        },
        is_timed: forced_at.is_some(),
        is_stuck,
    })
}

/// Attachments that no controller takes away: under another name than their volume's, or of a volume that is gone. None of one
/// whose volume could not be read (S42).
fn foreign<'a>(view: &'a View<'_>, name: &'a NodeName) -> impl Iterator<Item = Option<DrainedVolume>> + 'a {
    let there = view.attach_detach().foreign.iter().filter(move |(_, (_, node))| node == name);
    there.map(|(name, _)| {
        foreign::foreign(view, name).filter(|link| link.verdict != Verdict::Forbidden)?;
        let attachment = get::<VolumeAttachment>(view, name)?;
        let made = attachment.metadata.creation_timestamp;
        let by_hand = || (DrainStage::Mounted, made, told("+drain foreign", &[("name", name)]));
        let (stage, since, waits_for) = detaching(&attachment).unwrap_or_else(by_hand);
        let source = attachment.spec.source.persistent_volume_name.as_ref();
        Some(DrainedVolume {
            volume: source.map_or_else(|| name.to_string(), ToString::to_string),
            driver: attachment.spec.attacher.to_string(),
            claim: None,
            pod: None,
            stage,
            since,
            waits_for,
            is_timed: false,
            is_stuck: false,
        })
    })
}

/// The same of [`stage`] for an attachment that is being deleted.
fn detaching(attachment: &VolumeAttachment) -> Option<(DrainStage, Option<Timestamp>, String)> {
    let deleted = attachment.metadata.deletion_timestamp.as_deref()?;
    let error = attachment.status.detach_error.as_ref().and_then(|error| error.message.lines().next());
    let case = if error.is_some() { "+drain attacher error" } else { "+drain attacher" };
    let facts: Facts<'_> = &[("driver", &attachment.spec.attacher), ("told", &error.unwrap_or_default())];
    Some((DrainStage::Detaching, Some(*deleted), told(case, facts)))
}

/// How far a volume is, since when, and what has to happen.
fn stage(
    node: Option<&Node>,
    attachment: Option<&VolumeAttachment>,
    pods: &[Arc<Pod>],
    is_used: bool,
    outlook: &NodeVolumeOutlook,
) -> (DrainStage, Option<Timestamp>, String) {
    let is_alive = node.is_some_and(Node::kubelet_speaks);
    let code = outlook.waiting.as_ref().map(<&str>::from);
    let is_waited_for = matches!(outlook.waiting, Some(Waiting::DetachWaitingForNode { .. }));
    if let Some(pod) = pods.first().filter(|pod| pod.metadata.is_terminating()) {
        // When its grace is over.
        let since = pod.metadata.deletion_timestamp.as_deref().copied();
        let case = if is_alive { "+drain ending pod" } else { "+drain ending pod without kubelet" };
        return (DrainStage::Mounted, since, told(case, &[]));
    }
    match (pods.first(), code) {
        (Some(pod), Some(code)) if !attachment.is_some_and(|it| it.status.attached) => {
            (DrainStage::Attaching, pod.metadata.creation_timestamp, code.to_owned())
        }
        (Some(pod), _) => (DrainStage::InUse, pod.metadata.creation_timestamp, told("+drain pod", &[])),
        (None, _) if is_used => {
            let case = if is_alive { "+drain unmount" } else { "+drain unmount without kubelet" };
            (DrainStage::Mounted, None, told(case, &[]))
        }
        (None, _) if node.is_none() && is_waited_for => {
            (DrainStage::Mounted, None, told("+drain gone node", &[]))
        }
        (None, Some(code)) => (DrainStage::DetachesNext, None, code.to_owned()),
        (None, None) => (DrainStage::DetachesNext, None, told("+drain controller", &[])),
    }
}

/// What the table says that a volume waits for.
fn told(case: &str, facts: Facts<'_>) -> String {
    fill(find(case).message, facts)
}

/// Attachments of the earlier look that are gone in the later one.
fn left(earlier: &Snapshot, later: &Snapshot, counts: impl Fn(&VolumeAttachment) -> bool) -> usize {
    let is_gone = |attachment: &VolumeAttachment| {
        let now = later.objects.attachments.get(&attachment.key());
        now.is_none_or(|now| now.metadata.uid != attachment.metadata.uid)
    };
    earlier.keys(|attachment| is_gone(attachment) && counts(attachment)).len()
}

fn queues(view: &View<'_>, earlier: Option<&Snapshot>, volumes: &[DrainedVolume]) -> Vec<DrainQueue> {
    let (snapshot, sidecars) = (view.snapshot, view.sidecars());
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    for volume in
        volumes.iter().filter(|it| matches!(it.stage, DrainStage::Detaching | DrainStage::Attaching))
    {
        waiting.insert(&volume.driver, 0);
    }
    snapshot.objects.attachments.for_each(|attachment| {
        let is_waiting = attachment.metadata.is_terminating() || !attachment.status.attached;
        if let Some(count) = waiting.get_mut(attachment.spec.attacher.as_str()) {
            *count += usize::from(is_waiting);
        }
    });
    let queue = |(driver, waiting): (&str, usize)| {
        let per_second = earlier.and_then(|earlier| {
            let seconds = snapshot.taken_at.as_second() - earlier.taken_at.as_second();
            let gone = left(earlier, snapshot, |it| it.spec.attacher.as_str() == driver);
            let (gone, seconds) = (u32::try_from(gone).ok()?, u32::try_from(seconds).ok()?);
            (gone > 0 && seconds > 0).then(|| f64::from(gone) / f64::from(seconds))
        });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate for people")]
        let seconds_left = per_second.and_then(|rate| {
            u32::try_from(waiting).ok().map(|waiting| (f64::from(waiting) / rate).ceil() as u64)
        });
        DrainQueue {
            driver: driver.to_owned(),
            waiting,
            per_second,
            seconds_left,
            is_limited: sidecars.is_limited(driver, Sidecar::Attacher),
            is_there: match sidecars.presence(driver, Sidecar::Attacher) {
                Presence::Seen => Some(true),
                Presence::Gone(_) | Presence::NotSeen => Some(false),
                Presence::NoLease | Presence::Unknown => None,
            },
        }
    };
    waiting.into_iter().map(queue).collect()
}
