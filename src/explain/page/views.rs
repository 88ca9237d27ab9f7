//! The views: *Waiting now*, *Object*, *Node*. Pure.
//!
//! In: an answer. Out: its sheet as a page, with what only a page says: how many causes there are, and links to the other views.

use apiserver::kinds::ObjectRef;
use maud::html;

use super::{html::page, links::Links};
use crate::explain::{
    age::counted,
    doctor::{Findings, Severity},
    drain::DrainView,
    report::{Explanation, Verdict},
    sheet::Printed,
    subject,
};

/// Everything that waits, by its cause; the worst comes first.
pub(super) fn waiting(links: &Links, now: &Findings) -> String {
    let causes = now.findings.iter().filter(|finding| finding.severity != Severity::Risk).count();
    let first = html! {
        @if causes > 0 { p { (counted(causes, "cause")) ", the worst first." } }
        @else if now.unchecked.is_empty() { p .nothing { "Nothing is waiting." } }
        // What was not read may wait, too.
        @else { p .nothing { "Nothing that could be read is waiting." } }
    };
    page(links, "Waiting now", &first, &now.sheet(true), &now.observed)
}

/// One explanation.
pub(super) fn object(links: &Links, it: &Explanation) -> String {
    let subject = subject::of(&it.subject);
    let title = subject.as_ref().map(|it| format!("{} {}", it.kind(), subject::full_name(it)));
    let node = match &subject {
        Some(ObjectRef::Node(name)) if it.verdict != Verdict::NotFound => links.node(name.as_str()),
        _ => None,
    };
    let first = html! { @if let Some(path) = node { p { a href=(path) { "What this node still holds" } } } };
    page(links, &title.unwrap_or_default(), &first, &it.sheet(true), &it.observed)
}

/// What a node still holds, for the one who drains it.
pub(super) fn node(links: &Links, now: &DrainView) -> String {
    let object = links.path_of(&ObjectRef::Node(now.node.as_str().into()));
    let first = html! {
        p .why { "It has " (counted(now.volumes.len(), "volume")) "." }
        @if let Some(path) = object.filter(|_| now.verdict != Verdict::NotFound) {
            p { a href=(path) { "Why, for the node itself" } }
        }
        @if now.volumes.is_empty() && !now.unseen.is_empty() { p .nothing { "Nothing that could be read." } }
        @else if now.volumes.is_empty() { p .nothing { "Nothing: no volume is attached here, or about to be." } }
    };
    page(links, &format!("Node {}", now.node), &first, &now.sheet(true), &now.observed)
}
