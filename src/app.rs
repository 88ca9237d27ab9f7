//! The daemon: builds the parts, watches over them, takes them down in order.
//!
//! In: a [`Config`]. Out: the process' fate ([`DaemonFailure`] or none). A subsystem is added in
//! [`subsystems`].
//!
//! Shutdown (SIGTERM or SIGINT): stop planning and reading → drain the subsystems → release the lease, and
//! write the events left beside it, as long as there is time → close HTTP → exit 0. A second signal exits
//! at once with 128 + its number.
//! If the subsystems do not drain in time the lease is left to expire, because a request that may
//! still be under way must not meet the writes of the next leader.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ::telemetry::traces::Traces;
#[cfg(feature = "tracing-otlp")]
use ::telemetry::traces::export::Exporter;
use anyhow::{Context, anyhow};
use apiserver::{
    call::Caller,
    connect::{ApiServer, ConnectError},
    elector::{Candidacy, ElectionView, Elector, Surroundings},
    events::EventQueue,
    kinds::{Narrow, Node, PersistentVolume, PersistentVolumeClaim},
    leadership::{Leadership, Term},
    lease_note::LeaseNote,
    progress::Progress,
    pulse::beat,
    restore::RestoreGrace,
    room::give_back_room,
    sight::Sight,
    tables::{
        ALWAYS, Objects, Stored, watch as kind_watch,
        watch::{CatchUps, Fetcher},
    },
};
use futures::future::LocalBoxFuture;
use serving::{Gate, Measures, OwnCertificate, Router, zpages};
use strum::VariantNames as _;
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    attach_detach::guard::wait_note::NODES_NOT_READY,
    build_info::{BUILD, COMPONENT},
    config::{Config, StorageController},
    configz::configz,
    controller::late::may_be_late,
    debugging,
    fence::vigil::VigilState,
    metrics::{
        Alarms, ApiMetrics, CLIENT, ElectionMetrics, Expiry, Metrics, Requester, SERVING, WatchMetrics,
        process, register_expiry, slis::Slis,
    },
    routes,
    supervise::{Dead, Death, Stage, Supervisor, Threads, Workplace},
    telemetry::{self, history::History},
};

mod barrier;
mod fence;
mod https;
mod life;
pub(crate) mod observing;
mod patience;
#[cfg(test)]
mod shutdown_tests;
mod subsystems;

use barrier::take_over_barrier;
use fence::watch_fence;
use https::{BoundServer, prepare, serving};
pub use life::Life;
use observing::{Observation, hands};
use patience::{HTTP_TIMEOUT, LAST_WORDS, Patience};
pub use subsystems::own_namespace;
use subsystems::{Parts, Subsystem, subsystem};

/// The alarm about a restore of etcd.
const RESTORED: &str = "etcd_restored";

/// Why the process ends other than by a signal.
#[derive(Debug)]
pub enum DaemonFailure {
    /// It could not start as told to: exit 2.
    Setup(anyhow::Error),
    /// A part died: exit 1.
    Running(anyhow::Error),
}

/// Runs the daemon until a signal ends it. Boxed here, so that the program does not compile all of it again.
///
/// # Errors
/// See [`DaemonFailure`].
pub fn run(config: Config) -> LocalBoxFuture<'static, Result<(), DaemonFailure>> {
    Box::pin(run_until_signal(config))
}

async fn run_until_signal(config: Config) -> Result<(), DaemonFailure> {
    let mut terminated = Termination::listen().map_err(DaemonFailure::Setup)?;
    let api = ApiServer::find(config.kubeconfig.as_deref()).await;
    let api = api.map_err(|error| DaemonFailure::Setup(error.into()))?;
    let life = Life::start(config, &api, Threads::Apart, watch::Sender::default()).await;
    let mut life = life.map_err(DaemonFailure::Setup)?;
    tokio::select! {
        (name, _) = terminated.signal() => tracing::info!(signal = name, "shutting down"),
        failure = life.failure() => return Err(DaemonFailure::Running(failure)),
    }
    tokio::spawn(async move {
        let (_, number) = terminated.signal().await;
        tracing::warn!("second signal: exiting at once");
        telemetry::flush();
        std::process::exit(128 + number);
    });
    life.stop().await.map_err(DaemonFailure::Running)
}

