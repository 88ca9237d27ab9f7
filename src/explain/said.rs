//! What the provisioner and the kubelet said last, in their events: they write no status that could be read.
//!
//! In: events as they were read. Out: the latest warning about an object.

use apiserver::ids::Uid;
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};

use super::{age, sidecars::source, view::View};

/// The stock binder, whose events about provisioning tell nothing of the provisioner itself.
// KCM: pkg/controller/volume/persistentvolume/pv_controller_base.go.
const BINDER: &str = "persistentvolume-controller";

/// The latest warning about an object for one of the reasons, unless the binder itself gave it: when, and in the program's own
/// words.
pub(super) fn last_warning<'a>(view: &View<'a>, uid: &Uid, reasons: &[&str]) -> Option<(Timestamp, &'a str)> {
    let is_meant = |event: &&Event| {
        event.type_.as_deref() == Some("Warning")
            && event.reason.as_deref().is_some_and(|reason| reasons.contains(&reason))
            && is_about(event, uid)
            && source(event) != Some(BINDER)
    };
    let told = view.snapshot.events.iter().filter(is_meant);
    told.filter_map(|event| Some((at(event)?, event.message.as_deref()?))).max_by_key(|(at, _)| *at)
}

/// What any program said last about an object, as a sentence's end: all that one may know who may read
/// nothing but events.
pub(super) fn last_word(view: &View<'_>, uid: &Uid) -> Option<String> {
    let told = view.snapshot.events.iter().filter(|event| is_about(event, uid));
    let (at, event) = told.filter_map(|event| Some((at(event)?, event))).max_by_key(|(at, _)| *at)?;
    let by = source(event).unwrap_or("an event");
    let reason = event.reason.as_deref().unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    let age = age::between(at, view.now());
    Some(format!("its last event, {age} ago, is from {by}: {reason}: {message}"))
}

/// Whether the binder says that it holds a write of an object back, or could not carry it out.
pub(super) fn is_held_back(event: &Event, uid: &Uid) -> bool {
    let reasons = ["FailedBinding", "FailedUpdate", "ForeignWriter", "RestoreGrace"];
    let is_of_binder = |reason: &str| {
        reasons.contains(&reason) || reason == "ProvisioningFailed" && source(event) == Some(BINDER)
    };
    is_about(event, uid) && event.reason.as_deref().is_some_and(is_of_binder)
}

/// When anything was last said about an object.
pub(super) fn last_told(view: &View<'_>, uid: &Uid) -> Option<Timestamp> {
    view.snapshot.events.iter().filter(|event| is_about(event, uid)).filter_map(at).max()
}

/// When an event was last given.
pub(super) fn at(event: &Event) -> Option<Timestamp> {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|time| time.0);
    series.or(last).or(event.event_time.as_ref().map(|time| time.0))
}

pub(super) fn is_about(event: &Event, uid: &Uid) -> bool {
    event.involved_object.uid.as_deref().is_some_and(|of| Uid::from(of) == *uid)
}
