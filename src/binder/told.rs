//! What users have been told about each key, so that an event is sent when something changes and not
//! with every look, and once more before it expires.
//!
//! In: the events of a key's last decision. Out: those to send. The API server drops an event after
//! an hour (`--event-ttl`); one that still holds is sent again before, so that `kubectl describe` is
//! never empty.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::decision::Target;
use crate::kube_api::events::Event;

/// After so long an event that still holds is sent again: the server's hour, less a late resync.
const AGAIN: Duration = Duration::from_mins(50);

/// What was told.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<Target, Vec<(Instant, Event)>>);

impl Told {
    /// Takes the events of a decision; returns those that are news.
    pub fn news(&mut self, target: &Target, events: Vec<Event>, now: Instant) -> Vec<Event> {
        let before = self.0.remove(target).unwrap_or_default();
        let mut news = Vec::new();
        let mut told = Vec::new();
        for event in events {
            let same = |(at, told): &&(Instant, Event)| {
                now < *at + AGAIN
                    && told.involved.uid == event.involved.uid
                    && told.reason == event.reason
                    && told.message == event.message
            };
            match before.iter().find(same) {
                Some(before) => told.push(before.clone()),
                None => {
                    news.push(event.clone());
                    told.push((now, event));
                }
            }
        }
        if !told.is_empty() {
            self.0.insert(target.clone(), told);
        }
        news
    }

    /// Notes what was told when a write was made: it is not news to the next look.
    pub fn note(&mut self, target: &Target, events: &[Event], now: Instant) {
        if events.is_empty() {
            return;
        }
        let told = self.0.entry(target.clone()).or_default();
        told.extend(events.iter().map(|event| (now, event.clone())));
    }

    /// Forgets a key.
    pub fn forget(&mut self, target: &Target) {
        self.0.remove(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binder::decision::normal,
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
        assert_eq!(told.news(&target, vec![event("a")], start).len(), 1);
    }
}
