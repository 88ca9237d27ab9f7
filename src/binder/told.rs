//! What users have been told about each key, so that an event is sent when something changes and not
//! with every look, and once more before it expires.
//!
//! In: the events of a key's last decision. Out: those to send, and when which keys have to be looked at again.
//! The API server drops an event after an hour (`--event-ttl`); one that still holds is sent again before, so
//! that `kubectl describe` is never empty. A key of which nothing is told costs nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::decide::decision::Target;
use crate::kube_api::events::Event;

/// After so long an event that still holds is sent again: the server's hour, less what the next look may take.
const AGAIN: Duration = Duration::from_mins(50);

/// What was told.
#[derive(Debug, Default)]
pub struct Told {
    /// When each key's events were sent.
    events: BTreeMap<Target, Vec<(Instant, Event)>>,
    /// When the first of a key's events is to be sent again.
    due: BTreeSet<(Instant, Target)>,
}

impl Told {
    /// Takes the events of a decision; returns those that are news.
    pub fn news(&mut self, target: &Target, events: Vec<Event>, now: Instant) -> Vec<Event> {
        let before = self.take(target);
        let mut news = Vec::new();
        let mut told = Vec::new();
        for event in events {
            match before.iter().find(|(at, told)| now < *at + AGAIN && is_same(told, &event)) {
                Some(before) => told.push(before.clone()),
                None => {
                    news.push(event.clone());
                    told.push((now, event));
                }
            }
        }
        self.keep(target, told);
        news
    }

    /// Notes what was told when a write was made: it is not news to the next look.
    pub fn note(&mut self, target: &Target, events: &[Event], now: Instant) {
        let mut told = self.take(target);
        told.retain(|(_, told)| !events.iter().any(|event| is_same(told, event)));
        told.extend(events.iter().map(|event| (now, event.clone())));
        self.keep(target, told);
    }

    /// Takes an event that holds beside those of the last decision; returns it if it is news.
    pub fn also(&mut self, target: &Target, event: Event, now: Instant) -> Option<Event> {
        let told = self.events.get(target).into_iter().flatten();
        if told.into_iter().any(|(at, told)| now < *at + AGAIN && is_same(told, &event)) {
            return None;
        }
        self.note(target, std::slice::from_ref(&event), now);
        Some(event)
    }

    /// Forgets a key.
    pub fn forget(&mut self, target: &Target) {
        self.take(target);
    }

    /// The keys some of whose events are to be sent again, if they still hold.
    pub fn take_due(&mut self, now: Instant) -> Vec<Target> {
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

    fn take(&mut self, target: &Target) -> Vec<(Instant, Event)> {
        let told = self.events.remove(target).unwrap_or_default();
        if let Some(due) = due(&told) {
            self.due.remove(&(due, target.clone()));
        }
        told
    }

    fn keep(&mut self, target: &Target, told: Vec<(Instant, Event)>) {
        if let Some(due) = due(&told) {
            self.due.insert((due, target.clone()));
            self.events.insert(target.clone(), told);
        }
    }
}

/// When the first of these is to be sent again.
fn due(told: &[(Instant, Event)]) -> Option<Instant> {
    told.iter().map(|(at, _)| *at + AGAIN).min()
}

fn is_same(one: &Event, other: &Event) -> bool {
    one.involved.uid == other.involved.uid && one.reason == other.reason && one.message == other.message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binder::decide::decision::normal,
        kube_api::{ids::ClaimKey, kinds::PersistentVolumeClaim},
    };

    #[test]
    fn an_event_is_sent_when_it_changes_and_before_it_expires() {
        let claim = PersistentVolumeClaim::default();
        let event = |text: &str| normal(&claim, "FailedBinding", text.to_owned());
        let target = Target::Claim(ClaimKey::new("ns", "c"));
        let start = Instant::now();
        let mut told = Told::default();
        let mut sent = |texts: &[&str], minute: u64| {
            let events = texts.iter().map(|text| event(text)).collect();
            told.news(&target, events, start + Duration::from_mins(minute)).len()
        };
        assert_eq!(sent(&["a", "b"], 0), 2);
        assert_eq!(sent(&["a", "b"], 49), 0);
        assert_eq!(sent(&["a", "c"], 49), 1);
        assert_eq!(sent(&["a", "c"], 50), 1);
        assert_eq!(sent(&["a", "c"], 98), 0);
        assert_eq!(sent(&[], 98), 0);
        assert_eq!(sent(&["a"], 98), 1);
        told.note(&target, &[event("b")], start);
        assert_eq!(
            told.news(&target, vec![event("a"), event("b")], start + Duration::from_mins(98)).len(),
            1
        );
        told.forget(&target);
        assert_eq!(told.next_due(), None);
        assert_eq!(told.news(&target, vec![event("a")], start).len(), 1);
    }

    #[test]
    fn a_key_is_due_when_the_first_of_its_events_is_to_be_sent_again() {
        let claim = PersistentVolumeClaim::default();
        let event = |text: &str| normal(&claim, "FailedBinding", text.to_owned());
        let target = |name: &str| Target::Claim(ClaimKey::new("ns", name));
        let start = Instant::now();
        let minute = |minute| start + Duration::from_mins(minute);
        let mut told = Told::default();
        told.news(&target("c"), vec![event("a")], minute(0));
        told.note(&target("d"), &[event("a")], minute(1));
        told.note(&target("d"), &[event("b")], minute(3));
        told.note(&target("d"), &[event("a")], minute(4));
        told.note(&target("e"), &[], minute(0));
        assert_eq!(told.next_due(), Some(minute(50)));
        assert_eq!(told.take_due(minute(49)), []);
        assert_eq!(told.take_due(minute(50)), [target("c")]);
        // Who is not looked at at once is not asked about for ever.
        assert_eq!(told.next_due(), Some(minute(53)));
        assert_eq!(told.news(&target("c"), vec![event("a")], minute(52)).len(), 1);
        assert_eq!(told.take_due(minute(53)), [target("d")]);
        assert_eq!(told.news(&target("d"), vec![event("a")], minute(53)).len(), 0);
        assert_eq!(told.next_due(), Some(minute(54)));
        assert_eq!(told.news(&target("d"), vec![], minute(53)).len(), 0);
        assert_eq!(told.next_due(), Some(minute(102)));
    }

    #[test]
    fn what_differs_in_its_object_its_reason_or_its_text_is_news() {
        let event = |uid: &str, reason, text: &str| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.uid = uid.into();
            normal(&claim, reason, text.to_owned())
        };
        let target = Target::Claim(ClaimKey::new("ns", "c"));
        let now = Instant::now();
        let rows = [
            (event("u", "FailedBinding", "a"), 0),
            (event("other", "FailedBinding", "a"), 1),
            (event("u", "ClaimLost", "a"), 1),
            (event("u", "FailedBinding", "b"), 1),
        ];
        for (later, news) in rows {
            let mut told = Told::default();
            told.note(&target, &[event("u", "FailedBinding", "a")], now);
            assert_eq!(told.news(&target, vec![later.clone()], now).len(), news, "{later:?}");
        }
    }
}
