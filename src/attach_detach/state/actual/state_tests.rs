//! The actual state under single observations; whole courses of events are in the tables and histories.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{DriverName, ResourceVersion, VolumeName},
    kinds::{Node, NodeCondition, VolumeAttachment},
};
use k8s_openapi::jiff::SignedDuration;
use tokio::time::Instant;

use super::{
    super::{
        identification::Candidates,
        node_volume::{Deletion, ReportAsAttached},
        unpublishing::{Sequence, Unpublishing},
    },
    *,
};
use crate::{attach_detach::options::ForcePolicy, controller::in_doubt::InDoubt};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn attachment(name: &str, node: &NodeName) -> Arc<VolumeAttachment> {
    let mut attachment = VolumeAttachment::default();
    attachment.metadata.name = name.into();
    attachment.spec.attacher = DriverName::from("d");
    attachment.spec.node_name = node.clone();
    attachment.spec.source.persistent_volume_name = Some(VolumeName::from("gone"));
    Arc::new(attachment)
}

#[test]
fn s1_an_attachment_whose_volume_is_gone_is_recognised_when_the_handle_is_wanted_again() {
    let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"));
    let name = volume.attachment_name(&node);
    let mut actual = ActualState::default();
    let unidentified = |_: &VolumeAttachment| Candidates::default();
    assert_eq!(
        actual.observe_attachment(&name, Some(attachment(name.as_str(), &node)), unidentified, NOW),
        None
    );
    assert!(actual.node_volume(&volume, &node).is_none());
    actual.recognise(&volume, NOW);
    assert!(actual.node_volume(&volume, &node).is_some_and(NodeVolume::may_be_attached));
}

#[test]
fn s9_one_of_the_same_name_for_another_driver_is_not() {
    let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"));
    let name = volume.attachment_name(&node);
    let mut actual = ActualState::default();
    let mut foreign = VolumeAttachment::clone(&attachment(name.as_str(), &node));
    foreign.spec.attacher = DriverName::from("e");
    actual.observe_attachment(&name, Some(Arc::new(foreign)), |_| Candidates::default(), NOW);
    actual.recognise(&volume, NOW);
    assert!(actual.node_volume(&volume, &node).is_none());
}

