//! What is assumed of the controllers that rule the cluster.
//!
//! In: flags of the controllers, if they are known; defaults of kube-controller-manager where not. Out: options for the
//! dry runs.

use crate::{attach_detach::AttachDetachOptions, binder::BinderOptions};

/// Options of the two controllers.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Of attach/detach.
    pub attach_detach: AttachDetachOptions,
    /// Of the binder.
    pub binder: BinderOptions,
}
