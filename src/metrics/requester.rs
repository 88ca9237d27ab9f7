//! Who has requests of its own under way.

/// A part of the process whose requests are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Attach/detach.
    AttachDetach,
    /// The binder.
    Binder,
}

impl Requester {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::AttachDetach, Self::Binder];

    /// Value of the label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::AttachDetach => "attach-detach",
            Self::Binder => "binder",
        }
    }
}
