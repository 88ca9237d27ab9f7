//! Work queue: which volumes and nodes are to be looked at, in which order, and when (client-go: `workqueue`).
//!
//! In: keys, each to be looked at now or at a time, and for how many there is room. Out: the next of them. What has
//! begun goes before what is new ([`lanes`]). From time to time, and when an alarm begins or ends, it adds all keys
//! there are, some at a time ([`survey`]).

mod lanes;
mod survey;

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{
    actual::state::ActualState,
    decide::scope::Scope,
    desired::{state::DesiredState, volume_name::VolumeId},
    dispatcher::Room,
    guard::second_writer::Target,
};
use crate::{
    controller::queue::Queue,
    kube_api::ids::{DriverName, NodeName, Uid},
    metrics::QueueCounts,
    state::Objects,
};
use lanes::Lanes;
use survey::Survey;
pub use survey::{AT_ONCE, Surveyed};

/// What is looked at when it is time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    NodeVolume(VolumeId, NodeName),
    Node(NodeName),
    Driver(DriverName),
    /// Who made the object of this UID, which was asked and not answered.
    Owner(Target, Uid),
}

/// What is to be looked at, now and later.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    volumes: Lanes,
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
        self.volumes.at(now);
        self.nodes.at(now);
    }

    /// Forgets what is to be looked at now, and what was counted of it.
    pub fn clear(&mut self) {
        (self.volumes, self.nodes) = (Lanes::default(), Queue::default());
    }

    /// What there was to look at since this was last asked: volumes, and nodes.
    pub fn take_counts(&mut self) -> [QueueCounts; 2] {
        [self.volumes.take_counts(), self.nodes.take_counts()]
    }

    /// Adds a volume with which something has begun.
    pub fn add(&mut self, volume: VolumeId, scope: Scope) {
        self.volumes.push(volume, scope);
    }

    /// Adds a volume with which nothing may have begun yet.
    pub fn add_new(&mut self, volume: VolumeId, scope: Scope) {
        self.volumes.push_new(volume, scope);
    }

    /// Adds volumes with which something happened on a node.
    pub fn add_on(&mut self, node: &NodeName, volumes: impl IntoIterator<Item = VolumeId>) {
        for volume in volumes {
            self.add(volume, Scope::of(node));
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

    /// The same for a volume on a node, at each of these times.
    pub fn add_node_volume_at(
        &mut self,
        times: impl IntoIterator<Item = Instant>,
        volume: &VolumeId,
        node: &NodeName,
    ) {
        for at in times {
            self.add_at(at, Key::NodeVolume(volume.clone(), node.clone()));
        }
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
    pub fn get(&mut self, room: Room) -> Option<(VolumeId, Scope)> {
        let begun = if room.volumes > 0 { self.volumes.pop_begun(room.volumes) } else { None };
        if begun.is_some() || room.new_volumes == 0 {
            return begun;
        }
        self.volumes.pop_new(room.new_volumes)
    }

    /// Takes the node whose turn it is.
    pub fn get_node(&mut self, room: Room) -> Option<NodeName> {
        if room.nodes > 0 { self.nodes.pop() } else { None }
    }

    /// Takes a volume out of turn on these nodes.
    pub fn forget(&mut self, volume: &VolumeId, scope: &Scope) {
        self.volumes.forget(volume, scope);
    }

    /// A turn is over. What it has left, and there is room for, has another one at once.
    pub fn end_turn(&mut self, room: Room, now: Instant) {
        let has_volumes = (!self.volumes.none_begun() && room.volumes > 0)
            || (!self.volumes.none_new() && room.new_volumes > 0);
        let has_nodes = !self.nodes.is_empty() && room.nodes > 0;
        self.goes_on_at = (has_volumes || has_nodes || self.has_more_to_survey()).then_some(now);
    }

    /// When the next turn is although nothing happened.
    pub fn next_at(&self) -> Option<Instant> {
        let due = self.later.first().map(|(at, _)| *at);
        due.into_iter().chain(self.sweep_at).chain(self.goes_on_at).min()
    }

    /// Begins to look at everything if it is time. Nothing depends on it: it is there for the change that some
    /// mistake of ours overlooked, and while there is none it sends nothing (S39).
    pub fn sweep(&mut self, now: Instant) {
        let Some(period) = self.sweep_period else { return };
        let due = *self.sweep_at.get_or_insert(now + period);
        if now < due {
            return;
        }
        self.sweep_at = Some(now + period);
        self.survey.begin();
    }

    /// Begins to look at all volumes and nodes, which an alarm may have held up.
    pub fn add_all(&mut self) {
        self.survey.begin_held_up();
    }

    /// Takes some of what is yet to be looked at of all there is, unless some of that is left: there was no room for it.
    pub fn survey(
        &mut self,
        objects: &Objects,
        desired: &DesiredState,
        actual: &ActualState,
    ) -> Vec<Surveyed> {
        if self.has_more_to_survey() { self.survey.next(objects, desired, actual) } else { Vec::new() }
    }

    /// Whether there is more to look at, and what was added before is planned.
    fn has_more_to_survey(&self) -> bool {
        !self.survey.is_over() && self.volumes.none_begun()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l15_a_turn_has_another_one_at_once_only_for_what_there_is_room_for() {
        type Fill = fn(&mut WorkQueue, VolumeId);
        let (now, volume) = (Instant::now(), VolumeId::csi(&"d".into(), "h"));
        let room = |volumes, new_volumes, nodes| Room { volumes, new_volumes, nodes };
        let begun: Fill = |queue, volume| queue.add(volume, Scope::All);
        let new: Fill = |queue, volume| queue.add_new(volume, Scope::All);
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
    fn what_is_added_for_a_time_comes_then_and_in_that_order() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut queue = WorkQueue::default();
        queue.add_at(second(3), Key::Node("late".into()));
        queue.add_at(second(2), Key::Driver("d".into()));
        queue.add_at(second(1), Key::Node("early".into()));
        let room = Room { volumes: 1, new_volumes: 1, nodes: 1 };
        assert_eq!((queue.add_due(start), queue.get_node(room)), (None, None));
        assert_eq!(queue.next_at(), Some(second(1)));
        assert_eq!(queue.add_due(second(2)), Some(Key::Driver("d".into())));
        assert_eq!(queue.add_due(second(2)), None);
        assert_eq!((queue.get_node(room), queue.get_node(room)), (Some("early".into()), None));
        assert_eq!(queue.next_at(), Some(second(3)));
        let volume = VolumeId::csi(&"d".into(), "h");
        queue.add_at(second(4), Key::NodeVolume(volume.clone(), "n1".into()));
        assert_eq!(queue.add_due(second(4)), None);
        assert_eq!(queue.get(room), Some((volume, Scope::of(&"n1".into()))));
    }
}
