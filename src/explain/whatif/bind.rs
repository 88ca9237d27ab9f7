//! Which volume a claim would get, before it is created.
//!
//! In: a manifest. Out: the volume; or who would be asked for one; or why there is none.

use apiserver::{
    ids::{ClaimKey, ClassName},
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, StorageClass},
    text::Text,
};
use serde_json::{Value, json};

use super::story::{Story, When};
use crate::{
    binder::{dry_run::Outlook, reasons::ClaimReason},
    explain::{
        candidates,
        report::{Risk, Verdict},
        snapshot::Snapshot,
    },
};

/// So many volumes are told of where none is taken.
const NEAREST: usize = 5;

pub(super) fn story(snapshot: &Snapshot, namespace: &str, manifest: &Value) -> Story {
    let mut claim = match read(namespace, manifest) {
        Ok(claim) => claim,
        Err(why) => return Story { summary: why, verdict: Some(Verdict::Blocked), ..Story::default() },
    };
    let key = claim.key();
    let mut story = Story::default();
    if snapshot.objects.claims.get(&key).is_some() {
        story.summary = format!(
            "pvc/{key} exists already: see mooring explain pvc/{} -n {}",
            key.name(),
            key.namespace()
        );
        story.verdict = Some(Verdict::Blocked);
        return story;
    }
    if !snapshot.is_listed::<PersistentVolume>() || !snapshot.is_listed::<StorageClass>() {
        story.assume("not all volumes and classes could be read: there may be others that fit");
    }
    story.assume("the manifest passes validation and admission as it is");
    let before = snapshot.ask_binder();
    let copy = snapshot.fork();
    copy.objects.apply(claim.clone());
    let mut reason = reason(&copy.ask_binder(), &key);
    if let Some(ClaimReason::AssigningClass(class)) = &reason {
        story.tell(When::Now, Risk::Safe, "AssignClass", &key, format!("gets the default class {class}"));
        claim.spec.storage_class_name = Some(Text::from(ClassName::as_str(class)));
        copy.change::<PersistentVolumeClaim>(&key, |it| *it = claim.clone());
        reason = self::reason(&copy.ask_binder(), &key);
    }
    let after = copy.ask_binder();
    told(&mut story, &key, reason.as_ref());
    if !matches!(reason, Some(ClaimReason::Binding(..))) {
        nearest(&mut story, snapshot, &claim);
    }
    for (other, place) in &before.claims {
        let was = place.reason.as_deref();
        let is = after.claims.get(other).and_then(|place| place.reason.as_deref());
        if let (Some(ClaimReason::Binding(volume, _)), true) = (was, was != is) {
            let text = format!("wants {volume}, too: the first that the binder reconciles gets it");
            story.tell(When::Now, Risk::Care, "OtherClaimWants", other, text);
        }
    }
    story
}

fn read(namespace: &str, manifest: &Value) -> Result<PersistentVolumeClaim, String> {
    if manifest.get("kind").and_then(Value::as_str) != Some("PersistentVolumeClaim") {
        return Err("the manifest is no PersistentVolumeClaim".to_owned());
    }
    let mut manifest = manifest.clone();
    let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err("the manifest has no metadata".to_owned());
    };
    if !metadata.get("name").is_some_and(Value::is_string) {
        return Err("the manifest has no metadata.name".to_owned());
    }
    metadata.entry("namespace").or_insert_with(|| json!(namespace));
    // What the server gives it.
    metadata.insert("uid".to_owned(), json!("not-created-yet"));
    metadata.insert("resourceVersion".to_owned(), json!("1"));
    if let Some(object) = manifest.as_object_mut() {
        object.insert("status".to_owned(), json!({ "phase": "Pending" }));
    }
    serde_json::from_value(manifest).map_err(|error| format!("the manifest cannot be read: {error}"))
}

fn reason(outlook: &Outlook, key: &ClaimKey) -> Option<ClaimReason> {
    outlook.claims.get(key)?.reason.as_deref().cloned()
}

fn told(story: &mut Story, key: &ClaimKey, reason: Option<&ClaimReason>) {
    let (verdict, summary) = match reason {
        Some(ClaimReason::Binding(volume, _) | ClaimReason::Bound(volume)) => {
            let text = "is the smallest that fits, or reserved for the claim";
            story.tell(When::Now, Risk::Safe, "Bind", volume, text);
            (Verdict::Healthy, format!("{key} would be bound to {volume}"))
        }
        Some(ClaimReason::WaitsForProvisioner(provisioner)) => {
            let text = format!("would create a volume for {key}");
            story.tell(When::Now, Risk::Safe, "AskProvisioner", provisioner, text);
            (Verdict::Waiting, format!("no volume fits; {provisioner} would create one"))
        }
        Some(ClaimReason::WaitsForFirstConsumer | ClaimReason::WaitsForPods(_)) => {
            (Verdict::Waiting, format!("{key} would wait for a pod that uses it: its class binds then"))
        }
        Some(reason) => (Verdict::Blocked, format!("{key} would be given nothing: {}", reason.code())),
        None => (Verdict::Forbidden, "the binder says nothing of it".to_owned()),
    };
    story.verdict = Some(verdict);
    story.summary = summary;
}

/// Volumes that fit but for the fewest things.
fn nearest(story: &mut Story, snapshot: &Snapshot, claim: &PersistentVolumeClaim) {
    let all = candidates::candidates(&snapshot.objects, claim, None, snapshot.taken_at, &|_| None);
    for one in all.into_iter().take(NEAREST) {
        let fits = "fits: the scheduler chooses, among those that its pod's node can reach";
        let (action, text) = match candidates::told(&one.faults) {
            faults if faults.is_empty() => ("Fits", fits.to_owned()),
            faults => ("DoesNotFit", faults),
        };
        story.tell(When::Later, Risk::Safe, action, &one.name, text);
    }
}
