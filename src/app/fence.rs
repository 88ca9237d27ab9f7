//! `--fence`: this process leads only once kube-controller-manager's loops are fenced off, and takes nothing away after
//! the fence is lost.
//!
//! In: looks at the fence ([`crate::fence`]), every second until it is proven and every five seconds from then on. Out: the
//! first proof, which the election waits for; [`apiserver::unfenced`], which every destructive request and every create of a
//! VolumeAttachment asks; alarm, log and event. Attaching and binding go on without the fence: they are as safe beside another controller as S14 says.

use std::{sync::Arc, time::Duration};

use apiserver::{
    connect::ApiServer,
    events::{Event, EventRecorder, EventType, Involved},
    ids::{ResourceVersion, Uid},
    leadership::{Leadership, Term},
    tables::Objects,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::subsystems::{Parts, own_namespace};
use crate::{
    controller::second_writer::MEMORY,
    fence::{
        metrics::FenceMetrics,
        policies::{API, Fence, POLICIES},
        probe::{look, raised},
        rehearsal::refused,
        vigil::{UNNEEDED_LOOK, Vigil, VigilState, WATCHING},
    },
    metrics::Alarms,
    supervise::{Stage, Supervisor},
};

/// The alarm that the fence is lost.
const FENCE_LOST: &str = "fence_lost";
/// The alarm that a loop is fenced off that this mooring does not run.
const FENCE_UNNEEDED: &str = "fence_unneeded";
/// Between two dry runs of the writes, while nothing is fenced off.
const REHEARSE_EVERY: Duration = Duration::from_mins(1);
/// Likewise after one that was refused.
const REHEARSE_AGAIN: Duration = Duration::from_secs(5);
/// For all dry runs together.
const LONGEST_REHEARSAL: Duration = Duration::from_secs(20);
/// Between two looks for such loops.
const UNNEEDED_EVERY: Duration = Duration::from_mins(1);
/// Between two looks before the fence is proven: API servers read policies every second.
const WAITING: Duration = Duration::from_secs(1);
/// While this server enforces it and others are to be seen: each look may reach another server.
const PROVING: Duration = Duration::from_millis(250);
/// So many such looks in a row: where a balancer never leads to the others, haste is no help, and each look costs the API
/// server a connection and some ten requests.
const HASTY_LOOKS: u32 = 240;

/// Watches over the fence, if one is asked for, and returns how it stands; `proven` is cancelled when it is proven for the first
/// time.
pub(super) fn watch_fence(
    parts: &Parts,
    tasks: &mut Supervisor,
    api: ApiServer,
    proven: Option<CancellationToken>,
) -> Result<Option<watch::Receiver<VigilState>>, prometheus::Error> {
    let Some(proven) = proven else { return Ok(None) };
    let (told, standing) = watch::channel(VigilState::default());
    let running = parts.config.controllers.running.iter();
    let watch = FenceWatch {
        fences: running.filter_map(|controller| Fence::of(controller.name())).collect(),
        objects: Arc::clone(&parts.objects),
        alarms: parts.alarms.clone(),
        events: parts.events.for_component("mooring"),
        metrics: FenceMetrics::new(&parts.metrics)?,
        told,
        proven,
        leadership: parts.leadership.clone(),
        lease: parts
            .config
            .election
            .map(|_| [own_namespace(&parts.config, &api), parts.config.own_name.clone()]),
        api,
    };
    tasks.spawn(Stage::Watch, "fence", watch.run());
    Ok(Some(standing))
}

struct FenceWatch {
    api: ApiServer,
    fences: Vec<&'static Fence>,
    objects: Arc<Objects>,
    alarms: Alarms,
    events: EventRecorder,
    metrics: FenceMetrics,
    told: watch::Sender<VigilState>,
    proven: CancellationToken,
    leadership: Leadership,
    /// Namespace and name of the lease, if that gives the right to write, and not the proof.
    lease: Option<[String; 2]>,
}

impl FenceWatch {
    /// Looks for as long as the daemon runs.
    async fn run(self) {
        let (mut vigil, mut hasty) = (Vigil::default(), 0_u32);
        self.alarms.set(FENCE_LOST, None);
        self.alarms.set(FENCE_UNNEEDED, None);
        let mut looks_again = Instant::now();
        // Which write is refused, and when to try anew.
        let (mut refusal, mut rehearses_again) = (None, Instant::now());
        loop {
            let began = Instant::now();
            let hear = |word: Result<Option<&str>, ()>| {
                if let Ok(word) = word {
                    vigil.hear(word, Instant::now());
                    self.objects.unfenced().drain(vigil.drains(Instant::now()));
                }
            };
            let mut look = look(&self.api, &self.fences, hear).await;
            // Who may not write is not ready, so no switch fences anybody off for it. Behind a fence it is the only one to rule.
            if look.is_absent() && matches!(vigil.standing(), VigilState::Waiting(..)) {
                if Instant::now() >= rehearses_again {
                    refusal = self.rehearse().await;
                    let pause = if refusal.is_some() { REHEARSE_AGAIN } else { REHEARSE_EVERY };
                    rehearses_again = Instant::now() + pause;
                }
                look.refused.clone_from(&refusal);
            }
            let now = Instant::now();
            let is_news = vigil.take(&look, began, now).1;
            let standing = vigil.standing();
            if let Some(until) = vigil.settles() {
                self.objects.unfenced().settle(until);
            }
            self.objects.unfenced().drain(vigil.drains(now));
            self.metrics.set(standing);
            self.follow(standing, is_news, now);
            if now >= looks_again {
                looks_again = now + UNNEEDED_EVERY;
                self.look_for_unneeded().await;
            }
            let is_proving = matches!(standing, VigilState::Waiting(..)) && look.is_enforced();
            hasty = if is_proving { hasty.saturating_add(1) } else { 0 };
            sleep(match standing {
                VigilState::Waiting(..) if is_proving && hasty <= HASTY_LOOKS => PROVING,
                VigilState::Waiting(..) => WAITING,
                VigilState::Enforced(_) | VigilState::Lost(_) => WATCHING,
            })
            .await;
        }
    }

    /// Which write of the daemon is refused.
    async fn rehearse(&self) -> Option<String> {
        let client = match self.api.client() {
            Ok(client) => client,
            Err(error) => return Some(error.to_string()),
        };
        let lease = self.lease.as_ref().map(|lease| lease.each_ref().map(String::as_str));
        // A fence that is raised meanwhile is to be seen soon.
        let refused = timeout(LONGEST_REHEARSAL, refused(&client, &self.fences, lease));
        let refused = refused.await.unwrap_or_else(|_| Some("no answers in time".to_owned()))?;
        Some(format!("mooring may not make its writes yet, so nobody is to be fenced off: {refused}"))
    }

    /// Loops that nobody runs: what cannot be read is looked for again.
    async fn look_for_unneeded(&self) {
        let Ok(client) = self.api.client() else { return };
        let raised = timeout(UNNEEDED_LOOK, raised(&client, Fence::others(&self.fences))).await;
        let Ok(Ok(unneeded)) = raised else { return };
        let names: Vec<&str> = unneeded.iter().map(|fence| fence.controller).collect();
        let text = (!names.is_empty()).then(|| {
            format!(
                "fenced off, and not among the --controllers of this mooring, so that nobody does their work: {} (run \
                 mooring switch --to mooring)",
                names.join(", ")
            )
        });
        self.alarms.set(FENCE_UNNEEDED, text);
    }

    fn follow(&self, standing: &VigilState, is_news: bool, now: Instant) {
        match standing {
            VigilState::Waiting(why, _) if is_news => tracing::info!(reason = why, "waiting for the fence"),
            VigilState::Waiting(..) => {}
            VigilState::Enforced(proven) => {
                self.objects.unfenced().found();
                self.alarms.set(FENCE_LOST, None);
                if self.lease.is_none() && !self.proven.is_cancelled() {
                    self.leadership.set(Term::Unlimited);
                }
                self.proven.cancel();
                if is_news {
                    tracing::info!(?proven, "the fence is enforced");
                }
            }
            VigilState::Lost(why) => {
                self.objects.unfenced().lost(now, MEMORY);
                self.alarms.set(FENCE_LOST, Some(self.loss(why, now)));
                if is_news {
                    tracing::warn!(reason = why, "the fence is lost");
                    // The alarm says the same.
                    self.event(why, now).into_iter().for_each(|event| self.events.record(event));
                }
            }
        }
        if is_news {
            self.told.send_replace(standing.clone());
        }
    }

    /// What a lost fence holds up, if it still does.
    fn loss(&self, why: &str, now: Instant) -> String {
        let holds_up = match self.objects.unfenced().until(now) {
            Some(_) => "nothing is detached, released or deleted for now",
            None => "mooring detaches, releases and deletes again unless it sees another controller write",
        };
        format!("{why}: {holds_up}")
    }

    /// Each replica sees the loss, and the leader records it.
    fn event(&self, why: &str, now: Instant) -> Option<Event> {
        if !self.leadership.may_write(now) {
            return None;
        }
        let name = self.fences.first().map(|fence| fence.name()).unwrap_or_default();
        let involved = Involved {
            api_version: API,
            kind: POLICIES.0,
            namespace: "".into(),
            name: name.as_str().into(),
            uid: Uid::default(),
            resource_version: ResourceVersion::default(),
        };
        Some(Event::new(involved, EventType::Warning, "FenceLost", self.loss(why, now)))
    }
}

#[cfg(test)]
mod tests {
    use apiserver::events::{EventQueue, Novelty};
    use kube::{Client, client::Body};

    use super::*;
    use crate::{
        fence::{
            policies::FENCES,
            probe::LONGEST_LOOK,
            state::{FenceLook, FenceState, Proven},
        },
        metrics::Metrics,
    };

    fn watch(term: Term) -> FenceWatch {
        let metrics = Metrics::default();
        let client = Client::new(
            tower::service_fn(|_: http::Request<Body>| {
                std::future::pending::<Result<http::Response<Body>, kube::Error>>()
            }),
            "default",
        );
        let (events, _writer) = EventQueue::new(&metrics).unwrap();
        FenceWatch {
            api: ApiServer::in_process(client),
            fences: Fence::of("persistentvolume-attach-detach-controller").into_iter().collect(),
            objects: Arc::default(),
            alarms: Alarms::new(&metrics).unwrap(),
            events: events.for_component("mooring"),
            metrics: FenceMetrics::new(&metrics).unwrap(),
            told: watch::Sender::default(),
            proven: CancellationToken::new(),
            leadership: Leadership::new(term),
            lease: Some(Default::default()),
        }
    }

    #[tokio::test]
    async fn s14_the_alarm_says_for_as_long_as_it_is_so_that_a_lost_fence_holds_something_up() {
        let (watch, start) = (watch(Term::None), Instant::now());
        let lost = VigilState::Lost("it is gone".to_owned());
        let held = "fence_lost: it is gone: nothing is detached, released or deleted for now";
        let over = "fence_lost: it is gone: mooring detaches, releases and deletes again unless it sees another controller write";
        for (minutes, expected) in [(0, held), (9, held), (10, over), (600, over)] {
            watch.follow(&lost, false, start + Duration::from_mins(minutes));
            assert_eq!(watch.alarms.raised(), [expected], "{minutes}");
        }
        watch.follow(&VigilState::Enforced(Proven::No), false, start + Duration::from_mins(601));
        assert_eq!(watch.alarms.raised(), [""; 0]);
    }

    #[tokio::test]
    async fn s47_who_stands_by_records_no_loss_of_the_fence() {
        let now = Instant::now();
        for (term, is_recorded) in [(Term::None, false), (Term::Until(now), false), (Term::Unlimited, true)] {
            let event = watch(term).event("it is gone", now);
            assert_eq!(event.is_some(), is_recorded, "{term:?}");
            assert!(event.is_none_or(|event| event.novelty == Novelty::Unclear));
        }
    }

    /// However many requests a look has, and although none is answered.
    #[tokio::test(start_paused = true)]
    async fn s14_a_look_has_a_limit_and_a_fence_of_which_nothing_is_told_for_a_minute_is_lost() {
        let (watch, start, mut vigil) = (watch(Term::None), Instant::now(), Vigil::default());
        let all: Vec<&Fence> = FENCES.iter().collect();
        let good = FenceLook {
            states: vec![FenceState::Enforced],
            server: Some("a".to_owned()),
            leases: Some([("a".to_owned(), "1".to_owned())].into()),
            ..FenceLook::default()
        };
        vigil.take(&good, start, start);
        while !matches!(vigil.standing(), VigilState::Lost(_)) {
            let began = Instant::now();
            let look = look(&watch.api, &all, |_| {}).await;
            assert!(began.elapsed() <= LONGEST_LOOK, "{:?}", began.elapsed());
            vigil.take(&look, began, Instant::now());
            sleep(WATCHING).await;
        }
        assert!((60..90).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }
}
