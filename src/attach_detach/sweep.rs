//! Sweep: looks at everything although nothing happened, from time to time and when an alarm begins or ends.
//!
//! In: the time. Out: dirty volumes and nodes, some at a time: when those have been planned, it goes on with the next.
//! What happens meanwhile waits for some, not for all.

use tokio::time::Instant;

use super::{
    controller::Controller, decide::scope::Scope, desired::volume_name::VolumeId, planning::AT_ONCE,
};
use crate::kube_api::{
    ids::{AttachmentName, NodeName, PodKey},
    text,
};

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    pods: Vec<PodKey>,
    unconfirmed_nodes: Vec<NodeName>,
    unconfirmed_attachments: Vec<AttachmentName>,
    volumes: Vec<VolumeId>,
    nodes: Vec<NodeName>,
}

impl Survey {
    fn is_over(&self) -> bool {
        let Self { pods, unconfirmed_nodes, unconfirmed_attachments, volumes, nodes } = self;
        pods.is_empty()
            && unconfirmed_nodes.is_empty()
            && unconfirmed_attachments.is_empty()
            && volumes.is_empty()
            && nodes.is_empty()
    }
}

/// Takes some of a list, which it has in reverse.
fn some<K>(keys: &mut Vec<K>, left: &mut usize) -> Vec<K> {
    let some = keys.split_off(keys.len().saturating_sub(*left));
    *left -= some.len();
    keys.shrink_to(2 * keys.len());
    some
}

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
        self.survey.pods = self.objects.pods.snapshot().into_keys().rev().collect();
        self.survey.unconfirmed_nodes = self.objects.nodes.unconfirmed();
        self.survey.unconfirmed_attachments = self.objects.attachments.unconfirmed();
        self.look_at_everything();
    }

    /// Begins to look at all volumes and nodes.
    pub(super) fn look_at_everything(&mut self) {
        let volumes = self.actual.volumes().map(|(volume, _)| volume);
        let unheld = self.desired.volumes().filter(|volume| self.actual.volume(volume).is_none());
        self.survey.volumes = unheld.chain(volumes).cloned().collect();
        self.survey.nodes = self.objects.nodes.snapshot().into_keys().rev().collect();
    }

    /// Marks some of what is yet to be looked at, unless some of that is left: there was no room for it.
    pub(super) fn look_on(&mut self, now: Instant) {
        if !self.has_more_to_survey() {
            return;
        }
        let mut left = AT_ONCE;
        for key in some(&mut self.survey.pods, &mut left) {
            self.refresh_pod(&key, now);
        }
        for name in some(&mut self.survey.unconfirmed_nodes, &mut left) {
            self.read_node_live(&name);
        }
        for name in some(&mut self.survey.unconfirmed_attachments, &mut left) {
            self.read_attachment_live(&name);
        }
        for volume in some(&mut self.survey.volumes, &mut left) {
            self.dirty_volumes.push(volume, Scope::All);
        }
        for name in some(&mut self.survey.nodes, &mut left) {
            self.dirty_nodes.push(name);
        }
    }

    /// Whether there is more to look at, and what was marked before is planned.
    pub(super) fn has_more_to_survey(&self) -> bool {
        !self.survey.is_over() && self.dirty_volumes.none_begun()
    }
}
