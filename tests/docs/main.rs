//! What the repository says about itself leads somewhere: ids and sections that code, tests and pages cite are in
//! `docs/spec`, each promise of `docs/spec/safety.md` is shown by a test or is an accepted gap, links between pages lead
//! to files and headings, the ways on the map go through the source, every switch is in `docs/testing.md`, reason codes
//! are those of the code and each has its page, cells of tables are short, and the justfile's commands can be read without it.
//!
//! In: the text of the repository's files. Out: one line per place that leads nowhere. Which words are ids is the table
//! [`ids::IDS`].

// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cells;
mod files;
mod ids;
mod links;
mod names;
mod pages;
mod promises;
mod reasons;
mod sections;
mod switches;
mod ways;

use std::collections::BTreeSet;

use serde_json::Value;
use serde_saphyr::from_multiple;

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
fn a_cell_has_two_sentences_at_most() {
    none("cells are too long", &cells::that_are_too_long());
}

#[test]
fn every_switch_of_the_tests_is_described() {
    none("switches differ from docs/testing.md", &switches::that_differ());
}

#[test]
fn every_reason_code_on_the_page_is_one() {
    none("codes are none", &names::codes_without_code());
}

#[test]
fn every_reason_code_has_a_page_and_every_page_a_code() {
    none("codes and pages differ", &reasons::codes_and_pages_that_differ());
}

#[test]
fn every_page_of_a_reason_has_the_same_headings() {
    none("pages are of another form", &reasons::pages_of_another_form());
}

#[test]
fn every_reason_in_a_runbook_leads_to_its_page() {
    none("mentions lead nowhere", &reasons::mentions_without_link());
}

#[test]
fn the_index_of_reasons_is_printed_from_the_rules() {
    assert!(
        reasons::index_is_as_printed(),
        "docs/reasons/README.md is not what the rules and pages are: MOORING_WRITE_DOCS=1 writes it anew"
    );
}

#[test]
fn the_index_of_runbooks_names_each_once() {
    none("runbooks and their index differ", &pages::runbooks_that_the_index_does_not_name());
}

#[test]
fn every_way_on_the_map_is_that_of_the_source() {
    none("entries are not so in the source", &ways::that_the_source_does_not_go());
}

#[test]
fn every_room_on_the_map_is_there() {
    none("rooms are not there", &names::rooms_without_code());
}

#[test]
fn who_is_told_to_make_a_volume_again_is_told_for_whom() {
    none("items leave a volume to any claim", &pages::volumes_made_again_for_anybody());
}

/// What is built is not what the changelog says was released before these changes.
#[test]
fn the_version_is_the_same_everywhere_and_not_a_released_one() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, text, said) in [
        ("Dockerfile", include_str!("../../Dockerfile"), format!("\nARG VERSION={version}\n")),
        (
            "deploy/kustomization.yaml",
            include_str!("../../deploy/kustomization.yaml"),
            format!("newTag: {version}\n"),
        ),
        (
            "deploy/helm/mooring/Chart.yaml",
            include_str!("../../deploy/helm/mooring/Chart.yaml"),
            format!("version: {version}\nappVersion: {version}\n"),
        ),
        (
            "deploy/static-pod/pod.yaml",
            include_str!("../../deploy/static-pod/pod.yaml"),
            format!("image: mooring:{version}\n"),
        ),
        (
            "deploy/observe/kustomization.yaml",
            include_str!("../../deploy/observe/kustomization.yaml"),
            format!("newTag: {version}\n"),
        ),
        ("README.md", include_str!("../../README.md"), format!("-t mooring:{version} .")),
    ] {
        assert!(text.contains(&said), "{file} is not of {version}");
    }
    let changes = include_str!("../../CHANGELOG.md");
    let unreleased = changes.split_once("\n## Unreleased\n").map_or("", |(_, rest)| rest);
    let unreleased = unreleased.split("\n## ").next().unwrap_or_default();
    let is_released = changes.contains(&format!("\n## {version} "));
    assert_eq!(
        is_released,
        unreleased.trim().is_empty(),
        "{version} and what the changelog has as unreleased"
    );
}

#[test]
fn every_command_of_the_justfile_can_be_read_without_it() {
    none("commands are not described", &names::commands_without_words());
}

/// Otherwise whoever removes the one takes from the other, behind whose fence nobody would rule.
#[test]
fn what_observes_shares_no_object_with_what_rules() {
    let objects = |folder: &str| -> BTreeSet<String> {
        let parse =
            |path: &str| from_multiple::<Value>(&files::read(&format!("{folder}/{path}"))).expect("YAML");
        let listed = parse("kustomization.yaml").remove(0)["resources"].take();
        let files = listed.as_array().expect("files").iter().filter_map(Value::as_str);
        let name = |object: Value| {
            let metadata = &object["metadata"];
            format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"])
        };
        files.flat_map(parse).map(name).collect()
    };
    let (rules, observes) = (objects("deploy"), objects("deploy/observe"));
    assert!(rules.len() > 10 && observes.len() > 4, "{rules:?} {observes:?}");
    assert_eq!(rules.intersection(&observes).collect::<Vec<_>>(), [""; 0]);
}
