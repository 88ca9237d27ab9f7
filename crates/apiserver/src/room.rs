//! Room of objects and texts that are gone, given back from time to time.
//!
//! Of themselves the stores wait until as much has come again. To go through all texts of a large cluster takes a tenth of
//! a second, so it is done off the threads that watch and plan; each part of a store is locked for a fraction of that.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, interval_at},
};

use crate::{tables::Objects, text};

/// What is gone for longer than this takes no memory.
const PERIOD: Duration = Duration::from_mins(5);

/// Gives room back, without end.
pub async fn give_back_room(objects: Arc<Objects>) {
    let mut period = interval_at(Instant::now() + PERIOD, PERIOD);
    loop {
        period.tick().await;
        let objects = Arc::clone(&objects);
        let all = spawn_blocking(move || {
            objects.give_back_room();
            text::give_back_room();
        });
        // The runtime ends, and with it this task.
        let Ok(()) = all.await else { return };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{is_kept, share};

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_takes_no_memory_after_five_minutes() {
        let (gone, held) = ("a text of an object that is gone", "a text of one that is there");
        let object = share(held);
        drop(share(gone));
        assert!(is_kept(gone) && is_kept(held));
        let giving_back = tokio::spawn(give_back_room(Arc::default()));
        while is_kept(gone) {
            tokio::time::advance(PERIOD).await;
            tokio::task::yield_now().await;
        }
        assert!(is_kept(held), "{object}");
        giving_back.abort();
    }
}