/// The signals that end the process.
pub(crate) struct Termination {
    terminate: Signal,
    interrupt: Signal,
}

impl Termination {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The name of the next, and its number.
    pub(crate) async fn signal(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
            _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
        }
    }
}

/// The running daemon. When dropped, it is gone at once, as a process that was killed.
#[derive(Debug)]
pub struct Daemon {
    tasks: Supervisor,
    gate: Arc<Gate>,
    planning: CancellationToken,
    events: (EventQueue, CancellationToken),
    lease: CancellationToken,
    http: CancellationToken,
    patience: Patience,
}

impl Daemon {
    /// Starts all parts; they find each other and the right to write by themselves. The election and the server
    /// are those that must not wait for the others, nor keep them waiting.
    ///
    /// # Errors
    /// The address cannot be served on, or the credentials or certificates cannot be used.
    pub async fn start(
        config: Config,
        api: &ApiServer,
        grace: &RestoreGrace,
        threads: Threads,
    ) -> anyhow::Result<Self> {
        Ok(Self::start_as(config, api, grace, threads, false).await?.0)
    }

    /// The same; or, if it only observes, with what is seen of it: it reads, decides, and writes nothing.
    pub(crate) async fn start_as(
        config: Config,
        api: &ApiServer,
        grace: &RestoreGrace,
        threads: Threads,
        observes: bool,
    ) -> anyhow::Result<(Self, Option<Observation>)> {
        let (serving, patience) = (serving(&config), Patience::of(&config));
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics)?;
        let workplace = Workplace::new(threads)?;
        let (server, auth) = prepare(&serving, api, &measures, &workplace).await?;
        let identity = identity()?;
        log_start(api, server.as_ref().map(|open| open.server.address()), &identity);
        describe(&metrics, server.as_ref().map(|open| Arc::clone(&open.own)), api.clone())?;
        let api_metrics =
            Arc::new(ApiMetrics::new(&metrics, &api.host())?.with_subsystems(Requester::VARIANTS));
        let objects = Arc::new(tables(&config, grace));
        let leadership = right_to_write(&config);
        let fenced = config.fence.then(CancellationToken::new);
        let alarms = Alarms::new(&metrics)?;
        let caller = build_caller(api, &config, &leadership, &api_metrics, &alarms)?;

        let mut tasks = Supervisor::default();
        let [planning, events_end, lease, http] = [(); 4].map(|()| CancellationToken::new());
        let caller = caller.until(planning.clone());
        let content = config.content_type;
        let fetchers =
            || Fetcher::new(api, Arc::clone(&api_metrics)).map(|fetcher| fetcher.accepting(content));
        let watches = WatchMetrics::new(&metrics)?;
        let catch_ups = CatchUps::default();
        let (caller, observation) = hands(observes, (&objects, &metrics), caller, fetchers, &catch_ups)?;
        let pulse = watch_itself(&mut tasks, &config, api.clone());
        let lease_note = config.election.is_some().then(|| LeaseNote::new(NODES_NOT_READY));
        let mut runtimes = vec![Handle::current()];
        runtimes.extend(workplace.runtime());
        let view = match &config.election {
            Some(timing) => {
                let place = Workplace::new(threads)?;
                runtimes.extend(place.runtime());
                let candidacy = Candidacy {
                    namespace: own_namespace(&config, api),
                    name: config.own_name.clone(),
                    identity: identity.clone(),
                    timing: *timing,
                };
                let sight = start_sight(&mut tasks, &objects, api);
                let elector = place.enter(|| {
                    let api_metrics = Arc::clone(&api_metrics);
                    let (grace, progress) = (grace.clone(), catch_ups.progress());
                    let (pulse, fenced) = (Some(pulse.clone()), fenced.clone());
                    let note = lease_note.clone().unwrap_or_default();
                    let shared = Surroundings { sight, grace, progress, note, pulse, fenced };
                    build_elector(api, candidacy, &leadership, &metrics, api_metrics, shared)
                })?;
                let view = elector.view();
                // May come to list much, and so has no place among the renewals.
                let barrier = take_over_barrier(fetchers()?, Arc::clone(&objects), catch_ups.clone());
                let barrier = here(Handle::current(), barrier);
                let running = elector.run(listed(Arc::clone(&objects)), barrier, lease.clone());
                tasks.spawn_at(Stage::Election, "leader-election", place, running)?;
                Some(view)
            }
            None => None,
        };
        process::register_tasks(&metrics, runtimes)?;
        let (events, writer) = EventQueue::new(&metrics)?;
        if observes {
            tasks.spawn(Stage::Events, "events", writer.discard());
        } else {
            let writing = writer.run(caller.clone(), identity.clone(), events_end.clone());
            tasks.spawn(Stage::Events, "events", writing);
        }
        #[cfg(feature = "tracing-otlp")]
        let traces =
            start_traces(config.tracing.as_ref(), &identity, &metrics, &mut tasks, threads, &events_end)?;
        // The configuration says that there is none.
        #[cfg(not(feature = "tracing-otlp"))]
        let traces = Traces::default();

