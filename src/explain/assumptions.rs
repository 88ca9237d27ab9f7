//! What is assumed of the controllers that rule the cluster, and what they would do next.
//!
//! In: flags of the controllers, if they are known, defaults of kube-controller-manager where not; a snapshot. Out: what each of
//! them would do next.

use apiserver::kinds::ObjectRef;

use super::snapshot::Snapshot;
use crate::{
    attach_detach::{self, AttachDetachOptions},
    binder::{self, BinderOptions},
};

/// Options of the two controllers.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Of attach/detach.
    pub attach_detach: AttachDetachOptions,
    /// Of the binder.
    pub binder: BinderOptions,
}

impl Assumptions {
    /// What attach/detach would do next.
    #[must_use]
    pub fn ask_attach_detach(&self, snapshot: &Snapshot) -> attach_detach::dry_run::Outlook {
        let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
        attach_detach::dry_run::dry_run(&snapshot.objects, self.attach_detach, &is_absent, snapshot.taken_at)
    }

    /// What the binder would do next.
    #[must_use]
    pub fn ask_binder(&self, snapshot: &Snapshot) -> binder::dry_run::Outlook {
        let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
        binder::dry_run::dry_run(&snapshot.objects, &self.binder, &is_absent)
    }
}
