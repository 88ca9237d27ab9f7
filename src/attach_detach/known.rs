//! What is known at one moment, as a view: for those parts of the controller that take note of it, or tell it.

use tokio::time::Instant;

use super::{actual::state::ActualState, clock::Clock, desired::state::DesiredState};
use crate::state::Objects;

/// The tables, both states, and the time.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub objects: &'a Objects,
    pub desired: &'a DesiredState,
    pub actual: &'a ActualState,
    pub clock: &'a Clock,
    pub now: Instant,
}
