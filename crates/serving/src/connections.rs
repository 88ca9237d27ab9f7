//! Which connections may be open, and for how long: the rules, as a pure table.
//!
//! In: what happens to connections, and the time. Out: which to end. A new connection is never
//! refused: when there are too many of one peer, or in all, the least worthy one of the peer that has
//! the most makes room. So a client that has few, such as a kubelet that probes or a Prometheus that
//! scrapes, is let in however many others hold on to theirs, and no client has to be known beforehand. Those on
//! which a peer has shown who it is do not count against it: behind one address there may be a scraper, a
//! kubelet and another user's pod. The node's own addresses, from which its kubelet probes, have a share that
//! no other client competes for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use strum::IntoStaticStr;
use tokio::time::Instant;

/// Connections in all, without those of the node. Each costs some 50 KiB at most (TLS and head buffers), so these
/// are 10 MiB, and what the kernel holds of answers that are not read.
pub(crate) const MAX_CONNECTIONS: usize = 192;
/// Connections of a network of addresses (IPv6): one host may have all of it, but so may all pods of a cluster's
/// subnet. So it leaves room for others, and is large enough for many.
pub(crate) const MAX_PER_NETWORK: usize = 128;
/// Connections of one peer. A kubelet has a few at once, a Prometheus one or two.
pub(crate) const MAX_PER_PEER: usize = 32;
/// TLS handshake and first bytes of a request. KCM has no limit on the former; Go's clients give up after 10 s.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// From the first byte of a request's head to its last.
pub(crate) const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Between requests. Longer than the usual interval between scrapes (15 s to 1 min), which reuse a connection.
pub(crate) const IDLE_DEADLINE: Duration = Duration::from_secs(75);
/// From the end of a head to the last byte of the answer that the peer has made room for: some ten megabytes on
/// a slow line.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Who connects: an address. IPv4 in the form of IPv6, as a socket for both families reports it, is IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }
}

impl Peer {
    /// The /64 of an IPv6 address, of which a host may have every address; none of IPv4.
    fn network(self) -> Option<Ipv6Addr> {
        const NETWORK: u128 = !(u64::MAX as u128);
        match self.0 {
            IpAddr::V6(address) => Some(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
            IpAddr::V4(_) => None,
        }
    }
}

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    /// No request yet: the handshake is under way, or the peer is silent.
    Opening,
    /// Waits for the next request.
    Idle,
    /// A head has begun.
    Head,
    /// A request is being answered.
    Answering,
}

impl Phase {
    /// How long it may last.
    fn limit(self) -> Duration {
        match self {
            Self::Opening => HANDSHAKE_DEADLINE,
            Self::Idle => IDLE_DEADLINE,
            Self::Head => HEAD_DEADLINE,
            Self::Answering => ANSWER_DEADLINE,
        }
    }
}

/// Name of a connection.
pub type Id = u64;

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// In all, without those of the node.
    pub all: usize,
    /// Of one network of addresses.
    pub per_network: usize,
    /// Of one peer.
    pub per_peer: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { all: MAX_CONNECTIONS, per_network: MAX_PER_NETWORK, per_peer: MAX_PER_PEER }
    }
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    phase: Phase,
    since: Instant,
    /// Whether it has made a request of a known user.
    known: bool,
}

impl Entry {
    /// The lowest one makes room first.
    fn worth(&self) -> (bool, bool, Instant) {
        (self.known, self.phase == Phase::Answering, self.since)
    }
}

/// The open connections.
#[derive(Debug, Default)]
pub struct Connections {
    caps: Caps,
    node: BTreeSet<Peer>,
    open: BTreeMap<Id, Entry>,
    last: Id,
}

impl Connections {
    /// None yet, with a share for the addresses of the node.
    #[must_use]
    pub fn new(caps: Caps, node: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { caps, node: node.into_iter().map(Peer::from).collect(), ..Self::default() }
    }

    /// Whose TLS handshake is first, the lowest: the node's, then those of who has the fewest connections on which
    /// it has not shown who it is.
    #[must_use]
    pub fn rank(&self, peer: Peer) -> usize {
        let unknown = self.open.values().filter(|entry| entry.peer == peer && !entry.known).count();
        if self.node.contains(&peer) { unknown } else { self.caps.per_peer + unknown }
    }

