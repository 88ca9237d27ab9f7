//! Second writer: recognises writes of another attach/detach controller (S14), and where to stand off.
//!
//! In: changes that the watch tells of, against what we have asked for ourselves; what a live read says about who
//! made them. Out: objects to read; stand-offs, and what to tell of them: in the alarm, in the metrics, in the log, in an
//! event of the node, under `/readyz` and `/debug/attach-detach`.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::evidence::{Evidence, Target};
use crate::{
    attach_detach::{
        act::calls::Call,
        actual::state::{AttachmentCall, Deletion, NodeVolume},
        clock::Clock,
        known::Known,
        tell::report::{Line, Report},
    },
    controller::second_writer::{Asks, Changes, Owner, SecondWriters, StandOff, Target as _, seconds},
    kube_api::{
        events::{Event, EventType, Involved, Novelty},
        ids::{AttachmentName, NodeName, ResourceVersion, Uid},
        kinds::{Node, VolumeAttachment},
    },
};

/// Who else writes what only we should.
#[derive(Clone, Debug, Default)]
pub struct SecondController {
    writers: SecondWriters<Target>,
    /// Nodes to read before they are written to: our own patch would take the list's ownership from the manager that
    /// changed it.
    to_read: BTreeMap<NodeName, Uid>,
    /// The newest revision of any VolumeAttachment that the watch has told of.
    newest_attachment: ResourceVersion,
}

impl SecondController {
    /// What others did while this process did not lead is no act against it.
    pub fn take_over(&mut self, now: Instant) {
        self.writers.take_over(now);
        self.to_read.clear();
    }

    /// When the next stand-off ends.
    pub fn ends_at(&self) -> Option<Instant> {
        self.writers.ends_at()
    }

    /// Why nothing may be taken away anywhere.
    pub fn everywhere(&self) -> Option<&StandOff> {
        self.writers.everywhere()
    }

    /// Why nothing may be taken away from a node, of what concerns it alone. One that is `out_of_service` is held up
    /// only by what its own kubelet cannot have done.
    pub fn on(&self, node: &NodeName, out_of_service: bool) -> Option<&StandOff> {
        let list = Target::Node(node.clone());
        let on_list = self.writers.here(&list).filter(|by| holds(&list, by, out_of_service));
        let first = Target::Attachment(node.clone(), AttachmentName::default());
        let created = || {
            let created = self.writers.stand_offs_from(&first);
            let mut created = created.take_while(|(target, _)| target.node() == node);
            created.find(|(target, by)| holds(target, by, out_of_service)).map(|(_, by)| by)
        };
        on_list.or_else(created)
    }

    /// Whether there is any such node.
    pub fn is_any_node(&self) -> bool {
        self.writers.stand_offs().next().is_some()
    }

    /// Whether a node has to be read before it is written to.
    pub fn has_to_read(&self, name: &NodeName) -> bool {
        self.to_read.contains_key(name)
    }

    /// The UID of one that is read now.
    pub fn take_read(&mut self, name: &NodeName) -> Option<Uid> {
        self.to_read.remove(name)
    }

    /// Notes an act of another party on an object with this UID.
    pub fn note(&mut self, target: Target, uid: &Uid, now: Instant) -> Noted {
        match self.writers.note(&target, target.field(), now) {
            Asks::Later => Noted::Nothing,
            Asks::Judged(changes) => Noted::Judged(target.act(), changes),
            Asks::Read => match target {
                Target::Node(name) => {
                    self.to_read.insert(name.clone(), uid.clone());
                    Noted::ReadsNode(name)
                }
                Target::Attachment(..) => Noted::Reads(Call::ReadOwner(target, uid.clone())),
            },
        }
    }

    /// Takes who did it.
    pub fn learn(&mut self, target: &Target, owner: &Owner, now: Instant) -> Changes<Target> {
        self.writers.learn(target, owner, now)
    }