fn node_volume() -> (VolumeId, NodeName) {
    (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"))
}

#[test]
fn s2_a_patch_of_unknown_outcome_is_settled_when_it_can_no_longer_land() {
    let until = Instant::now() + std::time::Duration::from_secs(10);
    let second = std::time::Duration::from_secs(1);
    for (now, is_settled) in [(until - second, false), (until, true), (until + second, true)] {
        let (volume, node) = node_volume();
        let mut actual = ActualState::default();
        actual.node_volume_mut(&volume, &node);
        assert!(actual.settle_node(&node, now).is_empty(), "there is nothing to settle");
        let revision = ResourceVersion(1);
        actual.node_mut(&node).requests.in_doubt = Some(InDoubt { revision, until });
        assert_eq!(!actual.settle_node(&node, now).is_empty(), is_settled);
        assert_eq!(actual.node_mut(&node).requests.is_settled(), is_settled);
    }
}

#[test]
fn s1_a_list_may_say_so_until_no_patch_of_ours_can_land() {
    let unsettled = InDoubt { revision: ResourceVersion(1), until: Instant::now() };
    for (is_busy, unsettled, may_be_listed) in
        [(true, None, true), (false, Some(unsettled), true), (false, None, false)]
    {
        let (volume, node) = node_volume();
        let mut actual = ActualState::default();
        actual.node_volume_mut(&volume, &node).may_be_listed = true;
        let requests = &mut actual.node_mut(&node).requests;
        if is_busy {
            requests.read(None);
        }
        if let Some(patch) = unsettled {
            requests.in_doubt = Some(patch);
        }
        actual.observe_node(&node, Some(&Arc::default()), |_| false, NOW);
        assert_eq!(
            actual.node_volume_mut(&volume, &node).may_be_listed,
            may_be_listed,
            "{is_busy} {unsettled:?}"
        );
    }
}

#[test]
fn s1_a_patch_may_list_what_it_adds_and_nothing_else() {
    let cases = [
        (ReportAsAttached::Yes, false, true),
        (ReportAsAttached::Yes, true, false),
        (ReportAsAttached::No, false, false),
        (ReportAsAttached::No, true, false),
        (ReportAsAttached::Unchanged, false, false),
    ];
    for (report_as_attached, listed, expected) in cases {
        let (volume, node) = node_volume();
        let mut actual = ActualState::default();
        let node_volume = actual.node_volume_mut(&volume, &node);
        (node_volume.report_as_attached, node_volume.listed) = (report_as_attached, listed);
        actual.note_listing(&node);
        assert_eq!(
            actual.node_volume_mut(&volume, &node).may_be_listed,
            expected,
            "{report_as_attached:?}, {listed}"
        );
    }
}

#[test]
fn only_what_the_driver_has_yet_to_attach_is_on_its_way() {
    // attached, on its way out, on its way
    for (attached, terminating, expected) in
        [(false, false, true), (false, true, false), (true, false, false), (true, true, false)]
    {
        let node_volume = NodeVolume::with_attachment(attached, terminating);
        assert_eq!(node_volume.is_on_its_way(), expected, "{attached} {terminating}");
    }
    assert!(!NodeVolume::default().is_on_its_way());
}

#[test]
fn s2_only_an_answer_to_what_was_sent_later_proves_a_withdrawal() {
    for (sent, is_proven) in [(4, false), (5, false), (6, true)] {
        let (volume, node) = node_volume();
        let mut actual = ActualState::default();
        actual.node_volume_mut(&volume, &node).unpublishing = Unpublishing::Since(Sequence(5));
        actual.witness(Some(&Node::default()), &node, Sequence(sent));
        let unpublishing = &actual.node_volume_mut(&volume, &node).unpublishing;
        assert_eq!(matches!(unpublishing, Unpublishing::Proven(_)), is_proven, "sent as number {sent}");
    }
}

#[test]
fn s7_what_is_known_of_a_deletion_is_about_one_attachment() {
    let (volume, node) = node_volume();
    let name = volume.attachment_name(&node);
    for (uid, is_kept) in [("1", true), ("2", false)] {
        let of_uid = |uid: &str| {
            let mut object = VolumeAttachment::clone(&attachment(name.as_str(), &node));
            object.metadata.uid = uid.into();
            Some(Arc::new(object))
        };
        let mut actual = ActualState::default();
        let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
        actual.observe_attachment(&name, of_uid("1"), |_| about, NOW);
        actual.node_volume_mut(&volume, &node).note_deletion(&"1".into(), Deletion::Accepted);
        if of_uid(uid).is_some_and(|object| actual.is_replaced_by(&name, &object)) {
            actual.observe_attachment(&name, None, |_| Candidates::default(), NOW);
        }
        let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
        actual.observe_attachment(&name, of_uid(uid), |_| about, NOW);
        assert_eq!(actual.node_volume_mut(&volume, &node).deletion() == Deletion::Accepted, is_kept);
    }
}

#[test]
fn h5_what_nothing_explains_is_looked_at_when_its_volume_or_node_changes() {
    let mut actual = ActualState::default();
    for (name, volume, node) in [("a", Some("pv1"), "n1"), ("b", Some("pv2"), "n2"), ("c", None, "n3")] {
        let mut object = VolumeAttachment::clone(&attachment(name, &NodeName::from(node)));
        object.spec.source.persistent_volume_name = volume.map(VolumeName::from);
        actual.observe_attachment(&name.into(), Some(Arc::new(object)), |_| Candidates::default(), NOW);
    }
    assert_eq!(actual.unidentified.of(&"pv1".into()), ["a".into()]);
    assert_eq!(actual.unidentified.on(&"n2".into()), ["b".into()]);
    assert_eq!(actual.unidentified.of(&"pv3".into()), []);
    assert_eq!(actual.unidentified.on(&"n4".into()), []);
}

#[test]
fn s3_on_a_node_that_went_unseen_everything_may_be_in_use() {
    let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"));
    let mut actual = ActualState::default();
    actual.observe_node(&node, Some(&Arc::default()), |_| false, Timestamp::UNIX_EPOCH);
    assert!(!actual.node_volume_mut(&volume, &node).in_use);
    actual.node_mut(&node).unready_since = Some(NOW);
    assert_eq!(actual.distrust_node(&node), BTreeSet::from([volume.clone()]));
    assert!(actual.node_volume_mut(&volume, &node).in_use);
    assert_eq!(actual.node_mut(&node).unready_since, None, "S4 it may have been Ready");
}

#[test]
fn s1_there_what_has_no_attachment_is_held_if_a_list_may_have_said_so() {
    let (csi, lun) = (VolumeId::csi(&DriverName::from("d"), "h"), VolumeId::iscsi("p", "i", 0));
    for (volume, may_be_listed, held) in
        [(&lun, true, true), (&lun, false, false), (&csi, true, true), (&csi, false, false)]
    {
        let node = NodeName::from("n1");
        let mut actual = ActualState::default();
        actual.node_volume_mut(volume, &node).may_be_listed = may_be_listed;
        actual.distrust_node(&node);
        let mount = actual.node_volume_mut(volume, &node).mount;
        assert_eq!(mount == Mount::Possible, held, "{volume} {may_be_listed}");
    }
}

#[test]
fn a_node_that_is_gone_is_forgotten_with_its_last_volume() {
    let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"));
    for is_first in [true, false] {
        let mut actual = ActualState::default();
        actual.observe_node(&node, Some(&Arc::default()), |_| false, Timestamp::UNIX_EPOCH);
        actual.node_volume_mut(&volume, &node);
        if is_first {
            actual.prune(&volume, &[node.clone()].into(), |_| false);
            assert!(actual.node(&node).is_some(), "it exists");
        }
        actual.observe_node(&node, None, |_| false, Timestamp::UNIX_EPOCH);
        actual.prune(&volume, &[node.clone()].into(), |_| false);
        assert!(actual.node(&node).is_none());
    }
}

#[test]
fn who_waits_for_a_name_is_forgotten_with_its_last_pod() {
    let (volume, node) = node_volume();
    let name = volume.attachment_name(&node);
    let mut actual = ActualState::default();
    actual.node_volume_mut(&volume, &node).why_read = Some(WhyRead::NameTaken(name.clone()));
    actual.taken.insert(name, (volume.clone(), node.clone()));
    actual.prune(&volume, &[node.clone()].into(), |_| true);
    assert_eq!(actual.taken.len(), 1, "a pod wants it");
    actual.prune(&volume, &[node].into(), |_| false);
    assert!(actual.taken.is_empty());
}

#[test]
fn s12_an_attachment_of_another_name_holds_its_volume_but_is_not_ours() {
    let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "h"), NodeName::from("n1"));
    let name = AttachmentName::from("va-e2e-1");
    let mut actual = ActualState::default();
    let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
    actual.observe_attachment(&name, Some(attachment("va-e2e-1", &node)), |_| about, NOW);
    assert!(actual.node_volume(&volume, &node).is_none());
    assert_eq!(actual.volume(&volume).map(|state| state.foreign.len()), Some(1));
    actual.observe_attachment(&name, None, |_| Candidates::default(), NOW);
    actual.prune(&volume, &[node.clone()].into(), |_| false);
    assert!(actual.volume(&volume).is_none());
}

