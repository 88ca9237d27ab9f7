//! What is known of one node: its object as last seen, and its health over time.
//!
//! In: the Node, or its absence, and the time. Out: whether its volumes have to be looked at again, and
//! which of them count as in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use apiserver::kinds::{Node, NodeInfo};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::node_requests::NodeRequests;
use crate::attach_detach::{options::ForcePolicy, state::desired::volume_name::VolumeId};

/// How long a kubelet must have been Ready before an empty list of a re-created node is believed: several
/// times its status period of 10 s.
const TRUST_AFTER: Duration = Duration::from_mins(1);

/// Why a volume that a Ready node does not report in use may be in use all the same, and until when that counts, if
/// time ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeDoubt {
    /// The node's object is new.
    New(Option<Timestamp>),
    /// Another machine has the node's name, and the one before it may still have the volume.
    AnotherMachine(Option<Timestamp>),
}

/// One node.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// The Node as last seen.
    pub node: Option<Arc<Node>>,
    /// Volumes of which something is known on this node.
    pub volumes: BTreeSet<VolumeId>,
    /// Whether its kubelet hands it to the controller, or has since this object is there.
    is_managed: bool,
    /// Our requests to it.
    pub requests: NodeRequests,
    /// Since when the node has not been Ready, or has been gone, as far as is proven, by this process' clock.
    pub unready_since: Option<Timestamp>,
    /// Since when we have seen this node object Ready without a break. What its condition says is of another clock,
    /// or copied from an earlier object.
    ready_since: Option<Timestamp>,
    /// The machine behind the node object and its boot, as far as any has said; empty where none has.
    machine: NodeInfo,
    /// Volumes that an earlier object of this node reported in use. A later one of the same boot starts
    /// with an empty list, which proves nothing before the kubelet has had time to fill it.
    distrusted: BTreeSet<VolumeId>,
    /// What another machine may have that had the node's name before the one that is here now.
    of_others: BTreeMap<VolumeId, Other>,
}

/// Of a volume that another machine may have.
#[derive(Clone, Debug, Default)]
struct Other {
    /// That machine, or the one that was seen with it last.
    machine: NodeInfo,
    /// Whether it may have the volume mounted: its time is not up.
    may_have_it: bool,
    /// Whether the machine that is here now does not report it, or has reported it only since its node was seen not to list it: then
    /// it cannot have it, and announces a pod. That holds until the attachment is gone, which leads to the other.
    is_withheld: bool,
}

impl NodeState {
    /// Whether nothing is left to know of the node.
    pub(in crate::attach_detach) fn is_over(&self) -> bool {
        self.node.is_none() && self.volumes.is_empty() && !self.requests.is_under_way
    }

    /// Whether its volumes are the controller's business. KCM: a node stays managed once it was seen so; its annotation
    /// is only waited for (attach_detach_controller.go, nodeUpdate).
    pub(in crate::attach_detach) fn is_managed(&self) -> bool {
        self.is_managed
    }

