//! Who wrote what, and when, as `managedFields` of a few objects tell: two controllers at work.
//!
//! In: the objects that were read whole, which are those that were written last. Out: a finding if both controllers wrote
//! within the last hour, with what and when; what was looked at; and that nothing can be said where a server or a proxy
//! leaves `managedFields` out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apiserver::kinds::ObjectRef;
use k8s_openapi::jiff::Timestamp;

use super::groups::Groups;
use crate::explain::{
    age, evidence,
    links::Link,
    snapshot::{Snapshot, Unseen},
    subject,
};

/// A program that wrote within this time is at work.
const AT_WORK: Duration = Duration::from_hours(1);

/// As the two controllers call themselves in `managedFields`.
const STOCK: &str = "kube-controller-manager";
const OUR_MANAGER: &str = "mooring";

/// Both controllers wrote within the last hour (S14). Returns what cannot be told.
pub(super) fn look(snapshot: &Snapshot, groups: &mut Groups<'_>, fine: &mut Vec<String>) -> Option<Unseen> {
    let (mut looked, mut told, now) = (0_usize, 0_usize, groups.now);
    let mut wrote: BTreeMap<&str, BTreeSet<(Timestamp, &ObjectRef)>> = BTreeMap::new();
    for (object, whole) in &snapshot.details {
        let Some(field) = of_these_loops(object) else { continue };
        looked += 1;
        told += usize::from(evidence::writers(whole).next().is_some());
        for (manager, fields, at) in evidence::writers(whole) {
            let is_recent = at.checked_add(AT_WORK).is_ok_and(|until| until >= now);
            if is_recent && fields.pointer(field).is_some() {
                wrote.entry(manager).or_default().insert((at, object));
            }
        }
    }
    let ends = |manager| wrote.get(manager).and_then(|all| all.first().zip(all.last()));
    if let (Some((stock_first, stock)), Some((our_first, ours))) = (ends(STOCK), ends(OUR_MANAGER)) {
        // One after the other is a change of hands: for a while it could be either.
        let takes_turns = stock_first.0 <= ours.0 && our_first.0 <= stock.0;
        if takes_turns || !age::is_long(Some(stock.0.min(ours.0)), now) {
            let of = |manager, (at, object): &(Timestamp, &ObjectRef)| {
                format!("{manager} wrote {} {} ago", subject::typed(object), age::between(*at, now))
            };
            let told = format!("{}, and {}", of(STOCK, stock), of(OUR_MANAGER, ours));
            let kind = if takes_turns { "in turns" } else { "after change" };
            let link = Link::told_of(stock.1, "ForeignWriter", kind, &[("told", &told)]);
            groups.note(&link, STOCK, (stock.1.clone(), "object", Some(stock.0)));
        }
    }
    if told > 0 {
        fine.push(format!("{} checked for the last writer", age::counted(told, "object")));
    }
    (looked > 0 && told == 0).then(|| Unseen {
        what: "a second controller".to_owned(),
        why: "the objects that were read have no managedFields".to_owned(),
        forbidden: false,
    })
}

/// The field that one of the two loops alone writes; kube-controller-manager has other loops.
fn of_these_loops(object: &ObjectRef) -> Option<&'static str> {
    match object {
        ObjectRef::Node(_) => Some("/f:status/f:volumesAttached"),
        ObjectRef::Attachment(_) => Some("/f:spec"),
        ObjectRef::Volume(_) | ObjectRef::Claim(_) => Some("/f:status/f:phase"),
        ObjectRef::Pod(_) | ObjectRef::Class(_) | ObjectRef::Driver(_) | ObjectRef::AttributesClass(_) => {
            None
        }
    }
}
