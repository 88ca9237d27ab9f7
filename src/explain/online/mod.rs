//! Explanations from the daemon: over HTTPS, to each who may see it.
//!
//! ```text
//! request ─▶ gate (who is it?) ─▶ api ─▶ access (may they?) ─▶ desk ─▶ copy ─▶ explain ─▶ boards ─▶ redact ─▶ JSON, page, events
//! ```
//!
//! In: the daemon's tables, the boards of its controllers, the history, and requests of those who are known. Out: the very
//! [`Explanation`](super::report::Explanation) that the offline reader gives, with what only the controller knows: since
//! when, until when, what fails, and what was before. Each object is shown only to who may `get` it. All of it runs on the
//! thread that serves, and on threads for what takes long: nothing here asks the planner, or waits for it.

/// Calls a function that is generic over kinds for the kind of an object.
macro_rules! by_kind {
    ($object:expr, $function:ident($($argument:expr),*)) => {
        match $object {
            $crate::kube_api::kinds::ObjectRef::Node(key) => {
                $function::<$crate::kube_api::kinds::Node>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Pod(key) => {
                $function::<$crate::kube_api::kinds::Pod>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Volume(key) => {
                $function::<$crate::kube_api::kinds::PersistentVolume>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Claim(key) => {
                $function::<$crate::kube_api::kinds::PersistentVolumeClaim>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Attachment(key) => {
                $function::<$crate::kube_api::kinds::VolumeAttachment>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Class(key) => {
                $function::<$crate::kube_api::kinds::StorageClass>($($argument,)* key)
            }
            $crate::kube_api::kinds::ObjectRef::Driver(key) => {
                $function::<$crate::kube_api::kinds::CsiDriver>($($argument,)* key)
            }
        }
    };
}

mod access;
mod answers;
mod api;
mod boards;
mod copy;
mod desk;
mod openapi;
mod places;
mod redact;
mod signs;
mod site;
mod summary;
#[cfg(test)]
mod tests;
mod watching;

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use api::{Online, PATH};

use super::assumptions::Assumptions;
use crate::{
    attach_detach::tell::diagnostics::Diagnostics as AttachDetachBoard,
    binder::tell::diagnostics::Diagnostics as BinderBoard, kube_api::elector::ElectionView, state::Objects,
    telemetry::history::History,
};

/// What the daemon knows.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    /// Its tables.
    pub objects: Arc<Objects>,
    /// Its options.
    pub assumptions: Assumptions,
    /// What attach/detach says, if it runs here.
    pub attach_detach: Option<Arc<AttachDetachBoard>>,
    /// What the binder says, if it runs here.
    pub binder: Option<Arc<BinderBoard>>,
    /// What happened lately.
    pub history: History,
    /// As whom this replica holds the lease.
    pub identity: String,
    /// Who holds it; `None` without an election.
    pub election: Option<watch::Receiver<ElectionView>>,
    /// Cancelled when the daemon begins to end.
    pub stopping: CancellationToken,
}

impl Knowledge {
    /// Whether this replica decides.
    fn leads(&self) -> bool {
        self.election.as_ref().is_none_or(|view| view.borrow().leading)
    }

    /// Who decides, if that is known.
    fn leader(&self) -> Option<String> {
        let Some(view) = &self.election else { return Some(self.identity.clone()) };
        Some(view.borrow().holder.clone()).filter(|holder| !holder.is_empty())
    }
}
