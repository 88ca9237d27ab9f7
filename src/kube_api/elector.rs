//! Leader election: acquires the lease, renews it, gives it up.
//!
//! In: the Lease, judged by [`super::lease`]. Out: the [`Leadership`] that every write asks, and an
//! [`ElectionView`] for people. A term lasts until `renew deadline` after the *start* of the last
//! renewal that succeeded. It begins only after the take-over barrier, a future given by the caller
//! that reads what the previous leader may have written last; meanwhile the lease is renewed.
//!
//! A leader that loses the lease ends (the process exits, as KCM's does): there is no way back from
//! leading to standing by that could not overlook a request in flight. A standby never gives up.

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::ready,
    stream::{self, BoxStream},
};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::Value;
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    call::{CallError, Caller, Request, Verb},
    leadership::{Leadership, Term},
    lease::{self, Action, JITTER_FACTOR, Observed, Timing},
};
use crate::metrics::ElectionMetrics;

/// Longest pause between attempts to watch the lease.
const LONGEST_WATCH_PAUSE: Duration = Duration::from_secs(2);

/// Which lease, and as whom.
#[derive(Clone, Debug)]
pub struct Candidacy {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// What to write as its holder. Never used by two processes, not even one after the other.
    pub identity: String,
    /// Durations.
    pub timing: Timing,
}

/// How the election stands, for `/readyz` and `/debug`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionView {
    /// Whether this process holds the lease.
    pub leading: bool,
    /// Who holds it; empty if nobody does, or if it could not be read yet.
    pub holder: String,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// Why the election ended without being told to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElectionError {
    /// No renewal succeeded in time.
    #[error("lease {lease} lost: not renewed within {deadline:?} ({reason})")]
    Overdue {
        /// Namespace and name.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
        /// What went wrong last.
        reason: String,
    },
    /// The lease names another holder.
    #[error("lease {lease} lost: held by {holder:?} now")]
    Taken {
        /// Namespace and name.
        lease: String,
        /// Who holds it; empty if somebody made us give it up.
        holder: String,
    },
}

/// Why an attempt to acquire or renew failed.
#[derive(Debug, Error)]
enum AttemptError {
    #[error("held by {0:?}")]
    Held(String),
    #[error("{0}")]
    Call(#[from] CallError),
}

/// Runs for the lease.
#[derive(Debug)]
pub struct Elector {
    caller: Caller,
    candidacy: Candidacy,
    observed: Option<Observed>,
    leadership: Leadership,
    view: Arc<watch::Sender<ElectionView>>,
    metrics: ElectionMetrics,
}

impl Elector {
    /// An elector whose requests go through `caller`, which must be allowed to write without a term
    /// ([`Term::Unlimited`]) and should have a client and a timeout of its own.
    #[must_use]
    pub fn new(
        caller: Caller,
        candidacy: Candidacy,
        leadership: Leadership,
        metrics: ElectionMetrics,
    ) -> Self {
        Self { caller, candidacy, observed: None, leadership, view: Arc::default(), metrics }
    }

    /// How the election stands.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<ElectionView> {
        self.view.subscribe()
    }

    /// Stands by until the lease is won, passes the barrier, leads. Returns once `release` is
    /// cancelled and the lease is given up. `watch_client`, if given, serves to notice at once when
    /// the lease changes.
    ///
    /// # Errors
    /// The lease was lost; the term has ended.
    pub async fn run<F>(
        mut self,
        watch_client: Option<Client>,
        barrier: F,
        release: CancellationToken,
    ) -> Result<(), ElectionError>
    where
        F: Future<Output = ()>,
    {
        let Some(deadline) = self.stand_by(watch_client, &release).await else { return Ok(()) };
        tracing::info!(lease = %self.lease(), identity = %self.candidacy.identity, "won the lease");
        self.metrics.set_leading(true);
        let result = self.lead(deadline, barrier, &release).await;
        self.leadership.set(Term::None);
        self.metrics.set_leading(false);
        if result.is_ok() {
            self.give_up().await;
        }
        self.view.send_modify(|view| view.leading = false);
        result
    }

