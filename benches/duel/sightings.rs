//! What is seen done, and when: watches of our own, so that nothing a subject says is taken on trust.
//!
//! A sighting is a claim or volume reaching a state, with the time at which the watch event arrived
//! here. Narrow kinds are used because parsing whole objects would take CPU time from the subject.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apiserver::{
    ids::{AttachmentName, NodeName},
    kinds::{
        ClaimPhase, Narrow, Node, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumePhase,
    },
};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{Instant, timeout},
};

use super::watched::Watched;

/// Without any progress for so long there will be none.
const PATIENCE: Duration = Duration::from_secs(90);

/// What can be seen. Each is seen once in a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// A volume is free to be bound.
    Available(String),
    /// A claim is bound.
    Bound(String),
    /// A node lists a volume as attached.
    Listed(String),
    /// A volume's VolumeAttachment is gone.
    Detached(String),
}

/// The watches; they end when this is dropped.
#[derive(Debug)]
pub struct Sightings {
    seen: UnboundedReceiver<(Sight, Instant)>,
    _watches: JoinSet<()>,
}

impl Sightings {
    /// Starts to watch.
    pub fn start(client: &Client) -> Self {
        let (sender, seen) = unbounded_channel();
        let mut watches = JoinSet::new();
        watches.spawn(watch_volumes(events(client), sender.clone()));
        watches.spawn(watch_claims(events(client), sender.clone()));
        watches.spawn(watch_nodes(events(client), sender.clone()));
        watches.spawn(watch_attachments(events(client), sender));
        Self { seen, _watches: watches }
    }

    /// Waits until all of these have been seen, and returns when each was.
    ///
    /// # Errors
    /// How many were not, when nothing has been seen for long.
    pub async fn all(&mut self, mut expected: BTreeSet<Sight>) -> Result<BTreeMap<Sight, Instant>, String> {
        let total = expected.len();
        let mut times = BTreeMap::new();
        while let Some(example) = expected.first() {
            let Ok(Some((sight, at))) = timeout(PATIENCE, self.seen.recv()).await else {
                return Err(format!(
                    "{} of {total} were not seen within {} s, {example:?} among them",
                    expected.len(),
                    PATIENCE.as_secs()
                ));
            };
            if expected.remove(&sight) {
                times.insert(sight, at);
            }
        }
        Ok(times)
    }
}

pub type Events<T> = BoxStream<'static, (Event<Watched<T>>, Instant)>;
type Sender = UnboundedSender<(Sight, Instant)>;

/// The events of a kind, each with the time of its arrival.
pub fn events<T: Narrow>(client: &Client) -> Events<T> {
    let api: Api<Watched<T>> = Api::all_with(client.clone(), &());
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(async |event| event.ok().map(|event| (event, Instant::now())))
        .boxed()
}

async fn watch_volumes(mut events: Events<PersistentVolume>, seen: Sender) {
    while let Some((event, at)) = events.next().await {
        if let Event::InitApply(Watched { object, .. }) | Event::Apply(Watched { object, .. }) = event
            && object.status.phase == VolumePhase::Available
        {
            let _ = seen.send((Sight::Available(object.metadata.name.to_string()), at));
        }
    }
}

async fn watch_claims(mut events: Events<PersistentVolumeClaim>, seen: Sender) {
    while let Some((event, at)) = events.next().await {
        if let Event::InitApply(Watched { object, .. }) | Event::Apply(Watched { object, .. }) = event
            && object.status.phase == ClaimPhase::Bound
        {
            let _ = seen.send((Sight::Bound(object.metadata.name.to_string()), at));
        }
    }
}

async fn watch_nodes(mut events: Events<Node>, seen: Sender) {
    let mut listed: BTreeMap<NodeName, BTreeSet<String>> = BTreeMap::new();
    while let Some((event, at)) = events.next().await {
        let (Event::InitApply(Watched { object, .. }) | Event::Apply(Watched { object, .. })) = event else {
            continue;
        };
        let node = object.key();
        let now: BTreeSet<String> =
            object.status.volumes_attached.into_iter().map(|entry| entry.name.to_string()).collect();
        let before = listed.insert(node, now.clone()).unwrap_or_default();
        for name in now.difference(&before) {
            // kubernetes.io/csi/<driver>^<handle>, and our handles are the volumes' names.
            if let Some((_, handle)) = name.split_once('^') {
                let _ = seen.send((Sight::Listed(handle.to_owned()), at));
            }
        }
    }
}

async fn watch_attachments(mut events: Events<VolumeAttachment>, seen: Sender) {
    let mut present: BTreeMap<AttachmentName, String> = BTreeMap::new();
    let mut listing = BTreeMap::new();
    while let Some((event, at)) = events.next().await {
        let gone = match event {
            Event::Init => {
                listing.clear();
                continue;
            }
            Event::InitApply(Watched { object, .. }) => {
                listing.insert(object.key(), volume(&object));
                continue;
            }
            Event::InitDone => {
                // What is missing from a new list was deleted while the watch was interrupted.
                let before = std::mem::replace(&mut present, std::mem::take(&mut listing));
                before.into_iter().filter(|(name, _)| !present.contains_key(name)).map(|(_, v)| v).collect()
            }
            Event::Apply(Watched { object, .. }) => {
                present.insert(object.key(), volume(&object));
                continue;
            }
            Event::Delete(Watched { object, .. }) => {
                present.remove(&object.key());
                vec![volume(&object)]
            }
        };
        for name in gone {
            let _ = seen.send((Sight::Detached(name), at));
        }
    }
}

fn volume(attachment: &VolumeAttachment) -> String {
    attachment.spec.source.persistent_volume_name.as_ref().map(ToString::to_string).unwrap_or_default()
}
