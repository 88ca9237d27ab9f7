//! One name, one thing: no two types of the daemon share a name, nor do constants that differ.
//!
//! Looked at is what each file of `src` declares, whatever its visibility. Excepted are the roles that each controller
//! fills with a type of its own, and what a trait or a type has inside it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Module;

/// Types that controllers have each, for the same role in the skeleton.
const ROLES: [&str; 10] = [
    "Answer",
    "Call",
    "Durations",
    "Measures",
    "Outlook",
    "Plan",
    "Reason",
    "Recorder",
    "Report",
    "Requests",
];

#[test]
fn no_two_types_share_a_name() {
    let modules = crate::modules("src");
    let mut homes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (module, name, _) in declared(&modules, &["struct", "enum", "trait", "type", "union"]) {
        homes.entry(name).or_default().insert(module);
    }
    let shared = homes.into_iter().filter(|(name, homes)| homes.len() > 1 && !ROLES.contains(&name.as_str()));
    let names: Vec<String> = shared.map(|(name, homes)| format!("{name}: {homes:?}")).collect();
    assert!(names.is_empty(), "{names:#?}");
}

#[test]
fn constants_that_differ_differ_in_name() {
    let modules = crate::modules("src");
    let mut values: BTreeMap<String, BTreeMap<String, &str>> = BTreeMap::new();
    for (module, name, rest) in declared(&modules, &["const"]) {
        values.entry(name).or_default().insert(rest, module);
    }
    let shared = values.into_iter().filter(|(name, values)| name != "_" && values.len() > 1);
    let shared: Vec<String> = shared.map(|(name, values)| format!("{name}: {:?}", values.values())).collect();
    assert!(shared.is_empty(), "{}", shared.join("\n"));
}

/// What files declare at their outermost level with one of these words: module, name, and the rest of the line.
fn declared<'a>(modules: &'a [Module], words: &[&str]) -> Vec<(&'a str, String, String)> {
    let mut found = Vec::new();
    for module in modules {
        for line in module.code.lines() {
            let line = match line.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
                Some(rest) => rest.trim_start(),
                None => line,
            };
            let Some((word, rest)) = line.split_once(' ') else { continue };
            if words.contains(&word) && !rest.starts_with("fn ") {
                let name = crate::first_word(rest);
                let value = rest[name.len()..].to_owned();
                found.push((module.path.as_str(), name, value));
            }
        }
    }
    found
}

#[test]
fn declarations_are_found_however_visible_they_are() {
    let code = "struct A;\npub struct B(u8);\npub(in crate::x) enum C {\n    D,\n}\nimpl A {\n    const E: u8 = 1;\n}\n";
    let module = Module { path: "m".to_owned(), code: code.to_owned() };
    let names = declared(std::slice::from_ref(&module), &["struct", "enum", "const"]);
    assert_eq!(names.iter().map(|(_, name, _)| name.as_str()).collect::<Vec<_>>(), ["A", "B", "C"]);
}