    /// Takes the node as last seen, or its absence. Returns whether all its volumes have to be looked at
    /// again. `used` are the volumes that counted as in use until now.
    pub(in crate::attach_detach) fn observe(
        &mut self,
        node: Option<&Arc<Node>>,
        used: impl FnOnce() -> BTreeSet<VolumeId>,
        wall: Timestamp,
    ) -> bool {
        let replaced = match (&self.node, node) {
            (Some(before), Some(after)) => before.metadata.uid != after.metadata.uid,
            (before, after) => before.is_some() != after.is_some(),
        };
        let revision = |node: &Arc<Node>| node.metadata.resource_version;
        let settled = self.requests.seen(self.node.as_ref().map(revision), node.map(revision));
        let mut is_another_machine = false;
        self.is_managed = node.is_some_and(|node| node.is_managed() || (self.is_managed && !replaced));
        if let Some(node) = node {
            let (known, said) = (&mut self.machine, &node.status.node_info);
            let is_booted = is_another_boot(known, said);
            is_another_machine = is_another_machine_than(known, said);
            // No number of the machine before is that of another one, also where this one has none.
            let machine =
                if is_another_machine { mem::replace(known, said.clone()) } else { NodeInfo::default() };
            learn(&mut known.boot_id, &said.boot_id);
            learn(&mut known.system_uuid, &said.system_uuid);
            learn(&mut known.machine_id, &said.machine_id);
            if is_another_machine {
                // The boot of one machine says nothing of another, which may be alive.
                self.distrusted.extend(used());
                // One that comes back has what it had.
                let is_back = |other: &Other| !is_another_machine_than(&other.machine, said);
                let own = self.of_others.extract_if(.., |_, other| is_back(other));
                let own: BTreeSet<VolumeId> = own.map(|(volume, _)| volume).collect();
                for volume in self.distrusted.difference(&own) {
                    let other = self.of_others.entry(volume.clone());
                    let other =
                        other.or_insert_with(|| Other { machine: machine.clone(), ..Other::default() });
                    other.may_have_it = true;
                }
                // It may not have reported that yet.
                self.distrusted.extend(own);
            } else if is_booted {
                self.distrusted =
                    self.of_others.iter().filter(|(_, it)| it.may_have_it).map(name_of).collect();
            } else if replaced {
                self.distrusted.extend(used());
            }
            // What is listed and reported is of the machine that is here now. What a new object reports that does not list it
            // announces a pod.
            let (is_new, machine) = (is_another_machine && replaced, &self.machine);
            self.of_others.retain(|volume, other| {
                let (is_listed, is_used) = (node.lists(volume.as_str()), node.uses(volume.as_str()));
                if is_listed && is_used {
                    other.machine.clone_from(machine);
                }
                other.is_withheld = !is_used || (!is_listed && (other.is_withheld || is_new));
                other.may_have_it || other.is_withheld
            });
        }
        self.ready_since = match (&self.node, node.filter(|node| node.is_ready())) {
            (_, None) => None,
            (Some(before), Some(after))
                if !(replaced || is_another_machine) && before.ready() == after.ready() =>
            {
                self.ready_since
            }
            _ => Some(wall),
        };
        let health = self.health();
        self.unready_since = self.unready_since(node, wall);
        self.node = node.cloned();
        replaced || settled || health != self.health()
    }

    /// Notes that something is attached here. A node that was gone before has been unwell from now on at
    /// the latest: since when it really was, nothing tells (S6).
    pub(in crate::attach_detach) fn note_absence(&mut self, wall: Timestamp) {
        if self.node.is_none() {
            self.unready_since.get_or_insert(wall);
        }
    }

    /// See [`NodeRequests::is_changed_by_others`].
    pub(in crate::attach_detach) fn is_changed_by_others(&self, node: &Node, is_fenced: bool) -> bool {
        self.node.as_ref().is_some_and(|known| self.requests.is_changed_by_others(known, node, is_fenced))
    }

    fn health(&self) -> (bool, bool, bool) {
        let node = self.node.as_deref();
        (node.is_some(), node.is_some_and(Node::is_ready), node.is_some_and(Node::is_out_of_service))
    }

    /// Since when we have not seen the node well.
    fn unready_since(&self, node: Option<&Arc<Node>>, wall: Timestamp) -> Option<Timestamp> {
        if node.is_some_and(|node| node.is_ready()) {
            return None;
        }
        match (&self.node, self.unready_since) {
            (before, Some(since)) if is_the_same_failure(before.as_ref(), node) => Some(since),
            // Our own clock serves, also where we did not see the change: the condition bears the time of another
            // one, which may be wrong (E10). What a predecessor saw of it, the lease tells.
            _ => Some(wall),
        }
    }

