//! A class: who provisions, when its claims are bound, which of them are to grow; and, of one that does not exist, which
//! claims wait for it.

use apiserver::{
    ids::{ClaimKey, ClassName},
    kinds::{ClaimPhase, ObjectRef, PersistentVolume, PersistentVolumeClaim, StorageClass},
};

use super::{
    claim::NO_PROVISIONER,
    links::{Link, missing},
    report::Verdict,
    resize::{self, forbids},
    sidecars::{Presence, SILENCE, Sidecar},
    view::View,
};
use crate::binder::{
    annotations::{PROVISIONED_BY, STORAGE_PROVISIONER, csi_name},
    matching::predicate::claim_class,
};

/// The link of a class.
pub(super) fn link(view: &View<'_>, name: &ClassName) -> Link {
    let subject = ObjectRef::Class(name.clone());
    view.list::<StorageClass>();
    let Some(class) = view.read::<StorageClass>(name) else {
        let mut link = missing::<StorageClass>(view, &subject, name, "NotFound");
        if link.verdict == Verdict::NotFound {
            // For volumes that are made by hand, or by mistake.
            let waiting = claims(view, name, |claim| claim.status.phase != ClaimPhase::Bound);
            if let Some(told) = counted(&waiting, "waits for it", "wait for it") {
                link.step.message.extend([", and ", &told]);
            }
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
        Presence::NotSeen if !is_missed(view, driver) => "ProvisionerUnknown unread",
        Presence::Unknown => "ProvisionerUnknown unread",
        Presence::Gone(_) | Presence::NotSeen => "ProvisionerNotSeen",
    };
    let told = view.sidecars().absence(driver, Sidecar::Provisioner, None).unwrap_or_default();
    let first = Link::told(&subject, case, &[("driver", &driver), ("told", &told)]);
    let mut detail = format!("{named}  {when}  {:?}", class.reclaim_policy);
    let whole = view.whole(&subject);
    if whole.is_some_and(|class| !forbids(class)) {
        detail.push_str("  expandable");
    }
    let mut link = first.detail(detail);
    view.list::<PersistentVolume>();
    let growing = claims(view, name, |claim| resize::grows(view.objects(), claim));
    if let Some(told) = counted(&growing, "is to grow", "are to grow") {
        link.step.message.extend(["; ", &told]);
        if whole.is_some_and(forbids) {
            link = link.and("+class forbids", &[("class", name)]);
        }
    }
    link
}

/// The claims of a class that meet it.
fn claims(
    view: &View<'_>,
    name: &ClassName,
    meets: impl Fn(&PersistentVolumeClaim) -> bool,
) -> Vec<ClaimKey> {
    view.list::<PersistentVolumeClaim>();
    view.snapshot.keys(|claim| *claim_class(claim) == *name.as_str() && meets(claim))
}

/// How many claims those are, and one of them.
fn counted(claims: &[ClaimKey], one: &str, many: &str) -> Option<String> {
    Some(match claims {
        [] => return None,
        [only] => format!("claim {only} {one}"),
        all @ [first, ..] => format!("{} claims {many}, the first {first}", all.len()),
    })
}

/// Whether a provisioner of which nothing is seen is missed. Of one without leader election and CSIDriver (kind, k3s) only the
/// volumes that it made show that there is one, or was, and only a claim that has waited for it shows that there is none.
fn is_missed(view: &View<'_>, driver: &str) -> bool {
    view.list::<PersistentVolume>();
    view.list::<PersistentVolumeClaim>();
    let is_its = |it: &PersistentVolume| it.metadata.annotation(PROVISIONED_BY) == Some(driver);
    let has_waited = |it: &PersistentVolumeClaim| {
        let until = it.metadata.creation_timestamp.unwrap_or_default().checked_add(SILENCE);
        it.metadata.annotation(STORAGE_PROVISIONER) == Some(driver)
            && it.status.phase == ClaimPhase::Pending
            && until.is_ok_and(|until| until < view.now())
    };
    view.snapshot.is_whole::<PersistentVolume>()
        && view.snapshot.keys(is_its).is_empty()
        && !view.snapshot.keys(has_waited).is_empty()
}
