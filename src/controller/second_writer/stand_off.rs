//! Why nothing is taken away, for people.

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Owner;
use crate::kube_api::managed_fields::OwnedField;

/// The evidence, and how long it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandOff {
    /// Kind and name of the object that was changed last.
    pub object: String,
    /// Its field.
    pub field: OwnedField,
    /// Who changed it.
    pub owner: Owner,
    /// When it ends, unless more is seen.
    pub until: Instant,
}

impl StandOff {
    /// Whether it is certain that a controller is at work, not merely another party.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self.owner, Owner::Controller(_))
    }

    /// The facts, as JSON. `until` is the end by the caller's clock.
    #[must_use]
    pub fn json(&self, until: Timestamp) -> Value {
        json!({
            "object": self.object,
            "field": self.field.as_str(),
            "manager": self.owner.manager(),
            "until": seconds(until),
        })
    }

    /// Who wrote which field, without the object, which may be of another namespace (S41).
    #[must_use]
    pub fn act(&self) -> String {
        let manager = self.owner.manager().unwrap_or("an unknown manager");
        format!("{manager} wrote {}", self.field.as_str())
    }
}

/// Who wrote what: `kube-controller-manager wrote status.volumesAttached of node/n1`.
impl fmt::Display for StandOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.act(), self.object)
    }
}

/// A time as users get to see it.
#[must_use]
pub fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
