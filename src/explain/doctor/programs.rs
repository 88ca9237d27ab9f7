//! Classes, drivers, side-cars and clocks: what the whole cluster stands on.
//!
//! In: classes, drivers and leases. Out: findings that are about no single volume.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    ids::DriverName,
    kinds::{CsiDriver, ObjectRef, StorageClass},
};
use k8s_openapi::jiff::Timestamp;

use super::groups::{Groups, explain};
use crate::{
    binder::annotations::is_default_class,
    explain::{
        age,
        sidecars::{Presence, Sidecar, Sidecars},
        snapshot::Snapshot,
        subject::Subject,
        table::Facts,
    },
};

/// Clocks that differ by less do no harm: times of objects are whole seconds.
const SKEW: Duration = Duration::from_secs(2);

pub(super) fn look(
    snapshot: &Snapshot,
    sidecars: &Sidecars<'_>,
    groups: &mut Groups<'_>,
    fine: &mut Vec<String>,
) {
    default_classes(snapshot, groups);
    drivers(snapshot, sidecars, groups);
    clocks(snapshot, groups, fine);
}

fn default_classes(snapshot: &Snapshot, groups: &mut Groups<'_>) {
    if !snapshot.is_listed::<StorageClass>() {
        return;
    }
    let classes = snapshot.objects.classes.snapshot();
    let defaults: Vec<Subject> = classes
        .iter()
        .filter(|(_, class)| is_default_class(&class.metadata))
        .map(|(name, _)| Subject::Class(name.clone()))
        .collect();
    if defaults.is_empty() {
        groups.tell("NoDefaultClass", "", (0, "class"), &[]);
    }
    if let [first, _, ..] = defaults.as_slice() {
        let names: Vec<&str> = defaults.iter().map(Subject::name).collect();
        let told = names.join(", ");
        let count = (defaults.len(), "class");
        if let Some(finding) = groups.tell("ManyDefaultClasses", "", count, &[("told", &told)]) {
            finding.examples = defaults.iter().map(Subject::json).collect();
            finding.command = explain(first);
        }
    }
}

fn drivers(snapshot: &Snapshot, sidecars: &Sidecars<'_>, groups: &mut Groups<'_>) {
    let mut in_use: BTreeMap<DriverName, usize> = BTreeMap::new();
    snapshot.objects.volumes.for_each(|volume| {
        if let Some(csi) = &volume.spec.csi {
            *in_use.entry(csi.driver.clone()).or_default() += 1;
        }
    });
    let mut attached: BTreeMap<DriverName, usize> = BTreeMap::new();
    snapshot.objects.attachments.for_each(|attachment| {
        *attached.entry(attachment.spec.attacher.clone()).or_default() += 1;
    });
    for (driver, count) in &in_use {
        if snapshot.is_listed::<CsiDriver>() && snapshot.is_absent(&ObjectRef::Driver(driver.clone())) {
            groups.tell("CsiDriverMissing", driver.as_str(), (*count, "volume"), &[("driver", driver)]);
        }
    }
    for (driver, count) in &attached {
        let (driver, count) = (driver.as_str(), (*count, "attachment"));
        let is_told = groups.find("AttacherNotSeen", driver).is_some();
        if let (false, Presence::Gone(since)) = (is_told, sidecars.presence(driver, Sidecar::Attacher)) {
            let age = age::between(since, groups.now);
            if let Some(finding) = groups.tell("AttacherNotSeen idle", driver, count, &[("age", &age)]) {
                finding.oldest = Some(since);
            }
        }
        if sidecars.is_limited(driver, Sidecar::Attacher) {
            groups.tell("AttacherLimited", driver, count, &[]);
        }
    }
    for driver in in_use.keys().filter(|it| sidecars.is_limited(it.as_str(), Sidecar::Provisioner)) {
        groups.tell("ProvisionerLimited", driver.as_str(), (0, ""), &[]);
    }
}

/// Leases carry two clocks: that of the holder, who writes when it renewed, and that of the API server, which notes when
/// the write came. Only what a delay cannot explain is told: a renewal in the future, or one that came long before it was
/// written down.
fn clocks(snapshot: &Snapshot, groups: &mut Groups<'_>, fine: &mut Vec<String>) {
    let mut compared = 0_usize;
    for lease in &snapshot.leases {
        let spec = lease.spec.as_ref();
        let Some(renewed) = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0) else {
            continue;
        };
        let managed = lease.metadata.managed_fields.iter().flatten();
        let written = managed.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        compared += 1;
        let skew = if differs(snapshot.taken_at, renewed) {
            Some((renewed, snapshot.taken_at, "ahead of"))
        } else {
            written.filter(|written| differs(renewed, *written)).map(|written| (written, renewed, "behind"))
        };
        let Some((late, early, word)) = skew else { continue };
        let by = age::between(early, late);
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let told = format!("{holder} (lease {name})");
        let facts: Facts<'_> = &[("told", &told), ("age", &by), ("word", &word)];
        groups.tell("ClockSkew", holder, (1, "clock"), facts);
    }
    if compared > 0 {
        fine.push(format!("{} checked for the clocks of their holders", age::counted(compared, "lease")));
    }
}

/// Whether `late` is later by more than clocks may differ.
fn differs(early: Timestamp, late: Timestamp) -> bool {
    early.checked_add(SKEW).is_ok_and(|limit| late > limit)
}
