//! *Object*: one explanation. Pure.
//!
//! In: the report, and what the command line prints of it. Out: first the one sentence, then the chain from the pod to the node with
//! the blocker marked by a word, what to do and what never, candidates, what happened, what shows it, what could not be seen.

use maud::{Markup, html};

use super::{
    layout,
    links::Links,
    text::{self, Text},
};
use crate::explain::{
    report::{Action, Candidate, Explanation, Risk, Step, Verdict},
    subject::Subject,
    text::{Style, command, text},
};

/// The page.
pub(super) fn page(links: &Links, it: &Explanation) -> String {
    let subject = Subject::of(&it.subject);
    let node = match &subject {
        Some(Subject::Node(name)) if it.verdict != Verdict::NotFound => links.node(name.as_str()),
        _ => None,
    };
    let namespace = subject.as_ref().and_then(Subject::namespace).map(|it| format!("{it}/"));
    let (kind, name) = subject.as_ref().map_or(("", ""), |it| (it.kind(), it.name()));
    let title = format!("{kind} {}{name}", namespace.unwrap_or_default());
    let content = html! {
        h1 { (Text(&title)) }
        p .headline { (layout::verdict(it.verdict)) " " (Text(&it.headline)) }
        p .why { @if !it.reason.is_empty() { (links.code(&it.reason)) ": " } (Text(&it.summary)) }
        @if let Some(path) = node { p { a href=(path) { "What this node still holds" } } }
        (chain(links, it))
        (actions(&it.actions))
        (candidates(links, it))
        (happened(it))
        (layout::unseen(it.unseen.iter(), &it.unknown))
        (layout::as_text(&text(it, Style { utc: true, wide: true, ..Style::default() })))
    };
    layout::page(links, &title, Some(&it.observed), &content)
}

fn chain(links: &Links, it: &Explanation) -> Markup {
    html! {
        @if !it.steps.is_empty() {
            section aria-labelledby="chain" {
                h2 #chain { "Who waits for whom" }
                ol .chain { @for one in &it.steps { (step(links, it, one)) } }
            }
        }
    }
}

fn step(links: &Links, it: &Explanation, step: &Step) -> Markup {
    html! {
        li class=[step.is_blocker.then_some("blocker")] {
            @if step.is_blocker { p .mark { strong { "Blocker" } } }
            p .what { (links.object(&step.object)) }
            @if !step.detail.is_empty() { p .detail { (Text(&step.detail)) } }
            p .reason { (links.code(&step.reason)) }
            @if !step.message.is_empty() { p { (Text(&step.message)) } }
            @if step.since.is_some() { p { "For " (text::since(step.since, it.observed.at)) } }
            @for blocker in &step.blocked_by {
                p { "Waits for " (links.object(&blocker.object)) @if !blocker.why.is_empty() { ": " (Text(&blocker.why)) } }
            }
            @if let Some(next) = &step.next {
                p {
                    "Next: " (Text(&next.action))
                    @match (next.not_before, next.at) {
                        (Some(first), Some(last)) => { ", between " (text::until(first, it.observed.at)) " and " (text::until(last, it.observed.at)) },
                        (None, Some(at)) => { ", at " (text::until(at, it.observed.at)) },
                        (Some(first), None) => { ", not before " (text::until(first, it.observed.at)) },
                        (None, None) => {},
                    }
                    @if let Some(condition) = &next.condition {
                        (if next.at.is_some() { ", if " } else { ", when " }) (Text(condition))
                    }
                }
            }
        }
    }
}

fn actions(actions: &[Action]) -> Markup {
    let kinds = [
        (Risk::Safe, "safe", "Safe to do"),
        (Risk::Care, "care", "Needs care"),
        (Risk::Danger, "danger", "Never"),
    ];
    html! {
        @if !actions.is_empty() {
            section aria-labelledby="actions" {
                h2 #actions { "What to do" }
                @for (risk, class, title) in kinds {
                    @let of_kind: Vec<&Action> = actions.iter().filter(|action| action.risk == risk).collect();
                    @if !of_kind.is_empty() {
                        div .risk .(class) {
                            h3 { (title) }
                            ul {
                                @for action in of_kind {
                                    li {
                                        (Text(&action.text))
                                        @if !action.command.is_empty() { pre tabindex="0" { (Text(&command(&action.command))) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn candidates(links: &Links, it: &Explanation) -> Markup {
    let row = |candidate: &Candidate| {
        let object = Subject::Volume(candidate.name.as_str().into());
        html! {
            tr {
                th scope="row" { (links.name(&object)) }
                td { (Text(&candidate.size)) }
                td { (Text(&candidate.modes)) }
                td { (Text(&candidate.class)) }
                td {
                    @if candidate.faults.is_empty() { "fits" } @else {
                        ul { @for fault in &candidate.faults { li { (links.code(&fault.reason)) " " (Text(&fault.detail)) } } }
                    }
                }
            }
        }
    };
    let table = html! {
        table {
            thead { tr { th scope="col" { "Name" } th scope="col" { "Size" } th scope="col" { "Modes" } th scope="col" { "Class" } th scope="col" { "Result" } } }
            tbody { @for candidate in &it.candidates { (row(candidate)) } }
        }
    };
    html! {
        @if !it.candidates.is_empty() {
            section aria-labelledby="candidates" {
                h2 #candidates { "Candidates " span .count { "(" (it.candidates.len()) ")" } }
                (layout::scrolled("Candidates", &table))
            }
        }
    }
}

fn happened(it: &Explanation) -> Markup {
    html! {
        @if !it.timeline.is_empty() {
            section aria-labelledby="timeline" {
                h2 #timeline { "What happened" }
                ol .timeline { @for one in &it.timeline { li { (text::at(one.at)) " " (Text(&one.text)) } } }
            }
        }
        @if !it.evidence.is_empty() {
            section aria-labelledby="evidence" {
                h2 #evidence { "What shows it" }
                ul {
                    @for one in &it.evidence {
                        li { @if let Some(at) = one.at { (text::at(at)) " " } span .kind { (Text(&one.from)) } " " (Text(&one.text)) }
                    }
                }
            }
        }
    }
}
