//! A VolumeAttributesClass: which claims and volumes name it, and what keeps it while it is being deleted.
//!
//! In: what the protection controller's own table of users shows ([`crate::vac_protection::users`]). Out: a [`Link`].

use apiserver::{
    ids::AttributesClassName,
    kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass},
};

use super::{
    age,
    links::{Link, missing},
    report::Verdict,
    subject::field,
    table::Facts,
    view::{View, finalizers, get},
};
use crate::controller::finalizer::Protected as _;

/// Claims and volumes that are named in an answer.
const MOST_USERS: usize = 5;

/// The link of a class.
pub(super) fn link(view: &View<'_>, name: &AttributesClassName) -> Link {
    let subject = ObjectRef::AttributesClass(name.clone());
    // Who names the class, all claims and volumes say. Of a server without the kind only a list tells that it is none: asked for an
    // object, it answers as if there were no such one.
    view.list::<VolumeAttributesClass>();
    view.list::<PersistentVolumeClaim>();
    view.list::<PersistentVolume>();
    let (count, users) = users(view, name);
    let Some(class) = get::<VolumeAttributesClass>(view, name) else {
        let mut link = missing::<VolumeAttributesClass>(view, &subject, name, "NotFound");
        if link.verdict == Verdict::NotFound && count > 0 {
            link.step.message = format!("{}, and is named by {users}", link.step.message);
        }
        return link;
    };
    view.read::<VolumeAttributesClass>(name);
    let sees_users =
        view.snapshot.is_listed::<PersistentVolumeClaim>() && view.snapshot.is_listed::<PersistentVolume>();
    let deleted = class.metadata.deletion_timestamp.as_deref().copied();
    let is_kept = is_protected(&class);
    let is_unused = count == 0 && sees_users;
    let case = match deleted {
        None if is_kept => "Protected",
        None => "NotProtected",
        Some(_) if is_unused && is_kept && age::is_long(deleted, view.now()) => "FinalizerWithoutOwner vac",
        Some(_) => "Terminating vac",
    };
    let users = match count {
        0 if sees_users => "none".to_owned(),
        0 => "not known".to_owned(),
        _ => users,
    };
    let all = finalizers(&class.metadata);
    let facts: Facts<'_> =
        &[("users", &users), ("finalizers", &all), ("finalizer", &AttributesClassName::FINALIZER)];
    let driver = view.whole(&subject).map(|class| field(class, "driverName").to_owned());
    let since = deleted.or(class.metadata.creation_timestamp);
    Link::told(&subject, case, facts).detail(driver.unwrap_or_default()).since(since)
}

/// Whether the class has the finalizer that keeps it while something names it.
pub(super) fn is_protected(class: &VolumeAttributesClass) -> bool {
    class.metadata.finalizers.iter().any(|it| &**it == AttributesClassName::FINALIZER)
}

/// How many claims and volumes name a class, and the first of them.
fn users(view: &View<'_>, name: &AttributesClassName) -> (usize, String) {
    let users: Vec<&ObjectRef> = view.naming_class(name).collect();
    let mut told: Vec<String> = users.iter().take(MOST_USERS).map(ToString::to_string).collect();
    if let Some(more) = users.len().checked_sub(MOST_USERS).filter(|more| *more > 0) {
        told.push(format!("{more} more"));
    }
    (users.len(), told.join(", "))
}
