//! What operators get to know of a plan, as values: planning counts, logs and shows nothing itself.
//!
//! In: facts, as they are planned or learnt. Out: [`Reports`], which the [reporter](super::reporter) turns into
//! metrics, log lines, traces and the debug page when the plan is carried out.

use std::{collections::BTreeMap, mem};

use super::{
    diagnostics::State,
    metrics::{Counted, Planned},
    operations::Ended,
    phases::Progress,
};
use crate::{
    attach_detach::{
        actual::state::ForceReason,
        decide::{scope::Scope, verdict::Waiting},
        desired::{state::Unresolved, volume_name::VolumeId},
        guard::force_waits::Said,
    },
    controller::second_writer::News,
    kube_api::{
        call::CallError,
        ids::{AttachmentName, NodeName, PodKey, ResourceVersion},
    },
};
use tokio::time::Instant;

/// A verdict, as it is shown.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) struct Judged {
    pub(in crate::attach_detach) state: State,
    pub(in crate::attach_detach) waiting: Option<Waiting>,
    /// When there is another look although nothing happens.
    pub(in crate::attach_detach) next: Option<Instant>,
    /// Which attempt the next request is.
    pub(in crate::attach_detach) attempt: u32,
    pub(in crate::attach_detach) revision: Option<ResourceVersion>,
}

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

/// One thing to report.
#[derive(Clone, Debug)]
pub(in crate::attach_detach) enum Report {
    /// This process leads from now on.
    Leads,
    /// An operation ended.
    Ended(VolumeId, Ended),
    /// A patch of a node's status is about so many volumes.
    Patched(usize),
    /// Where a volume is desired and attached, on these nodes.
    Counted { volume: VolumeId, scope: Scope, nodes: BTreeMap<NodeName, Counted> },
    /// A verdict for this reason.
    Decided(&'static str),
    /// A verdict, to be shown.
    Judged(VolumeId, NodeName, Judged),
    /// How far an operation is.
    Progress(VolumeId, NodeName, Progress),
    /// Nothing is known any more of a volume on a node.
    Forgotten(VolumeId, NodeName),
    /// A VolumeAttachment that is not ours, or with no node, that is.
    Foreign { name: AttachmentName, volume: Option<VolumeId>, node: Option<NodeName> },
    /// The volumes of a pod that cannot be attached yet, those before, and which of them are new.
    Unresolved { pod: PodKey, before: Vec<Unresolved>, found: Vec<Unresolved>, new: Vec<Unresolved> },
    /// A detach is forced.
    Forced(VolumeId, NodeName, ForceReason, Forced),
    /// What others wrote that only this controller should.
    SecondWriters(Box<News>),
    /// A log line.
    Line(Line),
}

/// What there is to report, in order.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    pub(super) planned: [usize; Planned::ALL.len()],
    pub(super) reports: Vec<Report>,
}

impl Reports {
    /// Adds one.
    pub(in crate::attach_detach) fn push(&mut self, report: Report) {
        self.reports.push(report);
    }

    /// Counts keys that are looked at.
    pub(in crate::attach_detach) fn planned(&mut self, kind: Planned, count: usize) {
        if let Some((_, counted)) =
            Planned::ALL.iter().zip(&mut self.planned).find(|(known, _)| **known == kind)
        {
            *counted += count;
        }
    }

    /// All of it, in order, but for what was counted.
    pub(in crate::attach_detach) fn into_reports(self) -> Vec<Report> {
        self.reports
    }

    /// Takes all.
    pub(in crate::attach_detach) fn take(&mut self) -> Self {
        mem::take(self)
    }
}
