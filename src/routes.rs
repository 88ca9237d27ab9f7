//! What is served under which path, from which sources.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiserver::{
    elector::ElectionView,
    leadership::{Leadership, Term},
    lease::{Fitness, Timing},
    progress::Progress,
    tables::{ALWAYS, KindStatus, Objects},
};
use http::StatusCode;
use serde_json::{Map, Value, json};
use serving::{
    Answer, Router,
    health::{Check, Checks, Finding},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    fence::vigil::{FenceWait, VigilState},
    metrics::{Alarms, Metrics, WatchMetrics, WatchReport, slis::Slis},
    supervise::Dead,
};

/// How long after the lease has expired a leader that still believes in its term is taken for hung.
///
/// KCM: cmd/kube-controller-manager/app/controllermanager.go, NewLeaderHealthzAdaptor.
const WATCHDOG: Duration = Duration::from_secs(20);

/// A thread that has not gone on for so long is taken for hung. Longer than a lease: by then another replica leads, and
/// one that comes back ends by itself.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(25);

/// A kind that could neither be listed nor watched for so long makes this replica unready. API servers restart in
/// less.
const LONGEST_BLINK: Duration = Duration::from_mins(1);

/// The format of `/metrics`.
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The format with exemplars.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the answers are made from.
#[derive(Clone)]
pub struct Sources {
    /// Metrics.
    pub metrics: Metrics,
    /// Tables and their watches.
    pub objects: Arc<Objects>,
    /// What is counted of the watches.
    pub watches: WatchMetrics,
    /// The term.
    pub leadership: Leadership,
    /// The election and its durations, unless it is switched off.
    pub election: Option<(watch::Receiver<ElectionView>, Timing)>,
    /// How the fence stands, if one is asked for.
    pub fence: Option<watch::Receiver<VigilState>>,
    /// Whether the thread goes on that watches and decides.
    pub pulse: Progress,
    /// Tasks that died.
    pub dead: Dead,
    /// What an operator has to know at once.
    pub alarms: Alarms,
    /// How its checks have gone.
    pub slis: Slis,
    /// Cancelled when the process begins to stop.
    pub stopping: CancellationToken,
}

/// The routes of the shell. Subsystems add routes with [`Router::json`].
pub fn router(sources: &Sources) -> Router {
    let (metrics, own, slis) = (sources.metrics.clone(), sources.metrics.clone(), sources.slis.clone());
    let checks = |name, checks| Checks::new(name, checks).counted_in(sources.slis.clone());
    let (objects, counted) = (Arc::clone(&sources.objects), sources.watches.clone());
    Router::default()
        .page("/metrics", move || scrape(metrics.text(), CLASSIC))
        .page("/metrics/openmetrics", move || scrape(own.openmetrics(), OPENMETRICS))
        .page("/metrics/slis", move || scrape(slis.metrics().text(), CLASSIC))
        .checks("/healthz", checks("healthz", liveness(sources)))
        .checks("/livez", checks("livez", liveness(sources)))
        .checks("/readyz", checks("readyz", readiness(sources)))
        .json("/debug/watches", move || watches(&objects, &counted))
}

