//! Events for users, as core/v1 `Event` objects with the stock controllers' component names.
//!
//! Recording never blocks and never fails: events explain, they decide nothing. They travel through
//! a bounded queue to one writer that lets the work go first; what does not fit is counted. An
//! event that repeats is counted on the existing object ([`memory`]), also if an earlier process wrote it: its name
//! follows from what it says. An object about which too many are reported is not listened to for a while ([`spam`]).

mod body;
mod memory;
mod spam;
mod writer;

use arcstr::ArcStr;
use k8s_openapi::jiff::Timestamp;
use prometheus::IntCounterVec;
use strum::{IntoStaticStr, VariantNames};
use telemetry::metrics::Metrics;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    ids::{ResourceVersion, Uid},
    kinds::Narrow,
};
pub use writer::EventWriter;

/// Events waiting at most, a few hundred bytes each: as many as a mass move makes before the writer, which
/// lets the work go first, gets round to them.
///
/// client-go: tools/record/event.go, maxQueuedEvents (1000).
const QUEUE: usize = 8_192;

/// `apiVersion` of the objects of core.
pub const CORE: &str = "v1";

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum EventType {
    /// Something went as planned.
    Normal,
    /// A user may have to act.
    Warning,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Involved {
    /// Group and version, as in `apiVersion:`.
    pub api_version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: ArcStr,
    /// Name.
    pub name: ArcStr,
    /// UID.
    pub uid: Uid,
    /// Revision the event speaks of.
    pub resource_version: ResourceVersion,
}

impl Involved {
    /// Refers to a (core/v1) object.
    pub fn object<T: Narrow>(object: &T) -> Self {
        let metadata = object.metadata();
        Self {
            api_version: CORE,
            kind: T::KIND,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version,
        }
    }
}

/// Whether an event with the same words may have been told before, by this process or one before it (S47).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Novelty {
    /// This process saw it come about.
    New,
    /// New if this process has told it before; else as [`Novelty::Standing`].
    #[default]
    Unclear,
    /// It may have been so for long: told if it would expire otherwise.
    Standing,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub involved: Involved,
    /// Normal or Warning.
    pub r#type: EventType,
    /// Machine-readable reason, such as `FailedAttachVolume`.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// Whether it may have been told before.
    pub novelty: Novelty,
    /// What it is about, if its words change while that lasts: the event that tells of it is written anew then, and one that
    /// an earlier process has told stands, also in other words.
    pub subject: Option<ArcStr>,
}

impl Event {
    /// One with words that do not change.
    pub fn new(involved: Involved, r#type: EventType, reason: &'static str, message: String) -> Self {
        Self { involved, r#type, reason, message, novelty: Novelty::default(), subject: None }
    }
}

/// An event, the component that reports it, and when it did.
#[derive(Clone, Debug)]
struct Report {
    component: &'static str,
    event: Event,
    /// By the wall clock.
    time: Timestamp,
    recorded: Instant,
    /// Whether it may be on the server: a write of it was not answered.
    may_be_written: bool,
}

impl Report {
    fn new(component: &'static str, event: Event) -> Self {
        let (time, recorded) = (Timestamp::now(), Instant::now());
        Self { component, event, time, recorded, may_be_written: false }
    }
}

/// Why an event never reached the API server.
#[derive(Clone, Copy, Debug, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
enum Loss {
    QueueFull,
    Failed,
    Spam,
}

/// `mooring_events_dropped_total`.
#[derive(Clone, Debug)]
struct Losses(IntCounterVec);

impl Losses {
    fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let help = "Events that did not reach the API server, by cause.";
        metrics.counters_of("mooring_events_dropped_total", help, "cause", Loss::VARIANTS).map(Self)
    }

    fn of(&self, loss: Loss) -> prometheus::IntCounter {
        self.0.with_label_values::<&str>(&[loss.into()])
    }
}

/// Where recorders of all components come from.
#[derive(Clone, Debug)]
pub struct EventQueue {
    reports: mpsc::Sender<Report>,
    losses: Losses,
    left: watch::Receiver<usize>,
}

impl EventQueue {
    /// A queue and the writer that empties it.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<(Self, EventWriter), prometheus::Error> {
        let losses = Losses::new(metrics)?;
        let (reports, receiver) = mpsc::channel(QUEUE);
        let (counts, left) = watch::channel(0);
        Ok((Self { reports, losses: losses.clone(), left }, EventWriter::new(receiver, losses, counts)))
    }

    /// How many events were recorded and not written yet, when one was last taken to be.
    pub fn left(&self) -> usize {
        *self.left.borrow()
    }

    /// A recorder for one component, such as `attachdetach-controller`.
    pub fn for_component(&self, component: &'static str) -> EventRecorder {
        EventRecorder { component, queue: self.clone() }
    }
}

/// Takes events of one component.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    component: &'static str,
    queue: EventQueue,
}

impl EventRecorder {
    /// Records an event, with the time of now. If the queue is full, it is lost, and counted.
    pub fn record(&self, event: Event) {
        if self.offer(event).is_err() {
            self.count_lost(1);
        }
    }

    /// Records an event, or hands it back to a caller that can record it again later.
    ///
    /// # Errors
    /// The queue is full.
    #[allow(clippy::result_large_err, reason = "the event that found no room is handed back")]
    pub fn offer(&self, event: Event) -> Result<(), Event> {
        let sent = self.queue.reports.try_send(Report::new(self.component, event));
        sent.map_err(|error| error.into_inner().event)
    }

    /// So many events that found no room are given up.
    pub fn count_lost(&self, count: usize) {
        self.queue.losses.of(Loss::QueueFull).inc_by(count as u64);
    }
}

#[cfg(test)]
mod tests;
