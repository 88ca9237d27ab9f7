//! The requests for the lease: acquire or renew once, give it up, note on it.
//!
//! In: what the lease was when it was last seen. Out: until when it lets us lead, or why not. What to do is decided in
//! [`crate::lease`]; here it is asked for, one request after the other.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{AttemptError, Candidacy, Elector, Role};
use crate::{
    backoff::silence_pause,
    call::{CallError, Request, Verb},
    lease::{self, Action, Fitness, Notes, Observed},
};

impl Elector {
    /// Acquires or renews once. Returns until when the lease lets us lead.
    ///
    /// client-go: tools/leaderelection/leaderelection.go, tryAcquireOrRenew. Unlike there, a leader
    /// that reads another's name stops at once instead of trying until the deadline, and a renewal
    /// without an answer is followed by the next renewal instead of a read. Once `ended`, a candidate is not kept
    /// waiting for what it reads; but it is for what it writes, as a lease that is won by an abandoned request would
    /// have no holder.
    pub(super) async fn attempt(
        &mut self,
        role: Role,
        ended: &CancellationToken,
    ) -> Result<Instant, AttemptError> {
        let Candidacy { namespace, name, identity, timing } = self.candidacy.clone();
        let leading = matches!(role, Role::Leader { .. });
        let renewal =
            |observed| lease::renewal(observed, &identity, &timing, self.notes(role), Timestamp::now());
        // There is nothing to renew after the lease was deleted and could not be made anew.
        let body = self.observed.as_ref().filter(|_| leading).and_then(renewal);
        if let Some(body) = body {
            match self.write(Verb::Update, Some(body)).await {
                Ok(deadline) => return Ok(deadline),
                Err(CallError::Conflict(_) | CallError::NotFound(_) | CallError::AlreadyExists(_)) => {
                    self.metrics.count_slow_path();
                }
                Err(error) => return Err(error.into()),
            }
        }
        let observed = tokio::select! {
            biased;
            () = ended.cancelled(), if !leading => return Err(AttemptError::Ended),
            observed = self.read() => observed?,
        };
        if let (Role::Leader { seeks_successor: true }, Some(successor)) = (role, observed.successor()) {
            let successor = successor.to_owned();
            self.observed = Some(observed);
            return Err(AttemptError::Succeeded(successor));
        }
        let notes = self.notes(role);
        let body = lease::renewal(&observed, &identity, &timing, notes.clone(), Timestamp::now());
        let fitness = if let Role::Candidate(fitness) = role { fitness } else { Fitness::Fit };
        // A leader makes a lease anew that was deleted under it.
        let action = if leading && observed.is_absent() {
            Action::Create
        } else {
            lease::evaluate(&observed, Instant::now(), &identity, &timing, fitness)
        };
        self.observed = Some(observed);
        let deadline = match action {
            Action::Wait { holder } => {
                self.speak_up(fitness).await;
                return Err(AttemptError::Held(holder));
            }
            Action::TakeOver { from } if leading => {
                self.speak_up(Fitness::Unready).await;
                return Err(AttemptError::Held(from));
            }
            // Another may have led meanwhile: what it wrote is not known here (S37).
            Action::Create if leading && self.leadership.suspended().is_more_than(self.suspended) => {
                return Err(AttemptError::Held(String::new()));
            }
            Action::StandAside => return Err(AttemptError::NotFit),
            Action::Renew => self.write(Verb::Update, body).await?,
            Action::TakeOver { from } => {
                // Also if the answer gets lost: then the lease is in another term.
                let (observed, wall) = (self.observed.as_ref(), Timestamp::now());
                let note = self.shared.note.annotation();
                self.shared.note.leave(observed.and_then(|observed| observed.told(note, wall)));
                if observed.is_some_and(|observed| observed.is_told_in_vain(note, wall)) {
                    tracing::info!(
                        lease = %self.lease(),
                        "ignoring the lease's note about nodes: it is old, or not from the lease's last term"
                    );
                }
                let deadline = self.write(Verb::Update, body).await?;
                tracing::info!(lease = %self.lease(), %from, "took over the lease");
                deadline
            }
            Action::Create => {
                if !leading {
                    self.shared.note.leave(None);
                }
                let body = lease::creation(&namespace, &name, &identity, &timing, notes, Timestamp::now());
                self.write(Verb::Create, Some(body)).await?
            }
        };
        Ok(deadline)
    }

    fn notes(&self, role: Role) -> Notes {
        let seeks_successor = matches!(role, Role::Leader { seeks_successor: true });
        let for_successor = self.shared.note.own().map(|text| (self.shared.note.annotation(), text));
        Notes { grace: self.shared.grace.left(Instant::now()), seeks_successor, for_successor }
    }

