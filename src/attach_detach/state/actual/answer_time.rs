//! When the answer to a request came, and for how long a failure makes its next try wait. Pure.

use std::time::Duration;

use apiserver::call::CallError;
use tokio::time::Instant;

use crate::controller::retry::Retry;

/// After so many failures in a row that the server may not have meant, no answer, a request for a pause or one that never
/// left, an event says so: it is no accident then. (KCM records the first.)
const RECORDED_FAILURES: u32 = 3;

/// When an answer came.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When the request was sent: an answer that comes late shows nothing of what landed after that.
    pub asked: Instant,
    /// When the answer was taken.
    pub now: Instant,
    /// Below 1, for the pause after a failure.
    pub jitter: f64,
    /// For how long a request without an answer may still be carried out.
    pub settle_time: Duration,
}

impl Answered {
    /// Until when a request may still be carried out that was found now to have no answer.
    pub(crate) fn in_doubt_until(&self) -> Instant {
        self.now + self.settle_time
    }

    /// The pause after a request that failed, a read or a write, with what an event says of it, if one does.
    pub fn failed(&self, retry: Retry, error: &CallError, is_read: bool) -> Retry {
        let retry = retry.after_error(error, is_read, self.now, self.jitter);
        let is_silent = is_read && !error.is_certain();
        if is_silent || error.is_of_all() || matches!(error, CallError::NotLeader) {
            return retry;
        }
        let is_meant =
            error.is_certain() && !matches!(error, CallError::Throttled { .. } | CallError::NotSent(_));
        let is_recorded = is_meant || retry.tries() >= RECORDED_FAILURES;
        if is_recorded { retry.because(&error.to_string()) } else { retry }
    }

    /// The pause after an answer that is none for the object's sake, though no error either: it does not say why.
    pub(crate) fn in_vain(&self, retry: Retry) -> Retry {
        retry.after_failure(self.now, self.jitter, Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn s40_what_was_never_sent_as_the_server_has_no_time_for_any_request_is_no_failure() {
        let (now, after) = (Instant::now(), Duration::from_secs(4));
        let message = "it is too busy for all requests, nothing was sent".to_owned();
        let error = CallError::Throttled { message, after };
        assert!(error.is_of_all());
        let answered = Answered { asked: now, now, jitter: 0.5, settle_time: Duration::ZERO };
        let retry = (0..9).fold(Retry::default(), |retry, _| answered.failed(retry, &error, false));
        assert_eq!((retry.at(), retry.failures(), retry.message()), (Some(now + after), 0, None));
    }

    #[test]
    fn l18_what_the_server_meant_is_recorded_at_once_and_what_may_be_an_accident_after_three() {
        let after = Duration::from_mins(5);
        let throttled = || CallError::Throttled { after, message: "busy".to_owned() };
        // name, error, which failure in a row is the first to be recorded, if any
        let cases = [
            ("refused", CallError::Refused { code: 403, message: "no".to_owned() }, Some(1)),
            ("no answer", CallError::Unknown("cut".to_owned()), Some(3)),
            ("never sent", CallError::NotSent("no 100 Continue".to_owned()), Some(3)),
            ("asked to wait", throttled(), Some(3)),
        ];
        let now = Instant::now();
        let answered = Answered { asked: now, now, jitter: 0.5, settle_time: Duration::ZERO };
        for (name, error, expected) in cases {
            let mut retry = Retry::default();
            let first = (1..=5).find(|_| {
                retry = answered.failed(std::mem::take(&mut retry), &error, false);
                retry.message().is_some()
            });
            assert_eq!(first, expected, "{name}");
        }
        let unsent = || CallError::NotSent("no 100 Continue".to_owned());
        let retry = (0..9).fold(Retry::default(), |retry, _| answered.failed(retry, &unsent(), false));
        assert!(retry.failures() == 0 && retry.at() <= Some(now + Duration::from_secs(4)), "L16 {retry:?}");
        let put_off = || CallError::Throttled { after: Duration::from_secs(1), message: "busy".to_owned() };
        let retry = (0..9).fold(Retry::default(), |retry, _| answered.failed(retry, &put_off(), false));
        assert!(retry.failures() == 0 && retry.at() <= Some(now + Duration::from_secs(4)), "L16 {retry:?}");
        let pause = answered.failed(Retry::default(), &throttled(), false).at();
        assert!(pause >= Some(now + after), "S40 no earlier than the server asked for");
    }
}
