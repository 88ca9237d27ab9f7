//! Actual: where volumes are attached or may be (KCM: actual state of world).
//!
//! * [`identification`]: which volume a VolumeAttachment is about
//! * [`node`]: what is known of one node: health, volumes in use
//! * [`node_requests`]: our requests to it
//! * [`answer_time`]: when an answer came, and the pause after a failure
//! * [`unpublishing`]: the proof that a volume is unpublished and unused, without which nothing is deleted
//! * `node_volume`: one volume on one node, and `outcomes`: what answers to requests about it mean
//! * `state`: all volumes on all nodes; what VolumeAttachments (`attachments`, `unidentified`) and nodes (`nodes`) say of
//!   them, and what a new leader takes over (`inheritance`)

pub(crate) mod answer_time;
mod attachments;
pub(in crate::attach_detach) mod identification;
mod inheritance;
pub(crate) mod node;
pub(crate) mod node_requests;
mod node_volume;
mod nodes;
mod outcomes;
mod state;
mod unidentified;
pub mod unpublishing;

pub use identification::Candidates;
pub(crate) use node::is_another_boot;
pub use node_volume::{
    AttachmentCall, Deletion, ForceReason, KnownAttachment, Mount, NodeVolume, Operation, ReportAsAttached,
    Told, Uncertain, WhyRead,
};
pub use state::{ActualState, VolumeState};
