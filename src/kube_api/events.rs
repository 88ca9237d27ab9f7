//! Events for users, as core/v1 `Event` objects with the stock controllers' component names.
//!
//! Recording never blocks and never fails: events explain, they decide nothing. They travel through
//! a bounded queue to one worker with a request budget of its own.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{
    ids::{ResourceVersion, Uid},
    kinds::Narrow,
};

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Something went as planned.
    Normal,
    /// Somebody may have to act.
    Warning,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Involved {
    /// Kind.
    pub kind: &'static str,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Uid,
    /// Revision the event speaks of.
    pub resource_version: ResourceVersion,
}

impl Involved {
    /// Refers to a (core/v1) object.
    #[must_use]
    pub fn object<T: Narrow>(object: &T) -> Self {
        let metadata = object.metadata();
        Self {
            kind: T::KIND,
            namespace: Arc::clone(&metadata.namespace),
            name: Arc::clone(&metadata.name),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version,
        }
    }
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
}

/// Takes events of one component.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    component: &'static str,
    queue: mpsc::Sender<(&'static str, Event)>,
}

impl EventRecorder {
    /// Records an event; when the queue is full it is counted and dropped.
    pub fn record(&self, event: Event) {
        let _ = self.queue.try_send((self.component, event));
    }
}
