//! Objects that the last list lacked, known from answers to our own requests alone.
//!
//! In: objects as they change. Out: those to be read live before anything is decided about them. Such an object
//! may have gone between our answer and the list, and then no event tells of it any more: a volume would
//! stay Bound to a claim that is gone. One that is there after all is told of by the watch, which is about
//! to pass our answer.

use std::{collections::BTreeSet, mem};

use super::act::write::Object;
use crate::{kube_api::kinds::ObjectRef, state::Objects};

/// Objects to ask for.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed(BTreeSet<Object>);

impl Unconfirmed {
    /// An object to ask for.
    pub(crate) fn insert(&mut self, object: Object) {
        self.0.insert(object);
    }

    /// Notes an object that has changed, if it is such a one.
    pub(crate) fn note(&mut self, object: &ObjectRef, objects: &Objects) {
        self.0.extend(match object {
            ObjectRef::Claim(key) if objects.claims.is_missing(key) => Some(Object::Claim(key.clone())),
            ObjectRef::Volume(name) if objects.volumes.is_missing(name) => Some(Object::Volume(name.clone())),
            ObjectRef::Pod(key) if objects.pods.is_missing(key) => Some(Object::Pod(key.clone())),
            _ => None,
        });
    }

    /// Asks once more for all of which no event has told since.
    pub(crate) fn note_all(&mut self, objects: &Objects) {
        let claims = objects.claims.unconfirmed().into_iter().map(Object::Claim);
        let volumes = objects.volumes.unconfirmed().into_iter().map(Object::Volume);
        let pods = objects.pods.unconfirmed().into_iter().map(Object::Pod);
        self.0.extend(claims.chain(volumes).chain(pods));
    }

    /// Takes those to ask for.
    pub(crate) fn take(&mut self) -> BTreeSet<Object> {
        mem::take(&mut self.0)
    }
}
