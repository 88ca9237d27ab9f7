//! The keys to look at: those of pairs that have begun first, the rest in order of their names.
//!
//! A key is in here once, however often it is added. Counts what client-go's work queues count.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::decision::Target;

/// Counts of one kind of keys since they were last taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Keys added.
    pub adds: u64,
    /// Of them, those that are tried again after a failure.
    pub retries: u64,
    /// How long the keys that were looked at had waited.
    pub waits: Vec<Duration>,
    /// Keys that wait now.
    pub depth: usize,
}

/// Counts of both kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tallies {
    /// Of claims.
    pub claims: Tally,
    /// Of volumes.
    pub volumes: Tally,
}

impl Tallies {
    fn of(&mut self, target: &Target) -> &mut Tally {
        match target {
            Target::Claim(_) => &mut self.claims,
            Target::Volume(_) => &mut self.volumes,
        }
    }
}

/// Keys to look at.
#[derive(Debug, Default)]
pub struct Queue {
    since: BTreeMap<Target, Instant>,
    urgent: BTreeSet<Target>,
    tallies: Tallies,
}

impl Queue {
    /// Adds a key.
    pub fn add(&mut self, target: Target, now: Instant) {
        if !self.since.contains_key(&target) {
            let tally = self.tallies.of(&target);
            tally.adds += 1;
            tally.depth += 1;
            self.since.insert(target, now);
        }
    }

    /// Adds keys.
    pub fn extend(&mut self, targets: impl IntoIterator<Item = Target>, now: Instant) {
        for target in targets {
            self.add(target, now);
        }
    }

    /// Adds a key of a pair that has begun.
    pub fn add_urgent(&mut self, target: Target, now: Instant) {
        self.urgent.insert(target.clone());
        self.add(target, now);
    }

    /// Adds a key whose request failed a while ago.
    pub fn retry(&mut self, target: Target, now: Instant) {
        self.tallies.of(&target).retries += 1;
        self.add(target, now);
    }

    /// Whether a key waits.
    #[must_use]
    pub fn contains(&self, target: &Target) -> bool {
        self.since.contains_key(target)
    }

    /// Takes a key that is looked at now, whether it waits or not.
    pub fn remove(&mut self, target: &Target, now: Instant) {
        self.urgent.remove(target);
        if let Some(since) = self.since.remove(target) {
            let tally = self.tallies.of(target);
            tally.depth = tally.depth.saturating_sub(1);
            tally.waits.push(now.saturating_duration_since(since));
        }
    }

    /// Takes the next key.
    pub fn pop(&mut self, now: Instant) -> Option<Target> {
        let target = self.urgent.first().cloned().or_else(|| self.since.keys().next().cloned())?;
        self.remove(&target, now);
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
    use super::*;
    use crate::kube_api::ids::{ClaimKey, VolumeName};

    #[test]
    fn pairs_that_have_begun_go_first_and_everything_is_counted_once() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        let (a, b) = (Target::Claim(ClaimKey::new("ns", "a")), Target::Claim(ClaimKey::new("ns", "b")));
        let volume = Target::Volume(VolumeName::from("v"));
        let mut queue = Queue::default();
        queue.extend([a.clone(), a.clone(), volume.clone()], start);
        queue.add_urgent(b.clone(), start);
        assert!(queue.contains(&a));
        assert_eq!(queue.pop(later), Some(b.clone()));
        assert_eq!(queue.pop(start), Some(a.clone()));
        queue.retry(b.clone(), start);
        let tallies = queue.take_tallies();
        let waits = vec![Duration::from_secs(2), Duration::ZERO];
        assert_eq!(tallies.claims, Tally { adds: 3, retries: 1, waits, depth: 1 });
        assert_eq!(tallies.volumes, Tally { adds: 1, depth: 1, ..Tally::default() });
        queue.remove(&b, start);
        assert_eq!((queue.pop(start), queue.pop(start)), (Some(volume), None));
        let tallies = queue.take_tallies();
        assert_eq!((tallies.claims.adds, tallies.claims.depth, tallies.volumes.depth), (0, 0, 0));
    }
}