    /// Ends what is over.
    pub fn settle(&mut self, now: Instant) -> Changes<Target> {
        self.writers.settle(now)
    }

    /// Takes a VolumeAttachment of a list, or seen while another process leads: no act against this one.
    pub fn listed(&mut self, revision: ResourceVersion) {
        self.newest_attachment = self.newest_attachment.max(revision);
    }

    /// Looks at what the watch says of an attachment, before the state takes it. Returns what another party has done.
    pub fn look_at(
        &mut self,
        name: &AttachmentName,
        attachment: Option<&VolumeAttachment>,
        node_volume: &NodeVolume,
        now: Instant,
    ) -> Option<Sighting> {
        let act = evidence_of(node_volume, attachment);
        if let Some(attachment) = attachment {
            // A watch may begin again in the past, where what we did ourselves looks like news.
            let revision = attachment.metadata.resource_version;
            if revision <= self.newest_attachment {
                return None;
            }
            self.newest_attachment = revision;
        }
        match (act?, attachment) {
            (Evidence::AttachmentCreated, Some(attachment)) => {
                let target = Target::Attachment(attachment.spec.node_name.clone(), name.clone());
                Some(Sighting::Created(target, attachment.metadata.uid.clone()))
            }
            // Of the one that led before, the watch may tell late.
            (act, _) => (!self.writers.took_over_just_now(now)).then_some(Sighting::Deleted(act)),
        }
    }

    /// What there is to tell of stand-offs that begin or end.
    pub fn tell(&self, changes: &Changes<Target>, known: Known<'_>) -> (Vec<Event>, Vec<Report>) {
        let (mut events, mut reports) = (Vec::new(), Vec::new());
        for target in &changes.begun {
            let Some(stand_off) = self.writers.here(target) else { continue };
            let (name, by) = (target.to_string(), stand_off.to_string());
            let node = known.objects.nodes.get(target.node());
            if !holds(target, stand_off, node.as_ref().is_some_and(|node| node.is_out_of_service())) {
                reports.push(Report::Line(Line::HoldsNothingUp { target: name, by }));
                continue;
            }
            let until = seconds(known.clock.wall(stand_off.until));
            events.extend(node.map(|node| event(&node, stand_off, &until)));
            reports.push(Report::Line(Line::StandOff { target: name, by, until }));
        }
        for target in &changes.ended {
            let node = known.actual.node(target.node()).and_then(|state| state.node.as_deref());
            let detaches = !node.is_some_and(Node::is_out_of_service);
            reports.push(Report::Line(Line::StandOffEnded { target: target.to_string(), detaches }));
        }
        if changes.everywhere {
            reports.push(Report::Line(match self.everywhere() {
                Some(by) => {
                    Line::AnotherController { by: by.to_string(), until: seconds(known.clock.wall(by.until)) }
                }
                None => Line::NoOtherController,
            }));
        }
        reports.push(self.show(known.clock));
        (events, reports)
    }

    fn show(&self, clock: &Clock) -> Report {
        let wall = |stand_off: &StandOff| clock.wall(stand_off.until);
        let alarm = self.everywhere().map(|by| {
            format!(
                "another attach/detach controller is at work ({by}): nothing is detached until {} at the earliest",
                seconds(wall(by))
            )
        });
        let rows = self.writers.stand_offs().map(|(_, stand_off)| stand_off.json(wall(stand_off))).collect();
        Report::SecondWriters { alarm, rows }
    }
}

fn event(node: &Node, stand_off: &StandOff, until: &str) -> Event {
    Event {
        involved: Involved::object::<Node>(node),
        r#type: EventType::Warning,
        reason: "ForeignWriter",
        message: format!(
            "Nothing is detached from this node until {until}: {stand_off}, which only the attach/detach \
             controller should"
        ),
        novelty: Novelty::default(),
        subject: None,
    }
}

