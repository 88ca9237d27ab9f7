//! Tells of requests that are not answered in time again and again.
//!
//! In: each request and how it ended. Out: a counter, and an alarm with a line in the log when so many of one
//! kind in a row were not answered in time: a webhook that hangs, or an etcd that does not keep up. Another alarm is
//! of writes that no server began with. An alarm is lowered when one of that kind is answered, or none was tried for
//! long. Where no server has ever begun with a write, or none does for a minute in which the lease is renewed, a proxy swallows
//! `100 Continue`: from then on no write waits for it, and one a minute asks for it, for it may have been the server that hung.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use telemetry::metrics::Alarms;
use tokio::time::{Instant, sleep_until};

use super::{CallError, Request, target::Target};
use crate::metrics::ApiMetrics;

/// Name of the alarm about what is not answered in time.
const TIMED_OUT: &str = "requests_time_out";
/// Name of the alarm about writes that no server begins with.
const NOT_BEGUN: &str = "writes_not_begun";

/// What that alarm says when no write waits for `100 Continue` any more.
const SWALLOWED: &str = "no 100 Continue comes, as behind a proxy that swallows it: writes are sent without it, \
                         and one that the proxy holds for longer than the lease may land under the next leader";

/// So many in a row are no accident.
const TOO_MANY: u32 = 3;

/// After this long nothing that is still wanted has gone unasked: retries are at most two minutes apart.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// How often a write asks for `100 Continue` where none comes, and how long none comes from a server that has said it before:
/// who leads for so long is answered otherwise, so the server does not hang.
pub(super) const ASK_AGAIN: Duration = Duration::from_mins(1);

/// A verb and a resource.
type Kind = (&'static str, String);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// In time, with any answer.
    Answered,
    /// Not in time, by the server's own clock or ours.
    TimedOut,
    /// There is no sign that the server had begun with it.
    NotBegun,
    /// It has not come to the step that takes so long, and says nothing of it.
    Unsaid,
}

impl Ending {
    /// Of an answer with this status, 0 if the connection failed, and whether the server's time was over by then.
    ///
    /// apiserver: server/filters/timeout.go: a handler that is late is answered with 504, or, if it had begun to answer,
    /// by an end of the connection.
    /// apiserver: admission/plugin/webhook/errors/statuserror.go and its dispatchers: a webhook that fails closed when
    /// its time is over makes an internal error, of which the message alone tells.
    pub(super) fn of(code: u16, error: Option<&CallError>, is_over: bool) -> Self {
        match (code, error) {
            (408 | 504, _) => Self::TimedOut,
            (0, Some(CallError::Unknown(_))) if is_over => Self::TimedOut,
            (0 | 401 | 403 | 429, _) => Self::Unsaid,
            (417, _) => Self::NotBegun,
            (500, Some(CallError::Unknown(message))) if is_late_webhook(message) => Self::TimedOut,
            _ => Self::Answered,
        }
    }
}

fn is_late_webhook(message: &str) -> bool {
    let is_late = |reason| message.contains(reason);
    message.contains("failed calling webhook")
        && ["deadline exceeded", "Timeout exceeded", "i/o timeout"].into_iter().any(is_late)
}

/// Requests of one kind in a row that ended the same.
#[derive(Clone, Copy, Debug)]
struct Streak {
    ending: Ending,
    count: u32,
    since: Instant,
    last: Instant,
}

/// What is known of `100 Continue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Continues {
    /// Nothing yet.
    #[default]
    Unknown,
    /// A server has said it: one that does not say it now may hang.
    Seen {
        /// When it did last.
        last: Instant,
    },
    /// None does, to too many writes in a row.
    Swallowed {
        /// When a write asked for it last.
        asked: Instant,
    },
}

/// What a write does about `100 Continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    /// It waits for it.
    Waits,
    /// It asks for it, and does not wait.
    Asks,
    /// It does not even ask.
    None,
}

/// What is known of each kind.
#[derive(Debug, Default)]
struct State {
    streaks: BTreeMap<Kind, Streak>,
    /// Whether a server has begun with a write, or that none ever does.
    continues: Continues,
    /// Whether a task waits to forget them.
    is_being_forgotten: bool,
}

