//! The rules for volumes that are attached by saying so: iSCSI and Fibre Channel (attach-detach §2.3).
//!
//! They have no VolumeAttachment; the node's status is all there is. So "attached" is "listed", and what a
//! list has said is remembered in the place of an attachment: an exclusive volume is not listed on a second
//! node before it is given up on the first, whether that still lists it, or another party took it off the
//! list, or the node is gone with its list. It is given up on the proof on which others are detached.

use super::{
    detach::{give_up, still_in_use},
    force::force,
    verdict::{NodeVerdict, NodeVolumeView, Waiting, wait},
};
use crate::attach_detach::state::{
    actual::{Mount, ReportAsAttached},
    desired::DesiredAttachment,
};

/// Judges one volume on a node of such a volume.
pub(in crate::attach_detach) fn judge(view: &NodeVolumeView<'_>) -> NodeVerdict {
    view.desired.map_or_else(|| unwanted(view), |desired| wanted(view, desired))
}

fn wanted(view: &NodeVolumeView<'_>, desired: &DesiredAttachment) -> NodeVerdict {
    if view.node_volume.listed {
        return NodeVerdict::say(ReportAsAttached::Yes);
    }
    if let Some(conflict) = view.conflict {
        return wait(ReportAsAttached::No, Waiting::HeldByNode { conflict: conflict.clone() });
    }
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(ReportAsAttached::Unchanged, Waiting::NodeGone);
    }
    // What was listed before may be mounted, and is put back.
    if !(desired.is_current() || view.node_volume.mount == Mount::Possible) {
        return wait(ReportAsAttached::No, Waiting::ClaimOrVolumeChanged);
    }
    wait(ReportAsAttached::Yes, Waiting::Publishing)
}

fn unwanted(view: &NodeVolumeView<'_>) -> NodeVerdict {
    let node_volume = view.node_volume;
    if node_volume.may_be_listed && !node_volume.listed {
        return wait(ReportAsAttached::No, Waiting::DetachWaitingForSettlement);
    }
    // The kubelet merely announces a pod to come, or to go.
    if node_volume.mount == Mount::No {
        return NodeVerdict::say(ReportAsAttached::Unchanged);
    }
    let mut forced = None;
    if node_volume.in_use {
        match force(node_volume, (view.node, view.doubt), view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            Err(unforced) => {
                // Not put back where another party has given it to another node meanwhile, nor listed where it may
                // never have been.
                let is_elsewhere =
                    view.is_elsewhere || view.conflict.is_some_and(|conflict| conflict.is_attached);
                let may_stay = node_volume.listed || (node_volume.mount == Mount::Possible && !is_elsewhere);
                let stays = may_stay && !view.is_withheld;
                let report = if stays { ReportAsAttached::Yes } else { ReportAsAttached::No };
                return still_in_use(view, report, unforced);
            }
        }
    }
    give_up(view, forced)
}
