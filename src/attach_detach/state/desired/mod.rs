//! Desired: which volume must be on which node (KCM: desired state of world).
//!
//! * [`populator`]: from a pod and what it leads to, the volumes that it needs
//! * [`volume_source`]: what a volume source is to attach/detach; access modes
//! * [`source_error`]: what is wrong with one
//! * [`in_tree_migration`]: in-tree sources as the CSI volumes that they are today
//! * [`volume_name`]: the unique volume name and the name of the VolumeAttachment
//! * [`attach_required`]: whether the volumes of a driver are to be attached
//! * `state`: the answers of all pods, by volume and node

pub mod attach_required;
pub mod in_tree_migration;
pub mod populator;
pub mod source_error;
mod state;
pub mod volume_name;
pub mod volume_source;

pub use state::{
    AttachSource, DesiredAttachment, DesiredPod, DesiredState, DesiredVolume, PodFacts, Unresolved,
    WhyUnresolved,
};