        tasks.spawn(Stage::Watch, "room", give_back_room(Arc::clone(&objects)));
        tasks.spawn(Stage::Watch, "restore-alarm", alarm_of_restores(grace.clone(), alarms.clone()));
        let parts = Parts {
            config,
            metrics,
            objects,
            watches,
            leadership,
            caller,
            lease_note,
            alarms,
            events,
            traces,
            history: History::default(),
            planning: planning.clone(),
        };
        let fence = watch_fence(&parts, &mut tasks, api.clone(), fenced)?;
        let router = build_router(&parts, (view, fence), (pulse, tasks.dead()))?;
        let router = start_subsystems(&parts, &mut tasks, router)?;
        // Who counts objects is there before any of them is.
        start_watches(&mut tasks, fetchers, &parts.watches, &parts.objects, &catch_ups)?;
        let router = zpages::add(router, COMPONENT, parts.config.flags.clone(), configz(&parts.config));
        let gate = Arc::new(Gate::new(router, auth, serving, measures));
        if let Some(BoundServer { server, tls, own }) = server {
            let running = server.run(Arc::clone(&gate), tls, own, http.clone());
            tasks.spawn_at(Stage::Http, "http", workplace, running)?;
        }
        let events = (parts.events, events_end);
        Ok((Self { tasks, gate, planning, events, lease, http, patience }, observation))
    }

    /// Its pages, as clients see them.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Waits until a part dies, which none should. Cancel safe.
    pub async fn death(&mut self) -> Death {
        self.tasks.death().await
    }

    /// Has what was recorded written, for a little while, after a part has died. Nothing more is decided.
    pub async fn tell(&mut self) {
        self.planning.cancel();
        end_events(&mut self.tasks, &self.events, LAST_WORDS).await;
    }

    /// Takes it down in order. Cancel safe: called again, it goes on.
    ///
    /// # Errors
    /// A part did not end in time, or failed.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + self.patience.drain + self.patience.release;
        self.planning.cancel();
        let mut ended = self.tasks.finished(Stage::Subsystem, self.patience.drain).await;
        self.events.1.cancel();
        if ended.is_ok() {
            self.lease.cancel();
            ended = self.tasks.finished(Stage::Election, self.patience.release).await;
        }
        let left = until.saturating_duration_since(Instant::now());
        end_events(&mut self.tasks, &self.events, left).await;
        ended?;
        self.http.cancel();
        self.tasks.finished(Stage::Http, HTTP_TIMEOUT).await?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Ends the writer of events, which writes what is left, and tells of what it could not write in time.
async fn end_events(
    tasks: &mut Supervisor,
    (events, end): &(EventQueue, CancellationToken),
    within: Duration,
) {
    end.cancel();
    if let Err(death) = tasks.finished(Stage::Events, within).await {
        tracing::warn!(count = events.left(), reason = %death, "events were left unwritten");
    }
}

/// Starts the subsystems. What they know is on their pages.
fn start_subsystems(parts: &Parts, tasks: &mut Supervisor, mut router: Router) -> anyhow::Result<Router> {
    for controller in &parts.config.controllers.running {
        let Subsystem { name, running, page, rows } = subsystem(parts, *controller)?;
        tasks.spawn(Stage::Subsystem, name, running);
        router = router.rows(page, rows);
    }
    Ok(router)
}

fn log_start(api: &ApiServer, address: Option<SocketAddr>, identity: &str) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        api_server = %api.host(),
        configuration = api.origin(),
        address = address.map(tracing::field::display),
        %identity,
        "starting"
    );
}

