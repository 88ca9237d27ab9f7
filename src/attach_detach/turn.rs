//! Turn: on which nodes a volume is judged at once, and what its other nodes have to hear of that. Pure.
//!
//! In: the nodes on which something happened, and what is known of the volume. Out: the nodes to judge now, few of them
//! where a volume is on thousands, and who holds it if it is exclusive.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    actual::identification::is_exclusive_by_attachments,
    decide::{exclusivity::Exclusivity, multi_attach::Exclusive, reconciler, scope::Scope, verdict::Verdict},
    desired::{state::DesiredAttachment, volume_name::VolumeId},
    known::Known,
    queue::AT_ONCE,
};
use crate::{kube_api::ids::NodeName, state::VecMap};

/// So many nodes are seen in the time in which one is judged: whether each holds an exclusive volume.
const SEEN_FOR_ONE: usize = 32;

/// What is judged of a volume at once.
#[derive(Debug)]
pub struct Turn {
    /// The nodes.
    pub scope: Scope,
    /// Who holds the volume, if it is for one node alone.
    pub exclusive: Option<Exclusive>,
    /// Whether those are not all nodes that are to be judged.
    pub is_cut: bool,
    /// Whether what is on one node may matter to another.
    may_be_shared: bool,
    /// At how many nodes it was looked for that.
    seen: usize,
}

impl Turn {
    /// On which nodes a volume is judged now, given on which it is to be.
    pub fn of(volume: &VolumeId, scope: Scope, is_unreadable: bool, known: Known<'_>) -> Self {
        let Known { objects, desired, actual, .. } = known;
        let (desired_nodes, state) = (desired.nodes(volume), actual.volume(volume));
        let exclusivity = state.map_or(&Exclusivity::Unknown, |state| &state.exclusivity);
        let is_some_nodes = scope != Scope::All && !is_unreadable;
        if *exclusivity == Exclusivity::Shared && is_some_nodes {
            return Self { scope, exclusive: None, may_be_shared: true, is_cut: false, seen: 0 };
        }
        // A volume on one node that no pod needs concerns no other node; one on several may be desired next.
        let may_be_shared = desired_nodes.is_some() || state.is_some_and(|state| state.nodes.len() > 1);
        let is_exclusive = desired_nodes
            .is_some_and(|desired_nodes| desired_nodes.values().any(DesiredAttachment::is_exclusive))
            || (may_be_shared && state.is_some_and(|state| is_exclusive_by_attachments(objects, state)));
        let exclusive = is_exclusive.then(|| Exclusive::of(volume, desired_nodes, actual)).flatten();
        let seen = desired_nodes.map_or(0, VecMap::len) + state.map_or(0, |state| state.nodes.len());
        let leaders = || exclusive.iter().flat_map(Exclusive::leaders).cloned();
        let (scope, is_cut) = match (scope, exclusivity) {
            (Scope::Nodes(mut nodes), Exclusivity::Exclusive(_)) if is_some_nodes && exclusive.is_some() => {
                nodes.extend(leaders());
                (Scope::Nodes(nodes), false)
            }
            _ if seen <= AT_ONCE || is_unreadable => (Scope::All, false),
            _ => {
                let names = reconciler::names(desired_nodes, state, &Scope::All);
                let now = leaders().chain(names.into_iter().take(AT_ONCE).cloned());
                (Scope::Nodes(now.collect()), true)
            }
        };
        // One that only nodes without such pods have concerns no other.
        let may_be_shared = may_be_shared && (exclusive.is_some() || !is_exclusive);
        Self { scope, exclusive, is_cut, may_be_shared, seen }
    }

    /// How many volumes on nodes could have been judged in the time that this turn took.
    pub fn work(&self, verdicts: &BTreeMap<NodeName, Verdict>) -> usize {
        verdicts.len() + self.seen / SEEN_FOR_ONE
    }

    /// Whether what happens to the volume on one node matters to the others after these verdicts, and what events say
    /// of it, now or next, on the nodes that wait. Unknown while an object about it cannot be read.
    pub fn exclusivity(
        &self,
        volume: &VolumeId,
        is_readable: bool,
        verdicts: &BTreeMap<NodeName, Verdict>,
        known: Known<'_>,
    ) -> Exclusivity {
        if !is_readable || !self.may_be_shared {
            return Exclusivity::Unknown;
        }
        if self.exclusive.is_none() {
            return Exclusivity::Shared;
        }
        let Known { desired, actual, .. } = known;
        let (desired_nodes, state) = (desired.nodes(volume), actual.volume(volume));
        // On one node alone no other waits for it. Nearly all volumes are so, and nothing is kept for them.
        let most = desired_nodes.map_or(0, VecMap::len).max(state.map_or(0, |state| state.nodes.len()));
        if most <= 1 && reconciler::names(desired_nodes, state, &Scope::All).len() <= 1 {
            return Exclusivity::Unknown;
        }
        // What was decided now counts.
        match Exclusive::of(volume, desired_nodes, actual) {
            Some(exclusive) => Exclusivity::Exclusive(Box::new(exclusive.told(desired_nodes, verdicts))),
            None => Exclusivity::Unknown,
        }
    }
}

/// The nodes of the volume that have not been judged.
pub fn others(
    volume: &VolumeId,
    judged: &BTreeMap<NodeName, Verdict>,
    Known { desired, actual, .. }: Known<'_>,
) -> BTreeSet<NodeName> {
    let names = reconciler::names(desired.nodes(volume), actual.volume(volume), &Scope::All);
    names.into_iter().filter(|name| !judged.contains_key(*name)).cloned().collect()
}
