//! Files that import each other, directly or over others: none of them can be read, or moved, alone.
//!
//! A part of a file (`state/nodes.rs` of `state.rs`) may import its parent, whose types it completes, and a parent its
//! parts; what it passes on (`pub use`) counts as imported from the part.

use std::collections::{BTreeMap, BTreeSet};

use crate::Module;

/// Folders of `src` without circles. A folder that is rid of its last one goes in here.
const WITHOUT_CIRCLES: [&str; 11] = [
    "app",
    "asking",
    "attach_detach",
    "binder",
    "cli",
    "controller",
    "explain",
    "host_plugins",
    "metrics",
    "protection",
    "telemetry",
];

#[test]
fn no_files_import_each_other_in_a_circle() {
    let modules = crate::modules();
    let imports = imports(&modules);
    for folder in WITHOUT_CIRCLES {
        let files: BTreeSet<&str> =
            imports.keys().filter(|path| crate::is_part_of(path, folder)).copied().collect();
        assert!(!files.is_empty(), "there is no {folder}");
        assert_eq!(circle(&files, &imports), None, "circle in {folder}");
    }
}

/// For each module those of the same crate that it imports.
fn imports(modules: &[Module]) -> BTreeMap<&str, BTreeSet<&str>> {
    let names: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).collect();
    let mut passed_on: BTreeMap<String, &str> = BTreeMap::new();
    for module in modules {
        for path in used(&module.code, &module.path, "pub use ") {
            let item = path.rsplit("::").next().unwrap_or_default();
            if let Some(part) = module_of(&path, &names).filter(|part| *part != module.path) {
                passed_on.insert(format!("{}::{item}", module.path), part);
            }
        }
    }
    let of = |module: &Module| {
        let paths = used(&module.code, &module.path, "use ");
        let targets =
            paths.iter().filter_map(|path| passed_on.get(path).copied().or_else(|| module_of(path, &names)));
        targets.filter(|target| !crate::is_part_of(target, &module.path)).collect()
    };
    modules.iter().map(|module| (module.path.as_str(), of(module))).collect()
}

/// The module in which a path ends.
fn module_of<'a>(path: &str, names: &BTreeSet<&'a str>) -> Option<&'a str> {
    let mut path = path;
    loop {
        if let Some(name) = names.get(path).filter(|name| !name.is_empty()) {
            return Some(name);
        }
        path = path.rsplit_once("::")?.0;
    }
}

/// What a file names in `use` declarations, as whole paths without `crate::`.
fn used(code: &str, module: &str, keyword: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices(keyword) {
        let before = code[..at].trim_end_matches(|letter| letter != '\n');
        let line = code[before.len()..at].trim();
        if !(line.is_empty() || line.starts_with("pub")) {
            continue;
        }
        let tree = code[at + keyword.len()..].split(';').next().unwrap_or_default();
        expand(&tree.split_whitespace().collect::<Vec<_>>().join(" "), "", &mut paths);
    }
    paths.into_iter().map(|path| whole(&path, module)).collect()
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
    if let Some(path) = path.strip_prefix("crate::") {
        return path.to_owned();
    }
    if let Some(path) = path.strip_prefix("self::") {
        return format!("{module}::{path}");
    }
    let (mut base, mut rest) = (module, path);
    while let Some(above) = rest.strip_prefix("super::") {
        base = base.rsplit_once("::").map_or("", |(above, _)| above);
        rest = above;
    }
    let joined = if base.is_empty() { rest.to_owned() } else { format!("{base}::{rest}") };
    joined.trim_end_matches("::self").to_owned()
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
    let cases: [Case; 6] = [
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
            &[("f::a", "use b::B;\nuse self::b::C;\n"), ("f::a::b", "use super::A;\n")],
            None,
        ),
        (
            "what a parent passes on is the part's",
            &[("f::a", "pub use b::B;\nuse super::c;\n"), ("f::a::b", ""), ("f::c", "use super::a::B;\n")],
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
