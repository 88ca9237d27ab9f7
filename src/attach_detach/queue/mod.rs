//! Work queue: which volumes and nodes are to be looked at, in which order, and when (client-go: `workqueue`).
//!
//! In: keys, each to be looked at now or at a time, and for how many there is room. Out: the next of them. What has
//! begun goes before what is new, so that a volume that has become attached is published although a thousand others have been
//! asked for meanwhile. From time to time, and when an alarm begins or ends, it adds all keys
//! there are, some at a time ([`survey`]).

mod lane;
mod survey;

use std::{collections::BTreeSet, time::Duration};

use apiserver::ids::{DriverName, NodeName, Uid};
use tokio::time::Instant;

use super::{
    dispatcher::Room,
    guard::second_writer_role::ActTarget,
    state::{actual::ActualState, desired::volume_name::VolumeId},
};
use crate::{controller::queue::Queue, metrics::QueueCounts};
use lane::VolumeLane;
pub use survey::AT_ONCE;
use survey::Survey;

/// What is looked at when it is time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    NodeVolume(VolumeId, NodeName),
    Node(NodeName),
    Driver(DriverName),
    /// Who made the object of this UID, which was asked and not answered.
    Owner(ActTarget, Uid),
}

/// What is to be looked at, now and later.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    /// Volumes with which something has begun, and those that are new. A volume, or a node of one that is shared, is in one
    /// of them.
    begun: VolumeLane,
    new: VolumeLane,
    nodes: Queue<NodeName>,
    later: BTreeSet<(Instant, Key)>,
    /// What is yet to be added of all there is.
    survey: Survey,
    sweep_period: Option<Duration>,
    /// When everything is looked at again although nothing happened.
    sweep_at: Option<Instant>,
    /// Set while there is more to plan than was planned at once.
    goes_on_at: Option<Instant>,
}

impl WorkQueue {
    /// One that looks at everything once in a while.
    pub fn sweeping(sweep_period: Option<Duration>) -> Self {
        Self { sweep_period, ..Self::default() }
    }

    /// It is that time, for what is added and taken from now on.
    pub fn at(&mut self, now: Instant) {
        self.begun.volumes.at(now);
        self.new.volumes.at(now);
        self.nodes.at(now);
    }

    /// Forgets what is to be looked at now, and what was counted of it.
    pub fn clear(&mut self) {
        (self.begun, self.new, self.nodes) = (VolumeLane::default(), VolumeLane::default(), Queue::default());
    }

    /// What there was to look at since this was last asked: volumes, and nodes.
    pub fn take_counts(&mut self) -> [QueueCounts; 2] {
        let (mut volumes, mut new) = (self.begun.volumes.take_counts(), self.new.volumes.take_counts());
        volumes.adds += new.adds;
        volumes.waits.append(&mut new.waits);
        volumes.depth += new.depth;
        [volumes, self.nodes.take_counts()]
    }

    /// Adds a volume on nodes where something has begun with it.
    pub fn add(&mut self, volume: VolumeId, nodes: BTreeSet<NodeName>) {
        self.new.forget(&volume, &nodes);
        self.begun.push(volume, nodes);
    }

    /// Adds a volume on nodes where nothing may have begun with it yet.
    pub fn add_new(&mut self, volume: VolumeId, mut nodes: BTreeSet<NodeName>) {
        if let Some(begun) = self.begun.nodes.get(&volume) {
            nodes.retain(|node| !begun.contains(node));
        }
        if !nodes.is_empty() {
            self.new.push(volume, nodes);
        }
    }

    /// Adds volumes with which something happened on a node.
    pub fn add_on(&mut self, node: &NodeName, volumes: impl IntoIterator<Item = VolumeId>) {
        for volume in volumes {
            self.add(volume, [node.clone()].into());
        }
    }

    /// Adds a node.
    pub fn add_node(&mut self, node: NodeName) {
        self.nodes.push(node);
    }

    /// Adds a key when it is that time.
    pub fn add_at(&mut self, at: Instant, key: Key) {
        self.later.insert((at, key));
    }

