//! Who has requests of its own under way.

use strum::{IntoStaticStr, VariantNames};

/// A part of the process whose requests are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Requester {
    /// Attach/detach.
    AttachDetach,
    /// The binder.
    Binder,
}
