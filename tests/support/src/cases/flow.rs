//! How a value is written into a file of cases: in one line if it fits, else one item a line, a long text over several.
//!
//! In: a value, what was there before, and the column where it starts. Out: its text. What was there before and is equal
//! stays as it was written.

use serde_json::Value;

use super::outline::{Kind, Node, Outline, Quote};

/// Columns of a line.
pub const COLUMNS: usize = 120;
/// What the second line of a long text is further in than the key or the item that it belongs to.
const FOLDED: usize = 4;

pub fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Whether a line is longer than it may be. One with a word that no line has room for may be.
pub fn is_too_long(line: &str) -> bool {
    let indent = columns(line) - columns(line.trim_start());
    let longest = line.split_whitespace().map(columns).max().unwrap_or_default();
    columns(line) > COLUMNS && indent + longest <= COLUMNS
}

/// A value in one line.
pub fn one_line(value: &Value) -> String {
    again(None, value, "")
}

/// A value in one line; `old` is what was there, in the file's `text`.
pub fn again(old: Option<&Node>, value: &Value, text: &str) -> String {
    let raw =
        old.and_then(|old| text.get(old.place.clone()).filter(|_| old.value == *value && !has_anchor(old)));
    if let Some(raw) = raw.filter(|raw| !raw.contains('\n') && !raw.is_empty()) {
        return raw.to_owned();
    }
    match value {
        Value::Array(new) => {
            let Some(Kind::Sequence { items, .. }) = old.map(|old| &old.kind) else {
                return format!("[{}]", new.iter().map(one_line).collect::<Vec<_>>().join(", "));
            };
            let mut items = pairs(items, new).into_iter();
            let parts = new.iter().map(|value| again(items.next().flatten(), value, text));
            format!("[{}]", parts.collect::<Vec<_>>().join(", "))
        }
        Value::Object(new) => {
            let mut parts = Vec::new();
            let entries = match old.map(|old| &old.kind) {
                Some(Kind::Mapping { entries, .. }) => entries.as_slice(),
                _ => &[],
            };
            for entry in entries {
                let name = entry.key.value.as_str().unwrap_or_default();
                if let Some(value) = new.get(name) {
                    let key = text.get(entry.key.place.clone()).unwrap_or(name);
                    parts.push(format!("{key}: {}", again(Some(&entry.value), value, text)));
                }
            }
            for (name, value) in new {
                if !entries.iter().any(|entry| entry.key.value == *name) {
                    parts.push(format!("{}: {}", key(name), one_line(value)));
                }
            }
            format!("{{{}}}", parts.join(", "))
        }
        Value::String(new) => {
            let habit = old.and_then(|old| match (&old.kind, &old.value) {
                (Kind::Scalar(quote), Value::String(before)) => Some((*quote, is_plain(before))),
                _ => None,
            });
            quoted(new, habit)
        }
        other => other.to_string(),
    }
}

/// For each new item the old one whose place it takes: the equal one, or that of the same number.
fn pairs<'n>(old: &'n [Node], new: &[Value]) -> Vec<Option<&'n Node>> {
    let mut left: Vec<&Node> = old.iter().collect();
    let mut found = Vec::new();
    for value in new {
        let equal = left.iter().position(|node| node.value == *value).map(|at| left.remove(at));
        found.push(equal);
    }
    for (number, place) in found.iter_mut().enumerate() {
        let same = old.get(number).filter(|node| left.iter().any(|free| free.place == node.place));
        *place = place.or(same);
    }
    found
}

fn has_anchor(node: &Node) -> bool {
    node.is_anchored || node.children().into_iter().any(has_anchor)
}

/// A key of a mapping.
pub fn key(name: &str) -> String {
    let reads =
        |text: &str| Outline::of(&format!("{{{text}: 1}}")).is_ok_and(|read| read.root.value[name] == 1);
    if reads(name) { name.to_owned() } else { quoted(name, Some((Quote::Single, true))) }
}

/// Whether a text is read as itself without quotes.
fn is_plain(text: &str) -> bool {
    let alone =
        Outline::of(&format!("[{text}]")).is_ok_and(|read| read.root.value == serde_json::json!([text]));
    alone && !text.contains('\n')
}

/// A text, without quotes if they are not needed and it is not the `habit` of the place to have them all the same.
fn quoted(text: &str, habit: Option<(Quote, bool)>) -> String {
    let plain = is_plain(text);
    let of_habit = match habit {
        Some((quote @ (Quote::Single | Quote::Double), was_plain)) if was_plain || !plain => Some(quote),
        _ => None,
    };
    let is_simple = !text.chars().any(char::is_control);
    let holds_double = is_simple && !text.contains(['"', '\\']);
    match of_habit {
        None if plain => text.to_owned(),
        None | Some(Quote::Double) if holds_double => format!("\"{text}\""),
        _ if is_simple => format!("'{}'", text.replace('\'', "''")),
        _ => Value::from(text).to_string(),
    }
}

