//! The limit on this side: how many requests of one budget leave in a second.
//!
//! In: the rate. Out: when a request may leave. As with client-go, each client has a limiter of its own, so that a
//! controller with much to write keeps none of the others waiting (L15). A detach does not wait long in any case: whether
//! its volume is needed again is known only to who decides (S15). So it waits behind one other request, however many wait.

use std::{sync::Arc, time::Duration};

use leaky_bucket::RateLimiter;
use tokio::{sync::Mutex, time::timeout};

use super::{Request, Verb};
use crate::kinds::{Narrow as _, VolumeAttachment};

/// The longest time that a detach waits for the limit, after which it is decided anew; where tokens come more rarely, as long as
/// until the next two and half of a third, so that it gets one behind the request whose turn it is.
const PATIENCE: Duration = Duration::from_millis(100);

/// Client-side limit on requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second.
    pub qps: f64,
    /// Requests at once.
    pub burst: usize,
}

impl RateLimit {
    fn limiter(self) -> RateLimiter {
        // Timers have a resolution of 1 ms: above 20/s several permits come at once, every 50 ms.
        let at_once = (self.qps / 20.0).ceil().max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1, whole")]
        let refill = at_once as usize;
        RateLimiter::builder()
            .initial(self.burst)
            .max(self.burst.max(refill))
            .refill(refill)
            .interval(Duration::from_secs_f64(at_once / self.qps))
            .build()
    }
}

/// The limiter of one budget.
#[derive(Clone)]
pub(super) struct Rate {
    limit: RateLimit,
    /// One waits for its token, and behind it the detaches in the order in which they came.
    limiter: Arc<Mutex<RateLimiter>>,
    /// One other request stands among them, and the rest wait for their turn to.
    turn: Arc<Mutex<()>>,
}

impl Rate {
    pub fn new(limit: RateLimit) -> Self {
        Self { limit, limiter: Arc::new(Mutex::new(limit.limiter())), turn: Arc::default() }
    }

    /// A limiter of the same rate for another budget.
    pub fn anew(&self) -> Self {
        Self::new(self.limit)
    }

    /// Waits until the request may leave. Returns whether it may: a detach that would have to wait any longer has taken
    /// nothing of the rate.
    pub async fn admits(&self, request: &Request) -> bool {
        if request.verb == Verb::Delete && request.target().plural == VolumeAttachment::PLURAL {
            let patience = PATIENCE.max(Duration::from_secs_f64(2.5 / self.limit.qps));
            return timeout(patience, self.token()).await.is_ok();
        }
        let _turn = self.turn.lock().await;
        self.token().await;
        true
    }

    async fn token(&self) {
        self.limiter.lock().await.acquire_one().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_limiter_keeps_to_the_rate() {
        for (qps, burst) in [(20.0, 5), (2_500.0, 5)] {
            let limiter = RateLimit { qps, burst }.limiter();
            let started = Instant::now();
            let mut granted = 0.0;
            for _ in 0..burst {
                limiter.acquire_one().await;
            }
            while started.elapsed() < Duration::from_secs(10) {
                limiter.acquire_one().await;
                granted += 1.0;
            }
            let rate = granted / started.elapsed().as_secs_f64();
            assert!((qps * 0.9..qps * 1.1).contains(&rate), "{qps}: {rate}");
        }
    }
}
