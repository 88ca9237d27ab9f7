//! What is known at one moment, as a view.

use apiserver::tables::Objects;
use tokio::time::Instant;

use super::state::{actual::ActualState, desired::DesiredState};
/// What is known at one moment, as a view: for those parts of the controller that take note of it, or tell it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The tables.
    pub objects: &'a Objects,
    /// Desired state.
    pub desired: &'a DesiredState,
    /// Actual state.
    pub actual: &'a ActualState,
    /// That moment.
    pub now: Instant,
}
