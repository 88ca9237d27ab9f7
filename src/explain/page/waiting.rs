//! *Waiting now*: everything that waits, by its cause. Pure.
//!
//! In: what the doctor found. Out: a table with a row for each cause, in the doctor's order: the worst comes first.

use maud::{Markup, html};

use super::{layout, links::Links, text};
use crate::explain::{
    age::counted,
    doctor::{Finding, Findings, Severity},
    report::Verdict,
};

/// Causes that are shown: a page of some hundred kilobytes.
const MOST: usize = 500;

/// The page.
pub(super) fn page(links: &Links, now: &Findings) -> String {
    let waits = |finding: &&Finding| finding.severity != Severity::Risk;
    let waiting: Vec<&Finding> = now.findings.iter().filter(waits).collect();
    let content = html! {
        h1 { "Waiting now" }
        @if waiting.is_empty() {
            // What was not read may wait, too.
            p .nothing { @if now.unchecked.is_empty() { "Nothing is waiting." } @else { "Nothing that could be read is waiting." } }
        } @else {
            p { (counted(waiting.len(), "cause")) ", the worst first." }
            (layout::scrolled("What waits", &table(links, now, &waiting)))
            @if waiting.len() > MOST { p { (waiting.len() - MOST) " more are not shown." } }
        }
        (layout::unseen(now.unchecked.iter(), &[]))
        (layout::as_text(&now.to_string()))
    };
    layout::page(links, "Waiting now", Some(&now.observed), &content)
}

fn table(links: &Links, now: &Findings, waiting: &[&Finding]) -> Markup {
    let row = |finding: &Finding| {
        let verdict = if finding.severity == Severity::Blocked { Verdict::Blocked } else { Verdict::Waiting };
        html! {
            tr {
                td { (layout::verdict(verdict)) }
                th scope="row" {
                    @if let Some(example) = finding.examples.first() { (links.object(example)) }
                    @if finding.count > 1 { " and " (finding.count - 1) " more" }
                }
                td { (links.code(finding.reason)) ": " (text::Text(&finding.summary)) }
                td { (text::since(finding.oldest, now.observed.at)) }
                td { @match finding.next_at { Some(at) => (text::until(at, now.observed.at)), None => "no timer" } }
            }
        }
    };
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "Verdict" } th scope="col" { "Object" } th scope="col" { "Waits for" }
                    th scope="col" { "Since" } th scope="col" { "Ends by itself" }
                }
            }
            tbody { @for finding in waiting.iter().take(MOST) { (row(finding)) } }
        }
    }
}
