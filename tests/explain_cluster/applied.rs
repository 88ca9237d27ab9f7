//! What a proposed repair does: its requests are carried out on a copy, and the binder is asked anew.
//!
//! In: the cluster, the repair and the proposal. Out: whether the promise holds, and the first that does not.

use libtest_mimic::Failed;
use mooring::{
    binder::calls::WriteKind,
    explain::repair::{Advice, Repair, repair},
};

use crate::cluster::Cluster;

pub fn check(given: &Cluster, what: &Repair, advice: &Advice) -> Result<(), Failed> {
    let patches: Vec<_> = advice.requests.iter().map(|it| (it.path.as_str(), &it.body)).collect();
    let (before, after) = (given.snapshot(), given.snapshot_after(&patches));
    let outlook = after.ask_binder();
    match what {
        Repair::Relink(claim, volume) => {
            // Which one it binds to, the volumes say below.
            let reason = outlook.claims.get(claim).and_then(|place| place.reason.as_ref());
            if reason.is_some_and(|reason| !["Bound", "Binding"].contains(&reason.code())) {
                return Err(format!("the claim is not bound: {reason:?}").into());
            }
            let holders = after.objects.volumes.snapshot();
            let uid = &after.objects.claims.get(claim).unwrap().metadata.uid;
            let refers = |it: &apiserver::kinds::PersistentVolume| {
                it.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == *uid)
            };
            let held: Vec<_> = holders.iter().filter(|(_, it)| refers(it)).map(|(name, _)| name).collect();
            if held != [volume] {
                return Err(format!("S19: the claim holds {held:?}").into());
            }
        }
        Repair::Free(volume) => {
            let write = outlook.volumes.get(volume).and_then(|place| place.write);
            let is_taken = outlook.claims.values().any(|it| it.write == Some(WriteKind::ReserveVolume));
            if !is_taken && write != Some(WriteKind::VolumeAvailable) {
                return Err(format!("the volume does not become available: {write:?}").into());
            }
        }
        Repair::Unstick(name) => {
            let attachment = before.objects.attachments.get(name).unwrap();
            if attachment.status.attached || !attachment.metadata.is_terminating() {
                return Err("S1: a finalizer is taken from what may be attached".into());
            }
        }
    }
    // A second look finds nothing to do that was done.
    if !matches!(what, Repair::Unstick(_)) && !repair(&after, what).requests.is_empty() {
        return Err("the same is proposed again after it was done".into());
    }
    Ok(())
}
