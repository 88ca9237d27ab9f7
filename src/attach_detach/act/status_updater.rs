//! Status updater: writes `volumesAttached` of the nodes that are dirty, and reads them live.
//!
//! In: a node marked dirty. Out: [what is sent to it next](node_list::next), at most one request at a time, so that
//! answers come in the order of requests and no older list is ever sent after a newer one.

use std::time::Duration;

use tokio::time::Instant;

use super::calls::Call;
use crate::{
    attach_detach::{
        controller::Controller,
        decide::{
            node_list::{self, NodeStep, NodeView},
            scope::Scope,
        },
        guard::second_writer::Target,
        queue::Key,
        tell::{facts::Fact, metrics::Planned},
    },
    kube_api::ids::NodeName,
};

impl Controller {
    /// How far apart the status patches of one node are at present.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.dispatcher.window()
    }

    /// Looks at a node, and sends what it needs. Returns how many volumes on nodes were judged for that.
    pub(in crate::attach_detach) fn reconcile_node(&mut self, name: &NodeName, now: Instant) -> usize {
        self.recorder.planned(Planned::Node, 1);
        let mut judged = 0;
        // Planned here and now: the volumes' turn is over, and nothing else may happen for a long time.
        let changed = self.caches.catch_up(name, now);
        self.note_learnt(now);
        let believed = self.caches.believe_node(name, &self.options.force, now);
        for volume in changed.into_iter().chain(believed) {
            judged += self.reconcile_volume(&volume, Scope::of(name), now);
        }
        self.ask_node(name, now);
        judged
    }

    /// Sends what the node needs: its list, or a live read.
    fn ask_node(&mut self, name: &NodeName, now: Instant) {
        let target = Target::Node(name.clone());
        let state = self.caches.actual.node(name);
        if state.is_none_or(|state| state.node.is_none()) {
            // Who wrote to it can be read no more.
            self.second_writer.gone(&target);
        }
        let Some(state) = state else { return };
        let step = node_list::next(
            &NodeView {
                state,
                volumes: &self.caches.actual.volumes_on(name).collect::<Vec<_>>(),
                is_stood_off: self.stand_off(now).is_some_and(|why| why.holds(Some(state))),
                asks_owner: self.second_writer.has_to_read(&target),
                window: self.dispatcher.window(),
            },
            now,
        );
        let node = state.node.clone();
        let requests = &mut self.caches.actual.node_mut(name).requests;
        let call = match (step, node) {
            (NodeStep::UnderWay, _) | (NodeStep::Patch(_), None) => return,
            (NodeStep::Wait(until), _) => {
                requests.nothing_pends();
                if let Some(at) = until {
                    self.caches.queue.add_at(at, Key::Node(name.clone()));
                }
                return;
            }
            (NodeStep::Gather { since, due }, _) => {
                // The pace moves it with every answer.
                if requests.gather(since, due, now) {
                    self.caches.queue.add_at(due, Key::Node(name.clone()));
                }
                return;
            }
            (NodeStep::ReadOwner, _) => {
                let Some((target, uid)) = self.second_writer.take_read(|known| *known == target) else {
                    return;
                };
                requests.ask();
                Call::ReadOwner(target, uid)
            }
            (NodeStep::Read, _) => {
                requests.read();
                Call::ReadNode(name.clone())
            }
            (NodeStep::Patch(change), Some(node)) => {
                let request = node_list::patch(&node, &change.list);
                requests.patch(node.metadata.uid.clone(), change.list, now);
                self.caches.actual.note_listing(name);
                self.recorder.report(Fact::Patched(change.volumes));
                Call::PatchNode(name.clone(), node.metadata.resource_version, request)
            }
        };
        self.dispatcher.send(call, now);
    }
}

