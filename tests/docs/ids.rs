//! Ids: what they look like, and whether the specification has them.

use crate::{files, pages};

/// A kind of id: words that are `prefix`, a number of digits and at most one of `letters`.
struct Id {
    prefix: &'static str,
    digits: std::ops::RangeInclusive<usize>,
    letters: &'static str,
    /// The page that has its anchor, which is the id in small letters.
    page: &'static str,
}

const fn id(
    prefix: &'static str,
    digits: std::ops::RangeInclusive<usize>,
    letters: &'static str,
    page: &'static str,
) -> Id {
    Id { prefix, digits, letters, page }
}

/// Every kind of id that may be cited anywhere in the repository.
const IDS: [Id; 18] = [
    id("S", 1..=2, "", "safety"),
    id("L", 1..=2, "", "safety"),
    id("H", 1..=2, "", "safety"),
    id("E", 1..=2, "", "safety"),
    id("S-", 1..=1, "", "user-experience"),
    id("ASW-", 2..=2, "", "attach-detach"),
    id("DSW-", 2..=2, "", "attach-detach"),
    id("SU-", 2..=2, "", "attach-detach"),
    id("R-", 2..=2, "abc", "attach-detach"),
    id("P-", 2..=2, "", "attach-detach"),
    id("C-", 2..=2, "", "attach-detach"),
    id("C-B", 1..=1, "", "attach-detach"),
    id("V-", 2..=2, "", "attach-detach"),
    id("M-", 2..=2, "", "attach-detach"),
    id("A-", 2..=2, "", "attach-detach"),
    id("B-", 2..=2, "", "attach-detach"),
    id("X-", 2..=2, "", "attach-detach"),
    id("I-", 2..=2, "", "attach-detach"),
];

/// Rows of the binder's catalogue are listed here, as ranges; those of tables without ids begin with a letter.
const BINDER_ROWS: &str = "tests/cases/binder/coverage.yaml";

impl Id {
    fn is(&self, word: &str) -> bool {
        let Some(rest) = word.strip_prefix(self.prefix) else { return false };
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        let letters = &rest[digits..];
        self.digits.contains(&digits)
            && (letters.is_empty() || letters.len() == 1 && self.letters.contains(letters))
    }
}

pub fn that_lead_nowhere() -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files::all() {
        for (number, line) in file.lines() {
            for word in words(line) {
                let Some(id) = IDS.iter().find(|id| id.is(word)) else { continue };
                if !pages::has(id.page, &word.to_lowercase()) {
                    wrong.push(format!("{}:{number}: {word} is not in docs/spec/{}.md", file.path, id.page));
                }
            }
        }
    }
    wrong
}

pub fn rows_that_are_not_there() -> Vec<String> {
    let text = files::read(BINDER_ROWS);
    let list = text.split("ids: [").nth(1).and_then(|rest| rest.split(']').next()).expect("a list of ids");
    list.split(',')
        .flat_map(|entry| range(entry.trim()))
        .filter(|row| row.starts_with(|first: char| first.is_ascii_digit()) || row.starts_with("fin-"))
        .filter(|row| !pages::has("pv-binder", &format!("case-{row}")))
        .map(|row| format!("{BINDER_ROWS}: {row} is not in docs/spec/pv-binder.md"))
        .collect()
}

/// `3-1..4` as its members; anything else is one.
fn range(entry: &str) -> Vec<String> {
    let Some((first, last)) = entry.split_once("..") else { return vec![entry.to_owned()] };
    let (prefix, from) = first.rsplit_once('-').expect("a range of numbered rows");
    let (from, last): (usize, usize) = (from.parse().expect("a number"), last.parse().expect("a number"));
    (from..=last).map(|number| format!("{prefix}-{number}")).collect()
}

/// Runs of letters, digits and `-`, without a `-` at the ends.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '-' && letter != '_')
        .map(|word| word.trim_matches('-'))
        .filter(|word| !word.is_empty())
}