    /// Waits for the lease. `None` if told to end first.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, acquire.
    async fn stand_by(&mut self, client: Option<Client>, release: &CancellationToken) -> Option<Instant> {
        let timing = self.candidacy.timing;
        let mut changes = changes(client, &self.candidacy);
        while !release.is_cancelled() {
            // Not interrupted: a lease won by an abandoned request would be held by nobody.
            match self.attempt(false).await {
                Ok(deadline) => return Some(deadline),
                Err(error) => self.note_failure(&error),
            }
            let now = Instant::now();
            let pause = timing.retry_period.mul_f64(1.0 + fastrand::f64() * JITTER_FACTOR);
            // Unlike client-go, not later than it can be won (L14).
            let expiry = self.observed.as_ref().map(|observed| observed.expiry(&timing));
            let wake = expiry.filter(|expiry| *expiry > now).unwrap_or(now + pause).min(now + pause);
            tokio::select! {
                () = release.cancelled() => return None,
                _ = changes.next() => {}
                () = sleep_until(wake) => {}
            }
        }
        None
    }

    /// client-go: tools/leaderelection/leaderelection.go, renew.
    async fn lead<F: Future<Output = ()>>(
        &mut self,
        mut deadline: Instant,
        barrier: F,
        release: &CancellationToken,
    ) -> Result<(), ElectionError> {
        let mut barrier = std::pin::pin!(barrier);
        let mut passed = false;
        let mut reason = "no attempt ended in time".to_owned();
        let mut next_attempt = Instant::now() + self.candidacy.timing.retry_period;
        loop {
            tokio::select! {
                biased;
                () = release.cancelled() => return Ok(()),
                () = &mut barrier, if !passed => {
                    passed = true;
                    tracing::info!(lease = %self.lease(), "leading");
                    self.leadership.set(Term::Until(deadline));
                    continue;
                }
                () = sleep_until(next_attempt.min(deadline)) => {}
            }
            let started = Instant::now();
            // A process that was stopped for a while finds the deadline passed: it must not even ask.
            let attempt =
                if started < deadline { timeout_at(deadline, self.attempt(true)).await.ok() } else { None };
            match attempt {
                Some(Ok(extended)) => {
                    deadline = extended;
                    if passed {
                        self.leadership.set(Term::Until(deadline));
                    }
                }
                Some(Err(AttemptError::Held(holder))) => {
                    return Err(ElectionError::Taken { lease: self.lease(), holder });
                }
                Some(Err(error)) => {
                    self.note_failure(&error);
                    reason = error.to_string();
                }
                None => {}
            }
            if Instant::now() >= deadline {
                let renew_deadline = self.candidacy.timing.renew_deadline;
                return Err(ElectionError::Overdue { lease: self.lease(), deadline: renew_deadline, reason });
            }
            next_attempt = started + self.candidacy.timing.retry_period;
        }
    }

    /// Acquires or renews once. Returns until when the lease lets us lead.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew. Unlike there, a leader
    /// that reads another's name stops at once instead of trying until the deadline, and a renewal
    /// without an answer is followed by the next renewal instead of a read.
    async fn attempt(&mut self, leading: bool) -> Result<Instant, AttemptError> {
        let Candidacy { namespace, name, identity, timing } = self.candidacy.clone();
        if leading && let Some(observed) = &self.observed {
            let body = lease::renewal(observed, &identity, &timing, Timestamp::now());
            match self.write(Verb::Update, body).await {
                Ok(deadline) => return Ok(deadline),
                Err(CallError::Conflict(_) | CallError::NotFound(_) | CallError::AlreadyExists(_)) => {
                    self.metrics.count_slow_path();
                }
                Err(error) => return Err(error.into()),
            }
        }
        let observed = self.read().await?;
        let body = lease::renewal(&observed, &identity, &timing, Timestamp::now());
        let action = lease::evaluate(&observed, Instant::now(), &identity, &timing);
        self.observed = Some(observed);
        let deadline = match action {
            Action::Wait { holder } => return Err(AttemptError::Held(holder)),
            Action::TakeOver { from } if leading => return Err(AttemptError::Held(from)),
            Action::Renew => self.write(Verb::Update, body).await?,
            Action::TakeOver { from } => {
                let deadline = self.write(Verb::Update, body).await?;
                tracing::info!(lease = %self.lease(), %from, "took over the lease");
                deadline
            }
            Action::Create => {
                let body = lease::creation(&namespace, &name, &identity, &timing, Timestamp::now());
                self.write(Verb::Create, Some(body)).await?
            }
        };
        Ok(deadline)
    }

