//! The lanes of the binder: keys of pairs that have begun first, then claims, volumes and offers in turn, each in
//! the order in which they came.
//!
//! What a start, a resync or a change of a class has looked at comes slowly: when nothing else waits in its lane, and at
//! least in every eighth turn, so that neither waits for all of the other (L15, L17). A key is in here once, however often it is added.
//! Counts what client-go's work queues count.

use std::{collections::BTreeMap, mem};

use apiserver::ids::VolumeName;
use tokio::time::Instant;

use super::calls::Target;
use crate::{
    controller::{queue::Lane, retry::RetryMap},
    metrics::QueueCounts,
};

/// So often a key that comes slowly goes before one that does not.
const SLOW_EVERY: u64 = 8;

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Look at this.
    Look(Target),
    /// Find a claim for this free volume.
    Offer(VolumeName),
}

/// Keys to look at.
#[derive(Debug, Default)]
pub struct Lanes {
    /// If not, nothing is decided here, so nothing waits for a decision.
    is_open: bool,
    urgent: Lane<Target>,
    claims: Lane<Target>,
    volumes: Lane<Target>,
    offers: Lane<VolumeName>,
    /// Keys that come slowly, with since when they wait: claims, claims that come after them, and volumes.
    slow: [BTreeMap<Target, Instant>; 3],
    /// Keys that are looked at then, although nothing happens.
    later: RetryMap<Target>,
    /// Whose turn it is.
    turn: u64,
    /// Of claims, and of volumes.
    counts: [QueueCounts; 2],
}

