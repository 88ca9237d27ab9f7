//! What the controller does about another one that writes to the same objects (S14) or that no fence keeps from it any
//! more, after a restore of etcd (E11), and while the cluster changes hands: while one of these lasts, it takes nothing away,
//! and while the cluster changes hands it creates nothing.
//!
//! In: writes of others, and what a live read says of who made them. Out: reads, why nothing is taken away now, and one
//! more look at everything when that begins or ends.

use std::{collections::BTreeSet, mem, time::Duration};

use apiserver::{
    call::CallError,
    events::{Event, EventType, Involved},
    ids::{AttachmentName, NodeName, ResourceVersion, Uid},
    kinds::Node,
    unfenced::Unbegun,
    wire::rfc3339,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, Call},
    controller::AttachDetach,
    decide::verdict::Waiting,
    facts::Fact,
    guard::{second_writer_role::ActTarget, unreadable::UnknownNeeds},
    queue::Key,
    state::actual::{NodeVolume, answer_time::Answered},
};
use crate::controller::{report::events::EventUpdate, second_writer::UNFENCED};

/// Why nothing is created for a minute behind a new fence.
const SETTLES: &str =
    "a request of kube-controller-manager that was sent before it was fenced off may still be carried out";

/// After so long, and at most twice that, it is asked again who made an attachment, if no answer came: as long as questions
/// about new ones are limited, so that these do not add up.
const ASK_AGAIN: Duration = Duration::from_secs(30);

impl AttachDetach {
    /// Why nothing may be taken away now.
    pub(super) fn stand_off(&self, now: Instant) -> Option<Waiting> {
        let clock = &self.clock;
        // The stricter one first: it spares no node.
        if let Some(left) = self.objects.restore_grace().left(now) {
            return Some(Waiting::RestoreGrace { until: clock.wall(now + left) });
        }
        if let Some(by) = self.second_writer.signal() {
            return Some(Waiting::ForeignWriter { writer: by.to_string(), until: clock.wall(by.until) });
        }
        let unfenced = self.objects.unfenced();
        if let Some(until) = unfenced.until(now) {
            return Some(Waiting::ForeignWriter { writer: UNFENCED.to_owned(), until: clock.wall(until) });
        }
        // The only one that lets what is off the list be finished.
        (unfenced.begins_nothing(now) == Some(Unbegun::Draining)).then_some(Waiting::HAND_OVER)
    }

    /// Why no VolumeAttachment is created now. A create has no precondition, so one of kube-controller-manager for another node
    /// may be carried out after it (S1).
    pub(super) fn hand_over(&self, now: Instant) -> Option<Waiting> {
        let why = self.objects.unfenced().begins_nothing(now)?;
        Some(match why {
            Unbegun::Draining => Waiting::HAND_OVER,
            Unbegun::Settling(until) => {
                Waiting::HandOver { why: SETTLES, until: Some(self.clock.wall(until)) }
            }
        })
    }

    /// Looks at everything again when one of them has ended, the fence is gone, or other objects cannot be read.
    pub(super) fn end_stand_offs(&mut self, now: Instant) {
        let ends_at = self.objects.restore_grace().left(now).map(|left| now + left);
        let grace_ends = mem::replace(&mut self.grace_ends_at, ends_at).is_some() && ends_at.is_none();
        if grace_ends {
            self.outbox.push(Fact::GraceOver);
        }
        let unfenced = self.objects.unfenced();
        self.fence_looked_for_at = unfenced.look_again(now);
        let holds = (unfenced.until(now).is_some(), unfenced.begins_nothing(now));
        let fence_turns = mem::replace(&mut self.fence_holds, holds) != holds;
        let needs = UnknownNeeds::of(&self.objects, &self.desired);
        let needs_turn = self.unknown_needs != needs;
        self.unknown_needs = needs;
        if self.second_writer.settle(now) || grace_ends || fence_turns || needs_turn {
            self.queue.add_all();
        }
    }

    /// Notes a write of another to the object of this UID, which was ours to make. Who made it is asked when it is the turn
    /// of its node, which must not be written to before.
    pub(super) fn note_foreign(&mut self, target: &ActTarget, uid: &Uid, now: Instant) {
        self.second_writer.note(target, uid, now);
        self.queue.add_node(target.node().clone());
    }