    /// Adds what is due, up to a key that the caller has to look at.
    pub fn add_due(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            match self.later.pop_first()? {
                (_, Key::NodeVolume(volume, node)) => self.add_on(&node, [volume]),
                (_, Key::Node(node)) => self.add_node(node),
                (_, key @ (Key::Driver(_) | Key::Owner(..))) => return Some(key),
            }
        }
        None
    }

    /// Takes the volume whose turn it is, with as many nodes as there is room, for each may need a request.
    pub fn get(&mut self, room: Room) -> Option<(VolumeId, BTreeSet<NodeName>)> {
        let for_begun = self.room_for_begun(room);
        let begun = if for_begun > 0 { self.begun.pop(for_begun) } else { None };
        if begun.is_some() || room.new_volumes == 0 { begun } else { self.new.pop(room.new_volumes) }
    }

    /// For how many of those begun there is room.
    pub fn room_for_begun(&self, room: Room) -> usize {
        if self.new.volumes.is_empty() { room.volumes } else { room.beside_new }
    }

    /// Takes the node whose turn it is.
    pub fn get_node(&mut self, room: Room) -> Option<NodeName> {
        if room.nodes > 0 { self.nodes.pop() } else { None }
    }

    /// Takes a volume out of turn on these nodes.
    pub fn forget(&mut self, volume: &VolumeId, nodes: &BTreeSet<NodeName>) {
        self.begun.forget(volume, nodes);
        self.new.forget(volume, nodes);
    }

    /// A turn is over. What it has left, and there is room for, has another one at once.
    pub fn end_turn(&mut self, room: Room, now: Instant) {
        let has_volumes = (!self.begun.volumes.is_empty() && self.room_for_begun(room) > 0)
            || (!self.new.volumes.is_empty() && room.new_volumes > 0);
        let has_nodes = !self.nodes.is_empty() && room.nodes > 0;
        self.goes_on_at = (has_volumes || has_nodes || self.has_more_to_survey()).then_some(now);
    }

    /// When the next turn is although nothing happened.
    pub fn next_at(&self) -> Option<Instant> {
        let due = self.later.first().map(|(at, _)| *at);
        due.into_iter().chain(self.sweep_at).chain(self.goes_on_at).min()
    }

    /// Begins to look at all nodes and their volumes if it is time. Nothing depends on it: it is there for the change of one that
    /// some mistake of ours overlooked, and while there is none it sends nothing (S39).
    pub fn sweep(&mut self, now: Instant) {
        let Some(period) = self.sweep_period else { return };
        let due = *self.sweep_at.get_or_insert(now + period);
        if now < due {
            return;
        }
        self.sweep_at = Some(now + period);
        self.survey.begin();
    }

    /// Begins to look at everything, which an alarm may have held up.
    pub fn add_all(&mut self) {
        self.survey.begin();
    }

    /// Takes some nodes of those that are yet to be looked at, unless volumes of some are left: there was no room for them.
    pub fn survey(&mut self, actual: &ActualState) -> Vec<NodeName> {
        if self.has_more_to_survey() { self.survey.next(actual) } else { Vec::new() }
    }

    /// Whether there is more to look at, and what was added before is planned.
    fn has_more_to_survey(&self) -> bool {
        !self.survey.is_over() && self.begun.volumes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    fn volume(number: u32) -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), &number.to_string())
    }

    fn nodes(names: &str) -> BTreeSet<NodeName> {
        names.split(' ').map(NodeName::from).collect()
    }

    fn order(queue: &mut WorkQueue, most: usize) -> Vec<(VolumeId, BTreeSet<NodeName>)> {
        iter::from_fn(|| queue.get(Room { volumes: most, beside_new: most, new_volumes: most, nodes: 0 }))
            .collect()
    }

    fn begin(queue: &mut WorkQueue, numbers: &[u32]) {
        for number in numbers {
            queue.add(volume(*number), nodes("a"));
        }
    }

    fn come(queue: &mut WorkQueue, numbers: &[u32]) {
        for number in numbers {
            queue.add_new(volume(*number), nodes("a"));
        }
    }

    fn on_one(numbers: &[u32]) -> Vec<(VolumeId, BTreeSet<NodeName>)> {
        numbers.iter().map(|number| (volume(*number), nodes("a"))).collect()
    }

    #[test]
    fn l15_what_has_begun_goes_before_what_is_new_and_each_in_its_order() {
        let mut queue = WorkQueue::default();
        come(&mut queue, &[1, 2, 3, 1]);
        begin(&mut queue, &[9, 8, 9, 2]);
        assert_eq!(order(&mut queue, 1), on_one(&[9, 8, 2, 1, 3]));
        // What was new and has begun keeps no second place, in either order.
        come(&mut queue, &[1, 2, 3]);
        begin(&mut queue, &[3, 1]);
        come(&mut queue, &[3, 4]);
        assert_eq!(order(&mut queue, 1), on_one(&[3, 1, 2, 4]));
    }

    #[test]
    fn l15_a_volume_has_a_turn_for_so_many_nodes_and_then_others_have_theirs() {
        let mut queue = WorkQueue::default();
        queue.add_new(volume(1), nodes("a b c d e"));
        queue.add_new(volume(2), nodes("g"));
        queue.add_new(volume(1), nodes("f"));
        let turn = |number, names: &str| (volume(number), nodes(names));
        assert_eq!(order(&mut queue, 4), [turn(1, "a b c d"), turn(2, "g"), turn(1, "e f")]);
    }

    #[test]
    fn a_node_of_a_volume_has_begun_or_is_new() {
        let mut queue = WorkQueue::default();
        queue.add_new(volume(1), nodes("a b c"));
        queue.add(volume(1), nodes("b"));
        queue.add_new(volume(1), nodes("b"));
        assert_eq!(order(&mut queue, 9), [(volume(1), nodes("b")), (volume(1), nodes("a c"))]);
        queue.add(volume(1), nodes("a"));
        queue.add_new(volume(1), nodes("b"));
        queue.forget(&volume(1), &nodes("a b"));
        assert_eq!(order(&mut queue, 9), []);
    }

    #[test]
    fn what_waits_is_counted_and_how_long_it_has() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut queue = WorkQueue::default();
        queue.at(start);
        come(&mut queue, &[1, 2, 1]);
        queue.at(second(3));
        begin(&mut queue, &[3]);
        let counted = |adds, waits: &[u64], depth| {
            let waits = waits.iter().copied().map(Duration::from_secs).collect();
            QueueCounts { adds, retries: 0, waits, depth }
        };
        assert_eq!(queue.take_counts()[0], counted(3, &[], 3));
        queue.at(second(5));
        queue.get(Room { volumes: 1, beside_new: 1, new_volumes: 0, nodes: 0 }).unwrap();
        queue.forget(&volume(1), &nodes("a"));
        assert_eq!(queue.take_counts()[0], counted(0, &[2, 5], 1));
        queue.at(second(9));
        come(&mut queue, &[1]);
        assert_eq!(order(&mut queue, 1), on_one(&[2, 1]));
        assert_eq!(queue.take_counts()[0], counted(1, &[9, 0], 0));
    }

    #[test]
    fn l15_a_turn_has_another_one_at_once_only_for_what_there_is_room_for() {
        type Fill = fn(&mut WorkQueue, VolumeId);
        let (now, volume) = (Instant::now(), VolumeId::csi(&"d".into(), "h"));
        let room = |volumes, new_volumes, nodes| Room { volumes, beside_new: volumes, new_volumes, nodes };
        let begun: Fill = |queue, volume| queue.add(volume, nodes("a"));
        let new: Fill = |queue, volume| queue.add_new(volume, nodes("a"));
        let node: Fill = |queue, _| queue.add_node("n1".into());
        let survey: Fill = |queue, _| queue.add_all();
        let cases = [
            ("nothing", (|_, _| ()) as Fill, room(1, 1, 1), false),
            ("begun", begun, room(1, 0, 0), true),
            ("begun, and no room", begun, room(0, 1, 1), false),
            ("new", new, room(0, 1, 0), true),
            ("new, and no room", new, room(1, 0, 1), false),
            ("a node", node, room(0, 0, 1), true),
            ("a node, and no room", node, room(1, 1, 0), false),
            ("all there is, which may be none", survey, room(0, 0, 0), true),
        ];
        for (name, fill, room, goes_on) in cases {
            let mut queue = WorkQueue::default();
            fill(&mut queue, volume.clone());
            queue.end_turn(room, now);
            assert_eq!(queue.next_at(), goes_on.then_some(now), "{name}");
        }
    }

    #[test]
    fn l15_what_has_begun_leaves_room_for_new_volumes_while_some_wait() {
        let volume = |handle: &str| VolumeId::csi(&"d".into(), handle);
        let mut queue = WorkQueue::default();
        queue.add(volume("begun"), nodes("a"));
        queue.add_new(volume("new"), nodes("a"));
        let room = Room { volumes: 1, beside_new: 0, new_volumes: 1, nodes: 0 };
        assert_eq!(queue.get(room), Some((volume("new"), nodes("a"))));
        assert_eq!(queue.get(room), Some((volume("begun"), nodes("a"))));
    }

    #[test]
    fn what_is_added_for_a_time_comes_then_and_in_that_order() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut queue = WorkQueue::default();
        queue.add_at(second(3), Key::Node("late".into()));
        queue.add_at(second(2), Key::Driver("d".into()));
        queue.add_at(second(1), Key::Node("early".into()));
        let room = Room { volumes: 1, beside_new: 1, new_volumes: 1, nodes: 1 };
        assert_eq!((queue.add_due(start), queue.get_node(room)), (None, None));
        assert_eq!(queue.next_at(), Some(second(1)));
        assert_eq!(queue.add_due(second(2)), Some(Key::Driver("d".into())));
        assert_eq!(queue.add_due(second(2)), None);
        assert_eq!((queue.get_node(room), queue.get_node(room)), (Some("early".into()), None));
        assert_eq!(queue.next_at(), Some(second(3)));
        let volume = VolumeId::csi(&"d".into(), "h");
        queue.add_at(second(4), Key::NodeVolume(volume.clone(), "n1".into()));
        assert_eq!(queue.add_due(second(4)), None);
        assert_eq!(queue.get(room), Some((volume, nodes("n1"))));
    }
}
