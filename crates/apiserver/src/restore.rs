//! What an etcd restore means for what may be done: nothing destructive for a while (E11).
//!
//! In: the proof that the cluster's history was set back, from the tables (an object at an older revision
//! than one we were told of) or from the lease (its revision fell). Out: a [`RestoreGrace`], which every
//! destructive request asks first. A leader notes what is left of it on the lease, as a duration, so a
//! replica that has seen nothing of the restore keeps it, too, at any time of its clock.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// How long nothing is detached, released, deleted or declared lost after a restore: kubelets, drivers
/// and people have to bring the cluster and the world back together first (safety E11).
pub const RESTORE_GRACE: Duration = Duration::from_mins(5);

/// Until when nothing destructive is done, shared by all parts.
#[derive(Clone, Debug, Default)]
pub struct RestoreGrace {
    until: Arc<watch::Sender<Option<Instant>>>,
    /// The same, of restores that this process saw itself.
    witnessed: Arc<watch::Sender<Option<Instant>>>,
    /// How often a restore was seen by this process.
    seen: Arc<watch::Sender<u64>>,
}

impl RestoreGrace {
    /// A restore was seen at `now`. Seen again, the grace begins anew.
    pub fn begin(&self, now: Instant) {
        self.witnessed.send_replace(Some(now + RESTORE_GRACE));
        self.until.send_replace(Some(now + RESTORE_GRACE));
        self.seen.send_modify(|seen| *seen += 1);
    }

    /// Tells when this process sees a restore, from now on.
    pub fn seen(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    /// Another replica had so much left of its grace. Never shortens what stands, nor makes it longer than
    /// [`RESTORE_GRACE`].
    pub fn inherit(&self, now: Instant, left: Duration) {
        let inherited = now + left.min(RESTORE_GRACE);
        self.until.send_if_modified(|until| {
            let longer = !left.is_zero() && until.is_none_or(|until| until < inherited);
            if longer {
                *until = Some(inherited);
            }
            longer
        });
    }

    /// What is left of the grace; `None` when there is none.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        left_of(&self.until, now)
    }

    /// What is left of it after a restore that this process saw itself. Only that is told to others unasked: what
    /// was inherited they know, and hearing it again each would begin anew what ends for the other.
    pub(crate) fn witnessed(&self, now: Instant) -> Option<Duration> {
        left_of(&self.witnessed, now)
    }

    /// Tells of each new end of the grace.
    pub fn changes(&self) -> watch::Receiver<Option<Instant>> {
        self.until.subscribe()
    }
}

fn left_of(until: &watch::Sender<Option<Instant>>, now: Instant) -> Option<Duration> {
    (*until.borrow())?.checked_duration_since(now).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e11_a_grace_lasts_five_minutes_and_is_never_cut_short() {
        let grace = RestoreGrace::default();
        let start = Instant::now();
        assert_eq!(grace.left(start), None);
        grace.inherit(start, Duration::ZERO);
        assert_eq!(grace.left(start), None);
        grace.begin(start);
        assert_eq!(grace.left(start), Some(RESTORE_GRACE));
        grace.inherit(start, Duration::from_secs(1));
        assert_eq!(grace.left(start), Some(RESTORE_GRACE));
        let end = start + RESTORE_GRACE;
        assert_eq!(grace.left(end), None);
        assert_eq!(grace.witnessed(start), Some(RESTORE_GRACE));
        grace.inherit(end, Duration::from_hours(1));
        assert_eq!(grace.left(end), Some(RESTORE_GRACE));
        assert_eq!(grace.witnessed(end), None);
    }
}
