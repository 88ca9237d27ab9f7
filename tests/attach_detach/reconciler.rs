//! `reconciler.yaml`: each case is one call of the reconciler's pure function.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use apiserver::{
    ids::{DriverName, NodeName, PodKey, ResourceVersion, VolumeName},
    kinds::{AttachedVolume, Node, NodeCondition, Taint, VolumeAttachment, VolumeError},
};
use k8s_openapi::jiff::Timestamp;
use libtest_mimic::Trial;
use mooring::{
    attach_detach::{
        decide::{
            multi_attach::Exclusive,
            reconciler::{VolumeView, plan},
            verdict::{AttachStep, Waiting},
        },
        options::ForcePolicy,
        state::{
            actual::{
                ActualState, AttachmentCall, Candidates, Deletion, Mount, ReportAsAttached, Uncertain,
                unpublishing::{Sequence, Unpublishing},
            },
            desired::{
                AttachSource, DesiredPod, DesiredState, DesiredVolume, PodFacts, volume_name::VolumeId,
            },
        },
    },
    controller::in_doubt::InDoubt,
};
use serde::{Deserialize, Serialize};
use test_support::cases::comparison::Comparison;
use tokio::time::Instant;

// The words of a case are flags by nature.
#[allow(clippy::struct_excessive_bools)]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    held_exclusively: bool,
    #[serde(default)]
    no_op: bool,
    #[serde(default)]
    stand_off: bool,
    #[serde(default)]
    restored: bool,
    #[serde(default)]
    hands_over: bool,
    #[serde(default)]
    unreadable: BTreeMap<String, String>,
    #[serde(default)]
    unread_needs: BTreeSet<String>,
    given: BTreeMap<String, Given>,
    then: BTreeMap<String, Then>,
}

