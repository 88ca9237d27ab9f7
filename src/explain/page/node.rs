//! *Node*: what a node still holds, for the one who drains it. Pure.

use maud::{Markup, html};

use super::{
    layout,
    links::Links,
    text::{self, Text},
};
use crate::explain::{
    age::counted,
    drain::{DrainView, NodeVolume},
    report::Verdict,
    subject::Subject,
};

/// Volumes shown at most: no node has more.
const MOST: usize = 1_000;

/// The page.
pub(super) fn page(links: &Links, now: &DrainView) -> String {
    let title = format!("Node {}", now.node);
    let object = links.path_of(&Subject::Node(now.node.as_str().into()));
    let content = html! {
        h1 { (Text(&title)) }
        p .headline { (layout::verdict(now.verdict)) " " (Text(&now.state())) }
        p .why { "It has " (counted(now.volumes.len(), "volume")) "." }
        @if let Some(path) = object.filter(|_| now.verdict != Verdict::NotFound) { p { a href=(path) { "Why, for the node itself" } } }
        (volumes(links, now))
        (layout::unseen(now.unseen.iter(), &[]))
        (layout::as_text(&now.to_string()))
    };
    layout::page(links, &title, Some(&now.observed), &content)
}

fn volumes(links: &Links, now: &DrainView) -> Markup {
    let row = |one: &NodeVolume| {
        let pod = one.pod.as_deref().and_then(|pod| pod.split_once('/'));
        let pod = pod.and_then(|(namespace, name)| Subject::new("pod", namespace, name).ok());
        html! {
            tr {
                th scope="row" { (links.name(&Subject::Volume(one.volume.as_str().into()))) }
                td { @match &pod { Some(pod) => (links.name(pod)), None => "none" } }
                td { (one.stage.as_str()) }
                td { (Text(&one.waits_for)) }
                td { (text::since(one.since, now.observed.at)) }
            }
        }
    };
    let table = html! {
        table {
            thead {
                tr {
                    th scope="col" { "Volume" } th scope="col" { "Pod" } th scope="col" { "Stage" } th scope="col" { "Waits for" }
                    th scope="col" { "Since" }
                }
            }
            tbody { @for one in now.volumes.iter().take(MOST) { (row(one)) } }
        }
    };
    html! {
        section aria-labelledby="volumes" {
            h2 #volumes { "What it still holds " span .count { "(" (now.volumes.len()) ")" } }
            @if now.volumes.is_empty() && !now.unseen.is_empty() { p .nothing { "Nothing that could be read." } }
            @else if now.volumes.is_empty() { p .nothing { "Nothing: no volume is attached here, or about to be." } }
            @else { (layout::scrolled("Volumes of this node", &table)) }
        }
    }
}
