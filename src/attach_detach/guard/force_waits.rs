//! Force waits: on which nodes volumes wait to be detached by force, told to a successor by the note on the lease (S6).
//! Pure.
//!
//! In: verdicts that wait for force, pods that want a volume again, and what the lease said of the term before. Out: the
//! text of the note, made anew every [`PERIOD`] while something waits, so that a change of leader makes a wait longer by
//! no more than that and by the time without a leader; and what a predecessor has proven.

use std::{collections::BTreeMap, mem, time::Duration};

use apiserver::{ids::NodeName, lease_note::LeaseNote};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::wait_note::{MOST_ENTRIES, NodeWait, WaitNote};
use crate::attach_detach::{
    decide::{
        force::Unforced,
        verdict::{NodeVerdict, Waiting},
    },
    state::{
        actual::{ActualState, NodeVolume},
        desired::{DesiredState, volume_name::VolumeId},
    },
};

/// How often the note is made anew while something waits.
pub const PERIOD: Duration = Duration::from_secs(5);

/// What the note says of each node on which something waits.
#[derive(Clone, Debug, Default)]
pub struct ForceWaits {
    /// What carries the note, if anything does.
    lease: Option<LeaseNote>,
    /// How long a wait is at most: of one that has lasted as long there is nothing new to say.
    patience: Duration,
    entries: BTreeMap<NodeName, String>,
    looked_at: Option<Instant>,
    /// Whether something waits for less than that.
    waits: bool,
    is_news: bool,
}

impl ForceWaits {
    /// Waits of so long at most.
    pub(crate) fn of(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// This lease carries the note.
    pub fn follow(&mut self, lease: LeaseNote) {
        self.lease = Some(lease);
    }

    /// This process leads from now on. Returns what its predecessor said, if it can be read.
    pub(in crate::attach_detach) fn take_over(&mut self) -> Option<WaitNote> {
        let Some(lease) = &self.lease else { return Some(WaitNote::default()) };
        self.is_news = true;
        WaitNote::parse(lease.left().as_deref().unwrap_or_default())
    }

    /// Something waits, or may: a volume that is nowhere else any more counts again where it was forced off.
    pub(in crate::attach_detach) fn begin(&mut self) {
        self.waits = self.lease.is_some();
    }

    /// Takes the verdict on a volume on a node.
    pub fn judged(&mut self, node: &NodeName, verdict: &NodeVerdict) {
        let waits = matches!(
            verdict.waiting,
            Some(Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(_) })
        );
        if waits || self.entries.contains_key(node) {
            self.begin();
        }
    }

    /// A pod wants a volume on that node: what the note says of it is over at once (S4).
    pub fn break_off(&mut self, node: &NodeName) {
        if self.entries.remove(node).is_some() {
            self.is_news = true;
            self.begin();
        }
    }

    /// When to look although nothing happens.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.looked_at.filter(|_| self.waits).map(|at| at + PERIOD)
    }

    /// Looks at all nodes that are not Ready, if it is time.
    pub(in crate::attach_detach) fn look(
        &mut self,
        actual: &ActualState,
        desired: &DesiredState,
        (now, wall): (Instant, Timestamp),
    ) {
        if !self.waits || self.due_at().is_some_and(|due| due > now) {
            return;
        }
        self.looked_at = Some(now);
        let mut waits: Vec<_> = waits(actual, desired)
            .map(|(name, wait)| (elapsed_on(name, &wait, actual, wall).min(self.patience), name, wait))
            .collect();
        waits.sort_by(|(one, name, _), (other, other_name, _)| (other, other_name).cmp(&(one, name)));
        waits.truncate(MOST_ENTRIES);
        self.waits = waits.iter().any(|(elapsed, ..)| *elapsed < self.patience);
        let told = waits.into_iter().filter(|(elapsed, ..)| elapsed.as_secs() > 0);
        let entries =
            told.map(|(elapsed, name, wait)| (name.clone(), wait.entry(elapsed.as_secs()))).collect();
        self.is_news |= self.entries != entries;
        self.entries = entries;
    }

    /// The note, if it has changed since it was last taken; empty if there is nothing to say.
    pub fn take_note(&mut self) -> Option<String> {
        let entries = || self.entries.values().map(String::as_str).collect::<Vec<_>>();
        mem::take(&mut self.is_news).then(|| entries().join(" "))
    }
}

