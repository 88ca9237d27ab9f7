//! A class: who provisions, when its claims are bound, and which of them wait.

use super::{
    actions::of_absent_program,
    claim::{self, NO_PROVISIONER},
    links::{Link, program},
    report::Verdict,
    sidecars::{Presence, Sidecar},
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    binder::{annotations::csi_name, matching::predicate::claim_class},
    kube_api::{
        ids::{ClaimKey, ClassName},
        kinds::{ClaimPhase, Narrow, PersistentVolumeClaim, StorageClass},
    },
};

/// Claims of the class that are shown.
const MOST: usize = 20;

/// The chain of a class: itself, and the claims of it that wait.
pub(super) fn links(view: &View<'_>, name: &ClassName) -> Vec<Link> {
    let subject = Subject::Class(name.clone());
    let Some(class) = get::<StorageClass>(view, name) else {
        return vec![match view.missing::<StorageClass>(name) {
            Missing::Absent => return without_object(view, &subject, name),
            Missing::Unreadable(error) => Link::new(
                &subject,
                "ObjectUnreadable",
                format!("class {name} cannot be read: {error}"),
                Verdict::Blocked,
            ),
            Missing::Unseen(why) => Link::new(
                &subject,
                "Forbidden",
                format!("class {name} could not be read: {why}"),
                Verdict::Forbidden,
            ),
        }];
    };
    // By the name of the CSI driver that took it over.
    let named = class.provisioner.as_str();
    let driver = csi_name(named).unwrap_or(named);
    let when =
        class.volume_binding_mode.map_or_else(|| "no binding mode".to_owned(), |mode| format!("{mode:?}"));
    let first = match view.sidecars.presence(driver, Sidecar::Provisioner) {
        _ if driver == NO_PROVISIONER => {
            Link::new(&subject, "NoProvisioner", "its volumes are made by hand", Verdict::Healthy)
        }
        Presence::Seen => {
            Link::new(&subject, "ProvisionerSeen", format!("provisioner {driver} is there"), Verdict::Healthy)
        }
        Presence::NoLease => {
            let message = format!(
                "served by {driver}; there is no lease of it: it runs without leader election, or not"
            );
            Link::new(&subject, "ProvisionerUnknown", message, Verdict::Healthy)
        }
        Presence::Unknown => {
            let message =
                format!("served by {driver}; whether it is there cannot be told from what was read");
            Link::new(&subject, "ProvisionerUnknown", message, Verdict::Healthy)
        }
        Presence::Gone(since) => {
            let message = format!("provisioner {driver} was seen last at {since}: its lease is not renewed");
            absent(&subject, driver, message)
        }
        Presence::NotSeen => {
            let message = format!("nothing answers to the name {driver}: no lease, no CSIDriver, no event");
            absent(&subject, driver, message)
        }
    };
    let detail = format!("{named}  {when}  {:?}", class.reclaim_policy);
    // Who reads by name has not seen the claims.
    if !view.snapshot.is_listed::<PersistentVolumeClaim>() {
        return vec![first.detail(detail)];
    }
    let waiting = waiting(view, name);
    let told = counted(&waiting);
    let claims = waiting.iter().take(MOST).map(|key| claim::link(view, key));
    std::iter::once(first.detail(format!("{detail}  {told}"))).chain(claims).collect()
}

/// Claims of a class that are not bound.
fn waiting(view: &View<'_>, name: &ClassName) -> Vec<ClaimKey> {
    let mut waiting: Vec<ClaimKey> = Vec::new();
    view.objects().claims.for_each(|claim| {
        if claim.status.phase != ClaimPhase::Bound && *claim_class(claim) == *name.as_str() {
            waiting.push(claim.key());
        }
    });
    waiting.sort();
    waiting
}

fn counted(waiting: &[ClaimKey]) -> String {
    match waiting.len() {
        1 => "1 claim waits".to_owned(),
        count => format!("{count} claims wait"),
    }
}

/// A class that claims may name although it does not exist: for volumes that are made by hand, or by mistake.
fn without_object(view: &View<'_>, subject: &Subject, name: &ClassName) -> Vec<Link> {
    let waiting = waiting(view, name);
    let mut message = format!("class {name} does not exist");
    match waiting.as_slice() {
        [] => {}
        [only] => message = format!("{message}, and claim {only} waits for it"),
        [first, ..] => message = format!("{message}, and {} for it, the first {first}", counted(&waiting)),
    }
    vec![Link::new(subject, "NotFound", message, Verdict::NotFound)]
}

fn absent(subject: &Subject, driver: &str, message: String) -> Link {
    Link::new(subject, "ProvisionerNotSeen", message, Verdict::Blocked)
        .blocked_by(program("Provisioner", driver), "not seen")
        .act(of_absent_program(driver))
}
