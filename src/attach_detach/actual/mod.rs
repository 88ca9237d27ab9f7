//! Actual: where volumes are attached or may be (KCM: actual state of world).
//!
//! * [`identification`]: which volume a VolumeAttachment is about
//! * [`node`]: what is known of one node: health, volumes in use
//! * [`node_requests`]: our requests to it
//! * [`answered`]: when an answer came, and the pause after a failure
//! * [`unpublishing`]: the proof that a volume is unpublished and unused, without which nothing is deleted
//! * [`state`]: all volumes on all nodes

pub mod answered;
pub(super) mod identification;
pub mod node;
pub mod node_requests;
pub mod state;
pub mod unpublishing;