impl Lanes {
    /// Whether it takes keys.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes keys from now on.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    fn lane(&mut self, target: &Target) -> &mut Lane<Target> {
        match target {
            Target::Claim(_) => &mut self.claims,
            Target::Volume(_) => &mut self.volumes,
        }
    }

    fn counts(&mut self, target: &Target) -> &mut QueueCounts {
        let [claims, volumes] = &mut self.counts;
        match target {
            Target::Claim(_) => claims,
            Target::Volume(_) => volumes,
        }
    }

    /// Adds a key.
    pub fn add(&mut self, target: Target, now: Instant) {
        let lanes = [&self.urgent, &self.claims, &self.volumes];
        if self.is_open && !lanes.into_iter().any(|lane| lane.contains(&target)) {
            let since = self.since(&target, now);
            self.lane(&target).push(target, Some(since));
        }
    }

    /// Adds a key of a pair that has begun.
    pub fn add_urgent(&mut self, target: Target, now: Instant) {
        if self.is_open && !self.urgent.contains(&target) {
            let since = self.since(&target, now);
            self.urgent.push(target, Some(since));
        }
    }

    /// Adds a key that comes slowly; of claims, those that come last after the others.
    pub fn add_slowly(&mut self, target: Target, comes_last: bool, now: Instant) {
        if !self.is_open || self.contains(&target) {
            return;
        }
        let since = self.since(&target, now);
        let [claims, last_claims, volumes] = &mut self.slow;
        let lane = match target {
            Target::Volume(_) => volumes,
            Target::Claim(_) if comes_last => last_claims,
            Target::Claim(_) => claims,
        };
        lane.insert(target, since);
    }

    /// Since when a key that changes its place waits; a new one is counted.
    fn since(&mut self, target: &Target, now: Instant) -> Instant {
        self.take_out(target).unwrap_or_else(|| {
            let counts = self.counts(target);
            counts.adds += 1;
            counts.depth += 1;
            now
        })
    }

    fn take_out(&mut self, target: &Target) -> Option<Instant> {
        let in_lane = self.urgent.remove(target).or_else(|| self.lane(target).remove(target));
        in_lane.flatten().or_else(|| self.slow.iter_mut().find_map(|slow| slow.remove(target)))
    }

    /// Adds keys.
    pub fn extend(&mut self, targets: impl IntoIterator<Item = Target>, now: Instant) {
        for target in targets {
            self.add(target, now);
        }
    }

    /// Adds a key at this time, or at an earlier one that it has: what it waits for beyond that, the look adds again.
    pub fn add_at(&mut self, target: &Target, at: Instant) {
        if self.later.until(target).is_none_or(|earlier| at < earlier) {
            self.later.wait_until(target, at);
        }
    }

    /// Adds the keys whose time has come.
    pub fn add_due(&mut self, now: Instant) {
        for target in self.later.take_due(now) {
            self.later.clear(&target);
            self.add(target, now);
        }
    }

    /// When the next of them comes.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.next_due()
    }

    /// Adds a key whose request failed a while ago; if it is of a pair that has begun, before all others.
    pub fn retry(&mut self, target: Target, now: Instant, is_urgent: bool) {
        if self.is_open {
            self.counts(&target).retries += 1;
            if is_urgent { self.add_urgent(target, now) } else { self.add(target, now) }
        }
    }

    /// Adds a free volume that no waiting claim has been offered yet.
    pub fn offer(&mut self, volume: VolumeName, now: Instant) {
        if self.is_open {
            self.offers.push(volume, Some(now));
        }
    }

    /// The volume is free no longer.
    pub fn withdraw_offer(&mut self, volume: &VolumeName) {
        self.offers.remove(volume);
    }

    /// Whether a key waits.
    pub fn contains(&self, target: &Target) -> bool {
        let lanes = [&self.urgent, &self.claims, &self.volumes];
        lanes.into_iter().any(|lane| lane.contains(target))
            || self.slow.iter().any(|slow| slow.contains_key(target))
    }

    /// Whether all that comes slowly has come.
    pub fn has_no_slow_keys(&self) -> bool {
        self.slow.iter().all(BTreeMap::is_empty)
    }

    /// Takes a key out of turn, if it waits. Returns since when.
    pub fn take(&mut self, target: &Target, now: Instant) -> Option<Instant> {
        let since = self.take_out(target)?;
        let counts = self.counts(target);
        counts.depth = counts.depth.saturating_sub(1);
        counts.waits.push(now.saturating_duration_since(since));
        Some(since)
    }

    /// Takes what comes next, with since when it has waited: a pair that has begun, else claims, volumes and offers in turn,
    /// the oldest of each first, so that a burst of one kind does not hold up the others (L15).
    pub fn pop(&mut self, now: Instant) -> Option<(Turn, Instant)> {
        let next = self.urgent.first().cloned().map(Turn::Look).or_else(|| self.in_turn())?;
        let since = match &next {
            Turn::Look(target) => self.take(target, now),
            Turn::Offer(volume) => self.offers.remove(volume).flatten(),
        };
        Some((next, since.unwrap_or(now)))
    }

    fn in_turn(&mut self) -> Option<Turn> {
        let [claims, last_claims, volumes] = &self.slow;
        (0..3).find_map(|_| {
            self.turn = (self.turn + 1) % (3 * SLOW_EVERY);
            let (front, slow) = match self.turn % 3 {
                1 => (self.claims.first(), claims.keys().chain(last_claims.keys()).next()),
                2 => (self.volumes.first(), volumes.keys().next()),
                _ => return self.offers.first().cloned().map(Turn::Offer),
            };
            let is_slows_turn = self.turn >= 3 * (SLOW_EVERY - 1);
            let next = if is_slows_turn { slow.or(front) } else { front.or(slow) };
            next.cloned().map(Turn::Look)
        })
    }

    /// What was counted since this was last asked, of claims and of volumes.
    pub fn take_counts(&mut self) -> [QueueCounts; 2] {
        self.counts.each_mut().map(|counts| {
            let left = QueueCounts { depth: counts.depth, ..QueueCounts::default() };
            mem::replace(counts, left)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::ClaimKey;

    use super::*;

    fn waits(seconds: &[u64]) -> Vec<Duration> {
        seconds.iter().copied().map(Duration::from_secs).collect()
    }

    fn next(queue: &mut Lanes, now: Instant) -> Option<Turn> {
        queue.pop(now).map(|(turn, _)| turn)
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
        let mut queue = Lanes::default();
        queue.open();
        queue.extend([a.clone(), b.clone(), a.clone(), volume.clone()], start);
        queue.add_urgent(b.clone(), later);
        queue.add_urgent(b.clone(), later);
        assert!(queue.contains(&a) && queue.contains(&b));
        assert_eq!(next(&mut queue, later), Some(Turn::Look(b.clone())));
        assert_eq!(next(&mut queue, start), Some(Turn::Look(a.clone())));
        queue.retry(b.clone(), start, false);
        let [claims, volumes] = queue.take_counts();
        assert_eq!(claims, QueueCounts { adds: 3, retries: 1, waits: waits(&[2, 0]), depth: 1 });
        assert_eq!(volumes, QueueCounts { adds: 1, depth: 1, ..QueueCounts::default() });
        queue.take(&b, start);
        assert_eq!((next(&mut queue, start), next(&mut queue, start)), (Some(Turn::Look(volume)), None));
        let [claims, volumes] = queue.take_counts();
        assert_eq!((claims.adds, claims.depth, volumes.depth), (0, 0, 0));
    }

    #[test]
    fn what_comes_slowly_comes_once_when_nothing_else_waits() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let mut queue = Lanes::default();
        queue.open();
        for (target, comes_last) in
            [("a", true), ("z", false), ("b", false)].map(|(name, last)| (claim(name), last))
        {
            queue.add_slowly(target, comes_last, start);
        }
        for name in ["v", "w"] {
            queue.add_slowly(volume(name), false, start);
        }
        queue.extend([claim("now"), volume("w"), claim("now")], later);
        queue.add_slowly(claim("now"), false, later);
        assert!(queue.contains(&claim("b")) && queue.contains(&volume("v")) && !queue.contains(&claim("c")));
        let order: Vec<Turn> = std::iter::from_fn(|| next(&mut queue, later)).collect();
        let expected = [claim("now"), volume("w"), claim("b"), volume("v"), claim("z"), claim("a")];
        assert_eq!(order, expected.map(Turn::Look));
        let [claims, volumes] = queue.take_counts();
        let waited = waits(&[0, 2, 2, 2]);
        assert_eq!(claims, QueueCounts { adds: 4, waits: waited, ..QueueCounts::default() });
        assert_eq!((volumes.adds, volumes.depth), (2, 0));
        assert!(queue.has_no_slow_keys());
    }

    #[test]
    fn l17_what_comes_slowly_comes_while_others_go_on_coming() {
        let now = Instant::now();
        let mut queue = Lanes::default();
        queue.open();
        queue.add_slowly(claim("slow"), false, now);
        let order: Vec<Turn> = (0..SLOW_EVERY)
            .filter_map(|number| {
                queue.extend([claim(&number.to_string())], now);
                next(&mut queue, now)
            })
            .collect();
        let place = order.iter().position(|turn| *turn == Turn::Look(claim("slow")));
        assert_eq!(place, usize::try_from(SLOW_EVERY - 1).ok());
    }

    #[test]
    fn l15_a_burst_of_claims_holds_up_neither_volumes_nor_older_claims() {
        let now = Instant::now();
        let mut queue = Lanes::default();
        queue.open();
        queue.extend(["z", "a", "b"].map(claim), now);
        queue.extend(["w", "v"].map(volume), now);
        queue.offer("free".into(), now);
        queue.offer("taken".into(), now);
        queue.withdraw_offer(&"taken".into());
        let order: Vec<Turn> = std::iter::from_fn(|| next(&mut queue, now)).collect();
        let look = Turn::Look;
        assert_eq!(
            order,
            [
                look(claim("z")),
                look(volume("w")),
                Turn::Offer("free".into()),
                look(claim("a")),
                look(volume("v")),
                look(claim("b")),
            ]
        );
    }
}