#[test]
fn s1_h9_what_another_machine_may_have_is_held_until_its_time_is_up() {
    let (volume, name) = node_volume();
    let node = |machine: &str, reports: bool| {
        let mut node = Node::default();
        node.status.node_info.system_uuid = machine.into();
        node.status.volumes_in_use = reports.then_some(volume.as_str().into()).into_iter().collect();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: "True".into(),
            last_transition_time: None,
        });
        Arc::new(node)
    };
    let (policy, later) = (ForcePolicy::default(), NOW + SignedDuration::from_mins(6));
    for goes_before in [true, false] {
        let mut actual = ActualState::default();
        let about = || Candidates { source: Some(volume.clone()), ..Candidates::default() };
        let va = volume.attachment_name(&name);
        actual.observe_attachment(&va, Some(attachment(va.as_str(), &name)), |_| about(), NOW);
        actual.node_volume_mut(&volume, &name).mount = Mount::Possible;
        actual.observe_node(&name, Some(&node("1", true)), |_| false, NOW);
        actual.observe_node(&name, Some(&node("2", false)), |_| false, NOW);
        assert!(
            actual
                .node_volume(&volume, &name)
                .is_some_and(|node_volume| node_volume.in_use && !node_volume.given_up)
        );
        if goes_before {
            actual.observe_attachment(&va, None, |_| about(), NOW);
        }
        assert_eq!(actual.trust_node(&name, &policy, later), BTreeSet::from([volume.clone()]));
        assert!(
            actual
                .node_volume(&volume, &name)
                .is_some_and(|node_volume| node_volume.may_be_attached() && node_volume.given_up)
        );
    }
}

