//! *Node*: what a node still holds, for the one who drains it. Pure.

use maud::{Markup, html};

use super::{
    layout,
    links::Links,
    text::{self, Text},
    values::{NodeNow, Told},
};
use crate::explain::{report::Verdict, subject::Subject};

/// Holdings shown at most: no node has more volumes.
const MOST: usize = 1_000;

/// The page.
pub(super) fn page(links: &Links, told: &Told<NodeNow>) -> String {
    let now = &told.value;
    let title = format!("Node {}", now.name);
    let object = links.of_subject(&Subject::Node(now.name.as_str().into()));
    let content = html! {
        h1 { (Text(&title)) }
        p .headline { (layout::verdict(now.verdict)) " " (Text(&now.headline)) }
        p .why { (Text(&now.summary)) }
        @if let Some(path) = object.filter(|_| now.verdict != Verdict::NotFound) { p { a href=(path) { "Why, for the node itself" } } }
        (holdings(links, now))
        (layout::unseen(&now.unseen))
        (layout::as_text(&told.text))
    };
    layout::page(links, &title, Some(&now.observed), &content)
}

fn holdings(links: &Links, now: &NodeNow) -> Markup {
    let table = html! {
        table {
            thead {
                tr {
                    th scope="col" { "Volume" } th scope="col" { "Pod" } th scope="col" { "Reason" } th scope="col" { "Waits for" }
                    th scope="col" { "Since" }
                }
            }
            tbody {
                @for one in now.holdings.iter().take(MOST) {
                    tr {
                        th scope="row" { (links.object(&one.volume)) }
                        td { @match &one.pod { Some(pod) => (links.object(pod)), None => "none" } }
                        td { (links.code(&one.reason, None)) }
                        td { (Text(&one.message)) }
                        td { (text::since(one.since, now.observed.at)) }
                    }
                }
            }
        }
    };
    html! {
        section aria-labelledby="holdings" {
            h2 #holdings { "What it still holds " span .count { "(" (now.holdings.len()) ")" } }
            @if now.holdings.is_empty() && !now.unseen.is_empty() { p .nothing { "Nothing that could be read." } }
            @else if now.holdings.is_empty() { p .nothing { "Nothing: no volume is attached here, or about to be." } }
            @else { (layout::scrolled("Volumes of this node", &table)) }
        }
    }
}
