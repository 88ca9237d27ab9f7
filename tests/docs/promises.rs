//! Promises: each S and L of `docs/spec/safety.md` is in the name of a test or case, or is an accepted gap with a reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    files::{self, File},
    pages,
};

/// A line per gap: the id, `:`, and the reason.
const GAPS: &str = "docs/spec/accepted-gaps.txt";
/// Keys of cases whose values are names.
const NAMES: [&str; 3] = ["name:", "title:", "id:"];

pub fn not_accounted_for() -> Vec<String> {
    let promises: BTreeSet<String> =
        pages::ANCHORS["safety"].iter().filter(|anchor| is_promise(anchor)).cloned().collect();
    let shown = shown();
    let gaps = gaps();
    let missing = promises
        .iter()
        .filter(|id| !shown.contains(*id) && !gaps.contains_key(*id))
        .map(|id| format!("{} is in no name of a test or case, and not in {GAPS}", id.to_uppercase()));
    let stale = gaps
        .keys()
        .filter(|id| shown.contains(*id) || !promises.contains(*id))
        .map(|id| format!("{} in {GAPS} is shown by a test, or is no promise", id.to_uppercase()));
    let unexplained = gaps
        .iter()
        .filter(|(_, reason)| reason.is_empty())
        .map(|(id, _)| format!("{} in {GAPS} has no reason", id.to_uppercase()));
    missing.chain(stale).chain(unexplained).collect()
}

fn gaps() -> BTreeMap<String, String> {
    files::read(GAPS)
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (id, reason) = line.split_once(':').unwrap_or((line, ""));
            (id.to_lowercase(), reason.trim().to_owned())
        })
        .collect()
}

/// Ids in names: of functions in tests, of cases in YAML, and of rows of tables in tests, which begin with them.
fn shown() -> BTreeSet<String> {
    files::all().iter().flat_map(|file| names(file).flat_map(ids).collect::<Vec<_>>()).collect()
}

fn names(file: &File) -> Box<dyn Iterator<Item = &str> + '_> {
    if file.path.starts_with("tests/cases/") {
        return Box::new(file.text.lines().filter_map(|line| {
            let (place, key) = NAMES.iter().filter_map(|key| Some((line.find(key)?, key))).min()?;
            // What comes before is no more than the sign of an entry: the name of a case, not of an object in it.
            line[..place].trim_matches(['-', '{', ' ']).is_empty().then(|| &line[place + key.len()..])
        }));
    }
    if !file.is("rs") {
        return Box::new(std::iter::empty());
    }
    let functions = file
        .text
        .split("fn ")
        .skip(1)
        .map(|rest| &rest[..rest.find(|letter: char| !is_of_a_name(letter)).unwrap_or(rest.len())]);
    // The first field of a row, `("S6 what …`, `["S6 …`; the argument of a call is what a checker says.
    let rows = file.text.match_indices('"').filter_map(|(place, _)| {
        let before = file.text[..place].trim_end();
        let is_first = before.ends_with(['[', '{'])
            || before.strip_suffix('(').is_some_and(|before| !before.ends_with(is_of_a_name));
        let name = file.text[place + 1..].split(['"', '\n']).next()?;
        is_first
            .then_some(name)
            .filter(|name| name.split_once(' ').is_some_and(|(first, _)| is_promise(&first.to_lowercase())))
    });
    Box::new(functions.chain(rows))
}

fn ids(name: &str) -> Vec<String> {
    name.split(|letter: char| !letter.is_ascii_alphanumeric())
        .map(str::to_lowercase)
        .filter(|word| is_promise(word))
        .collect()
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '!')
}

fn is_promise(word: &str) -> bool {
    let digits = word.strip_prefix(['s', 'l']).unwrap_or_default();
    (1..=2).contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_digit())
}