#[test]
fn l9_s43_what_was_merely_announced_is_not_held_for_the_machine_that_announced_it() {
    let (volume, name) = node_volume();
    let node = |machine: &str, uid: &str, reports: bool| {
        let mut node = Node::default();
        node.metadata.uid = uid.into();
        node.status.node_info.system_uuid = machine.into();
        node.status.volumes_in_use = reports.then_some(volume.as_str().into()).into_iter().collect();
        Arc::new(node)
    };
    // Whether a pod is known to need it when the report begins, the next machine and its object, whether it is held.
    for (is_announced, machine, uid, expected) in
        [(true, "2", "1", false), (true, "2", "2", false), (true, "1", "2", false), (false, "2", "1", true)]
    {
        let mut actual = ActualState::default();
        actual.observe_node(&name, Some(&node("1", "1", false)), |_| is_announced, NOW);
        actual.node_volume_mut(&volume, &name);
        actual.observe_node(&name, Some(&node("1", "1", true)), |_| is_announced, NOW);
        actual.observe_node(&name, Some(&node(machine, uid, false)), |_| is_announced, NOW);
        let is_held = actual.node(&name).is_some_and(|state| state.uses(&volume));
        assert_eq!(is_held, expected, "announced: {is_announced}, machine {machine}, object {uid}");
    }
}

#[test]
fn s10_what_is_no_longer_attached_is_not_listed_before_it_is_judged_anew() {
    let (volume, name) = node_volume();
    let va = volume.attachment_name(&name);
    let about = || Candidates { source: Some(volume.clone()), ..Candidates::default() };
    let of = |attached, terminating: bool| {
        let mut attachment = VolumeAttachment::clone(&attachment(va.as_str(), &name));
        attachment.status.attached = attached;
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        Some(Arc::new(attachment))
    };
    let attached = |attached| of(attached, false);
    for (listed, then, expected) in [
        (false, None, ReportAsAttached::Unchanged),
        (false, of(true, true), ReportAsAttached::Unchanged),
        (false, attached(false), ReportAsAttached::Unchanged),
        (false, attached(true), ReportAsAttached::Yes),
        (true, None, ReportAsAttached::Yes),
    ] {
        let mut actual = ActualState::default();
        actual.observe_attachment(&va, attached(true), |_| about(), NOW);
        let node_volume = actual.node_volume_mut(&volume, &name);
        (node_volume.report_as_attached, node_volume.listed) = (ReportAsAttached::Yes, listed);
        let case = format!("listed: {listed}, then {then:?}");
        actual.observe_attachment(&va, then, |_| about(), NOW);
        assert_eq!(actual.node_volume_mut(&volume, &name).report_as_attached, expected, "{case}");
    }
}

#[test]
fn a_volume_on_a_node_stays_small_for_there_is_one_for_each() {
    // 264 before what only means something together was one value, and 248 with the time of the last request.
    assert!(size_of::<NodeVolume>() <= 232, "{}", size_of::<NodeVolume>());
}
