//! The turn of a node: when its list is written, and when it is read.

use std::{sync::Arc, time::Duration};

use apiserver::{call::CallError, ids::DriverName, kinds::AttachedVolume, tables::Objects};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    attach_detach::{
        calls::Answer,
        clock::Clock,
        dispatcher::{NODE_CALLS, Pace},
        options::AttachDetachOptions,
        state::actual::ReportAsAttached,
    },
    controller::{Controller as _, in_doubt::InDoubt},
};

fn volume(handle: &str) -> VolumeId {
    VolumeId::csi(&DriverName::from("d"), handle)
}

/// A controller that leads, and knows one node that lists one volume.
pub fn controller(now: Instant) -> (AttachDetach, NodeName) {
    let objects = Arc::new(Objects::default());
    let node = json!({
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"},
        "status": {"volumesAttached": [{"name": volume("old").as_str(), "devicePath": ""}]},
    });
    objects.apply::<Node>(serde_json::from_value(node).unwrap());
    let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
    let mut controller = AttachDetach::new(objects, AttachDetachOptions::default(), clock);
    controller.read_tables(now);
    controller.queue.clear();
    controller.leads = true;
    (controller, NodeName::from("n1"))
}

/// Lists of the patches that the node gets at each of these milliseconds, `say` having its way before.
fn lists(say: impl Fn(u64, &mut AttachDetach), millis: &[u64]) -> Vec<(u64, usize)> {
    let start = Instant::now();
    let (mut controller, node) = controller(start);
    let mut lists = Vec::new();
    for at in millis {
        say(*at, &mut controller);
        controller.plan_node(&node, start + Duration::from_millis(*at));
        for (_, call) in controller.dispatcher.take() {
            let Call::PatchNode(_, _, request) = call else { continue };
            let list = &request.body.unwrap()["status"]["volumesAttached"];
            lists.push((*at, list.as_array().map_or(0, Vec::len)));
        }
    }
    lists
}

fn publish(controller: &mut AttachDetach, handle: &str, report_as_attached: ReportAsAttached) {
    controller.actual.node_volume_mut(&volume(handle), &NodeName::from("n1")).report_as_attached =
        report_as_attached;
}

fn on_its_way(controller: &mut AttachDetach, handle: &str, call: Option<AttachmentCall>) {
    controller.actual.node_volume_mut(&volume(handle), &NodeName::from("n1")).call = call;
}

#[test]
fn l4_a_lone_volume_is_listed_at_once() {
    let alone = lists(|_, controller| publish(controller, "a", ReportAsAttached::Yes), &[0, 1]);
    assert_eq!(alone, [(0, 2)]);
}

#[test]
fn volumes_on_their_way_share_a_patch() {
    let attach = |at: u64, controller: &mut AttachDetach| {
        let is_last = at == 9;
        publish(controller, &at.to_string(), ReportAsAttached::Yes);
        on_its_way(controller, "last", (!is_last).then_some(AttachmentCall::Create));
    };
    assert_eq!(lists(attach, &[0, 3, 6, 9]), [(9, 5)]);
}

#[test]
fn l4_l15_what_takes_long_keeps_others_waiting_for_a_moment_only() {
    let attach = |_: u64, controller: &mut AttachDetach| {
        publish(controller, "a", ReportAsAttached::Yes);
        on_its_way(controller, "slow", Some(AttachmentCall::Create));
    };
    assert_eq!(lists(attach, &[0, 10, 24, 25, 40]), [(25, 2)]);
}

