//! `coverage.yaml`: every id of the catalogue has a case, or a reason why not.

use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::{Failed, Trial};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// Single ids, and ranges such as `R-01..09`.
    ids: Vec<String>,
    without: BTreeMap<String, String>,
}

/// A trial that looks at the names of the others.
pub fn trial(coverage: Coverage, others: &[Trial]) -> Trial {
    let covered: BTreeSet<String> = others.iter().flat_map(|trial| ids_of(trial.name())).collect();
    Trial::test("coverage: every id of the catalogue has a case or a reason", move || {
        check(&coverage, &covered)
    })
}

fn check(coverage: &Coverage, covered: &BTreeSet<String>) -> Result<(), Failed> {
    let ids: BTreeSet<String> = coverage.ids.iter().flat_map(|range| expand(range)).collect();
    let excused: BTreeSet<String> = coverage.without.keys().cloned().collect();
    let is_of_catalogue = |id: &&String| {
        let family = |id: &str| id.split('-').next().map(str::to_owned);
        ids.iter().any(|known| family(known) == family(id))
    };
    let faults = [
        ("neither covered nor excused", &ids - &(covered | &excused)),
        ("covered and excused", covered & &excused),
        ("excused, but not in the catalogue", &excused - &ids),
        (
            "covered, but not in the catalogue",
            (covered - &ids).iter().filter(is_of_catalogue).cloned().collect(),
        ),
    ];
    let lines: Vec<String> = faults
        .into_iter()
        .filter(|(_, ids)| !ids.is_empty())
        .map(|(fault, ids)| format!("{fault}: {}", ids.into_iter().collect::<Vec<_>>().join(" ")))
        .collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n").into()) }
}

/// The ids at the beginning of a trial's name, behind its table.
fn ids_of(name: &str) -> Vec<String> {
    let title = name.split_once(": ").map_or(name, |(_, title)| title);
    let is_id = |word: &&str| {
        word.chars().next().is_some_and(char::is_uppercase) && word.chars().any(|c| c.is_ascii_digit())
    };
    title.split(' ').take_while(is_id).filter(|word| word.contains('-')).map(str::to_owned).collect()
}

fn expand(range: &str) -> Vec<String> {
    let Some((first, last)) = range.split_once("..") else { return vec![range.to_owned()] };
    let (family, first) = first.rsplit_once('-').expect("a range such as R-01..09");
    let number = |text: &str| text.parse::<usize>().expect("a number");
    (number(first)..=number(last)).map(|number| format!("{family}-{number:02}")).collect()
}
