//! What is assumed of the controllers that rule the cluster, and what they would do next.
//!
//! In: flags of the controllers, if they are known, defaults of kube-controller-manager where not; a snapshot. Out: what each of
//! them would do next.

use super::snapshot::Snapshot;
use crate::{
    attach_detach::{self, AttachDetachOptions},
    binder::{self, BinderOptions},
    kube_api::kinds::ObjectRef,
};

/// Options of the two controllers.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Of attach/detach.
    pub attach_detach: AttachDetachOptions,
    /// Of the binder.
    pub binder: BinderOptions,
}

/// What both would do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlooks {
    /// Attach/detach.
    pub attach_detach: attach_detach::dry_run::Outlook,
    /// The binder.
    pub binder: binder::dry_run::Outlook,
}

/// Asks both.
#[must_use]
pub fn ask(snapshot: &Snapshot, assumptions: &Assumptions) -> Outlooks {
    let is_absent = |object: &ObjectRef| snapshot.is_absent(object);
    Outlooks {
        attach_detach: attach_detach::dry_run::dry_run(
            &snapshot.objects,
            assumptions.attach_detach,
            &is_absent,
            snapshot.taken_at,
        ),
        binder: binder::dry_run::dry_run(&snapshot.objects, &assumptions.binder, &is_absent),
    }
}
