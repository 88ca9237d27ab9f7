//! Which volumes a claim might take, with all that is wrong with each.
//!
//! In: a claim that has none, and the volumes that were listed. Out: [`Candidate`]s, the nearest first: fewest faults, then
//! by name. What the binder chose comes from its own dry run.

use apiserver::{
    ids::VolumeName,
    kinds::{LabelSelector, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    tables::Objects,
    text::{Text, TextMap},
};
use k8s_openapi::jiff::Timestamp;

use super::{
    age,
    report::{Candidate, Fault},
    view::finalizers,
};
use crate::binder::{
    dry_run::all_mismatches,
    matching::predicate::{Mismatch, STORAGE, claim_class, volume_class},
};

/// Rows that are kept. The rest is counted.
pub(super) const MOST_CANDIDATES: usize = 100;

/// Up to so many volumes in the cluster, those that are bound to others are listed, too.
const FEW: usize = 12;

/// The candidates.
pub(super) fn candidates(
    objects: &Objects,
    claim: &PersistentVolumeClaim,
    chosen: Option<&VolumeName>,
    now: Timestamp,
    unreachable: &dyn Fn(&PersistentVolume) -> Option<String>,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    // Where there are few volumes, those of others are of interest, too.
    let is_small = objects.volumes.len() <= FEW;
    objects.volumes.for_each(|volume| {
        let is_own = volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.key() == claim.key());
        if volume.status.phase == VolumePhase::Bound && !is_own && !is_small {
            return;
        }
        // Of a claim that cannot be read nothing suits, and nothing does not.
        let Ok(mismatches) = all_mismatches(volume, claim) else { return };
        let mut faults = faults(&mismatches, volume, claim, now);
        faults.extend(
            unreachable(volume).map(|detail| Fault { reason: "NodeAffinityMismatch".to_owned(), detail }),
        );
        if faults.is_empty() && chosen.is_some_and(|chosen| *chosen != volume.key()) {
            let (reason, detail) = ("LargerThanBest".to_owned(), "another fits better".to_owned());
            faults.push(Fault { reason, detail });
        }
        found.push(Candidate {
            name: volume.metadata.name.to_string(),
            size: quantity(&volume.spec.capacity),
            modes: modes(&volume.spec.access_modes),
            class: volume_class(volume).to_owned(),
            faults,
        });
    });
    found.sort_by(|one, other| (one.faults.len(), &one.name).cmp(&(other.faults.len(), &other.name)));
    found.truncate(MOST_CANDIDATES);
    found
}

/// All that is wrong with a volume for a claim.
fn faults(
    all: &[Mismatch],
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    now: Timestamp,
) -> Vec<Fault> {
    // The search does not look at the class of what is another's; people do.
    let of_other_class = all.contains(&Mismatch::Taken) && volume_class(volume) != claim_class(claim);
    let all = all.iter().chain(of_other_class.then_some(&Mismatch::Class));
    all.map(|mismatch| fault(*mismatch, volume, claim, now)).collect()
}

/// All that keeps a volume from suiting a claim that names it, with the facts.
pub(super) fn unsuited(volume: &PersistentVolume, claim: &PersistentVolumeClaim, now: Timestamp) -> String {
    let all = all_mismatches(volume, claim).unwrap_or_default().into_iter().filter(|it| {
        !matches!(it, Mismatch::Taken | Mismatch::Phase | Mismatch::Selector | Mismatch::Terminating)
    });
    told(&all.map(|it| fault(it, volume, claim, now)).collect::<Vec<_>>())
}

/// Faults in a sentence.
pub(super) fn told(faults: &[Fault]) -> String {
    faults.iter().map(|it| format!("{} {}", it.reason, it.detail)).collect::<Vec<_>>().join("; ")
}

/// A mismatch, with the facts behind it. Of a volume that another claim has or had it says which.
fn fault(
    mismatch: Mismatch,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    now: Timestamp,
) -> Fault {
    let phase = volume.status.phase;
    let mismatch = match (mismatch, phase) {
        (Mismatch::Taken, VolumePhase::Released | VolumePhase::Failed) => Mismatch::Phase,
        (mismatch, _) => mismatch,
    };
    let of = volume.spec.claim_ref.as_ref();
    let owner = of.map_or(String::new(), |of| format!("{}/{}", of.namespace, of.name));
    let detail = match mismatch {
        Mismatch::Taken => format!("for {owner}"),
        Mismatch::Terminating => {
            let since = volume.metadata.deletion_timestamp.as_deref();
            let since = since.map_or(String::new(), |since| format!("since {}", age::between(*since, now)));
            let kept = finalizers(&volume.metadata);
            if kept.is_empty() { since } else { format!("{since}, finalizer {kept}") }
        }
        Mismatch::TooSmall => {
            format!("{} < {}", quantity(&volume.spec.capacity), quantity(&claim.spec.resources.requests))
        }
        Mismatch::Class => format!("{:?}, want {:?}", volume_class(volume), claim_class(claim)),
        Mismatch::Attributes => "another volumeAttributesClassName".to_owned(),
        Mismatch::VolumeMode => {
            let mode = |mode: &Option<Text>| mode.as_deref().unwrap_or("Filesystem").to_owned();
            format!("{}, want {}", mode(&volume.spec.volume_mode), mode(&claim.spec.volume_mode))
        }
        Mismatch::AccessModes => {
            format!("has {}, want {}", modes(&volume.spec.access_modes), modes(&claim.spec.access_modes))
        }
        Mismatch::Phase => {
            of.map_or(format!("{phase:?}"), |of| format!("{phase:?} (claim {owner}, uid {})", of.uid))
        }
        Mismatch::Selector => {
            let selector = claim.spec.selector.as_deref();
            selector.map_or(String::new(), |it| unselected(it, &volume.metadata.labels))
        }
    };
    let is_bound = mismatch == Mismatch::Taken && phase == VolumePhase::Bound;
    let reason = if is_bound { "BoundToOther" } else { mismatch.code() };
    Fault { reason: reason.to_owned(), detail }
}

/// What of a selector the labels lack.
fn unselected(selector: &LabelSelector, labels: &TextMap) -> String {
    let has =
        |key: &str| labels.get(key).map_or("no such label".to_owned(), |value| format!("{key}={value}"));
    let labels_differ = selector
        .match_labels
        .iter()
        .filter(|(key, value)| labels.get(key.as_str()).is_none_or(|label| *label != **value))
        .map(|(key, value)| format!("{}, want {key}={value}", has(key)));
    let expressions = selector.match_expressions.iter().map(|expression| {
        let values: Vec<&str> = expression.values.iter().map(|it| &**it).collect();
        let want = format!("{} {} {}", expression.key, expression.operator, values.join(","));
        format!("{}, want {}", has(&expression.key), want.trim_end())
    });
    labels_differ.chain(expressions).collect::<Vec<_>>().join("; ")
}

/// The storage of a list of resources, as it is written.
pub(super) fn quantity(resources: &TextMap) -> String {
    resources.get(STORAGE).map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// Access modes as kubectl abbreviates them.
pub(super) fn modes(modes: &[Text]) -> String {
    let short = |mode: &Text| match &**mode {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    let short: Vec<String> = modes.iter().map(short).collect();
    if short.is_empty() { "-".to_owned() } else { short.join(",") }
}
