//! The last steps of each detach: the proof, what is done without one, and giving up. Pure.

use super::{
    force::Unforced,
    verdict::{AttachStep, NodeVerdict, NodeVolumeView, Waiting, wait, withdraw},
};
use crate::attach_detach::state::actual::{
    ForceReason, NodeVolume, ReportAsAttached,
    unpublishing::{Unpublished, Unpublishing},
};

/// The proof without which nothing is detached (S2, S3), or what there is to be done for it.
#[allow(clippy::result_large_err, reason = "the verdict is returned either way")]
pub(in crate::attach_detach) fn prove_unpublished(
    view: &NodeVolumeView<'_>,
    forced: Option<ForceReason>,
) -> Result<Unpublished, NodeVerdict> {
    if view.node_volume.listed {
        return Err(withdraw(None, Waiting::DetachWaitingForUnpublish));
    }
    if view.node.is_some_and(|state| !state.requests.is_settled()) {
        return Err(withdraw(None, Waiting::DetachWaitingForSettlement));
    }
    let node = view.node.and_then(|state| state.node.as_deref());
    // What a machine reports that was never given the volume announces a pod.
    let is_overruled = forced.is_some() || view.is_withheld;
    match &view.node_volume.unpublishing {
        Unpublishing::Proven(proof) if proof.is_about(node) && (proof.is_unused() || is_overruled) => {
            Ok(proof.clone())
        }
        _ => Err(withdraw(Some(AttachStep::ReadNode), Waiting::DetachWaitingForUnpublish)),
    }
}

/// The volume is in use, or may be, and that may not be overruled (yet).
pub(in crate::attach_detach) fn still_in_use(
    view: &NodeVolumeView<'_>,
    report_as_attached: ReportAsAttached,
    unforced: Unforced,
) -> NodeVerdict {
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(ReportAsAttached::Unchanged, Waiting::DetachWaitingForNode { unforced });
    }
    wait(report_as_attached, Waiting::DetachWaitingForUnmount { unforced })
}

/// Whether the proof is of another machine than the one that may have the volume. It overrules nothing: the node
/// that is there is not to use it either.
pub(super) fn given_up(node_volume: &NodeVolume) -> Option<ForceReason> {
    node_volume.given_up.then_some(ForceReason::AnotherMachine)
}

/// A volume that has no attachment, or none any more, is given up on the proof on which others are detached.
pub(in crate::attach_detach) fn give_up(
    view: &NodeVolumeView<'_>,
    forced: Option<ForceReason>,
) -> NodeVerdict {
    match prove_unpublished(view, forced) {
        Ok(proof) => {
            let forced = forced.or(given_up(view.node_volume));
            NodeVerdict {
                forced,
                ..withdraw(Some(AttachStep::GiveUp(proof)), Waiting::DetachWaitingForUnpublish)
            }
        }
        // The list is all that there is to take by force.
        Err(verdict) => NodeVerdict { forced: forced.filter(|_| view.node_volume.listed), ..verdict },
    }
}
