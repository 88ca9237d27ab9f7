//! A planner with the memory of events that the skeleton keeps for it.

use super::*;

/// How many decisions were made, by kind and reason.
fn decisions(plan: &Plan) -> BTreeMap<(&'static str, &'static str), u64> {
    let mut decisions = BTreeMap::new();
    for report in plan.reports.iter().filter(|report| report.is_decision) {
        let Some(reason) = &report.reason else { continue };
        *decisions.entry((report.key.kind(), reason.decided())).or_default() += 1;
    }
    decisions
}

/// A planner and the memory of its events, as in the skeleton.
pub(super) struct Recording {
    planner: Planner,
    events: RecordedEvents<Target>,
}

/// A plan with the events that are recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) ops: Vec<Op>,
    pub(super) events: Vec<Event>,
    pub(super) decisions: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) failures: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) samples: Vec<Sample>,
    pub(super) counts: [QueueCounts; 2],
    pub(super) others: Option<News>,
    pub(super) wake_at: Option<Instant>,
    pub(super) looks: usize,
    pub(super) compared: usize,
}

impl Recording {
    pub(super) fn new(planner: Planner) -> Self {
        Self { planner, events: RecordedEvents::default() }
    }

    pub(super) fn plan(&mut self, now: Instant) -> Recorded {
        let plan = self.planner.plan(now);
        let decisions = decisions(&plan);
        let events = self.events.take(plan.events, |_| None, now);
        let wake_at = plan.wake_at.into_iter().chain(self.events.next_due()).min();
        let events = events.into_iter().map(|(_, event)| event).collect();
        let Plan { calls: ops, counts, others, measures, .. } = plan;
        let Measures { failed: failures, samples, looks, compared } = measures;
        let counts = counts.try_into().unwrap();
        Recorded { ops, events, decisions, failures, samples, counts, others, wake_at, looks, compared }
    }

    pub(super) fn lost(&mut self, event: Keyed<Target>, now: Instant) {
        self.events.lost(event, now);
    }
}

impl Deref for Recording {
    type Target = Planner;

    fn deref(&self) -> &Planner {
        &self.planner
    }
}

impl DerefMut for Recording {
    fn deref_mut(&mut self) -> &mut Planner {
        &mut self.planner
    }
}