/// Counts them.
#[derive(Debug)]
pub(super) struct Overdue {
    metrics: Arc<ApiMetrics>,
    alarms: Option<Alarms>,
    state: Mutex<State>,
}

impl Overdue {
    pub(super) fn new(metrics: Arc<ApiMetrics>, alarms: Option<Alarms>) -> Self {
        if let Some(alarms) = &alarms {
            alarms.set(TIMED_OUT, None);
            alarms.set(NOT_BEGUN, None);
        }
        Self { metrics, alarms, state: Mutex::default() }
    }

    /// A request has ended.
    pub(super) fn note(self: &Arc<Self>, request: &Request, ending: Ending, now: Instant) {
        let kind: Kind = (request.verb.into(), resource(request.target()));
        let (verb, resource) = (kind.0, kind.1.as_str());
        let mut state = self.state.lock();
        match ending {
            Ending::Unsaid => return,
            Ending::Answered => match state.streaks.remove(&kind) {
                None => return,
                Some(streak) if streak.count >= TOO_MANY => {
                    tracing::info!(verb, resource, "requests no longer time out");
                }
                Some(_) => {}
            },
            Ending::TimedOut | Ending::NotBegun => {
                self.metrics.count_timeout(verb, resource);
                let before = state.streaks.get(&kind).filter(|streak| streak.ending == ending);
                // While none is tried, none can come.
                let before =
                    before.filter(|streak| ending == Ending::TimedOut || now <= streak.last + ASK_AGAIN);
                let (count, since) = before.map_or((0, now), |streak| (streak.count, streak.since));
                let count = count.saturating_add(1);
                if count == TOO_MANY {
                    tracing::warn!(verb, resource, "requests time out repeatedly");
                }
                state.streaks.insert(kind, Streak { ending, count, since, last: now });
                // Of one kind alone a webhook that authorizes may hold up what others need not wait for.
                let is_over = match state.continues {
                    Continues::Unknown => true,
                    Continues::Seen { last } => now >= since.max(last) + ASK_AGAIN,
                    Continues::Swallowed { .. } => false,
                };
                if ending == Ending::NotBegun && count >= TOO_MANY && is_over {
                    state.continues = Continues::Swallowed { asked: now };
                    tracing::warn!("{SWALLOWED}");
                }
            }
        }
        self.tell(&state);
        if !state.streaks.is_empty() && !mem::replace(&mut state.is_being_forgotten, true) {
            tokio::spawn(forget(Arc::downgrade(self)));
        }
    }

    /// A server has begun with a write.
    pub(super) fn begun(&self) {
        let mut state = self.state.lock();
        let seen = Continues::Seen { last: Instant::now() };
        if let Continues::Swallowed { .. } = mem::replace(&mut state.continues, seen) {
            tracing::info!("100 Continue comes now: writes wait for it");
            self.tell(&state);
        }
    }

    /// What a write does about `100 Continue` that is sent now.
    pub(super) fn expectation(&self, now: Instant) -> Expectation {
        match &mut self.state.lock().continues {
            Continues::Unknown | Continues::Seen { .. } => Expectation::Waits,
            Continues::Swallowed { asked } if now < *asked + ASK_AGAIN => Expectation::None,
            Continues::Swallowed { asked } => {
                *asked = now;
                Expectation::Asks
            }
        }
    }

    fn tell(&self, state: &State) {
        let Some(alarms) = &self.alarms else { return };
        alarms.set(TIMED_OUT, text(state, Ending::TimedOut));
        let is_swallowed = matches!(state.continues, Continues::Swallowed { .. });
        let swallowed = is_swallowed.then(|| SWALLOWED.to_owned());
        alarms.set(NOT_BEGUN, swallowed.or_else(|| text(state, Ending::NotBegun)));
    }

