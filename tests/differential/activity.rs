//! When something last moved in each script's part of the cluster, as watches tell.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use test_support::attributes_class::VolumeAttributesClass;
use tokio::{task::JoinSet, time::Instant};

/// The seen changes; watching ends when it is dropped.
pub struct Activity {
    last: Arc<Mutex<Seen>>,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// By the prefix of a script.
    at: BTreeMap<String, Instant>,
    /// Every UID, and what had it: the name, and the how-manieth of that name.
    tokens: BTreeMap<String, String>,
    generations: BTreeMap<String, usize>,
}

impl Activity {
    /// Starts watching.
    pub fn watch(client: &Client) -> Self {
        let last = Arc::new(Mutex::new(Seen::default()));
        let mut watches = JoinSet::new();
        watches.spawn(follow::<Node>(client.clone(), last.clone(), ResourceExt::name_any));
        watches.spawn(follow::<Pod>(client.clone(), last.clone(), ResourceExt::name_any));
        watches.spawn(follow::<PersistentVolumeClaim>(client.clone(), last.clone(), ResourceExt::name_any));
        watches.spawn(follow::<PersistentVolume>(client.clone(), last.clone(), |volume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.clone());
            // A provisioned one is named after its claim's UID.
            claim.unwrap_or_else(|| volume.name_any())
        }));
        watches.spawn(follow::<VolumeAttributesClass>(client.clone(), last.clone(), ResourceExt::name_any));
        watches.spawn(follow::<VolumeAttachment>(client.clone(), last.clone(), |attachment| {
            attachment.spec.node_name.clone()
        }));
        Self { last, _watches: watches }
    }

    /// Waits until nothing has moved for so long in the part of the cluster with this prefix.
    pub async fn rest(&self, prefix: &str, pause: Duration) {
        let begin = Instant::now();
        loop {
            let last = self.last.lock().unwrap().at.get(prefix).copied().unwrap_or(begin).max(begin);
            if last.elapsed() >= pause {
                return;
            }
            tokio::time::sleep_until(last + pause).await;
        }
    }

    /// A text with each UID in it replaced by what had it.
    pub fn without_uids(&self, text: &str) -> String {
        let seen = self.last.lock().unwrap();
        let replace = |text: String| {
            seen.tokens.iter().fold(text, |text, (uid, token)| text.replace(uid.as_str(), token))
        };
        // The name of a provisioned volume has another UID in it.
        replace(replace(text.to_owned()))
    }
}

/// The script that something belongs to, by its name.
pub fn prefix_of(name: &str) -> &str {
    name.split_once('-').map_or("", |(seed, _)| &name[..=seed.len()])
}

async fn follow<K>(client: Client, seen: Arc<Mutex<Seen>>, belongs_to: impl Fn(&K) -> String)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let changes =
        watcher(Api::<K>::all(client), watcher::Config::default()).default_backoff().touched_objects();
    let mut changes = std::pin::pin!(changes);
    while let Some(change) = changes.next().await {
        let Ok(object) = change else { continue };
        let mut seen = seen.lock().unwrap();
        seen.at.insert(prefix_of(&belongs_to(&object)).to_owned(), Instant::now());
        let uid = object.uid().unwrap_or_default();
        if !seen.tokens.contains_key(&uid) {
            let name = format!("{}-{}", K::kind(&()).to_lowercase(), object.name_any());
            let generation = seen.generations.entry(name.clone()).or_default();
            *generation += 1;
            let token = format!("<{name}#{generation}>");
            seen.tokens.insert(uid, token);
        }
    }
}
