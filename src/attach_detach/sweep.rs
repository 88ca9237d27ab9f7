//! Sweep: looks at everything although nothing happened, from time to time and when an alarm begins or ends.
//!
//! In: the time. Out: dirty volumes and nodes.

use tokio::time::Instant;

use super::controller::Controller;
use crate::kube_api::text;

impl Controller {
    /// Looks at everything once in a while. Nothing depends on it: it is there for the change that some
    /// mistake of ours overlooked, and while there is none it sends nothing (S39).
    pub(super) fn sweep(&mut self, now: Instant) {
        let Some(period) = self.options.sweep_period else { return };
        let due = *self.sweep_at.get_or_insert(now + period);
        if now < due {
            return;
        }
        self.sweep_at = Some(now + period);
        self.objects.give_back_room();
        text::give_back_room();
        for key in self.objects.pods.snapshot().into_keys() {
            self.refresh_pod(&key, now);
        }
        for name in self.objects.nodes.unconfirmed() {
            self.doubt_node(&name);
        }
        for name in self.objects.attachments.unconfirmed() {
            self.doubt_attachment(&name);
        }
        self.look_at_everything();
    }

    pub(super) fn look_at_everything(&mut self) {
        self.dirty_volumes.extend(self.actual.volumes().map(|(volume, _)| volume.clone()));
        self.dirty_volumes.extend(self.desired.volumes().cloned());
        self.dirty_nodes.extend(self.objects.nodes.snapshot().into_keys());
    }
}
