//! The form of a differing value of a case: YAML, in one line if it fits, otherwise one item per line.
//!
//! In: a value, and the text before it in its line. Out: its text, which a person can copy into the case.

use std::fmt::Write as _;

use serde_json::Value;

/// Columns of a line.
pub const COLUMNS: usize = 120;

/// JSON of an answer, for a recording that people read: in one line if it fits, otherwise in as few as hold its parts.
pub fn fitted(value: &Value) -> String {
    let mut text = String::new();
    fit(&mut text, value, 0);
    text
}

/// Appends a value that stands within `indent` columns.
fn fit(text: &mut String, value: &Value, indent: usize) {
    let column = |text: &str| columns(text.rsplit('\n').next().unwrap_or_default());
    let fits = |text: &str, part: &str| column(text) + columns(part) < COLUMNS - 1;
    let flat = value.to_string();
    let (brackets, parts): (_, Vec<_>) = match value {
        Value::Array(items) => (["[", "]"], items.iter().map(|item| (String::new(), item)).collect()),
        Value::Object(entries) => {
            let named =
                entries.iter().map(|(name, value)| (format!("{}: ", Value::from(name.as_str())), value));
            (["{", "}"], named.collect())
        }
        _ => return text.push_str(&flat),
    };
    if fits(text, &flat) {
        return text.push_str(&flat);
    }
    text.push_str(brackets[0]);
    for (number, (name, part)) in parts.iter().enumerate() {
        text.push_str(if number > 0 { "," } else { "" });
        let flat = format!(" {name}{part}");
        if fits(text, &flat) {
            text.push_str(&flat);
            continue;
        }
        let _ = write!(text, "\n{:indent$} {name}", "");
        fit(text, part, indent + 1);
    }
    text.push_str(brackets[1]);
}

pub fn columns(text: &str) -> usize {
    text.chars().count()
}

/// A value after `name`, which begins at the column `indent`.
pub fn after(indent: usize, name: &str, value: &Value) -> String {
    let short = one_line(value);
    if indent + columns(name) + 2 + columns(&short) <= COLUMNS {
        return format!("{:indent$}{name}: {short}", "");
    }
    let within = indent + 2;
    let lines: Vec<String> = match value {
        Value::Array(items) => {
            items.iter().map(|item| format!("{:within$}- {}", "", one_line(item))).collect()
        }
        Value::Object(entries) => {
            entries.iter().map(|(name, value)| after(within, &text(name), value)).collect()
        }
        _ => return format!("{:indent$}{name}: {short}", ""),
    };
    format!("{:indent$}{name}:\n{}", "", lines.join("\n"))
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let parts = entries.iter().map(|(name, value)| format!("{}: {}", text(name), one_line(value)));
            format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
        }
        Value::String(content) => text(content),
        other => other.to_string(),
    }
}

/// A text, without quotes if it is read as itself without them.
fn text(content: &str) -> String {
    let read = serde_saphyr::from_str::<Vec<Value>>(&format!("[{content}]"));
    let is_plain = read.is_ok_and(|read| read == [Value::from(content)]) && !content.contains('\n');
    match content {
        _ if is_plain => content.to_owned(),
        _ if content.chars().any(char::is_control) => Value::from(content).to_string(),
        _ => format!("'{}'", content.replace('\'', "''")),
    }
}
