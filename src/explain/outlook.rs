//! Both controllers asked over one snapshot.
//!
//! In: a snapshot and what is assumed. Out: what each of them would do next.

use super::{assumptions::Assumptions, snapshot::Snapshot};
use crate::{attach_detach, binder, kube_api::kinds::ObjectRef};

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
