//! Files that import each other, directly or over others: none of them can be read, or moved, alone.
//!
//! Looked at are all files of each crate, its root with an empty name among them; `use` declarations and paths in the code; and
//! also what a file and a part of it (`state/nodes.rs` of `state.rs`) import of each other. What a file passes on
//! (`pub use`) counts as imported from the file that has it, and does not make the one that passes it on depend on it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Module;

/// The folders of all crates.
const ROOTS: [&str; 7] = [
    "src",
    "crates/apiserver/src",
    "crates/serving/src",
    "crates/telemetry/src",
    "demo/src",
    "testbed/src",
    "tests/support/src",
];

#[test]
fn no_files_import_each_other_in_a_circle() {
    for root in ROOTS {
        let modules = crate::modules(root);
        let imports = imports(&modules);
        let files: BTreeSet<&str> = imports.keys().copied().collect();
        assert_eq!(circle(&files, &imports), None, "circle in {root}");
    }
}

/// What a file says of others.
#[derive(Default)]
struct Names {
    /// In `use` declarations, and whether it passes them on.
    used: Vec<(String, bool)>,
    /// In the rest of the code.
    inline: BTreeSet<String>,
}

/// For each module those of the same crate that it imports.
fn imports(modules: &[Module]) -> BTreeMap<&str, BTreeSet<&str>> {
    let known: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).collect();
    let names: Vec<Names> = modules.iter().map(|module| names(&module.code)).collect();
    let mut passed_on: BTreeMap<String, &str> = BTreeMap::new();
    for (module, names) in modules.iter().zip(&names) {
        for (path, _) in names.used.iter().filter(|(_, is_passed_on)| *is_passed_on) {
            let part = module_of(&whole(path, &module.path), &known);
            if let Some(part) = part.filter(|part| *part != module.path) {
                let item = path.rsplit("::").next().unwrap_or_default();
                passed_on.insert(below(&module.path, item), part);
            }
        }
    }
    // Of a path with more behind it, the longest beginning that is passed on counts.
    let target = |path: &str| {
        let mut start = path;
        loop {
            if let Some(part) = passed_on.get(start) {
                return Some(*part);
            }
            match start.rsplit_once("::") {
                Some((shorter, _)) => start = shorter,
                None => return module_of(path, &known),
            }
        }
    };
    let of = |(module, names): (&Module, &Names)| {
        let own = module.path.as_str();
        let mut targets = BTreeSet::new();
        // Modules by the names that they have in this file.
        let mut here: BTreeMap<&str, String> = BTreeMap::new();
        for (path, is_passed_on) in &names.used {
            let path = whole(path, own);
            let to = target(&path);
            let is_part = |to| own.is_empty() || crate::is_part_of(to, own);
            if !is_passed_on || !to.is_some_and(is_part) {
                targets.extend(to);
            }
            if let Some(module) = known.get(path.as_str()) {
                here.insert(module.rsplit("::").next().unwrap_or_default(), path);
            }
        }
        for path in &names.inline {
            let (first, rest) = path.split_once("::").unwrap_or((path, ""));
            let part = below(own, first);
            let path = match first {
                "crate" | "self" | "super" => whole(path, own),
                _ if here.contains_key(first) => below(&here[first], rest),
                _ if known.contains(part.as_str()) => below(&part, rest),
                _ => continue,
            };
            targets.extend(target(&path));
        }
        targets.remove(own);
        targets
    };
    modules.iter().zip(&names).map(|(module, names)| (module.path.as_str(), of((module, names)))).collect()
}

fn below(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The module in which a path ends: the root, if it names no other.
fn module_of<'a>(path: &str, known: &BTreeSet<&'a str>) -> Option<&'a str> {
    let mut path = path;
    loop {
        if let Some(name) = known.get(path) {
            return Some(name);
        }
        path = path.rsplit_once("::").map_or("", |(above, _)| above);
        if path.is_empty() {
            return known.get(path).copied();
        }
    }
}

/// What the code of a file names.
fn names(code: &str) -> Names {
    let mut names = Names::default();
    let mut rest = String::new();
    // A declaration begins a line, as rustfmt has it.
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let word = line.trim_start();
        let (visibility, tree) = word.split_once("use ").unwrap_or(("-", ""));
        if !(visibility.is_empty() || (visibility.starts_with("pub") && visibility.ends_with([' ', ')']))) {
            rest.push_str(line);
            rest.push('\n');
            continue;
        }
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            let Some(next) = lines.next() else { break };
            tree.push(' ');
            tree.push_str(next.trim());
        }
        let mut paths = Vec::new();
        expand(tree.trim_end_matches(';'), "", &mut paths);
        names.used.extend(paths.into_iter().map(|path| (path, !visibility.is_empty())));
    }
    // Who may see something is no import.
    let visible = |part: &str| part.split_once(')').map_or(String::new(), |(_, code)| code.to_owned());
    let rest = rest.split("pub(in crate::").enumerate();
    let rest: String =
        rest.map(|(index, part)| if index == 0 { part.to_owned() } else { visible(part) }).collect();
    // Of strings that have quotes in them, a part may be taken for code; it hardly ever looks like a path.
    for code in rest.split('"').step_by(2) {
        for path in code.split(|letter: char| !(letter.is_alphanumeric() || matches!(letter, '_' | ':'))) {
            let path = path.trim_end_matches(':');
            if path.contains("::") && !path.starts_with(':') {
                names.inline.insert(path.to_owned());
            }
        }
    }
    names
}

