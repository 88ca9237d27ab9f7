//! Volumes on nodes that wait, by what they wait for.
//!
//! In: the outlook of attach/detach, and which attachers are there. Out: groups by reason and by driver or node; pods
//! that do not start for want of an attachment count with its cause.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::{
    Severity,
    groups::{Cause, Groups, Victim},
};
use crate::{
    attach_detach::{
        decide::{force::Unforced, verdict::Waiting},
        desired::{state::WhyUnresolved, volume_name::VolumeId},
        dry_run::{NextWrite, NodeVolumeOutlook, Outlook},
        tell::diagnostics::State,
    },
    explain::{
        age,
        sidecars::{Presence, SILENCE, Sidecar, Sidecars},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{
        ids::{NodeName, PodKey},
        kinds::{ObjectRef, PodPhase},
    },
};

/// The pods that want each of these volumes on a node.
type Wanting<'a> = BTreeMap<(&'a VolumeId, &'a NodeName), Vec<&'a PodKey>>;

pub(super) fn look(
    snapshot: &Snapshot,
    outlook: &Outlook,
    sidecars: &Sidecars<'_>,
    groups: &mut Groups,
    fine: &mut Vec<String>,
) {
    let wanting = wanting(outlook);
    let mut attached = 0_usize;
    for ((volume, node), node_volume) in &outlook.node_volumes {
        if node_volume.waiting.is_none() && node_volume.write.is_none() {
            attached += usize::from(node_volume.state == State::Attached);
            continue;
        }
        let pods = wanting.get(&(volume, node)).map(Vec::as_slice).unwrap_or_default();
        let found = Found { snapshot, outlook, sidecars, wanting: &wanting, volume, node, node_volume, pods };
        let since = found.since();
        let is_stuck = groups.is_stuck(since);
        let (cause, next_at, summary) = found.judge(is_stuck, groups.now);
        let victim = Victim { subject: found.subject(), unit: "volume", since, next_at };
        let index = groups.note(cause, victim, || summary);
        for pod in pods {
            groups.suffers(index, pod);
        }
    }
    unresolved(snapshot, outlook, groups);
    if attached > 0 {
        fine.push(format!("{} attached where they are wanted", age::counted(attached, "volume")));
    }
}

/// Only of volumes that some node waits for.
fn wanting(outlook: &Outlook) -> Wanting<'_> {
    let mut wanting = Wanting::new();
    for ((volume, node), node_volume) in &outlook.node_volumes {
        if node_volume.waiting.is_none() && node_volume.write.is_none() {
            continue;
        }
        wanting.entry((volume, node)).or_default();
        if let Some(Waiting::HeldByNode { conflict }) = &node_volume.waiting {
            wanting.entry((volume, &conflict.node)).or_default();
        }
    }
    for (pod, desired) in &outlook.desired {
        for wanted in desired {
            if let Some(pods) = wanting.get_mut(&(&wanted.volume, &wanted.node)) {
                pods.push(pod);
            }
        }
    }
    wanting
}

/// One volume on one node that waits.
struct Found<'a> {
    snapshot: &'a Snapshot,
    outlook: &'a Outlook,
    sidecars: &'a Sidecars<'a>,
    wanting: &'a Wanting<'a>,
    volume: &'a VolumeId,
    node: &'a NodeName,
    node_volume: &'a NodeVolumeOutlook,
    pods: &'a [&'a PodKey],
}

