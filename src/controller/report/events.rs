//! Which events are recorded, and when again (client-go: `EventCorrelator`).
//!
//! In: the events that hold of each key, by topic, and those of what has happened. Out: the events to record: each once while it
//! holds, at once or when the wait that it is about has lasted for some time; handed out again every few minutes as
//! [`Novelty::Standing`], and again if it was lost. The API server drops an event after an hour (`--event-ttl`); the writer
//! finds out whether one that stands has to be written again before, so that `kubectl describe` is never empty. A key
//! without events costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use apiserver::events::{Event, Novelty};
use educe::Educe;
use tokio::time::Instant;

/// After so long the writer gets an event that still holds again. When a process before this one has recorded it, only the
/// server knows for how long it stands.
const REPEAT_AFTER: Duration = Duration::from_mins(10);

/// After so long a lost event is recorded again: the queue that had no room has some by then.
const AFTER_LOSS: Duration = Duration::from_secs(30);

/// So many events are recorded again at once; what came in meanwhile goes first.
const PORTION: usize = 500;

/// So many lost events of what has happened are remembered: as many as there are pods in a large cluster, some 300 bytes
/// each for as long as the burst lasts.
const LOST: usize = 150_000;

/// What an event of a key is about. Events of different topics hold independently.
pub type Topic = &'static str;

/// What a plan reports in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventUpdate<K> {
    /// These hold of the key, on this topic, and no others.
    Hold(K, Topic, Vec<Event>),
    /// The same, if a wait lasts that long.
    Lasting(K, Topic, Vec<Event>, EventPatience<K>),
    /// On these topics nothing holds of the key any more. If an event of one was recorded, these have happened.
    Ended(K, &'static [Topic], Vec<Event>),
    /// A write of ours about the key caused these. They are recorded, and if they hold afterwards, that is no news.
    Caused(K, Topic, Vec<Event>),
    /// This has happened, and nothing of it holds.
    Happened(Event),
    /// Of the key nothing is reported now, on these topics. If an event of them holds again, that is no news.
    Pause(K, &'static [Topic]),
    /// Nothing holds of the key.
    Forget(K),
}

/// How long a wait lasts before an event of it is recorded. A wait for another reason begins anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPatience<K> {
    /// The wait is that of the first of these keys that waits, or begins now.
    pub waits: Vec<K>,
    /// How long it lasts.
    pub lasts: Duration,
}

/// An event that was recorded, or is to be.
#[derive(Clone, Debug)]
struct Recorded {
    topic: Topic,
    event: Event,
    /// Whether it holds.
    holds: bool,
    way: Way,
    /// When it is recorded, or recorded again.
    again: Option<Instant>,
}

/// How far an event is on its way to the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Its wait has not lasted long enough.
    Early,
    /// There was no room for it.
    Lost,
    /// The writer has it.
    Taken,
}

impl Recorded {
    fn new(topic: Topic, event: Event) -> Self {
        Self { topic, event, holds: true, way: Way::Early, again: None }
    }
}

/// The events that were recorded of each key.
#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct RecordedEvents<K> {
    keys: BTreeMap<K, Vec<Recorded>>,
    /// When the first event of a key is recorded again.
    due: BTreeSet<(Instant, K)>,
    /// Events of what has happened that never reached the writer, and when they are recorded again.
    lost: VecDeque<(Instant, Event)>,
}

/// An event to record, with the key of which it holds.
pub type Keyed<K> = (Option<K>, Event);

impl<K: Ord + Clone> RecordedEvents<K> {
    /// Takes what a plan reports, with the time since when a key waits. Returns the events to record: those that are news,
    /// and then those that are due again.
    pub fn take(
        &mut self,
        updates: Vec<EventUpdate<K>>,
        since: impl Fn(&K) -> Option<Instant>,
        now: Instant,
    ) -> Vec<Keyed<K>> {
        let news: Vec<_> = updates.into_iter().flat_map(|update| self.update(update, &since, now)).collect();
        news.into_iter().chain(self.take_due(now)).collect()
    }

