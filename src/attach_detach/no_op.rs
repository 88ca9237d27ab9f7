//! The rules for volumes that are attached by saying so: iSCSI and Fibre Channel (attach-detach §2.3).
//!
//! They have no VolumeAttachment; the node's status is all there is. So "attached" is "listed", and an
//! exclusive one is guarded by the lists: it is not listed on a second node before the first list is rid
//! of it.

use tokio::time::Instant;

use super::{
    actual_state::Publication,
    desired_state::Wish,
    force::force,
    rules::{PairView, Verdict, Waiting, still_in_use, wait, withdraw},
    withdrawal::Withdrawal,
};

/// Judges one pair of such a volume.
#[must_use]
pub(super) fn judge(view: &PairView<'_>, now: Instant) -> Verdict {
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
    if !wish.is_current() {
        return wait(Publication::Withhold, Waiting::WishNotCurrent);
    }
    wait(Publication::List, Waiting::Publishing)
}

fn unwanted(view: &PairView<'_>, now: Instant) -> Verdict {
    let pair = view.pair;
    // What was just taken off the list turns out to be in use: put back. What was never on it is the
    // kubelet's own announcement of a pod to come, or to go.
    let put_back = pair.in_use && pair.withdrawal != Withdrawal::None;
    if !(pair.listed || put_back) {
        return Verdict::say(Publication::Keep);
    }
    let mut forced = None;
    if pair.in_use {
        match force(pair, view.node, view.policy, view.wall) {
            Err(unforced) => return still_in_use(view, true, unforced, now),
            // It is off the list, which is all that there was to take.
            Ok(_) if !pair.listed => return Verdict::say(Publication::Keep),
            Ok(reason) => forced = Some(reason),
        }
    }
    Verdict { forced, ..withdraw(None, Waiting::DetachWaitingForUnpublish) }
}
