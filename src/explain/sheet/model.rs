//! A sheet: sections of items and tables, made of words that know what they stand for.

use derive_more::From;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::words::{command, name};
use crate::explain::{
    report::{Next, Verdict},
    snapshot::Unseen,
};

/// What can be printed.
pub trait Printed {
    /// The answer; wide, with everything that it has.
    fn sheet(&self, is_wide: bool) -> Sheet;
}

/// A part of a line.
#[derive(Clone, Debug, From)]
pub(in crate::explain) enum Word {
    /// As it is.
    #[from(&str, String)]
    Text(String),
    /// A reason's code, which leads to its page.
    Reason(String),
    /// An object, and how it is shown; it leads to its page.
    Object(Value, String),
    /// How something stands, and how that is shown.
    Verdict(Verdict, &'static str),
    /// How long ago something began.
    Since(Timestamp),
    /// A time to come.
    Until(Timestamp),
}

impl Word {
    /// An object under the name that is typed.
    pub(in crate::explain) fn object(object: &Value) -> Self {
        Self::Object(object.clone(), name(object))
    }

    /// How something stands.
    pub(in crate::explain) fn verdict(verdict: Verdict) -> Self {
        Self::Verdict(verdict, <&str>::from(verdict))
    }
}

/// Lines that belong together, behind a label.
#[derive(Clone, Debug, Default)]
pub(in crate::explain) struct Item {
    pub label: String,
    pub lines: Vec<Vec<Word>>,
    /// Lines that are copied: commands, requests.
    pub verbatim: Vec<String>,
    /// Whether everything waits for this.
    pub is_blocker: bool,
}

impl Item {
    pub(in crate::explain) fn new(label: impl Into<String>, line: impl Into<Vec<Word>>) -> Self {
        Self { label: label.into(), lines: vec![line.into()], ..Self::default() }
    }

    pub(in crate::explain) fn line(mut self, line: impl Into<Vec<Word>>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// A command as its words.
    pub(in crate::explain) fn command(mut self, words: &[String]) -> Self {
        if !words.is_empty() {
            self.verbatim.push(command(words));
        }
        self
    }
}

/// Rows of cells; the first cell of each names it, and the last may be long.
#[derive(Clone, Debug, Default)]
pub(in crate::explain) struct Table {
    pub heads: Vec<&'static str>,
    pub rows: Vec<Vec<Vec<Word>>>,
}

/// Items and a table under a title; without both, it is not printed.
#[derive(Clone, Debug, Default)]
pub(in crate::explain) struct Section {
    pub title: String,
    pub table: Table,
    pub items: Vec<Item>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// The first line.
    pub(in crate::explain) head: Vec<Word>,
    pub(in crate::explain) sections: Vec<Section>,
    /// From when ages are counted.
    pub(in crate::explain) now: Timestamp,
}

impl Sheet {
    pub(in crate::explain) fn new(now: Timestamp, head: impl Into<Vec<Word>>) -> Self {
        Self { head: head.into(), sections: vec![Section::default()], now }
    }

    /// Begins a section.
    pub(in crate::explain) fn section(&mut self, title: impl Into<String>) {
        self.sections.push(Section { title: title.into(), ..Section::default() });
    }

    pub(in crate::explain) fn push(&mut self, item: Item) {
        self.extend([item]);
    }

    pub(in crate::explain) fn extend(&mut self, items: impl IntoIterator<Item = Item>) {
        if let Some(section) = self.sections.last_mut() {
            section.items.extend(items);
        }
    }

    /// A table in the section that was begun last.
    pub(in crate::explain) fn table(
        &mut self,
        heads: &[&'static str],
        rows: impl IntoIterator<Item = Vec<Vec<Word>>>,
    ) {
        if let Some(section) = self.sections.last_mut() {
            section.table = Table { heads: heads.to_vec(), rows: rows.into_iter().collect() };
        }
    }

    /// A line behind a label.
    pub(in crate::explain) fn say(&mut self, label: &str, line: impl Into<Word>) {
        self.push(Item::new(label, [line.into()]));
    }

    /// A line each.
    pub(in crate::explain) fn notes(
        &mut self,
        label: &str,
        lines: impl IntoIterator<Item = impl Into<String>>,
    ) {
        self.extend(lines.into_iter().map(|line| Item::new(label, [Word::Text(line.into())])));
    }

    /// What was not seen: what one may not read in one line, or, wide, each in the server's words.
    pub(in crate::explain) fn unseen(&mut self, label: &str, all: &[Unseen], is_wide: bool) {
        let (forbidden, others): (Vec<&Unseen>, Vec<&Unseen>) =
            all.iter().partition(|unseen| unseen.forbidden && !is_wide);
        if !forbidden.is_empty() {
            let names: Vec<&str> = forbidden.iter().map(|unseen| unseen.what.as_str()).collect();
            self.say(label, format!("you may not read: {}", names.join(", ")));
        }
        self.notes(label, others.iter().map(|unseen| format!("{}: {}", unseen.what, unseen.why)));
    }
}

/// What comes next, and when.
pub(in crate::explain) fn next(next: &Next) -> Vec<Word> {
    let mut words = vec![Word::from(next.action.as_str())];
    match (next.not_before, next.at) {
        (Some(from), Some(to)) => {
            words.extend([" between ".into(), Word::Until(from), " and ".into(), Word::Until(to)]);
        }
        (None, Some(to)) => words.extend([" by ".into(), Word::Until(to)]),
        (Some(from), None) => words.extend([" not before ".into(), Word::Until(from)]),
        (None, None) => {}
    }
    if let Some(condition) = &next.condition {
        let word = if next.at.is_some() { "if" } else { "when" };
        words.push(format!(", {word} {condition}").into());
    }
    words
}

/// On which condition it goes on, as the end of a sentence, if that is no time.
pub(in crate::explain) fn next_condition(next: &Next) -> Option<String> {
    let condition = next.condition.as_ref().filter(|_| next.at.is_none())?;
    Some(format!("; it goes on when {condition}"))
}