/// `a::{b, c::{d}}` as `a::b` and `a::c::d`.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some((start, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return paths.push(format!("{prefix}{}", path.trim()));
    };
    let prefix = format!("{prefix}{}", start.trim());
    let (mut depth, mut from) = (0_usize, 0);
    for (index, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                if !group[from..index].trim().is_empty() {
                    expand(group[from..index].trim(), &prefix, paths);
                }
                from = index + 1;
            }
            _ => {}
        }
    }
}

/// A path as it is called from everywhere in the crate. One of another crate is taken for one of this file.
fn whole(path: &str, module: &str) -> String {
    let path = path.trim_end_matches("::self");
    if let Some(path) = path.strip_prefix("crate::") {
        return path.to_owned();
    }
    if let Some(path) = path.strip_prefix("self::") {
        return below(module, path);
    }
    let (mut base, mut rest) = (module, path);
    while let Some(above) = rest.strip_prefix("super::") {
        base = base.rsplit_once("::").map_or("", |(above, _)| above);
        rest = above;
    }
    below(base, rest)
}

/// A circle among these files, if there is one: each imports the next, and the last the first.
fn circle<'a>(
    files: &BTreeSet<&'a str>,
    imports: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> Option<Vec<&'a str>> {
    // What imports nothing that is left is in no circle.
    let mut left = files.clone();
    loop {
        let next = |file: &&str| imports.get(*file).into_iter().flatten().any(|target| left.contains(target));
        let kept: BTreeSet<&str> = left.iter().filter(|file| next(file)).copied().collect();
        if kept.len() == left.len() {
            break;
        }
        left = kept;
    }
    let mut way: Vec<&str> = vec![left.first()?];
    loop {
        let next = imports.get(way.last()?)?.iter().find(|target| left.contains(*target))?;
        if let Some(at) = way.iter().position(|file| file == next) {
            return Some(way.split_off(at));
        }
        way.push(next);
    }
}

/// Name, files, the circle.
type Case = (&'static str, &'static [(&'static str, &'static str)], Option<&'static [&'static str]>);

#[test]
fn circles_are_found_however_imports_are_written() {
    let module = |(path, code): (&str, &str)| Module { path: path.to_owned(), code: code.to_owned() };
    let cases: [Case; 10] = [
        ("one way", &[("f::a", "use super::b::B;\n"), ("f::b", "")], None),
        (
            "two ways",
            &[("f::a", "use super::b::B;\n"), ("f::b", "use crate::f::{c, a::A};\n")],
            Some(&["f::a", "f::b"]),
        ),
        (
            "over a third",
            &[
                ("f::a", "use super::{\n    b::{B, C},\n};\n"),
                ("f::b", "use super::c;\n"),
                ("f::c", "pub(super) use super::a::A as B;\n"),
            ],
            Some(&["f::a", "f::b", "f::c"]),
        ),
        (
            "a parent and its part",
            &[("f::a", "use self::b::C;\n"), ("f::a::b", "use super::A;\n")],
            Some(&["f::a", "f::a::b"]),
        ),
        (
            "a part that is passed on",
            &[("f::a", "pub use b::{B,\n    C};\n"), ("f::a::b", "use super::A;\n")],
            None,
        ),
        (
            "paths in the code",
            &[
                ("f::a", "use super::b;\nfn a() { b::b(); }\n"),
                ("f::b", "fn b() -> crate::f::a::A { \"c::d\" }\n"),
            ],
            Some(&["f::a", "f::b"]),
        ),
        (
            "what a parent passes on is the part's",
            &[("f::a", "pub use b::B;\nuse super::c;\n"), ("f::a::b", ""), ("f::c", "use super::a::B;\n")],
            None,
        ),
        (
            "the root of the crate",
            &[("", "mod a;\nfn f() { a::a(); }\n"), ("a", "use crate::f;\n")],
            Some(&["", "a"]),
        ),
        (
            "what the root passes on is the part's",
            &[("", "pub use a::A;\nuse b::B;\n"), ("a", ""), ("b", "use crate::A;\nuse serde::A;\n")],
            None,
        ),
        ("another crate's", &[("f::a", "use b::B;\n"), ("f::b", "use serde::a;\n")], None),
    ];
    for (name, files, expected) in cases {
        let modules: Vec<Module> = files.iter().copied().map(module).collect();
        let imports = imports(&modules);
        let files = imports.keys().copied().collect();
        assert_eq!(circle(&files, &imports).as_deref(), expected, "{name}");
    }
}
