//! The daemon without hands: its watches, tables and controllers, and in place of its writes what it would have written.
//!
//! In: a [`Config`]. Out: what the watches tell, in [`Told`], and the writes of the controllers, as [`Wish`]es. It takes no
//! lease and records no events. Its controllers decide as those of a leader do, for they are the same.

use std::sync::Arc;

use apiserver::{
    call::{Caller, Wish, Wishes},
    connect::ApiServer,
    events::EventQueue,
    ids::ResourceVersion,
    kinds::{Narrow as _, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    leadership::{Leadership, Term},
    restore::RestoreGrace,
    tables::{
        Objects, Told,
        watch::{CatchUps, Fetcher},
    },
};
use serving::{Gate, Measures};
use strum::VariantNames as _;
use telemetry::traces::Traces;
use tokio::sync::{mpsc::UnboundedReceiver, watch};
use tokio_util::sync::CancellationToken;

use super::{
    BoundServer, Parts, bind_server, build_auth, build_caller, build_router, describe, serving,
    start_subsystems, start_watches, tables, take_over_barrier, watch_itself,
};
use crate::{
    config::Config,
    metrics::{Alarms, ApiMetrics, Metrics, Requester, WatchMetrics},
    supervise::{Stage, Supervisor, Threads, Workplace},
    telemetry::history::History,
};

/// The running parts. When dropped, they are gone at once.
pub struct Observation {
    /// What is known of the cluster now.
    pub objects: Arc<Objects>,
    /// What the watches tell.
    pub told: UnboundedReceiver<Told>,
    /// What the controllers would write.
    pub wishes: UnboundedReceiver<Wish>,
    /// Sends requests that the controllers' writes are not.
    pub caller: Caller,
    /// Where to register what is counted.
    pub metrics: Metrics,
    /// Changes when etcd proves to have been restored.
    pub restores: watch::Receiver<u64>,
    /// The parts, of which none should die.
    pub tasks: Supervisor,
    fetcher: Fetcher,
    catch_ups: CatchUps,
}

impl Observation {
    /// Starts all parts.
    ///
    /// # Errors
    /// The address cannot be served on, or the credentials or certificates cannot be used.
    pub async fn start(config: Config, api: &ApiServer, threads: Threads) -> anyhow::Result<Self> {
        let serving = serving(&config);
        let (server, apis) = bind_server(&serving, api).await?;
        let metrics = Metrics::default();
        describe(&metrics, server.as_ref().map(|open| Arc::clone(&open.own)), api.clone())?;
        let measures = Measures::new(&metrics)?;
        let workplace = Workplace::new(threads)?;
        let auth = workplace.enter(|| build_auth(&serving, &apis, &measures))?;
        let api_metrics = ApiMetrics::new(&metrics, &api.host())?.with_subsystems(Requester::VARIANTS);
        let api_metrics = Arc::new(api_metrics);
        let grace = RestoreGrace::default();
        let objects = Arc::new(tables(&config, &grace));
        let told = objects.tell();
        let leadership = Leadership::new(Term::Unlimited);
        let alarms = Alarms::new(&metrics)?;
        let (hands, wishes) = Wishes::new();
        let sending = build_caller(api, &config, &leadership, &api_metrics, &alarms)?;

        let mut tasks = Supervisor::default();
        let fetchers = || {
            let fetcher = Fetcher::new(api, Arc::clone(&api_metrics));
            fetcher.map(|fetcher| fetcher.accepting(config.content_type.into()))
        };
        let (watches, catch_ups, fetcher) = (WatchMetrics::new(&metrics)?, CatchUps::default(), fetchers()?);
        start_watches(&mut tasks, fetchers, &watches, &objects, &catch_ups)?;
        let pulse = watch_itself(&mut tasks, &config, api.clone());
        let (events, writer) = EventQueue::new(&metrics)?;
        tasks.spawn(Stage::Events, "events", writer.discard());
        let parts = Parts {
            config,
            metrics: metrics.clone(),
            objects: Arc::clone(&objects),
            watches,
            leadership,
            caller: sending.clone().observing(hands),
            lease_note: None,
            alarms,
            events,
            traces: Traces::default(),
            history: History::default(),
            planning: CancellationToken::new(),
        };
        let router = build_router(&parts, (None, None), (pulse, tasks.dead()))?;
        let router = start_subsystems(&parts, &mut tasks, router)?;
        if let Some(BoundServer { server, tls, own }) = server {
            let gate = Arc::new(Gate::new(router, auth, serving, measures));
            let running = server.run(gate, tls, own, CancellationToken::new());
            tasks.spawn_at(Stage::Http, "http", workplace, running)?;
        }
        let restores = grace.seen();
        let caller = sending;
        Ok(Self { objects, told, wishes, caller, metrics, restores, tasks, fetcher, catch_ups })
    }

    /// The revision up to which the watches have told everything of the kinds that the two controllers write, and the kind
    /// that is the furthest behind.
    pub fn passed(&self) -> (ResourceVersion, &'static str) {
        let Objects { nodes, pods, volumes, claims, attachments, .. } = &*self.objects;
        let passed = [
            (nodes.observed(), Node::PLURAL),
            (pods.observed(), Pod::PLURAL),
            (volumes.observed(), PersistentVolume::PLURAL),
            (claims.observed(), PersistentVolumeClaim::PLURAL),
            (attachments.observed(), VolumeAttachment::PLURAL),
        ];
        passed.into_iter().min().unwrap_or_default()
    }

    /// Has the watches come up to now, where nothing happens that would show how far they are.
    pub fn catch_up(&self) -> impl Future<Output = ()> + Send + use<> {
        take_over_barrier(self.fetcher.clone(), Arc::clone(&self.objects), self.catch_ups.clone())
    }
}
