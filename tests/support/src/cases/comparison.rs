//! What a case expects and what was seen, key by key; with `MOORING_BLESS=1` what was seen is written into the case.
//!
//! In: pairs of values with the key that has them. Out: nothing, the text of the failure, or a file that says what was seen.

use std::{
    fmt::{self, Write as _},
    path::Path,
    sync::Mutex,
};

use serde::Serialize;
use serde_json::Value;

use super::{
    flow,
    rewrite::{Location, Part, rewrite},
};
use crate::repository;

/// The variable that has tests write what they expect.
const BLESS: &str = "MOORING_BLESS";

/// One at a time changes files: the cases of a file run side by side.
static WRITING: Mutex<()> = Mutex::new(());

/// Whether what is expected is to be written, and not compared.
pub fn blesses() -> bool {
    std::env::var_os(BLESS).is_some()
}

/// A key whose value is another than was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    pub at: Location,
    pub expected: Value,
    pub actual: Value,
}

/// What was compared of one case.
pub struct Comparison {
    case: String,
    order: &'static [&'static str],
    within: Vec<Part>,
    found: Vec<Mismatch>,
}

impl Comparison {
    /// Of a case by its name or id; `order` is that of the keys in its file, for one that is added.
    pub fn new(case: &str, order: &'static [&'static str]) -> Self {
        Self { case: case.to_owned(), order, within: Vec::new(), found: Vec::new() }
    }

    /// What follows is about a step, counted from zero.
    pub fn step(&mut self, number: usize) {
        self.within = vec!["when".into(), number.into()];
    }

    /// What follows is about the whole case again.
    pub fn end(&mut self) {
        self.within.clear();
    }

    /// Compares the value of a key, which is found by the keys on the way to it.
    pub fn same(&mut self, keys: &[&str], expected: &impl Serialize, actual: &impl Serialize) {
        let (expected, actual) = (written(expected), written(actual));
        if expected != actual {
            let path = self.within.iter().cloned().chain(keys.iter().map(|key| Part::from(*key))).collect();
            let at = Location { case: self.case.clone(), path, order: self.order };
            self.found.push(Mismatch { at, expected, actual });
        }
    }

    pub fn found(&self) -> &[Mismatch] {
        &self.found
    }

    /// # Errors
    /// If there are differences: all of them, or where they are to be written those that cannot be.
    pub fn settle(self, file: &Path) -> Result<(), String> {
        let file_name = file.strip_prefix(repository()).unwrap_or(file).display().to_string();
        if self.found.is_empty() {
            return Ok(());
        }
        if blesses() {
            return bless(file, &file_name, &self.found);
        }
        let mut told = format!("{file_name}: {BLESS}=1 writes what was seen, to be read");
        for mismatch in &self.found {
            let _ = write!(told, "\n{mismatch}");
        }
        Err(told)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |value| flow::after_key(2, "expected".len(), None, value, "");
        write!(f, "{}\n  expected{}\n  seen{}", self.at, lines(&self.expected), lines(&self.actual))
    }
}

fn bless(file: &Path, name: &str, found: &[Mismatch]) -> Result<(), String> {
    let _one = WRITING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    let mut refused = Vec::new();
    for Mismatch { at, expected, actual } in found {
        match rewrite(&text, at, actual) {
            Ok(new) => {
                text = new;
                eprintln!("{name}: {at}: {} is now {}", flow::one_line(expected), flow::one_line(actual));
            }
            Err(why) => {
                refused.push(format!(
                    "{name}: {at} is not rewritten, {why}. It should be: {}",
                    flow::one_line(actual)
                ));
            }
        }
    }
    std::fs::write(file, text).map_err(|error| format!("{name}: {error}"))?;
    if refused.is_empty() { Ok(()) } else { Err(refused.join("\n")) }
}

/// A value as a case would have it: whole numbers without a point.
fn written(value: &impl Serialize) -> Value {
    fn whole(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(whole),
            Value::Object(entries) => entries.values_mut().for_each(whole),
            Value::Number(number) => {
                // Every number that a case has is far below where a float loses whole ones.
                #[allow(clippy::cast_possible_truncation)]
                let short = number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i64);
                if let (false, Some(short)) = (number.is_i64(), short) {
                    *value = short.into();
                }
            }
            _ => {}
        }
    }
    let mut value = serde_json::to_value(value).expect("a value");
    whole(&mut value);
    value
}

/// What a list in any order is to be: what is still seen stays where it was, what is new takes the place of what is not
/// seen any more.
pub fn in_place(expected: &[String], seen: &[String]) -> Vec<String> {
    let mut new = seen.to_vec();
    let mut taken = |wanted: &String| new.iter().position(|line| line == wanted).map(|at| new.remove(at));
    let kept: Vec<Option<String>> = expected.iter().map(&mut taken).collect();
    let mut new = new.into_iter();
    let mut lines: Vec<String> = kept.into_iter().filter_map(|line| line.or_else(|| new.next())).collect();
    lines.extend(new);
    lines
}
