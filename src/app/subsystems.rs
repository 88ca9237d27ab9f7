//! The subsystems: what each is built from, and where it explains itself. A subsystem is added in [`subsystem()`].

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use apiserver::{
    call::Caller, connect::ApiServer, events::EventQueue, leadership::Leadership, lease_note::LeaseNote,
    tables::Objects,
};
use serving::{Answer, MakeRows};
use telemetry::traces::Traces;

#[cfg(feature = "host-plugins")]
use crate::host_plugins::{HostPlugins, MachineHands};
use crate::{
    attach_detach, binder,
    config::{Config, StorageController},
    controller::{
        Controller, Executor, Runner,
        asked::{Asked, Past},
        requests::{Requests, Sent},
    },
    ephemeral::EphemeralVolumes,
    expander::Expander,
    metrics::{Alarms, Metrics, WatchMetrics},
    protection::{claims::ClaimProtection, volumes::VolumeProtection},
    telemetry::history::History,
    vac_protection::AttributesClassProtection,
};

/// What the subsystems are built from.
pub struct Parts {
    /// Configuration.
    pub config: Config,
    /// Where to register metrics.
    pub metrics: Metrics,
    /// The daemon's view of the cluster.
    pub objects: Arc<Objects>,
    /// What is counted of lists and watches.
    pub watches: WatchMetrics,
    /// The right to write.
    pub leadership: Leadership,
    /// Sends requests.
    pub caller: Caller,
    /// What the lease tells a successor; `None` without leader election.
    pub lease_note: Option<LeaseNote>,
    /// What an operator has to know at once.
    pub alarms: Alarms,
    /// Takes events for users.
    pub events: EventQueue,
    /// Takes what is traced.
    pub traces: Traces,
    /// What happened to each object lately.
    pub history: History,
    /// Cancelled when planning has to stop.
    pub planning: CancellationToken,
}

/// A part of the daemon that plans and writes. It waits by itself for [`Objects::synced`] and
/// [`Leadership::acquired`], and ends when [`Parts::planning`] is cancelled and its requests are
/// answered.
pub struct Subsystem {
    pub(super) name: &'static str,
    pub(super) running: BoxFuture<'static, ()>,
    /// Where it explains what it does.
    pub(super) page: &'static str,
    /// All of that, or what a query asks for.
    pub(super) rows: Box<MakeRows>,
}

/// A page, and the past of what was asked for.
#[derive(Serialize)]
struct Document<Page> {
    #[serde(flatten)]
    page: Page,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Past>>,
}

/// Builds the subsystem of a controller.
///
/// # Errors
/// A metric that cannot be registered.
pub(super) fn subsystem(parts: &Parts, controller: StorageController) -> anyhow::Result<Subsystem> {
    let objects = Arc::clone(&parts.objects);
    match controller {
        StorageController::AttachDetach => attach_detach_subsystem(parts),
        StorageController::Binder => binder_subsystem(parts),
        StorageController::ClaimProtection => {
            small_subsystem(parts, ClaimProtection::new(objects), "/debug/claim-protection")
        }
        StorageController::VolumeProtection => {
            small_subsystem(parts, VolumeProtection::new(objects), "/debug/volume-protection")
        }
        StorageController::AttributesClassProtection => {
            small_subsystem(parts, AttributesClassProtection::new(objects), "/debug/vac-protection")
        }
        StorageController::EphemeralVolumes => {
            let controller = EphemeralVolumes::new(objects, &parts.metrics)?;
            small_subsystem(parts, controller, "/debug/ephemeral-volumes")
        }
        StorageController::Expander => small_subsystem(parts, Expander::new(objects), "/debug/expander"),
    }
}

/// A controller that needs nothing but the tables and what every controller is given, and where its page is.
fn small_subsystem<C: Controller<Call: Sent<Answer = C::Answer>>>(
    parts: &Parts,
    controller: C,
    page: &'static str,
) -> anyhow::Result<Subsystem> {
    let runner = Runner::new(
        (controller, Requests::new(&parts.caller)),
        Arc::clone(&parts.objects),
        parts.leadership.clone(),
        parts.events.for_component(C::IDENTITY.component),
        (&parts.metrics, parts.alarms.clone()),
    )?;
    Ok(of_runner(parts, C::IDENTITY.name, runner, page))
}

fn attach_detach_subsystem(parts: &Parts) -> anyhow::Result<Subsystem> {
    let runner = attach_detach::runner(
        &parts.objects,
        &parts.caller,
        parts.leadership.clone(),
        parts.events.for_component("attachdetach-controller"),
        parts.config.attach_detach,
        (&parts.metrics, parts.alarms.clone()),
        (parts.lease_note.clone(), parts.traces.clone()),
    )?;
    Ok(of_runner(parts, "attach-detach", runner, "/debug/attach-detach"))
}

/// A runner that keeps the past, and where its page is.
fn of_runner<C: Controller, E: Executor<C>>(
    parts: &Parts,
    name: &'static str,
    mut runner: Runner<C, E>,
    page: &'static str,
) -> Subsystem {
    let (board, history) = (runner.board(), parts.history.clone());
    runner.remember(history.clone());
    let running = Box::pin(runner.run(parts.planning.clone()));
    let rows = move |query: Option<&str>| {
        let asked = Asked::parse(query);
        Answer::json(&Document { page: board.page(&asked), history: asked.past(&history) })
    };
    Subsystem { name, running, page, rows: Box::new(rows) }
}

fn binder_subsystem(parts: &Parts) -> anyhow::Result<Subsystem> {
    let events = parts.events.for_component("persistentvolume-controller");
    #[cfg(feature = "host-plugins")]
    let plugins: Option<binder::WithPlugins> = Some((
        Box::new(HostPlugins::new(parts.config.host_plugins.clone())),
        Box::new(MachineHands::new(parts.caller.client(), events.clone())),
    ));
    #[cfg(not(feature = "host-plugins"))]
    let plugins = None;
    let runner = binder::runner(
        &parts.objects,
        &parts.caller,
        parts.leadership.clone(),
        events,
        (parts.config.binder, plugins),
        (&parts.metrics, parts.alarms.clone()),
        parts.traces.clone(),
    )?;
    Ok(of_runner(parts, "binder", runner, "/debug/binder"))
}

/// Where the lease is outside a cluster.
const LEASE_NAMESPACE: &str = "kube-system";

/// The namespace of the objects that the daemon keeps for itself, the lease among them.
pub fn own_namespace(config: &Config, api: &ApiServer) -> String {
    let namespace = config.own_namespace.as_ref().or(api.own_namespace.as_ref());
    namespace.cloned().unwrap_or_else(|| LEASE_NAMESPACE.to_owned())
}
