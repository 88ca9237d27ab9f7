//! One value of a file of cases is changed and nothing else: a table (`tests/cases/rewrite`), and every value that the
//! controllers' cases expect, which is spoiled and put right again.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    files, flow,
    outline::{Kind, Node, Outline},
    read,
    rewrite::{Location, Part, Refused, rewrite},
};

const ORDER: &[&str] = &["sends", "waits", "says", "when"];
/// The keys of what is expected.
const EXPECTED: &[&str] = &[
    "sends", "waits", "looks", "lists", "counts", "says", "metrics", "then", "touches", "kind", "error",
    "events", "writes", "waited", "measures", "nearest", "reason", "chooses",
];
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    text: String,
    at: Vec<Value>,
    value: Value,
    #[serde(default)]
    then: Option<String>,
    #[serde(default)]
    refused: Option<String>,
}

#[test]
fn one_value_is_rewritten_and_nothing_else() {
    for path in files("rewrite") {
        for row in read::<Vec<Row>>(&path) {
            let mut path = row.at.iter().map(|part| match part {
                Value::String(key) => Part::Key(key.clone()),
                number => Part::Index(usize::try_from(number.as_u64().unwrap()).unwrap()),
            });
            let Some(Part::Key(case)) = path.next() else { panic!("{}: no case", row.name) };
            let at = Location { case, path: path.collect(), order: ORDER };
            let written = rewrite(&row.text, &at, &row.value);
            let refused = written.as_ref().err().map(|why| format!("{why:?}"));
            assert_eq!(written.ok(), row.then, "{} ({refused:?})", row.name);
            assert_eq!(refused, row.refused, "{}", row.name);
        }
    }
}

#[test]
fn what_is_spoiled_in_a_case_is_put_right() {
    let mut tried = 0;
    for path in files("binder").into_iter().chain(files("attach_detach")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let outline = Outline::of(&text).unwrap();
        let list = match &outline.root.kind {
            Kind::Sequence { .. } => outline.root.children(),
            _ => outline.root.get("cases").map(Node::children).unwrap_or_default(),
        };
        let begin = |case: &Node| text[..case.place.start].rfind("\n- ").map_or(0, |end| end + 1);
        let ends = list.iter().skip(1).map(|case| begin(case)).chain([text.len()]);
        // Reading a whole file again and again takes long: a case is read alone, or behind those that it may refer to.
        let mut referred = String::new();
        for (case, end) in list.iter().zip(ends) {
            let alone = text[begin(case)..end].to_owned();
            let is_alone = Outline::of(&alone).is_ok();
            let (part, ways) = if is_alone { (alone.clone(), 3) } else { (referred.clone() + &alone, 1) };
            if alone.contains('&') {
                referred += &alone;
            }
            let read = Outline::of(&part).unwrap();
            let put = put_right(&part, read.root.children().last().unwrap(), ways);
            tried += put.unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
        }
    }
    assert!(tried > 2000, "only {tried} values were tried");
}

/// Spoils each value that a case expects, in some ways, and puts it right again; how many.
fn put_right(text: &str, case: &Node, ways: usize) -> Result<usize, String> {
    let mut tried = 0;
    for (at, node) in places(case) {
        for spoiled in spoiled(text, &node).into_iter().take(ways) {
            let other = match rewrite(text, &at, &spoiled) {
                Ok(other) => other,
                Err(Refused::Alias | Refused::Anchor) => continue,
                Err(why) => return Err(format!("{at}: {why}")),
            };
            if other.lines().count() != text.lines().count() {
                // One item more had no room: no text of a list says that it could be shorter again.
                continue;
            }
            let back = rewrite(&other, &at, &node.value).map_err(|why| format!("{at}: {why} in\n{other}"))?;
            if other == text || back != text {
                let differs = text.lines().zip(back.lines()).find(|(was, is)| was != is);
                return Err(format!("{at}: {differs:#?}"));
            }
            tried += 1;
        }
    }
    Ok(tried)
}

/// Where the values are that a case expects.
fn places(case: &Node) -> Vec<(Location, Node)> {
    let Some(Value::String(name)) = case.get("name").or(case.get("id")).map(|node| &node.value) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut add = |within: &[Part], node: &Node| {
        for (key, value) in EXPECTED.iter().filter_map(|key| Some((*key, node.get(key)?))) {
            let path = within.iter().cloned().chain([Part::from(key)]).collect();
            found.push((Location { case: name.clone(), path, order: ORDER }, value.clone()));
        }
    };
    add(&[], case);
    for (number, step) in case.get("when").map(Node::children).unwrap_or_default().into_iter().enumerate() {
        add(&["when".into(), number.into()], step);
    }
    found
}

/// Other values: one text or number of it is another and, where it is written in one line, one more and one less.
fn spoiled(text: &str, node: &Node) -> Vec<Value> {
    let mut others = vec![other(&node.value)];
    if text[node.place.clone()].contains('\n') {
        return others;
    }
    if let Kind::Sequence { items, .. } = &node.kind {
        let values = || items.iter().map(|item| item.value.clone());
        others.push(values().chain([json!("one: more")]).collect());
        // Nobody knows of quotes without need when they are gone.
        if items.last().is_some_and(|last| text[last.place.clone()] == flow::one_line(&last.value)) {
            others.push(values().take(items.len() - 1).collect());
        }
    }
    others
}

fn other(value: &Value) -> Value {
    match value {
        // As long as before, and with the same need for quotes: what shows how it was written is still there.
        Value::String(text) => match text.char_indices().find(|(_, letter)| letter.is_ascii_alphanumeric()) {
            Some((at, letter)) => {
                let instead = if letter == 'x' { "w" } else { "x" };
                json!(format!("{}{instead}{}", &text[..at], &text[at + 1..]))
            }
            None => json!("x"),
        },
        Value::Number(number) => json!(number.as_i64().unwrap() + 1),
        Value::Bool(flag) => json!(!flag),
        Value::Null => json!("x"),
        Value::Array(items) => match &items[..] {
            [] => json!(["x"]),
            [first, rest @ ..] => [other(first)].into_iter().chain(rest.iter().cloned()).collect(),
        },
        Value::Object(entries) => {
            let mut entries = entries.clone();
            match entries.iter_mut().next() {
                Some((_, first)) => *first = other(first),
                None => drop(entries.insert("x y".to_owned(), json!("x"))),
            }
            entries.into()
        }
    }
}

#[test]
fn a_line_may_be_longer_by_a_word_that_no_line_has_room_for() {
    let word = "x".repeat(130);
    assert!(!flow::is_too_long(&format!("  - {word}")));
    assert!(!flow::is_too_long(&"x ".repeat(60)[..119]));
    assert!(flow::is_too_long(&"x ".repeat(61)));
}

#[test]
fn no_line_of_a_case_is_too_long() {
    let mut folders = vec![crate::repository().join("tests/cases")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in super::entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let long = text.lines().enumerate().filter(|(_, line)| flow::is_too_long(line));
                found.extend(long.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
            }
        }
    }
    assert!(found.is_empty(), "longer than {} columns: {found:#?}", flow::COLUMNS);
}
