//! Event deduplication: an event is sent when something changes and not with every look, once more before it expires,
//! and again if it was lost.
//!
//! In: the events of a key's last decision. Out: those to send, and when which keys have to be looked at again.
//! The API server drops an event after an hour (`--event-ttl`); one that still holds is handed out every few minutes, as
//! [`Novelty::Standing`], and the writer tells it again before it expires, so that `kubectl describe` is never empty. A
//! key of which nothing is told costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::kube_api::events::{Event, Novelty};

/// After so long an event that still holds is sent again: the server's hour, less what the next look may take.
pub const REPEAT_AFTER: Duration = Duration::from_mins(50);

/// After so long a look hands an event that still holds to the writer, which finds out whether it stands for long yet:
/// when a process before this one has told it, only the server knows.
const ASK_AFTER: Duration = Duration::from_mins(5);

/// After so long there is a look for that, if there was none.
const LOOK_AFTER: Duration = Duration::from_mins(10);

/// What is told, and may be the same as what was told before.
pub trait Repeatable {
    /// Whether it says the same to the same reader.
    fn is_same(&self, other: &Self) -> bool;
}

impl Repeatable for Event {
    fn is_same(&self, other: &Self) -> bool {
        self.involved.uid == other.involved.uid
            && self.reason == other.reason
            && self.message == other.message
    }
}

/// What was told, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded<E> {
    event: E,
    at: Instant,
}

impl<E: Repeatable> Recorded<E> {
    /// It is told now.
    #[must_use]
    pub fn new(event: E, now: Instant) -> Self {
        Self { event, at: now }
    }

    /// Whether that is still told, so that this is no news.
    #[must_use]
    pub fn holds(&self, event: &E, now: Instant) -> bool {
        now < self.repeat_at() && self.event.is_same(event)
    }

    /// When it is told again if it still holds.
    #[must_use]
    pub fn repeat_at(&self) -> Instant {
        self.at + REPEAT_AFTER
    }

    fn ask_at(&self) -> Instant {
        self.at + ASK_AFTER
    }
}

/// What was told of each key.
#[derive(Clone, Debug)]
pub struct EventDedup<K> {
    events: BTreeMap<K, Vec<Recorded<Event>>>,
    /// When the first of a key's events is to be sent again.
    due: BTreeSet<(Instant, K)>,
}

impl<K> Default for EventDedup<K> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> EventDedup<K> {
    /// Takes the events of a decision; returns those that are news.
    pub fn news(&mut self, key: &K, events: Vec<Event>, now: Instant) -> Vec<Event> {
        let before = self.take(key);
        let mut news = Vec::new();
        let mut told = Vec::new();
        for mut event in events {
            match before.iter().find(|told| told.event.is_same(&event)) {
                Some(before) if now < before.ask_at() => {
                    told.push(before.clone());
                    continue;
                }
                Some(_) => event.novelty = Novelty::Standing,
                None => {}
            }
            news.push(event.clone());
            told.push(Recorded::new(event, now));
        }
        self.keep(key, told);
        news
    }

    /// Notes what was told when a write was made: it is not news to the next look.
    pub fn note(&mut self, key: &K, events: &[Event], now: Instant) {
        let mut told = self.take(key);
        told.retain(|told| !events.iter().any(|event| told.event.is_same(event)));
        told.extend(events.iter().map(|event| Recorded::new(event.clone(), now)));
        self.keep(key, told);
    }

    /// Takes an event that holds beside those of the last decision; returns it if it is news.
    pub fn also(&mut self, key: &K, mut event: Event, now: Instant) -> Option<Event> {
        let mut told = self.events.get(key).into_iter().flatten();
        match told.find(|told| told.event.is_same(&event)) {
            Some(told) if now < told.ask_at() => return None,
            Some(_) => event.novelty = Novelty::Standing,
            None => {}
        }
        self.note(key, std::slice::from_ref(&event), now);
        Some(event)
    }

    /// Forgets a key: all its events are news to the next look.
    pub fn forget(&mut self, key: &K) {
        self.take(key);
    }

    /// The keys some of whose events are to be sent again, if they still hold.
    pub fn take_due(&mut self, now: Instant) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some((at, key)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, key));
                break;
            }
            keys.push(key);
        }
        keys
    }

    /// When the next key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn take(&mut self, key: &K) -> Vec<Recorded<Event>> {
        let told = self.events.remove(key).unwrap_or_default();
        if let Some(due) = due(&told) {
            self.due.remove(&(due, key.clone()));
        }
        told
    }

    fn keep(&mut self, key: &K, told: Vec<Recorded<Event>>) {
        if let Some(due) = due(&told) {
            self.due.insert((due, key.clone()));
            self.events.insert(key.clone(), told);
        }
    }
}

