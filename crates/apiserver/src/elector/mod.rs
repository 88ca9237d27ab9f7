//! Leader election: acquires the lease, renews it, gives it up.
//!
//! In: the Lease, judged by [`super::lease`]. Out: the [`Leadership`] that every write asks, and an
//! [`ElectionView`] for people. A term lasts until `renew deadline` after the *start* of the last
//! renewal that succeeded. It begins only after the take-over barrier, a future given by the caller
//! that reads what the previous leader may have written last; meanwhile the lease is renewed.
//!
//! A leader that loses the lease ends (the process exits, as KCM's does): there is no way back from
//! leading to standing by that could not overlook a request in flight. So does one that can do nothing with it:
//! that does not come to lead, or that cannot see or connect any more while another replica can. That other one is asked
//! for, and answers, by notes on the lease ([`super::lease::note`]): without an answer nothing is gained by giving it
//! up. A standby never gives up. It stands for election only when it knows all there is.

mod attempt;

use std::{pin::pin, sync::Arc, time::Duration};

use futures::FutureExt;
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    call::{CallError, Caller, Verb},
    leadership::{Leadership, Term},
    lease::{Fitness, Observed, Timing},
    lease_note::LeaseNote,
    progress::Progress,
    pulse::Listener,
    restore::RestoreGrace,
    sight::Sight,
    suspension::Suspended,
};
use crate::metrics::ElectionMetrics;

/// How long a take-over may last without coming further. Who reads nothing for so long cannot read what it must, and
/// another may.
pub(crate) const LONGEST_STALL: Duration = Duration::from_secs(30);

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

/// What the elector shares with the other parts of the process.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Whether the replica sees what happens.
    pub sight: Sight,
    /// The grace after a restore of etcd, which is shared with the other replicas, too: it begins when the lease goes back
    /// in time, is noted on the lease, and taken from there.
    pub grace: RestoreGrace,
    /// The lease is kept for as long as the barrier comes further.
    pub progress: Progress,
    /// What is kept on the lease, and what the last leader said there.
    pub note: LeaseNote,
    /// The lease is not held for a thread that stands still.
    pub pulse: Option<Progress>,
    /// The lease is not taken before this is cancelled: another writer is kept from writing from then on.
    pub fenced: Option<CancellationToken>,
}

/// As what the lease is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Candidate(Fitness),
    Leader { seeks_successor: bool },
}

/// Why an attempt to acquire or renew failed.
#[derive(Debug, Error)]
enum AttemptError {
    #[error("held by {0:?}")]
    Held(String),
    #[error("left to others")]
    NotFit,
    #[error("{0:?} sees more")]
    Succeeded(String),
    #[error("told to end")]
    Ended,
    #[error("{0}")]
    Call(#[from] CallError),
}

/// How the election stands, for `/readyz` and `/debug`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionView {
    /// Whether this process leads.
    pub leading: bool,
    /// Whether it holds the lease, but has still to read what the last leader wrote.
    pub taking_over: bool,
    /// Who holds it; empty without a holder, or if it could not be read yet.
    pub holder: String,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// How fit this replica was to lead when it last looked at the lease; `None` before.
    pub fitness: Option<Fitness>,
    /// Since when anybody may take the lease, and this replica is not fit to.
    pub free_since: Option<Instant>,
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
        /// Who holds it; empty if it was taken from us.
        holder: String,
    },
    /// What the last leader wrote could not be read in time.
    #[error("lease {lease} given back: the take-over did not come further for {LONGEST_STALL:?}")]
    NotLeading {
        /// Namespace and name.
        lease: String,
    },
    /// The thread that watches and decides does not go on.
    #[error("lease {lease} given back: the thread that watches and decides has stood still for {} s", silence.as_secs())]
    StandingStill {
        /// Namespace and name.
        lease: String,
        /// Since its last beat.
        silence: Duration,
    },
    /// Nothing was seen any more, or no connection could be made, and another replica can.
    #[error("lease {lease} given back: this replica cannot see or connect any more, and {successor} can")]
    Blind {
        /// Namespace and name.
        lease: String,
        /// Who answered.
        successor: String,
    },
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
    shared: Surroundings,
    listener: Option<Listener>,
    /// How long the machine had been suspended when the last write of the lease that succeeded was sent.
    suspended: Suspended,
    /// The newest revision of the lease that was seen.
    seen: u64,
}

