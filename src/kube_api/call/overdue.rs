//! Tells of requests that are not answered in time again and again.
//!
//! In: each request and how it ended. Out: a counter, and an alarm with a line in the log when so many of one
//! kind in a row were not answered in time: a webhook that hangs, or an etcd that does not keep up. The alarm is
//! lowered when one of that kind is answered.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Request, Verb};
use crate::metrics::{Alarms, ApiMetrics};

/// Name of the alarm.
const ALARM: &str = "requests_time_out";

/// So many in a row are no accident.
const TOO_MANY: u32 = 3;

/// After this long nothing that is still wanted has gone unasked: retries are at most two minutes apart.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// A verb and a resource.
type Kind = (&'static str, &'static str);

/// Requests of one kind in a row that were not answered in time.
#[derive(Clone, Copy, Debug)]
struct Streak {
    count: u32,
    last: Instant,
}

/// Counts them.
#[derive(Debug)]
pub(super) struct Overdue {
    metrics: Arc<ApiMetrics>,
    alarms: Option<Alarms>,
    streaks: Mutex<BTreeMap<Kind, Streak>>,
}

impl Overdue {
    pub(super) fn new(metrics: Arc<ApiMetrics>, alarms: Option<Alarms>) -> Self {
        if let Some(alarms) = &alarms {
            alarms.set(ALARM, None);
        }
        Self { metrics, alarms, streaks: Mutex::default() }
    }

    /// A request has ended with this status; `None` if we stopped waiting for one, and 0 if the connection failed.
    pub(super) fn note(&self, request: &Request, code: Option<u16>, now: Instant) {
        let kind = (verb(request.verb), resource(&request.path));
        let mut streaks = self.streaks.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = text(&streaks);
        match code {
            None | Some(408 | 504) => {
                self.metrics.count_timeout(kind.0, kind.1);
                let streak = streaks.entry(kind).or_insert(Streak { count: 0, last: now });
                *streak = Streak { count: streak.count.saturating_add(1), last: now };
                if streak.count == TOO_MANY {
                    let (verb, resource) = kind;
                    tracing::warn!(verb, resource, "requests are not answered in time, again and again");
                }
            }
            // It has not come to whatever takes so long, and says nothing of it.
            Some(0 | 401 | 403 | 429) => {}
            _ if streaks.is_empty() => return,
            _ => {
                if streaks.remove(&kind).is_some_and(|streak| streak.count >= TOO_MANY) {
                    let (verb, resource) = kind;
                    tracing::info!(verb, resource, "requests are answered in time again");
                }
            }
        }
        streaks.retain(|_, streak| now < streak.last + FORGOTTEN_AFTER);
        let text = text(&streaks);
        if let Some(alarms) = &self.alarms
            && text != standing
        {
            alarms.set(ALARM, text);
        }
    }
}

fn text(streaks: &BTreeMap<Kind, Streak>) -> Option<String> {
    let mut text = String::new();
    for ((verb, resource), streak) in streaks.iter().filter(|(_, streak)| streak.count >= TOO_MANY) {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a String does not fail.
        let _ = write!(text, "{separator}{verb} {resource} ({} in a row)", streak.count);
    }
    (!text.is_empty()).then(|| {
        text.push_str(": not answered in time; does an admission webhook hang, or etcd not keep up?");
        text
    })
}

/// As the audit log names it.
fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch => "patch",
        Verb::Delete => "delete",
    }
}

/// What a path is about, in words that are known beforehand.
fn resource(path: &str) -> &'static str {
    const KNOWN: [&str; 8] = [
        "volumeattachments",
        "nodes",
        "persistentvolumes",
        "persistentvolumeclaims",
        "pods",
        "events",
        "configmaps",
        "leases",
    ];
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    // The group and version, then perhaps a namespace, then the resource.
    let (["api", _, parts @ ..] | ["apis", _, _, parts @ ..]) = parts.as_slice() else { return "other" };
    let (["namespaces", _, plural, rest @ ..] | [plural, rest @ ..]) = parts else { return "other" };
    match (*plural, rest.get(1) == Some(&"status")) {
        ("persistentvolumes", true) => "persistentvolumes/status",
        ("persistentvolumeclaims", true) => "persistentvolumeclaims/status",
        ("nodes", true) => "nodes/status",
        _ => KNOWN.into_iter().find(|known| known == plural).unwrap_or("other"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn request(verb: Verb, path: &str) -> Request {
        Request { verb, path: path.to_owned(), body: None }
    }

    #[tokio::test(start_paused = true)]
    async fn m4_what_is_never_answered_in_time_is_told_until_it_is_answered() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Overdue::new(api, Some(alarms.clone()));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        let patch = request(Verb::Patch, "/api/v1/nodes/n1/status");
        let now = Instant::now();
        let told = || alarms.standing().pop().unwrap_or_default();
        for code in [None, Some(504)] {
            overdue.note(&create, code, now);
        }
        // Another kind is answered, and this one is refused before anything took long.
        overdue.note(&patch, Some(200), now);
        overdue.note(&create, Some(429), now);
        assert_eq!(told(), "");
        overdue.note(&create, Some(0), now);
        assert_eq!(told(), "");
        overdue.note(&create, Some(504), now);
        let text = told();
        assert!(text.starts_with("requests_time_out: create volumeattachments (3 in a row): not "), "{text}");
        for _ in 0..4 {
            overdue.note(&patch, None, now);
        }
        assert!(told().contains("(3 in a row), patch nodes/status (4 in a row): not"), "{}", told());
        overdue.note(&create, Some(409), now);
        assert!(!told().contains("create"), "{}", told());
        overdue.note(&patch, Some(200), now);
        assert_eq!(told(), "");
        let text = metrics.text().unwrap();
        let line = "mooring_requests_timed_out_total{resource=\"nodes/status\",verb=\"patch\"} 4\n";
        assert!(text.contains(line), "{text}");

        // What is no longer tried is forgotten.
        for _ in 0..3 {
            overdue.note(&create, None, now);
        }
        assert_ne!(told(), "");
        overdue.note(&patch, Some(200), now + FORGOTTEN_AFTER);
        assert_eq!(told(), "");
    }

    #[test]
    fn what_a_request_is_about_is_one_of_few_words() {
        let cases = [
            ("/apis/storage.k8s.io/v1/volumeattachments", "volumeattachments"),
            ("/apis/storage.k8s.io/v1/volumeattachments/csi-1", "volumeattachments"),
            ("/api/v1/nodes/status/status", "nodes/status"),
            ("/api/v1/nodes/status", "nodes"),
            ("/api/v1/persistentvolumes/pv/status", "persistentvolumes/status"),
            ("/api/v1/persistentvolumes/pv", "persistentvolumes"),
            ("/api/v1/namespaces/ns/persistentvolumeclaims/c/status", "persistentvolumeclaims/status"),
            ("/api/v1/namespaces/pods/persistentvolumeclaims/c", "persistentvolumeclaims"),
            ("/api/v1/namespaces/ns/events", "events"),
            ("/apis/coordination.k8s.io/v1/namespaces/ns/leases/mooring", "leases"),
            ("/apis/example.com/v1/things/x", "other"),
            ("/version", "other"),
            ("", "other"),
        ];
        for (path, expected) in cases {
            assert_eq!(resource(path), expected, "{path}");
        }
    }
}
