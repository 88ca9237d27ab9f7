//! Switches: the variables `MOORING_…` that tests, builds and scripts read are those of the table in `docs/testing.md`.

use std::collections::BTreeSet;

use crate::files;

const PAGE: &str = "docs/testing.md";
const PREFIX: &str = "MOORING_";
/// Files that speak of a switch without reading it, or that are about none.
const SKIPPED: [&str; 2] = ["docs/", "tests/docs/"];

pub fn that_differ() -> Vec<String> {
    let described = switches(&files::read(PAGE));
    let read: BTreeSet<String> = files::all()
        .iter()
        .filter(|file| !SKIPPED.iter().any(|folder| file.path.starts_with(folder)))
        .flat_map(|file| switches(&file.text))
        .collect();
    let missing = read.difference(&described).map(|switch| format!("{switch} is not in {PAGE}"));
    let stale = described.difference(&read).map(|switch| format!("{switch} in {PAGE} is nowhere else"));
    missing.chain(stale).collect()
}

fn switches(text: &str) -> BTreeSet<String> {
    text.split(PREFIX)
        .skip(1)
        .map(|rest| {
            rest.chars()
                .take_while(|letter| letter.is_ascii_uppercase() || *letter == '_')
                .collect::<String>()
        })
        .filter(|name| !name.is_empty())
        .map(|name| format!("{PREFIX}{name}"))
        .collect()
}
