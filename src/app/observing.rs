//! The daemon without hands: in place of its writes, what it would have written.
//!
//! In: the parts of a daemon. Out: what its watches tell, in [`Told`], and the writes of its controllers, as [`Wish`]es. It takes no
//! lease and records no events. Its controllers decide as those of a leader do, for they are the same.

use std::sync::Arc;

use apiserver::{
    call::{Caller, Wish, Wishes},
    connect::ConnectError,
    ids::ResourceVersion,
    kinds::{Narrow as _, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{
        Objects, Told,
        watch::{CatchUps, Fetcher},
    },
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::barrier::take_over_barrier;
use crate::metrics::Metrics;

/// What is seen of a daemon.
pub struct Observation {
    /// What is known of the cluster now.
    pub objects: Arc<Objects>,
    /// What the watches tell.
    pub told: UnboundedReceiver<Told>,
    /// What the controllers would write.
    pub wishes: UnboundedReceiver<Wish>,
    /// Sends requests that the controllers' writes are not.
    pub caller: Caller,
    /// Where to register what is counted.
    pub metrics: Metrics,
    fetcher: Fetcher,
    catch_ups: CatchUps,
}

/// What the controllers of a daemon write with; of one that only observes, with what is seen of it.
pub(super) fn hands(
    observes: bool,
    (objects, metrics): (&Arc<Objects>, &Metrics),
    caller: Caller,
    fetchers: impl Fn() -> Result<Fetcher, ConnectError>,
    catch_ups: &CatchUps,
) -> Result<(Caller, Option<Observation>), ConnectError> {
    if !observes {
        return Ok((caller, None));
    }
    let (hands, wishes) = Wishes::new();
    let observation = Observation {
        objects: Arc::clone(objects),
        told: objects.tell(),
        wishes,
        caller: caller.clone(),
        metrics: metrics.clone(),
        fetcher: fetchers()?,
        catch_ups: catch_ups.clone(),
    };
    Ok((caller.observing(hands), Some(observation)))
}

impl Observation {
    /// The revision up to which the watches have told everything of the kinds that the two controllers write, and the kind
    /// that is the furthest behind.
    pub fn passed(&self) -> (ResourceVersion, &'static str) {
        let Objects { nodes, pods, volumes, claims, attachments, .. } = &*self.objects;
        let passed = [
            (nodes.observed(), Node::PLURAL),
            (pods.observed(), Pod::PLURAL),
            (volumes.observed(), PersistentVolume::PLURAL),
            (claims.observed(), PersistentVolumeClaim::PLURAL),
            (attachments.observed(), VolumeAttachment::PLURAL),
        ];
        passed.into_iter().min().unwrap_or_default()
    }

    /// Has the watches come up to now, where nothing happens that would show how far they are.
    pub fn catch_up(&self) -> impl Future<Output = ()> + Send + use<> {
        take_over_barrier(self.fetcher.clone(), Arc::clone(&self.objects), self.catch_ups.clone())
    }
}
