//! A new leader's tables are brought up to now, before it decides anything.
//!
//! In: that the lease was won. Out: that everything an earlier leader wrote, and that landed, is in the tables: a
//! volume must not be attached elsewhere, nor reserved for a claim that another volume is reserved for already
//! (S19), for want of knowing of it. Where iSCSI and Fibre Channel volumes are, the nodes alone tell (S1).
//!
//! A page of one object, asked for at a quorum, tells the revision of now. It does not matter how large the kind is.
//! Then the kind's own reflector is asked to come up to that revision, so that one alone feeds the table as ever: an
//! event or bookmark at that revision or beyond proves that nothing before it is missing. Of a kind where much
//! happens one comes at once. A watch of a kind where nothing happens may be behind for a minute, so it is closed, and
//!
//! - a kind of one page is listed;
//! - of any other a watch is opened that ends in three seconds, for the API server sends a bookmark two seconds
//!   before the end. Only if that proves nothing is the kind listed whole.
//!
//! kube-apiserver: storage/cacher/cache_watcher.go, nextBookmarkTime. What the page of one object was answered from
//! (the server's cache, after it has asked etcd how far it has to be, or etcd itself) makes no difference here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Fetcher, Pace, Trouble};
use crate::{
    ids::ResourceVersion,
    progress::Progress,
    tables::{Objects, Stored},
};

/// How long an answer may take that a new leader waits for, before another connection is tried: one API server of
/// three may hang.
pub(super) const AWAITED_ANSWER: Duration = Duration::from_secs(5);

/// So long the watch that is open may take to bring what is wanted: of 5 000 nodes one tells of itself every 60 ms.
pub(super) const SOON: Duration = Duration::from_millis(250);

/// A watch that is opened to catch up lives so long: its bookmark comes after a second.
pub(super) const HURRIED_LIFETIME: Duration = Duration::from_secs(3);

/// Between who wants a table to be brought up to a revision and its reflector.
#[derive(Clone, Debug)]
pub struct CatchUp {
    wanted: Arc<watch::Sender<ResourceVersion>>,
    reached: Arc<watch::Sender<ResourceVersion>>,
    progress: Progress,
}

impl CatchUp {
    /// Nothing is wanted yet. Steps are noted as `progress`.
    pub fn new(progress: Progress) -> Self {
        Self { wanted: Arc::default(), reached: Arc::default(), progress }
    }

    /// Whether more is wanted than that revision.
    pub(super) fn is_behind(&self, reached: ResourceVersion) -> bool {
        *self.wanted.borrow() > reached
    }

    /// Waits until more is wanted than that revision. Cancel safe.
    pub(super) async fn behind(&self, reached: ResourceVersion) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.wanted.subscribe().wait_for(|wanted| *wanted > reached).await;
    }

    /// Everything up to this revision is in the table.
    pub(super) fn reached(&self, revision: ResourceVersion) {
        self.step();
        self.reached.send_if_modified(|reached| std::mem::replace(reached, revision) != revision);
    }

    /// Something came that was asked for.
    pub(super) fn step(&self) {
        if *self.wanted.borrow() > *self.reached.borrow() {
            self.progress.note();
        }
    }

    /// Wants the table to be brought up to a revision, and waits until it is. Cancel safe.
    async fn reach(&self, revision: ResourceVersion) {
        self.wanted.send_if_modified(|wanted| {
            let is_more = *wanted < revision;
            *wanted = revision.max(*wanted);
            is_more
        });
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.reached.subscribe().wait_for(|reached| *reached >= revision).await;
    }
}

/// One [`CatchUp`] per kind.
#[derive(Clone, Debug, Default)]
pub struct CatchUps {
    progress: Progress,
    kinds: Arc<Mutex<BTreeMap<&'static str, CatchUp>>>,
}

impl CatchUps {
    /// That of the kind.
    pub fn of<T: Stored>(&self) -> CatchUp {
        let mut kinds = self.kinds.lock();
        kinds.entry(T::PLURAL).or_insert_with(|| CatchUp::new(self.progress.clone())).clone()
    }

    /// When any of them last came further.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

/// Brings a kind's table up to now. Repeats what fails until it is dropped; waits for ever when etcd proves to have
/// been restored, as the reflector does.
pub async fn catch_up<T: Stored>(mut fetcher: Fetcher, objects: &Objects, catch_ups: &CatchUps) {
    let started = Instant::now();
    let catch_up = catch_ups.of::<T>();
    let mut pace = Pace::default();
    let mut last_reason = None;
    let now = loop {
        let asked = Instant::now();
        let observed = T::table(objects).observed();
        match fetcher.revision_of_now::<T>(observed, AWAITED_ANSWER).await {
            Ok(revision) => break revision,
            Err(Trouble::Restored(proof)) => {
                tracing::error!(kind = T::PLURAL, %proof, "etcd was restored from a backup: not leading");
                objects.restore_grace().begin(Instant::now());
                return std::future::pending().await;
            }
            Err(trouble) => {
                if matches!(trouble, Trouble::Late(_) | Trouble::Broken(_)) {
                    fetcher.reconnect();
                }
                let reason = trouble.to_string();
                if last_reason.as_ref() != Some(&reason) {
                    tracing::warn!(kind = T::PLURAL, error = %reason, "cannot be asked for its revision, not leading yet");
                }
                last_reason = Some(reason);
                sleep(pace.failed(asked.elapsed(), trouble.retry_after(), fastrand::f64())).await;
            }
        }
    };
    catch_up.progress.note();
    catch_up.reach(now).await;
    let took_ms = started.elapsed().as_millis();
    tracing::info!(kind = T::PLURAL, revision = %now, took_ms, "caught up with what the last leader wrote");
}
