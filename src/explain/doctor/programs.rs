//! Classes, drivers, side-cars and clocks: what the whole cluster stands on.
//!
//! In: classes, drivers and leases. Out: findings that are about no single volume.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    Finding, Severity,
    groups::{Groups, explain},
};
use crate::{
    binder::annotations::is_default_class,
    explain::{
        age,
        sidecars::{Presence, Sidecar, Sidecars},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{
        ids::DriverName,
        kinds::{CsiDriver, ObjectRef, StorageClass},
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

fn finding(reason: &'static str, about: &str, count: usize, unit: &'static str, summary: String) -> Finding {
    Finding {
        severity: Severity::Risk,
        reason,
        about: about.to_owned(),
        count,
        unit,
        pods: 0,
        oldest: None,
        next_at: None,
        summary,
        examples: Vec::new(),
        command: Vec::new(),
    }
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
        let summary = "no class is the default: claims without a class are given no volume".to_owned();
        groups.tell(finding("NoDefaultClass", "", 0, "class", summary));
    }
    if let [first, _, ..] = defaults.as_slice() {
        let names: Vec<&str> = defaults.iter().map(Subject::name).collect();
        let summary = format!("{} are all the default: the newest is taken", names.join(", "));
        let examples = defaults.iter().map(Subject::json).collect();
        let told = finding("ManyDefaultClasses", "", defaults.len(), "class", summary);
        groups.tell(Finding { examples, command: explain(first), ..told });
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
            let summary = format!("there is no CSIDriver object {driver}: attaching is taken to be needed");
            let told = finding("CsiDriverMissing", driver.as_str(), *count, "volume", summary);
            groups.tell(Finding { command: words("kubectl get csidriver"), ..told });
        }
    }
    for (driver, count) in &attached {
        let is_told = groups.find("AttacherNotSeen", driver.as_str()).is_some();
        if let (false, Presence::Gone(since)) =
            (is_told, sidecars.presence(driver.as_str(), Sidecar::Attacher))
        {
            let summary = format!("the attacher was seen last {} ago", age::between(since, groups.now));
            let told = finding("AttacherNotSeen", driver.as_str(), *count, "attachment", summary);
            groups.tell(Finding {
                oldest: Some(since),
                command: words("kubectl get leases,pods -A"),
                ..told
            });
        }
        if sidecars.is_limited(driver.as_str(), Sidecar::Attacher) {
            let summary = "the attacher runs with --kube-api-qps=5, the default: some two attaches a second";
            let told = finding("AttacherLimited", driver.as_str(), *count, "attachment", summary.to_owned());
            groups.tell(told);
        }
    }
    for driver in in_use.keys() {
        if sidecars.is_limited(driver.as_str(), Sidecar::Provisioner) {
            let summary = "the provisioner runs with --kube-api-qps=5, the default".to_owned();
            groups.tell(finding("ProvisionerLimited", driver.as_str(), 0, "", summary));
        }
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
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
        let summary = format!("the clock of {holder} (lease {name}) is {by} {word} the API server's");
        groups.tell(finding("ClockSkew", holder, 1, "clock", summary));
    }
    if compared > 0 {
        fine.push(format!("{} looked at for the clocks of their holders", age::counted(compared, "lease")));
    }
}

/// Whether `late` is later by more than clocks may differ.
fn differs(early: Timestamp, late: Timestamp) -> bool {
    early.checked_add(SKEW).is_ok_and(|limit| late > limit)
}
