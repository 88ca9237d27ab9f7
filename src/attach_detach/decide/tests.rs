//! One volume on one node, as tables: what a proof proves; what is listed; what is put back where nothing may be taken away (S14,
//! E11); what a hand-over lets pass, and whose turn it is (S1).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::{DriverName, NodeName, PodKey, ResourceVersion},
    kinds::{Node, NodeCondition, VolumeAttachment},
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::{Duration, Instant};

use super::{
    csi,
    detach::prove_unpublished,
    multi_attach::Exclusive,
    no_op,
    reconciler::{VolumeView, plan},
    verdict::{AttachStep, ConflictingNode, NodeVerdict, NodeVolumeView, Waiting, wait, withdraw},
};
use crate::attach_detach::{
    options::ForcePolicy,
    state::{
        actual::{
            ActualState, AttachmentCall, Deletion, ForceReason, KnownAttachment, Mount, NodeVolume,
            ReportAsAttached::{self, No, Unchanged, Yes},
            WhyRead,
            node::NodeState,
            unpublishing::{Sequence, Unpublished, Unpublishing},
        },
        desired::{
            AttachSource, DesiredAttachment, DesiredVolume, PodFacts,
            volume_name::{VolumeId, VolumeKind},
        },
    },
};

fn disk() -> VolumeId {
    VolumeId::csi(&DriverName::from("d"), "h")
}

