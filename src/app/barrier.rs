//! The barrier of a take-over: nothing is decided before the tables show all that was written until now.

use std::sync::Arc;

use apiserver::{
    kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{
        Objects,
        watch::{CatchUps, Fetcher, catch_up},
    },
};
use tokio::time::Instant;

use crate::controller::second_writer::MEMORY;

/// Waits, after the lease was won, until the tables show what the last leader wrote: the last of it may not have come
/// through our watches yet. Also which pods there are: a wait for force goes on only where no pod wants the volume (S6).
/// A fence that was lost before is lost from now on (S14): no controller remembers who wrote while it stood by.
pub(super) async fn take_over_barrier(fetcher: Fetcher, objects: Arc<Objects>, catch_ups: CatchUps) {
    let started = Instant::now();
    // On the heap: without optimisation they are too large for the stack of the thread that renews the lease.
    tokio::join!(
        Box::pin(catch_up::<Node>(fetcher.clone(), &objects, &catch_ups)),
        Box::pin(catch_up::<Pod>(fetcher.clone(), &objects, &catch_ups)),
        Box::pin(catch_up::<VolumeAttachment>(fetcher.clone(), &objects, &catch_ups)),
        Box::pin(catch_up::<PersistentVolume>(fetcher.clone(), &objects, &catch_ups)),
        Box::pin(catch_up::<PersistentVolumeClaim>(fetcher, &objects, &catch_ups)),
    );
    objects.unfenced().lead(Instant::now(), MEMORY);
    tracing::info!(took_ms = started.elapsed().as_millis(), "passed the take-over barrier");
}
