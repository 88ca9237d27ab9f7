//! Decide: functions of values, without client, clock or log.
//!
//! * [`reconciler`]: one volume over all its nodes
//! * [`multi_attach`]: which node keeps an exclusive volume from the others (KCM: `IsMultiAttachAllowed`)
//! * [`csi`]: the rules for one CSI volume on one node: create, publish, unpublish, delete
//! * [`detach`]: the last steps of each detach: the proof, and what is done without one
//! * [`verdict`], [`contention`]: what comes of that, as values
//! * [`no_op`]: the rules for volumes without VolumeAttachment: iSCSI, Fibre Channel
//! * [`force`]: detach from a node that does not answer: the six minutes, KCM's `maxWaitForUnmountDuration`
//! * [`node_list`]: `node.status.volumesAttached` as it should be, and the patch

pub(super) mod contention;
pub(super) mod csi;
pub(super) mod detach;
pub(crate) mod force;
pub mod multi_attach;
pub(super) mod no_op;
pub(super) mod node_list;
pub mod reconciler;
#[cfg(test)]
mod tests;
pub mod verdict;
