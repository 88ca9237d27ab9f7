//! Seeded faults over all requests: delays, refusals and errors before and after the commit, lost
//! answers, broken connections, watches cut short.
//!
//! The fate of a request depends only on the seed and on the requests before it. A storm is bounded:
//! after its last fault every request passes.

use std::time::Duration;

use http::{Method, StatusCode};
use tower::BoxError;

use super::rule::Answer;

/// How bad it gets. Chances are per thousand requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// Decides everything.
    pub seed: u64,
    /// Chance of a fault of a write.
    pub writes: u16,
    /// Chance of a fault of a read or list, and of a watch being cut.
    pub reads: u16,
    /// Longest delay of a request, and longest life of a watch that is cut. A write that is late arrives
    /// even if its sender has given up meanwhile.
    pub longest: Duration,
    /// Faults at most.
    pub limit: usize,
    /// Every fault of a write is a 500, and of each two one comes after the server has carried the write out.
    pub only_errors: bool,
}

impl Storm {
    /// One that disturbs a third of all writes.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            writes: 330,
            reads: 100,
            longest: Duration::from_millis(500),
            limit: 1000,
            only_errors: false,
        }
    }

    /// One in which nothing happens but that of a thousand writes so many are answered with an error.
    pub fn of_errors(seed: u64, writes: u16) -> Self {
        Self { writes, reads: 0, only_errors: true, ..Self::new(seed) }
    }
}

/// What happens to one request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// It arrives late.
    Late(Duration),
    /// It never arrives.
    Unsent,
    /// It is answered without having been carried out.
    Refused(Answer),
    /// It is carried out, and then answered with an error.
    Denied(Answer),
    /// It is carried out, and its answer never arrives.
    Unanswered,
    /// A watch begins and is cut after a while.
    Cut(Duration),
}

impl Fault {
    /// What happens before the server sees the request: an answer in its place, or nothing.
    pub fn before(&self) -> Result<Option<Answer>, BoxError> {
        match self {
            Self::Unsent => return Err("the storm has taken the request".into()),
            Self::Refused(answer) => return Ok(Some(answer.clone())),
            Self::Late(_) | Self::Denied(_) | Self::Unanswered | Self::Cut(_) => {}
        }
        Ok(None)
    }

    /// How late the server sees the request.
    pub fn delay(&self) -> Duration {
        match self {
            Self::Late(pause) => *pause,
            _ => Duration::ZERO,
        }
    }

    /// What happens after the server has carried it out.
    pub fn after(self) -> Result<Option<Answer>, BoxError> {
        match self {
            Self::Denied(answer) => Ok(Some(answer)),
            Self::Unanswered => Err("the storm has taken the answer".into()),
            Self::Late(_) | Self::Unsent | Self::Refused(_) | Self::Cut(_) => Ok(None),
        }
    }

    /// How long a watch may live.
    pub fn cuts_watch(&self) -> Option<Duration> {
        match self {
            Self::Cut(lifetime) => Some(*lifetime),
            _ => None,
        }
    }
}

/// A storm under way.
#[derive(Debug)]
pub(super) struct Weather {
    storm: Storm,
    random: fastrand::Rng,
    faults: usize,
}

impl Weather {
    pub fn new(storm: &Storm) -> Self {
        Self { storm: *storm, random: fastrand::Rng::with_seed(storm.seed), faults: 0 }
    }

    /// Faults so far.
    pub fn faults(&self) -> usize {
        self.faults
    }

    /// The fault of the next request, if it has one.
    pub fn draw(&mut self, method: &Method, path: &str) -> Option<Fault> {
        let is_read = *method == Method::GET;
        let chance = if is_read { self.storm.reads } else { self.storm.writes };
        if self.faults >= self.storm.limit || self.random.u16(..1000) >= chance {
            return None;
        }
        self.faults += 1;
        let pause = self.storm.longest.mul_f64(self.random.f64());
        if is_read {
            return Some(match self.random.u8(..4) {
                0 => Fault::Late(pause),
                1 => Fault::Refused(unavailable()),
                2 => Fault::Unsent,
                _ => Fault::Cut(pause),
            });
        }
        if self.storm.only_errors {
            let is_carried_out = self.random.bool();
            return Some(if is_carried_out { Fault::Denied(error()) } else { Fault::Refused(error()) });
        }
        Some(match self.random.u8(..8) {
            0 => Fault::Late(pause),
            1 => Fault::Unsent,
            2 => Fault::Unanswered,
            3 => Fault::Refused(unavailable()),
            4 => Fault::Refused(busy()),
            // A conflict that the object does not explain; a creation knows none.
            5 if *method != Method::POST && !path.contains("/leases") => Fault::Refused(conflict()),
            5 | 6 => Fault::Denied(error()),
            _ => Fault::Denied(Answer::refusal(StatusCode::GATEWAY_TIMEOUT, "Timeout")),
        })
    }
}

fn error() -> Answer {
    Answer::refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
}

fn unavailable() -> Answer {
    Answer::refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
}

fn busy() -> Answer {
    Answer::refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests").retry_after(1)
}

fn conflict() -> Answer {
    Answer::refusal(StatusCode::CONFLICT, "Conflict")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, count: usize) -> Vec<Option<Fault>> {
        let mut weather = Weather::new(&Storm::new(seed));
        let methods = [Method::POST, Method::PATCH, Method::DELETE, Method::GET];
        methods.iter().cycle().take(count).map(|method| weather.draw(method, "/x")).collect()
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(drawn(1, 200), drawn(1, 200));
        assert_ne!(drawn(1, 200), drawn(2, 200));
    }

    #[test]
    fn errors_alone_come_before_and_after_the_commit_and_to_writes_only() {
        let mut weather = Weather::new(&Storm::of_errors(1, 600));
        assert!((0..100).all(|_| weather.draw(&Method::GET, "/x").is_none()));
        let drawn: Vec<_> = (0..100).filter_map(|_| weather.draw(&Method::PATCH, "/x")).collect();
        let is_of = |fault: &Fault, is_carried_out: bool| match fault {
            Fault::Denied(answer) => is_carried_out && answer.status == 500,
            Fault::Refused(answer) => !is_carried_out && answer.status == 500,
            _ => false,
        };
        let counts = [true, false].map(|after| drawn.iter().filter(|fault| is_of(fault, after)).count());
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), drawn.len());
    }

    #[test]
    fn every_fault_happens_and_then_it_ends() {
        let all = drawn(7, 10_000);
        let has = |is_one: fn(&Fault) -> bool| all.iter().flatten().any(is_one);
        assert!(has(|fault| matches!(fault, Fault::Late(_))));
        assert!(has(|fault| matches!(fault, Fault::Unsent)));
        assert!(has(|fault| matches!(fault, Fault::Unanswered)));
        assert!(has(|fault| matches!(fault, Fault::Cut(_))));
        for code in [409, 429, 503] {
            assert!(
                all.iter().flatten().any(|fault| {
                    matches!(fault, Fault::Refused(answer) if answer.status.as_u16() == code)
                })
            );
        }
        for code in [500, 504] {
            assert!(
                all.iter().flatten().any(|fault| {
                    matches!(fault, Fault::Denied(answer) if answer.status.as_u16() == code)
                })
            );
        }
        assert_eq!(all.iter().flatten().count(), Storm::new(7).limit);
        assert_eq!(all.last(), Some(&None));
    }
}
