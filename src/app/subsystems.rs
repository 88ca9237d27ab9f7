//! The subsystems: what each is built from, and where it explains itself. A subsystem is added in [`subsystems()`].

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use apiserver::{
    call::Caller, events::EventQueue, leadership::Leadership, lease_note::LeaseNote, tables::Objects,
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
    /// Where and how it explains what it does: all of it, or what a query asks for.
    pub(super) explained: (&'static str, Box<MakeRows>),
}

/// A page, and the past of what was asked for.
#[derive(Serialize)]
struct Document<Page> {
    #[serde(flatten)]
    page: Page,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Past>>,
}

/// Builds the subsystems.
///
/// # Errors
/// A metric that cannot be registered.
pub fn subsystems(parts: &Parts) -> anyhow::Result<Vec<Subsystem>> {
    let subsystem = |controller: &StorageController| {
        let objects = Arc::clone(&parts.objects);
        match controller {
            StorageController::AttachDetach => attach_detach_subsystem(parts),
            StorageController::Binder => binder_subsystem(parts),
            StorageController::ClaimProtection => {
                small_subsystem(parts, ClaimProtection::new(objects), ("/debug/claim-protection", &["claim"]))
            }
            StorageController::VolumeProtection => small_subsystem(
                parts,
                VolumeProtection::new(objects),
                ("/debug/volume-protection", &["volume"]),
            ),
            StorageController::AttributesClassProtection => small_subsystem(
                parts,
                AttributesClassProtection::new(objects),
                ("/debug/vac-protection", &["vac"]),
            ),
            StorageController::EphemeralVolumes => small_subsystem(
                parts,
                EphemeralVolumes::new(objects, &parts.metrics)?,
                ("/debug/ephemeral-volumes", &["pod"]),
            ),
            StorageController::Expander => {
                small_subsystem(parts, Expander::new(objects), ("/debug/expander", &["claim"]))
            }
        }
    };
    parts.config.controllers.running.iter().map(subsystem).collect()
}

/// A controller that needs nothing but the tables and what every controller is given: where its page is, and the fields by
/// which the page finds the past of an object.
fn small_subsystem<C: Controller<Call: Sent<Answer = C::Answer>>>(
    parts: &Parts,
    controller: C,
    page: (&'static str, &'static [&'static str]),
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
    let page = ("/debug/attach-detach", &["attachment", "node"][..]);
    Ok(of_runner(parts, "attach-detach", runner, page))
}

/// A runner that keeps the past, where its page is, and the fields of a query by which the page finds the past of an object.
fn of_runner<C: Controller, E: Executor<C>>(
    parts: &Parts,
    name: &'static str,
    mut runner: Runner<C, E>,
    (explained_at, past_of): (&'static str, &'static [&'static str]),
) -> Subsystem {
    let (board, history) = (runner.board(), parts.history.clone());
    runner.remember(history.clone());
    let running = Box::pin(runner.run(parts.planning.clone()));
    let document = move |query: Option<&str>| {
        let asked = Asked::parse(query);
        let history = asked.past(past_of, &history);
        Answer::json(&Document { page: board.page(&asked), history })
    };
    Subsystem { name, running, explained: (explained_at, Box::new(document)) }
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
    Ok(of_runner(parts, "binder", runner, ("/debug/binder", &["claim", "volume"])))
}
