//! Survey: all there is to look at, some at a time, from time to time and when an alarm begins or ends.
//!
//! In: which part of it; the tables and both states. Out: keys, some at a time: when those have been planned, it goes on
//! with the next. What happens meanwhile waits for some, not for all.

use std::collections::BTreeSet;

use apiserver::{
    ids::{AttachmentName, NodeName, PodKey},
    tables::Objects,
};

use crate::attach_detach::state::{
    actual::ActualState,
    desired::{DesiredState, volume_name::VolumeId},
};

/// So many volumes on nodes are judged, and so many nodes and objects looked at, before what came in meanwhile is
/// taken. Without optimisation one took 0.16 ms at most where that was measured, so a turn is 50 ms (L15), and with it
/// a tenth of that. A volume on more nodes has several turns.
pub const AT_ONCE: usize = 300;

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// What is yet to be gathered. Each takes a turn of its own: the keys of a large cluster are many.
    stages: BTreeSet<SurveyStage>,
    /// What was gathered, the next last.
    left: Vec<Surveyed>,
}

/// What there is to look at.
#[derive(Clone, Debug)]
pub enum Surveyed {
    Pod(PodKey),
    /// Objects that only answers to our own requests have told of.
    UnconfirmedNode(NodeName),
    UnconfirmedAttachment(AttachmentName),
    Volume(VolumeId),
    Node(NodeName),
}

/// A part of a survey, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SurveyStage {
    Pods,
    Unconfirmed,
    Volumes,
    Nodes,
}

impl Survey {
    /// Begins anew, with everything.
    pub fn begin(&mut self) {
        self.stages.extend([
            SurveyStage::Pods,
            SurveyStage::Unconfirmed,
            SurveyStage::Volumes,
            SurveyStage::Nodes,
        ]);
    }

    /// Looks at all volumes and nodes, which an alarm may have held up, after what it is about to look at.
    pub fn begin_held_up(&mut self) {
        self.stages.extend([SurveyStage::Volumes, SurveyStage::Nodes]);
    }

    /// Whether all was looked at.
    pub fn is_over(&self) -> bool {
        self.stages.is_empty() && self.left.is_empty()
    }

    /// Hands some out. If there are none, gathers the next.
    pub fn next(&mut self, objects: &Objects, desired: &DesiredState, actual: &ActualState) -> Vec<Surveyed> {
        if self.left.is_empty() {
            self.left = self
                .stages
                .pop_first()
                .map(|stage| gather(stage, objects, desired, actual))
                .unwrap_or_default();
            return Vec::new();
        }
        let some = self.left.split_off(self.left.len().saturating_sub(AT_ONCE));
        self.left.shrink_to(2 * self.left.len());
        some
    }
}

/// Gathers a part, the first last.
fn gather(
    stage: SurveyStage,
    objects: &Objects,
    desired: &DesiredState,
    actual: &ActualState,
) -> Vec<Surveyed> {
    match stage {
        SurveyStage::Pods => in_reverse(objects.pods.keys()).map(Surveyed::Pod).collect(),
        SurveyStage::Unconfirmed => {
            let nodes = objects.nodes.unconfirmed().into_iter().map(Surveyed::UnconfirmedNode);
            let attachments = objects.attachments.unconfirmed().into_iter();
            nodes.chain(attachments.map(Surveyed::UnconfirmedAttachment)).collect()
        }
        SurveyStage::Volumes => {
            let volumes = actual.volumes().map(|(volume, _)| volume);
            let unheld = desired.volumes().filter(|volume| actual.volume(volume).is_none());
            unheld.chain(volumes).cloned().map(Surveyed::Volume).collect()
        }
        SurveyStage::Nodes => in_reverse(objects.nodes.keys()).map(Surveyed::Node).collect(),
    }
}

fn in_reverse<K: Ord>(mut keys: Vec<K>) -> impl Iterator<Item = K> {
    keys.sort_unstable();
    keys.into_iter().rev()
}
