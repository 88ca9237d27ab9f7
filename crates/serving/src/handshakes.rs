//! Whose TLS handshake is next.
//!
//! A handshake is most of what a connection costs, and a thousand that begin at once would keep a probe
//! waiting for as long as they all take. So each takes a turn when its first message is there, one
//! at a time: first the node, then the peer with the fewest connections. Between two turns everything else is served.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
};

#[derive(Debug, Default)]
struct Waiting {
    /// By the rank of the peer, then by arrival.
    queue: BTreeMap<(usize, u64), oneshot::Sender<()>>,
    arrivals: u64,
}

/// Who waits for a turn.
#[derive(Debug, Default)]
pub(super) struct HandshakeQueue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

impl HandshakeQueue {
    /// Waits for a turn of [`super::connections::Connections::rank`], which ends when the caller next waits for anything.
    pub(super) async fn take(&self, rank: usize) {
        let (sender, turn) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            waiting.arrivals += 1;
            let key = (rank, waiting.arrivals);
            waiting.queue.insert(key, sender);
        }
        self.arrived.notify_one();
        // Without a giver of turns no peer waits.
        let _ = turn.await;
    }

    /// Gives turns, for ever.
    pub(super) async fn give(&self) {
        loop {
            let next = self.waiting.lock().queue.pop_first();
            let Some((_, sender)) = next else {
                self.arrived.notified().await;
                continue;
            };
            // A peer that has left meanwhile takes no time.
            if sender.send(()).is_ok() {
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    #[tokio::test]
    async fn the_one_with_the_fewest_connections_is_next() {
        let turns = Arc::new(HandshakeQueue::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let wait = |name: &'static str, connections| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                turns.take(connections).await;
                order.lock().push(name);
            })
        };
        let crowd = [wait("crowd 1", 5), wait("crowd 2", 5), wait("crowd 3", 4)];
        let leaves = wait("leaves", 1);
        tokio::task::yield_now().await;
        leaves.abort();
        let probe = wait("probe", 1);
        tokio::task::yield_now().await;
        let giving = Arc::clone(&turns);
        let _giving = AbortOnDropHandle::new(tokio::spawn(async move { giving.give().await }));
        probe.await.unwrap();
        for one in crowd {
            one.await.unwrap();
        }
        assert_eq!(*order.lock(), ["probe", "crowd 3", "crowd 1", "crowd 2"]);
        // And later ones are not forgotten.
        wait("late", 9).await.unwrap();
    }
}
