//! *Object*: one explanation. Pure.
//!
//! In: the report, and what the command line prints of it. Out: first the one sentence, then the chain from the pod to the node with
//! the blocker marked by a word, what to do and what never, candidates, what happened, what shows it, what could not be seen.

use maud::{Markup, html};

use super::{
    layout,
    links::{Links, named},
    text::{self, Text},
    values::Told,
};
use crate::explain::report::{Action, Candidate, Explanation, Risk, Step, Verdict};

/// The page.
pub(super) fn page(links: &Links, told: &Told<Explanation>) -> String {
    let it = &told.value;
    let subject = named(&it.subject);
    let name = match subject.namespace.as_str() {
        "" => subject.name.clone(),
        namespace => format!("{namespace}/{}", subject.name),
    };
    let title = format!("{} {name}", subject.kind);
    let node = (subject.kind == "Node" && it.verdict != Verdict::NotFound)
        .then(|| links.node(&subject.name))
        .flatten();
    let content = html! {
        h1 { (Text(&title)) }
        p .headline { (layout::verdict(it.verdict)) " " (Text(&it.headline)) }
        p .why { @if !it.reason.is_empty() { (links.code(&it.reason, None)) ": " } (Text(&it.summary)) }
        @if let Some(path) = node { p { a href=(path) { "What this node still holds" } } }
        (chain(links, it))
        (actions(&it.actions))
        (candidates(links, it))
        (happened(it))
        (unseen(it))
        (layout::as_text(&told.text))
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
    let object = named(&step.object);
    html! {
        li class=[step.is_blocker.then_some("blocker")] {
            @if step.is_blocker { p .mark { strong { "Blocker" } } }
            p .what { span .kind { (Text(&object.kind)) } " " (links.object(&object)) }
            @if !step.detail.is_empty() { p .detail { (Text(&step.detail)) } }
            p .reason { (links.code(&step.reason, step.docs.as_deref())) }
            @if !step.message.is_empty() { p { (Text(&step.message)) } }
            @if step.since.is_some() { p { "For " (text::since(step.since, it.observed.at)) } }
            @for blocker in &step.blocked_by {
                @let by = named(&blocker.object);
                p { "Waits for " span .kind { (Text(&by.kind)) } " " (links.object(&by)) @if !blocker.why.is_empty() { ": " (Text(&blocker.why)) } }
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
                                        @if !action.command.is_empty() { pre tabindex="0" { (Text(&typed(&action.command))) } }
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

/// A command as it can be pasted into a shell: a word that the shell would read otherwise is quoted.
fn typed(command: &[String]) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=+./:,@%".contains(letter);
    let words = command.iter().map(|word| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn candidates(links: &Links, it: &Explanation) -> Markup {
    // Of a claim they are volumes, of a volume claims.
    let kind = if named(&it.subject).kind == "PersistentVolume" { "pvc" } else { "pv" };
    let row = |candidate: &Candidate| {
        let (namespace, name) = candidate.name.split_once('/').unwrap_or(("", &candidate.name));
        let object = super::values::Named {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        html! {
            tr {
                th scope="row" { (links.object(&object)) }
                td { (Text(&candidate.size)) }
                td { (Text(&candidate.modes)) }
                td { (Text(&candidate.class)) }
                td {
                    @if candidate.faults.is_empty() { "fits" } @else {
                        ul { @for fault in &candidate.faults { li { (links.code(&fault.reason, None)) " " (Text(&fault.detail)) } } }
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

fn unseen(it: &Explanation) -> Markup {
    html! {
        @if !it.unseen.is_empty() || !it.unknown.is_empty() {
            section aria-labelledby="unseen" {
                h2 #unseen { "What is not known" }
                ul {
                    @for one in &it.unseen { li { (Text(&one.what)) ": " (Text(&one.why)) } }
                    @for one in &it.unknown { li { (Text(one)) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_pasted_as_it_is_meant() {
        let rows: [(&[&str], &str); 3] = [
            (&["kubectl", "label", "pv", "pv-1", "zone=a"], "kubectl label pv pv-1 zone=a"),
            (
                &["kubectl", "patch", "-p", "[{\"op\":\"remove\"}]"],
                "kubectl patch -p '[{\"op\":\"remove\"}]'",
            ),
            (&["echo", "it's; rm -rf", "$(x)", ""], "echo 'it'\\''s; rm -rf' '$(x)' ''"),
        ];
        for (words, expected) in rows {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(typed(&words), expected);
        }
    }
}