fn build_router(
    parts: &Parts,
    (view, fence): (Option<watch::Receiver<ElectionView>>, Option<watch::Receiver<VigilState>>),
    (pulse, dead): (Progress, Dead),
) -> Result<Router, prometheus::Error> {
    let sources = routes::Sources {
        metrics: parts.metrics.clone(),
        objects: Arc::clone(&parts.objects),
        watches: parts.watches.clone(),
        leadership: parts.leadership.clone(),
        election: view.zip(parts.config.election),
        fence,
        pulse,
        dead,
        alarms: parts.alarms.clone(),
        slis: Slis::new()?,
        stopping: parts.planning.clone(),
    };
    let router = routes::router(&sources);
    Ok(if parts.config.profiling { debugging::add(router) } else { router })
}

/// Sends what is traced, if anything is, from a thread of its own.
#[cfg(feature = "tracing-otlp")]
fn start_traces(
    config: Option<&crate::config::TracingConfig>,
    identity: &str,
    metrics: &Metrics,
    tasks: &mut Supervisor,
    threads: Threads,
    stop: &CancellationToken,
) -> anyhow::Result<Traces> {
    let Some(config) = config else { return Ok(Traces::default()) };
    let place = Workplace::new(threads)?;
    let (traces, queue) = Traces::new(config.per_million, metrics)?;
    let exporter = place.enter(|| Exporter::new(&config.endpoint, identity, queue, traces.clone()));
    let exporter = exporter.context("--tracing-config-file: endpoint")?;
    tasks.spawn_at(Stage::Events, "traces", place, exporter.run(stop.clone()))?;
    tracing::info!(endpoint = config.endpoint, per_million = config.per_million, "tracing");
    Ok(traces)
}

/// Says what the process is and takes, and when its certificates expire: the server's, if there is one, and the
/// client's.
fn describe(
    metrics: &Metrics,
    own: Option<Arc<OwnCertificate>>,
    api: ApiServer,
) -> Result<(), prometheus::Error> {
    process::register(metrics, &BUILD)?;
    let of_server: Expiry = Arc::new(move || own.as_ref().and_then(|own| own.expiry()));
    register_expiry(metrics, SERVING, of_server)?;
    let of_client: Expiry = Arc::new(move || serving::expiry_of_pem(&api.client_certificate()?));
    register_expiry(metrics, CLIENT, of_client)
}

/// Has the thread that watches and decides show that it goes on, and ends the process when nothing that it knows of the
/// API server is accepted any more.
fn watch_itself(tasks: &mut Supervisor, config: &Config, api: ApiServer) -> Progress {
    tasks.spawn_fallible(Stage::Watch, "credentials", async move { Err(api.out_of_date().await) });
    let pulse = Progress::default();
    tasks.spawn(Stage::Watch, "pulse", beat(pulse.clone(), config.election));
    pulse
}

/// The right to write: a lease gives it, or the proof of the fence, or nothing is asked for.
fn right_to_write(config: &Config) -> Leadership {
    match &config.election {
        Some(timing) => Leadership::new(Term::None).with_reserve(timing.reserve()),
        None if config.fence => Leadership::new(Term::None),
        None => Leadership::new(Term::Unlimited),
    }
}

/// The tables of the kinds that the controllers need.
fn tables(config: &Config, grace: &RestoreGrace) -> Objects {
    let objects = Objects::within(grace.clone());
    let has_classes = config.controllers.running.contains(&StorageController::AttributesClassProtection);
    if has_classes { objects.with_attributes_classes() } else { objects }
}

/// Waits until every kind has been listed.
async fn listed(objects: Arc<Objects>) {
    objects.synced().await;
}

/// Tells the elector since when the first kind is blind that all controllers need, if one is.
async fn keep_in_sight(objects: Arc<Objects>, sight: Sight) {
    let mut statuses = objects.status_changes();
    // The sender lives in the tables, so waiting cannot fail.
    while statuses.changed().await.is_ok() {
        let blind_since = statuses
            .borrow_and_update()
            .iter()
            .take(ALWAYS)
            .filter_map(|(_, status)| status.blind_since)
            .min();
        sight.set(blind_since);
    }
}