impl Found<'_> {
    /// Since when, as objects show it: never later than it began.
    fn since(&self) -> Option<Timestamp> {
        let name = self.volume.attachment_name(self.node);
        if let Some(attachment) = self.snapshot.objects.attachments.get(&name) {
            let metadata = &attachment.metadata;
            if let Some(deleted) = &metadata.deletion_timestamp {
                return Some(**deleted);
            }
            // Of an attachment that has to go, only its end is known to be near.
            return metadata
                .creation_timestamp
                .filter(|_| !self.pods.is_empty() && !attachment.status.attached);
        }
        let created = |pod: &&PodKey| self.snapshot.objects.pods.get(pod)?.metadata.creation_timestamp;
        self.pods.iter().filter_map(created).min()
    }

    fn subject(&self) -> Subject {
        match self.pods.first() {
            Some(pod) => Subject::Pod((*pod).clone()),
            None => Subject::Attachment(self.volume.attachment_name(self.node)),
        }
    }

    fn driver(&self) -> String {
        match self.volume.driver_and_handle() {
            ("", _) => self.volume.plugin().to_owned(),
            (driver, _) => driver.to_owned(),
        }
    }

    fn judge(&self, is_stuck: bool, now: Timestamp) -> (Cause, Option<Timestamp>, String) {
        use Severity::{Blocked, Waiting as Waits};
        let node = self.node;
        let driver = self.driver();
        let severity_of_wait = if is_stuck { Blocked } else { Waits };
        let of_node = |severity, text: String| (severity, node.to_string(), None, text);
        let mut code = self.node_volume.waiting.as_ref().map_or("", Waiting::code);
        let (severity, about, next_at, text) = match &self.node_volume.waiting {
            None => {
                let (word, text) = match self.node_volume.write {
                    Some(NextWrite::DeleteAttachment) => ("DetachWaitingForAttacher", "detached"),
                    Some(NextWrite::CreateAttachment) | None => ("WaitingForVolumeAttachment", "attached"),
                };
                code = word;
                (severity_of_wait, driver, None, next_write(text, is_stuck))
            }
            Some(Waiting::WaitingForVolumeAttachment) => {
                (severity_of_wait, driver, None, next_write("attached", is_stuck))
            }
            Some(Waiting::WaitingForAttacher | Waiting::DetachWaitingForAttacher) => {
                match self.absent_attacher(&driver, self.since(), now) {
                    Some(text) => {
                        code = "AttacherNotSeen";
                        (Blocked, driver, None, text)
                    }
                    None => {
                        let text = format!("the attacher of {driver} has not answered yet");
                        (severity_of_wait, driver, None, text)
                    }
                }
            }
            Some(Waiting::AttachError { message, .. } | Waiting::DetachError { message, .. }) => {
                (severity_of_wait, driver, None, first_line(message))
            }
            Some(Waiting::HeldByNode { conflict }) => {
                let holders = self.wanting.get(&(self.volume, &conflict.node)).map_or(0, Vec::len);
                let text = if holders > 0 {
                    let holders = age::counted(holders, "pod");
                    format!("exclusive, and in use by {holders} on {}, which must end first", conflict.node)
                } else {
                    format!("exclusive, and still on {}", conflict.node)
                };
                let next_at = self.forced_at(&conflict.node);
                // What neither a pod's end nor time decides, and has not been for long, does not end by itself.
                let lasts = holders == 0 && next_at.is_none() && is_stuck;
                let severity = if (holders > 0 && conflict.is_attached) || lasts { Blocked } else { Waits };
                (severity, conflict.node.to_string(), next_at, text)
            }
            Some(
                Waiting::DetachWaitingForUnmount { unforced } | Waiting::DetachWaitingForNode { unforced },
            ) => match unforced {
                Unforced::NodeReady => {
                    of_node(severity_of_wait, format!("the kubelet of {node} has to unmount"))
                }
                Unforced::SwitchedOff => {
                    of_node(Blocked, format!("{node} is silent, and time may not force a detach"))
                }
                Unforced::Until(at) => {
                    // The controller's own clock began between the pod's end and now.
                    (
                        Waits,
                        node.to_string(),
                        Some(*at),
                        format!("{node} is silent: forced when its time is up"),
                    )
                }
            },
            Some(Waiting::NodeGone) => {
                of_node(Blocked, format!("node {node} is gone, and pods are bound to it"))
            }
            Some(Waiting::ForeignAttachment { name }) => {
                (Blocked, name.to_string(), None, format!("{name} stands for another volume or node"))
            }
            Some(Waiting::Unreadable { object }) => {
                (Blocked, object.clone(), None, format!("{object} cannot be read"))
            }
            Some(Waiting::ForeignWriter { writer, until }) => (
                Blocked,
                writer.clone(),
                Some(*until),
                format!("{writer} also writes here (migration unfinished?)"),
            ),
            Some(Waiting::WriteUndone { writer }) => of_node(Blocked, format!("{writer} again and again")),
            Some(Waiting::NodeStatusRefused { message }) => of_node(severity_of_wait, first_line(message)),
            Some(Waiting::RestoreGrace { until }) => {
                (Waits, String::new(), Some(*until), "etcd was restored a short while ago".to_owned())
            }
            Some(
                Waiting::WaitingForDeletion
                | Waiting::Publishing
                | Waiting::ClaimOrVolumeChanged
                | Waiting::DetachWaitingForUnpublish
                | Waiting::DetachWaitingForSettlement
                | Waiting::Uncertain
                | Waiting::RetryBackoff { .. },
            ) => (severity_of_wait, driver, None, "the controller is at it".to_owned()),
        };
        (Cause { severity, reason: code, about }, next_at, text)
    }

    /// That the attacher is not there, if that is known.
    fn absent_attacher(&self, driver: &str, asked: Option<Timestamp>, now: Timestamp) -> Option<String> {
        match self.sidecars.presence(driver, Sidecar::Attacher) {
            Presence::NotSeen => {
                Some(format!("no attacher answers to {driver}: no lease, CSIDriver object or event"))
            }
            Presence::Gone(since) => {
                let age = age::between(since, now);
                Some(format!("the attacher of {driver} was seen last {age} ago"))
            }
            Presence::NoLease => {
                let is_long = asked.is_some_and(|asked| asked.checked_add(SILENCE).is_ok_and(|it| it < now));
                is_long.then(|| format!("the attacher of {driver} does not answer, and has no lease"))
            }
            Presence::Seen | Presence::Unknown => None,
        }
    }

    /// When the volume is taken from the node that holds it, if time decides.
    fn forced_at(&self, holder: &NodeName) -> Option<Timestamp> {
        let node_volume = self.outlook.node_volumes.get(&(self.volume.clone(), holder.clone()))?;
        match node_volume.waiting.as_ref()? {
            Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(at) }
            | Waiting::DetachWaitingForNode { unforced: Unforced::Until(at) } => Some(*at),
            _ => None,
        }
    }
}

