//! The table of reasons: what is said of each situation, in one place for all commands and pages.
//!
//! In: a reason's code and, where a reason has several, the situation. Out: its [`Row`]. Who asks finds out which situation it
//! is, and has the facts; verdict, sentence, who acts, what comes next and the commands are here. A case that begins with `+` is no
//! situation, but what several have in common.

mod attachments;
mod claims;
mod cluster;
mod pods;
mod row;
mod volumes;

pub(super) use self::row::{Facts, Part, Row, fill};

use std::{collections::HashMap, sync::LazyLock};

use crate::explain::report::Verdict;

const TABLE: [&[Row]; 5] = [claims::ROWS, volumes::ROWS, attachments::ROWS, pods::ROWS, cluster::ROWS];

/// What is said where nothing more is known than what the decision says.
const OTHER: Row = Row { cases: &[], verdict: Verdict::Blocked, message: "{told}", parts: &[] };

/// By their cases: a cluster in trouble asks a hundred thousand times.
static INDEX: LazyLock<HashMap<&str, &Row>> =
    LazyLock::new(|| rows().flat_map(|row| row.cases.iter().map(move |case| (*case, row))).collect());

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().copied().flatten()
}

/// The row of a situation.
pub(super) fn find(case: &str) -> &'static Row {
    INDEX.get(case).copied().unwrap_or(&OTHER)
}

/// The row of a reason that several kinds of objects have: of this kind, or else of all.
pub(super) fn find_of(code: &str, kind: &str) -> &'static Row {
    INDEX.get(format!("{code} {kind}").as_str()).copied().unwrap_or_else(|| find(code))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::explain::reasons;

    #[test]
    fn each_case_is_there_once_and_its_reason_has_a_page() {
        let mut known = BTreeSet::new();
        for case in rows().flat_map(|row| row.cases) {
            assert!(known.insert(*case), "{case} is there twice");
            let code = case.split(' ').next().unwrap();
            let is_state = ["Scheduled", "Detached"].contains(&code);
            assert!(code.starts_with('+') || is_state || reasons::page(code).is_some(), "{code} has no page");
        }
        for part in rows().flat_map(|row| row.parts) {
            if let Part::Also(case) = part {
                assert!(known.contains(case), "{case} is not there");
            }
        }
    }
}