    fn update(
        &mut self,
        update: EventUpdate<K>,
        since: impl Fn(&K) -> Option<Instant>,
        now: Instant,
    ) -> Vec<Keyed<K>> {
        match update {
            EventUpdate::Hold(key, topic, events) => self.hold(&key, topic, events, now, now),
            EventUpdate::Lasting(key, topic, events, EventPatience { waits, lasts }) => {
                let from = waits.iter().find_map(since).unwrap_or(now) + lasts;
                self.hold(&key, topic, events, from, now)
            }
            EventUpdate::Caused(key, topic, events) => {
                let mut recorded = self.remove(&key);
                recorded.retain(|before| !events.iter().any(|event| is_same(&before.event, event)));
                let events: Vec<Event> =
                    events.into_iter().map(|event| Event { novelty: Novelty::New, ..event }).collect();
                let caused = |event| Recorded {
                    holds: false,
                    way: Way::Taken,
                    again: Some(now + REPEAT_AFTER),
                    ..Recorded::new(topic, event)
                };
                recorded.extend(events.iter().cloned().map(caused));
                self.keep(&key, recorded);
                events.into_iter().map(|event| (Some(key.clone()), event)).collect()
            }
            EventUpdate::Ended(key, topics, events) => {
                let mut recorded = self.keys.get(&key).into_iter().flatten();
                let is_told = recorded.any(|it| topics.contains(&it.topic) && it.way != Way::Early);
                for topic in topics {
                    self.hold(&key, topic, Vec::new(), now, now);
                }
                events.into_iter().filter(|_| is_told).map(|event| (None, event)).collect()
            }
            EventUpdate::Happened(event) => vec![(None, event)],
            EventUpdate::Pause(key, topics) => {
                let recorded = self.keys.get_mut(&key).into_iter().flatten();
                recorded
                    .filter(|recorded| topics.contains(&recorded.topic))
                    .for_each(|recorded| recorded.holds = false);
                Vec::new()
            }
            EventUpdate::Forget(key) => {
                self.remove(&key);
                Vec::new()
            }
        }
    }

    /// These are to be recorded from some time on, if they hold then.
    fn hold(
        &mut self,
        key: &K,
        topic: Topic,
        events: Vec<Event>,
        from: Instant,
        now: Instant,
    ) -> Vec<Keyed<K>> {
        if events.is_empty() && !self.keys.contains_key(key) {
            return Vec::new();
        }
        let is_early = from > now;
        let (mut before, mut recorded): (Vec<_>, Vec<_>) =
            self.remove(key).into_iter().partition(|recorded| recorded.topic == topic);
        let mut news = Vec::new();
        for event in events {
            let known = before.iter().position(|before| is_same(&before.event, &event));
            let known = known.map(|index| before.swap_remove(index));
            let known = known.filter(|known| is_early || known.way != Way::Early);
            // One that is known and is not to be recorded again was due while it did not hold.
            let novelty = if known.is_some() { Novelty::Standing } else { event.novelty };
            let mut held = known.unwrap_or_else(|| Recorded::new(topic, event.clone()));
            if is_early {
                held.again = Some(from);
            } else if held.again.is_none() {
                news.push((Some(key.clone()), Event { novelty, ..event }));
                (held.way, held.again) = (Way::Taken, Some(now + REPEAT_AFTER));
            }
            held.holds = true;
            recorded.push(held);
        }
        if is_early {
            // What was said before may be said again before that.
            recorded.extend(before.into_iter().map(|before| Recorded { holds: false, ..before }));
        }
        self.keep(key, recorded);
        news
    }

    /// An event never reached the writer. Returns whether another one is given up for it.
    pub fn lost(&mut self, (key, event): Keyed<K>, now: Instant) -> bool {
        let again = now + AFTER_LOSS;
        // What a write has caused is over by the next look.
        let Some(key) = key.filter(|_| event.novelty != Novelty::New) else {
            let given_up = (self.lost.len() == LOST).then(|| self.lost.pop_front());
            self.lost.push_back((again, event));
            return given_up.is_some();
        };
        let mut recorded = self.remove(&key);
        for recorded in &mut recorded {
            if is_same(&recorded.event, &event) {
                if event.novelty != Novelty::Standing {
                    recorded.way = Way::Lost;
                }
                recorded.again = Some(again);
            }
        }
        self.keep(&key, recorded);
        false
    }

