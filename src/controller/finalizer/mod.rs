//! A controller that keeps a finalizer on objects, and takes it off one that is being deleted when nothing uses it.
//!
//! What it protects says what uses it ([`Protected`], [`Users`]). Here is the rest, the same for all of them: where the
//! finalizer is missing, or has to go, one patch that names UID and revision ([`step`]). Before it goes, the tables show no
//! use; then, where the tables prove too little, a live list that was asked for after the object was seen to be deleted,
//! shared by all objects that wait for it ([`protection`]). That another controller does the same work beside this one
//! is not noticed, as it does no harm: each removes only what it has proven to be unused.

pub mod calls;
pub mod pages;
pub mod protection;
pub mod reasons;
pub mod step;

use std::{collections::BTreeSet, fmt, hash::Hash};

use apiserver::{
    call::{CallError, Caller},
    kinds::{Narrow as _, ObjectRef},
    tables::{Objects, Stored},
};

use super::{asked::Names, report::ReportKey};
use crate::telemetry::transition::Named;

/// The name of an object that a finalizer protects.
pub trait Protected: Ord + Clone + Hash + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The object.
    type Object: Stored<Key = Self>;
    /// What is known of those who use it.
    type Users: Users<Self>;

    /// The finalizer.
    const FINALIZER: &'static str;
    /// The name of the controller, also as a component.
    const NAME: &'static str;
    /// The names of its work queues.
    const QUEUES: &'static [&'static str];
    /// What is reported on: a value of the label `kind`.
    const KIND: &'static str;
    /// Under what its row is found on the page.
    const FIELD: &'static str;
}

impl<K: Protected> ReportKey for K {
    const KINDS: &'static [&'static str] = &[K::KIND];

    fn names(&self) -> Names {
        vec![(K::FIELD, self.to_string())]
    }

    fn named(&self) -> Named {
        Named::by(K::Object::KIND, self)
    }
}

/// What is known of those who use what is protected.
pub trait Users<K: Protected>: Default + Send + 'static {
    /// A live list that shows all of them. Objects that need the same one share it. Printed, its key in the work queue.
    type List: Clone + Ord + fmt::Debug + fmt::Display + Send + Sync + 'static;
    /// What it shows.
    type Shown: fmt::Debug + Send + Sync + 'static;

    /// Reads the tables whole.
    fn load(&mut self, _objects: &Objects) {}

    /// Takes an object that changed. Returns what it used before, or uses now.
    fn changed(&mut self, _object: &ObjectRef, _objects: &Objects) -> BTreeSet<K> {
        BTreeSet::new()
    }

    /// Who uses it for certain, as the tables show: a sentence.
    fn user(&self, object: &K::Object, objects: &Objects) -> Option<&'static str>;

    /// The list that has to show that nothing uses it; `None` where the tables prove it.
    fn list_of(&self, _key: &K) -> Option<Self::List> {
        None
    }

    /// Lists at the most recent revision.
    fn send(
        list: &Self::List,
        caller: &Caller,
    ) -> impl Future<Output = Result<Self::Shown, CallError>> + Send;

    /// Who uses the object, as the list shows: a sentence.
    fn shown_user(shown: &Self::Shown, object: &K::Object) -> Option<&'static str>;
}
