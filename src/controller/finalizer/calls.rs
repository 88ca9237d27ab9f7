//! The requests of a controller of finalizers as values, how each is sent, and what can come back.

use apiserver::{
    call::{CallError, Caller, Request},
    ids::Uid,
};

use super::{Protected, Users, step::FinalizerStep};
use crate::controller::requests::Sent;

/// The list that shows who uses what is protected.
pub type ListOf<K> = <<K as Protected>::Users as Users<K>>::List;

/// A request.
#[derive(Clone, Debug)]
pub enum Call<K: Protected> {
    /// Patch the object.
    Patch(K, FinalizerStep, Request),
    /// List those who use the objects of these UIDs.
    Users(ListOf<K>, Vec<(K, Uid)>),
}

/// What came back.
#[derive(Debug)]
pub enum Answer<K: Protected> {
    /// The object.
    Object(K::Object),
    /// What the list shows.
    Users(<K::Users as Users<K>>::Shown),
}

impl<K: Protected> Sent for Call<K> {
    type Answer = Answer<K>;

    async fn send(&self, caller: &Caller) -> Result<Answer<K>, CallError> {
        match self {
            Self::Patch(_, _, request) => caller.write(request).await.map(Answer::Object),
            Self::Users(list, _) => K::Users::send(list, caller).await.map(Answer::Users),
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Patch(key, ..) => key.to_string(),
            Self::Users(list, _) => list.to_string(),
        }
    }

    fn failed(&self) -> String {
        match self {
            Self::Patch(..) => "finalizer could not be changed, retrying".to_owned(),
            Self::Users(_, of) => {
                format!("what uses {} objects could not be listed, their finalizers are kept", of.len())
            }
        }
    }
}
