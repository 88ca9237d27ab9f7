//! `mooring observe`: watches another process rule, and tells what mooring would have done, without a single write.
//!
//! ```text
//!  watches ─▶ told ────────────────▶ judge: in the order of revisions ─┬▶ laws, situations
//!     │                                ▲                               ├▶ pairing: who was first, what waits
//!     └▶ tables ─▶ controllers ─▶ wishes                               └▶ agreement: would mooring have?
//! ```
//!
//! The controllers are those of `mooring run` ([`crate::app::observing`]); their writes become wishes. [`mutation`] has the
//! terms in which both sides are compared, `acts` and `wished` read them from objects and from requests. [`judge`] holds each
//! act against the laws and against the wishes; [`summary`] is what is printed and the exit code.

mod acts;
mod agreement;
mod audit;
mod holders;
mod judge;
mod laws;
pub(crate) mod metrics;
pub mod mutation;
mod one_etcd;
mod pairing;
mod past;
mod rehearsal;
pub(crate) mod self_test;
mod situations;
pub mod summary;
mod wished;

use std::{future::pending, path::PathBuf, pin::Pin, time::Duration};

use anyhow::{Context as _, anyhow};
use apiserver::{
    call::Wish,
    connect::ApiServer,
    restore::RestoreGrace,
    tables::{ALWAYS, KindStatus, Objects},
};
use thiserror::Error;
use tokio::{
    select,
    time::{Instant, interval, sleep, timeout},
};

use self::{
    audit::AuditLog,
    judge::Judge,
    metrics::ObserveMetrics,
    one_etcd::elsewhere,
    rehearsal::Rehearsal,
    summary::{Difference, Summary},
};
use crate::{
    app::{Daemon, observing::Observation},
    config::Config,
    supervise::Threads,
};

/// How often it is looked at what is due.
const TICK: Duration = Duration::from_millis(250);
/// What waits for so long for a watch that says nothing has the watches come up to now.
const BEHIND_FOR: Duration = Duration::from_secs(2);
/// Between two such times.
const BETWEEN_CATCH_UPS: Duration = Duration::from_secs(10);
/// A watch that has said nothing for so long while others go on is not waited for any longer.
const BLIND_FOR: Duration = Duration::from_mins(2);
/// Nothing is told before the first lists of all kinds are there. They are waited for no longer: what is told meanwhile is kept.
const FIRST_LISTS: Duration = Duration::from_mins(10);
/// How long the last acts are waited for at the end.
const LAST: Duration = Duration::from_secs(10);
/// Requests for volumes on nodes that may be wished at once: as many as there are.
const NO_LIMIT: usize = usize::MAX / 2;