    /// Asks who made attachments that others made. These questions wait for no room: detaches do not wait for it either.
    pub(super) fn ask_owners(&mut self, now: Instant) {
        let is_attachment = |target: &ActTarget| matches!(target, ActTarget::Attachment(..));
        while let Some((target, uid)) = self.second_writer.take_read(is_attachment) {
            self.dispatcher.send(Call::ReadOwner(target, uid), now);
        }
    }

    /// Takes the answer to the question who wrote it. Without an answer it is asked again, and a node is not written to
    /// before: our write would hide who wrote it.
    pub(super) fn owner_read(
        &mut self,
        target: &ActTarget,
        uid: Uid,
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        let managers = match result {
            Ok(Answer::Owners(managers)) => managers,
            Ok(_) | Err(CallError::NotFound(_)) => Vec::new(),
            Err(error) => {
                match target {
                    ActTarget::Node(name) => {
                        self.second_writer.not_read(target.clone(), uid);
                        self.node_call_failed(name, |requests| {
                            requests.failed(&error, true, answered);
                        });
                    }
                    ActTarget::Attachment(..) => {
                        let asked =
                            if let CallError::Throttled { after, .. } = error { after } else { ASK_AGAIN };
                        let at = answered.now + ASK_AGAIN.max(asked).mul_f64(1.0 + answered.jitter);
                        self.queue.add_at(at, Key::Owner(target.clone(), uid));
                    }
                }
                return;
            }
        };
        let begins = self.second_writer.learn(target, &managers, answered.now);
        if let ActTarget::Node(name) = target {
            let manager = self.second_writer.manager(target);
            self.actual.node_mut(name).requests.note_manager(manager);
        }
        if begins {
            let events = self.events_of_second_writer();
            self.outbox.events.extend(events.into_iter().map(EventUpdate::Happened));
            self.queue.add_all();
        }
    }

    /// One for each node where another controller was seen, but for those that are detached from nevertheless.
    fn events_of_second_writer(&self) -> Vec<Event> {
        let Some(by) = self.second_writer.signal() else { return Vec::new() };
        let until = rfc3339(self.clock.wall(by.until));
        let names: BTreeSet<&NodeName> = self.second_writer.evidence().map(ActTarget::node).collect();
        let nodes = names.into_iter().filter_map(|name| self.objects.nodes.get(name));
        let why = format!(
            "Nothing is detached until {until}: {by}, which only the attach/detach controller should"
        );
        let event = |node: &Node| {
            Event::new(Involved::object(node), EventType::Warning, "ForeignWriter", why.clone())
        };
        nodes.filter(|node| !node.is_out_of_service()).map(|node| event(&node)).collect()
    }