/// Whether a stand-off for what was seen there holds up its node.
fn holds(target: &Target, by: &StandOff, out_of_service: bool) -> bool {
    !out_of_service || (by.is_proven() && target.is_beyond_agents())
}

/// What follows from an act.
#[derive(Debug)]
pub enum Noted {
    /// Nothing yet.
    Nothing,
    /// The node is to be read before it is written to.
    ReadsNode(NodeName),
    /// This is to be sent.
    Reads(Call),
    /// Such acts are counted, and stand-offs begin or end.
    Judged(Evidence, Changes<Target>),
}

/// What another party has done to an attachment.
#[derive(Debug)]
pub enum Sighting {
    /// It was created, with this UID.
    Created(Target, Uid),
    /// Something from which nothing follows.
    Deleted(Evidence),
}

/// What the new state of an attachment shows that we did not ask for.
fn evidence_of(node_volume: &NodeVolume, attachment: Option<&VolumeAttachment>) -> Option<Evidence> {
    let known = node_volume.attachment();
    let is_new = match (known, attachment) {
        (Some(known), Some(attachment)) => known.metadata.uid != attachment.metadata.uid,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    if is_new {
        let asked = node_volume.call == Some(AttachmentCall::Create) || node_volume.uncertain.is_some();
        return (!asked).then_some(Evidence::AttachmentCreated);
    }
    let was_staying = known.is_some_and(|known| !known.metadata.is_terminating());
    let is_staying = attachment.is_some_and(|attachment| !attachment.metadata.is_terminating());
    let asked = node_volume.call == Some(AttachmentCall::Delete) || node_volume.deletion() != Deletion::None;
    (was_staying && !is_staying && !asked).then_some(Evidence::AttachmentDeleted)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::json;

    use super::*;
    use crate::{
        attach_detach::{
            act::{calls::Answer, status_updater::tests::controller},
            actual::state::{Listed, ReportAsAttached, Uncertain},
            decide::verdict::Verdict,
            tell::{metrics::AttachDetachMetrics, reporter::Reporter},
        },
        metrics::{Alarms, Metrics},
    };

    fn reporter() -> Reporter {
        let metrics = Metrics::default();
        Reporter::new(AttachDetachMetrics::new(&metrics, Alarms::new(&metrics).unwrap()).unwrap())
    }

    /// What is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn s14_the_log_says_that_a_node_is_held_up_only_if_it_is() {
        for (out_of_service, manager, expected) in [
            (false, "agent", "nothing is detached there"),
            (true, "agent", "holds nothing up"),
            (true, "kube-controller-manager", "holds nothing up"),
        ] {
            let now = Instant::now();
            let (mut controller, name) = controller(now);
            let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            let node = json!({
                "metadata": {"name": "n1", "uid": "u", "resourceVersion": "2"},
                "spec": {"taints": if out_of_service { taint } else { json!([]) }},
            });
            controller.caches.objects.apply::<Node>(serde_json::from_value(node).unwrap());
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
            let target = Target::Node(name);
            tracing::subscriber::with_default(subscriber, || {
                for _ in 0..3 {
                    controller.note_evidence(target.clone(), &"u".into(), now);
                    let owners = Ok(Answer::Owners(vec![manager.to_owned()]));
                    controller.owner_read(&target, owners, now);
                }
                reporter().take(controller.take_reports(), now);
            });
            let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            assert!(log.contains(expected), "{out_of_service} {manager}: {log}");
            let (events, _) = controller.recorder.take();
            let told = events.iter().filter(|event| event.reason == "ForeignWriter");
            assert_eq!(
                (log.contains("nothing is detached"), told.count()),
                (!out_of_service, usize::from(!out_of_service))
            );
        }
    }

    #[test]
    fn s14_a_detach_that_a_second_writer_holds_up_says_until_when() {
        let now = Instant::now();
        let (mut controller, name) = controller(now);
        let target = Target::Node(name.clone());
        controller.note_evidence(target.clone(), &"u".into(), now);
        let owners = vec!["kube-controller-manager".to_owned()];
        controller.owner_read(&target, Ok(Answer::Owners(owners)), now);
        let why = controller.blocks(now).on(&name).expect("a stand-off");
        let mut node_volume = NodeVolume::with_attachment(true, false);
        node_volume.listed = Listed::Yes;
        let verdict = Verdict { unpublishes: true, ..Verdict::say(ReportAsAttached::No) };
        let waiting = verdict.standing_off(&node_volume, &why).waiting.expect("a wait");
        let ends_at = controller.second_writer.ends_at().expect("an end");
        assert_eq!(
            (waiting.code(), waiting.until()),
            ("ForeignWriter", Some(controller.caches.clock.wall(ends_at)))
        );
    }

    fn attachment(uid: &str, terminating: bool) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.uid = uid.into();
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        attachment
    }

    #[test]
    fn s14_what_a_watch_tells_again_is_no_news() {
        let (now, absent) = (Instant::now(), NodeVolume::default());
        let mut seen = attachment("1", false);
        seen.metadata.resource_version = ResourceVersion(7);
        for (listed, is_news) in [(6, true), (7, false), (8, false)] {
            let mut second_writer = SecondController::default();
            second_writer.listed(ResourceVersion(listed));
            for is_news in [is_news, false] {
                let sighting = second_writer.look_at(&"va".into(), Some(&seen), &absent, now);
                assert_eq!(matches!(sighting, Some(Sighting::Created(..))), is_news, "{listed}");
            }
        }
    }

    #[test]
    fn s14_only_what_we_did_not_ask_for_is_foreign() {
        let [one, other, going] = [attachment("1", false), attachment("2", false), attachment("1", true)];
        let with = |known: Option<&VolumeAttachment>, change: fn(&mut NodeVolume)| {
            let mut node_volume = NodeVolume::default();
            if let Some(known) = known {
                node_volume.observe_attachment(Arc::new(known.clone()));
            }
            change(&mut node_volume);
            node_volume
        };
        let uncertain = |node_volume: &mut NodeVolume| {
            node_volume.uncertain = Some(Uncertain { until: Instant::now(), read_absent: false });
        };
        let (created, deleted) = (Some(Evidence::AttachmentCreated), Some(Evidence::AttachmentDeleted));
        let cases = [
            ("the driver attached it", with(Some(&one), |_| ()), Some(&one), None),
            ("created by others", with(None, |_| ()), Some(&one), created),
            (
                "created by us",
                with(None, |node_volume| node_volume.call = Some(AttachmentCall::Create)),
                Some(&one),
                None,
            ),
            ("created by us, unanswered", with(None, uncertain), Some(&one), None),
            ("replaced by others", with(Some(&one), |_| ()), Some(&other), created),
            ("being deleted by others", with(Some(&one), |_| ()), Some(&going), deleted),
            ("deleted by others", with(Some(&one), |_| ()), None, deleted),
            ("being deleted for long", with(Some(&going), |_| ()), Some(&going), None),
            ("gone at last", with(Some(&going), |_| ()), None, None),
            (
                "deletion sent",
                with(Some(&one), |node_volume| node_volume.call = Some(AttachmentCall::Delete)),
                None,
                None,
            ),
            (
                "deletion accepted",
                with(Some(&one), |node_volume| node_volume.note_deletion(&"1".into(), Deletion::Accepted)),
                Some(&going),
                None,
            ),
            (
                "deletion unanswered",
                with(Some(&one), |node_volume| {
                    node_volume.note_deletion(&"1".into(), Deletion::InDoubt { until: Instant::now() });
                }),
                None,
                None,
            ),
        ];
        for (name, node_volume, seen, expected) in cases {
            assert_eq!(evidence_of(&node_volume, seen), expected, "{name}");
        }
    }
}
