//! Who tells what the page shows.

use apiserver::ids::NodeName;
use futures::future::BoxFuture;

use crate::explain::{doctor::Findings, drain::DrainView, report::Explanation, subject::Subject};

/// An answer that takes a while, or why there is none.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, String>>;

/// Who knows what waits: a reader with the rights of the one who looks.
pub trait Source: Send + Sync {
    /// The name under which a person types the commands of an answer.
    fn program(&self) -> &'static str {
        "mooring"
    }
    /// Everything that waits.
    fn waiting(&self) -> Answer<'_, Findings>;
    /// One object.
    fn explain<'a>(&'a self, subject: &'a Subject) -> Answer<'a, Explanation>;
    /// What a node holds.
    fn node<'a>(&'a self, name: &'a NodeName) -> Answer<'a, DrainView>;
}
