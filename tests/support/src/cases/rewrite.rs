//! Changes one value of a file of cases and nothing else: comments, layout and the order of keys stay as they are.
//!
//! In: the text of the file, where the value is, and what it is to be. Out: the new text, or why there is none. What comes
//! out is read again: it says what the old text said but for that value.

use std::{fmt, ops::Range};

use serde_json::{Map, Value};

use super::{
    flow,
    outline::{Entry, Kind, Node, Outline, Quote},
};

/// Where a value is: a case by its name or id, and the keys and numbers that lead to the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Location {
    pub case: String,
    pub path: Vec<Part>,
    /// The order of keys in this kind of file: where one is put that was not there.
    pub order: &'static [&'static str],
}

#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Key(String),
    /// From zero; people count from one.
    Index(usize),
}

/// Why a value is not rewritten.
#[derive(Debug, PartialEq)]
pub enum Refused {
    NotYaml(String),
    NoSuchCase,
    SeveralCases,
    NoSuchPlace,
    Alias,
    Anchor,
    TextBlock,
    Comment,
    TooLong,
    /// Whatever else: the text would say something else than it should.
    Unsafe,
}

impl From<&str> for Part {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Part {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "case \"{}\"", self.case)?;
        for part in &self.path {
            match part {
                // The number of the step says it.
                Part::Key(key) if key == "when" => {}
                Part::Key(key) => write!(f, ", {key}")?,
                Part::Index(index) => write!(f, ", step {}", index + 1)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotYaml(error) => return write!(f, "the file cannot be read: {error}"),
            Self::NoSuchCase => "the file has no case of that name",
            Self::SeveralCases => "the file has several cases of that name",
            Self::NoSuchPlace => "the case has no such place",
            Self::Alias => "it is written as a reference (`*`) to another place",
            Self::Anchor => "other places refer to it (`&`)",
            Self::TextBlock => "it is a text block",
            Self::Comment => "there are comments within",
            Self::TooLong => "it has no room in its line",
            Self::Unsafe => "the change would reach further than that value",
        })
    }
}

/// Why a change is not made where it belongs.
enum Stop {
    Refused(Refused),
    /// The whole value is to be written anew.
    Anew,
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// The text with another value there.
///
/// # Errors
/// If that cannot be done without changing anything else.
pub fn rewrite(text: &str, at: &Location, value: &Value) -> Result<String, Refused> {
    let outline = Outline::of(text).map_err(Refused::NotYaml)?;
    let mut path = case(&outline.root, &at.case)?;
    path.extend(at.path.iter().cloned());
    let mut meant = outline.root.value.clone();
    *place(&mut meant, &path).ok_or(Refused::NoSuchPlace)? = value.clone();
    let chain = chain(&outline.root, &path)?;
    let (node, missing) = (chain[chain.len() - 1], &path[chain.len() - 1..]);

    let mut editor = Editor { text, comments: &outline.comments, edits: Vec::new() };
    let changed = match missing {
        [] => editor.change(node, value),
        [Part::Key(name), more @ ..] => editor.add(node, name, &wrapped(more, value)?, at.order),
        [Part::Index(_), ..] => return Err(Refused::NoSuchPlace),
    };
    match changed {
        Ok(()) => {
            let new = editor.applied();
            if no_line_is_too_long(text, &new) {
                return checked(new, &meant);
            }
        }
        Err(Stop::Refused(refused)) => return Err(refused),
        Err(Stop::Anew) => {}
    }
    let new = anew(&outline, text, &chain, &path, &meant)?;
    if no_line_is_too_long(text, &new) { checked(new, &meant) } else { Err(Refused::TooLong) }
}

/// The path of a case.
fn case(root: &Node, name: &str) -> Result<Vec<Part>, Refused> {
    let (mut path, list) = match root.get("cases") {
        Some(list) => (vec![Part::from("cases")], list),
        None => (Vec::new(), root),
    };
    let is_it = |node: &&Node| {
        ["name", "id"].iter().any(|key| node.get(key).is_some_and(|found| found.value == name))
    };
    let mut found = list.children().into_iter().enumerate().filter(|(_, node)| is_it(node));
    let (index, _) = found.next().ok_or(Refused::NoSuchCase)?;
    if found.next().is_some() {
        return Err(Refused::SeveralCases);
    }
    path.push(Part::Index(index));
    Ok(path)
}

/// What is on the way to a place, as far as it is there.
fn chain<'n>(root: &'n Node, path: &[Part]) -> Result<Vec<&'n Node>, Refused> {
    let mut chain = vec![root];
    let mut node = root;
    for part in path {
        match node.kind {
            Kind::Alias => return Err(Refused::Alias),
            _ if node.is_anchored => return Err(Refused::Anchor),
            _ => {}
        }
        let next = match part {
            Part::Key(key) => node.get(key),
            Part::Index(index) => node.children().get(*index).copied(),
        };
        let Some(next) = next else { break };
        chain.push(next);
        node = next;
    }
    Ok(chain)
}

