//! What happened, with the time: a watch of etcd from the first revision on, and the driver's own log. Neither knows of the
//! subject.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use test_support::history::{Change, History};
use tokio::task::AbortHandle;

/// What is kept of all that etcd stores.
const KEPT: [&str; 8] = [
    "nodes",
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

/// Follows etcd while it is killed, frozen and compacted.
#[derive(Debug)]
pub struct Recorder {
    seen: Arc<Mutex<(u64, Vec<Seen>)>>,
    task: AbortHandle,
}

impl Recorder {
    pub fn start(etcd_url: &str) -> Self {
        let seen = Arc::new(Mutex::new((0, Vec::new())));
        let (into, history) = (Arc::clone(&seen), History::of(etcd_url));
        let task = tokio::spawn(async move {
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
                        let kept = change.filter(|change| KEPT.contains(&change.resource.as_str()));
                        into.1.extend(kept.map(|change| Seen { at: now(), change }));
                    }
                    true
                };
                // It breaks when etcd is killed, and is taken up again from where it was.
                let _ = history.follow(from, take).await;
            }
        });
        Self { seen, task: task.abort_handle() }
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

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
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
