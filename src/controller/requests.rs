//! Sends the calls of a small controller. Each call knows how: the executor is the same for all of them.

use apiserver::call::{CallError, Caller};

use super::{Controller, Executor, keys::CALLS};

/// A call that can be sent.
pub trait Sent: Send + Sync + 'static {
    /// What the API server answers, decoded.
    type Answer: Send + 'static;

    /// Sends it: one request, or one list in pages.
    fn send(&self, caller: &Caller) -> impl Future<Output = Result<Self::Answer, CallError>> + Send;

    /// Its key in the work queue.
    fn key(&self) -> String;

    /// That it failed, and what follows.
    fn failed(&self) -> String;
}

/// Sends the calls of one small controller.
#[derive(Debug)]
pub struct Requests(Caller);

impl Requests {
    /// With a budget of its own of requests that are under way at once.
    pub fn new(caller: &Caller) -> Self {
        Self(caller.with_own_budget(CALLS))
    }
}

impl<C: Controller<Call: Sent<Answer = C::Answer>>> Executor<C> for Requests {
    fn perform(
        &self,
        call: C::Call,
    ) -> impl Future<Output = (C::Call, Result<C::Answer, CallError>)> + Send + 'static {
        let caller = self.0.clone();
        async move {
            let result = call.send(&caller).await;
            (call, result)
        }
    }

    fn work(call: &C::Call) -> Option<(usize, String)> {
        Some((0, call.key()))
    }

    fn ends(&mut self, _: &C, call: &C::Call, result: &Result<C::Answer, CallError>) {
        // What another look settles is no failure.
        if let Err(error) = result
            && !matches!(error, CallError::Conflict(_) | CallError::NotFound(_) | CallError::NotLeader)
        {
            tracing::warn!(object = call.key(), reason = "RetryBackoff", %error, "{}", call.failed());
        }
    }
}
