//! Which objects too much is reported about: a bucket of tokens per component and object, so that one that
//! fails again and again, each time with other words, costs neither etcd nor the other objects' events.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{EventType, Report};
use crate::ids::Uid;

/// Events about one object at once.
///
/// client-go: tools/record/events_cache.go, defaultSpamBurst.
const BURST: u32 = 25;

/// As many of these are kept for warnings: a failure is told however much there was to tell of what is in order.
const FOR_WARNINGS: u32 = 10;

/// After this long there is room for one more.
///
/// client-go: tools/record/events_cache.go, defaultSpamQPS.
const REFILL: Duration = Duration::from_mins(5);

/// Objects remembered at most.
const CAPACITY: usize = 4_096;

/// One bucket per component and object, each as the moment at which it will be full: the later, the emptier.
#[derive(Debug, Default)]
pub(super) struct SpamFilter {
    full_at: HashMap<(&'static str, Uid), Instant>,
}

impl SpamFilter {
    /// Whether an event may be written, which then takes its token.
    pub(super) fn admit(&mut self, report: &Report, now: Instant) -> bool {
        if self.full_at.len() >= CAPACITY {
            self.full_at.retain(|_, full_at| *full_at > now);
        }
        if self.full_at.len() >= CAPACITY {
            // Nearly all objects report at once: forgetting them lets some through too many.
            self.full_at.clear();
        }
        let key = (report.component, report.event.involved.uid.clone());
        let full_at = self.full_at.entry(key).or_insert(now);
        let after = (*full_at).max(now) + REFILL;
        let room = match report.event.r#type {
            EventType::Warning => BURST,
            EventType::Normal => BURST - FOR_WARNINGS,
        };
        if after > now + REFILL * room {
            return false;
        }
        *full_at = after;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        events::{CORE, Event, EventType, Involved, Novelty},
        ids::ResourceVersion,
    };

    fn report(component: &'static str, uid: &str) -> Report {
        let involved = Involved {
            api_version: CORE,
            kind: "Pod",
            namespace: "ns".into(),
            name: "p".into(),
            uid: uid.into(),
            resource_version: ResourceVersion::default(),
        };
        let (r#type, reason, message) = (EventType::Warning, "Failed", String::new());
        let event = Event { involved, r#type, reason, message, novelty: Novelty::New, subject: None };
        Report::new(component, event)
    }

    #[test]
    fn twenty_five_at_once_and_then_one_in_five_minutes() {
        let (mut filter, start) = (SpamFilter::default(), Instant::now());
        let mut admitted = |object, at| (0..100).filter(|_| filter.admit(&report("c", object), at)).count();
        assert_eq!(admitted("1", start), 25);
        assert_eq!(admitted("2", start), 25, "each object has a bucket of its own");
        assert_eq!(admitted("1", start + Duration::from_mins(4)), 0);
        assert_eq!(admitted("1", start + Duration::from_mins(5)), 1);
        assert_eq!(admitted("1", start + Duration::from_mins(16)), 2);
        assert_eq!(admitted("1", start + Duration::from_hours(24)), 25);
    }

    #[test]
    fn what_is_in_order_leaves_room_for_warnings() {
        let (mut filter, now) = (SpamFilter::default(), Instant::now());
        let mut routine = report("c", "1");
        routine.event.r#type = EventType::Normal;
        assert_eq!((0..100).filter(|_| filter.admit(&routine, now)).count(), 15);
        assert_eq!((0..100).filter(|_| filter.admit(&report("c", "1"), now)).count(), 10);
    }

    #[test]
    fn components_do_not_silence_each_other_and_memory_is_bounded() {
        let (mut filter, now) = (SpamFilter::default(), Instant::now());
        while filter.admit(&report("a", "1"), now) {}
        assert!(filter.admit(&report("b", "1"), now));
        for number in 0..10_000 {
            filter.admit(&report("a", &number.to_string()), now);
            assert!(filter.full_at.len() <= CAPACITY);
        }
    }
}