// Likewise.
#[allow(clippy::struct_excessive_bools)]
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Given {
    wanted: Option<i64>,
    stale: bool,
    attachment: Option<Attachment>,
    listed: bool,
    held: bool,
    in_use: bool,
    proven: bool,
    calling: Option<Calling>,
    deletion_in_doubt: bool,
    uncertain: Option<Lookup>,
    paused: bool,
    unsettled: bool,
    gone: bool,
    ready: Option<bool>,
    out_of_service: bool,
    unwanted_for: Option<i64>,
    proven_in_use: bool,
    remade: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Attachment {
    Attaching,
    Attached,
    Failed,
    Terminating,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Calling {
    Create,
    Delete,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Lookup {
    Unread,
    Read,
    Over,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Then {
    publish: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait: Option<String>,
}

pub fn trials(file: &Path) -> Vec<Trial> {
    super::each("reconciler", file, |case: &Case| &case.name, super::always(run))
}

fn run(case: &Case, compared: &mut Comparison) {
    let volume = if case.no_op {
        VolumeId::iscsi("10.0.0.1:3260", "iqn.2026-11.example:disk", 0)
    } else {
        VolumeId::csi(&DriverName::from("driver"), "handle")
    };
    let now = Instant::now();
    let mut desired = DesiredState::default();
    let mut actual = ActualState::default();
    for (name, given) in &case.given {
        let node = NodeName::from(name.as_str());
        wish(&mut desired, &volume, &node, given, case.exclusive);
        hold(&mut actual, &volume, &node, given, now);
    }
    let desired_nodes = desired.nodes(&volume);
    let names: BTreeSet<NodeName> = case.given.keys().map(|name| NodeName::from(name.as_str())).collect();
    let is_known =
        |node: &NodeName| desired.get(&volume, node).is_some() || actual.node_volume(&volume, node).is_some();
    let names = names.into_iter().filter(is_known).collect();
    let is_exclusive = case.held_exclusively
        || desired_nodes.is_some_and(|nodes| {
            nodes.values().any(|wanted| wanted.pods.values().any(|(_, volume)| volume.exclusive))
        });
    let unreadable = case.unreadable.iter();
    let unreadable: BTreeMap<NodeName, String> =
        unreadable.map(|(node, object)| (NodeName::from(node.as_str()), object.clone())).collect();
    let exclusive =
        is_exclusive.then(|| Exclusive::of(&volume, desired_nodes, &actual, &unreadable)).flatten();
    let verdicts = plan(
        &VolumeView {
            volume: &volume,
            desired_nodes,
            actual: &actual,
            names: &names,
            policy: ForcePolicy::default(),
            exclusive: exclusive.as_ref(),
            stand_off: if case.hands_over {
                Some(Waiting::HAND_OVER)
            } else if case.restored {
                Some(Waiting::RestoreGrace { until: wall() })
            } else {
                case.stand_off.then(|| Waiting::ForeignWriter { writer: "another".into(), until: wall() })
            },
            hand_over: case.hands_over.then_some(Waiting::HAND_OVER),
            losing: BTreeSet::new(),
            leftovers: BTreeSet::new(),
            stood_off: case
                .unread_needs
                .iter()
                .map(|node| {
                    let why = Waiting::Unreadable { object: "what a pod there needs".into() };
                    (NodeName::from(node.as_str()), (why, None))
                })
                .collect(),
            unreadable: &unreadable,
            wall: wall(),
        },
        now,
    );
    let seen: BTreeMap<String, Then> = verdicts
        .into_iter()
        .map(|(node, verdict)| {
            let publish = match verdict.report_as_attached {
                ReportAsAttached::Unchanged => "keep",
                ReportAsAttached::Yes => "list",
                ReportAsAttached::No => "withhold",
            };
            let forced = verdict.forced.is_some();
            let step = verdict.step.map(|step| match step {
                AttachStep::Create(_) => "create",
                AttachStep::Delete(..) if forced => "force-delete",
                AttachStep::Delete(..) => "delete",
                AttachStep::GiveUp(_) => "give-up",
                AttachStep::ReadNode => "read-node",
                AttachStep::ReadAttachment => "read-attachment",
            });
            let then = Then {
                publish: publish.to_owned(),
                step: step.map(str::to_owned),
                wait: verdict.waiting.map(|waiting| <&str>::from(waiting).to_owned()),
            };
            (node.to_string(), then)
        })
        .collect();
    compared.same(&["then"], &case.then, &seen);
}

/// The moment at which every case is judged, ten minutes after the epoch.
fn wall() -> Timestamp {
    Timestamp::from_second(600).expect("in range")
}

fn wish(desired: &mut DesiredState, volume: &VolumeId, node: &NodeName, given: &Given, exclusive: bool) {
    let Some(age) = given.wanted else { return };
    let key = PodKey::new("ns", &format!("pod-{node}"));
    let wanted = DesiredVolume {
        exclusive_by_another: false,
        pod_volumes: ["data"].into(),
        source: Some(AttachSource::PersistentVolume(VolumeName::from("pv"))),
        spec_name: arcstr::ArcStr::from("pv"),
        exclusive,
        current: !given.stale,
    };
    let pod = PodFacts {
        key: key.clone(),
        uid: format!("uid-{node}").into(),
        created: Timestamp::from_second(age).ok(),
    };
    let wishes = DesiredPod {
        pod: Arc::new(pod),
        node: node.clone(),
        volumes: [(volume.clone(), Arc::new(wanted))].into_iter().collect(),
        unresolved: Vec::new(),
        depends_on: Box::default(),
    };
    desired.set(&key, Some(wishes));
}

fn hold(actual: &mut ActualState, volume: &VolumeId, name: &NodeName, given: &Given, now: Instant) {
    let mut node = Node::default();
    node.metadata.name = name.as_str().into();
    node.metadata.uid = format!("uid-{name}").into();
    node.metadata.resource_version = ResourceVersion(5);
    let ready = given.ready.unwrap_or(true);
    node.status.conditions.push(NodeCondition {
        r#type: "Ready".into(),
        status: if ready { "True" } else { "False" }.into(),
        last_transition_time: Timestamp::from_second(0).ok(),
    });
    if given.out_of_service {
        node.spec.taints.push(Taint { key: "node.kubernetes.io/out-of-service".into() });
    }
    if given.proven_in_use {
        node.status.volumes_in_use.insert(volume.as_str().into());
    }
    if !given.gone {
        // When it was first seen as it is.
        let seen = Timestamp::from_second(0).expect("in range");
        actual.observe_node(name, Some(&Arc::new(node.clone())), |_| false, seen);
    }
    if let Some(kind) = given.attachment {
        let mut attachment = VolumeAttachment::default();
        let attachment_name = volume.attachment_name(name);
        attachment.metadata.name = attachment_name.as_str().into();
        attachment.metadata.uid = format!("va-{name}").into();
        attachment.spec.attacher = DriverName::from("driver");
        attachment.spec.node_name = name.clone();
        attachment.status.attached = matches!(kind, Attachment::Attached | Attachment::Terminating);
        if matches!(kind, Attachment::Terminating) {
            attachment.metadata.deletion_timestamp = Timestamp::from_second(1).ok().map(Box::new);
        }
        if matches!(kind, Attachment::Failed) {
            attachment.status.attach_error = Some(Box::new(VolumeError { time: None, message: "no".into() }));
        }
        let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
        actual.observe_attachment(&attachment_name, Some(Arc::new(attachment)), |_| about, wall());
    }
    let local = given.held
        || given.calling.is_some()
        || given.deletion_in_doubt
        || given.uncertain.is_some()
        || given.paused
        || given.proven
        || given.proven_in_use;
    if local {
        let pair = actual.node_volume_mut(volume, name);
        if given.held {
            pair.mount = Mount::Possible;
        }
        pair.call = given.calling.map(|calling| match calling {
            Calling::Create => AttachmentCall::Create,
            Calling::Delete => AttachmentCall::Delete,
        });
        if let Some(known) = pair.known.as_mut().filter(|_| given.deletion_in_doubt) {
            known.deletion = Deletion::InDoubt { until: now + Duration::from_secs(10) };
        }
        pair.uncertain = given.uncertain.map(|lookup| Uncertain {
            until: if lookup == Lookup::Over { now } else { now + Duration::from_secs(10) },
            read_absent: lookup != Lookup::Unread,
        });
        if given.paused {
            pair.retry = std::mem::take(&mut pair.retry).after_failure(now, 1.0, Duration::ZERO);
        }
        if given.proven || given.proven_in_use {
            pair.unpublishing = Unpublishing::Since(Sequence(0));
            actual.witness(Some(&node), name, Sequence(1));
        }
    }
    if given.unsettled {
        let until = now + Duration::from_secs(10);
        actual.node_mut(name).requests.in_doubt = Some(InDoubt { revision: ResourceVersion(9), until });
    }
    if given.listed {
        node.status.volumes_attached =
            vec![AttachedVolume { name: volume.as_str().into(), device_path: "".into() }];
    }
    node.status.volumes_in_use.clear();
    if given.in_use {
        node.status.volumes_in_use.insert(volume.as_str().into());
    }
    if given.remade {
        node.metadata.uid = format!("other-uid-{name}").into();
    }
    if let Some(minutes) = given.unwanted_for {
        let since = Timestamp::from_second(600 - 60 * minutes).expect("a time");
        actual.node_volume_mut(volume, name).undesired_since = Some(since);
    }
    if !given.gone {
        node.metadata.resource_version = ResourceVersion(7);
        actual.observe_node(name, Some(&Arc::new(node)), |_| false, wall());
    }
}