/// A place in a value; mappings that are missing on the way are made.
fn place<'v>(mut value: &'v mut Value, path: &[Part]) -> Option<&'v mut Value> {
    for part in path {
        value = match part {
            Part::Key(key) => {
                value.as_object_mut()?.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()))
            }
            Part::Index(index) => value.get_mut(index)?,
        };
    }
    Some(value)
}

/// A value in the mappings that lead to it.
fn wrapped(path: &[Part], value: &Value) -> Result<Value, Refused> {
    let mut value = value.clone();
    for part in path.iter().rev() {
        let Part::Key(key) = part else { return Err(Refused::NoSuchPlace) };
        value = Value::Object([(key.clone(), value)].into_iter().collect());
    }
    Ok(value)
}

fn no_line_is_too_long(old: &str, new: &str) -> bool {
    let old: std::collections::BTreeSet<&str> = old.lines().collect();
    !new.lines().any(|line| flow::is_too_long(line) && !old.contains(line))
}

fn checked(new: String, meant: &Value) -> Result<String, Refused> {
    match Outline::of(&new) {
        Ok(read) if read.root.value == *meant => Ok(new),
        _ => Err(Refused::Unsafe),
    }
}

/// Writes the whole value of the last key on the way that has a line of its own.
fn anew(
    outline: &Outline,
    text: &str,
    chain: &[&Node],
    path: &[Part],
    meant: &Value,
) -> Result<String, Refused> {
    for depth in (0..chain.len()).rev() {
        let Kind::Mapping { is_flow: false, entries } = &chain[depth].kind else { continue };
        let Some(Part::Key(name)) = path.get(depth) else { continue };
        let mut meant = meant.clone();
        let value = place(&mut meant, &path[..=depth]).ok_or(Refused::NoSuchPlace)?;
        let Some(entry) = entries.iter().find(|entry| entry.key.value == *name) else {
            return Err(Refused::TooLong);
        };
        if matches!(entry.value.kind, Kind::Alias) {
            return Err(Refused::Alias);
        }
        let range = entry.key.place.end..entry.value.place.end;
        if outline.comments.iter().any(|comment| range.contains(&comment.start)) {
            return Err(Refused::Comment);
        }
        let indent = column(text, entry.key.place.start);
        let key = flow::columns(&text[entry.key.place.clone()]);
        let mut editor = Editor { text, comments: &outline.comments, edits: Vec::new() };
        editor.edits.push((range, flow::after_key(indent, key, Some(&entry.value), value, text)));
        return Ok(editor.applied());
    }
    Err(Refused::TooLong)
}

/// In which column of its line a place is.
fn column(text: &str, at: usize) -> usize {
    flow::columns(&text[line(text, at)..at])
}

/// Where the line of a place begins.
fn line(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

/// Where the next line begins.
fn next_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

/// Changes of a text, each as small as can be.
struct Editor<'t> {
    text: &'t str,
    comments: &'t [Range<usize>],
    edits: Vec<(Range<usize>, String)>,
}

