//! Whether mooring would have made a mutation that the ruler made first: asked of its controllers, on the world as it was
//! right before.
//!
//! In: the world before an act, and the act. Out: yes, no, or that it cannot be told. A dry run reads no pods that are gone
//! and knows nothing of waits that began earlier, so a detach by force is never told from it.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{AttachmentName, VolumeName},
    kinds::{Narrow as _, ObjectRef},
    tables::Objects,
    with_object,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::mutation::{Mutation, MutationKind};
use crate::{
    attach_detach::{self, AttachDetachOptions, dry_run::Outlook, state::actual::AttachmentCall},
    binder::{BinderOptions, calls::Target, calls::WriteKind, dry_run::dry_run},
    config::StorageController,
    ephemeral::decide::{ClaimStep, known, step_of},
    expander::decide::{Resizer, expansion, resizer},
};

/// With more pods than this, a dry run takes too long.
const MOST_PODS: usize = 5_000;

/// What the controllers would have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// The same.
    Same,
    /// The same with another volume.
    OtherVolume(VolumeName),
    /// Not that.
    No,
}

fn same(is_same: bool) -> Agreement {
    if is_same { Agreement::Same } else { Agreement::No }
}

/// Asks the controllers that run, if it can be told.
pub(super) fn agrees(
    world: &Arc<Objects>,
    act: &Mutation,
    running: &BTreeSet<StorageController>,
    now: Timestamp,
) -> Option<Agreement> {
    let is_compared = running.contains(&act.controller());
    if !is_compared || world.pods.len() > MOST_PODS {
        return None;
    }
    match act.controller() {
        StorageController::AttachDetach => {
            let options = AttachDetachOptions::default();
            let outlook = attach_detach::dry_run::dry_run(world, options, &|_| true, now);
            would_attach(&outlook, act).map(same)
        }
        StorageController::Binder => would_bind(world, act),
        StorageController::EphemeralVolumes => would_create(world, act).map(same),
        StorageController::Expander => would_expand(world, act).map(same),
        StorageController::ClaimProtection
        | StorageController::VolumeProtection
        | StorageController::AttributesClassProtection => would_protect(world, act).map(same),
    }
}

/// Whether a pod of the world has a volume that needs the claim. Programs make claims for pods, too, so of others nothing is said.
fn would_create(world: &Objects, act: &Mutation) -> Option<bool> {
    let ObjectRef::Claim(key) = &act.object else { return None };
    let mut is_needed = false;
    world.pods.for_each(|pod| {
        let makes = |volume| matches!(step_of(pod, volume, |it| known(world, it)), ClaimStep::Create(_, made) if made == *key);
        is_needed |= !pod.metadata.is_terminating() && pod.spec.volumes.iter().any(makes);
    });
    is_needed.then_some(true)
}

fn would_expand(world: &Objects, act: &Mutation) -> Option<bool> {
    let ObjectRef::Claim(key) = &act.object else { return None };
    let claim = world.claims.get(key)?;
    let volume = world.volumes.get(&claim.spec.volume_name)?;
    let grows = expansion(&claim, Some(&volume)).ok()?.is_some();
    Some(grows && matches!(resizer(&claim, &volume), Some(Resizer::Migrated { .. })))
}

/// What lives gets its finalizer, and what goes loses it. Whether it is in use, the laws ask.
fn would_protect(world: &Objects, act: &Mutation) -> Option<bool> {
    let is_leaving =
        with_object!(&act.object, |key: Kind| world.get::<Kind>(key)?.metadata().is_terminating());
    Some(is_leaving == (act.kind == MutationKind::Unprotect))
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
        _ => {
            let body = outlook.node_writes.get(node).and_then(|patch| patch.body.as_ref());
            let list = |body: &Value| body.pointer("/status/volumesAttached").cloned().unwrap_or_default();
            let lists = |list: &Value| {
                let mut entries = list.as_array().into_iter().flatten();
                entries.any(|entry| entry.get("name").and_then(Value::as_str) == Some(&act.value))
            };
            Some(body.is_some_and(|body| lists(&list(body)) == (act.kind == MutationKind::List)))
        }
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

fn would_bind(world: &Arc<Objects>, act: &Mutation) -> Option<Agreement> {
    let expected = write_of(act.kind, &act.value)?;
    let mut targets: Vec<Target> = Target::of(&act.object).into_iter().collect();
    if let ObjectRef::Volume(name) = &act.object {
        targets.extend(claim_of(world, name));
    }
    let options = BinderOptions::default();
    let next = targets.into_iter().find_map(|target| {
        let outlook = dry_run(world, &options, Some(&target), &|_| true);
        let claims = outlook.claims.into_values().map(|place| (place.write, place.target));
        let mut all = claims.chain(outlook.volumes.into_values().map(|place| (place.write, place.target)));
        all.find(|(write, _)| *write == Some(expected))
    });
    Some(match (next, &act.volume) {
        (None, _) => Agreement::No,
        (Some((_, Some(ObjectRef::Volume(ours)))), Some(theirs)) if ours != *theirs => {
            Agreement::OtherVolume(ours)
        }
        _ => Agreement::Same,
    })
}

fn claim_of(world: &Objects, volume: &VolumeName) -> Option<Target> {
    let volume = world.volumes.get(volume)?;
    Some(Target::Claim(volume.spec.claim_ref.as_ref()?.key()))
}
