//! Whether mooring would have made a mutation that the ruler made first: asked of its controllers, on the world as it was
//! right before.
//!
//! In: the world before an act, and the act. Out: yes, no, or that it cannot be told. A dry run reads no pods that are gone
//! and knows nothing of waits that began earlier, so a detach by force is never told from it.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{AttachmentName, VolumeName},
    kinds::ObjectRef,
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;

use super::mutation::{Mutation, MutationKind};
use crate::{
    attach_detach::{self, AttachDetachOptions, dry_run::Outlook, state::actual::AttachmentCall},
    binder::{BinderOptions, calls::Target, calls::WriteKind, dry_run::dry_run},
    config::StorageController,
};

/// With more pods than this, a dry run takes too long.
const MOST_PODS: usize = 5_000;

/// Asks the controllers that run, if it can be told.
pub(super) fn agrees(
    world: &Arc<Objects>,
    act: &Mutation,
    running: &BTreeSet<StorageController>,
    now: Timestamp,
) -> Option<bool> {
    let is_compared = running.contains(&act.controller());
    if !is_compared || world.pods.len() > MOST_PODS {
        return None;
    }
    match act.controller() {
        StorageController::AttachDetach => {
            let options = AttachDetachOptions::default();
            let outlook = attach_detach::dry_run::dry_run(world, options, &|_| true, now);
            would_attach(&outlook, act)
        }
        StorageController::Binder => would_bind(world, act),
        _ => None,
    }
}

fn would_attach(outlook: &Outlook, act: &Mutation) -> Option<bool> {
    let node = act.node.as_ref()?;
    let write = |name: &AttachmentName| {
        let mut all = outlook.node_volumes.iter();
        let found = all.find(|((volume, on), _)| on == node && volume.attachment_name(on) == *name);
        found.and_then(|(_, outlook)| outlook.write)
    };
    match (act.kind, &act.object) {
        (MutationKind::Attach, ObjectRef::Attachment(name)) => {
            Some(write(name) == Some(AttachmentCall::Create))
        }
        (MutationKind::Detach, ObjectRef::Attachment(name)) => {
            Some(write(name) == Some(AttachmentCall::Delete))
        }
        _ => Some(outlook.node_writes.contains(node)),
    }
}

/// Which write of the binder makes it.
fn write_of(kind: MutationKind, value: &str) -> Option<WriteKind> {
    Some(match (kind, value) {
        (MutationKind::Reserve, _) => WriteKind::ReserveVolume,
        (MutationKind::Unreserve, _) => WriteKind::Unbind,
        (MutationKind::NameVolume, _) => WriteKind::NameVolume,
        (MutationKind::VolumePhase, "Bound") => WriteKind::VolumeBound,
        (MutationKind::VolumePhase, "Released") => WriteKind::VolumeReleased,
        (MutationKind::VolumePhase, "Failed") => WriteKind::VolumeFailed,
        (MutationKind::VolumePhase, "Available") => WriteKind::VolumeAvailable,
        (MutationKind::ClaimPhase, "Bound") => WriteKind::ClaimBound,
        (MutationKind::ClaimPhase, "Lost") => WriteKind::ClaimLost,
        (MutationKind::ClaimPhase, "Pending") => WriteKind::ClaimPending,
        (MutationKind::AssignClass, _) => WriteKind::AssignClass,
        (MutationKind::AskProvisioner, _) => WriteKind::AskProvisioner,
        (MutationKind::Annotate, _) => WriteKind::Annotate,
        _ => return None,
    })
}

fn would_bind(world: &Arc<Objects>, act: &Mutation) -> Option<bool> {
    let expected = write_of(act.kind, &act.value)?;
    let mut targets: Vec<Target> = Target::of(&act.object).into_iter().collect();
    if let ObjectRef::Volume(name) = &act.object {
        targets.extend(claim_of(world, name));
    }
    let options = BinderOptions::default();
    let is_next = targets.into_iter().any(|target| {
        let outlook = dry_run(world, &options, Some(&target), &|_| true);
        let claims = outlook.claims.values().map(|place| place.write);
        claims.chain(outlook.volumes.values().map(|place| place.write)).any(|write| write == Some(expected))
    });
    Some(is_next)
}

fn claim_of(world: &Objects, volume: &VolumeName) -> Option<Target> {
    let volume = world.volumes.get(volume)?;
    Some(Target::Claim(volume.spec.claim_ref.as_ref()?.key()))
}
