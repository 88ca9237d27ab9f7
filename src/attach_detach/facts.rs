//! What a plan has to say beside its requests, as values: planning counts, logs and shows nothing itself.
//!
//! In: what is planned or learnt, as that happens. Out: events and reports for the skeleton, and [`PlanFacts`], which the
//! [metrics](super::metrics) take when the plan is carried out.

use std::{collections::BTreeMap, mem};

use apiserver::ids::NodeName;
use strum::{IntoStaticStr, VariantNames};

use super::{
    reasons::{AttachDetachKey, NodeVolumeKey, Report},
    state::{
        actual::{ForceReason, Operation},
        desired::volume_name::VolumeId,
    },
};
use crate::controller::report::events::EventUpdate;

/// What is looked at, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Planned {
    /// A pod, for what it needs.
    Pod,
    /// A VolumeAttachment, for what it is about.
    Attachment,
    /// A name that a VolumeAttachment of a volume would have, to see whether the volume explains one.
    Name,
    /// A volume, on some or all of its nodes.
    Volume,
    /// A volume on one node, for what is to be done.
    NodeVolume,
    /// A volume on one node, to see whether it is held there.
    Holder,
    /// A node, for what its status should say.
    Node,
}

/// How far a forced detach is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forced {
    /// From a node with the taint, not because the volume is in use.
    Tainted,
    /// It begins.
    Begins,
    /// It is done.
    Done,
}

/// One thing that there is to count or to log, and that is no state of a key.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// The tables were read.
    Loaded { attachments: usize, pods: usize },
    /// A patch of a node's status is about so many volumes.
    Patched(usize),
    /// A detach is forced.
    Forced(NodeVolumeKey, ForceReason, Forced),
    /// An operation on a volume on a node failed with a request.
    Failed(NodeVolumeKey, Operation),
    /// The grace after a restore is over.
    GraceOver,
    /// The lease tells of waits for force: on so many nodes they go on, so many other entries prove nothing now. `None` if it
    /// cannot be read.
    ForceWaits(Option<[usize; 2]>),
}

/// What is counted and logged of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanFacts {
    /// How many keys were looked at.
    pub(super) planned: BTreeMap<Planned, usize>,
    /// In order.
    pub(super) facts: Vec<Fact>,
}

impl PlanFacts {
    /// The detaches that are forced.
    pub(super) fn forced(&self) -> impl Iterator<Item = (&NodeVolumeKey, ForceReason)> {
        self.facts.iter().filter_map(|fact| match fact {
            Fact::Forced(key, reason, Forced::Begins) => Some((key, *reason)),
            _ => None,
        })
    }
}

/// What is to be reported with the next plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    pub(super) events: Vec<EventUpdate<AttachDetachKey>>,
    pub(super) reports: Vec<Report>,
    pub(super) facts: PlanFacts,
}

impl Outbox {
    /// Counts keys that are looked at.
    pub(super) fn planned(&mut self, kind: Planned, count: usize) {
        *self.facts.planned.entry(kind).or_default() += count;
    }

    /// Adds a fact.
    pub(super) fn push(&mut self, fact: Fact) {
        self.facts.facts.push(fact);
    }

    /// Nothing is known any more of the volume on that node.
    pub(super) fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node));
        self.reports.push(Report::gone(key.clone()));
        self.events.push(EventUpdate::Forget(key));
    }

    /// Takes all but the events, which are for a plan of the leader.
    pub(super) fn take_reports(&mut self) -> (Vec<Report>, PlanFacts) {
        (mem::take(&mut self.reports), mem::take(&mut self.facts))
    }
}
