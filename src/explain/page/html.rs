//! Sheets as HTML. Pure.
//!
//! In: a sheet. Out: its sections with lists and tables; codes lead to the pages about them and objects to theirs. The same as text
//! follows, for a ticket.

use apiserver::wire::rfc3339;
use k8s_openapi::jiff::Timestamp;
use maud::{Markup, html};

use super::{
    layout,
    links::Links,
    text::{Text, moment},
};
use crate::explain::{
    age,
    report::Observed,
    sheet::{Item, Section, Sheet, Table, Word, called, print, text::Style},
    subject,
};

/// The page of a sheet; what only the page says comes before its sections.
pub(super) fn page(links: &Links, title: &str, first: &Markup, sheet: &Sheet, observed: &Observed) -> String {
    let style = Style { utc: true, wide: true, program: links.program, ..Style::default() };
    let content = html! {
        h1 { (Text(title)) }
        @if !sheet.head.is_empty() { p .headline { (words(links, &sheet.head, sheet.now)) } }
        (first)
        @for one in &sheet.sections { (section(links, one, sheet.now)) }
        (layout::as_text(&print(sheet, style)))
    };
    layout::page(links, title, Some(observed), &content)
}

fn section(links: &Links, section: &Section, now: Timestamp) -> Markup {
    html! {
        @if !section.items.is_empty() || !section.table.rows.is_empty() {
            section {
                @if !section.title.is_empty() { h2 { (Text(&section.title)) } }
                @if !section.table.rows.is_empty() {
                    (layout::scrolled(section.table.heads.first().unwrap_or(&"rows"), &table(links, &section.table, now)))
                }
                @if !section.items.is_empty() { ul .items { @for one in &section.items { (item(links, one, now)) } } }
            }
        }
    }
}

fn item(links: &Links, item: &Item, now: Timestamp) -> Markup {
    let is_word = item.label.contains(char::is_alphanumeric);
    html! {
        li class=[item.is_blocker.then_some("blocker")] {
            @if item.is_blocker { p .mark { strong { "Blocker" } } }
            @for (index, line) in item.lines.iter().enumerate() {
                p { @if index == 0 && is_word { b { (Text(item.label.trim())) } " " } (words(links, line, now)) }
            }
            @for line in &item.verbatim { pre tabindex="0" { (Text(&called(line, links.program))) } }
        }
    }
}

fn table(links: &Links, table: &Table, now: Timestamp) -> Markup {
    html! {
        table {
            thead { tr { @for head in &table.heads { th scope="col" { (head) } } } }
            tbody {
                @for row in &table.rows {
                    tr {
                        @for (index, cell) in row.iter().enumerate() {
                            @if index == 0 { th scope="row" { (words(links, cell, now)) } }
                            @else { td { (words(links, cell, now)) } }
                        }
                    }
                }
            }
        }
    }
}

fn words(links: &Links, words: &[Word], now: Timestamp) -> Markup {
    html! { @for one in words { (word(links, one, now)) } }
}

fn word(links: &Links, word: &Word, now: Timestamp) -> Markup {
    match word {
        Word::Text(text) => html! { (Text(&called(text, links.program))) },
        Word::Reason(code) => links.code(code),
        Word::Object(object, shown) => links.shown(subject::of(object).as_ref(), shown),
        Word::Verdict(verdict, shown) => layout::verdict(*verdict, shown),
        Word::Since(at) => {
            html! { time datetime=(rfc3339(*at)) title=(rfc3339(*at)) { (age::between(*at, now)) } }
        }
        Word::Until(at) => {
            let left = at.as_second() - now.as_second();
            html! {
                (moment(*at)) " " span .countdown data-until=(at.as_second()) {
                    @if left > 0 { "in " (age::short(left)) } @else { "now" }
                }
            }
        }
    }
}
