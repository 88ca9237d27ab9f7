//! What was found of a volume's nodes when they were last looked at, as a value that is kept with the volume.

use super::verdict::Waiting;
use crate::kube_api::ids::{NodeName, PodKey};

/// What was found when all nodes of a volume were last looked at; it is not known when something may have changed that.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Exclusivity {
    /// All nodes are to be judged.
    #[default]
    Unknown,
    /// All who need or have it say that it may be on several nodes.
    Shared,
    /// It may be on one node at a time, and these are in the way of the others.
    Exclusive(Box<Leaders>),
}

/// What events of the nodes that wait for an exclusive volume say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaders {
    /// Nodes that hold it, what each waits for, and the pods that need it there.
    pub(super) holders: Vec<(NodeName, Option<Waiting>, Vec<PodKey>)>,
    /// Of several that hold it, the one that may list it.
    pub(super) publisher: Option<NodeName>,
    /// Whose turn it is if no node has it.
    pub(super) first: Option<NodeName>,
}