impl Elector {
    /// An elector whose requests go through `caller`, which must be allowed to write without a term
    /// ([`Term::Unlimited`]) and should have a client and a timeout of its own.
    pub fn new(
        caller: Caller,
        candidacy: Candidacy,
        leadership: Leadership,
        metrics: ElectionMetrics,
        shared: Surroundings,
    ) -> Self {
        Self {
            caller,
            candidacy,
            observed: None,
            leadership,
            view: Arc::default(),
            metrics,
            listener: shared.pulse.clone().map(Listener::new),
            shared,
            suspended: Suspended::default(),
            seen: 0,
        }
    }

    /// How the election stands.
    pub fn view(&self) -> watch::Receiver<ElectionView> {
        self.view.subscribe()
    }

    /// Stands by until everything is `synced` and the lease is won, passes the barrier, leads. Returns once
    /// `release` is cancelled and the lease is given up.
    ///
    /// # Errors
    /// The lease was lost, or given back because this replica cannot do anything with it; the term has ended.
    pub async fn run<S, F>(
        mut self,
        synced: S,
        barrier: F,
        release: CancellationToken,
    ) -> Result<(), ElectionError>
    where
        S: Future<Output = ()>,
        F: Future<Output = ()>,
    {
        let Some(deadline) = self.stand_by(synced, &release).await else { return Ok(()) };
        tracing::info!(lease = %self.lease(), identity = %self.candidacy.identity, "won the lease");
        self.view.send_modify(|view| view.taking_over = true);
        let result = self.lead(deadline, barrier, &release).await;
        self.leadership.set(Term::None);
        self.metrics.set_leading(false);
        self.view.send_modify(|view| (view.leading, view.taking_over) = (false, false));
        let is_ours_to_give = match &result {
            Ok(())
            | Err(
                ElectionError::NotLeading { .. }
                | ElectionError::StandingStill { .. }
                | ElectionError::Blind { .. },
            ) => true,
            Err(ElectionError::Overdue { .. } | ElectionError::Taken { .. }) => false,
        };
        let giving_up = self.candidacy.timing.giving_up();
        if is_ours_to_give && timeout(giving_up, self.give_up()).await.is_err() {
            tracing::warn!(lease = %self.lease(), "could not release the lease in time");
        }
        result
    }

    /// Waits for the lease. `None` if told to end first.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, acquire.
    async fn stand_by<S: Future<Output = ()>>(
        &mut self,
        synced: S,
        release: &CancellationToken,
    ) -> Option<Instant> {
        let timing = self.candidacy.timing;
        let mut synced = pin!(synced);
        let fenced = self.shared.fenced.clone().unwrap_or_default();
        let mut is_synced = false;
        let mut noted_until = None;
        while !release.is_cancelled() {
            is_synced = is_synced || synced.as_mut().now_or_never().is_some();
            let fitness = self.fitness(is_synced);
            self.note_fitness(fitness);
            match self.attempt(Role::Candidate(fitness), release).await {
                Ok(deadline) => return Some(deadline),
                Err(error) => self.note_failure(&error),
            }
            let now = Instant::now();
            // Unlike client-go, twice as often as the leader, and not later than it can be won (L14).
            let pause = (timing.retry_period / 2).mul_f64(1.0 + fastrand::f64());
            let free_at = self.observed.as_ref().map(|observed| observed.free_at(&timing));
            let free_at = free_at.filter(|free_at| *free_at > now);
            let is_vacant = self.observed.as_ref().is_some_and(|observed| observed.holder().is_empty());
            if let Some(at) = free_at.filter(|at| is_vacant && noted_until.replace(*at) != Some(*at)) {
                let wait = (at - now).as_secs_f64().ceil();
                tracing::info!(
                    lease = %self.lease(), seconds = wait,
                    "no process holds the lease; it may have been deleted under a leader, so it is left alone for a while"
                );
            }
            let wake = free_at.unwrap_or(now + pause).min(now + pause);
            tokio::select! {
                () = release.cancelled() => return None,
                () = &mut synced, if !is_synced => is_synced = true,
                () = fenced.cancelled(), if fitness == Fitness::Unfenced => {}
                () = sleep_until(wake) => {}
            }
        }
        None
    }

    fn note_fitness(&self, fitness: Fitness) {
        self.metrics.set_fitness(<&str>::from(fitness));
        self.view.send_if_modified(|view| view.fitness.replace(fitness) != Some(fitness));
    }

    fn fitness(&mut self, is_synced: bool) -> Fitness {
        let is_standing_still = self.silence().is_some();
        if !is_synced || is_standing_still {
            Fitness::Unready
        } else if self.shared.fenced.as_ref().is_some_and(|fenced| !fenced.is_cancelled()) {
            Fitness::Unfenced
        } else if self.shared.sight.blind_since().is_some() {
            Fitness::Blind
        } else {
            Fitness::Fit
        }
    }

