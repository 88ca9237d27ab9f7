//! Values of flags, written as Go writes them.

pub use crate::durations::parse_duration;
pub(crate) use crate::fence::arguments::parse_bool;
