//! What the view shows: one value, taken now and then.

use std::{collections::VecDeque, time::Duration};

use super::lines::{Line, Verb};

/// How far back rates look.
const WINDOW: Duration = Duration::from_secs(10);

/// A name and a number.
pub type Count = (&'static str, usize);

/// The state of everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Since the demo began.
    pub elapsed: Duration,
    /// Of the script.
    pub seed: u64,
    /// Path of the kubeconfig.
    pub kubeconfig: String,
    /// Address of the page.
    pub page: String,
    /// Volumes by state.
    pub volumes: Vec<Count>,
    /// Claims by phase.
    pub claims: Vec<Count>,
    /// Pods by state.
    pub pods: Vec<Count>,
    /// How often things happen.
    pub rates: Vec<Rate>,
    /// The nodes.
    pub nodes: Vec<NodeRow>,
    /// What waits, longest first.
    pub waiting: Vec<WaitingRow>,
    /// What happened last, oldest first.
    pub lines: Vec<Line>,
}

/// How often something happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What.
    pub name: &'static str,
    /// Per second, over the last ten.
    pub per_second: f64,
    /// Since the demo began.
    pub total: usize,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Whether it is well, and if not, why.
    pub state: &'static str,
    /// Number of volumes that are attached to it.
    pub attached: usize,
}

/// Something that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRow {
    /// What.
    pub subject: String,
    /// For what, in the daemon's words.
    pub reason: String,
}

/// Counts what happens.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    totals: [usize; TALLIED.len()],
    /// Older totals, and when they were so.
    past: VecDeque<(Duration, [usize; TALLIED.len()])>,
}

/// What is counted, and its name.
const TALLIED: [(Verb, &str); 5] = [
    (Verb::Bind, "binds"),
    (Verb::Attach, "attaches"),
    (Verb::Detach, "detaches"),
    (Verb::Force, "by force"),
    (Verb::Move, "moves"),
];

impl Tally {
    /// Counts a line.
    pub fn count(&mut self, line: &Line) {
        for ((verb, _), total) in TALLIED.iter().zip(&mut self.totals) {
            *total += usize::from(*verb == line.verb);
        }
    }

    /// How often things happen, seen from `now`.
    pub fn rates(&mut self, now: Duration) -> Vec<Rate> {
        while self.past.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= WINDOW) {
            self.past.pop_front();
        }
        let (since, before) = self.past.front().copied().unwrap_or_default();
        self.past.push_back((now, self.totals));
        // A demo that has just begun has no rates worth telling.
        let seconds = now.saturating_sub(since).as_secs_f64().max(1.0);
        let rates = TALLIED.iter().zip(self.totals.iter().zip(before));
        rates
            .map(|((_, name), (total, before))| {
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let happened = (total - before) as f64;
                Rate { name, per_second: happened / seconds, total: *total }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_look_back_ten_seconds() {
        let mut tally = Tally::default();
        let line =
            Line { at: Duration::ZERO, verb: Verb::Attach, subject: String::new(), text: String::new() };
        let mut seen = Vec::new();
        for second in 1..=30 {
            if second <= 10 {
                tally.count(&line);
                tally.count(&line);
            }
            let rates = tally.rates(Duration::from_secs(second));
            let attaches = rates.iter().find(|rate| rate.name == "attaches").unwrap();
            seen.push((attaches.per_second, attaches.total));
        }
        assert_eq!(seen[0], (2.0, 2));
        assert_eq!(seen[9], (2.0, 20));
        assert_eq!(seen[14], (1.0, 20));
        assert_eq!(seen[29], (0.0, 20));
        assert!(tally.past.len() < 13);
    }
}
