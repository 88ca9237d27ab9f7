//! What every page has: head, a way past the navigation, landmarks, what was looked at. Pure.

use maud::{DOCTYPE, Markup, html};

use super::{
    links::Links,
    text::{Text, moment},
};
use crate::explain::{
    report::{Observed, Verdict},
    subject,
};

/// A page around its content.
pub(super) fn page(links: &Links, title: &str, observed: Option<&Observed>, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (Text(title)) " · mooring" }
                link rel="stylesheet" href=(links.path("page.css"));
                link rel="icon" type="image/svg+xml" href=(links.path("icon.svg"));
                script src=(links.path("page.js")) defer {}
            }
            body {
                a .skip href="#content" { "Skip to the content" }
                header {
                    nav aria-label="Pages" {
                        a .home href=(links.path("")) { "mooring" }
                        a href=(links.path("")) { "Waiting now" }
                    }
                    (search(links))
                }
                main #content tabindex="-1" { (content) }
                footer {
                    @if let Some(observed) = observed { p { (looked_at(observed)) } }
                    p { "Nothing here changes anything in the cluster." }
                }
            }
        }
    }
    .into_string()
}

/// Leads to the page of any object; needs no script.
fn search(links: &Links) -> Markup {
    let kinds = subject::words().filter_map(|word| Some((word, subject::named(word, "-", "-").ok()?.kind())));
    html! {
        form role="search" action=(links.path("go")) method="get" {
            label { "Kind " select name="kind" { @for (word, kind) in kinds { option value=(word) { (kind) } } } }
            label { "Namespace " input name="namespace" autocomplete="off" spellcheck="false" placeholder="default"; }
            label { "Name " input name="name" required autocomplete="off" spellcheck="false"; }
            button type="submit" { "Explain" }
        }
    }
}

fn looked_at(observed: &Observed) -> Markup {
    html! {
        "As of " (moment(observed.at))
        ", read with your rights; only the controller knows its timers"
        @if let Some(revision) = &observed.resource_version { ", revision " (Text(revision)) }
        "."
    }
}

/// How something stands: a word and a sign, with a colour that says the same again.
pub(super) fn verdict(verdict: Verdict, shown: &str) -> Markup {
    let (class, sign, word) = match verdict {
        Verdict::Healthy => ("healthy", "✓", shown),
        Verdict::Waiting => ("waiting", "…", shown),
        Verdict::Blocked => ("blocked", "✗", shown),
        Verdict::NotFound => ("unknown", "?", "Not found"),
        Verdict::Forbidden => ("unknown", "?", shown),
    };
    html! { strong .verdict .(class) { span aria-hidden="true" { (sign) } " " (word) } }
}

/// A table that may be wider than the window: it is scrolled on its own, also by keyboard.
pub(super) fn scrolled(label: &str, table: &Markup) -> Markup {
    html! { div .scrolled role="region" aria-label=(label) tabindex="0" { (table) } }
}

/// A page that says why there is none.
pub(super) fn trouble(links: &Links, title: &str, why: &str) -> String {
    page(links, title, None, &html! { h1 { (title) } p { (Text(why)) } })
}

/// The same as text, for a ticket.
pub(super) fn as_text(told: &str) -> Markup {
    html! {
        @if !told.is_empty() {
            section aria-labelledby="as-text" {
                h2 #as-text { "As text" }
                p .copy hidden { button type="button" data-copies="told" { "Copy" } span role="status" {} }
                pre #told tabindex="0" role="region" aria-label="The same as text" { (Text(told)) }
            }
        }
    }
}