    /// All events of what has happened that never reached the writer.
    pub fn take_lost(&mut self) -> impl Iterator<Item = Event> {
        self.lost.drain(..).map(|(_, event)| event)
    }

    fn take_due(&mut self, now: Instant) -> Vec<Keyed<K>> {
        let mut events = Vec::new();
        while events.len() < PORTION
            && let Some((_, event)) = self.lost.pop_front_if(|(again, _)| *again <= now)
        {
            events.push((None, event));
        }
        while events.len() < PORTION && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.due.pop_first() else { break };
            let mut recorded = self.keys.remove(&key).unwrap_or_default();
            // What is yet to be recorded and does not hold is news when it does, and so is what was said before it.
            let is_due = |recorded: &Recorded| recorded.again.is_some_and(|at| at <= now);
            let begun = recorded.iter().filter(|it| it.way == Way::Early && it.holds && is_due(it));
            let begun: Vec<Topic> = begun.map(|recorded| recorded.topic).collect();
            recorded.retain(|it| it.holds || !(it.way != Way::Taken || begun.contains(&it.topic)));
            for recorded in recorded.iter_mut().filter(|recorded| is_due(recorded)) {
                if recorded.holds {
                    let is_taken = recorded.way == Way::Taken;
                    let novelty = if is_taken { Novelty::Standing } else { recorded.event.novelty };
                    events.push((Some(key.clone()), Event { novelty, ..recorded.event.clone() }));
                }
                recorded.way = Way::Taken;
                recorded.again = recorded.holds.then_some(now + REPEAT_AFTER);
            }
            self.keep(&key, recorded);
        }
        events
    }

    /// When the next event is recorded again.
    pub fn next_due(&self) -> Option<Instant> {
        let lost = self.lost.front().map(|(at, _)| *at);
        self.due.first().map(|(at, _)| *at).into_iter().chain(lost).min()
    }

    fn remove(&mut self, key: &K) -> Vec<Recorded> {
        let recorded = self.keys.remove(key).unwrap_or_default();
        if let Some(due) = due(&recorded) {
            self.due.remove(&(due, key.clone()));
        }
        recorded
    }

    fn keep(&mut self, key: &K, recorded: Vec<Recorded>) {
        if let Some(due) = due(&recorded) {
            self.due.insert((due, key.clone()));
        }
        if !recorded.is_empty() {
            self.keys.insert(key.clone(), recorded);
        }
    }
}

/// When the first of these is recorded again.
fn due(recorded: &[Recorded]) -> Option<Instant> {
    recorded.iter().filter_map(|recorded| recorded.again).min()
}

/// Whether both say the same to the same reader.
fn is_same(event: &Event, other: &Event) -> bool {
    event.involved.uid == other.involved.uid && event.reason == other.reason && event.message == other.message
}

#[cfg(test)]
mod tests {
    use apiserver::{
        events::{EventType, Involved},
        kinds::PersistentVolumeClaim,
    };

    use super::*;
    const DECISION: Topic = "decision";

    fn about(uid: &str, reason: &'static str, message: &str) -> Event {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.uid = uid.into();
        Event {
            involved: Involved::object(&claim),
            r#type: EventType::Normal,
            reason,
            message: message.to_owned(),
            novelty: Novelty::default(),
            subject: None,
        }
    }

    fn event(message: &str) -> Event {
        about("u", "FailedBinding", message)
    }

    /// What is recorded, if no key waits.
    fn take<K: Ord + Clone>(
        events: &mut RecordedEvents<K>,
        updates: Vec<EventUpdate<K>>,
        now: Instant,
    ) -> Vec<Keyed<K>> {
        events.take(updates, |_| None, now)
    }

    fn shown(events: Vec<Keyed<&'static str>>) -> Vec<(String, Novelty)> {
        events.into_iter().map(|(_, event)| (event.message, event.novelty)).collect()
    }

