//! Survey: all there is to look at, some at a time, from time to time and when an alarm begins or ends.
//!
//! In: which part of it; the tables and both states. Out: keys, some at a time: when those have been planned, it goes on
//! with the next. What happens meanwhile waits for some, not for all.

use crate::{
    attach_detach::{
        actual::state::ActualState,
        desired::{state::DesiredState, volume_name::VolumeId},
    },
    kube_api::ids::{AttachmentName, NodeName, PodKey},
    state::Objects,
};

/// So many volumes on nodes are judged, and so many nodes and objects looked at, before what came in meanwhile is
/// taken. Without optimisation one took 0.16 ms at most where that was measured, so a turn is 50 ms (L15), and with it
/// a tenth of that. A volume on more nodes has several turns.
pub const AT_ONCE: usize = 300;

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// What is yet to be gathered, the next last. Each takes a turn of its own: the keys of a large cluster are many.
    stages: Vec<Stage>,
    others: Surveyed,
    volumes: Vec<VolumeId>,
    nodes: Vec<NodeName>,
}

/// Objects to look at that are no work of their own.
#[derive(Clone, Debug, Default)]
pub struct Surveyed {
    pub pods: Vec<PodKey>,
    /// Objects that only answers to our own requests have told of.
    pub unconfirmed_nodes: Vec<NodeName>,
    pub unconfirmed_attachments: Vec<AttachmentName>,
}

/// A part of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pods,
    Unconfirmed,
    Volumes,
    Nodes,
}

/// Everything, in reverse.
const ALL: [Stage; 4] = [Stage::Nodes, Stage::Volumes, Stage::Unconfirmed, Stage::Pods];

/// What an alarm may have held up, in reverse.
const HELD_UP: [Stage; 2] = [Stage::Nodes, Stage::Volumes];

impl Survey {
    /// Begins anew, with everything.
    pub fn begin(&mut self) {
        self.stages = ALL.to_vec();
    }

    /// Looks at all volumes and nodes, after what it is about to look at.
    pub fn begin_held_up(&mut self) {
        self.stages.retain(|stage| !HELD_UP.contains(stage));
        self.stages.splice(0..0, HELD_UP);
    }

    pub fn is_over(&self) -> bool {
        self.stages.is_empty() && self.is_handed_out()
    }

    /// Whether all that was gathered is handed out.
    fn is_handed_out(&self) -> bool {
        let Self { others, volumes, nodes, .. } = self;
        let Surveyed { pods, unconfirmed_nodes, unconfirmed_attachments } = others;
        pods.is_empty()
            && unconfirmed_nodes.is_empty()
            && unconfirmed_attachments.is_empty()
            && volumes.is_empty()
            && nodes.is_empty()
    }

    /// Hands some out: volumes and nodes to look at, and other objects. If there are none, gathers the next.
    pub fn next(
        &mut self,
        objects: &Objects,
        desired: &DesiredState,
        actual: &ActualState,
    ) -> (Surveyed, Vec<VolumeId>, Vec<NodeName>) {
        if self.is_handed_out() {
            if let Some(stage) = self.stages.pop() {
                self.gather(stage, objects, desired, actual);
            }
            return (Surveyed::default(), Vec::new(), Vec::new());
        }
        let mut left = AT_ONCE;
        let surveyed = Surveyed {
            pods: some(&mut self.others.pods, &mut left),
            unconfirmed_nodes: some(&mut self.others.unconfirmed_nodes, &mut left),
            unconfirmed_attachments: some(&mut self.others.unconfirmed_attachments, &mut left),
        };
        (surveyed, some(&mut self.volumes, &mut left), some(&mut self.nodes, &mut left))
    }

    /// Gathers the keys of a part, the first last.
    fn gather(&mut self, stage: Stage, objects: &Objects, desired: &DesiredState, actual: &ActualState) {
        match stage {
            Stage::Pods => {
                self.others.pods = objects.pods.keys();
                self.others.pods.sort_unstable_by(|one, other| other.cmp(one));
            }
            Stage::Unconfirmed => {
                self.others.unconfirmed_nodes = objects.nodes.unconfirmed();
                self.others.unconfirmed_attachments = objects.attachments.unconfirmed();
            }
            Stage::Volumes => {
                let volumes = actual.volumes().map(|(volume, _)| volume);
                let unheld = desired.volumes().filter(|volume| actual.volume(volume).is_none());
                self.volumes = unheld.chain(volumes).cloned().collect();
            }
            Stage::Nodes => {
                self.nodes = objects.nodes.keys();
                self.nodes.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
    }
}

/// Takes some of a list, which it has in reverse.
fn some<K>(keys: &mut Vec<K>, left: &mut usize) -> Vec<K> {
    let some = keys.split_off(keys.len().saturating_sub(*left));
    *left -= some.len();
    keys.shrink_to(2 * keys.len());
    some
}