/// Raises an alarm while a grace after a restore lasts.
async fn alarm_of_restores(grace: RestoreGrace, alarms: Alarms) {
    let mut changes = grace.changes();
    loop {
        let left = grace.left(Instant::now());
        alarms.set(
            RESTORED,
            left.map(|_| {
                "etcd was restored from a backup: nothing is detached, released or deleted for five minutes"
                    .to_owned()
            }),
        );
        tokio::select! {
            // The sender lives in the grace, so waiting cannot fail.
            _ = changes.changed() => {}
            () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => {}
        }
    }
}

/// Runs a future on this runtime although another one waits for it, from when it is first waited for.
async fn here(runtime: Handle, future: impl Future<Output = ()> + Send + 'static) {
    // Ends early only when this runtime does, and the process with it.
    let _ = AbortOnDropHandle::new(runtime.spawn(future)).await;
}

/// Each kind is listed and watched over connections of its own.
fn start_watches(
    tasks: &mut Supervisor,
    fetchers: impl Fn() -> Result<Fetcher, ConnectError>,
    metrics: &WatchMetrics,
    objects: &Arc<Objects>,
    catch_ups: &CatchUps,
) -> Result<(), ConnectError> {
    use apiserver::kinds::{CsiDriver, Pod, StorageClass, VolumeAttachment, VolumeAttributesClass};

    macro_rules! start {
        ($($kind:ty),*) => {
            $(
                let table = Arc::clone(objects);
                let unreadable = move || <$kind>::table(&table).unreadable_count();
                let (fetcher, counted) = (fetchers()?, metrics.of(<$kind>::PLURAL, unreadable));
                let catch_up = catch_ups.of::<$kind>();
                let watching = kind_watch::watch::<$kind>(fetcher, Arc::clone(objects), counted, catch_up);
                tasks.spawn(Stage::Watch, <$kind>::WATCH, watching);
            )*
        };
    }
    start!(Node, Pod, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, StorageClass, CsiDriver);
    if objects.statuses().len() > VolumeAttributesClass::INDEX {
        start!(VolumeAttributesClass);
    }
    Ok(())
}

/// Whether this replica sees the cluster, and can connect to it.
fn start_sight(tasks: &mut Supervisor, objects: &Arc<Objects>, api: &ApiServer) -> Sight {
    let sight = Sight::default();
    tasks.spawn(Stage::Watch, "sight", keep_in_sight(Arc::clone(objects), sight.clone()));
    tasks.spawn_fallible(Stage::Watch, "connect", api.clone().keep_connecting(sight.clone()));
    sight
}

/// Sends the subsystems' requests.
fn build_caller(
    api: &ApiServer,
    config: &Config,
    leadership: &Leadership,
    metrics: &Arc<ApiMetrics>,
    alarms: &Alarms,
) -> Result<Caller, ConnectError> {
    let caller =
        Caller::new(api.apart().client()?, leadership.clone(), config.rate_limit, Arc::clone(metrics));
    Ok(caller
        .with_request_timeout(config.request_timeout)
        .with_alarms(alarms.clone())
        .letting_be_late(may_be_late)
        .accepting(config.content_type))
}

/// The elector's requests have a client, a budget and a timeout of their own, and need no term.
fn build_elector(
    api: &ApiServer,
    candidacy: Candidacy,
    leadership: &Leadership,
    metrics: &Metrics,
    api_metrics: Arc<ApiMetrics>,
    shared: Surroundings,
) -> anyhow::Result<Elector> {
    let caller = Caller::new(api.client()?, Leadership::new(Term::Unlimited), None, api_metrics)
        .with_request_timeout(candidacy.timing.request_timeout());
    let election_metrics = ElectionMetrics::new(metrics, &candidacy.name)?;
    Ok(Elector::new(caller, candidacy, leadership.clone(), election_metrics, shared))
}

/// Tells this process from every other one, also from its own earlier life.
///
/// KCM: cmd/kube-controller-manager/app/controllermanager.go, Run ("add a uniquifier").
fn identity() -> anyhow::Result<String> {
    let host = hostname::get().context("cannot read the host name")?;
    let random = getrandom::u64().map_err(|error| anyhow!("no random numbers: {error}"))?;
    Ok(format!("{}_{random:016x}", host.to_string_lossy()))
}
