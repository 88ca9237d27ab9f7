//! What operators get to know of a plan, as values: planning counts, logs and shows nothing itself.
//!
//! In: facts, as they are planned or learnt. Out: [`PlanFacts`], which the [reporter](super::reporter) turns into
//! metrics, log lines and traces when the plan is carried out. Where each key stands is a [report](crate::controller::report).

use std::{collections::BTreeMap, mem};

use apiserver::{
    call::CallError,
    ids::{NodeName, PodKey},
};

use super::{
    metrics::{Counted, Planned},
    phases::Progress,
};
use crate::attach_detach::{
    actual::state::{ForceReason, Operation},
    decide::scope::Scope,
    desired::{state::Unresolved, volume_name::VolumeId},
    guard::force_waits::Said,
};

/// How far a forced detach is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::attach_detach) enum Forced {
    /// From a node with the taint, not because the volume is in use.
    Tainted,
    /// It begins.
    Begins,
    /// It is done.
    Done,
}

/// A log line that nothing else goes with.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) enum Line {
    /// The tables were read.
    Loaded { attachments: usize, pods: usize },
    /// A request about a volume on a node failed.
    Failed { volume: VolumeId, node: NodeName, attempt: u32, error: CallError, what: &'static str },
    /// A request about a node failed.
    NodeFailed { node: NodeName, attempt: u32, error: CallError },
    /// The name of a VolumeAttachment is taken.
    NameTaken { volume: VolumeId, node: NodeName, attempt: u32 },
    /// The grace after a restore is over.
    GraceOver,
    /// What the lease tells of waits for force.
    ForceWaits(Said),
}

/// One thing that there is to know.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) enum Fact {
    /// This process leads from now on.
    Leads,
    /// An attach or detach has failed, and is tried again.
    OperationFailed(VolumeId, NodeName, Operation),
    /// A patch of a node's status is about so many volumes.
    Patched(usize),
    /// Where a volume is desired and attached, on these nodes.
    Counted { volume: VolumeId, scope: Scope, nodes: BTreeMap<NodeName, Counted> },
    /// A safety rule keeps something from being done.
    Refused(&'static str),
    /// How far an operation is.
    Progress(VolumeId, NodeName, Progress),
    /// Nothing is known any more of a volume on a node.
    Forgotten(VolumeId, NodeName),
    /// Volumes of a pod cannot be attached yet, as was not known before.
    Unresolved(PodKey, Vec<Unresolved>),
    /// A detach is forced.
    Forced(VolumeId, NodeName, ForceReason, Forced),
    /// A log line.
    Line(Line),
}

/// What there is to report, in order.
#[derive(Clone, Debug, Default)]
pub struct PlanFacts {
    pub(super) planned: [usize; Planned::ALL.len()],
    pub(super) facts: Vec<Fact>,
}

impl PlanFacts {
    /// Adds one.
    pub(in crate::attach_detach) fn push(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    /// Counts keys that are looked at.
    pub(in crate::attach_detach) fn planned(&mut self, kind: Planned, count: usize) {
        if let Some((_, counted)) =
            Planned::ALL.iter().zip(&mut self.planned).find(|(known, _)| **known == kind)
        {
            *counted += count;
        }
    }

    /// The detaches that are forced, or from nodes with the taint.
    pub(in crate::attach_detach) fn forced(
        &self,
    ) -> impl Iterator<Item = (&VolumeId, &NodeName, ForceReason)> {
        self.facts.iter().filter_map(|fact| match fact {
            Fact::Forced(volume, node, reason, Forced::Begins | Forced::Tainted) => {
                Some((volume, node, *reason))
            }
            _ => None,
        })
    }

    /// Takes all.
    pub(in crate::attach_detach) fn take(&mut self) -> Self {
        mem::take(self)
    }
}
