//! The whole cluster: what is blocked, what waits, what is at risk.
//!
//! In: a snapshot and what is assumed of the controllers. Out: one finding per cause, those first from which most pods
//! suffer, and longest; what was looked at and is fine; and what could not be looked at. Each object is looked at a fixed
//! number of times, however large the cluster.

mod attachments;
mod claims;
mod groups;
mod leftovers;
mod one_namespace;
mod programs;
#[cfg(test)]
mod scale_tests;
mod text;
mod writers;

pub(super) use self::text::{WIDTH, write_wrapped};

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use self::groups::Groups;
use super::{
    assumptions::Assumptions,
    report::{API_VERSION, Observed, Source, Verdict},
    snapshot::{CLAIMS_THERE, DRIVER_PODS, EVENTS, EVENTS_THERE, LEASES, PODS_THERE, Snapshot, Unseen},
    view::View,
};
use crate::{
    kube_api::kinds::{
        CsiDriver, Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
    },
    state::Stored,
};

/// As the read of them is named.
const EVENTS_ABOUT_CLAIMS: &str = "events about claims";

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// A person has to act.
    Blocked,
    /// It goes on by itself.
    Waiting,
    /// Nothing waits for it now.
    Risk,
}

impl Severity {
    /// As it is printed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "BLOCKED",
            Self::Waiting => "WAITING",
            Self::Risk => "RISK",
        }
    }
}

/// One cause, and what suffers from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The reason's code.
    pub reason: &'static str,
    /// The class, driver, node or object that is the cause; empty if there is no single one.
    pub about: String,
    /// How many objects.
    pub count: usize,
    /// Of what: `claim`.
    pub unit: &'static str,
    /// How many pods wait because of it.
    pub pods: usize,
    /// Since when the first of them has waited, as far as that is known.
    pub oldest: Option<Timestamp>,
    /// When it goes on, if the controller says so.
    pub next_at: Option<Timestamp>,
    /// A sentence.
    pub summary: String,
    /// Some of the objects.
    pub examples: Vec<Value>,
    /// The command that explains it.
    pub command: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Findings`.
    pub kind: &'static str,
    /// How it stands with the whole.
    pub verdict: Verdict,
    /// What was looked at.
    pub observed: Observed,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Pods that wait, by namespace.
    pub waiting_pods: BTreeMap<String, usize>,
    /// What was looked at and is as it should be, a line each.
    pub fine: Vec<String>,
    /// What was not looked at, so that nothing is said of it.
    pub unchecked: Vec<Unseen>,
}

/// Looks at everything that was read; of one namespace, tells what something of it suffers from.
#[must_use]
pub fn doctor(snapshot: &Snapshot, assumptions: &Assumptions, of: Option<&str>) -> Findings {
    let view = View::of_all(snapshot, assumptions);
    let mut groups = Groups::new(snapshot.taken_at, of);
    let mut fine = Vec::new();
    // Without these the controllers would be asked over a world that is not: nothing is concluded from what is missing.
    if snapshot.is_listed::<PersistentVolume>() {
        claims::look(&view, &mut groups, &mut fine);
    }
    leftovers::look(&view, &mut groups);
    let sees_world = snapshot.is_listed::<PersistentVolume>()
        && snapshot.is_listed::<PersistentVolumeClaim>()
        && snapshot.is_listed::<VolumeAttachment>()
        && snapshot.is_listed::<Node>()
        && snapshot.is_listed::<Pod>();
    if sees_world {
        attachments::look(&view, &mut groups, &mut fine);
    } else {
        one_namespace::look(&View::new(snapshot, assumptions), &mut groups);
    }
    programs::look(snapshot, &view.sidecars, &mut groups, &mut fine);
    let untold = writers::look(snapshot, &mut groups, &mut fine);
    let mut unchecked = unchecked(snapshot);
    let (findings, waiting_pods) = groups.finish();
    let worst = findings.first().map(|finding| finding.severity);
    let verdict = match worst {
        Some(Severity::Blocked) => Verdict::Blocked,
        Some(Severity::Waiting) => Verdict::Waiting,
        _ if !unchecked.is_empty() => Verdict::Forbidden,
        Some(Severity::Risk) | None => Verdict::Healthy,
    };
    // That no managed fields tell who wrote is no lack of rights.
    unchecked.extend(untold);
    Findings {
        api_version: API_VERSION,
        kind: "Findings",
        verdict,
        observed: Observed {
            resource_version: snapshot.revision.map(|revision| revision.0.to_string()),
            at: snapshot.taken_at,
            source: Source::Offline,
        },
        findings,
        waiting_pods,
        fine,
        unchecked,
    }
}

/// What was not read: with the server's words if it said why, else because it was not asked for.
fn unchecked(snapshot: &Snapshot) -> Vec<Unseen> {
    fn kind<T: Stored>(snapshot: &Snapshot) -> (&'static str, bool) {
        (T::PLURAL, snapshot.is_listed::<T>())
    }
    let others = [LEASES, DRIVER_PODS, EVENTS].map(|what| (what, snapshot.was_read(what)));
    let looked = [
        kind::<Node>(snapshot),
        kind::<Pod>(snapshot),
        kind::<PersistentVolume>(snapshot),
        kind::<PersistentVolumeClaim>(snapshot),
        kind::<VolumeAttachment>(snapshot),
        kind::<StorageClass>(snapshot),
        kind::<CsiDriver>(snapshot),
    ];
    let mut unchecked = snapshot.unseen.clone();
    let there = [
        (Pod::PLURAL, PODS_THERE),
        (PersistentVolumeClaim::PLURAL, CLAIMS_THERE),
        (EVENTS_ABOUT_CLAIMS, EVENTS_THERE),
    ];
    for unseen in &mut unchecked {
        if there.iter().any(|(what, there)| unseen.what == *what && snapshot.was_read(there)) {
            unseen.what.push_str(" of other namespaces");
        }
    }
    for (what, was_read) in looked.into_iter().chain(others) {
        let is_told = unchecked.iter().any(|unseen| unseen.what.split(' ').next() == what.split(' ').next());
        if !was_read && !is_told {
            let why = "not read in full".to_owned();
            unchecked.push(Unseen { what: what.to_owned(), why, forbidden: false });
        }
    }
    unchecked
}
