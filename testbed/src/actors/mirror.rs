//! A local copy of all objects of a kind, fed by a watch.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

/// Namespace (empty for cluster-scoped kinds) and name.
pub type Key = (String, String);

/// An object as it was before an event and as it is now.
pub type Touched<K> = (Option<Arc<K>>, Option<Arc<K>>);

/// Key of an object.
pub fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The copy.
#[derive(Debug)]
pub struct Mirror<K> {
    objects: BTreeMap<Key, Arc<K>>,
    listing: Option<BTreeMap<Key, Arc<K>>>,
}

impl<K> Default for Mirror<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), listing: None }
    }
}

impl<K: Resource> Mirror<K> {
    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    /// Applies an event and returns what it touched.
    pub fn apply(&mut self, event: Event<K>) -> Vec<Touched<K>> {
        match event {
            Event::Init => {
                self.listing = Some(BTreeMap::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(key(&object), Arc::new(object));
                }
                Vec::new()
            }
            Event::InitDone => {
                let mut before =
                    std::mem::replace(&mut self.objects, self.listing.take().unwrap_or_default());
                let mut touched = Vec::new();
                for (key, now) in &self.objects {
                    touched.push((before.remove(key), Some(Arc::clone(now))));
                }
                touched.extend(before.into_values().map(|gone| (Some(gone), None)));
                touched
            }
            Event::Apply(object) => {
                let now = Arc::new(object);
                let before = self.objects.insert(key(&*now), Arc::clone(&now));
                vec![(before, Some(now))]
            }
            Event::Delete(object) => {
                let before = self.objects.remove(&key(&object));
                vec![(before.or_else(|| Some(Arc::new(object))), None)]
            }
        }
    }
}

/// The events of a kind, for ever; after an error the watch starts anew.
pub fn events<K>(client: &Client) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    watcher(api, watcher::Config::default()).default_backoff().filter_map(|event| async { event.ok() })
}
