//! What the repository says about itself leads somewhere: ids and sections that code, tests and pages cite are in
//! `docs/spec`, each promise of `docs/spec/safety.md` is shown by a test or is an accepted gap, links between pages lead
//! to files and headings, and every switch is in `docs/testing.md`.
//!
//! In: the text of the repository's files. Out: one line per place that leads nowhere. Which words are ids is the table
//! [`ids::IDS`].

// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod files;
mod ids;
mod links;
mod pages;
mod promises;
mod sections;
mod switches;

/// One line per place, or nothing.
fn none(kind: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{} {kind}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_id_that_is_cited_is_in_the_specification() {
    none("ids lead nowhere", &ids::that_lead_nowhere());
}

#[test]
fn every_section_that_is_cited_is_there() {
    none("sections are not there", &sections::that_are_not_there());
}

#[test]
fn every_row_of_a_catalogue_is_in_the_specification() {
    none("rows are not there", &ids::rows_that_are_not_there());
}

#[test]
fn every_promise_is_shown_by_a_test_or_is_an_accepted_gap() {
    none("promises are not accounted for", &promises::not_accounted_for());
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    none("links lead nowhere", &links::that_lead_nowhere());
}

#[test]
fn every_switch_of_the_tests_is_described() {
    none("switches differ from docs/testing.md", &switches::that_differ());
}
