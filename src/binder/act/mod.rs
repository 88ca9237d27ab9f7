//! A step as a request: its patch, and what may not be touched while it is under way.

pub mod op;
pub(crate) mod patches;
pub mod write;