    /// Lets a connection in. Returns its name, and the one that has to end for it.
    pub fn admit(&mut self, peer: Peer, now: Instant) -> (Id, Option<Id>) {
        let count = |of: &dyn Fn(&Entry) -> bool| self.open.values().filter(|entry| of(entry)).count();
        let network = peer.network();
        let of_network = |entry: &Entry| network.is_some() && entry.peer.network() == network;
        let crowd = if count(&|entry| entry.peer == peer) >= self.caps.per_peer {
            self.least(|entry| entry.peer == peer)
        } else if self.node.contains(&peer) {
            None
        } else if count(&|entry| of_network(entry) && self.competes(entry)) >= self.caps.per_network {
            self.least_of_crowd(of_network)
        } else if count(&|entry| self.competes(entry)) >= self.caps.all {
            self.least_of_crowd(|_| true)
        } else {
            None
        };
        if let Some(id) = crowd {
            self.open.remove(&id);
        }
        self.last += 1;
        self.open.insert(self.last, Entry { peer, phase: Phase::Opening, since: now, known: false });
        (self.last, crowd)
    }

    /// Whether a connection may have to make room for another peer's.
    fn competes(&self, entry: &Entry) -> bool {
        !self.node.contains(&entry.peer)
    }

    /// Of some connections, the least worthy one of the peer that has the most.
    fn least_of_crowd(&self, of: impl Fn(&Entry) -> bool) -> Option<Id> {
        let of = |entry: &Entry| of(entry) && self.competes(entry);
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        for entry in self.open.values().filter(|entry| of(entry) && !entry.known) {
            *counts.entry(entry.peer).or_default() += 1;
        }
        let most = counts.values().max().copied();
        self.least(|entry| of(entry) && counts.get(&entry.peer).copied() == most)
    }

    fn least(&self, of: impl Fn(&Entry) -> bool) -> Option<Id> {
        let candidates = self.open.iter().filter(|(_, entry)| of(entry));
        candidates.min_by_key(|(_, entry)| entry.worth()).map(|(id, _)| *id)
    }

    /// Notes what a connection is at from now on.
    pub fn enter(&mut self, id: Id, phase: Phase, now: Instant) {
        if let Some(entry) = self.open.get_mut(&id) {
            (entry.phase, entry.since) = (phase, now);
        }
    }

    /// Notes the first bytes of a head; those that follow change nothing.
    pub fn received(&mut self, id: Id, now: Instant) {
        let entry = self.open.get_mut(&id);
        if let Some(entry) = entry.filter(|entry| entry.phase == Phase::Idle) {
            (entry.phase, entry.since) = (Phase::Head, now);
        }
    }