#[test]
fn a_detach_waits_for_nobody() {
    let attach_and_detach = |at: u64, controller: &mut AttachDetach| {
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
fn patches(report_as_attached: ReportAsAttached) -> Vec<u64> {
    let start = Instant::now();
    let (mut controller, node) = controller(start);
    let moments = || (0..=1_000).step_by(50);
    if report_as_attached == ReportAsAttached::No {
        let mut object = Node::clone(&controller.objects.nodes.get(&node).unwrap());
        object.metadata.resource_version.0 += 1;
        let name = |at: u64| volume(&at.to_string()).as_str().to_owned();
        let entry = |at| AttachedVolume { name: name(at).into(), ..Default::default() };
        object.status.volumes_attached.extend(moments().map(entry));
        controller.observe_node(&node, Some(&Arc::new(object.clone())), start);
        controller.objects.apply(object);
    }
    let mut sent_at = Vec::new();
    for at in moments() {
        publish(&mut controller, &at.to_string(), report_as_attached);
        controller.dispatcher.pace = Pace::default();
        (0..100).for_each(|_| controller.dispatcher.pace.note(Duration::from_millis(30)));
        let now = start + Duration::from_millis(at);
        controller.plan_node(&node, now);
        for (sent, call) in controller.dispatcher.take() {
            let Call::PatchNode(_, _, request) = &call else { panic!("{call:?}") };
            sent_at.push(at);
            let mut answer = Node::clone(&controller.objects.nodes.get(&node).unwrap());
            answer.metadata.resource_version.0 += 1;
            let list = request.body.as_ref().unwrap()["status"]["volumesAttached"].clone();
            answer.status.volumes_attached = serde_json::from_value(list).unwrap();
            let result = Ok(Answer::Node(answer));
            controller.answered((sent, call), result, now, 0.5);
        }
    }
    sent_at
}

#[test]
fn under_load_what_is_attached_to_a_node_shares_patches_and_a_detach_waits_for_none() {
    assert_eq!(patches(ReportAsAttached::Yes), [0, 400, 800]);
    assert_eq!(patches(ReportAsAttached::No).len(), 21);
}

#[test]
fn s2_a_read_settles_a_patch_only_if_that_could_no_longer_land_when_it_was_sent() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    for (asked, is_settled) in [(9, false), (10, true)] {
        let (mut controller, node) = controller(start);
        let object = controller.objects.nodes.get(&node).unwrap();
        let revision = object.metadata.resource_version;
        let requests = &mut controller.actual.node_mut(&node).requests;
        requests.is_outdated = true;
        requests.in_doubt = Some(InDoubt { revision, until: after(10) });
        controller.plan_node(&node, after(asked));
        let (sent, call) = controller.dispatcher.take().pop().expect("a read");
        let result = Ok(Answer::Node((*object).clone()));
        controller.answered((sent, call), result, after(12), 0.5);
        assert_eq!(
            controller.actual.node_mut(&node).requests.is_settled(),
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
        controller.actual.node_mut(&node).requests.is_outdated = true;
        controller.queue.add_node(node);
    }
    assert_eq!(controller.plan(now).calls.len(), NODE_CALLS);
    assert_eq!(controller.dispatcher.in_flight(), NODE_CALLS);
}

#[test]
fn s40_patches_that_are_never_answered_come_at_longer_intervals_though_reads_between_them_are_answered() {
    let mut now = Instant::now();
    let (mut controller, node) = controller(now);
    publish(&mut controller, "a", ReportAsAttached::Yes);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        now += Duration::from_hours(1);
        controller.plan_node(&node, now);
        let (sent, call) = controller.dispatcher.take().pop().expect("a request");
        let is_patch = matches!(call, Call::PatchNode(..));
        let object = controller.objects.nodes.get(&node).unwrap();
        let silence = Err(CallError::Unknown("cut".to_owned()));
        let result = if is_patch { silence } else { Ok(Answer::Node((*object).clone())) };
        controller.answered((sent, call), result, now, 0.5);
        if is_patch {
            let due = controller.actual.node(&node).and_then(|state| state.requests.retry.at());
            pauses.push((due.unwrap() - now).as_secs_f64());
        }
    }
    assert_eq!(pauses.len(), 4, "{pauses:?}");
    assert!(pauses.windows(2).all(|node_volume| node_volume[1] >= node_volume[0] * 1.5 - 1e-6), "{pauses:?}");
}

#[test]
fn s39_a_node_that_goes_while_its_patch_is_under_way_is_read_once_and_forgotten() {
    let now = Instant::now();
    for error in [CallError::Unknown("cut".to_owned()), CallError::Conflict("modified".to_owned())] {
        let (mut controller, node) = controller(now);
        publish(&mut controller, "old", ReportAsAttached::No);
        controller.plan_node(&node, now);
        let patch = controller.dispatcher.take().pop().expect("a patch");
        controller.actual.observe_node(&node, None, |_| false, Timestamp::UNIX_EPOCH);
        controller.actual.prune(&volume("old"), &[node.clone()].into(), |_| false);
        let answer = |controller: &mut AttachDetach, (sent, call), error| {
            controller.answered((sent, call), Err(error), now, 0.5);
            controller.plan_node(&node, now + Duration::from_hours(1));
            controller.dispatcher.take().pop()
        };
        let read = answer(&mut controller, patch, error);
        if let Some(read) = read {
            let gone = CallError::NotFound(node.to_string());
            assert!(answer(&mut controller, read, gone).is_none(), "it is not read again");
        }
        assert!(controller.actual.node(&node).is_none());
    }
}