impl Editor<'_> {
    fn applied(mut self) -> String {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut new, mut at) = (String::new(), 0);
        for (range, instead) in &self.edits {
            new += &self.text[at..range.start];
            new += instead;
            at = range.end;
        }
        new + &self.text[at..]
    }

    fn change(&mut self, node: &Node, value: &Value) -> Result<(), Stop> {
        if node.value == *value {
            return Ok(());
        }
        if node.is_anchored {
            return Err(Refused::Anchor.into());
        }
        match (&node.kind, value) {
            (Kind::Alias, _) => Err(Refused::Alias.into()),
            (Kind::Scalar(Quote::Block), _) => Err(Refused::TextBlock.into()),
            (Kind::Sequence { items, .. }, Value::Array(new)) if items.len() == new.len() => {
                items.iter().zip(new).try_for_each(|(item, value)| self.change(item, value))
            }
            (Kind::Sequence { is_flow: false, items }, Value::Array(new)) if !new.is_empty() => {
                self.lines(items, new)
            }
            (Kind::Mapping { entries, is_flow }, Value::Object(new)) => {
                self.entries(node, entries, *is_flow, new)
            }
            _ if node.is_block() || node.place.is_empty() => Err(Stop::Anew),
            (Kind::Scalar(_), Value::String(_)) => {
                let instead = self.text_of(node, value);
                self.edits.push((node.place.clone(), instead));
                Ok(())
            }
            _ => self.in_one_line(node, value),
        }
    }

    /// A value that is between brackets, or becomes so.
    fn in_one_line(&mut self, node: &Node, value: &Value) -> Result<(), Stop> {
        if self.comments.iter().any(|comment| node.place.contains(&comment.start)) {
            return Err(Refused::Comment.into());
        }
        self.edits.push((node.place.clone(), flow::again(Some(node), value, self.text)));
        Ok(())
    }

    /// A text, over several lines if it was.
    fn text_of(&self, node: &Node, value: &Value) -> String {
        let before = &self.text[node.place.clone()];
        let short = flow::again(Some(node), value, self.text);
        let Some((_, second)) = before.split_once('\n') else { return short };
        let indent = flow::columns(second) - flow::columns(second.trim_start());
        let behind = self.text[node.place.end..next_line(self.text, node.place.end)].trim_end();
        let start = column(self.text, node.place.start);
        let (quoted, behind) = (flow::force_quotes(&short, value), flow::columns(behind));
        flow::folded_as(before, &quoted, start, indent, behind)
            .unwrap_or_else(|| flow::folded(&quoted, start, indent, behind))
    }

    /// The items of a list that has a line for each.
    fn lines(&mut self, items: &[Node], new: &[Value]) -> Result<(), Stop> {
        let Some(last) = items.last() else { return Err(Stop::Anew) };
        let dash = |item: &Node| self.text[..item.place.start].rfind("- ").unwrap_or(item.place.start);
        let starts: Vec<usize> = items.iter().map(dash).collect();
        let indent = column(self.text, starts[0]);
        let end = next_line(self.text, last.place.end);
        let mut kept = 0;
        let mut added = String::new();
        for value in new {
            let found = items[kept..].iter().position(|item| item.value == *value);
            let Some(found) = found else {
                added += &flow::an_item(indent, None, value, self.text);
                added.push('\n');
                continue;
            };
            for gone in kept..kept + found {
                self.gone(starts[gone], items[gone].place.end)?;
            }
            self.added(starts[kept + found], indent, &mut added);
            kept += found + 1;
        }
        for gone in kept..items.len() {
            self.gone(starts[gone], items[gone].place.end)?;
        }
        if !added.is_empty() {
            // The first line of a list may not be its own: what is added goes behind.
            self.edits.push((end..end, added));
        }
        Ok(())
    }

    /// Puts lines before the dash or key at a place.
    fn added(&mut self, at: usize, indent: usize, added: &mut String) {
        if !added.is_empty() {
            let lines = std::mem::take(added);
            self.edits.push((at..at, format!("{}{:indent$}", lines.trim_start(), "")));
        }
    }

    /// Takes lines away.
    fn gone(&mut self, start: usize, end: usize) -> Result<(), Stop> {
        let range = line(self.text, start)..next_line(self.text, end);
        if !self.text[range.start..start].trim().is_empty() {
            // Another item or key begins in this line.
            return Err(Stop::Anew);
        }
        if self.comments.iter().any(|comment| range.contains(&comment.start)) {
            return Err(Refused::Comment.into());
        }
        self.edits.push((range, String::new()));
        Ok(())
    }

    fn entries(
        &mut self,
        node: &Node,
        entries: &[Entry],
        is_flow: bool,
        new: &Map<String, Value>,
    ) -> Result<(), Stop> {
        let name = |entry: &Entry| entry.key.value.as_str().unwrap_or_default().to_owned();
        let names: Vec<String> = entries.iter().map(name).collect();
        let gone = names.iter().any(|name| !new.contains_key(name));
        let more = new.keys().any(|key| !names.contains(key));
        if is_flow && (gone || more) {
            return self.in_one_line(node, &Value::Object(new.clone()));
        }
        if gone && !names.iter().any(|name| new.contains_key(name)) {
            return Err(Stop::Anew);
        }
        for (entry, name) in entries.iter().zip(&names) {
            match new.get(name) {
                Some(value) => self.change(&entry.value, value)?,
                None => self.gone(entry.key.place.start, entry.value.place.end)?,
            }
        }
        new.iter()
            .filter(|(key, _)| !names.contains(key))
            .try_for_each(|(key, value)| self.add(node, key, value, &[]))
    }

    /// Puts in a key that was not there.
    fn add(&mut self, node: &Node, name: &str, value: &Value, order: &[&str]) -> Result<(), Stop> {
        if node.is_anchored {
            return Err(Refused::Anchor.into());
        }
        let Kind::Mapping { is_flow, entries } = &node.kind else { return Err(Refused::NoSuchPlace.into()) };
        let rank = |key: &str| order.iter().position(|known| *known == key);
        let is_later = |entry: &Entry| rank(entry.key.value.as_str().unwrap_or_default()) > rank(name);
        let key = flow::key(name);
        let next = entries.iter().find(|entry| rank(name).is_some() && is_later(entry));
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            self.edits.push((node.place.clone(), format!("{{{key}: {}}}", flow::one_line(value))));
            return Ok(());
        };
        let (at, added) = if *is_flow {
            let added = format!("{key}: {}", flow::one_line(value));
            match next {
                Some(next) => (next.key.place.start, format!("{added}, ")),
                None => (last.value.place.end, format!(", {added}")),
            }
        } else {
            let indent = column(self.text, first.key.place.start);
            let added =
                format!("{key}{}", flow::after_key(indent, flow::columns(&key), None, value, self.text));
            match next {
                Some(next) => (next.key.place.start, format!("{added}\n{:indent$}", "")),
                None => (next_line(self.text, last.value.place.end), format!("{:indent$}{added}\n", "")),
            }
        };
        self.edits.push((at..at, added));
        Ok(())
    }
}
