//! Scope: on which of its nodes a volume is judged. Pure.
//!
//! In: which node something happened on, and whether that matters to the others ([`super::multi_attach`]). Out: that
//! node, or all of them.

use std::collections::BTreeSet;

use apiserver::ids::NodeName;

/// Nodes of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that need or have it.
    All,
    /// These. Of a volume that may be on one node at a time who holds it is known all the same (S1).
    Nodes(BTreeSet<NodeName>),
}

impl Scope {
    /// One node.
    #[must_use]
    pub fn of(node: &NodeName) -> Self {
        Self::Nodes(BTreeSet::from([node.clone()]))
    }
}