/// When the first of these is to be sent again.
fn due(told: &[Recorded<Event>]) -> Option<Instant> {
    told.iter().map(|told| told.at + LOOK_AFTER).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::{
        events::{EventType, Involved},
        kinds::PersistentVolumeClaim,
    };

    fn normal(claim: &PersistentVolumeClaim, reason: &'static str, message: String) -> Event {
        let involved = Involved::object(claim);
        Event { involved, r#type: EventType::Normal, reason, message, novelty: Novelty::New, subject: None }
    }

    #[test]
    fn s47_an_event_is_sent_when_it_changes_and_then_as_one_that_stands() {
        let claim = PersistentVolumeClaim::default();
        let event = |text: &str| normal(&claim, "FailedBinding", text.to_owned());
        let target = "c";
        let start = Instant::now();
        let mut told = EventDedup::default();
        let mut sent = |texts: &[&str], minute: u64| -> Vec<(String, Novelty)> {
            let events = texts.iter().map(|text| event(text)).collect();
            let news = told.news(&target, events, start + Duration::from_mins(minute));
            news.into_iter().map(|event| (event.message, event.novelty)).collect()
        };
        let new = |text: &str| (text.to_owned(), Novelty::New);
        assert_eq!(sent(&["a", "b"], 0), [new("a"), new("b")]);
        assert_eq!(sent(&["a", "b"], 4), []);
        assert_eq!(sent(&["a", "c"], 4), [new("c")]);
        assert_eq!(sent(&["a", "c"], 5), [("a".to_owned(), Novelty::Standing)]);
        assert_eq!(sent(&["a", "c"], 8), []);
        assert_eq!(sent(&[], 8), []);
        assert_eq!(sent(&["a"], 8), [new("a")]);
        told.note(&target, &[event("b")], start);
        let minute = start + Duration::from_mins(8);
        assert_eq!(told.news(&target, vec![event("a"), event("b")], minute).len(), 1);
        assert_eq!(told.also(&target, event("a"), minute), None);
        let again = told.also(&target, event("a"), start + Duration::from_mins(13)).unwrap();
        assert_eq!(again.novelty, Novelty::Standing);
        told.forget(&target);
        assert_eq!(told.next_due(), None);
        assert_eq!(told.news(&target, vec![event("a")], start).len(), 1);
    }

    #[test]
    fn a_key_is_due_when_the_first_of_its_events_is_to_be_sent_again() {
        let claim = PersistentVolumeClaim::default();
        let event = |text: &str| normal(&claim, "FailedBinding", text.to_owned());
        let target = |name: &'static str| name;
        let start = Instant::now();
        let minute = |minute| start + Duration::from_mins(minute);
        let mut told = EventDedup::default();
        told.news(&target("c"), vec![event("a")], minute(0));
        told.note(&target("d"), &[event("a")], minute(1));
        told.note(&target("d"), &[event("b")], minute(3));
        told.note(&target("d"), &[event("a")], minute(4));
        told.note(&target("e"), &[], minute(0));
        assert_eq!(told.next_due(), Some(minute(10)));
        assert_eq!(told.take_due(minute(9)), [""; 0]);
        assert_eq!(told.take_due(minute(10)), [target("c")]);
        // Who is not looked at at once is not asked about for ever.
        assert_eq!(told.next_due(), Some(minute(13)));
        assert_eq!(told.news(&target("c"), vec![event("a")], minute(12)).len(), 1);
        assert_eq!(told.take_due(minute(13)), [target("d")]);
        assert_eq!(told.news(&target("d"), vec![event("a"), event("b")], minute(13)).len(), 2);
        assert_eq!(told.next_due(), Some(minute(22)));
        assert_eq!(told.news(&target("d"), vec![], minute(13)).len(), 0);
        assert_eq!(told.news(&target("c"), vec![event("a")], minute(16)).len(), 0);
        assert_eq!(told.next_due(), Some(minute(22)));
    }

    #[test]
    fn what_differs_in_its_object_its_reason_or_its_text_is_news() {
        let event = |uid: &str, reason, text: &str| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.uid = uid.into();
            normal(&claim, reason, text.to_owned())
        };
        let target = "c";
        let now = Instant::now();
        let rows = [
            (event("u", "FailedBinding", "a"), 0),
            (event("other", "FailedBinding", "a"), 1),
            (event("u", "ClaimLost", "a"), 1),
            (event("u", "FailedBinding", "b"), 1),
        ];
        for (later, news) in rows {
            let mut told = EventDedup::default();
            told.note(&target, &[event("u", "FailedBinding", "a")], now);
            assert_eq!(told.news(&target, vec![later.clone()], now).len(), news, "{later:?}");
        }
    }
}