    /// Forgets what was not tried for long. Returns when to look again, if there is anything left.
    fn forget_until(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        state.streaks.retain(|_, streak| now < streak.last + FORGOTTEN_AFTER);
        self.tell(&state);
        let next = state.streaks.values().map(|streak| streak.last + FORGOTTEN_AFTER).min();
        state.is_being_forgotten = next.is_some();
        next
    }
}

/// Also when nothing is sent at all any more.
async fn forget(overdue: Weak<Overdue>) {
    while let Some(next) = overdue.upgrade().and_then(|overdue| overdue.forget_until(Instant::now())) {
        sleep_until(next).await;
    }
}

fn text(state: &State, ending: Ending) -> Option<String> {
    let mut text = String::new();
    let is_told = |streak: &Streak| streak.ending == ending && streak.count >= TOO_MANY;
    for ((verb, resource), streak) in state.streaks.iter().filter(|(_, streak)| is_told(streak)) {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a String does not fail.
        let _ = write!(text, "{separator}{verb} {resource} ({} in a row)", streak.count);
    }
    (!text.is_empty()).then(|| {
        text.push_str(if ending == Ending::NotBegun {
            ": no 100 Continue, so nothing was sent; does the API server hang?"
        } else {
            ": not answered in time; does an admission webhook hang, or etcd not keep up?"
        });
        text
    })
}