/// What follows the name of a key that stands alone on its line: the colon and the value.
pub fn after_key(indent: usize, key: usize, old: Option<&Node>, value: &Value, text: &str) -> String {
    let short = again(old, value, text);
    if indent + key + 2 + columns(&short) <= COLUMNS {
        return format!(": {short}");
    }
    match value {
        Value::Array(items) if items.len() == 1 && items.iter().all(Value::is_string) => {
            // One long text is written after the bracket that opens its list.
            let item = items
                .first()
                .map(|item| force_quotes(&again(first(old), item, text), item))
                .unwrap_or_default();
            format!(": [{}]", folded(&item, indent + key + 3, indent + FOLDED, 1))
        }
        Value::Array(items) => {
            let before = match old.map(|old| &old.kind) {
                Some(Kind::Sequence { items: before, .. }) => pairs(before, items),
                _ => Vec::new(),
            };
            let mut before = before.into_iter();
            let lines = items
                .iter()
                .map(|item| format!("\n{}", an_item(indent + 2, before.next().flatten(), item, text)));
            format!(":{}", lines.collect::<String>())
        }
        Value::Object(entries) => {
            let lines = entries.iter().map(|(name, value)| {
                let old = old.and_then(|old| old.get(name));
                let name = self::key(name);
                let after = after_key(indent + 2, columns(&name), old, value, text);
                format!("\n{:indent$}  {name}{after}", "")
            });
            format!(":{}", lines.collect::<String>())
        }
        Value::String(_) => {
            format!(": {}", folded(&force_quotes(&short, value), indent + key + 2, indent + FOLDED, 0))
        }
        _ => format!(": {short}"),
    }
}

/// An item of a list that has a line for each, with its dash.
pub fn an_item(indent: usize, old: Option<&Node>, value: &Value, text: &str) -> String {
    let short = again(old, value, text);
    let start = format!("{:indent$}- ", "");
    if value.is_string() && indent + 2 + columns(&short) > COLUMNS {
        return format!(
            "{start}{}",
            folded(&force_quotes(&short, value), indent + 2, indent + 2 + FOLDED, 0)
        );
    }
    start + &short
}

fn first(old: Option<&Node>) -> Option<&Node> {
    old.and_then(|old| old.children().into_iter().next())
}

/// The same with quotes: a text over several lines has them.
pub fn force_quotes(written: &str, value: &Value) -> String {
    match value {
        Value::String(text) if !written.starts_with(['\'', '"']) => quoted(text, Some((Quote::Double, true))),
        _ => written.to_owned(),
    }
}

/// A text in quotes over as many lines as it needs, each but the first at `indent`; behind the last there is room for
/// `reserve` columns.
pub fn folded(written: &str, column: usize, indent: usize, reserve: usize) -> String {
    let words = words(written);
    let (mut told, mut at) = (String::new(), column);
    for (number, word) in words.iter().enumerate() {
        let room = if number + 1 == words.len() { COLUMNS.saturating_sub(reserve) } else { COLUMNS };
        if number > 0 {
            if at + 1 + columns(word) > room {
                told.push('\n');
                told.extend(std::iter::repeat_n(' ', indent));
                at = indent;
            } else {
                told.push(' ');
                at += 1;
            }
        }
        told += word;
        at += columns(word);
    }
    told
}

/// The same over the lines of `before`, with as many words in each, if they have room for them.
pub fn folded_as(
    before: &str,
    written: &str,
    column: usize,
    indent: usize,
    reserve: usize,
) -> Option<String> {
    let mut words = words(written).into_iter();
    let lines = before.lines().map(|line| self::words(line.trim()).len());
    let lines: Vec<String> =
        lines.map(|count| words.by_ref().take(count).collect::<Vec<_>>().join(" ")).collect();
    let is_room = lines.iter().enumerate().all(|(number, line)| {
        let start = if number == 0 { column } else { indent };
        let behind = if number + 1 == lines.len() { reserve } else { 0 };
        !line.is_empty() && start + columns(line) + behind <= COLUMNS
    });
    (is_room && words.next().is_none()).then(|| lines.join(&format!("\n{:indent$}", "")))
}

/// The parts of a quoted text between which a line may end: at a blank that has no other beside it.
fn words(written: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begin = 0;
    for (at, _) in written.match_indices(' ') {
        let (before, after) = (&written[..at], &written[at + 1..]);
        // The blank after the quote that opens, or before the one that closes, would be lost.
        let is_inside = before.len() > 1 && after.len() > 1;
        if is_inside && !before.ends_with([' ', '\\']) && !after.starts_with(' ') {
            words.push(&written[begin..at]);
            begin = at + 1;
        }
    }
    words.push(&written[begin..]);
    words
}
