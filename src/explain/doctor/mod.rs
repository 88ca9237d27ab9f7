//! The whole cluster: what is blocked, what waits, what is at risk.
//!
//! In: a snapshot and what is assumed of the controllers. Out: one finding per cause, those first from which most pods
//! suffer, and longest; what was looked at and is fine; and what could not be looked at. What waits is judged as an explanation
//! judges it ([`waits`]); what no explanation of a single object tells is found beside ([`leftovers`], [`programs`], [`writers`]).
//! Each object is looked at a fixed number of times, however large the cluster.

mod findings;
mod groups;
mod leftovers;
mod programs;
#[cfg(test)]
mod scale_tests;
mod sheet;
mod waits;
mod writers;

pub use self::findings::{Finding, Findings, Severity};

use apiserver::kinds::{Narrow, PersistentVolumeClaim, Pod, VolumeAttributesClass};

use self::groups::Groups;
use super::{
    report::{API_VERSION, Observed, Verdict},
    snapshot::{
        CLAIMS_THERE, DEPLOYED, EVENTS, EVENTS_THERE, FENCE, FENCE_BINDINGS, LEASES, NOT_SERVED, PODS_THERE,
        Snapshot, Unseen,
    },
    view::View,
};
/// What is read as far as it fits an answer; of a kind with a table all was read, or what was not is told.
const LOOKED: [&str; 2] = [LEASES, EVENTS];

/// What is looked at of all namespaces, as the read of it is named, and what of one namespace.
const THERE: [(&str, &str); 3] = [
    (Pod::PLURAL, PODS_THERE),
    (PersistentVolumeClaim::PLURAL, CLAIMS_THERE),
    ("events about claims", EVENTS_THERE),
];

/// Looks at everything that was read; of one namespace, tells what something of it suffers from.
pub fn doctor(snapshot: &Snapshot, of: Option<&str>) -> Findings {
    let view = View::of_all(snapshot);
    let mut groups = Groups::new(snapshot.taken_at, of);
    let mut fine = Vec::new();
    leftovers::look(&view, &mut groups);
    waits::look(&view, &mut groups, &mut fine);
    programs::look(snapshot, view.sidecars(), &mut groups);
    let untold = writers::look(snapshot, &mut groups, &mut fine);
    // Few may read policies, and few clusters have a fence: that is no lack of rights.
    let (fence, mut unchecked): (Vec<_>, Vec<_>) = unchecked(snapshot)
        .into_iter()
        .partition(|unseen| [FENCE, FENCE_BINDINGS, DEPLOYED].contains(&&*unseen.what));
    let (findings, waiting_pods) = groups.finish();
    let worst = findings.first().map(|finding| finding.severity);
    let verdict = match worst {
        Some(Severity::Blocked) => Verdict::Blocked,
        Some(Severity::Waiting) => Verdict::Waiting,
        _ if !unchecked.is_empty() => Verdict::Forbidden,
        Some(Severity::Risk) | None => Verdict::Healthy,
    };
    // That no managed fields tell who wrote is no lack of rights.
    unchecked.extend(untold.into_iter().chain(fence));
    Findings {
        api_version: API_VERSION,
        kind: "Findings",
        verdict,
        observed: Observed::of(snapshot),
        findings,
        waiting_pods,
        fine,
        unchecked,
    }
}

/// What was not read: with the server's words if it said why, else because it was not asked for.
fn unchecked(snapshot: &Snapshot) -> Vec<Unseen> {
    let mut unchecked = snapshot.unseen.clone();
    // A server without the kind has no objects of it.
    let is_new =
        |what: &str| [VolumeAttributesClass::PLURAL, FENCE, FENCE_BINDINGS, DEPLOYED].contains(&what);
    unchecked.retain(|unseen| !is_new(&unseen.what) || unseen.why != NOT_SERVED);
    for unseen in &mut unchecked {
        if THERE.iter().any(|(what, there)| unseen.what == *what && snapshot.was_read(there)) {
            unseen.what.push_str(" of other namespaces");
        }
    }
    for what in LOOKED.into_iter().filter(|what| !snapshot.was_read(what)) {
        let is_told = unchecked.iter().any(|unseen| unseen.what.split(' ').next() == what.split(' ').next());
        if !is_told {
            let why = "not read in full".to_owned();
            unchecked.push(Unseen { what: what.to_owned(), why, forbidden: false });
        }
    }
    unchecked
}
