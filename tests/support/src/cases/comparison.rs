//! Compares the expectation of a case with the result, key by key. It never writes into a case: a person does that.
//!
//! In: pairs of values with their key. Out: nothing, or the text of the failure, which has both values as YAML.

use std::{
    fmt::{self, Write as _},
    path::Path,
};

use serde::Serialize;
use serde_json::Value;

use super::shown;
use crate::repository;

/// A key whose value is another than was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The case, the step if there are any, and the keys that lead to the value.
    pub at: String,
    pub expected: Value,
    pub actual: Value,
}

/// What was compared of one case.
pub struct Comparison {
    within: String,
    found: Vec<Mismatch>,
    case: String,
}

impl Comparison {
    /// Of a case by its name or id.
    pub fn new(case: &str) -> Self {
        let case = format!("case \"{case}\"");
        Self { within: case.clone(), found: Vec::new(), case }
    }

    /// What follows is about a step, counted from zero; people count from one.
    pub fn step(&mut self, number: usize) {
        self.within = format!("{}, step {}", self.case, number + 1);
    }

    /// What follows is about the whole case again.
    pub fn end(&mut self) {
        self.within.clone_from(&self.case);
    }

    /// Compares the value of a key, which is found by the keys on the way to it.
    pub fn same(&mut self, keys: &[&str], expected: &impl Serialize, actual: &impl Serialize) {
        let (expected, actual) = (written(expected), written(actual));
        if expected != actual {
            let at = format!("{}, {}", self.within, keys.join(", "));
            self.found.push(Mismatch { at, expected, actual });
        }
    }

    pub fn found(&self) -> &[Mismatch] {
        &self.found
    }

    /// # Errors
    /// If there are differences: all of them.
    pub fn settle(self, file: &Path) -> Result<(), String> {
        if self.found.is_empty() {
            return Ok(());
        }
        let mut told = file.strip_prefix(repository()).unwrap_or(file).display().to_string();
        for mismatch in &self.found {
            let _ = write!(told, "\n{mismatch}");
        }
        Err(told)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |name, value| shown::after(2, name, value);
        write!(f, "{}\n{}\n{}", self.at, value("expected", &self.expected), value("seen", &self.actual))
    }
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
/// seen any more. So a person compares line with line.
pub fn in_place(expected: &[String], seen: &[String]) -> Vec<String> {
    let mut new = seen.to_vec();
    let mut taken = |wanted: &String| new.iter().position(|line| line == wanted).map(|at| new.remove(at));
    let kept: Vec<Option<String>> = expected.iter().map(&mut taken).collect();
    let mut new = new.into_iter();
    let mut lines: Vec<String> = kept.into_iter().filter_map(|line| line.or_else(|| new.next())).collect();
    lines.extend(new);
    lines
}
