//! The lanes of the binder: keys of pairs that have begun first, then claims, volumes and offers in turn, each in
//! the order in which they came.
//!
//! A key is in here once, however often it is added. Counts what client-go's work queues count.

use std::{
    collections::{BTreeMap, BTreeSet},
    vec,
};

use tokio::time::Instant;

use super::act::write::Target;
use crate::{
    controller::queue::Lane,
    kube_api::ids::{ClaimKey, VolumeName},
    metrics::QueueCounts,
};

/// Counts of both kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tallies {
    /// Of claims.
    pub claims: QueueCounts,
    /// Of volumes.
    pub volumes: QueueCounts,
}

impl Tallies {
    fn of(&mut self, target: &Target) -> &mut QueueCounts {
        match target {
            Target::Claim(_) => &mut self.claims,
            Target::Volume(_) => &mut self.volumes,
        }
    }
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look at this.
    Look(Target),
    /// Find a claim for this free volume.
    Offer(VolumeName),
}

/// Every claim and volume, as of the start: they need not wait in a [`Lane`], at three times the size, to be
/// looked at once each. In order, first the one claims, then the others.
#[derive(Debug, Default)]
struct Backlog {
    claims: [vec::IntoIter<ClaimKey>; 2],
    volumes: vec::IntoIter<VolumeName>,
    since: Option<Instant>,
}

impl Backlog {
    fn contains(&self, target: &Target) -> bool {
        match target {
            Target::Claim(key) => {
                self.claims.iter().any(|claims| claims.as_slice().binary_search(key).is_ok())
            }
            Target::Volume(name) => self.volumes.as_slice().binary_search(name).is_ok(),
        }
    }
}

/// Keys to look at.
#[derive(Debug, Default)]
pub struct Queue {
    /// Nothing is decided here, so nothing waits for a decision.
    is_closed: bool,
    urgent: Lane<Target>,
    claims: Lane<Target>,
    volumes: Lane<Target>,
    offers: Lane<VolumeName>,
    /// Keys that are looked at then, although nothing happens.
    later: BTreeSet<(Instant, Target)>,
    later_at: BTreeMap<Target, Instant>,
    backlog: Backlog,
    /// Whose turn it is.
    turn: u64,
    /// Since when what was taken last had waited.
    taken_since: Option<Instant>,
    tallies: Tallies,
}

impl Queue {
    /// One that takes nothing until it is opened.
    #[must_use]
    pub fn closed() -> Self {
        Self { is_closed: true, ..Self::default() }
    }