#[cfg(test)]
pub(in crate::attach_detach) mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::super::{
        calls::{Answer, Outcome},
        dispatcher::NODE_CALLS,
        pace::Pace,
    };
    use super::*;
    use crate::{
        attach_detach::{
            actual::state::{AttachmentCall, ReportAsAttached},
            clock::Clock,
            desired::volume_name::VolumeId,
            options::AttachDetachOptions,
        },
        controller::in_doubt::InDoubt,
        kube_api::{
            call::CallError,
            ids::DriverName,
            kinds::{AttachedVolume, Node},
        },
        state::Objects,
    };

    fn volume(handle: &str) -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), handle)
    }

    /// A controller that leads, and knows one node that lists one volume.
    pub fn controller(now: Instant) -> (Controller, NodeName) {
        let objects = Arc::new(Objects::default());
        let node = json!({
            "metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"},
            "status": {"volumesAttached": [{"name": volume("old").as_str(), "devicePath": ""}]},
        });
        objects.apply::<Node>(serde_json::from_value(node).unwrap());
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut controller = Controller::new(objects, AttachDetachOptions::default(), clock);
        controller.read_tables(now);
        controller.caches.queue.clear();
        controller.leads = true;
        (controller, NodeName::from("n1"))
    }

    /// Lists of the patches that the node gets at each of these milliseconds, `say` having its way before.
    fn lists(say: impl Fn(u64, &mut Controller), millis: &[u64]) -> Vec<(u64, usize)> {
        let start = Instant::now();
        let (mut controller, node) = controller(start);
        let mut lists = Vec::new();
        for at in millis {
            say(*at, &mut controller);
            controller.reconcile_node(&node, start + Duration::from_millis(*at));
            for (_, call) in controller.dispatcher.take() {
                let Call::PatchNode(_, _, request) = call else { continue };
                let list = &request.body.unwrap()["status"]["volumesAttached"];
                lists.push((*at, list.as_array().map_or(0, Vec::len)));
            }
        }
        lists
    }

    fn publish(controller: &mut Controller, handle: &str, report_as_attached: ReportAsAttached) {
        controller.caches.actual.node_volume_mut(&volume(handle), &NodeName::from("n1")).report_as_attached =
            report_as_attached;
    }

    fn on_its_way(controller: &mut Controller, handle: &str, call: Option<AttachmentCall>) {
        controller.caches.actual.node_volume_mut(&volume(handle), &NodeName::from("n1")).call = call;
    }

    #[test]
    fn l4_a_lone_volume_is_listed_at_once() {
        let alone = lists(|_, controller| publish(controller, "a", ReportAsAttached::Yes), &[0, 1]);
        assert_eq!(alone, [(0, 2)]);
    }

    #[test]
    fn volumes_on_their_way_share_a_patch() {
        let attach = |at: u64, controller: &mut Controller| {
            let is_last = at == 9;
            publish(controller, &at.to_string(), ReportAsAttached::Yes);
            on_its_way(controller, "last", (!is_last).then_some(AttachmentCall::Create));
        };
        assert_eq!(lists(attach, &[0, 3, 6, 9]), [(9, 5)]);
    }

    #[test]
    fn l4_l15_what_takes_long_keeps_others_waiting_for_a_moment_only() {
        let attach = |_: u64, controller: &mut Controller| {
            publish(controller, "a", ReportAsAttached::Yes);
            on_its_way(controller, "slow", Some(AttachmentCall::Create));
        };
        assert_eq!(lists(attach, &[0, 10, 24, 25, 40]), [(25, 2)]);
    }

    #[test]
    fn a_detach_waits_for_nobody() {
        let attach_and_detach = |at: u64, controller: &mut Controller| {
            publish(controller, "a", ReportAsAttached::Yes);
            on_its_way(controller, "slow", Some(AttachmentCall::Create));
            if at == 5 {
                publish(controller, "old", ReportAsAttached::No);
            }
        };
        assert_eq!(lists(attach_and_detach, &[0, 4, 5]), [(5, 1)]);
    }

    /// When patches are sent while the volumes of a node change one after the other and the server is busy. Each
    /// patch is answered at once.
    fn patches(report_as_attached: ReportAsAttached, put_back: bool) -> Vec<u64> {
        let start = Instant::now();
        let (mut controller, node) = controller(start);
        let moments = || (0..=1_000).step_by(50);
        if report_as_attached == ReportAsAttached::No {
            let mut object = Node::clone(&controller.caches.objects.nodes.get(&node).unwrap());
            object.metadata.resource_version.0 += 1;
            let name = |at: u64| volume(&at.to_string()).as_str().to_owned();
            let entry = |at| AttachedVolume { name: name(at).into(), ..Default::default() };
            object.status.volumes_attached.extend(moments().map(entry));
            controller.caches.observe_node(&node, Some(&Arc::new(object.clone())), start);
            controller.caches.objects.apply(object);
        }
        let mut sent_at = Vec::new();
        for at in moments() {
            let handle = at.to_string();
            publish(&mut controller, &handle, report_as_attached);
            controller.caches.actual.node_volume_mut(&volume(&handle), &node).put_back = put_back;
            controller.dispatcher.pace = Pace::default();
            (0..100).for_each(|_| controller.dispatcher.pace.note(Duration::from_millis(30)));
            let now = start + Duration::from_millis(at);
            controller.reconcile_node(&node, now);
            for (sent, call) in controller.dispatcher.take() {
                let Call::PatchNode(_, _, request) = &call else { panic!("{call:?}") };
                sent_at.push(at);
                let mut answer = Node::clone(&controller.caches.objects.nodes.get(&node).unwrap());
                answer.metadata.resource_version.0 += 1;
                let list = request.body.as_ref().unwrap()["status"]["volumesAttached"].clone();
                answer.status.volumes_attached = serde_json::from_value(list).unwrap();
                let result = Ok(Answer::Node(answer));
                controller.take_outcome(Outcome { call, sent, result }, now, 0.5);
            }
            controller.caches.actual.node_volume_mut(&volume(&handle), &node).put_back = false;
        }
        sent_at
    }

    #[test]
    fn under_load_the_changes_of_a_node_share_patches() {
        assert_eq!(patches(ReportAsAttached::Yes, false), [0, 400, 800]);
        assert_eq!(patches(ReportAsAttached::No, false), [0, 400, 800]);
    }

    #[test]
    fn s2_what_is_put_back_waits_for_nobody_under_load() {
        assert_eq!(patches(ReportAsAttached::Yes, true).len(), 21);
    }

    #[test]
    fn s2_a_read_settles_a_patch_only_if_that_could_no_longer_land_when_it_was_sent() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (asked, is_settled) in [(9, false), (10, true)] {
            let (mut controller, node) = controller(start);
            let object = controller.caches.objects.nodes.get(&node).unwrap();
            let revision = object.metadata.resource_version;
            let requests = &mut controller.caches.actual.node_mut(&node).requests;
            requests.outdate();
            requests.note_in_doubt(InDoubt { revision, until: after(10) });
            controller.reconcile_node(&node, after(asked));
            let (sent, call) = controller.dispatcher.take().pop().expect("a read");
            let result = Ok(Answer::Node((*object).clone()));
            controller.take_outcome(Outcome { call, sent, result }, after(12), 0.5);
            assert_eq!(
                controller.caches.actual.node_mut(&node).requests.is_settled(),
                is_settled,
                "sent after {asked} s"
            );
        }
    }

    #[test]
    fn s40_no_more_requests_for_nodes_are_under_way_than_there_may_be() {
        let now = Instant::now();
        let (mut controller, _) = controller(now);
        for number in 0..=NODE_CALLS {
            let node = NodeName::from(format!("node{number}").as_str());
            controller.caches.actual.node_mut(&node).requests.outdate();
            controller.caches.queue.add_node(node);
        }
        assert_eq!(controller.reconcile(now).calls.len(), NODE_CALLS);
        assert_eq!(controller.in_flight(), NODE_CALLS);
    }

    #[test]
    fn s40_patches_that_are_never_answered_come_at_longer_intervals_though_reads_between_them_are_answered() {
        let mut now = Instant::now();
        let (mut controller, node) = controller(now);
        publish(&mut controller, "a", ReportAsAttached::Yes);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            now += Duration::from_hours(1);
            controller.reconcile_node(&node, now);
            let (sent, call) = controller.dispatcher.take().pop().expect("a request");
            let is_patch = matches!(call, Call::PatchNode(..));
            let object = controller.caches.objects.nodes.get(&node).unwrap();
            let silence = Err(CallError::Unknown("cut".to_owned()));
            let result = if is_patch { silence } else { Ok(Answer::Node((*object).clone())) };
            controller.take_outcome(Outcome { call, sent, result }, now, 0.5);
            if is_patch {
                let due = controller.caches.actual.node(&node).and_then(|state| state.requests.retry().at());
                pauses.push((due.unwrap() - now).as_secs_f64());
            }
        }
        assert_eq!(pauses.len(), 4, "{pauses:?}");
        assert!(
            pauses.windows(2).all(|node_volume| node_volume[1] >= node_volume[0] * 1.5 - 1e-6),
            "{pauses:?}"
        );
    }

    #[test]
    fn s39_a_node_that_goes_while_its_patch_is_under_way_is_read_once_and_forgotten() {
        let now = Instant::now();
        for error in [CallError::Unknown("cut".to_owned()), CallError::Conflict("modified".to_owned())] {
            let (mut controller, node) = controller(now);
            publish(&mut controller, "old", ReportAsAttached::No);
            controller.reconcile_node(&node, now);
            let patch = controller.dispatcher.take().pop().expect("a patch");
            controller.caches.actual.observe_node(&node, None, |_| false, Timestamp::UNIX_EPOCH);
            controller.caches.actual.prune(&volume("old"), &Scope::All, |_| false);
            let answer = |controller: &mut Controller, (sent, call), error| {
                controller.take_outcome(Outcome { call, sent, result: Err(error) }, now, 0.5);
                controller.reconcile_node(&node, now + Duration::from_hours(1));
                controller.dispatcher.take().pop()
            };
            let read = answer(&mut controller, patch, error);
            if let Some(read) = read {
                let gone = CallError::NotFound(node.to_string());
                assert!(answer(&mut controller, read, gone).is_none(), "it is not read again");
            }
            assert!(controller.caches.actual.node(&node).is_none());
        }
    }
}