    /// Takes an attachment that the watch tells of. Everything up to the revision `told` was told of before those that have
    /// changed with it: they come by name. One of a name that we compute, which we did not ask for, is another's. That one of
    /// ours goes tells of nobody: administrators delete them, in numbers, when a node is lost.
    pub(super) fn attachment_changed(&mut self, name: &AttachmentName, told: ResourceVersion, now: Instant) {
        let seen = self.objects.attachments.get(name);
        // A watch may begin again in the past, where what we did ourselves looks like news.
        let appeared = seen.filter(|seen| {
            let is_known = self.actual.identity(name).is_some() && !self.actual.is_replaced_by(name, seen);
            seen.metadata.resource_version > told && !is_known
        });
        self.refresh_attachment(name, now);
        let Some(attachment) = appeared else { return };
        let Some(identity) = self.actual.identity(name).filter(|identity| identity.ours) else { return };
        let node_volume = self.actual.node_volume(&identity.volume, &identity.node);
        if !node_volume.is_some_and(NodeVolume::may_be_made_by_us) {
            let target = ActTarget::Attachment(identity.node.clone(), name.clone());
            self.note_foreign(&target, &attachment.metadata.uid, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment};
    use serde_json::json;

    use super::*;
    use crate::attach_detach::{
        decide::verdict::{NodeVerdict, NodeVolumeView},
        plan::tests::controller,
        state::{
            actual::{AttachmentCall, ReportAsAttached, Uncertain},
            desired::volume_name::{VolumeId, VolumeKind},
        },
    };
    use crate::controller::Controller as _;

    fn answered(now: Instant) -> Answered {
        Answered { asked: now, now, jitter: 0.5, settle_time: Duration::ZERO }
    }

    #[test]
    fn s14_a_detach_that_a_second_controller_holds_up_says_until_when() {
        let now = Instant::now();
        let (mut controller, name) = controller(now);
        for target in [ActTarget::Attachment("n2".into(), "va".into()), ActTarget::Node(name)] {
            assert_eq!(controller.stand_off(now), None);
            controller.note_foreign(&target, &"u".into(), now);
            let owners = vec!["kube-controller-manager".to_owned()];
            controller.owner_read(&target, "u".into(), Ok(Answer::Owners(owners)), &answered(now));
        }
        let why = controller.stand_off(now).expect("a stand-off");
        let mut node_volume = NodeVolume::with_attachment(true, false);
        node_volume.listed = true;
        let verdict = NodeVerdict { unpublishes: true, ..NodeVerdict::say(ReportAsAttached::No) };
        let view = NodeVolumeView {
            kind: VolumeKind::Csi,
            desired: None,
            node_volume: &node_volume,
            node: None,
            conflict: None,
            is_withheld: false,
            is_elsewhere: false,
            publishes: None,
            policy: &controller.options.force,
            doubt: None,
            wall: controller.clock.wall(now),
        };
        let waiting = verdict.standing_off(&view, &why).waiting.expect("a wait");
        let ends_at = controller.second_writer.signal().expect("a signal").until;
        assert_eq!(
            (<&str>::from(&waiting), waiting.until()),
            ("ForeignWriter", Some(controller.clock.wall(ends_at)))
        );
    }

    #[test]
    fn s14_e2_an_attachment_of_another_is_asked_about_behind_our_own_answers_and_not_when_it_is_of_the_past()
    {
        let now = Instant::now();
        let (mut controller, node) = controller(now);
        let objects = Arc::clone(&controller.objects);
        let attachment = |handle: &str, revision: u64| -> VolumeAttachment {
            let spec = json!({"csi": {"driver": "d", "volumeHandle": handle}});
            let pv =
                json!({"metadata": {"name": handle, "uid": handle, "resourceVersion": "1"}, "spec": spec});
            objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
            let name = VolumeId::csi(&"d".into(), handle).attachment_name(&node);
            let spec = json!({"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": handle}});
            let metadata = json!({"name": name, "uid": handle, "resourceVersion": revision.to_string()});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let mut is_asked_about = |attachment: VolumeAttachment, is_told: bool| {
            let name = AttachmentName::from(attachment.metadata.name.clone());
            if is_told {
                objects.apply(attachment);
            } else {
                objects.observe_response(attachment);
            }
            // What has changed comes in portions, and nodes come first.
            let node_changed = ObjectRef::Node(node.clone());
            for object in [node_changed.clone(), node_changed, ObjectRef::Attachment(name.clone())] {
                controller.changed(BTreeSet::from([object]), now);
            }
            let is_asked_about =
                controller.second_writer.has_to_read(&ActTarget::Attachment(node.clone(), name));
            controller.plan(now);
            is_asked_about
        };
        is_asked_about(attachment("ours", 9), false);
        assert!(is_asked_about(attachment("another's", 8), true), "the watch is behind our answer");
        is_asked_about(attachment("later", 20), true);
        is_asked_about(attachment("and later", 21), true);
        assert!(!is_asked_about(attachment("of the past", 15), true), "the watch began again");
    }

    #[test]
    fn s14_only_what_we_did_not_ask_for_is_anothers() {
        type Case<'a> = (&'a str, Option<&'a str>, &'a dyn Fn(&mut NodeVolume), &'a str, bool);
        let now = Instant::now();
        let uncertain =
            |it: &mut NodeVolume| it.uncertain = Some(Uncertain { until: now, read_absent: false });
        let asked = |it: &mut NodeVolume| it.call = Some(AttachmentCall::Create);
        let nothing = |_: &mut NodeVolume| ();
        // name, the UID that is known, what we asked for, the UID that the watch tells of, whether it is another's
        let cases: [Case<'_>; 5] = [
            ("the driver attached it", Some("1"), &nothing, "1", false),
            ("created by others", None, &nothing, "1", true),
            ("created by us", None, &asked, "1", false),
            ("created by us, unanswered", None, &uncertain, "1", false),
            ("replaced by others", Some("1"), &nothing, "2", true),
        ];
        for (case, known, ask, seen, expected) in cases {
            let (mut controller, node) = controller(now);
            let volume = VolumeId::csi(&"d".into(), "h");
            let name = volume.attachment_name(&node);
            let spec = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
            let pv = json!({"metadata": {"name": "pv", "uid": "pv", "resourceVersion": "1"}, "spec": spec});
            controller.objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
            let attachment = |uid: &str, revision: &str| -> VolumeAttachment {
                let spec =
                    json!({"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "pv"}});
                let metadata = json!({"name": name, "uid": uid, "resourceVersion": revision});
                serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
            };
            if let Some(known) = known {
                controller.objects.apply(attachment(known, "8"));
                controller.refresh_attachment(&name, now);
            }
            ask(controller.actual.node_volume_mut(&volume, &node));
            controller.objects.apply(attachment(seen, "9"));
            controller.attachment_changed(&name, ResourceVersion(7), now);
            let target = ActTarget::Attachment(node.clone(), name.clone());
            assert_eq!(controller.second_writer.has_to_read(&target), expected, "{case}");
        }
    }

    #[test]
    fn s14_a_lost_fence_holds_up_as_another_controller_does_until_it_is_found() {
        let now = Instant::now();
        let (mut controller, _) = controller(now);
        controller.objects.unfenced().lost(now, Duration::from_mins(10));
        controller.end_stand_offs(now);
        assert!(matches!(controller.stand_off(now), Some(Waiting::ForeignWriter { .. })));
        assert!(
            controller.wake_at().is_some_and(|at| at <= now + Duration::from_secs(5)),
            "it looks again soon"
        );
        controller.objects.unfenced().found();
        controller.end_stand_offs(now);
        assert_eq!(controller.stand_off(now), None);
    }

    #[test]
    fn s1_nothing_is_created_while_the_cluster_changes_hands() {
        let now = Instant::now();
        let (mut controller, _) = controller(now);
        let waits = |controller: &AttachDetach, now| {
            controller.hand_over(now).map(|waiting| (<&str>::from(&waiting), waiting.until().is_some()))
        };
        controller.objects.unfenced().settle(now + Duration::from_mins(1));
        controller.end_stand_offs(now);
        assert_eq!(waits(&controller, now), Some(("HandOver", true)));
        assert_eq!(controller.stand_off(now), None, "what has a precondition goes on");
        let later = now + Duration::from_mins(1);
        assert_eq!(waits(&controller, later), None);
        controller.objects.unfenced().drain(true);
        controller.end_stand_offs(later);
        assert_eq!(waits(&controller, later), Some(("HandOver", false)));
        assert_eq!(controller.stand_off(later), Some(Waiting::HAND_OVER));
        controller.objects.unfenced().lost(later, Duration::from_mins(10));
        let strict = controller.stand_off(later);
        assert!(matches!(strict, Some(Waiting::ForeignWriter { .. })), "it finishes nothing: {strict:?}");
        assert!(controller.wake_at().is_some_and(|at| at <= later + Duration::from_secs(5)));
    }

    #[test]
    fn l3_what_was_held_up_is_the_first_that_is_begun_when_that_ends() {
        let (now, minute) = (Instant::now(), Duration::from_mins(1));
        let (mut controller, _) = controller(now);
        let objects = Arc::clone(&controller.objects);
        let meta = |name: &str| json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "2"});
        let mut node = json!({"metadata": meta("n2")});
        node["metadata"]["annotations"] =
            json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        objects.apply::<Node>(serde_json::from_value(node).unwrap());
        let spec = json!({"csi": {"driver": "d", "volumeHandle": "a"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}});
        let pv = json!({"metadata": meta("v"), "spec": spec});
        objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
        let claim = json!({"metadata": meta("c"), "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim).unwrap());
        let source = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": meta("p"), "spec": {"nodeName": "n2", "volumes": source}});
        objects.apply::<Pod>(serde_json::from_value(pod).unwrap());
        objects.unfenced().settle(now + minute);
        controller.lead(now);
        let mut creates = |now| {
            let calls = controller.plan(now).calls;
            calls.iter().filter(|(_, call)| matches!(call, Call::Attachment(..))).count()
        };
        assert_eq!((creates(now), creates(now + minute)), (0, 1));
    }

    #[test]
    fn e11_a_restore_holds_up_what_a_second_controller_does_not() {
        let now = Instant::now();
        let (mut controller, _) = controller(now);
        for name in ["n1", "n2"] {
            let owners = Ok(Answer::Owners(vec!["kube-controller-manager".to_owned()]));
            controller.owner_read(&ActTarget::Node(name.into()), "u".into(), owners, &answered(now));
        }
        assert!(matches!(controller.stand_off(now), Some(Waiting::ForeignWriter { .. })));
        controller.objects.restore_grace().begin(now);
        assert!(matches!(controller.stand_off(now), Some(Waiting::RestoreGrace { .. })));
    }
}
