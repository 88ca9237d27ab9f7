//! What happened, with the time: a watch of etcd from the first revision on, and the driver's own log. Neither knows of the
//! subject.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use serde_json::Value;
use test_support::history::{Change, History};
use tokio_util::task::AbortOnDropHandle;

/// What is kept of all that etcd stores.
const KEPT: [&str; 9] = [
    "nodes",
    "events",
    "pods",
    "persistentvolumes",
    "persistentvolumeclaims",
    "volumeattachments",
    "volumeattributesclasses",
    "storageclasses",
    "csidrivers",
];

/// Milliseconds since 1970 by this machine's clock, which no fault touches.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).expect("a time of this age")
}

/// A change, and when it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: i64,
    pub change: Change,
}

/// What was seen, and up to which revision.
type Record = Arc<Mutex<(u64, Vec<Seen>)>>;

/// Follows etcd while it is killed, frozen, compacted and restored.
#[derive(Debug)]
pub struct Recorder {
    seen: Record,
    /// Revisions at which etcd's data were put back: what then differs from before is of no writer.
    restored: Vec<u64>,
    following: Option<AbortOnDropHandle<()>>,
}

async fn follow(history: History, into: Record) {
    let mut pause = tokio::time::interval(Duration::from_millis(100));
    loop {
        pause.tick().await;
        let from = into.lock().unwrap().0;
        let take = |events: Vec<(u64, Option<Change>)>| {
            let mut into = into.lock().unwrap();
            for (revision, change) in events {
                // One that was sent twice over a broken watch is known.
                if revision < into.0 {
                    continue;
                }
                into.0 = revision;
                let kept = change.filter(is_kept);
                into.1.extend(kept.map(|change| Seen { at: now(), change }));
            }
            true
        };
        // It breaks when etcd is killed, and is taken up again from where it was.
        let _ = history.follow(from, take).await;
    }
}

fn is_kept(change: &Change) -> bool {
    KEPT.contains(&change.resource.as_str())
}

impl Recorder {
    pub fn start(etcd_url: &str) -> Self {
        let mut recorder = Self { seen: Record::default(), restored: Vec::new(), following: None };
        recorder.follow(etcd_url);
        recorder
    }

    fn follow(&mut self, etcd_url: &str) {
        let following = tokio::spawn(follow(History::of(etcd_url), Arc::clone(&self.seen)));
        self.following = Some(AbortOnDropHandle::new(following));
    }

    /// Waits until all that was written is here.
    pub async fn catch_up(&self, etcd_url: &str) {
        let last = History::of(etcd_url).revision().await;
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        while self.revision() < last {
            ticks.tick().await;
        }
    }

    /// Takes all that was written, and no more: etcd's data are about to be put back.
    pub async fn pause(&mut self, etcd_url: &str) {
        self.catch_up(etcd_url).await;
        if let Some(following) = self.following.take() {
            following.abort();
            let _ = following.await;
        }
    }

    /// Goes on with what there is at a revision, where a restore has begun anew.
    pub async fn go_on(&mut self, etcd_url: &str, revision: u64) {
        let restored = History::of(etcd_url).objects_at(revision).await;
        {
            let mut seen = self.seen.lock().unwrap();
            let mut former: BTreeMap<(String, String), Value> = BTreeMap::new();
            for Seen { change, .. } in &seen.1 {
                let key = (change.resource.clone(), change.name.clone());
                match &change.after {
                    Some(after) => former.insert(key, after.clone()),
                    None => former.remove(&key),
                };
            }
            let mut changes = Vec::new();
            for change in restored.into_iter().filter(is_kept) {
                let before = former.remove(&(change.resource.clone(), change.name.clone()));
                if before != change.after {
                    changes.push(Change { revision, before, ..change });
                }
            }
            // What was made since is gone.
            changes.extend(former.into_iter().map(|((resource, name), before)| Change {
                revision,
                resource,
                name,
                before: Some(before),
                after: None,
            }));
            seen.0 = revision;
            seen.1.extend(changes.into_iter().map(|change| Seen { at: now(), change }));
        }
        self.restored.push(revision);
        self.follow(etcd_url);
    }

    /// The revisions of restores.
    pub fn restored(&self) -> &[u64] {
        &self.restored
    }

    /// The revision up to which all is here.
    pub fn revision(&self) -> u64 {
        self.seen.lock().unwrap().0
    }

    /// All so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().1.clone()
    }
}

/// What the storage system was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Op {
    CreateVolume,
    DeleteVolume,
    Publish,
    Unpublish,
    Stage,
    Unstage,
    Mount,
    Unmount,
    Expand,
    /// The power of a machine is cut: nothing is mounted there any more.
    Off,
    Boot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Begin,
    End,
}

/// A line of the driver's log.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// Milliseconds since 1970.
    #[serde(rename = "wall")]
    pub at: i64,
    pub op: Op,
    pub phase: Phase,
    #[serde(default)]
    pub disk: String,
    #[serde(default)]
    pub node: String,
    #[serde(default)]
    pub exclusive: bool,
    /// Whether it was done, whatever was answered.
    #[serde(default)]
    pub done: bool,
}

/// Reads the driver's log.
pub fn driver_log(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).expect("read the driver's log");
    // The last line may still be being written.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