/// For any `Accept` of a scraper: of two formats under one path, who asks for both would get the one that has other names
/// for KCM's counters.
fn scrape(text: Result<String, prometheus::Error>, content_type: &'static str) -> Answer {
    match text {
        Ok(body) => Answer { status: StatusCode::OK, content_type, body },
        Err(error) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn liveness(sources: &Sources) -> Vec<Check> {
    let mut checks = vec![Check::new("ping", || Ok(None))];
    let dead = sources.dead.clone();
    checks.push(Check::new("tasks", move || match dead.names() {
        names if names.is_empty() => Ok(None),
        names => Err(format!("ended: {}", names.join(", "))),
    }));
    let pulse = sources.pulse.clone();
    checks.push(Check::new("pulse", move || match Instant::now().saturating_duration_since(pulse.last()) {
        silence if silence < LONGEST_STANDSTILL => Ok(None),
        silence => {
            let silence = silence.as_secs();
            Err(format!("the thread that watches and decides has stood still for {silence} s"))
        }
    }));
    if let Some((_, timing)) = &sources.election {
        let (leadership, timing) = (sources.leadership.clone(), *timing);
        checks
            .push(Check::new("leaderElection", move || watchdog(leadership.term(), Instant::now(), &timing)));
    }
    checks
}

/// The elector ends the process when it loses the lease; if it is the elector that hangs, nothing is
/// written any more, and only a restart helps.
fn watchdog(term: Term, now: Instant, timing: &Timing) -> Finding {
    let Term::Until(deadline) = term else { return Ok(None) };
    let expiry = deadline + timing.lease_duration.saturating_sub(timing.renew_deadline);
    if now > expiry + WATCHDOG {
        let overdue = now.saturating_duration_since(expiry);
        return Err(format!("the lease expired {} s ago and was not given up", overdue.as_secs()));
    }
    Ok(None)
}

fn readiness(sources: &Sources) -> Vec<Check> {
    let mut checks = vec![Check::new("ping", || Ok(None))];
    for (index, (kind, _)) in sources.objects.statuses().into_iter().enumerate() {
        let (objects, metrics) = (Arc::clone(&sources.objects), sources.watches.clone());
        checks.push(Check::new(format!("watch-{kind}"), move || {
            let status = objects.statuses().into_iter().nth(index).map(|(_, status)| status);
            let found = watched(&status.unwrap_or_default(), &metrics.report(kind), Instant::now());
            // Of an optional kind it is a remark: all other controllers go on without it.
            if index < ALWAYS { found } else { Ok(found.unwrap_or_else(Some)) }
        }));
    }
    if let Some(fence) = sources.fence.clone() {
        let election = sources.election.clone();
        checks.push(Check::new("fence", move || fenced(&fence.borrow(), election.as_ref(), Instant::now())));
    }
    let election = sources.election.clone();
    checks.push(Check::new("leader-election", move || Ok(Some(leadership(election.as_ref())))));
    let alarms = sources.alarms.clone();
    // A remark, not a condition: a restart would not help, and an operator needs the pages of a replica that
    // stands off more than ever.
    checks.push(Check::new("alarms", move || match alarms.raised() {
        raised if raised.is_empty() => Ok(None),
        raised => Ok(Some(raised.join("; "))),
    }));
    let stopping = sources.stopping.clone();
    checks.push(Check::new("shutdown", move || {
        if stopping.is_cancelled() { Err("the process is shutting down".to_owned()) } else { Ok(None) }
    }));
    checks
}

/// A watch that fails is a remark for a while: an API server that restarts must not make all replicas unready.
fn watched(status: &KindStatus, report: &WatchReport, now: Instant) -> Finding {
    let error = status.error.as_deref();
    if !status.synced {
        return Err(error.unwrap_or("not listed yet").to_owned());
    }
    let blind = status.blind_since.map(|since| now.saturating_duration_since(since));
    let error = error.map(|error| format!(", last error: {error}")).unwrap_or_default();
    match blind {
        Some(blind) if blind >= LONGEST_BLINK => {
            Err(format!("neither listed nor watched for {} s{error}", blind.as_secs()))
        }
        _ => Ok(Some(format!("{report}{error}"))),
    }
}

/// A replica that waits for the fence cannot follow a leader, so a rollout must not take it for one that can, also while its
/// leader starts anew elsewhere. Where there is no fence at all and nobody has led for the length of a lease, there is none to
/// keep, and `mooring switch` waits for a replica that has listed everything.
fn fenced(
    standing: &VigilState,
    election: Option<&(watch::Receiver<ElectionView>, Timing)>,
    now: Instant,
) -> Finding {
    let VigilState::Waiting(why, waits_for) = standing else { return Ok(None) };
    let text = format!("waiting for the fence: {why}");
    // Without an election there is nobody to keep, either.
    let nobody_leads = election.is_none_or(|(view, timing)| {
        view.borrow().free_since.is_some_and(|since| now >= since + timing.lease_duration)
    });
    if *waits_for == FenceWait::Switch && nobody_leads {
        Ok(Some(format!("{text}; nobody leads")))
    } else {
        Err(text)
    }
}

/// A standby is as ready as a leader, so this is a remark, not a condition.
fn leadership(election: Option<&(watch::Receiver<ElectionView>, Timing)>) -> String {
    let Some((view, _)) = election else { return "switched off".to_owned() };
    let ElectionView { leading, taking_over, holder, error, fitness, .. } = view.borrow().clone();
    let mut text = match (leading, holder.as_str()) {
        (true, _) => "leading".to_owned(),
        (false, _) if taking_over => "taking over: reading what the last leader wrote".to_owned(),
        (false, "") => "standing by, held by nobody known".to_owned(),
        (false, holder) => format!("standing by, held by {holder}"),
    };
    match fitness {
        _ if leading || taking_over => {}
        Some(Fitness::Unready) => {
            text.push_str(", not standing for it: not everything is listed yet, or it stands still");
        }
        Some(Fitness::Unfenced) => text.push_str(", not standing for it: the fence is not proven"),
        Some(Fitness::Blind) => {
            text.push_str(", left to others: a watch hears nothing, or it cannot connect");
        }
        Some(Fitness::Fit) | None => {}
    }
    if let Some(error) = error {
        text.push_str(", last attempt failed: ");
        text.push_str(&error);
    }
    text
}

fn watches(objects: &Objects, metrics: &WatchMetrics) -> Value {
    let mut kinds = Map::new();
    for (kind, status) in objects.statuses() {
        let report = metrics.report(kind);
        let now = Instant::now();
        let blind = status.blind_since.map(|since| now.saturating_duration_since(since).as_secs());
        kinds.insert(
            kind.to_owned(),
            json!({
                "synced": status.synced, "error": status.error, "blindSeconds": blind,
                "silentSeconds": report.silent.map(|silent| silent.as_secs()),
                "objectsListed": report.listed, "events": report.events,
                "lists": report.lists.into_iter().collect::<BTreeMap<_, _>>(),
            }),
        );
    }
    let unreadable: BTreeMap<String, String> =
        objects.all_unreadable().into_iter().map(|(object, error)| (object.to_string(), error)).collect();
    json!({ "kinds": kinds, "unreadable": unreadable })
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::{Pod, StorageClass};

    use super::*;
    use crate::fence::state::Proven;

    const TIMING: Timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn get(router: &Router, path: &str) -> (u16, String) {
        let (status, body) = router.here(path);
        (status.as_u16(), body)
    }

    fn sources() -> Sources {
        Sources {
            metrics: Metrics::default(),
            objects: Arc::default(),
            watches: WatchMetrics::new(&Metrics::default()).unwrap(),
            leadership: Leadership::new(Term::None),
            election: None,
            fence: None,
            pulse: Progress::default(),
            dead: Dead::default(),
            alarms: Alarms::new(&Metrics::default()).unwrap(),
            slis: Slis::new().unwrap(),
            stopping: CancellationToken::new(),
        }
    }

    #[tokio::test]
    async fn not_ready_before_every_kind_is_listed_but_alive() {
        let view = watch::Sender::new(ElectionView { holder: "b".to_owned(), ..ElectionView::default() });
        let sources = Sources { election: Some((view.subscribe(), TIMING)), ..sources() };
        let objects = Arc::clone(&sources.objects);
        let stopping = sources.stopping.clone();
        let alarms = sources.alarms.clone();
        let router = router(&sources);
        objects.reset::<StorageClass>(vec![]);
        objects.set_error::<Pod>(Some("connection refused".to_owned()));

        let (status, body) = get(&router, "/readyz");
        assert_eq!(status, 500, "{body}");
        assert!(body.contains("[-]watch-pods failed: connection refused\n"), "{body}");
        assert!(body.contains("[-]watch-nodes failed: not listed yet\n"), "{body}");
        assert!(body.contains("[+]watch-storageclasses ok: 0 objects listed, 0 events\n"), "{body}");
        assert!(body.contains("[+]leader-election ok: standing by, held by b\n"), "{body}");
        assert_eq!(
            get(&router, "/livez?verbose"),
            (
                200,
                "[+]ping ok\n[+]tasks ok\n[+]pulse ok\n[+]leaderElection ok\nlivez check passed\n".to_owned()
            )
        );
        assert!(body.contains("[+]alarms ok\n"), "{body}");
        alarms.set("second_binder", Some("pv/a".to_owned()));
        assert!(get(&router, "/readyz?verbose").1.contains("[+]alarms ok: second_binder: pv/a\n"));
        for (fitness, said) in [
            (
                Fitness::Unready,
                "standing by, held by b, not standing for it: not everything is listed yet, or it stands still\n",
            ),
            (Fitness::Unfenced, "standing by, held by b, not standing for it: the fence is not proven\n"),
            (
                Fitness::Blind,
                "standing by, held by b, left to others: a watch hears nothing, or it cannot connect\n",
            ),
            (Fitness::Fit, "standing by, held by b\n"),
        ] {
            view.send_modify(|view| view.fitness = Some(fitness));
            assert!(get(&router, "/readyz?verbose").1.contains(said), "{fitness:?}");
        }
        stopping.cancel();
        assert!(get(&router, "/readyz").1.contains("[-]shutdown failed"));
        assert!(get(&router, "/debug/watches").1.contains("connection refused"));
    }

    #[tokio::test(start_paused = true)]
    async fn s14_who_waits_for_the_fence_is_ready_only_where_there_is_none_and_nobody_has_led_for_a_lease() {
        let view = watch::Sender::<ElectionView>::default();
        let fence = watch::Sender::<VigilState>::default();
        let sources = Sources {
            election: Some((view.subscribe(), TIMING)),
            fence: Some(fence.subscribe()),
            ..sources()
        };
        let router = router(&sources);
        let check = || {
            let (_, body) = get(&router, "/readyz?verbose");
            body.lines().find(|line| line.contains("]fence ")).unwrap().to_owned()
        };
        assert_eq!(check(), "[-]fence failed: waiting for the fence: it has not been looked at");
        let waits = |waits_for| VigilState::Waiting("it is so".to_owned(), waits_for);
        let unready = "[-]fence failed: waiting for the fence: it is so";
        view.send_modify(|view| view.holder = "b".to_owned());
        for waits_for in [FenceWait::Switch, FenceWait::Right, FenceWait::Proof] {
            fence.send_replace(waits(waits_for));
            assert_eq!(check(), unready, "the rollout halts");
            view.send_modify(|view| view.free_since = Some(Instant::now()));
            tokio::time::advance(Duration::from_secs(14)).await;
            assert_eq!(check(), unready, "a standby takes it");
            tokio::time::advance(Duration::from_secs(1)).await;
            let ready = "[+]fence ok: waiting for the fence: it is so; nobody leads";
            let expected = if waits_for == FenceWait::Switch { ready } else { unready };
            assert_eq!(check(), expected, "the leader starts elsewhere");
            view.send_modify(|view| view.free_since = None);
            assert_eq!(check(), unready);
        }
        for standing in [VigilState::Enforced(Proven::ByTime), VigilState::Lost("gone".to_owned())] {
            fence.send_replace(standing);
            assert_eq!(check(), "[+]fence ok");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn l14_a_thread_that_stands_still_is_not_alive_when_another_replica_leads_long_since() {
        let sources = Sources { election: None, ..sources() };
        let router = router(&sources);
        let after = async |seconds| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            get(&router, "/livez?verbose")
        };
        assert_eq!(after(24).await.0, 200);
        let (status, body) = after(1).await;
        assert_eq!(status, 500);
        assert!(
            body.contains("[-]pulse failed: the thread that watches and decides has stood still for 25 s"),
            "{body}"
        );
        let _beating = tokio::spawn(apiserver::pulse::beat(sources.pulse.clone(), None));
        assert_eq!(after(1).await.0, 200);
    }

    #[test]
    fn m15_a_watch_that_fails_makes_nobody_unready_for_a_minute() {
        let now = Instant::now();
        let report =
            WatchReport { silent: Some(Duration::from_secs(7)), listed: 3, ..WatchReport::default() };
        let of = |synced, error: Option<&str>, blind: Option<u64>| {
            let blind_since = blind.map(|seconds| now - Duration::from_secs(seconds));
            watched(&KindStatus { synced, error: error.map(str::to_owned), blind_since }, &report, now)
        };
        let well = "3 objects listed, 0 events, heard 7 s ago";
        assert_eq!(of(false, None, None), Err("not listed yet".to_owned()));
        assert_eq!(of(false, Some("403"), None), Err("403".to_owned()));
        assert_eq!(of(true, None, None), Ok(Some(well.to_owned())));
        assert_eq!(of(true, Some("503"), Some(59)), Ok(Some(format!("{well}, last error: 503"))));
        let blind = "neither listed nor watched for 60 s, last error: 503";
        assert_eq!(of(true, Some("503"), Some(60)), Err(blind.to_owned()));
    }

    #[tokio::test]
    async fn a_leader_that_neither_renews_nor_ends_is_hung() {
        let now = Instant::now();
        let overdue = |seconds| watchdog(Term::Until(now), now + Duration::from_secs(seconds), &TIMING);
        assert!(overdue(25).is_ok());
        assert!(overdue(26).is_err());
        assert!(watchdog(Term::None, now, &TIMING).is_ok());
        assert!(watchdog(Term::Unlimited, now, &TIMING).is_ok());
    }
}