    /// Each step: its minute, what is reported, and what is recorded.
    #[test]
    fn s47_an_event_is_recorded_when_it_begins_to_hold_and_then_as_one_that_stands() {
        use EventUpdate::{Caused, Forget, Happened, Hold, Pause};
        let unclear = |text: &str| (text.to_owned(), Novelty::Unclear);
        let standing = |text: &str| (text.to_owned(), Novelty::Standing);
        let new = |text: &str| (text.to_owned(), Novelty::New);
        let hold = |topic, texts: &[&str]| Hold("key", topic, texts.iter().map(|text| event(text)).collect());
        let steps = [
            (0, hold(DECISION, &["a", "b"]), vec![unclear("a"), unclear("b")]),
            (1, hold(DECISION, &["a", "b"]), vec![]),
            (2, hold(DECISION, &["a", "c"]), vec![unclear("c")]),
            (3, hold("failure", &["refused"]), vec![unclear("refused")]),
            (4, hold(DECISION, &["c"]), vec![]),
            (11, hold(DECISION, &["c"]), vec![]),
            (12, hold(DECISION, &["c"]), vec![standing("c")]),
            (13, hold(DECISION, &["c"]), vec![standing("refused")]),
            (14, hold("failure", &[]), vec![]),
            (15, hold(DECISION, &[]), vec![]),
            (16, hold(DECISION, &["c"]), vec![unclear("c")]),
            (17, Caused("key", DECISION, vec![event("written")]), vec![new("written")]),
            (18, hold(DECISION, &["written"]), vec![]),
            (19, Happened(event("done")), vec![unclear("done")]),
            (28, hold(DECISION, &["written"]), vec![standing("written")]),
            (29, Forget("key"), vec![]),
            (30, hold(DECISION, &["a"]), vec![unclear("a")]),
            (31, Pause("key", &[DECISION]), vec![]),
            (32, hold(DECISION, &["a"]), vec![]),
            (39, Pause("key", &[DECISION]), vec![]),
            (40, Pause("key", &[DECISION]), vec![]),
            // It was due meanwhile.
            (41, hold(DECISION, &["a"]), vec![standing("a")]),
            (42, hold(DECISION, &["a"]), vec![]),
            (50, Forget("key"), vec![]),
            (51, Forget("key"), vec![]),
            (52, hold(DECISION, &["written"]), vec![unclear("written")]),
        ];
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        for (minute, update, expected) in steps {
            let now = start + Duration::from_mins(minute);
            assert_eq!(shown(take(&mut events, vec![update], now)), expected, "minute {minute}");
        }
    }

    #[test]
    fn what_was_caused_and_does_not_hold_is_not_recorded_again() {
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        take(&mut events, vec![EventUpdate::Caused("key", DECISION, vec![event("written")])], start);
        assert_eq!(take(&mut events, Vec::new(), start + REPEAT_AFTER), []);
        assert_eq!(events.next_due(), None);
    }

    /// The update that ends it comes with the plan in which it is due.
    #[test]
    fn what_is_over_is_not_recorded_again() {
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        take(&mut events, vec![EventUpdate::Hold("key", DECISION, vec![event("a")])], start);
        let over = vec![EventUpdate::Hold("key", DECISION, Vec::new())];
        assert_eq!(take(&mut events, over, start + REPEAT_AFTER), []);
    }

    #[test]
    fn a_lost_event_is_recorded_again_unless_it_holds_no_more() {
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let updates = vec![
            EventUpdate::Hold("a", DECISION, vec![event("holds")]),
            EventUpdate::Hold("b", DECISION, vec![event("is over")]),
            EventUpdate::Hold("c", DECISION, vec![event("is paused")]),
            EventUpdate::Caused("d", DECISION, vec![event("was caused")]),
            EventUpdate::Happened(event("has happened")),
        ];
        let recorded = take(&mut events, updates, start);
        for event in recorded {
            events.lost(event, start);
        }
        let updates = vec![
            EventUpdate::Hold("b", DECISION, Vec::new()),
            EventUpdate::Pause("c", &[DECISION]),
            EventUpdate::Forget("d"),
        ];
        take(&mut events, updates, at(1));
        assert_eq!(events.next_due(), Some(at(30)));
        assert_eq!(take(&mut events, Vec::new(), at(29)), []);
        let unclear = |text: &str| (text.to_owned(), Novelty::Unclear);
        let expected = [("was caused".to_owned(), Novelty::New), unclear("has happened"), unclear("holds")];
        assert_eq!(shown(take(&mut events, Vec::new(), at(30))), expected);
        assert_eq!(events.next_due(), Some(at(30) + REPEAT_AFTER));
        let again = EventUpdate::Hold("c", DECISION, vec![event("is paused")]);
        assert_eq!(shown(take(&mut events, vec![again], at(31))), [unclear("is paused")]);
    }

