//! The binder's next write about a claim or a volume, in the words of an answer.
//!
//! In: what the write is for, as the dry run says it. Out: the action that comes next, and it comes without any condition:
//! for every reason, this is done first.

use apiserver::kinds::{Narrow, PersistentVolume};

use super::{
    links::Link,
    report::{Next, Verdict},
    subject::field,
};
use crate::binder::calls::WriteKind;

/// Says of a claim or volume what the binder writes next.
pub(super) fn next(link: Link, write: Option<WriteKind>) -> Link {
    let Some(write) = write else { return link };
    let waits_for = link.step.next.as_ref().and_then(|next| next.condition.clone());
    let mut link = link;
    let own =
        if field(&link.step.object, "kind") == PersistentVolume::KIND { "WriteVolume" } else { "WriteClaim" };
    link.step.next = Some(Next { action: action(write, own).to_owned(), ..Next::default() });
    if let Some(condition) = waits_for.filter(|_| link.verdict == Verdict::Blocked) {
        // That is not the end of it.
        link.step.message =
            format!("{}; it goes on when {condition}", link.step.message.trim_end_matches('.'));
    }
    // What is still to be written is not as it should be yet.
    link.verdict = link.verdict.max(Verdict::Waiting);
    link
}

/// What a write is called; `own` if it does no more than to put the object itself right.
fn action(write: WriteKind, own: &'static str) -> &'static str {
    match write {
        WriteKind::ReserveVolume | WriteKind::VolumeBound | WriteKind::NameVolume | WriteKind::ClaimBound => {
            "Bind"
        }
        WriteKind::Annotate
        | WriteKind::AssignClass
        | WriteKind::ClaimPending
        | WriteKind::VolumeAvailable
        | WriteKind::VolumeFailed => own,
        WriteKind::ClaimLost => "DeclareLost",
        WriteKind::AskProvisioner => "AskProvisioner",
        WriteKind::CreateVolume => "Provision",
        WriteKind::Reschedule => "Reschedule",
        WriteKind::VolumeReleased => "Release",
        WriteKind::Unbind => "Unbind",
        WriteKind::CreatePod | WriteKind::StartPod | WriteKind::DeletePod => "Recycle",
        WriteKind::DeleteVolume => "Delete",
    }
}
