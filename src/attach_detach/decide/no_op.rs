//! The rules for volumes that are attached by saying so: iSCSI and Fibre Channel (attach-detach §2.3).
//!
//! They have no VolumeAttachment; the node's status is all there is. So "attached" is "listed", and what a
//! list has said is remembered in the place of an attachment: an exclusive volume is not listed on a second
//! node before it is given up on the first, whether that still lists it, or somebody else took it off the
//! list, or the node is gone with its list. It is given up on the proof on which others are detached.

use tokio::time::Instant;

use super::{
    csi::{PairView, Verdict, Waiting, give_up, still_in_use, wait},
    force::force,
};
use crate::attach_detach::{actual::state::Publication, desired::state::Wish};

/// Judges one pair of such a volume.
#[must_use]
pub(in crate::attach_detach) fn judge(view: &PairView<'_>, now: Instant) -> Verdict {
    match view.wish {
        Some(wish) => wanted(view, wish),
        None => unwanted(view, now),
    }
}

fn wanted(view: &PairView<'_>, wish: &Wish) -> Verdict {
    if view.pair.listed {
        return Verdict::say(Publication::List);
    }
    if let Some(rival) = view.rival {
        return wait(Publication::Withhold, Waiting::HeldByNode { rival: rival.clone() });
    }
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(Publication::Keep, Waiting::NodeGone);
    }
    // What was listed before may be mounted, and is put back.
    if !(wish.is_current() || view.pair.held) {
        return wait(Publication::Withhold, Waiting::WishNotCurrent);
    }
    wait(Publication::List, Waiting::Publishing)
}

fn unwanted(view: &PairView<'_>, now: Instant) -> Verdict {
    let pair = view.pair;
    if pair.may_be_listed && !pair.listed {
        return wait(Publication::Withhold, Waiting::DetachWaitingForSettlement);
    }
    // What was never listed is the kubelet's own announcement of a pod to come, or to go.
    if !pair.held {
        return Verdict::say(Publication::Keep);
    }
    let mut forced = None;
    if pair.in_use {
        match force(pair, view.node, view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            Err(unforced) => {
                // Not put back where somebody else has given it to another node meanwhile.
                let stays = pair.listed || view.rival.is_none_or(|rival| !rival.holds);
                return still_in_use(view, stays, unforced, now);
            }
        }
    }
    give_up(view, forced)
}