/// Why it has not ended in order.
#[derive(Debug, Error)]
pub enum ObserveStop {
    /// A kind may not be read.
    #[error("{0} cannot be listed: {1}")]
    Forbidden(&'static str, String),
    /// Anything else.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

/// What to observe, and how.
#[derive(Debug)]
pub struct ObserveOrder {
    /// The configuration of the daemon that decides.
    pub config: Config,
    /// Whether each write that the controllers would make is sent for trial.
    pub rehearses: bool,
    /// The audit log of the API server, which names users.
    pub audit_log: Option<PathBuf>,
}

/// Observes until told to stop. Each difference is shown when it comes to light. The summary comes with why it has ended before:
/// a part died, a kind is not watched any more, or etcd was restored from a backup.
///
/// # Errors
/// It could not begin.
pub async fn observe(
    order: ObserveOrder,
    api: &ApiServer,
    threads: Threads,
    stop: impl Future<Output = ()>,
    mut show: impl FnMut(&Difference),
) -> Result<(Summary, Result<(), ObserveStop>), ObserveStop> {
    let ObserveOrder { mut config, rehearses, audit_log } = order;
    config.attach_detach.attachment_calls = Some(NO_LIMIT);
    let mut audit_log = audit_log.map(AuditLog::open).transpose().context("--audit-log")?;
    let running = config.controllers.running.clone();
    let grace = RestoreGrace::default();
    let mut restores = grace.seen();
    let (mut daemon, observation) = Daemon::start_as(config, api, &grace, threads, true).await?;
    let mut observation = observation.context("it does not observe")?;
    let metrics = ObserveMetrics::new(&observation.metrics).map_err(anyhow::Error::from)?;
    let started = Instant::now();
    let mut judge = Judge::new(running, started);
    let mut rehearsal = rehearses.then(|| Rehearsal::new(&observation.caller));
    let mut stop = Box::pin(stop);
    let mut ticks = interval(TICK);
    let mut catching_up: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(pending());
    let mut next_catch_up = Instant::now();
    let mut asking: Pin<Box<dyn Future<Output = Vec<&'static str>> + Send>> =
        Box::pin(elsewhere(observation.caller.client()));
    let mut begun: Option<Instant> = None;
    // Until when all is known.
    let mut known = started;
    let mut oldest = None;
    let ended = loop {
        let objects = observation.objects.clone();
        select! {
            () = &mut stop => break Ok(()),
            death = daemon.death() => break Err(anyhow::Error::from(death).into()),
            _ = restores.changed() => {
                break Err(anyhow!("etcd was restored from a backup: begin again").into());
            }
            () = objects.synced(), if begun.is_none() => {
                let now = Instant::now();
                begun = Some(now);
                judge.begins(now);
            }
            Some(told) = observation.told.recv() => judge.told(told),
            Some(wish) = observation.wishes.recv() => {
                wished(wish, &mut judge, &objects, rehearsal.as_mut());
            }
            () = &mut catching_up => catching_up = Box::pin(pending()),
            kinds = &mut asking => {
                asking = Box::pin(pending());
                judge.are_elsewhere(&kinds);
            }
            _ = ticks.tick() => {}
        }
        // Who decides without classes and drivers blames the ruler.
        let (passed, behind) = begun.map(|_| observation.passed()).unwrap_or_default();
        // What is told is known before a watch has passed it.
        take_all(&mut observation, &mut judge, rehearsal.as_mut());
        let read = audit_log.as_mut().map_or(Ok(()), |log| log.read(&mut judge.authors));
        let now = Instant::now();
        let statuses = objects.statuses();
        let away = away_since(&statuses);
        if away.is_some() {
            begun = begun.map(|_| now);
        } else {
            oldest = judge.pass(passed, now);
            known = oldest.unwrap_or(now);
        }
        let waits = oldest.zip(begun).map(|(oldest, begun)| (behind, oldest.max(begun)));
        let listing = begun.is_none().then_some(started);
        let read = read.context("--audit-log").map_err(ObserveStop::from);
        let well = read.and_then(|()| are_watched(&statuses, (listing, waits), now));
        let well = well.and_then(|()| away.map_or(Ok(()), |since| will_answer(&statuses, since, now)));
        if well.is_err() {
            break well;
        }
        judge.news().iter().for_each(&mut show);
        metrics.show(judge.counts());
        if oldest.is_some_and(|at| at + BEHIND_FOR <= now) && next_catch_up <= now {
            next_catch_up = now + BETWEEN_CATCH_UPS;
            catching_up = Box::pin(observation.catch_up());
        }
    };
    let ended = if begun.is_none() { Ok(ended?) } else { ended };
    // What was done last is judged, too, if the watches tell of it soon.
    if ended.is_ok() {
        let _ = timeout(LAST, observation.catch_up()).await;
        sleep(TICK).await;
        let (passed, _) = begun.map(|_| observation.passed()).unwrap_or_default();
        take_all(&mut observation, &mut judge, rehearsal.as_mut());
        known = Instant::now();
        judge.pass(passed, known);
    }
    judge.ends(known);
    judge.news().iter().for_each(&mut show);
    Ok((judge.summary(Instant::now()), ended))
}

/// Since when no kind is watched that always is: the API server is away, and nothing changes without it.
fn away_since(statuses: &[(&'static str, KindStatus)]) -> Option<Instant> {
    let since: Option<Vec<Instant>> = statuses.iter().take(ALWAYS).map(|(_, it)| it.blind_since).collect();
    since?.into_iter().max()
}

/// Whether an API server that is away is waited for: not for longer than for first lists, and not as long if it does not know
/// who asks.
fn will_answer(
    statuses: &[(&'static str, KindStatus)],
    since: Instant,
    now: Instant,
) -> Result<(), ObserveStop> {
    let error = statuses.iter().find_map(|(_, status)| status.error.clone()).unwrap_or_default();
    let most = if error.starts_with("401 ") { BLIND_FOR } else { FIRST_LISTS };
    if since + most > now {
        return Ok(());
    }
    Err(anyhow!("nothing has been watched for {} minutes: {error}", most.as_secs() / 60).into())
}

/// Whether all kinds may be read and watched, and none is waited for in vain: since when their first lists are waited for; then
/// the kind that is the furthest behind, and since when something waits for it.
fn are_watched(
    statuses: &[(&'static str, KindStatus)],
    (listing, waits): (Option<Instant>, Option<(&'static str, Instant)>),
    now: Instant,
) -> Result<(), ObserveStop> {
    for (kind, status) in statuses {
        let error = status.error.clone().unwrap_or_else(|| "its watch tells nothing".to_owned());
        let is_forbidden = error.starts_with("403 ");
        // A server that starts says so for a moment, too.
        if is_forbidden && listing.is_some() {
            return Err(ObserveStop::Forbidden(kind, error));
        }
        if listing.is_some_and(|since| !status.synced && since + FIRST_LISTS <= now) {
            return Err(anyhow!("{kind} could not be listed for ten minutes: {error}").into());
        }
        let is_behind = waits.is_some_and(|(behind, since)| behind == *kind && since + BLIND_FOR <= now);
        // Nothing waits for classes and drivers, and who decides on old ones blames the ruler.
        if is_forbidden && (is_behind || status.blind_since.is_some_and(|since| since + BLIND_FOR <= now)) {
            return Err(ObserveStop::Forbidden(kind, error));
        }
        if is_behind {
            return Err(anyhow!("{kind} have not been watched for two minutes: {error}").into());
        }
    }
    Ok(())
}

/// Takes what has come by now, what was told before what was wished.
fn take_all(observation: &mut Observation, judge: &mut Judge, mut rehearsal: Option<&mut Rehearsal>) {
    while let Ok(told) = observation.told.try_recv() {
        judge.told(told);
    }
    while let Ok(wish) = observation.wishes.try_recv() {
        wished(wish, judge, &observation.objects, rehearsal.as_deref_mut());
    }
    for refused in rehearsal.map(Rehearsal::refused).unwrap_or_default() {
        judge.refused(refused);
    }
}

/// Takes a write that mooring would make. One that it has wanted for a while is not tried again.
fn wished(wish: Wish, judge: &mut Judge, objects: &Objects, rehearsal: Option<&mut Rehearsal>) {
    let request = rehearsal.is_some().then(|| wish.request.clone());
    let is_new = judge.wish(wish, objects);
    if let (Some(rehearsal), Some(request), true) = (rehearsal, request, is_new) {
        rehearsal.send(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_ends_when_a_kind_is_not_watched_any_more() {
        let start = Instant::now();
        let (listed, unlisted, longest) = (true, false, FIRST_LISTS.as_secs());
        // Whether the nodes were listed, their error, and for how long something waits for them; the end
        let cases = [
            (listed, None, 0, None),
            (unlisted, Some("403 Forbidden"), 0, Some("nodes cannot be listed: 403 Forbidden")),
            (listed, Some("403 Forbidden"), 119, None),
            (listed, Some("403 Forbidden"), 120, Some("nodes cannot be listed: 403 Forbidden")),
            (listed, Some("500 Internal"), 119, None),
            (
                listed,
                Some("500 Internal"),
                120,
                Some("nodes have not been watched for two minutes: 500 Internal"),
            ),
            (listed, None, 120, Some("nodes have not been watched for two minutes: its watch tells nothing")),
            (unlisted, Some("500 Internal"), longest - 1, None),
            (
                unlisted,
                Some("500 Internal"),
                longest,
                Some("nodes could not be listed for ten minutes: 500 Internal"),
            ),
        ];
        for (synced, error, seconds, expected) in cases {
            let nodes = KindStatus { synced, error: error.map(str::to_owned), ..KindStatus::default() };
            let pods = KindStatus { synced: true, ..KindStatus::default() };
            let now = start + Duration::from_secs(seconds);
            let since = if synced { (None, Some(("nodes", start))) } else { (Some(start), None) };
            let end = are_watched(&[("pods", pods), ("nodes", nodes)], since, now);
            assert_eq!(end.err().map(|end| end.to_string()).as_deref(), expected, "{error:?} {seconds}");
        }
        // The kinds that are not watched, their error, and for how long; whether the server is away; the end
        let cases = [
            (ALWAYS - 1, "no route", 599, false, None),
            (ALWAYS, "no route", 599, true, None),
            (ALWAYS, "no route", 600, true, Some("nothing has been watched for 10 minutes: no route")),
            (ALWAYS, "401 Unauthorized", 119, true, None),
            (
                ALWAYS,
                "401 Unauthorized",
                120,
                true,
                Some("nothing has been watched for 2 minutes: 401 Unauthorized"),
            ),
        ];
        for (blind, error, seconds, is_away, expected) in cases {
            let status = |place| KindStatus {
                blind_since: (place < blind).then_some(start),
                error: Some(error.to_owned()),
                ..KindStatus::default()
            };
            let statuses: Vec<_> = (0..ALWAYS).map(|place| ("pods", status(place))).collect();
            let since = away_since(&statuses);
            assert_eq!(since.is_some(), is_away, "{blind}");
            let now = start + Duration::from_secs(seconds);
            let end = since.and_then(|since| will_answer(&statuses, since, now).err());
            assert_eq!(end.map(|end| end.to_string()).as_deref(), expected, "{error} {seconds}");
        }
        // For classes nothing waits.
        for (error, seconds, is_end) in
            [("403 Forbidden", 119, false), ("403 Forbidden", 120, true), ("no route", 120, false)]
        {
            let (error, blind_since) = (Some(error.to_owned()), Some(start));
            let classes = KindStatus { synced: true, error, blind_since };
            let now = start + Duration::from_secs(seconds);
            let end = are_watched(&[("storageclasses", classes)], (None, None), now);
            assert_eq!(end.is_err(), is_end, "{seconds}");
        }
    }
}
