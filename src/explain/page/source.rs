//! Where what the page shows comes from.

use futures::future::BoxFuture;

use crate::explain::{read::Question, snapshot::Snapshot};

/// What a question needs of the cluster, or why it cannot be had.
pub type ReadCluster = Box<dyn Fn(Question) -> BoxFuture<'static, Result<Snapshot, String>> + Send + Sync>;

/// A cluster, as the one who looks may read it.
pub struct PageSource {
    /// The name under which a person types the commands of an answer.
    pub program: &'static str,
    /// What is read of who may not see all.
    pub namespace: String,
    /// The only namespace whose waits are wanted, if one was named.
    pub of: Option<String>,
    /// Reads anew for each view.
    pub read: ReadCluster,
}