    /// Whether it takes keys.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_closed
    }

    /// Takes keys from now on.
    pub fn open(&mut self) {
        self.is_closed = false;
    }

    fn lane(&mut self, target: &Target) -> &mut Lane<Target> {
        match target {
            Target::Claim(_) => &mut self.claims,
            Target::Volume(_) => &mut self.volumes,
        }
    }

    /// Adds a key.
    pub fn add(&mut self, target: Target, now: Instant) {
        if !self.is_closed && !self.contains(&target) {
            self.tally(&target);
            self.lane(&target).push(target, Some(now));
        }
    }

    fn tally(&mut self, target: &Target) {
        let tally = self.tallies.of(target);
        tally.adds += 1;
        tally.depth += 1;
    }

    /// Adds keys.
    pub fn extend(&mut self, targets: impl IntoIterator<Item = Target>, now: Instant) {
        for target in targets {
            self.add(target, now);
        }
    }

    /// Adds every claim and volume of a cluster, in order, to be looked at when nothing else waits in
    /// their lane: the one claims first, then the others. Those of before have to be through.
    pub fn extend_slowly(
        &mut self,
        mut claims: [Vec<ClaimKey>; 2],
        volumes: impl IntoIterator<Item = VolumeName>,
        now: Instant,
    ) {
        let mut volumes: Vec<VolumeName> = volumes.into_iter().collect();
        for claims in &mut claims {
            claims.sort();
        }
        volumes.sort();
        let count = claims.iter().map(Vec::len).sum::<usize>();
        let (claims, volumes) = (claims.map(Vec::into_iter), volumes.into_iter());
        for (tally, count) in [(&mut self.tallies.claims, count), (&mut self.tallies.volumes, volumes.len())]
        {
            tally.adds += count as u64;
            tally.depth += count;
        }
        let is_empty = count + volumes.len() == 0;
        self.backlog = Backlog { claims, volumes, since: (!is_empty).then_some(now) };
    }

    /// Adds a key of a pair that has begun.
    pub fn add_urgent(&mut self, target: Target, now: Instant) {
        if self.is_closed || self.urgent.contains(&target) {
            return;
        }
        let since = self.lane(&target).remove(&target);
        if since.is_none() {
            self.tally(&target);
        }
        self.urgent.push(target, since.unwrap_or(Some(now)));
    }

    /// Adds a key at this time, and not at the one before.
    pub fn add_at(&mut self, target: Target, at: Instant) {
        if let Some(before) = self.later_at.insert(target.clone(), at) {
            self.later.remove(&(before, target.clone()));
        }
        self.later.insert((at, target));
    }

    /// Adds the keys whose time has come.
    pub fn add_due(&mut self, now: Instant) {
        while let Some((at, target)) = self.later.pop_first() {
            if at > now {
                self.later.insert((at, target));
                return;
            }
            self.later_at.remove(&target);
            self.add(target, now);
        }
    }

    /// When the next of them comes.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Adds a key whose request failed a while ago.
    pub fn retry(&mut self, target: Target, now: Instant) {
        if !self.is_closed {
            self.tallies.of(&target).retries += 1;
            self.add(target, now);
        }
    }

    /// Adds a free volume that no waiting claim has been offered yet.
    pub fn offer(&mut self, volume: VolumeName, now: Instant) {
        if !self.is_closed {
            self.offers.push(volume, Some(now));
        }
    }

    /// The volume is free no longer.
    pub fn withdraw_offer(&mut self, volume: &VolumeName) {
        self.offers.remove(volume);
    }

    /// Whether a key waits.
    #[must_use]
    pub fn contains(&self, target: &Target) -> bool {
        let lanes = [&self.urgent, &self.claims, &self.volumes];
        lanes.into_iter().any(|lane| lane.contains(target)) || self.backlog.contains(target)
    }

    /// Whether all that was to be looked at slowly has been.
    #[must_use]
    pub fn has_no_backlog(&self) -> bool {
        self.backlog.since.is_none()
    }

    /// Claims that wait out of turn, or for their turn, but for those that are looked at slowly.
    #[must_use]
    pub fn claims_waiting(&self) -> usize {
        self.claims.len() + self.urgent.len()
    }

    /// Takes a key that is looked at now, whether it waits or not.
    pub fn remove(&mut self, target: &Target, now: Instant) {
        let since = self.urgent.remove(target).or_else(|| self.lane(target).remove(target));
        if let Some(since) = since.flatten() {
            self.waited(target, since, now);
        }
    }

    /// Since when what was taken last had waited for its turn.
    #[must_use]
    pub fn taken_since(&self) -> Option<Instant> {
        self.taken_since
    }

    /// What comes is not what was taken.
    pub fn forget_taken(&mut self) {
        self.taken_since = None;
    }

    fn waited(&mut self, target: &Target, since: Instant, now: Instant) {
        self.taken_since = Some(since);
        let tally = self.tallies.of(target);
        tally.depth = tally.depth.saturating_sub(1);
        tally.waits.observe(now.saturating_duration_since(since));
    }

    /// Takes what comes next: a pair that has begun, else claims, volumes and offers in turn, the oldest
    /// of each first, so that a burst of one kind does not hold up the others (L15).
    pub fn pop(&mut self, now: Instant) -> Option<Next> {
        let next = self.urgent.first().cloned().map(Next::Look).or_else(|| self.in_turn(now))?;
        match &next {
            Next::Look(target) => self.remove(target, now),
            Next::Offer(volume) => self.taken_since = self.offers.remove(volume).flatten(),
        }
        Some(next)
    }

    fn in_turn(&mut self, now: Instant) -> Option<Next> {
        (0..3).find_map(|_| {
            self.turn = (self.turn + 1) % 3;
            match self.turn {
                1 => self.claims.first().cloned().or_else(|| self.of_backlog(true, now)).map(Next::Look),
                2 => self.volumes.first().cloned().or_else(|| self.of_backlog(false, now)).map(Next::Look),
                _ => self.offers.first().cloned().map(Next::Offer),
            }
        })
    }

    fn of_backlog(&mut self, claims: bool, now: Instant) -> Option<Target> {
        let Backlog { claims: [first, others], volumes: names, since } = &mut self.backlog;
        let target = if claims {
            first.next().or_else(|| others.next()).map(Target::Claim)
        } else {
            names.next().map(Target::Volume)
        };
        let since = *since;
        if first.len() + others.len() + names.len() == 0 {
            self.backlog = Backlog::default();
        }
        let target = target?;
        self.waited(&target, since?, now);
        Some(target)
    }

    /// What was counted since this was last asked.
    pub fn take_tallies(&mut self) -> Tallies {
        let depths = (self.tallies.claims.depth, self.tallies.volumes.depth);
        let tallies = std::mem::take(&mut self.tallies);
        (self.tallies.claims.depth, self.tallies.volumes.depth) = depths;
        tallies
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::WaitTimes;

    fn waits(seconds: &[u64]) -> WaitTimes {
        seconds.iter().copied().map(Duration::from_secs).collect()
    }

    fn claim(name: &str) -> Target {
        Target::Claim(ClaimKey::new("ns", name))
    }

    fn volume(name: &str) -> Target {
        Target::Volume(VolumeName::from(name))
    }

    #[test]
    fn pairs_that_have_begun_go_first_and_everything_is_counted_once() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let (a, b, volume) = (claim("a"), claim("b"), volume("v"));
        let mut queue = Queue::default();
        queue.extend([a.clone(), b.clone(), a.clone(), volume.clone()], start);
        queue.add_urgent(b.clone(), later);
        queue.add_urgent(b.clone(), later);
        assert!(queue.contains(&a) && queue.contains(&b));
        assert_eq!(queue.pop(later), Some(Next::Look(b.clone())));
        assert_eq!(queue.pop(start), Some(Next::Look(a.clone())));
        queue.retry(b.clone(), start);
        let tallies = queue.take_tallies();
        assert_eq!(tallies.claims, QueueCounts { adds: 3, retries: 1, waits: waits(&[2, 0]), depth: 1 });
        assert_eq!(tallies.volumes, QueueCounts { adds: 1, depth: 1, ..QueueCounts::default() });
        queue.remove(&b, start);
        assert_eq!((queue.pop(start), queue.pop(start)), (Some(Next::Look(volume)), None));
        let tallies = queue.take_tallies();
        assert_eq!((tallies.claims.adds, tallies.claims.depth, tallies.volumes.depth), (0, 0, 0));
    }

    #[test]
    fn the_backlog_is_looked_at_once_each_when_nothing_else_waits() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let mut queue = Queue::default();
        queue.add(claim("now"), start);
        let keys = |names: &[&str]| names.iter().map(|name| ClaimKey::new("ns", name)).collect();
        queue.extend_slowly([keys(&["z", "b"]), keys(&["a"])], ["v".into()], start);
        queue.extend([claim("a"), claim("z"), volume("v")], start);
        assert!(queue.contains(&claim("b")) && queue.contains(&volume("v")) && !queue.contains(&claim("c")));
        let order: Vec<Next> = std::iter::from_fn(|| queue.pop(later)).collect();
        let expected = [claim("now"), volume("v"), claim("b"), claim("z"), claim("a")];
        assert_eq!(order, expected.map(Next::Look));
        let tallies = queue.take_tallies();
        assert_eq!(tallies.claims, QueueCounts { adds: 4, waits: waits(&[2; 4]), ..QueueCounts::default() });
        assert_eq!((tallies.volumes.adds, tallies.volumes.depth), (1, 0));
    }

    #[test]
    fn l15_a_burst_of_claims_holds_up_neither_volumes_nor_older_claims() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.extend(["z", "a", "b"].map(claim), now);
        queue.extend(["w", "v"].map(volume), now);
        queue.offer("free".into(), now);
        queue.offer("taken".into(), now);
        queue.withdraw_offer(&"taken".into());
        let order: Vec<Next> = std::iter::from_fn(|| queue.pop(now)).collect();
        let look = Next::Look;
        assert_eq!(
            order,
            [
                look(claim("z")),
                look(volume("w")),
                Next::Offer("free".into()),
                look(claim("a")),
                look(volume("v")),
                look(claim("b")),
            ]
        );
    }
}