    /// Notes that the peer has shown who it is.
    pub fn known(&mut self, id: Id) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.known = true;
        }
    }

    /// Forgets a connection that has ended.
    pub fn ended(&mut self, id: Id) {
        self.open.remove(&id);
    }

    /// Those whose time is over, with what they were at.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Id, Phase)> {
        let over = |entry: &Entry| now.saturating_duration_since(entry.since) >= entry.phase.limit();
        let ids = self.open.iter().filter(|(_, entry)| over(entry));
        let ids: Vec<_> = ids.map(|(id, entry)| (*id, entry.phase)).collect();
        for (id, _) in &ids {
            self.open.remove(id);
        }
        ids
    }

    /// Whether a connection is open.
    #[must_use]
    pub fn contains(&self, id: Id) -> bool {
        self.open.contains_key(&id)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn a_peer_is_an_address_and_a_network_bounds_many() {
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.2"), peer("10.0.0.1"));
        assert_ne!(peer("fd00:1:2:3::1"), peer("fd00:1:2:3:ffff::2"));
        assert_eq!(peer("fd00:1:2:3::1").network(), peer("fd00:1:2:3:ffff::2").network());
        assert_ne!(peer("fd00:1:2:3::1").network(), peer("fd00:1:2:4::1").network());
    }

    /// EKS and GKE give all pods and nodes of a subnet addresses of one /64.
    #[test]
    fn in_one_network_a_pod_that_floods_ends_its_own_connections() {
        let now = Instant::now();
        let caps = Caps { all: 8, per_network: 6, per_peer: 4 };
        let mut connections = Connections::new(caps, []);
        let (probe, _) = connections.admit(peer("fd00::1"), now);
        for _ in 0..20 {
            connections.admit(peer("fd00::bad"), now + Duration::from_secs(1));
        }
        assert!(connections.contains(probe));
        assert_eq!(connections.count(), 5);
        // A host that has the whole network to itself leaves room for others.
        for number in 0..20 {
            connections.admit(peer(&format!("fd00::bad:{number:x}")), now + Duration::from_secs(2));
        }
        assert_eq!(connections.count(), 6);
        let (_, ended) = connections.admit(peer("fd00:0:0:1::1"), now);
        assert_eq!((ended, connections.count()), (None, 7));
    }

    #[test]
    fn nobody_competes_with_the_node() {
        let now = Instant::now();
        let node: [IpAddr; 2] = ["10.0.0.9", "fd00::9"].map(|text| text.parse().unwrap());
        let caps = Caps { all: 4, per_network: 3, per_peer: 2 };
        let mut connections = Connections::new(caps, node);
        let (probe, _) = connections.admit(peer("fd00::9"), now);
        for number in 0..20 {
            connections.admit(peer(&format!("10.0.1.{number}")), now + Duration::from_secs(1));
            connections.admit(peer(&format!("fd00::1:{number}")), now + Duration::from_secs(1));
        }
        assert!(connections.contains(probe));
        assert_eq!(connections.count(), 5);
        // Nor does the node take a place from others, but for those of its own address.
        let (_, ended) = connections.admit(peer("::ffff:10.0.0.9"), now);
        assert_eq!((ended, connections.count()), (None, 6));
        connections.admit(peer("fd00::9"), now);
        let (_, ended) = connections.admit(peer("fd00::9"), now);
        assert_eq!((ended, connections.count()), (Some(probe), 7));
        assert!(connections.rank(peer("fd00::9")) < connections.rank(peer("10.0.1.19")));
    }

    #[test]
    fn the_crowd_makes_room_and_not_the_one_that_has_few() {
        let now = Instant::now();
        let mut connections = Connections::new(Caps { all: 4, per_network: 4, per_peer: 3 }, []);
        let (probe, none) = connections.admit(peer("10.0.0.1"), now);
        assert_eq!(none, None);
        let crowd = [1, 2, 3].map(|second| {
            let (id, none) = connections.admit(peer("10.0.0.2"), now + Duration::from_secs(second));
            assert_eq!(none, None);
            id
        });
        // The oldest of its own, although the probe's is older.
        let (fourth, ended) = connections.admit(peer("10.0.0.2"), now + Duration::from_secs(4));
        assert_eq!(ended, Some(crowd[0]));
        // All places are taken: the crowd's next one goes, for any newcomer.
        connections.enter(crowd[1], Phase::Answering, now);
        let (scrape, ended) = connections.admit(peer("10.0.0.3"), now + Duration::from_secs(5));
        assert_eq!(ended, Some(crowd[2]));
        connections.known(scrape);
        // Three peers, each with one or two: the one who has two.
        let (_, ended) = connections.admit(peer("10.0.0.4"), now + Duration::from_secs(6));
        assert_eq!(ended, Some(fourth));
        // Each has one: who is known, and who is being answered, stays.
        let (_, ended) = connections.admit(peer("10.0.0.5"), now + Duration::from_secs(7));
        assert_eq!(ended, Some(probe));
        assert_eq!(connections.count(), 4);
        assert_eq!(
            connections.rank(peer("10.0.0.3")) + 1,
            connections.rank(peer("10.0.0.5")),
            "who is known goes first"
        );
    }

    #[test]
    fn every_phase_has_an_end_that_a_dribble_does_not_move() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut connections = Connections::default();
        let (id, _) = connections.admit(peer("10.0.0.1"), start);
        connections.received(id, at(4));
        assert_eq!(connections.overdue(at(4)), []);
        assert_eq!(connections.overdue(at(5)), [(id, Phase::Opening)]);
        assert_eq!(connections.count(), 0);

        let (id, _) = connections.admit(peer("10.0.0.1"), start);
        connections.enter(id, Phase::Idle, at(1));
        assert_eq!(connections.overdue(at(75)), []);
        connections.received(id, at(75));
        connections.received(id, at(79));
        assert_eq!(connections.overdue(at(80)), [(id, Phase::Head)]);

        let (id, _) = connections.admit(peer("10.0.0.1"), start);
        connections.enter(id, Phase::Answering, at(1));
        connections.received(id, at(30));
        assert_eq!(connections.overdue(at(31)), [(id, Phase::Answering)]);
        // What is gone is not missed.
        connections.enter(id, Phase::Idle, at(32));
        connections.ended(id);
    }
}