    /// Whether the node's list says that the volume is in use, or cannot be believed that it is not.
    pub(in crate::attach_detach) fn uses(&self, volume: &VolumeId) -> bool {
        self.shows(volume) || self.distrusted.contains(volume)
    }

    /// Whether the node's list says that the volume is in use, and means it. That of a node that is gone cannot be asked.
    fn shows(&self, volume: &VolumeId) -> bool {
        let node = self.node.as_ref();
        node.is_none_or(|node| node.uses(volume.as_str()) && !self.is_withheld(volume))
    }

    /// Whether what is attached here is attached to another machine than the one that has the node's name now, as far as that
    /// does not say that it has it.
    pub(in crate::attach_detach) fn withholds(&self, volume: &VolumeId) -> bool {
        self.is_withheld(volume) || (self.may_be_of_another(volume) && !self.shows(volume))
    }

    /// The volumes that it [withholds](Self::withholds).
    pub(super) fn withheld(&self) -> BTreeSet<VolumeId> {
        self.of_others.keys().filter(|volume| self.withholds(volume)).cloned().collect()
    }

    fn is_withheld(&self, volume: &VolumeId) -> bool {
        self.of_others.get(volume).is_some_and(|other| other.is_withheld)
    }

    fn may_be_of_another(&self, volume: &VolumeId) -> bool {
        self.of_others.get(volume).is_some_and(|other| other.may_have_it)
    }

    /// Notes that nothing is attached here, nor may be: what comes is of the machine that is here now.
    pub(in crate::attach_detach) fn has_nothing_of(&mut self, volume: &VolumeId) {
        self.of_others.remove(volume);
    }

    /// Why a volume that the node's list does not show counts as in use: until when, if time ends that.
    pub(in crate::attach_detach) fn doubts(
        &self,
        volume: &VolumeId,
        policy: &ForcePolicy,
    ) -> Option<NodeDoubt> {
        if self.shows(volume) || !self.distrusted.contains(volume) {
            return None;
        }
        Some(if self.may_be_of_another(volume) {
            NodeDoubt::AnotherMachine(of_another(policy).and_then(|patience| self.trusted_after(patience)))
        } else {
            NodeDoubt::New(self.trusted_after(TRUST_AFTER))
        })
    }

    /// When the kubelet will have been well for so long.
    fn trusted_after(&self, patience: Duration) -> Option<Timestamp> {
        self.ready_since?.checked_add(patience).ok()
    }

    /// Notes that the node's list proves nothing about a volume.
    pub(in crate::attach_detach) fn distrust(&mut self, volume: &VolumeId) {
        self.distrusted.insert(volume.clone());
    }

    /// Notes that what an earlier object, or machine, may have had of a volume is over.
    pub(in crate::attach_detach) fn is_rid_of(&mut self, volume: &VolumeId) {
        self.distrusted.remove(volume);
        self.of_others.remove(volume);
    }

    /// Whether there is something of which the node's list proves nothing.
    pub(crate) fn is_distrusted(&self) -> bool {
        !self.distrusted.is_empty()
    }

    /// When the node's list can be believed again about anything, if it cannot now and the kubelet is well.
    pub(crate) fn trusted_at(&self, policy: &ForcePolicy) -> Option<Timestamp> {
        let has_own = self.distrusted.iter().any(|volume| !self.may_be_of_another(volume));
        let patience = match self.distrusted.is_empty() {
            true => return None,
            false if has_own => TRUST_AFTER,
            false => of_another(policy)?,
        };
        self.trusted_after(patience)
    }

