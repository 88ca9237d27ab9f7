//! What operators get to know of a plan, as values: planning counts, logs and shows nothing itself.
//!
//! In: facts, as they are planned or learnt. Out: [`Reports`], which the [reporter](super::reporter) turns into
//! metrics, log lines, traces and the debug page when the plan is carried out.

use std::{collections::BTreeMap, mem};

use serde_json::Value;

use super::{
    diagnostics::State,
    metrics::{Counted, Planned},
    phases::{Ended, Progress},
};
use crate::{
    attach_detach::{
        actual::state::ForceReason,
        decide::{scope::Scope, verdict::Waiting},
        desired::{state::Unresolved, volume_name::VolumeId},
        guard::{evidence::Evidence, force_waits::Said},
    },
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
    /// An object was written by another.
    WrittenByAnother { object: String, field: &'static str, manager: String },
    /// A stand-off begins that holds nothing up.
    HoldsNothingUp { target: String, by: String },
    /// A stand-off begins.
    StandOff { target: String, by: String, until: String },
    /// A stand-off ends; the node is detached from again unless it is out of service.
    StandOffEnded { target: String, detaches: bool },
    /// Another controller is at work, until then.
    AnotherController { by: String, until: String },
    /// It is not any more.
    NoOtherController,
    /// A VolumeAttachment is deleted by another.
    DeletedByAnother { attachment: AttachmentName, act: Evidence },
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
    /// How far an operation is; its next attempt.
    Progress(VolumeId, NodeName, Progress, u32),
    /// A VolumeAttachment that is not ours, or with no node, that is.
    Foreign { name: AttachmentName, volume: Option<VolumeId>, node: Option<NodeName> },
    /// The volumes of a pod that cannot be attached yet, those before, and which of them are new.
    Unresolved { pod: PodKey, before: Vec<Unresolved>, found: Vec<Unresolved>, new: Vec<Unresolved> },
    /// A detach is forced.
    Forced(VolumeId, NodeName, ForceReason, Forced),
    /// Writes of another controller.
    SecondController(Evidence, u64),
    /// The alarm about another controller, and where nothing is detached.
    SecondWriters { alarm: Option<String>, rows: Vec<Value> },
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