    async fn read(&self) -> Result<Observed, CallError> {
        let request = Request { verb: Verb::Get, path: self.path(Verb::Get), body: None };
        let object = match self.caller.send(&request).await {
            Ok(body) => Some(parse(&body)?),
            Err(CallError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Observed::update(self.observed.as_ref(), object, Instant::now()))
    }

    /// Writes the lease, and keeps the answer for the next time. The right to lead counts from
    /// before the request was sent, because the server may have carried it out right then.
    async fn write(&mut self, verb: Verb, body: Option<Value>) -> Result<Instant, CallError> {
        let sent = Instant::now();
        let answer = self.caller.send(&Request { verb, path: self.path(verb), body }).await?;
        let observed = Observed::update(self.observed.as_ref(), Some(parse(&answer)?), Instant::now());
        let view = ElectionView {
            leading: observed.holder() == self.candidacy.identity,
            holder: observed.holder().to_owned(),
            error: None,
        };
        self.observed = Some(observed);
        self.view.send_replace(view);
        Ok(sent + self.candidacy.timing.renew_deadline)
    }

    /// Gives up the lease, so that the next leader need not wait for it to expire.
    async fn give_up(&mut self) {
        let identity = self.candidacy.identity.clone();
        let mut body = self
            .observed
            .as_ref()
            .and_then(|observed| lease::released(observed, &identity, Timestamp::now()));
        // A renewal whose answer was lost has changed the revision: read it and try once more.
        for last in [false, true] {
            if body.is_none() {
                return;
            }
            match self.write(Verb::Update, body).await {
                Ok(_) => {
                    tracing::info!(lease = %self.lease(), "released the lease");
                    return;
                }
                Err(CallError::Conflict(_)) if !last => match self.read().await {
                    Ok(observed) => body = lease::released(&observed, &identity, Timestamp::now()),
                    Err(error) => {
                        tracing::warn!(lease = %self.lease(), %error, "could not release the lease");
                        return;
                    }
                },
                Err(error) => {
                    tracing::warn!(lease = %self.lease(), %error, "could not release the lease");
                    return;
                }
            }
        }
    }

    fn note_failure(&self, error: &AttemptError) {
        let holder = self.observed.as_ref().map(Observed::holder).unwrap_or_default().to_owned();
        let reason = match error {
            AttemptError::Held(_) => None,
            AttemptError::Call(error) => Some(error.to_string()),
        };
        // Somebody else renews every few seconds and an outage may last for hours: a line per change.
        let changed = self.view.send_if_modified(|view| {
            let next = ElectionView { leading: view.leading, holder: holder.clone(), error: reason.clone() };
            let changed = *view != next;
            *view = next;
            changed
        });
        match reason {
            Some(error) if changed => tracing::warn!(lease = %self.lease(), error, "lease request failed"),
            None if changed => tracing::info!(lease = %self.lease(), %holder, "standing by"),
            _ => {}
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.candidacy.namespace, self.candidacy.name)
    }

    fn path(&self, verb: Verb) -> String {
        let Candidacy { namespace, name, .. } = &self.candidacy;
        let root = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        if verb == Verb::Create { root } else { format!("{root}/{name}") }
    }
}

fn parse(body: &[u8]) -> Result<Value, CallError> {
    serde_json::from_slice(body).map_err(|error| CallError::Unknown(format!("unreadable Lease: {error}")))
}

/// Whenever the lease changes. Only a hint: the attempt that follows reads the lease itself. With it
/// a standby sees a release at once and counts a dead leader's lease from its last renewal; without
/// permission to watch, nothing is lost but a few seconds.
fn changes(client: Option<Client>, candidacy: &Candidacy) -> BoxStream<'static, ()> {
    let Some(client) = client else { return stream::pending().boxed() };
    let leases: Api<Lease> = Api::namespaced(client, &candidacy.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", candidacy.name));
    let events = watcher(leases, config).backoff(Backoff::new(LONGEST_WATCH_PAUSE));
    let permitted = events.take_while(|event| {
        let forbidden = match event {
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => status.code == 403,
            _ => false,
        };
        if forbidden {
            tracing::info!("may not watch the lease: polling it only");
        }
        ready(!forbidden)
    });
    // The state at the start is what the attempt before has seen.
    let changes = permitted.filter_map(|event| {
        ready(match event {
            Ok(Event::Apply(_) | Event::Delete(_)) => Some(()),
            Ok(Event::Init | Event::InitApply(_) | Event::InitDone) | Err(_) => None,
        })
    });
    changes.chain(stream::pending()).boxed()
}

#[cfg(test)]
mod tests;
