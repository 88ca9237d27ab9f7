//! Contention: what the nodes of a volume were told of one another, as a value that is kept with the volume.

use apiserver::ids::{NodeName, PodKey};

use super::verdict::Waiting;
/// What the nodes of a volume are told of one another. While it is the same, what happens on one of them is judged there,
/// and where the volume is held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contention {
    /// Nodes that hold it, what each waits for, and the pods that need it there.
    pub(in crate::attach_detach) holders: Vec<(NodeName, Option<Waiting>, Vec<PodKey>)>,
    /// Of several that hold it, the one that may list it.
    pub(super) publisher: Option<NodeName>,
    /// Whose turn it is if no node has it.
    pub(super) first: Option<NodeName>,
}