fn next_write(what: &str, is_stuck: bool) -> String {
    if is_stuck {
        format!("to be {what} at once, and were not for long: is the attach/detach controller at work?")
    } else {
        format!("to be {what} next")
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// Volumes of pods that lead nowhere. A claim that is not bound is told with the claim.
fn unresolved(snapshot: &Snapshot, outlook: &Outlook, groups: &mut Groups) {
    for ((pod, _), why) in &outlook.unresolved {
        if matches!(why, WhyUnresolved::ClaimNotBound(_)) {
            continue;
        }
        let Some(object) = snapshot.objects.pods.get(pod) else { continue };
        // What a pod runs without, it does not wait for.
        if object.status.phase != PodPhase::Pending || object.metadata.is_terminating() {
            continue;
        }
        let is_gone = match why {
            WhyUnresolved::NodeNotManaged(node) => snapshot.is_absent(&ObjectRef::Node(node.clone())),
            _ => false,
        };
        let about = match why {
            WhyUnresolved::NodeNotManaged(node) => node.to_string(),
            WhyUnresolved::FlexVolumeUnsupported(driver) => driver.to_string(),
            why => why.object().map(|object| object.to_string()).unwrap_or_default(),
        };
        let summary = why.problem().unwrap_or_else(|| match why {
            WhyUnresolved::NodeNotManaged(node) if is_gone => {
                format!("node {node} does not exist, and pods are bound to it: pod garbage collection deletes them")
            }
            WhyUnresolved::NodeNotManaged(node) => {
                format!("the kubelet of {node} attaches by itself (or has not come up)")
            }
            _ => format!("pods name {about}, which is not there or not theirs"),
        });
        let cause = Cause {
            severity: Severity::Blocked,
            reason: if is_gone { "NodeGone" } else { why.code() },
            about,
        };
        let victim = Victim {
            subject: Subject::Pod(pod.clone()),
            unit: "volume",
            since: object.metadata.creation_timestamp,
            next_at: None,
        };
        let index = groups.note(cause, victim, || summary);
        groups.suffers(index, pod);
    }
}