    fn silence(&mut self) -> Option<Duration> {
        self.listener.as_mut()?.silence(&self.candidacy.timing, Instant::now())
    }

    /// client-go: tools/leaderelection/leaderelection.go, renew.
    async fn lead<F: Future<Output = ()>>(
        &mut self,
        mut deadline: Instant,
        barrier: F,
        release: &CancellationToken,
    ) -> Result<(), ElectionError> {
        let mut barrier = pin!(barrier.fuse());
        let won = Instant::now();
        let (mut passed, mut seeks_successor) = (false, false);
        let mut reason: Option<String> = None;
        let mut next_attempt = won + self.candidacy.timing.retry_period;
        loop {
            tokio::select! {
                biased;
                () = release.cancelled() => return Ok(()),
                () = &mut barrier => {
                    passed = true;
                    self.extend_term(deadline);
                    continue;
                }
                () = sleep_until(next_attempt.min(deadline)) => {}
            }
            let started = Instant::now();
            if !passed && started >= won.max(self.shared.progress.last()) + LONGEST_STALL {
                return Err(ElectionError::NotLeading { lease: self.lease() });
            }
            if let Some(silence) = self.silence() {
                let error = ElectionError::StandingStill { lease: self.lease(), silence };
                // The thread that would tell of it is the one that stands still.
                tracing::error!(reason = %error, "giving up the lease");
                return Err(error);
            }
            let is_blind = self.shared.sight.blind_since().is_some();
            self.note_fitness(if is_blind { Fitness::Blind } else { Fitness::Fit });
            let needs_successor = passed && self.shared.sight.needs_successor(started);
            if needs_successor && !seeks_successor {
                tracing::warn!(lease = %self.lease(), "cannot see or connect any more: looking for a successor");
            }
            seeks_successor = needs_successor;
            // A process that was stopped for a while finds the deadline passed: it must not even ask.
            let outcome = if started < deadline {
                let attempt = timeout_at(deadline, self.attempt(Role::Leader { seeks_successor }, release));
                let mut attempt = pin!(attempt);
                loop {
                    tokio::select! {
                        biased;
                        // Nothing is lost with it: the release names the revision that it saw.
                        () = release.cancelled() => return Ok(()),
                        outcome = &mut attempt => break outcome.ok(),
                        () = &mut barrier => passed = true,
                    }
                }
            } else {
                None
            };
            match outcome {
                Some(Ok(extended)) => (deadline, reason) = (extended, None),
                Some(Err(AttemptError::Held(holder))) => {
                    return Err(ElectionError::Taken { lease: self.lease(), holder });
                }
                Some(Err(AttemptError::Succeeded(successor))) => {
                    return Err(ElectionError::Blind { lease: self.lease(), successor });
                }
                Some(Err(error)) => {
                    self.note_failure(&error);
                    reason = Some(error.to_string());
                }
                None => {}
            }
            if Instant::now() >= deadline {
                let renew_deadline = self.candidacy.timing.renew_deadline;
                let reason = reason.unwrap_or_else(|| "no attempt ended in time".to_owned());
                return Err(ElectionError::Overdue { lease: self.lease(), deadline: renew_deadline, reason });
            }
            if passed {
                self.extend_term(deadline);
            }
            next_attempt = started + self.candidacy.timing.retry_period;
        }
    }

    /// Begins the term, or extends it.
    fn extend_term(&self, deadline: Instant) {
        self.leadership.set_since(Term::Until(deadline), self.suspended);
        let begins = self.view.send_if_modified(|view| {
            let begins = !view.leading;
            (view.leading, view.taking_over) = (true, false);
            begins
        });
        if begins {
            self.metrics.set_leading(true);
            tracing::info!(lease = %self.lease(), "leading");
        }
    }

    fn note_failure(&self, error: &AttemptError) {
        let holder = self.observed.as_ref().map(Observed::holder).unwrap_or_default().to_owned();
        let reason = match error {
            AttemptError::Held(_)
            | AttemptError::NotFit
            | AttemptError::Succeeded(_)
            | AttemptError::Ended => None,
            AttemptError::Call(error) => Some(error.to_string()),
        };
        // Another holder renews every few seconds and an outage may last for hours: a line per change.
        let changed = self.view.send_if_modified(|view| {
            let next = ElectionView { holder: holder.clone(), error: reason.clone(), ..view.clone() };
            let changed = *view != next;
            let is_free = matches!(error, AttemptError::NotFit);
            let free_since = is_free.then(|| view.free_since.unwrap_or_else(Instant::now));
            *view = ElectionView { free_since, ..next };
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

#[cfg(test)]
mod tests;
