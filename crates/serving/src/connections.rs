//! Which connections are open, and which one ends when there are too many.
//!
//! Whoever comes is let in. Above a limit a newcomer ends the oldest connection of its own peer, or of the peer that has
//! most: a flood ends its own connections, and a probe or a scrape has one. The addresses of the node, from which its kubelet
//! probes, compete with no other peer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::measures::{End, Measures};

/// Connections of all peers but the node.
pub(crate) const MAX_CONNECTIONS: usize = 192;
/// Connections of one peer.
pub(crate) const MAX_PER_PEER: usize = 32;

/// By age: of which peer, and what ends it.
type Open = BTreeMap<u64, (IpAddr, CancellationToken)>;

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    node: BTreeSet<IpAddr>,
    measures: Measures,
    open: Mutex<(Open, u64)>,
}

impl Connections {
    /// None yet, of a process on a node with these addresses.
    pub(super) fn new(node: &[IpAddr], measures: Measures) -> Self {
        let node = node.iter().map(IpAddr::to_canonical).collect();
        Self { node, measures, open: Mutex::default() }
    }

    /// Lets a connection of this address in, and ends another one if there are too many.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Place {
        let (peer, end) = (address.to_canonical(), CancellationToken::new());
        let mut guard = self.open.lock();
        let (open, last) = &mut *guard;
        if let Some((_, crowd)) = self.crowd(open, peer).and_then(|id| open.remove(&id)) {
            crowd.cancel();
            self.measures.ended(End::Crowded);
        }
        *last += 1;
        open.insert(*last, (peer, end.clone()));
        self.measures.accepted(open.len());
        Place { connections: Arc::clone(self), id: *last, end }
    }

    /// The connection that makes room for a further one of this peer.
    fn crowd(&self, open: &Open, peer: IpAddr) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (peer, _) in open.values() {
            *counts.entry(*peer).or_default() += 1;
        }
        let oldest =
            |of: &dyn Fn(&IpAddr) -> bool| open.iter().find(|(_, (peer, _))| of(peer)).map(|(id, _)| *id);
        if counts.get(&peer).is_some_and(|count| *count >= MAX_PER_PEER) {
            return oldest(&|other| *other == peer);
        }
        counts.retain(|other, _| !self.node.contains(other));
        if self.node.contains(&peer) || counts.values().sum::<usize>() < MAX_CONNECTIONS {
            return None;
        }
        let most = counts.values().max().copied();
        oldest(&|other| counts.get(other).copied() == most)
    }
}

/// The place of an open connection; given up when dropped.
#[derive(Debug)]
pub(super) struct Place {
    connections: Arc<Connections>,
    id: u64,
    /// Cancelled when another connection needs the place.
    pub(super) end: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (open, _) = &mut *self.connections.open.lock();
        open.remove(&self.id);
        self.connections.measures.open(open.len());
    }
}

#[cfg(test)]
mod tests {
    use telemetry::metrics::Metrics;

    use super::*;

    fn connections(node: &[IpAddr]) -> Arc<Connections> {
        Arc::new(Connections::new(node, Measures::new(&Metrics::default()).unwrap()))
    }

    fn crowd(connections: &Arc<Connections>, number: usize, peer: impl Fn(usize) -> IpAddr) -> Vec<Place> {
        (0..number).map(|number| connections.admit(peer(number))).collect()
    }

    fn ended(places: &[Place]) -> usize {
        places.iter().filter(|place| place.end.is_cancelled()).count()
    }

    #[test]
    fn a_flood_ends_its_own_connections_oldest_first() {
        let connections = connections(&[]);
        let probe = connections.admit([10, 0, 0, 1].into());
        // The same address in either form.
        let mapped: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
        let flood =
            crowd(&connections, 100, |number| if number % 2 == 0 { [10, 0, 0, 2].into() } else { mapped });
        assert!(!probe.end.is_cancelled());
        assert_eq!((ended(&flood), ended(&flood[..68])), (68, 68));
    }

    #[test]
    fn of_many_peers_the_one_with_most_makes_room() {
        let connections = connections(&[]);
        let probe = connections.admit([10, 0, 0, 1].into());
        let peers = |number: usize| IpAddr::from([10, 0, 1, u8::try_from(number % 10).unwrap()]);
        let flood = crowd(&connections, 1_000, peers);
        assert!(!probe.end.is_cancelled());
        assert_eq!(1 + flood.len() - ended(&flood), MAX_CONNECTIONS);
        // With one of each peer the oldest one goes.
        drop(flood);
        let addresses = crowd(&connections, MAX_CONNECTIONS, |number| {
            IpAddr::from([10, 0, 2, u8::try_from(number).unwrap()])
        });
        assert!(probe.end.is_cancelled());
        assert_eq!(ended(&addresses), 0);
    }

    #[test]
    fn nobody_competes_with_the_node() {
        let node: IpAddr = "fd00::9".parse().unwrap();
        let connections = connections(&[node]);
        let probe = connections.admit(node);
        let flood = crowd(&connections, 400, |number| {
            IpAddr::from([10, 0, u8::from(number > 200), u8::try_from(number % 200).unwrap()])
        });
        assert!(!probe.end.is_cancelled());
        assert_eq!(flood.len() - ended(&flood), MAX_CONNECTIONS);
        let probes = crowd(&connections, MAX_PER_PEER, |_| node);
        assert!(probe.end.is_cancelled(), "the node has no more than others");
        assert_eq!((ended(&probes), flood.len() - ended(&flood)), (0, MAX_CONNECTIONS));
    }

    #[test]
    fn who_leaves_gives_the_place_up() {
        let connections = connections(&[]);
        drop(crowd(&connections, MAX_PER_PEER, |_| [10, 0, 0, 1].into()));
        let places = crowd(&connections, MAX_PER_PEER, |_| [10, 0, 0, 1].into());
        assert_eq!(ended(&places), 0);
    }
}
