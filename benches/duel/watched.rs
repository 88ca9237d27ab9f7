//! A narrow kind as kube's watcher wants it: the benchmark watches with that, and not with what it measures.

use std::borrow::Cow;

use apiserver::kinds::Narrow;
use kube::{api::ObjectMeta, core::DynamicResourceScope};

use serde::{Deserialize, Deserializer};

/// An object with an `ObjectMeta`, of which only the revision is filled, because that is all the watcher reads.
#[derive(Clone, Debug)]
pub struct Watched<T> {
    /// The object.
    pub object: T,
    head: ObjectMeta,
}

impl<'de, T: Narrow> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = T::deserialize(deserializer)?;
        let revision = object.metadata().resource_version.to_string();
        Ok(Self { object, head: ObjectMeta { resource_version: Some(revision), ..ObjectMeta::default() } })
    }
}

impl<T: Narrow> kube::Resource for Watched<T> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.into()
    }
    fn group((): &()) -> Cow<'_, str> {
        T::GROUP.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.head
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.head
    }
}
