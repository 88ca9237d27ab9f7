//! Whose name a field bears, as far as it matters who that is.

/// Managers under whose name the loops of kube-controller-manager write: its own, and those of programs of which it
/// is a part.
const CONTROLLERS: [&str; 4] = ["kube-controller-manager", "hyperkube", "k3s", "kubelite"];

/// The manager that the server makes of our user agent.
const OUR_NAME: &str = "mooring";

/// So many objects that a controller wrote to prove that it is at work.
const SEVERAL: usize = 2;

/// The same of one of our own name: a write of ours whose answer was lost may look like another's.
const SEVERAL_OF_OUR_NAME: usize = 3;

/// Who changed a field last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A controller that does our work. Only for a field that nothing else in it writes: under the same name
    /// kube-controller-manager writes finalizers, sizes and conditions also with those loops off.
    Controller(String),
    /// One of our name: another process of ours, or, shortly after a take-over, the one that led before.
    OurName,
    /// Another manager.
    Other(String),
    /// The field has no owner, or it could not be read.
    Unknown,
}

impl Owner {
    /// The one of these managers that matters most.
    pub fn of(managers: &[String]) -> Self {
        let controller = managers.iter().find(|manager| CONTROLLERS.contains(&manager.as_str()));
        match (controller, managers.first()) {
            (Some(controller), _) => Self::Controller(controller.clone()),
            (None, _) if managers.iter().any(|manager| manager == OUR_NAME) => Self::OurName,
            (None, Some(other)) => Self::Other(other.clone()),
            (None, None) => Self::Unknown,
        }
    }

    /// How many objects that one of this name wrote to prove that a controller of our role is at work, if any do.
    pub(crate) fn objects_that_prove(&self) -> Option<usize> {
        match self {
            Self::Controller(_) => Some(SEVERAL),
            Self::OurName => Some(SEVERAL_OF_OUR_NAME),
            Self::Other(_) | Self::Unknown => None,
        }
    }

    /// The manager, if it is known.
    pub fn manager(&self) -> Option<&str> {
        match self {
            Self::Controller(name) | Self::Other(name) => Some(name),
            Self::OurName => Some(OUR_NAME),
            Self::Unknown => None,
        }
    }
}
