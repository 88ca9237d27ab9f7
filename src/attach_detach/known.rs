//! What is known at one moment, as a view: for those parts of the controller that take note of it, or tell it.

use tokio::time::Instant;

use super::{actual::state::ActualState, clock::Clock, desired::state::DesiredState};
use crate::state::Objects;

/// The tables, both states, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) objects: &'a Objects,
    pub(super) desired: &'a DesiredState,
    pub(super) actual: &'a ActualState,
    pub(super) clock: &'a Clock,
    pub(super) now: Instant,
}
