//! A volume on many nodes, and one that many nodes wait for: neither keeps others waiting, and what happens on one
//! node costs what that node costs.

use std::collections::{BTreeSet, VecDeque};

use apiserver::{
    ids::NodeName,
    kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
};
use libtest_mimic::{Failed, Trial};
use mooring::{
    attach_detach::{
        calls::{Answer, AttachmentRequest, Call},
        state::{actual::unpublishing::Sequence, desired::volume_name::VolumeId},
    },
    controller::Controller as _,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cost::{A_TURN, Cluster, Counts, id};

/// Requests for pairs under way, at most; and of those creates.
const ROOM: usize = 48;
const FOR_CREATES: usize = 42;

/// A trial that fails where an assertion does.
fn passes(run: fn()) -> impl FnOnce() -> Result<(), Failed> {
    move || {
        run();
        Ok(())
    }
}

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("fair: S40 L15 a volume on many nodes takes turns with others", passes(turns)),
        Trial::test("fair: S8 S15 what waits for room is not sent when its pod is gone", passes(too_late)),
        Trial::test("fair: C-B1 an event on one node of a shared volume costs what that node costs", shared),
        Trial::test("fair: C-B1 who comes to wait for one volume is judged, and who holds it", waiters),
        Trial::test(
            "fair: S1 L15 a volume for which many wait moves on, and no turn is long",
            passes(moves_on),
        ),
        Trial::test(
            "fair: S1 a volume that turns out to be exclusive is judged on all nodes",
            passes(exclusive_after_all),
        ),
    ]
}

fn volume(index: usize, mode: &str) -> Value {
    json!({
        "metadata": {"name": format!("pv{index}"), "uid": format!("pv{index}")},
        "spec": {"accessModes": [mode], "csi": {"driver": "d", "volumeHandle": format!("v{index}")},
            "claimRef": {"namespace": "ns", "name": format!("c{index}"), "uid": format!("c{index}")}},
    })
}

fn claim(index: usize) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": format!("c{index}"), "uid": format!("c{index}")},
        "spec": {"volumeName": format!("pv{index}")}, "status": {"phase": "Bound"},
    })
}

fn pod(index: usize, number: usize) -> Value {
    let name = format!("p{index}-{number:05}");
    json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {"nodeName": format!("n{number}"), "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": format!("c{index}")}}]},
        "status": {"phase": "Running"},
    })
}

