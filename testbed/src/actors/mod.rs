//! Stand-ins for the components around the daemon. They see and act only through the API, in the order
//! and with the kinds of requests of the real ones. A test makes them succeed, fail, be slow or be silent.
//!
//! All have the same structure as the daemon: watches keep tables, a change marks keys, a pure function
//! names the next write of a key, and one write of a key is in progress at a time.

mod attacher;
mod collector;
mod kubelet;
mod mirror;
mod objects;
mod pod_gc;
mod protection;
mod provisioner;
mod scheduler;
mod storage;
#[cfg(test)]
mod tests;
mod work;
mod workload;

pub use attacher::{Attacher, AttacherBehaviour, Reaction};
pub use collector::Collector;
pub use kubelet::{KubeletBehaviour, Kubelets, attachment_name};
pub use mirror::{Key, Mirror, Touched, events, key};
pub use objects::is_ready;
pub use pod_gc::{PodGc, PodGcBehaviour};
pub use protection::Protection;
pub use provisioner::{Provisioner, ProvisionerBehaviour};
pub use scheduler::Scheduler;
pub use storage::{Fact, Step, Storage};
pub use workload::{SEAT, Seat, Succession, Workload, WorkloadBehaviour, claim_name};

/// What changes the behaviour of a running stand-in. Clones are the same.
#[derive(Clone, Debug)]
pub struct Handle<B>(tokio::sync::watch::Sender<B>);

impl<B> Handle<B> {
    /// Changes what it does from now on.
    pub fn change(&self, change: impl FnOnce(&mut B)) {
        self.0.send_modify(change);
    }
}

/// Whether a finalizer is among an object's.
fn has_finalizer(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta, name: &str) -> bool {
    metadata.finalizers.as_ref().is_some_and(|finalizers| finalizers.iter().any(|other| other == name))
}

/// A merge patch that replaces the finalizers, bound to the revision they were read at.
fn finalizers_patch<'a>(
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    finalizers: impl Iterator<Item = &'a str>,
) -> serde_json::Value {
    serde_json::json!({ "metadata": {
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers.collect::<Vec<_>>(),
    }})
}

/// Merge patch that adds a finalizer.
fn add_finalizer(
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    name: &str,
) -> serde_json::Value {
    let present = metadata.finalizers.iter().flatten().map(String::as_str);
    finalizers_patch(metadata, present.chain([name]))
}

/// Merge patch that removes a finalizer.
fn remove_finalizer(
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    name: &str,
) -> serde_json::Value {
    finalizers_patch(
        metadata,
        metadata.finalizers.iter().flatten().map(String::as_str).filter(|f| *f != name),
    )
}