    /// Believes the node's list again if it is time. Returns the volumes that may no longer count as in use for that
    /// reason, and those of them that another machine may have mounted.
    pub(in crate::attach_detach) fn trust(
        &mut self,
        policy: &ForcePolicy,
        wall: Timestamp,
    ) -> [BTreeSet<VolumeId>; 2] {
        let is_due = |patience| self.trusted_after(patience).is_some_and(|at| at <= wall);
        let (is_own_due, is_other_due) = (is_due(TRUST_AFTER), of_another(policy).is_some_and(is_due));
        let others = &mut self.of_others;
        let may_be_of_another = |volume: &VolumeId| others.get(volume).is_some_and(|other| other.may_have_it);
        let is_trusted =
            |volume: &VolumeId| if may_be_of_another(volume) { is_other_due } else { is_own_due };
        let trusted = self.distrusted.extract_if(.., |volume| is_trusted(volume)).collect();
        let mut given_up = BTreeSet::new();
        for (volume, other) in others.iter_mut().filter(|_| is_other_due) {
            if mem::take(&mut other.may_have_it) {
                given_up.insert(volume.clone());
            }
        }
        [trusted, given_up]
    }
}

fn name_of<T>((volume, _): (&VolumeId, T)) -> VolumeId {
    volume.clone()
}

/// How long the kubelet of another machine has to be Ready. Of what the one before may have mounted it knows nothing: that is
/// given up as if its node were gone, and never where time may not force.
fn of_another(policy: &ForcePolicy) -> Option<Duration> {
    policy.on_timeout.then(|| policy.gone.max(TRUST_AFTER))
}

/// The machine's own number tells; the one that its system was given at installation, or at each start without a
/// disk, only where that is not known, and only after a boot: people may give a system another one while it runs.
fn is_another_machine_than(known: &NodeInfo, said: &NodeInfo) -> bool {
    if known.system_uuid.is_empty() || said.system_uuid.is_empty() {
        let is_one_boot = !known.boot_id.is_empty() && known.boot_id == said.boot_id;
        return !is_one_boot && differ(&known.machine_id, &said.machine_id);
    }
    known.system_uuid != said.system_uuid
}

/// Whether it is the same machine after another boot: nothing is mounted any more.
pub(crate) fn is_another_boot(known: &NodeInfo, said: &NodeInfo) -> bool {
    differ(&known.boot_id, &said.boot_id) && !is_another_machine_than(known, said)
}

/// Whether both are known, and are not the same.
fn differ(known: &str, said: &str) -> bool {
    !known.is_empty() && !said.is_empty() && known != said
}

fn learn(known: &mut Box<str>, said: &str) {
    if !said.is_empty() && **known != *said {
        *known = said.into();
    }
}

