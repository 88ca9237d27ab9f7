//! The ways: lists of functions in `docs/architecture.md` that a reader can follow through the source, from one to the next.
//!
//! In: each list under a heading that begins with "The way", and the files that it names. Out: one line per entry that the
//! source does not bear out: the file has no such function, no function of an earlier line calls it, it is there twice, or
//! the list is too long.

use std::collections::BTreeSet;

use crate::files;

/// The page with the lists.
const PAGE: &str = "docs/architecture.md";
/// How a heading of such a list begins.
const HEADING: &str = "The way";
/// So many lines a list may have, and that of a claim.
const MOST: (usize, usize) = (25, 20);

/// A list: its heading, and each entry's file and function.
struct Way {
    heading: String,
    entries: Vec<(String, String)>,
}

/// Entries that the source does not bear out.
pub fn that_the_source_does_not_go() -> Vec<String> {
    let ways = ways(&files::read(PAGE));
    assert!(!ways.is_empty(), "no heading of {PAGE} begins with {HEADING:?}");
    ways.iter().flat_map(wrong).collect()
}

fn ways(page: &str) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    let mut is_way = false;
    for line in page.lines() {
        if line.starts_with('#') {
            let heading = line.trim_start_matches(['#', ' ']);
            is_way = heading.starts_with(HEADING);
            if is_way {
                ways.push(Way { heading: heading.to_owned(), entries: Vec::new() });
            }
        }
        let number = line.split_once(". `").filter(|(number, _)| number.parse::<usize>().is_ok());
        if let (true, Some((_, rest)), Some(way)) = (is_way, number, ways.last_mut()) {
            let mut words = rest.split('`');
            let (path, function) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            way.entries.push((path.to_owned(), function.to_owned()));
        }
    }
    ways
}

fn wrong(way: &Way) -> Vec<String> {
    let Way { heading, entries } = way;
    let mut wrong = Vec::new();
    let most = if heading.contains("claim") { MOST.1 } else { MOST.0 };
    if entries.is_empty() || entries.len() > most {
        wrong.push(format!("{heading}: {} lines, of {most} at most", entries.len()));
    }
    let (mut seen, mut earlier) = (BTreeSet::new(), String::new());
    for (path, function) in entries {
        let here = format!("{heading}: {path} {function}");
        if !seen.insert((path, function)) {
            wrong.push(format!("{here}: entered twice"));
        }
        let bodies = bodies(&files::read(path), function);
        if bodies.is_empty() {
            wrong.push(format!("{here}: there is no such function"));
        }
        if !earlier.is_empty() && !calls(&earlier, function) {
            wrong.push(format!("{here}: no function of an earlier line calls it"));
        }
        earlier.push_str(&bodies);
    }
    wrong
}

/// The bodies of the functions of that name, without comments.
fn bodies(source: &str, function: &str) -> String {
    let code: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut bodies = String::new();
    for (at, _) in code.match_indices(&format!("fn {function}")) {
        let after = &code[at + "fn ".len() + function.len()..];
        let end = after.find(['{', ';']).filter(|end| after[*end..].starts_with('{'));
        let (true, Some(begin)) = (after.starts_with(['(', '<']), end) else { continue };
        let mut depth = 0;
        let length = after[begin..].find(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        bodies.push_str(&after[begin..][..length.unwrap_or_default()]);
        bodies.push('\n');
    }
    bodies
}

/// Whether code calls a function.
fn calls(code: &str, function: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(&format!("{function}("))
        .any(|(at, _)| !code[..at].ends_with(is_name) && !code[..at].ends_with("fn "))
}

#[test]
fn what_is_no_way_is_found() {
    let source = "fn one() { // three()\n two(); }\nfn two(a: A) { if a { b } }\nfn three<T>() {}\n";
    assert!(calls(&bodies(source, "one"), "two") && !calls(&bodies(source, "one"), "three"));
    assert_eq!((bodies(source, "two").trim(), bodies(source, "four").as_str()), ("{ if a { b }", ""));
    let page = "## The way out\n1. `a.rs` `one`: it begins\n   2. `b` `c`\n## Other\n1. `d.rs` `e`\n";
    let [way] = &ways(page)[..] else { panic!("one list") };
    assert_eq!((way.heading.as_str(), way.entries.len()), ("The way out", 1));
    let entry = |function: &str| ("tests/docs/ways.rs".to_owned(), function.to_owned());
    let entries = ["wrong", "calls", "calls", "ways", "nobody"].map(entry).to_vec();
    let found = wrong(&Way { heading: "a claim's".to_owned(), entries });
    let ends = ["calls: entered twice", "ways: no function of an earlier line calls it", "no such function"];
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(ends.iter().zip(&found).all(|(end, found)| found.ends_with(end)), "{found:?}");
}
