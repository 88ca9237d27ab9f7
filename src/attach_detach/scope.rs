//! Scope: on which of its nodes a volume is looked at. Pure.
//!
//! In: which node something happened on, and whether the volume is shared. Out: that node, or all of them. What
//! happens on one node matters to the others only where one of them may have the volume at a time.

use std::collections::BTreeSet;

use crate::kube_api::ids::NodeName;

/// Nodes of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that want or have it.
    All,
    /// These. Only of a volume that is shared: otherwise the holder may be on another (S1).
    Nodes(BTreeSet<NodeName>),
}

impl Scope {
    /// One node of a volume that is shared.
    #[must_use]
    pub fn of(node: &NodeName) -> Self {
        Self::Nodes(BTreeSet::from([node.clone()]))
    }
}