    /// Tells the holder what it has to know from us: that we would take its place, if it asks for that, or that
    /// there was a restore (E11). What gets lost is said again at the next look.
    async fn speak_up(&mut self, fitness: Fitness) {
        let Some(observed) = &self.observed else { return };
        let body = if fitness == Fitness::Fit && observed.seeks_successor() {
            tracing::info!(lease = %self.lease(), holder = observed.holder(), "offering to succeed the leader");
            lease::answered(observed, &self.candidacy.identity)
        } else {
            let left = self.shared.grace.witnessed(Instant::now());
            left.and_then(|left| lease::warned(observed, &self.candidacy.identity, left))
        };
        if body.is_some()
            && let Err(error) = self.write(Verb::Update, body).await
        {
            tracing::debug!(lease = %self.lease(), %error, "could not write the note on the lease");
        }
    }

    async fn read(&mut self) -> Result<Observed, CallError> {
        let request = Request { verb: Verb::Get, path: self.path(Verb::Get), body: None };
        let object = match self.caller.send(&request).await {
            Ok(body) => Some(parse(&body, &self.candidacy.name)?),
            Err(CallError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let observed = Observed::update(self.observed.as_ref(), object, now);
        if let Some(left) = observed.grace_for(&self.candidacy.identity) {
            self.shared.grace.inherit(now, left);
        }
        self.see(&observed, now);
        Ok(observed)
    }

    /// Compares the lease's revision with the last one. One request at a time, each to a quorum: only a restore of etcd
    /// answers with an older one, also when a lease that the backup lacks is made anew (E11).
    fn see(&mut self, observed: &Observed, now: Instant) {
        let Some(revision) = observed.revision() else { return };
        let newest = self.seen;
        if revision < newest {
            tracing::warn!(lease = %self.lease(), revision, newest, "the lease went back in time: etcd was restored");
            self.shared.grace.begin(now);
        }
        self.seen = revision;
    }

    /// Writes the lease, and keeps the answer for the next time. The right to lead counts from
    /// before the request was sent, because the server may have carried it out right then.
    async fn write(&mut self, verb: Verb, body: Option<Value>) -> Result<Instant, CallError> {
        let (sent, suspended) = (Instant::now(), self.leadership.suspended());
        let answer = self.caller.send(&Request { verb, path: self.path(verb), body }).await?;
        let lease = parse(&answer, &self.candidacy.name)?;
        let now = Instant::now();
        let observed = Observed::update(self.observed.as_ref(), Some(lease), now);
        self.see(&observed, now);
        self.view.send_modify(|view| {
            observed.holder().clone_into(&mut view.holder);
            view.error = None;
        });
        self.observed = Some(observed);
        self.suspended = suspended;
        Ok(sent + self.candidacy.timing.renew_deadline)
    }

    /// Gives up the lease, so that the next leader need not wait for it to expire. Not before every write of ours
    /// is over: the next leader's must not meet it (S37).
    pub(super) async fn give_up(&mut self) {
        // What takes longer is left to the expiry of the lease.
        let settling = self.candidacy.timing.settling();
        if timeout(settling, self.leadership.settled()).await.is_err() {
            tracing::warn!(lease = %self.lease(), "the lease is left to expire: a write may still be under way");
            return;
        }
        if let Err(error) = self.release().await {
            tracing::warn!(lease = %self.lease(), %error, "could not release the lease");
        }
    }

    /// Tries as long as it has time: an API server may be restarted together with this process, and another one answers. A
    /// renewal whose answer was lost has changed the revision, so the lease is read before the next try.
    async fn release(&mut self) -> Result<(), CallError> {
        let identity = self.candidacy.identity.clone();
        let notes = self.notes(Role::Leader { seeks_successor: false });
        let mut failures = 0;
        loop {
            let body =
                |observed: &Observed| lease::released(observed, &identity, notes.clone(), Timestamp::now());
            let Some(request) = self.observed.as_ref().and_then(body) else { return Ok(()) };
            let error = match self.write(Verb::Update, Some(request)).await {
                Ok(_) => break,
                Err(error @ CallError::Refused { .. }) => return Err(error),
                Err(CallError::Conflict(_)) => None,
                Err(error) => Some(error),
            };
            let read = self.read().await.map(|observed| self.observed = Some(observed));
            if let Some(error) = error.or(read.err()) {
                failures += 1;
                tracing::warn!(lease = %self.lease(), %error, "could not release the lease yet");
                sleep(silence_pause(failures, fastrand::f64())).await;
            }
        }
        tracing::info!(lease = %self.lease(), "released the lease");
        Ok(())
    }
}

/// Reads the lease. The answer of a gateway is none: nothing is renewed by it, and no holder has given the lease up.
fn parse(body: &[u8], name: &str) -> Result<Value, CallError> {
    let unreadable = |why: &str| CallError::Unknown(format!("unreadable Lease: {why}"));
    let lease: Value = serde_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))?;
    let says = |pointer: &str| lease.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if says("/kind") != "Lease"
        || says("/metadata/name") != name
        || says("/metadata/resourceVersion").is_empty()
    {
        return Err(unreadable("another kind or object"));
    }
    Ok(lease)
}
