//! How long a request may take, and how much of that is left to a write within a term.
//!
//! No other process leads before `sent + lease duration`, where `sent` is the moment the last successful renewal
//! was sent: others wait that long after they have *seen* it, and they saw it later. So a write must be
//! carried out before
//!
//! ```text
//! end = sent + lease duration - MARGIN = term's deadline + reserve
//! ```
//!
//! The server counts `?timeout=` from the moment it has read the request's head, which is not seen here: the
//! request may lie in a queue, a proxy or a frozen process before. Therefore the body is kept back until the
//! server says that it has begun (`100 Continue`, [`super::gate`]), and is let go at `now` only if
//!
//! ```text
//! begun <= now,  carried out <= begun + server's time  =>  now + server's time <= end
//! ```
//!
//! With KCM's durations (15 s, 10 s, 2 s) a write has 11.5 s of the server's time whenever the lease is renewed
//! as it should be. If too little is left, a write waits for the next renewal, for one that is certain to be cut off
//! is no help, and is then decided anew.

use std::time::Duration;

use tokio::time::Instant;

use crate::leadership::Term;

/// How long a request may take where no lease is to be thought of: the API server itself gives no write more.
///
/// kube-apiserver: endpoints/handlers/rest.go, `requestTimeoutUpperBound`.
pub const LONGEST_REQUEST: Duration = Duration::from_secs(34);

/// What is left of the lease for a request to reach the server. One that takes longer is not lost: its body
/// then waits for the next renewal.
pub(crate) const ARRIVAL: Duration = Duration::from_millis(500);

/// How long an answer may take after the server's own time is over. What the server has to say about that tells
/// more than our own clock.
pub const ANSWER: Duration = Duration::from_millis(500);

/// Whether a write may be sent, and how long the server may take over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// With so much of the server's time.
    Send(Duration),
    /// Not before the next renewal: too little is left of the lease.
    AfterRenewal,
    /// We do not lead.
    NotLeader,
}

/// Judges at `now` whether a write may be sent that should be allowed `longest`. At least half of that is worth
/// a try: where renewals are slow there may never be more.
pub(crate) fn allowance(term: Term, reserve: Duration, longest: Duration, now: Instant) -> Allowance {
    let Some(left) = left(term, reserve, now) else { return Allowance::NotLeader };
    let left = left.saturating_sub(ARRIVAL);
    if left < longest / 2 { Allowance::AfterRenewal } else { Allowance::Send(left.min(longest)) }
}

/// How long a write that the server begins with at `now` may take; none if we lead no longer. One over which it may
/// take longer has to wait for the next renewal.
pub(crate) fn left(term: Term, reserve: Duration, now: Instant) -> Option<Duration> {
    match term {
        Term::None => None,
        Term::Unlimited => Some(Duration::MAX),
        Term::Until(deadline) => (now < deadline).then(|| deadline + reserve - now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Timing;

    const TIMING: Timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    /// The lease was renewed at the start.
    fn term(start: Instant) -> Term {
        Term::Until(start + TIMING.renew_deadline)
    }

    #[test]
    fn m4_a_write_has_most_of_the_lease() {
        let start = Instant::now();
        let longest = TIMING.longest_write();
        assert_eq!(longest, Duration::from_millis(11_500));
        let send = |millis| Allowance::Send(Duration::from_millis(millis));
        // milliseconds since the last renewal was sent, what is allowed then
        let cases = [
            (0, send(11_500)),
            (2_000, send(11_500)),
            (2_100, send(11_400)),
            (7_750, send(5_750)),
            (7_751, Allowance::AfterRenewal),
            (9_999, Allowance::AfterRenewal),
            (10_000, Allowance::NotLeader),
        ];
        for (age, expected) in cases {
            let now = start + Duration::from_millis(age);
            assert_eq!(allowance(term(start), TIMING.reserve(), longest, now), expected, "{age} ms");
        }
        let other = |term| allowance(term, TIMING.reserve(), LONGEST_REQUEST, start);
        assert_eq!(other(Term::None), Allowance::NotLeader);
        assert_eq!(other(Term::Unlimited), send(34_000));
    }

    #[test]
    fn m8_whatever_is_let_go_is_over_before_another_may_lead() {
        let start = Instant::now();
        let others_may_lead = start + TIMING.lease_duration;
        for age in (0..10_500).step_by(50) {
            for seconds in 0..16 {
                let (now, server_time) = (start + Duration::from_millis(age), Duration::from_secs(seconds));
                match left(term(start), TIMING.reserve(), now) {
                    Some(left) if server_time <= left => {
                        assert!(now + server_time < others_may_lead, "{age} ms, {seconds} s");
                    }
                    Some(_) => assert!(age < 10_000),
                    None => assert!(age >= 10_000),
                }
            }
        }
        assert_eq!(left(Term::None, Duration::ZERO, start), None);
        assert_eq!(left(Term::Unlimited, Duration::ZERO, start), Some(Duration::MAX));
    }
}
