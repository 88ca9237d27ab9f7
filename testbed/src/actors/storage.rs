//! The storage system behind the stand-ins: the disks on each machine, and the mounts there.
//!
//! It reads no API object. In: each call of the attacher to the driver, as it returns, and each mount and unmount of a
//! kubelet. Out: a log of facts in their order, for judges that the daemon cannot influence. Like most real
//! drivers it accepts a second machine.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// What happened to a disk on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The driver has attached it (ControllerPublishVolume).
    Published,
    /// The driver has detached it (ControllerUnpublishVolume).
    Unpublished,
    /// The kubelet has mounted it for a first pod.
    Mounted,
    /// The kubelet has unmounted it for the last pod.
    Unmounted,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When, by tokio's clock.
    pub at: Instant,
    /// Name of the disk as kubelets have it: `kubernetes.io/csi/<driver>^<handle>`.
    pub disk: String,
    /// Name of the machine.
    pub machine: String,
    /// What happened.
    pub step: Step,
}

/// The log. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Storage(Arc<Mutex<Vec<Fact>>>);

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Storage {
    /// Notes a step now.
    pub fn note(&self, disk: &str, machine: &str, step: Step) {
        let fact = Fact { at: Instant::now(), disk: disk.to_owned(), machine: machine.to_owned(), step };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(fact);
    }

    /// Whether the driver has attached a disk to a machine.
    pub(super) fn is_published(&self, disk: &str, machine: &str) -> bool {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_call = |fact: &&Fact| {
            fact.disk == disk
                && fact.machine == machine
                && matches!(fact.step, Step::Published | Step::Unpublished)
        };
        facts.iter().rfind(is_call).is_some_and(|fact| fact.step == Step::Published)
    }

    /// All so far, oldest first.
    pub fn facts(&self) -> Vec<Fact> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A step that a write stands for: it happens right before the write is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Where it is noted.
    pub storage: Storage,
    /// The disk.
    pub disk: String,
    /// The machine.
    pub machine: String,
    /// What happens.
    pub step: Step,
}

impl Effect {
    pub(super) fn happen(&self) {
        self.storage.note(&self.disk, &self.machine, self.step);
    }
}