/// Whether a node that is not well has not been so in between either. Of one that has another condition,
/// or is another object, it is not known: it may have been Ready unseen (S4).
fn is_the_same_failure(before: Option<&Arc<Node>>, after: Option<&Arc<Node>>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.metadata.uid == after.metadata.uid && before.ready() == after.ready()
        }
        // How it was when it went, if that is known, was observed before its absence.
        (_, None) => true,
        (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use apiserver::{
        ids::{DriverName, ResourceVersion},
        kinds::NodeCondition,
    };

    use super::*;
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(uid: &str, boot: &str, ready: &str, since: i64) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.uid = uid.into();
        node.status.node_info.boot_id = boot.into();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: ready.into(),
            last_transition_time: Some(at(since)),
        });
        Arc::new(node)
    }

    fn volume() -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), "h")
    }

    fn at_revision(uid: &str, revision: u64) -> Arc<Node> {
        let mut node = Node::clone(&node(uid, "b", "True", 0));
        node.metadata.resource_version = ResourceVersion(revision);
        Arc::new(node)
    }

    #[test]
    fn volumes_are_looked_at_when_the_node_is_another_or_its_health_is() {
        let cases = [
            ("the same", Some(at_revision("1", 5)), false),
            ("another object", Some(at_revision("2", 5)), true),
            ("gone", None, true),
            ("not Ready", Some(node("1", "b", "False", 0)), true),
        ];
        for (name, seen, expected) in cases {
            let mut state = NodeState::default();
            state.observe(Some(&at_revision("1", 4)), BTreeSet::new, at(0));
            assert_eq!(state.observe(seen.as_ref(), BTreeSet::new, at(0)), expected, "{name}");
        }
    }

    #[test]
    fn s4_s6_unready_counts_from_the_last_moment_at_which_the_node_may_have_been_ready() {
        let unready = |uid, since| Some(node(uid, "b", "False", since));
        let unknown = |since| Some(node("1", "b", "Unknown", since));
        // name, what is seen when, and since when the node is not Ready then
        let cases = [
            ("a heartbeat changes nothing", vec![(unready("1", 20), 25), (unready("1", 20), 60)], 25),
            ("it may have been Ready in between", vec![(unready("1", 20), 25), (unknown(50), 55)], 55),
            ("nobody said so when it went", vec![(unready("1", 20), 25), (None, 70)], 25),
            ("Ready until it went", vec![(None, 70), (None, 90)], 70),
            ("it came back, and nobody knows how", vec![(None, 70), (unready("2", 80), 85)], 85),
            ("made anew unseen", vec![(unready("1", 20), 25), (unready("2", 20), 85)], 85),
            (
                "well in between",
                vec![(unready("1", 20), 25), (Some(node("1", "b", "True", 30)), 35), (None, 90)],
                90,
            ),
        ];
        for (name, seen, expected) in cases {
            let mut state = NodeState::default();
            state.observe(Some(&node("1", "b", "True", 0)), BTreeSet::new, at(10));
            assert_eq!(state.unready_since, None);
            for (node, wall) in seen {
                state.observe(node.as_ref(), BTreeSet::new, at(wall));
            }
            assert_eq!(state.unready_since, Some(at(expected)), "{name}");
        }
    }

    #[test]
    fn s4_e10_the_time_of_another_clock_counts_for_nothing() {
        for says in [5, 20, 90, 500] {
            for was_seen in [true, false] {
                let mut state = NodeState::default();
                if was_seen {
                    state.observe(Some(&node("1", "b", "True", 0)), BTreeSet::new, at(10));
                }
                state.observe(Some(&node("1", "b", "Unknown", says)), BTreeSet::new, at(100));
                assert_eq!(state.unready_since, Some(at(100)), "since {says}; seen Ready: {was_seen}");
            }
        }
    }

    #[test]
    fn s3_e10_an_empty_list_of_a_recreated_node_proves_nothing_for_a_while() {
        // Since when it is Ready by another clock.
        for says in [0, 100, 3_700] {
            let mut state = NodeState::default();
            state.observe(Some(&node("1", "boot", "True", 0)), BTreeSet::new, at(0));
            state.observe(Some(&node("2", "boot", "True", says)), || BTreeSet::from([volume()]), at(100));
            assert!(state.uses(&volume()));
            state.observe(Some(&node("2", "boot", "True", says)), BTreeSet::new, at(130));
            assert_eq!(state.trusted_at(&ForcePolicy::default()), Some(at(160)), "{says}");
            assert_eq!(state.trust(&ForcePolicy::default(), at(159)), [BTreeSet::new(), BTreeSet::new()]);
            assert_eq!(state.trust(&ForcePolicy::default(), at(160))[0], BTreeSet::from([volume()]));
            assert!(!state.uses(&volume()));
        }
    }

    #[test]
    fn s3_who_is_not_ready_in_between_is_believed_later() {
        let mut state = NodeState::default();
        state.observe(Some(&node("1", "boot", "True", 0)), BTreeSet::new, at(0));
        state.observe(Some(&node("2", "boot", "True", 100)), || BTreeSet::from([volume()]), at(100));
        state.observe(Some(&node("2", "boot", "False", 120)), BTreeSet::new, at(120));
        assert_eq!(state.trusted_at(&ForcePolicy::default()), None);
        state.observe(Some(&node("2", "boot", "True", 130)), BTreeSet::new, at(130));
        assert_eq!(state.trusted_at(&ForcePolicy::default()), Some(at(190)));
        state.observe(Some(&node("2", "boot", "True", 150)), BTreeSet::new, at(150));
        assert_eq!(state.trusted_at(&ForcePolicy::default()), Some(at(210)), "it was not Ready unseen");
    }

    #[test]
    fn l9_a_machine_that_took_the_place_of_an_idle_one_is_believed_when_it_boots() {
        let machine = |uuid: &str, boot: &str| {
            let mut node = Node::clone(&node("1", boot, "True", 0));
            node.status.node_info.system_uuid = uuid.into();
            Arc::new(node)
        };
        let mut state = NodeState::default();
        state.observe(Some(&machine("A", "1")), BTreeSet::new, at(0));
        state.observe(Some(&machine("B", "2")), BTreeSet::new, at(10));
        state.observe(None, || BTreeSet::from([volume()]), at(1_000));
        state.observe(Some(&machine("B", "3")), || BTreeSet::from([volume()]), at(1_010));
        assert!(!state.uses(&volume()), "nothing of the first machine was in doubt");
    }

    #[test]
    fn l9_what_another_machine_had_itself_waits_for_a_minute_when_its_node_is_made_anew() {
        let machine = |uid: &str, uuid: &str| {
            let mut node = Node::clone(&node(uid, "boot", "True", 0));
            node.status.node_info.system_uuid = uuid.into();
            Arc::new(node)
        };
        let own = VolumeId::csi(&DriverName::from("d"), "own");
        let off = ForcePolicy { on_timeout: false, ..ForcePolicy::default() };
        let mut state = NodeState::default();
        state.observe(Some(&machine("1", "A")), BTreeSet::new, at(0));
        state.observe(Some(&machine("1", "B")), || BTreeSet::from([volume()]), at(10));
        state.observe(Some(&machine("2", "B")), || BTreeSet::from([volume(), own.clone()]), at(100));
        assert_eq!(state.trusted_at(&off), Some(at(160)));
        assert_eq!(state.trust(&off, at(160)), [BTreeSet::from([own]), BTreeSet::new()]);
        assert!(state.uses(&volume()) && state.trusted_at(&off).is_none(), "the first machine may have it");
        assert_eq!(
            state.trust(&ForcePolicy::default(), at(460)),
            [BTreeSet::from([volume()]), BTreeSet::from([volume()])]
        );
    }

    #[test]
    fn s43_a_machine_without_a_number_of_its_own_does_not_pass_for_the_one_before() {
        let machine = |uuid: &str, id: &str, boot: &str| {
            let mut node = Node::clone(&node("1", boot, "True", 0));
            node.status.node_info.system_uuid = uuid.into();
            node.status.node_info.machine_id = id.into();
            Arc::new(node)
        };
        let mut state = NodeState::default();
        state.observe(Some(&machine("A", "a", "1")), BTreeSet::new, at(0));
        state.observe(Some(&machine("", "b", "2")), BTreeSet::new, at(10));
        state.observe(Some(&machine("A", "a", "3")), || BTreeSet::from([volume()]), at(1_000));
        assert!(state.uses(&volume()), "the first one is back, and the second may be alive");
        let mut state = NodeState::default();
        state.observe(Some(&machine("", "a", "1")), BTreeSet::new, at(0));
        state.observe(Some(&machine("", "c", "1")), || BTreeSet::from([volume()]), at(10));
        assert!(!state.uses(&volume()), "one that has not booted is the same one");
    }

    #[test]
    fn after_a_reboot_nothing_is_mounted() {
        let mut state = NodeState::default();
        state.observe(Some(&node("1", "boot-1", "True", 0)), BTreeSet::new, at(0));
        state.observe(None, || BTreeSet::from([volume()]), at(50));
        state.observe(Some(&node("2", "boot-2", "True", 100)), || BTreeSet::from([volume()]), at(100));
        assert!(!state.uses(&volume()));
    }
}
