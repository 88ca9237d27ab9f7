//! What is answered to each according to what they may see.
//!
//! In: a request of a known user, and who it is. Out: what a [`Personal`] part makes of it, which asks for each object that it
//! shows whether this one may `get` it. The gate has asked who it is, and nothing else: such a path is not granted as a whole.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::request::Parts;

use super::{
    answer::Reply,
    auth::{DelegatedAuth, Denial},
    connections::Peer,
    resource::Resource,
    user::User,
};

/// Answers requests below a path, each to one who is known.
pub trait Personal: Send + Sync {
    /// Answers a request.
    fn answer(&self, visit: Visit) -> BoxFuture<'static, Reply>;
}

/// A known user, with a request.
#[derive(Clone)]
pub struct Visit {
    /// The request's head.
    pub head: Arc<Parts>,
    /// What this one may see.
    pub rights: Rights,
}

/// Asks what a user may see. A clone asks for the same one.
#[derive(Clone)]
pub struct Rights {
    auth: Arc<DelegatedAuth>,
    from: Peer,
    user: Arc<User>,
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rights").field(&self.user.username).finish()
    }
}

impl Rights {
    pub(super) fn new(auth: Arc<DelegatedAuth>, from: Peer, user: Arc<User>) -> Self {
        Self { auth, from, user }
    }

    /// The user's name.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// Whether this one may get what it asks for. Refusals count against its address.
    ///
    /// # Errors
    /// See [`Denial`].
    pub async fn may_ask_for(&self, resource: &Resource) -> Result<bool, Denial> {
        self.auth.may_get(Some(self.from), &self.user, resource).await
    }

    /// Whether this one may get what an answer would show beside what was asked for. A refusal is no offence.
    ///
    /// # Errors
    /// See [`Denial`].
    pub async fn may_see(&self, resource: &Resource) -> Result<bool, Denial> {
        self.auth.may_get(None, &self.user, resource).await
    }
}
