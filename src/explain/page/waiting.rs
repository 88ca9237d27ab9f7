//! *Waiting now*: everything that waits, by reason. Pure.
//!
//! In: all waits, in what order they are wanted, and of which reason. Out: a table for each reason; what needs a person comes first.
//! Of a reason with many waits the first are shown, so that the page of a large cluster in trouble can still be read.

use std::{cmp::Reverse, collections::BTreeMap};

use maud::{Markup, html};

use super::{
    layout,
    links::Links,
    text::{self, Text},
    values::{Told, WaitingNow, WaitingRow},
};

/// Waits shown of each reason.
const EACH: usize = 50;
/// Waits shown of a reason that is asked for alone: a page of half a megabyte.
const ALONE: usize = 2_000;

/// In what order waits are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// Those that wait longest first.
    #[default]
    Oldest,
    /// Those that wait shortest first.
    Newest,
    /// By name.
    Name,
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub order: Order,
    pub reason: Option<String>,
}

impl Order {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Oldest, "oldest", "longest first"),
        (Self::Newest, "newest", "shortest first"),
        (Self::Name, "name", "by name"),
    ];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(order, ..)| *order == self).map_or("", |(_, word, _)| word)
    }
}

impl Query {
    /// From what stands behind the `?`; what is not known is left out.
    pub(super) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match key.as_ref() {
                "sort" => {
                    let known = Order::ALL.iter().find(|(_, word, _)| *word == value);
                    parsed.order = known.map_or(Order::default(), |(order, ..)| *order);
                }
                "reason"
                    if value.chars().all(|letter| letter.is_ascii_alphanumeric()) && !value.is_empty() =>
                {
                    parsed.reason = Some(value.into_owned());
                }
                _ => {}
            }
        }
        parsed
    }

    fn path(&self, links: &Links) -> String {
        let mut query = vec![format!("sort={}", self.order.word())];
        query.extend(self.reason.as_ref().map(|reason| format!("reason={reason}")));
        links.path(&format!("?{}", query.join("&")))
    }
}

/// The page.
pub(super) fn page(links: &Links, told: &Told<WaitingNow>, query: &Query) -> String {
    let now = &told.value;
    let groups = groups(now, query);
    let content = html! {
        h1 { "Waiting now" }
        @if groups.is_empty() {
            (nothing(now, query, links))
        } @else {
            p { (count(groups.iter().map(|(_, rows)| rows.len()).sum(), "object waits", "objects wait")) ", by reason." }
            (orders(links, query))
            @for (reason, rows) in &groups { (group(links, now, query, reason, rows)) }
        }
        (layout::unseen(&now.unseen))
        (layout::as_text(&told.text))
    };
    layout::page(links, "Waiting now", Some(&now.observed), &content)
}

fn nothing(now: &WaitingNow, query: &Query, links: &Links) -> Markup {
    html! {
        @match &query.reason {
            Some(reason) => {
                p .nothing { "Nothing is waiting for the reason " (reason) "." }
                p { a href=(links.path("")) { "All reasons" } }
            },
            // What was not read may wait, too.
            None if !now.unseen.is_empty() => p .nothing { "Nothing that could be read is waiting." },
            None => p .nothing { "Nothing is waiting." },
        }
    }
}

/// The rows of each reason, in the wanted order; the reasons by what is worst, then by their first row.
fn groups<'a>(now: &'a WaitingNow, query: &Query) -> Vec<(&'a str, Vec<&'a WaitingRow>)> {
    let mut groups: BTreeMap<&str, Vec<&WaitingRow>> = BTreeMap::new();
    for row in &now.rows {
        if query.reason.as_ref().is_none_or(|reason| *reason == row.reason) {
            groups.entry(&row.reason).or_default().push(row);
        }
    }
    for rows in groups.values_mut() {
        rows.sort_by(|one, other| (&one.object, &one.detail).cmp(&(&other.object, &other.detail)));
        match query.order {
            Order::Oldest => rows.sort_by_key(|row| row.since.unwrap_or(now.observed.at)),
            Order::Newest => rows.sort_by_key(|row| Reverse(row.since.unwrap_or(now.observed.at))),
            Order::Name => {}
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // Stable: reasons that are alike in this stay in the order of their names.
    groups.sort_by_key(|(_, rows)| {
        let worst = rows.iter().map(|row| row.verdict).max();
        let first = rows.first().and_then(|row| row.since).unwrap_or(now.observed.at).as_second();
        let by_age = match query.order {
            Order::Oldest => first,
            Order::Newest => -first,
            Order::Name => 0,
        };
        (Reverse(worst), by_age)
    });
    groups
}

fn orders(links: &Links, query: &Query) -> Markup {
    html! {
        nav aria-label="Order" {
            @for (order, _, text) in Order::ALL {
                @let path = Query { order, ..query.clone() }.path(links);
                @if order == query.order { a href=(path) aria-current="true" { (text) } } @else { a href=(path) { (text) } }
            }
        }
    }
}

fn group(links: &Links, now: &WaitingNow, query: &Query, reason: &str, rows: &[&WaitingRow]) -> Markup {
    let shown = if query.reason.is_some() { ALONE } else { EACH };
    let left_out = rows.len().saturating_sub(shown);
    let alone = Query { reason: Some(reason.to_owned()), ..query.clone() };
    let worst = rows.iter().map(|row| row.verdict).max();
    let table = html! {
        table {
            thead { tr { th scope="col" { "Object" } th scope="col" { "Waits for" } th scope="col" { "Since" } th scope="col" { "Ends by itself" } } }
            tbody {
                @for row in rows.iter().take(shown) {
                    tr {
                        th scope="row" {
                            span .kind { (Text(&row.object.kind)) } " " (links.object(&row.object))
                            @if !row.detail.is_empty() { " " (Text(&row.detail)) }
                        }
                        td { (Text(&row.message)) }
                        td { (text::since(row.since, now.observed.at)) }
                        td { @match row.until { Some(until) => (text::until(until, now.observed.at)), None => "no timer" } }
                    }
                }
            }
        }
    };
    html! {
        section {
            h2 { (links.code(reason, None)) " " span .count { "(" (rows.len()) ")" } @if let Some(worst) = worst { " " (layout::verdict(worst)) } }
            (layout::scrolled(&format!("Waits with the reason {reason}"), &table))
            @if left_out > 0 {
                p {
                    (left_out) " more are not shown."
                    @if query.reason.is_none() { " " a href=(alone.path(links)) { "All with the reason " (Text(reason)) } }
                }
            }
        }
    }
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
