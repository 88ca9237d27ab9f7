//! Who tells what the page shows.

use apiserver::{ids::NodeName, kinds::ObjectRef};
use futures::future::BoxFuture;

use crate::explain::{doctor::Findings, drain::DrainView, report::Explanation};

/// An answer that takes a while, or why there is none.
pub type PageAnswer<'a, T> = BoxFuture<'a, Result<T, String>>;

/// Who knows what waits: a reader with the rights of the one who looks.
pub trait PageSource: Send + Sync {
    /// The name under which a person types the commands of an answer.
    fn program(&self) -> &'static str {
        "mooring"
    }
    /// Everything that waits.
    fn waiting(&self) -> PageAnswer<'_, Findings>;
    /// One object.
    fn explain<'a>(&'a self, subject: &'a ObjectRef) -> PageAnswer<'a, Explanation>;
    /// What a node holds.
    fn node<'a>(&'a self, name: &'a NodeName) -> PageAnswer<'a, DrainView>;
}