    /// Each step: its second, since when the key waits, what is reported, and what is recorded.
    #[test]
    fn an_event_with_patience_is_recorded_once_its_wait_has_lasted() {
        use EventUpdate::{Ended, Hold, Lasting, Pause};
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let unclear = |text: &str| (text.to_owned(), Novelty::Unclear);
        let lasting = |text: &str| {
            let patience = EventPatience { waits: vec!["holder", "key"], lasts: Duration::from_secs(10) };
            Some(Lasting("key", DECISION, vec![event(text)], patience))
        };
        let hold = |text: &str| Some(Hold("key", DECISION, vec![event(text)]));
        let ended = || Some(Ended("key", &[DECISION], vec![event("over")]));
        let steps = [
            (0, 0, lasting("a"), vec![]),
            (9, 0, lasting("a"), vec![]),
            (10, 0, None, vec![unclear("a")]),
            (11, 0, lasting("a"), vec![]),
            // Another wait. What was said before may be said again until it has lasted.
            (12, 12, hold("error"), vec![unclear("error")]),
            (13, 13, lasting("b"), vec![]),
            (14, 14, hold("error"), vec![]),
            (15, 15, lasting("b"), vec![]),
            (25, 15, None, vec![unclear("b")]),
            (26, 26, hold("error"), vec![unclear("error")]),
            // It begins anew, and ends before it has lasted.
            (30, 30, lasting("c"), vec![]),
            (35, 35, lasting("c"), vec![]),
            (40, 35, None, vec![]),
            (41, 35, Some(Pause("key", &[DECISION])), vec![]),
            (45, 35, None, vec![]),
            // It has lasted when it is reported, or is said at once all the same.
            (46, 36, lasting("c"), vec![unclear("c")]),
            (50, 50, lasting("d"), vec![]),
            (51, 50, hold("d"), vec![unclear("d")]),
            (60, 50, None, vec![]),
            // Its end is told if it was told itself.
            (61, 61, ended(), vec![unclear("over")]),
            (62, 62, lasting("e"), vec![]),
            (63, 62, ended(), vec![]),
            (72, 62, None, vec![]),
        ];
        for (second, waits_since, update, expected) in steps {
            let since = |key: &&str| (*key == "key").then(|| at(waits_since));
            let recorded = events.take(update.into_iter().collect(), since, at(second));
            assert_eq!(shown(recorded), expected, "second {second}");
        }
    }

    #[test]
    fn what_is_due_again_is_recorded_in_portions() {
        let (start, mut events) = (Instant::now(), RecordedEvents::default());
        let hold = |key: usize| EventUpdate::Hold(key, DECISION, vec![event("a")]);
        take(&mut events, (0..=PORTION).map(hold).collect(), start);
        let due = start + REPEAT_AFTER;
        assert_eq!(take(&mut events, Vec::new(), due).len(), PORTION);
        assert_eq!(events.next_due(), Some(due));
        assert_eq!(take(&mut events, Vec::new(), due).len(), 1);
    }

    #[test]
    fn what_differs_in_its_object_its_reason_or_its_text_is_news() {
        let now = Instant::now();
        let rows = [
            (about("u", "FailedBinding", "a"), 0),
            (about("other", "FailedBinding", "a"), 1),
            (about("u", "ClaimLost", "a"), 1),
            (about("u", "FailedBinding", "b"), 1),
        ];
        for (later, news) in rows {
            let mut events = RecordedEvents::default();
            take(&mut events, vec![EventUpdate::Caused("key", DECISION, vec![event("a")])], now);
            let update = EventUpdate::Hold("key", DECISION, vec![later.clone()]);
            assert_eq!(take(&mut events, vec![update], now).len(), news, "{later:?}");
        }
    }
}
