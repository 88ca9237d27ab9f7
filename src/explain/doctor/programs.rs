//! Classes, drivers, side-cars and the fence: what the whole cluster stands on.
//!
//! In: classes, drivers, leases and policies. Out: findings that are about no single volume.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::DriverName,
    kinds::{CsiDriver, ObjectRef, StorageClass},
};
use k8s_openapi::{
    api::coordination::v1::Lease,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::Value;

use super::groups::{FENCED_WITHOUT_RULER, Groups, NOBODY_RULES, explain};
use crate::{
    binder::annotations::is_default_class,
    explain::{
        age,
        sidecars::{Presence, Sidecar, Sidecars, renewed},
        snapshot::{FENCE_BINDINGS, LEASES, OWN_LEASES, OWN_NAMESPACE, Snapshot},
        subject,
    },
    fence::{
        arguments::{controllers, daemon_lease, is_on, is_rolling, of_deployment},
        controllers::Controllers,
        policies::{BINDINGS, FENCES, Fence, NAME_BEGINS, POLICIES},
    },
};

/// How far the clock of whoever renews a lease may be behind that of the API server. A successor takes less time, too.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn look(snapshot: &Snapshot, sidecars: &Sidecars<'_>, groups: &mut Groups<'_>) {
    default_classes(snapshot, groups);
    drivers(snapshot, sidecars, groups);
    fence(snapshot, groups);
}

/// Behind the fence kube-controller-manager's loops cannot write: if mooring does not lead, nobody rules.
fn fence(snapshot: &Snapshot, groups: &mut Groups<'_>) {
    let [policies, bindings] = [POLICIES.0, BINDINGS.0].map(|of| {
        let all = snapshot.others.iter();
        let ours = all.filter(|((kind, name), _)| kind == of && name.starts_with(NAME_BEGINS));
        ours.map(|((_, name), object)| (name.as_str(), object)).collect::<BTreeMap<&str, &Value>>()
    });
    if policies.is_empty() {
        let is_elected = |words: Vec<&str>| is_on(&words, "--leader-elect", true);
        if snapshot.ruler_flags().is_some_and(is_elected) {
            ruler(snapshot, NOBODY_RULES, groups);
        }
        return;
    }
    let unneeded = unneeded(snapshot, policies.keys().copied()).join(", ");
    if !unneeded.is_empty() {
        groups.tell("FenceAmiss unneeded", "", (0, ""), &[("told", &unneeded)]);
    }
    let is_leaving = |object: &Value| object.pointer("/metadata/deletionTimestamp").is_some();
    let leaving = policies.iter().chain(&bindings).filter(|(_, object)| is_leaving(object));
    let leaving: BTreeSet<&str> = leaving.map(|(name, _)| *name).collect();
    if !leaving.is_empty() {
        let told = leaving.into_iter().collect::<Vec<_>>().join(", ");
        groups.tell("FenceAmiss leaving", "", (0, ""), &[("told", &told)]);
    }
    let unbound = policies.keys().filter(|name| !bindings.contains_key(*name)).copied();
    let unbound = unbound.collect::<Vec<_>>().join(", ");
    if !unbound.is_empty() && snapshot.was_read(FENCE_BINDINGS) {
        groups.tell("FenceAmiss unbound", "", (0, ""), &[("told", &unbound)]);
    }
    ruler(snapshot, FENCED_WITHOUT_RULER, groups);
}

/// Whether mooring leads, which is to.
fn ruler(snapshot: &Snapshot, case: &str, groups: &mut Groups<'_>) {
    // If it does not tell the namespace, either of the usual ones: one may be left over. Elsewhere anybody may write a lease.
    let deployment = snapshot.deployment();
    let [namespace, name] = daemon_lease(&of_deployment(deployment));
    let is_there = deployment.is_some() && namespace == OWN_NAMESPACE && snapshot.was_read(OWN_LEASES);
    if !snapshot.was_read(LEASES) && !is_there {
        return;
    }
    let ours = snapshot.leases.iter().filter(|Lease { metadata, .. }| {
        let at = metadata.namespace.as_deref();
        let is_there = at == Some(namespace) || deployment.is_none() && at == Some("kube-system");
        is_there && metadata.name.as_deref() == Some(name)
    });
    let told = match ours.map(held_until).max() {
        None => "there is no lease of mooring".to_owned(),
        Some(Some(until)) if groups.now.duration_since(until) < CLOCK_SLACK => return,
        Some(Some(until)) => format!("mooring's lease ran out {} ago", age::between(until, groups.now)),
        Some(None) => "mooring's lease has no holder".to_owned(),
    };
    groups.tell(case, "", (0, ""), &[("told", &told)]);
}

/// The controllers of those fences whose loops the Deployment of mooring does not run, as far as that is to be seen. While it
/// rolls out, a leader may be of the template before.
fn unneeded<'a>(snapshot: &Snapshot, names: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let settled = snapshot.deployment().filter(|deployment| !is_rolling(deployment));
    let list = settled.and_then(|it| Controllers::parse(&controllers(&of_deployment(Some(it)))).ok());
    let Some(Controllers { running, .. }) = list else { return Vec::new() };
    let is_run = |fence: &&Fence| running.iter().any(|controller| controller.name() == fence.controller);
    let fences = names.filter_map(|name| FENCES.iter().find(|fence| fence.name() == name));
    fences.filter(|fence| !is_run(fence)).map(|fence| fence.controller).collect()
}

/// Until when a lease is held.
fn held_until(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.as_ref().filter(|holder| !holder.is_empty())?;
    let lasts = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds?));
    renewed(lease)?.checked_add(lasts).ok()
}

fn default_classes(snapshot: &Snapshot, groups: &mut Groups<'_>) {
    if !snapshot.is_listed::<StorageClass>() {
        return;
    }
    let classes = snapshot.objects.classes.snapshot();
    let defaults: Vec<ObjectRef> = classes
        .iter()
        .filter(|(_, class)| is_default_class(&class.metadata))
        .map(|(name, _)| ObjectRef::Class(name.clone()))
        .collect();
    if defaults.is_empty() {
        groups.tell("NoDefaultClass", "", (0, "class"), &[]);
    }
    if let [first, _, ..] = defaults.as_slice() {
        let names: Vec<&str> = defaults.iter().map(|it| it.names().1).collect();
        let told = names.join(", ");
        let count = (defaults.len(), "class");
        if let Some(finding) = groups.tell("ManyDefaultClasses", "", count, &[("told", &told)]) {
            finding.examples = defaults.iter().map(subject::json).collect();
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
