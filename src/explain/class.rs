//! A class: who provisions, when its claims are bound, and, of one that does not exist, which claims wait for it.

use apiserver::{
    ids::ClassName,
    kinds::{ClaimPhase, ObjectRef, PersistentVolume, PersistentVolumeClaim, StorageClass},
};

use super::{
    claim::NO_PROVISIONER,
    links::{Link, missing},
    report::Verdict,
    sidecars::{Presence, Sidecar},
    view::View,
};
use crate::binder::{annotations::csi_name, matching::predicate::claim_class};

/// The link of a class.
pub(super) fn link(view: &View<'_>, name: &ClassName) -> Link {
    let subject = ObjectRef::Class(name.clone());
    view.list::<StorageClass>();
    // Who has made volumes is there, or was.
    view.list::<PersistentVolume>();
    let Some(class) = view.read::<StorageClass>(name) else {
        let mut link = missing::<StorageClass>(view, &subject, name, "NotFound");
        if link.verdict == Verdict::NotFound {
            link.step.message.push_str(&waited_for(view, name));
        }
        return link;
    };
    // By the name of the CSI driver that took it over.
    let named = class.provisioner.as_str();
    let driver = csi_name(named).unwrap_or(named);
    let when =
        class.volume_binding_mode.map_or_else(|| "no binding mode".to_owned(), |mode| format!("{mode:?}"));
    let case = match view.sidecars().presence(driver, Sidecar::Provisioner) {
        _ if driver == NO_PROVISIONER => "NoProvisioner",
        Presence::Seen => "ProvisionerSeen",
        Presence::NoLease => "ProvisionerUnknown without lease",
        Presence::Unknown => "ProvisionerUnknown unread",
        Presence::Gone(_) | Presence::NotSeen => "ProvisionerNotSeen",
    };
    let told = view.sidecars().absence(driver, Sidecar::Provisioner, None).unwrap_or_default();
    let first = Link::told(&subject, case, &[("driver", &driver), ("told", &told)]);
    let mut detail = format!("{named}  {when}  {:?}", class.reclaim_policy);
    let grows = view.whole(&subject).and_then(|class| class.get("allowVolumeExpansion")?.as_bool());
    if grows == Some(true) {
        detail.push_str("  expandable");
    }
    first.detail(detail)
}

/// Which claims wait for a class that does not exist: for volumes that are made by hand, or by mistake.
fn waited_for(view: &View<'_>, name: &ClassName) -> String {
    view.list::<PersistentVolumeClaim>();
    let waits = |claim: &PersistentVolumeClaim| {
        claim.status.phase != ClaimPhase::Bound && *claim_class(claim) == *name.as_str()
    };
    match view.snapshot.keys(waits).as_slice() {
        [] => String::new(),
        [only] => format!(", and claim {only} waits for it"),
        all @ [first, ..] => format!(", and {} claims wait for it, the first {first}", all.len()),
    }
}
