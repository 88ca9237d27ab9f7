//! A class: who provisions, when its claims are bound, and which of them wait.

use apiserver::{
    ids::{ClaimKey, ClassName},
    kinds::{ClaimPhase, ObjectRef, PersistentVolumeClaim, StorageClass},
};

use super::{
    age,
    claim::{self, NO_PROVISIONER},
    links::{Link, missing},
    report::Verdict,
    resize,
    sidecars::{Presence, Sidecar},
    view::{View, get},
};
use crate::binder::{annotations::csi_name, matching::predicate::claim_class};

/// Claims of the class that are shown.
const MOST_CLAIMS: usize = 20;

/// The chain of a class: itself, and the claims of it that wait.
pub(super) fn links(view: &View<'_>, name: &ClassName) -> Vec<Link> {
    let subject = ObjectRef::Class(name.clone());
    let Some(class) = get::<StorageClass>(view, name) else {
        let mut link = missing::<StorageClass>(view, &subject, name, "NotFound");
        if link.verdict == Verdict::NotFound {
            link.step.message.push_str(&waited_for(&waiting(view, name)));
        }
        return vec![link];
    };
    // By the name of the CSI driver that took it over.
    let named = class.provisioner.as_str();
    let driver = csi_name(named).unwrap_or(named);
    let when =
        class.volume_binding_mode.map_or_else(|| "no binding mode".to_owned(), |mode| format!("{mode:?}"));
    let presence = view.sidecars.presence(driver, Sidecar::Provisioner);
    let case = match presence {
        _ if driver == NO_PROVISIONER => "NoProvisioner",
        Presence::Seen => "ProvisionerSeen",
        Presence::NoLease => "ProvisionerUnknown without lease",
        Presence::Unknown => "ProvisionerUnknown unread",
        Presence::Gone(_) | Presence::NotSeen => "ProvisionerNotSeen",
    };
    let told = match presence {
        Presence::Gone(since) => {
            format!("provisioner {driver} was seen last at {since}: its lease is not renewed")
        }
        _ => format!("nothing answers to the name {driver}: no lease, no CSIDriver, no event"),
    };
    let first = Link::told(&subject, case, &[("driver", &driver), ("told", &told)]);
    let mut detail = format!("{named}  {when}  {:?}", class.reclaim_policy);
    let grows = view.whole(&subject).and_then(|class| class.get("allowVolumeExpansion")?.as_bool());
    if grows == Some(true) {
        detail.push_str("  expandable");
    }
    // Who reads by name has not seen the claims.
    if !view.snapshot.is_listed::<PersistentVolumeClaim>() {
        return vec![first.detail(detail)];
    }
    let waiting = waiting(view, name);
    let told = counted(&waiting);
    let claims = waiting.iter().take(MOST_CLAIMS).map(|key| claim::link(view, key));
    std::iter::once(first.detail(format!("{detail}  {told}"))).chain(claims).collect()
}

/// Claims of a class that are not bound, or whose volumes are to grow.
fn waiting(view: &View<'_>, name: &ClassName) -> Vec<ClaimKey> {
    let waits = |claim: &PersistentVolumeClaim| {
        claim.status.phase != ClaimPhase::Bound || resize::size(view, claim).is_some()
    };
    view.snapshot.keys(|claim: &PersistentVolumeClaim| *claim_class(claim) == *name.as_str() && waits(claim))
}

fn counted(waiting: &[ClaimKey]) -> String {
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    format!("{} {verb}", age::counted(waiting.len(), "claim"))
}

/// Which claims wait for a class that does not exist: for volumes that are made by hand, or by mistake.
fn waited_for(waiting: &[ClaimKey]) -> String {
    match waiting {
        [] => String::new(),
        [only] => format!(", and claim {only} waits for it"),
        [first, ..] => format!(", and {} for it, the first {first}", counted(waiting)),
    }
}
