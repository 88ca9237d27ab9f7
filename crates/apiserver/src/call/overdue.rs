//! Which requests are not answered in time, and whether writes wait for `100 Continue`.
//!
//! In: each request and how it ended. Out: a counter by verb and resource; what a write does about `100 Continue`; and an alarm
//! where none comes. Where no server has ever begun with a write, or none does for a minute in which the lease is renewed, a proxy
//! swallows it: from then on no write waits for it, and one a minute asks for it, for it may have been the server that hung.

use std::{mem, sync::Arc, time::Duration};

use parking_lot::Mutex;
use telemetry::metrics::Alarms;
use tokio::time::Instant;

use super::{CallError, Request, target::Target};
use crate::metrics::ApiMetrics;

/// Name of the alarm about `100 Continue` that does not come.
const NOT_BEGUN: &str = "writes_not_begun";

/// What it says.
const SWALLOWED: &str = "no 100 Continue comes, as behind a proxy that swallows it: writes are sent without it, \
                         and one that the proxy holds for longer than the lease may land under the next leader";

/// So many in a row are no accident.
const TOO_MANY: u32 = 3;

/// How often a write asks for `100 Continue` where none comes, and how long none comes from a server that has said it before:
/// who leads for so long is answered otherwise, so the server does not hang.
pub(super) const ASK_AGAIN: Duration = Duration::from_mins(1);

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

/// Writes in a row with which no server began.
#[derive(Clone, Copy, Debug)]
struct Streak {
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

#[derive(Debug, Default)]
struct State {
    in_vain: Option<Streak>,
    /// Whether a server has begun with a write, or that none ever does.
    continues: Continues,
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
        let overdue = Self { metrics, alarms, state: Mutex::default() };
        overdue.tell(None);
        overdue
    }

    /// A request has ended, whose body was kept to the end, or was not.
    pub(super) fn note(&self, request: &Request, ending: Ending, is_kept: bool, now: Instant) {
        if matches!(ending, Ending::TimedOut | Ending::NotBegun) {
            self.metrics.count_timeout(request.verb.into(), &resource(request.target()));
        }
        let mut state = self.state.lock();
        match ending {
            // Who answers so need not begin.
            Ending::Answered if is_kept => state.in_vain = None,
            Ending::NotBegun => {
                // While none is tried, none can come.
                let before = state.in_vain.filter(|streak| now <= streak.last + ASK_AGAIN);
                let (count, since) = before.map_or((0, now), |streak| (streak.count, streak.since));
                let count = count.saturating_add(1);
                state.in_vain = Some(Streak { count, since, last: now });
                // One write alone a webhook that authorizes may hold up, for which others need not wait.
                let is_over = match state.continues {
                    Continues::Unknown => true,
                    Continues::Seen { last } => now >= since.max(last) + ASK_AGAIN,
                    Continues::Swallowed { .. } => false,
                };
                if count >= TOO_MANY && is_over {
                    state.continues = Continues::Swallowed { asked: now };
                    tracing::warn!("{SWALLOWED}");
                    self.tell(Some(SWALLOWED));
                }
            }
            Ending::Answered | Ending::TimedOut | Ending::Unsaid => {}
        }
    }

    /// A server has begun with a write.
    pub(super) fn begun(&self) {
        let continues = Continues::Seen { last: Instant::now() };
        let before = mem::replace(&mut *self.state.lock(), State { in_vain: None, continues });
        if let Continues::Swallowed { .. } = before.continues {
            tracing::info!("100 Continue comes now: writes wait for it");
            self.tell(None);
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

    fn tell(&self, alarm: Option<&str>) {
        if let Some(alarms) = &self.alarms {
            alarms.set(NOT_BEGUN, alarm.map(str::to_owned));
        }
    }
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

    #[test]
    fn m4_what_is_not_answered_in_time_is_counted() {
        let metrics = Metrics::default();
        let overdue = Overdue::new(Arc::new(ApiMetrics::new(&metrics, "test").unwrap()), None);
        let patch = request(Verb::Patch, "/api/v1/nodes/n1/status");
        for ending in [Ending::TimedOut, Ending::Answered, Ending::NotBegun, Ending::Unsaid, Ending::TimedOut]
        {
            overdue.note(&patch, ending, false, Instant::now());
        }
        let text = metrics.text().unwrap();
        let line = "mooring_requests_timed_out_total{resource=\"nodes/status\",verb=\"patch\"} 3\n";
        assert!(text.contains(line), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn s37_a_server_that_has_begun_before_may_hang_and_swallows_nothing_before_a_minute_of_writes() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Overdue::new(api, Some(alarms.clone()));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        let patch = request(Verb::Patch, "/api/v1/nodes/n1/status");
        overdue.begun();
        for _ in 0..3 {
            overdue.note(&create, Ending::NotBegun, true, Instant::now());
        }
        assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
        // Nor does one swallow it that lets it through for others, or answers them.
        tokio::time::advance(ASK_AGAIN).await;
        overdue.begun();
        overdue.note(&create, Ending::NotBegun, true, Instant::now());
        overdue.note(&patch, Ending::Answered, true, Instant::now());
        overdue.note(&create, Ending::NotBegun, true, Instant::now());
        // A write that waits for nothing says nothing of it.
        overdue.note(&patch, Ending::Answered, false, Instant::now());
        overdue.note(&create, Ending::NotBegun, true, Instant::now());
        assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
        assert!(alarms.raised().is_empty());
        // Who leads on for a minute without any is answered otherwise: something swallows it.
        tokio::time::advance(ASK_AGAIN).await;
        overdue.note(&create, Ending::NotBegun, true, Instant::now());
        assert_eq!(overdue.expectation(Instant::now()), Expectation::None);
        assert_eq!(alarms.raised(), [format!("writes_not_begun: {SWALLOWED}")]);
        overdue.begun();
        assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
        assert!(alarms.raised().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn s37_a_time_without_writes_is_none_in_which_100_continue_does_not_come() {
        let api = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let overdue = Overdue::new(api, None);
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        overdue.begun();
        overdue.note(&create, Ending::NotBegun, true, Instant::now());
        tokio::time::advance(5 * ASK_AGAIN).await;
        for _ in 0..3 {
            overdue.note(&create, Ending::NotBegun, true, Instant::now());
            assert_eq!(overdue.expectation(Instant::now()), Expectation::Waits);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn s37_where_no_server_ever_says_that_it_begins_no_write_waits_for_that() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let overdue = Overdue::new(api, Some(alarms.clone()));
        let create = request(Verb::Create, "/apis/storage.k8s.io/v1/volumeattachments");
        for expectation in [Expectation::Waits, Expectation::Waits, Expectation::None] {
            overdue.note(&create, Ending::NotBegun, true, Instant::now());
            assert_eq!(overdue.expectation(Instant::now()), expectation);
        }
        // It is told for as long as it is so, also when such writes are answered.
        overdue.note(&create, Ending::Answered, true, Instant::now());
        tokio::time::sleep(ASK_AGAIN * 20).await;
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