/// What a request is about: a resource, or a part of its objects.
fn resource(target: Target<'_>) -> String {
    match target.subresource {
        "" => target.plural.to_owned(),
        subresource => format!("{}/{subresource}", target.plural),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verb;
    use super::*;
    use telemetry::metrics::Metrics;

    fn request(verb: Verb, path: &str) -> Request {
        Request { verb, path: path.to_owned(), body: None }
    }

    #[tokio::test(start_paused = true)]
    async fn m4_what_is_never_answered_in_time_is_told_until_it_is_answered() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Arc::new(Overdue::new(api, Some(alarms.clone())));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        let patch = request(Verb::Patch, "/api/v1/nodes/n1/status");
        let now = Instant::now();
        let told = || alarms.raised().pop().unwrap_or_default();
        for _ in 0..2 {
            overdue.note(&create, Ending::TimedOut, now);
        }
        // Another kind is answered, and this one is refused before anything took long.
        overdue.note(&patch, Ending::Answered, now);
        overdue.note(&create, Ending::Unsaid, now);
        assert_eq!(told(), "");
        overdue.note(&create, Ending::TimedOut, now);
        let text = told();
        assert!(text.starts_with("requests_time_out: create volumeattachments (3 in a row): not "), "{text}");
        for _ in 0..4 {
            overdue.note(&patch, Ending::TimedOut, now);
        }
        assert!(told().contains("(3 in a row), patch nodes/status (4 in a row): not"), "{}", told());
        overdue.note(&create, Ending::Answered, now);
        assert!(!told().contains("create"), "{}", told());
        overdue.note(&patch, Ending::Answered, now);
        assert_eq!(told(), "");
        let text = metrics.text().unwrap();
        let line = "mooring_requests_timed_out_total{resource=\"nodes/status\",verb=\"patch\"} 4\n";
        assert!(text.contains(line), "{text}");

        // What is no longer tried is forgotten, although nothing else is.
        for _ in 0..3 {
            overdue.note(&create, Ending::TimedOut, now);
        }
        tokio::time::sleep(FORGOTTEN_AFTER / 2).await;
        assert_ne!(told(), "");
        tokio::time::sleep(FORGOTTEN_AFTER).await;
        assert_eq!(told(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn m4_what_nobody_begins_with_is_told_apart() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Arc::new(Overdue::new(api, Some(alarms.clone())));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        overdue.begun();
        for ending in [Ending::TimedOut, Ending::TimedOut, Ending::NotBegun, Ending::NotBegun] {
            overdue.note(&create, ending, Instant::now());
        }
        assert!(alarms.raised().is_empty());
        overdue.note(&create, Ending::NotBegun, Instant::now());
        let expected = "writes_not_begun: create volumeattachments (3 in a row): no 100 Continue, so nothing was sent; \
                        does the API server hang?";
        assert_eq!(alarms.raised(), [expected]);
        let expectation = overdue.expectation(Instant::now());
        assert_eq!(expectation, Expectation::Waits, "a server that has begun before may hang now");

        // Nor does one swallow it that lets it through for others.
        tokio::time::advance(ASK_AGAIN).await;
        overdue.begun();
        overdue.note(&create, Ending::NotBegun, Instant::now());
        assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);

        // Who leads on for a minute without any is answered otherwise: something swallows it.
        tokio::time::advance(ASK_AGAIN).await;
        overdue.note(&create, Ending::NotBegun, Instant::now());
        assert_eq!(overdue.expectation(Instant::now()), Expectation::None);
        assert_eq!(alarms.raised(), [format!("writes_not_begun: {SWALLOWED}")]);
        overdue.begun();
        assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
    }

    #[tokio::test(start_paused = true)]
    async fn s37_a_time_without_writes_is_none_in_which_100_continue_does_not_come() {
        let api = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let overdue = Arc::new(Overdue::new(api, None));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        overdue.begun();
        overdue.note(&create, Ending::NotBegun, Instant::now());
        tokio::time::advance(5 * ASK_AGAIN).await;
        for _ in 0..3 {
            overdue.note(&create, Ending::NotBegun, Instant::now());
            assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s37_where_no_server_ever_says_that_it_begins_no_write_waits_for_that() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Arc::new(Overdue::new(api, Some(alarms.clone())));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        for expectation in [Expectation::Waits, Expectation::Waits, Expectation::None] {
            overdue.note(&create, Ending::NotBegun, Instant::now());
            assert_eq!(overdue.expectation(Instant::now()), expectation);
        }
        // It is told for as long as it is so, also when such writes are answered.
        overdue.note(&create, Ending::Answered, Instant::now());
        tokio::time::sleep(FORGOTTEN_AFTER * 2).await;
        assert_eq!(alarms.raised(), [format!("writes_not_begun: {SWALLOWED}")]);
    }

    #[test]
    fn m4_a_webhook_that_hangs_and_fails_closed_is_no_answer_in_time() {
        let hung = "Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: Post \
                    \"https://a.b.svc:443/?timeout=10s\": ";
        let cases = [
            (500, format!("{hung}context deadline exceeded"), Ending::TimedOut),
            (500, format!("{hung}net/http: request canceled (Client.Timeout exceeded)"), Ending::TimedOut),
            (500, format!("{hung}dial tcp 10.0.0.1:443: i/o timeout"), Ending::TimedOut),
            (500, format!("{hung}no endpoints available for service"), Ending::Answered),
            (500, "context deadline exceeded".to_owned(), Ending::Answered),
            (504, String::new(), Ending::TimedOut),
            (0, "connection refused".to_owned(), Ending::Unsaid),
            (429, String::new(), Ending::Unsaid),
            (409, String::new(), Ending::Answered),
            (417, String::new(), Ending::NotBegun),
        ];
        for (code, message, expected) in cases {
            assert_eq!(Ending::of(code, Some(&CallError::Unknown(message)), false), expected, "{code}");
        }
        let cut = CallError::Unknown("connection closed before message completed".to_owned());
        assert_eq!(Ending::of(0, Some(&cut), true), Ending::TimedOut);
        assert_eq!(Ending::of(0, Some(&cut), false), Ending::Unsaid);
        assert_eq!(Ending::of(200, None, true), Ending::Answered);
    }

    #[test]
    fn what_a_request_is_about_leaves_out_whose_it_is() {
        let cases = [
            ("/apis/storage.k8s.io/v1/volumeattachments", "volumeattachments"),
            ("/apis/storage.k8s.io/v1/volumeattachments/csi-1", "volumeattachments"),
            ("/api/v1/persistentvolumes/pv/status", "persistentvolumes/status"),
            ("/api/v1/namespaces/pods/persistentvolumeclaims/c", "persistentvolumeclaims"),
        ];
        for (path, expected) in cases {
            assert_eq!(resource(Target::of(path)), expected, "{path}");
        }
    }
}