fn node(uid: &str, uses: bool) -> Node {
    let mut node = Node::default();
    node.metadata.uid = uid.into();
    let (r#type, status) = ("Ready".into(), "True".into());
    node.status.conditions.push(NodeCondition { r#type, status, last_transition_time: None });
    node.status.volumes_in_use.extend(uses.then(|| disk().as_str().into()));
    node
}

fn attached() -> KnownAttachment {
    let mut object = VolumeAttachment::default();
    object.status.attached = true;
    KnownAttachment { object: Arc::new(object), deletion: Deletion::None, desired_again_at: None }
}

/// The proof that an answer of the node gives.
fn proven() -> Unpublishing {
    Unpublishing::Proven(Unpublished::witnessed_by(Some(&node("a", false)), &disk()).unwrap())
}

/// One pod needs the volume, by objects that still say so or not.
fn wish(current: bool) -> DesiredAttachment {
    let volume = DesiredVolume {
        exclusive_by_another: false,
        pod_volumes: ["data"].into(),
        source: Some(AttachSource::PersistentVolume("pv".into())),
        spec_name: "pv".into(),
        exclusive: true,
        current,
    };
    let pod = PodFacts { key: PodKey::new("ns", "p"), uid: "p".into(), created: None };
    DesiredAttachment { pods: [("p".into(), (Arc::new(pod), Arc::new(volume)))].into_iter().collect() }
}

/// A volume on a node that is Ready.
struct Given {
    node_volume: NodeVolume,
    node: Option<NodeState>,
    wish: Option<DesiredAttachment>,
    conflict: Option<ConflictingNode>,
    is_elsewhere: bool,
    publishes: Option<bool>,
}

impl Given {
    fn new(node_volume: NodeVolume) -> Self {
        let mut state = NodeState::default();
        state.node = Some(Arc::new(node("a", false)));
        let (conflict, is_elsewhere, publishes) = (None, false, None);
        Self { node_volume, node: Some(state), wish: None, conflict, is_elsewhere, publishes }
    }

    /// Another node has the volume, or comes first.
    fn conflict(&mut self, is_attached: bool) {
        self.conflict = Some(ConflictingNode { node: "other".into(), is_attached, is_own: false });
    }

    fn judged<R>(&self, kind: VolumeKind, judge: impl FnOnce(&NodeVolumeView<'_>) -> R) -> R {
        judge(&NodeVolumeView {
            kind,
            desired: self.wish.as_ref(),
            node_volume: &self.node_volume,
            node: self.node.as_ref(),
            conflict: self.conflict.as_ref(),
            is_withheld: false,
            is_elsewhere: self.is_elsewhere,
            publishes: self.publishes,
            policy: &ForcePolicy::default(),
            doubt: None,
            wall: Timestamp::UNIX_EPOCH,
        })
    }
}

/// What else is so.
type Change = fn(&mut Given);

/// What is said of the volume on the node, and what is waited for.
type Said = (ReportAsAttached, &'static str);

fn said(verdict: &NodeVerdict) -> Said {
    (verdict.report_as_attached, verdict.waiting.as_ref().map_or("", <&str>::from))
}

#[test]
fn s3_s4_what_a_proof_proves() {
    let (unused, used) = (node("a", false), node("a", true));
    let (earlier, earlier_used) = (node("before", false), node("before", true));
    let timeout = Some(ForceReason::Timeout);
    // name, what the answer showed, whether by force, whether it is enough
    let cases = [
        ("S3 the node that is there, and it unused", Some(&unused), None, true),
        ("S3 an earlier object of the node", Some(&earlier), None, false),
        ("S3 no node", None, None, false),
        ("S3 it in use", Some(&used), None, false),
        ("S4 it in use, which force overrules", Some(&used), timeout, true),
        ("S4 force overrules that alone: an earlier object", Some(&earlier_used), timeout, false),
    ];
    for (name, answer, forced, expected) in cases {
        let proof = Unpublished::witnessed_by(answer, &disk()).unwrap();
        let given =
            Given::new(NodeVolume { unpublishing: Unpublishing::Proven(proof), ..NodeVolume::default() });
        let found = given.judged(VolumeKind::Csi, |view| prove_unpublished(view, forced).is_ok());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn s8_s11_s43_what_is_listed_of_a_volume_without_attachments() {
    let (used, publishing) = ("DetachWaitingForUnmount", "Publishing");
    // What may be mounted, and is in use: what else is so, what is said
    let cases: [(&str, Change, Said); 12] = [
        ("S11 it is put back", |_| (), (Yes, used)),
        ("S43 another node lists it", |it| it.is_elsewhere = true, (No, used)),
        ("S1 another node has it", |it| it.conflict(true), (No, used)),
        ("S1 another node is only to have it", |it| it.conflict(false), (Yes, used)),
        ("what is listed stays", |it| (it.node_volume.listed, it.is_elsewhere) = (true, true), (Yes, used)),
        ("what is merely announced", |it| it.node_volume.mount = Mount::Reported { since: 0 }, (No, used)),
        ("S8 a stale wish lists again what was", |it| it.wish = Some(wish(false)), (Yes, publishing)),
        (
            "S8 a stale wish lists nothing else",
            |it| (it.wish, it.node_volume.mount) = (Some(wish(false)), Mount::No),
            (No, "ClaimOrVolumeChanged"),
        ),
        (
            "a pod needs it",
            |it| (it.wish, it.node_volume.mount) = (Some(wish(true)), Mount::No),
            (Yes, publishing),
        ),
        (
            "S39 it is listed, and a pod needs it",
            |it| (it.wish, it.node_volume.listed) = (Some(wish(true)), true),
            (Yes, ""),
        ),
        (
            "S1 a pod needs it, and another node comes first",
            |it| {
                it.wish = Some(wish(true));
                it.conflict(false);
            },
            (No, "HeldByNode"),
        ),
        ("H9 the node is gone", |it| (it.wish, it.node) = (Some(wish(true)), None), (Unchanged, "NodeGone")),
    ];
    for (name, change, expected) in cases {
        let mut given =
            Given::new(NodeVolume { mount: Mount::Possible, in_use: true, ..NodeVolume::default() });
        change(&mut given);
        assert_eq!(said(&given.judged(VolumeKind::NoOp, no_op::judge)), expected, "{name}");
    }
}

#[test]
fn s8_s2_what_is_listed_of_a_volume_that_has_attachments() {
    let (going, held) = ("DetachWaitingForAttacher", "HeldByNode");
    // Another node comes first: what else is so, what is said
    let cases: [(&str, Change, Said); 4] = [
        ("S1 a pod needs it", |it| it.wish = Some(wish(true)), (No, held)),
        (
            "S8 what is to attach nothing waits for no turn",
            |it| it.wish = Some(wish(false)),
            (No, "ClaimOrVolumeChanged"),
        ),
        (
            "S2 its delete is under way",
            |it| {
                (it.node_volume.known, it.node_volume.call) =
                    (Some(attached()), Some(AttachmentCall::Delete));
            },
            (No, going),
        ),
        (
            "its create is under way, though it is there already",
            |it| {
                (it.node_volume.known, it.node_volume.call) =
                    (Some(attached()), Some(AttachmentCall::Create));
            },
            (Unchanged, going),
        ),
    ];
    for (name, change, expected) in cases {
        let mut given = Given::new(NodeVolume::default());
        given.conflict(false);
        change(&mut given);
        let found = given.judged(VolumeKind::Csi, |view| csi::judge(view, Instant::now()));
        assert_eq!(said(&found), expected, "{name}");
    }
}

#[test]
fn s1_l13_whose_turn_it_is() {
    type Change = fn(&mut ActualState, &mut DesiredAttachment);

    // Pods on a and b, that on a by its name first: what else is so of a, whose turn it is
    let cases: [(&str, Change, &str); 4] = [
        ("the first pod's", |_, _| (), "a"),
        ("S8 not if it is to attach nothing", |_, wished| *wished = wish(false), "b"),
        ("L13 not if its node is gone", |actual, _| actual.node_mut(&"a".into()).node = None, "b"),
        (
            "S9 not if the name of its attachment is taken",
            |actual, _| {
                let taken = WhyRead::NameTaken("csi-x".into());
                actual.node_volume_mut(&disk(), &"a".into()).why_read = Some(taken);
            },
            "b",
        ),
    ];
    for (name, change, expected) in cases {
        let mut actual = ActualState::default();
        for name in ["a", "b"] {
            actual.node_mut(&name.into()).node = Some(Arc::new(node(name, false)));
        }
        let mut wished = wish(true);
        change(&mut actual, &mut wished);
        let mut later = wish(true);
        Arc::make_mut(&mut later.pods.get_mut(&"p".into()).unwrap().0).key = PodKey::new("ns", "q");
        let desired = [("a".into(), wished), ("b".into(), later)].into_iter().collect();
        let exclusive = Exclusive::of(&disk(), Some(&desired), &actual, &BTreeMap::new()).unwrap();
        assert_eq!(exclusive.leaders().map(NodeName::as_str).collect::<Vec<_>>(), [expected], "{name}");
    }
}

#[test]
fn s14_e11_what_stands_off() {
    type Change = fn(&mut Given, &mut NodeVerdict);

    fn going(known: &mut KnownAttachment) {
        Arc::make_mut(&mut known.object).metadata.deletion_timestamp = Some(Box::new(Timestamp::UNIX_EPOCH));
    }
    fn not_attached(known: &mut KnownAttachment) {
        Arc::make_mut(&mut known.object).status.attached = false;
    }
    fn listed(it: &mut Given, verdict: &mut NodeVerdict) {
        it.node_volume.listed = true;
        *verdict = wait(No, Waiting::DetachWaitingForUnpublish);
    }
    let foreign = Waiting::ForeignWriter { writer: "another".into(), until: Timestamp::UNIX_EPOCH };
    let restored = Waiting::RestoreGrace { until: Timestamp::UNIX_EPOCH };
    // What is attached, and off the list by our hand, is to be deleted: what else is so, what is said, if it stands off
    let cases: [(&str, &Waiting, Change, Option<ReportAsAttached>); 19] = [
        ("S14 S11 it is put back", &foreign, |_, _| (), Some(Yes)),
        (
            "S10 not if it is off the list by another hand",
            &foreign,
            |it, _| it.node_volume.unpublishing = Unpublishing::None,
            Some(Unchanged),
        ),
        (
            "if we were about to list it",
            &foreign,
            |it, _| {
                (it.node_volume.unpublishing, it.node_volume.report_as_attached) = (Unpublishing::None, Yes);
            },
            Some(Yes),
        ),
        (
            "S10 not if it is not attached",
            &foreign,
            |it, _| not_attached(it.node_volume.known.as_mut().unwrap()),
            Some(Unchanged),
        ),
        (
            "not if its attachment goes",
            &foreign,
            |it, _| going(it.node_volume.known.as_mut().unwrap()),
            Some(Unchanged),
        ),
        (
            "S2 not while our delete is under way",
            &foreign,
            |it, _| it.node_volume.call = Some(AttachmentCall::Delete),
            Some(Unchanged),
        ),
        (
            "S2 not while our delete may be carried out",
            &foreign,
            |it, _| {
                let until = Instant::now() + Duration::from_secs(10);
                it.node_volume.known.as_mut().unwrap().deletion = Deletion::InDoubt { until };
            },
            Some(Unchanged),
        ),
        ("S43 not if another lists it", &foreign, |it, _| it.is_elsewhere = true, Some(Unchanged)),
        ("S43 not if another may", &foreign, |it, _| it.publishes = Some(false), Some(Unchanged)),
        (
            "what is listed stays, whoever else lists it",
            &foreign,
            |it, verdict| {
                listed(it, verdict);
                it.is_elsewhere = true;
            },
            Some(Yes),
        ),
        ("S14 what is listed is not taken off", &foreign, listed, Some(Yes)),
        ("E11 nor after a restore", &restored, listed, Some(Yes)),
        ("S1 nor before a hand-over", &Waiting::HAND_OVER, listed, Some(Yes)),
        ("S1 but what is off the list is finished", &Waiting::HAND_OVER, |_, _| (), None),
        ("E11 not after a restore", &restored, |_, _| (), Some(Yes)),
        ("S14 a delete alone", &foreign, |_, verdict| verdict.unpublishes = false, Some(Yes)),
        ("S14 the wait for a delete", &foreign, |_, verdict| verdict.step = None, Some(Yes)),
        (
            "what is off the list, and for no delete",
            &foreign,
            |_, verdict| *verdict = wait(No, Waiting::DetachWaitingForAttacher),
            None,
        ),
        (
            "what takes nothing away",
            &foreign,
            |it, verdict| (it.node_volume.listed, *verdict) = (true, NodeVerdict::say(Yes)),
            None,
        ),
    ];
    for (name, why, change, expected) in cases {
        let unpublishing = Unpublishing::Since(Sequence(0));
        let mut given =
            Given::new(NodeVolume { known: Some(attached()), unpublishing, ..NodeVolume::default() });
        let proof = Unpublished::witnessed_by(None, &disk()).unwrap();
        let delete = AttachStep::Delete("va".into(), ResourceVersion(1), proof);
        let mut verdict = withdraw(Some(delete), Waiting::DetachWaitingForAttacher);
        change(&mut given, &mut verdict);
        let found = given.judged(VolumeKind::Csi, |view| verdict.clone().standing_off(view, why));
        let expected = expected.map_or(verdict, |report| wait(report, why.clone()));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn s1_what_a_hand_over_lets_pass() {
    let listed = || NodeVolume {
        known: Some(attached()),
        listed: true,
        mount: Mount::Possible,
        ..NodeVolume::default()
    };
    let off_list = || NodeVolume { known: Some(attached()), unpublishing: proven(), ..NodeVolume::default() };
    let held = || NodeVolume { mount: Mount::Possible, ..NodeVolume::default() };
    let none = NodeVolume::default;
    let iscsi = VolumeId::iscsi("10.0.0.1:3260", "iqn.2026-11.example:disk", 0);
    // name, volume, how it stands, whether a pod needs it, whether what the pods need is known, what is said
    let cases: [(&str, VolumeId, NodeVolume, bool, bool, Said); 8] = [
        ("nothing is attached", disk(), none(), true, true, (No, "HandOver")),
        ("what is attached is listed", disk(), off_list(), true, true, (Yes, "Publishing")),
        ("no detach is begun", disk(), listed(), false, true, (Unchanged, "HandOver")),
        ("a detach is finished", disk(), off_list(), false, true, (No, "DetachWaitingForAttacher")),
        ("S42 unless a pod may need it", disk(), off_list(), false, false, (Yes, "ObjectUnreadable")),
        ("S43 iSCSI is listed nowhere new", iscsi.clone(), none(), true, true, (Unchanged, "HandOver")),
        ("iSCSI is listed where it was", iscsi.clone(), held(), true, true, (Yes, "Publishing")),
        (
            "iSCSI is not given up",
            iscsi,
            NodeVolume { known: None, ..listed() },
            false,
            true,
            (Unchanged, "HandOver"),
        ),
    ];
    for (name, volume, node_volume, is_wanted, is_known, expected) in cases {
        let a = NodeName::from("a");
        let mut actual = ActualState::default();
        actual.node_mut(&a).node = Some(Arc::new(node("a", false)));
        *actual.node_volume_mut(&volume, &a) = node_volume;
        let desired_nodes = is_wanted.then(|| [(a.clone(), wish(true))].into_iter().collect());
        let unread = (Waiting::Unreadable { object: "what a pod there needs".into() }, None);
        let verdicts = plan(
            &VolumeView {
                volume: &volume,
                desired_nodes: desired_nodes.as_ref(),
                actual: &actual,
                names: &[a.clone()].into(),
                policy: ForcePolicy::default(),
                exclusive: None,
                losing: BTreeSet::new(),
                stand_off: Some(Waiting::HAND_OVER),
                hand_over: Some(Waiting::HAND_OVER),
                stood_off: (!is_known).then(|| (a.clone(), unread)).into_iter().collect(),
                leftovers: BTreeSet::new(),
                unreadable: &BTreeMap::new(),
                wall: Timestamp::UNIX_EPOCH,
            },
            Instant::now(),
        );
        assert_eq!(said(&verdicts[&a]), expected, "{name}");
    }
}
