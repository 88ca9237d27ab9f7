//! Sweep: looks at everything although nothing happened, from time to time and when an alarm begins or ends.
//!
//! In: the time. Out: dirty volumes and nodes, some at a time: when those have been planned, it goes on with the next.
//! What happens meanwhile waits for some, not for all.

use tokio::time::Instant;

use super::{
    controller::Controller, decide::scope::Scope, desired::volume_name::VolumeId, planning::AT_ONCE,
};
use crate::kube_api::ids::{AttachmentName, NodeName, PodKey};

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// What is yet to be gathered, the next last. Each takes a turn of its own: the keys of a large cluster are many.
    stages: Vec<Stage>,
    pods: Vec<PodKey>,
    unconfirmed_nodes: Vec<NodeName>,
    unconfirmed_attachments: Vec<AttachmentName>,
    volumes: Vec<VolumeId>,
    nodes: Vec<NodeName>,
}

/// A part of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pods,
    /// Objects that only answers to our own requests have told of.
    Unconfirmed,
    Volumes,
    Nodes,
}

/// Everything, in reverse.
const ALL: [Stage; 4] = [Stage::Nodes, Stage::Volumes, Stage::Unconfirmed, Stage::Pods];

/// What an alarm may have held up, in reverse.
const HELD_UP: [Stage; 2] = [Stage::Nodes, Stage::Volumes];

impl Survey {
    fn is_over(&self) -> bool {
        self.stages.is_empty() && self.is_marked()
    }

    /// Whether all that was gathered is marked.
    fn is_marked(&self) -> bool {
        let Self { pods, unconfirmed_nodes, unconfirmed_attachments, volumes, nodes, .. } = self;
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
        self.survey.stages = ALL.to_vec();
    }

    /// Begins to look at all volumes and nodes.
    pub(super) fn look_at_everything(&mut self) {
        let stages = &mut self.survey.stages;
        stages.retain(|stage| !HELD_UP.contains(stage));
        stages.splice(0..0, HELD_UP);
    }

    /// Marks some of what is yet to be looked at, unless some of that is left: there was no room for it.
    pub(super) fn look_on(&mut self, now: Instant) {
        if !self.has_more_to_survey() {
            return;
        }
        if self.survey.is_marked() {
            if let Some(stage) = self.survey.stages.pop() {
                self.gather(stage);
            }
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

    /// Gathers the keys of a part, the first last.
    fn gather(&mut self, stage: Stage) {
        let survey = &mut self.survey;
        match stage {
            Stage::Pods => {
                survey.pods = self.objects.pods.keys();
                survey.pods.sort_unstable_by(|one, other| other.cmp(one));
            }
            Stage::Unconfirmed => {
                survey.unconfirmed_nodes = self.objects.nodes.unconfirmed();
                survey.unconfirmed_attachments = self.objects.attachments.unconfirmed();
            }
            Stage::Volumes => {
                let volumes = self.actual.volumes().map(|(volume, _)| volume);
                let unheld = self.desired.volumes().filter(|volume| self.actual.volume(volume).is_none());
                survey.volumes = unheld.chain(volumes).cloned().collect();
            }
            Stage::Nodes => {
                survey.nodes = self.objects.nodes.keys();
                survey.nodes.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
    }

    /// Whether there is more to look at, and what was marked before is planned.
    pub(super) fn has_more_to_survey(&self) -> bool {
        !self.survey.is_over() && self.dirty_volumes.none_begun()
    }
}
