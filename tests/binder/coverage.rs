//! `coverage.yaml` and the cases say the same: every row of the catalogue (pv-binder.md §16) has a case of
//! its id, or a reason why not; no id is used twice. A case with any other id is one of our own, so that a new one is
//! written in one place.

use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::{Failed, Trial};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// Single ids, and ranges of their last number such as `1-1..18`.
    ids: Vec<String>,
    /// Ids without a case, by the reason.
    without: BTreeMap<String, Vec<String>>,
}

/// A trial that compares it with the ids of the repository's cases.
pub fn trial(coverage: Coverage, cases: Vec<String>) -> Trial {
    Trial::test("coverage: every row of the catalogue has a case or a reason", move || {
        let ids: BTreeSet<String> = coverage.ids.iter().flat_map(|range| expand(range)).collect();
        let excused: BTreeSet<String> =
            coverage.without.values().flatten().flat_map(|range| expand(range)).collect();
        let mut covered = BTreeSet::new();
        let twice: BTreeSet<String> =
            cases.iter().filter(|id| !covered.insert((*id).clone())).cloned().collect();
        let faults = [
            ("neither covered nor excused", &ids - &(&covered | &excused)),
            ("covered and excused", &covered & &excused),
            ("excused, but not in the catalogue", &excused - &ids),
            ("used by two cases", twice),
        ];
        let lines: Vec<String> = faults
            .into_iter()
            .filter(|(_, ids)| !ids.is_empty())
            .map(|(fault, ids)| format!("{fault}: {}", ids.into_iter().collect::<Vec<_>>().join(" ")))
            .collect();
        if lines.is_empty() { Ok(()) } else { Err(Failed::from(lines.join("\n"))) }
    })
}

fn expand(range: &str) -> Vec<String> {
    let Some((first, last)) = range.split_once("..") else { return vec![range.to_owned()] };
    let (family, first) = first.rsplit_once('-').expect("a range such as 1-1..18");
    let number = |text: &str| text.parse::<usize>().expect("a number");
    (number(first)..=number(last)).map(|number| format!("{family}-{number}")).collect()
}
