//! `coverage.yaml`: every row of the catalogue (pv-binder.md §16) has a case of its id, or a reason why
//! not.

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

/// A trial that looks at the names of the others.
pub fn trial(coverage: Coverage, others: &[Trial]) -> Trial {
    let covered: BTreeSet<String> = others
        .iter()
        .filter_map(|trial| Some(trial.name().strip_prefix("binder ")?.split_once(": ")?.0.to_owned()))
        .collect();
    Trial::test("coverage: every row of the catalogue has a case or a reason", move || {
        let ids: BTreeSet<String> = coverage.ids.iter().flat_map(|range| expand(range)).collect();
        let excused: BTreeSet<String> =
            coverage.without.values().flatten().flat_map(|range| expand(range)).collect();
        let faults = [
            ("neither covered nor excused", &ids - &(&covered | &excused)),
            ("covered and excused", &covered & &excused),
            ("excused, but not in the catalogue", &excused - &ids),
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