fn node(number: usize, listed: &[usize], in_use: &[usize]) -> Value {
    let listed: Vec<_> = listed.iter().map(|index| json!({"name": id(*index), "devicePath": ""})).collect();
    json!({
        "metadata": {"name": format!("n{number}"), "uid": format!("n{number}"),
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"volumesAttached": listed, "volumesInUse": in_use.iter().map(|index| id(*index)).collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

fn attachment(index: usize, number: usize) -> Value {
    let node = NodeName::from(format!("n{number}").as_str());
    json!({
        "metadata": {"name": id(index).attachment_name(&node), "uid": format!("va{index}-{number}"), "finalizers": ["x"]},
        "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": format!("pv{index}")}},
        "status": {"attached": true},
    })
}

fn put_volume(cluster: &mut Cluster, index: usize, mode: &str) {
    cluster.put::<PersistentVolume>(volume(index, mode));
    cluster.put::<PersistentVolumeClaim>(claim(index));
}

/// One volume, attached on so many nodes and used by a pod on each.
fn spread(count: usize) -> Cluster {
    let mut cluster = Cluster::default();
    put_volume(&mut cluster, 0, "ReadWriteMany");
    // Another PersistentVolume for the same volume, which says that it is for one node. Nobody uses it.
    let mut other = volume(0, "ReadWriteOnce");
    other["metadata"]["name"] = json!("pv1");
    cluster.put::<PersistentVolume>(other);
    for number in 0..count {
        cluster.put::<Node>(node(number, &[0], &[0]));
        cluster.put::<Pod>(pod(0, number));
        cluster.put::<VolumeAttachment>(attachment(0, number));
    }
    cluster.begin();
    cluster.run();
    cluster
}

/// A volume on the first of many nodes; pods on all others wait for it, the older the smaller the number.
fn waited_for(count: usize) -> Cluster {
    let mut cluster = Cluster::default();
    put_volume(&mut cluster, 0, "ReadWriteOnce");
    cluster.put::<VolumeAttachment>(attachment(0, 0));
    cluster.put::<Node>(node(0, &[0], &[0]));
    cluster.put::<Pod>(pod(0, 0));
    for number in 1..=count {
        cluster.put::<Node>(node(number, &[], &[]));
        cluster.put::<Pod>(pod(0, number));
    }
    cluster.begin();
    cluster
}

/// For how many a certain node is the one that keeps the volume from them.
fn kept_waiting_by(cluster: &Cluster, rival: &str) -> usize {
    let waits = format!("{:?}", cluster.reports.board().waits());
    waits.matches(&format!("ConflictingNode {{ node: {:?}", NodeName::from(rival))).count()
}

/// What is asked, and its answer, when that is given.
#[derive(Default)]
struct Asked {
    creates: Vec<(VolumeId, NodeName)>,
    deletes: Vec<(VolumeId, NodeName)>,
    unanswered: VecDeque<(Sequence, Call)>,
}

impl Asked {
    fn plan(&mut self, cluster: &mut Cluster) {
        loop {
            let judged = cluster.planned()[4];
            let Some(calls) = cluster.turn() else { break };
            let judged = cluster.planned()[4] - judged;
            assert!(judged <= A_TURN, "{judged} pairs are judged in one turn");
            for (sent, call) in calls {
                match &call {
                    Call::Attachment(volume, node, AttachmentRequest::Create(_)) => {
                        self.creates.push((volume.clone(), node.clone()));
                    }
                    Call::Attachment(volume, node, AttachmentRequest::Delete(..)) => {
                        self.deletes.push((volume.clone(), node.clone()));
                    }
                    _ => {}
                }
                self.unanswered.push_back((sent, call));
            }
        }
    }

    fn pairs_under_way(&self) -> usize {
        self.unanswered.iter().filter(|(_, call)| matches!(call, Call::Attachment(..))).count()
    }

    /// Answers the first request that is meant, and plans.
    fn answer(&mut self, cluster: &mut Cluster, is_meant: impl Fn(&Call) -> bool) -> bool {
        let Some(place) = self.unanswered.iter().position(|(_, call)| is_meant(call)) else { return false };
        let (sent, call) = self.unanswered.remove(place).unwrap();
        let answer = answer(cluster, &call);
        cluster.controller.answered((sent, call), Ok(answer), cluster.now, 0.5);
        self.plan(cluster);
        true
    }
}

fn answer(cluster: &mut Cluster, call: &Call) -> Answer {
    let revision = cluster.next_revision();
    match call {
        Call::Attachment(_, _, AttachmentRequest::Create(request)) => {
            let mut object = request.body.clone().unwrap();
            object["metadata"]["uid"] = json!(revision.to_string());
            object["metadata"]["resourceVersion"] = json!(revision.to_string());
            Answer::Attachment(serde_json::from_value(object).unwrap())
        }
        Call::Attachment(..) => Answer::Gone,
        Call::PatchNode(name, _, request) => {
            let mut node = Node::clone(&cluster.objects.nodes.get(name).unwrap());
            let list = request.body.as_ref().unwrap()["status"]["volumesAttached"].clone();
            node.status.volumes_attached = serde_json::from_value(list).unwrap_or_default();
            node.metadata.resource_version.0 = revision as u64;
            Answer::Node(node)
        }
        Call::ReadNode(name) => Answer::Node(Node::clone(&cluster.objects.nodes.get(name).unwrap())),
        call @ Call::ReadOwner(..) => panic!("{call:?}"),
    }
}

fn is_of_pair(call: &Call) -> bool {
    matches!(call, Call::Attachment(..))
}

fn turns() {
    let nodes = 200;
    let mut cluster = Cluster::default();
    for number in 0..nodes {
        cluster.put::<Node>(node(number, &[], &[]));
    }
    // A volume that nobody wants any more, one that many nodes want, and some that one node wants.
    put_volume(&mut cluster, 9, "ReadWriteOnce");
    cluster.put::<VolumeAttachment>(attachment(9, 7));
    cluster.put::<Node>(node(7, &[9], &[]));
    put_volume(&mut cluster, 0, "ReadWriteMany");
    (0..nodes).for_each(|number| cluster.put::<Pod>(pod(0, number)));
    let others = 1..6;
    for index in others.clone() {
        put_volume(&mut cluster, index, "ReadWriteOnce");
    }
    cluster.begin();
    let mut asked = Asked::default();
    asked.plan(&mut cluster);
    for index in others.clone() {
        cluster.put::<Pod>(pod(index, index));
    }
    asked.plan(&mut cluster);
    assert_eq!(asked.creates.len(), FOR_CREATES, "not all at once");
    // While no create is answered, the node is written to and the detach is done.
    while asked.answer(&mut cluster, |call| !is_of_pair(call)) {}
    assert_eq!(asked.deletes.len(), 1, "a detach has room of its own");
    let judged = cluster.planned()[4];
    while asked.answer(&mut cluster, |_| true) {
        assert!(asked.pairs_under_way() <= ROOM);
    }
    let (of_others, of_one): (Vec<_>, Vec<_>) =
        asked.creates.iter().enumerate().partition(|(_, (volume, _))| *volume != id(0));
    assert_eq!(of_others.len(), others.len());
    assert!(
        of_others.iter().all(|(place, _)| *place < 2 * FOR_CREATES),
        "others have their turn: {of_others:?}"
    );
    let distinct: BTreeSet<_> = of_one.iter().map(|(_, pair)| pair).collect();
    assert_eq!((of_one.len(), distinct.len()), (nodes, nodes), "all are sent, each once");
    let judged = cluster.planned()[4] - judged;
    assert!(judged < 5 * nodes as u64, "{judged} pairs judged for {nodes} nodes");
}

fn too_late() {
    let nodes = 100;
    let mut cluster = Cluster::default();
    put_volume(&mut cluster, 0, "ReadWriteMany");
    for number in 0..nodes {
        cluster.put::<Node>(node(number, &[], &[]));
        cluster.put::<Pod>(pod(0, number));
    }
    cluster.begin();
    let mut asked = Asked::default();
    asked.plan(&mut cluster);
    let sent: BTreeSet<_> = asked.creates.iter().map(|(_, node)| node.to_string()).collect();
    let waiting: Vec<_> = (0..nodes).filter(|number| !sent.contains(&format!("n{number}"))).collect();
    assert_eq!(waiting.len(), nodes - FOR_CREATES);
    waiting[..10].iter().for_each(|number| cluster.end::<Pod>(pod(0, *number)));
    while asked.answer(&mut cluster, |_| true) {}
    let sent: BTreeSet<_> = asked.creates.iter().map(|(_, node)| node.to_string()).collect();
    assert_eq!((asked.creates.len(), sent.len()), (nodes - 10, nodes - 10));
    assert!(waiting[..10].iter().all(|number| !sent.contains(&format!("n{number}"))));
}

/// What each event may cost on a volume that is attached to any number of nodes.
const ON_ONE_NODE: [(&str, u64); 6] = [
    ("a pod goes", 1),
    ("its kubelet reports the volume unmounted", 1),
    ("another pod comes to the node", 1),
    ("a node is no longer Ready", 1),
    ("a pod comes to another node", 1),
    ("its attachment is there, attached", 1),
];

fn events(count: usize) -> Vec<Counts> {
    let mut cluster = spread(count);
    cluster.put::<Node>(node(count, &[], &[]));
    cluster.cost();
    let mut costs = Vec::new();
    cluster.end::<Pod>(pod(0, 3));
    costs.push(cluster.cost());
    cluster.put::<Node>(node(3, &[0], &[]));
    costs.push(cluster.cost());
    cluster.put::<Pod>(pod(0, 3));
    costs.push(cluster.cost());
    let mut unready = node(5, &[0], &[0]);
    unready["status"]["conditions"][0]["status"] = json!("Unknown");
    cluster.put::<Node>(unready);
    costs.push(cluster.cost());
    cluster.put::<Pod>(pod(0, count));
    costs.push(cluster.cost());
    cluster.put::<VolumeAttachment>(attachment(0, count));
    costs.push(cluster.cost());
    costs
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn shared() -> Result<(), Failed> {
    let (small, large) = (events(50), events(5_000));
    println!(
        "planned for one volume on 50 and on 5 000 nodes: [pods, attachments, names, volumes, pairs, nodes, holders]"
    );
    for ((event, most), (small, large)) in ON_ONE_NODE.iter().zip(small.iter().zip(&large)) {
        println!("  {event:40} {small:?} {large:?}");
        if small != large || large[4] > *most || large[6] > 0 {
            return Err(format!("{event}: {most} pairs at most, planned {small:?} and {large:?}").into());
        }
    }
    Ok(())
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn waiters() -> Result<(), Failed> {
    for count in [50, 5_000] {
        let mut cluster = waited_for(count);
        Asked::default().plan(&mut cluster);
        assert_eq!(kept_waiting_by(&cluster, "n0"), count);
        cluster.put::<Node>(node(count + 1, &[], &[]));
        cluster.put::<Pod>(pod(0, count + 1));
        let began = Instant::now();
        let [_, _, _, volumes, pairs, _, holders] = cluster.cost();
        println!(
            "{count} wait, and one more: {volumes} plan, {pairs} pairs judged, {holders} looked at for holders, {:?}",
            began.elapsed()
        );
        // At each of all it is looked whether it holds the volume, which is no judgement.
        if volumes != 1 || pairs != 2 || holders != count as u64 + 2 {
            return Err(format!("{count} wait: {volumes} plans, {pairs} pairs, {holders} holders").into());
        }
    }
    Ok(())
}

/// The holder goes: the next has the volume, and all others hear of it in turns.
fn moves_on() {
    let count = 1_000;
    let mut cluster = waited_for(count);
    let mut asked = Asked::default();
    asked.plan(&mut cluster);
    assert_eq!(kept_waiting_by(&cluster, "n0"), count);
    cluster.end::<Pod>(pod(0, 0));
    cluster.put::<Node>(node(0, &[0], &[]));
    asked.plan(&mut cluster);
    while asked.answer(&mut cluster, |_| true) {}
    assert_eq!((asked.creates.len(), asked.deletes.len()), (0, 1), "it is still there");
    cluster.end::<VolumeAttachment>(attachment(0, 0));
    asked.plan(&mut cluster);
    while asked.answer(&mut cluster, |_| true) {}
    assert_eq!(asked.creates, [(id(0), NodeName::from("n1"))], "S1: one of them, the oldest");
    assert_eq!(kept_waiting_by(&cluster, "n1"), count - 1);
    // The next in line is gone before it is its turn.
    cluster.end::<Pod>(pod(0, 2));
    let before = cluster.planned()[4];
    asked.plan(&mut cluster);
    let judged = cluster.planned()[4] - before;
    assert!(judged <= 2, "{judged} are judged when one ceases to wait");
    // A sweep looks at all, once. That each has waited for long enough to be told more by then costs no look.
    cluster.now += std::time::Duration::from_mins(5);
    let before = cluster.planned()[4];
    asked.plan(&mut cluster);
    let judged = cluster.planned()[4] - before;
    assert!((1_000..1_100).contains(&judged), "{judged}");
    assert_eq!(asked.creates.len(), 1);
}

fn exclusive_after_all() {
    // The volume is made anew, for one node only, while it is attached to three; or somebody attaches it by another
    // PersistentVolume that says so.
    let made_anew = |cluster: &mut Cluster| cluster.put::<PersistentVolume>(volume(0, "ReadWriteOnce"));
    let by_another = |cluster: &mut Cluster| {
        let mut theirs = attachment(0, 2);
        theirs["metadata"]["name"] = json!("theirs");
        theirs["spec"]["source"]["persistentVolumeName"] = json!("pv1");
        cluster.put::<VolumeAttachment>(theirs);
    };
    for change in [&made_anew as &dyn Fn(&mut Cluster), &by_another] {
        let mut cluster = spread(3);
        cluster.put::<Node>(node(3, &[], &[]));
        assert_eq!(cluster.cost()[4], 0);
        change(&mut cluster);
        cluster.cost();
        cluster.put::<Pod>(pod(0, 3));
        let mut asked = Asked::default();
        asked.plan(&mut cluster);
        assert_eq!(asked.creates, []);
        let before = cluster.planned()[4];
        cluster.end::<Pod>(pod(0, 1));
        asked.plan(&mut cluster);
        assert!(cluster.planned()[4] - before >= 4, "all are judged");
    }
}