/// What waits on nodes that are not Ready: what is or may be attached there and no pod wants. A successor cannot tell what was
/// detached by force from what is reported in use without an attachment: as long as it is nowhere else, both count.
pub(in crate::attach_detach) fn waits<'a>(
    actual: &'a ActualState,
    desired: &'a DesiredState,
) -> impl Iterator<Item = (&'a NodeName, NodeWait)> {
    actual.nodes().filter_map(|(name, state)| {
        let waiting = || {
            let unwanted = actual.volumes_on(name).filter(|(volume, node_volume)| {
                let is_held =
                    node_volume.may_be_attached() || node_volume.in_use && !actual.is_settled(volume);
                is_held && desired.get(volume, name).is_none()
            });
            let attachment = |node_volume: &NodeVolume| {
                let is_going = node_volume.is_going() || node_volume.is_ended_by_us();
                (node_volume.uid().cloned(), is_going)
            };
            unwanted.map(|(volume, node_volume)| (volume.clone(), attachment(node_volume))).collect()
        };
        Some((name, NodeWait::new(state.node.as_deref()?, waiting)?))
    })
}

/// For how long the node has not been Ready, and no pod has wanted any of what waits there, as far as this process knows.
fn elapsed_on(name: &NodeName, wait: &NodeWait, actual: &ActualState, wall: Timestamp) -> Duration {
    let unready_since = actual.node(name).and_then(|state| state.unready_since).unwrap_or(wall);
    let undesired_since = |volume: &VolumeId| {
        actual.node_volume(volume, name).and_then(|it| it.undesired_since).unwrap_or(wall)
    };
    let since = wait.volumes().map(undesired_since).max().unwrap_or(wall).max(unready_since);
    wall.duration_since(since).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::kinds::{AttachedVolume, Node, NodeCondition};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A node that is not Ready and lists a volume of its own, which no pod has wanted since then.
    fn add(actual: &mut ActualState, name: &NodeName, since: Timestamp) {
        let volume = VolumeId::iscsi("10.0.0.1:3260", name.as_str(), 0);
        let mut node = Node::default();
        node.metadata.uid = name.as_str().into();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: "Unknown".into(),
            last_transition_time: Some(at(0)),
        });
        node.status
            .volumes_attached
            .push(AttachedVolume { name: volume.as_str().into(), ..AttachedVolume::default() });
        actual.observe_node(name, Some(&Arc::new(node)), |_| false, since);
        actual.note_undesired(&volume, &[name.clone()].into(), |_| false, since);
    }

    #[test]
    fn s6_the_longest_waits_are_told_and_one_that_a_pod_breaks_off_no_more() {
        let (mut actual, desired) = (ActualState::default(), DesiredState::default());
        let (start, mut waits) = (Instant::now(), ForceWaits::of(Duration::from_mins(6)));
        waits.follow(LeaseNote::default());
        let late = NodeName::from("late");
        let nodes: Vec<NodeName> =
            (0..MOST_ENTRIES).map(|number| NodeName::from(format!("n{number}"))).collect();
        for (name, since) in nodes.iter().map(|name| (name, at(0))).chain([(&late, at(10))]) {
            add(&mut actual, name, since);
            waits.begin();
        }
        let look = |waits: &mut ForceWaits, second: i64| {
            let now = start + Duration::from_secs(second.unsigned_abs());
            waits.look(&actual, &desired, (now, at(second)));
            waits.due_at()
        };
        look(&mut waits, 20);
        let note = waits.take_note().unwrap();
        assert!(note.len() < 100 << 10, "an annotation may have 256 KiB");
        let told = |note: &str, name: &NodeName| note.contains(&format!("{name}:"));
        assert!(told(&note, &nodes[7]) && note.contains("n7:20:") && !told(&note, &late));
        assert_eq!(waits.take_note(), None, "nothing is new");

        // A pod comes: what was said is over before anything is looked at again.
        waits.break_off(&nodes[7]);
        assert!(!told(&waits.take_note().unwrap(), &nodes[7]));
        assert_eq!(look(&mut waits, 24), Some(start + Duration::from_secs(25)));
        assert_eq!(look(&mut waits, 25), Some(start + Duration::from_secs(30)));

        // What has lasted for as long as any has to is not made anew.
        assert_eq!(look(&mut waits, 400), None);
        assert!(waits.take_note().unwrap().contains("n7:360:"));
    }
}
