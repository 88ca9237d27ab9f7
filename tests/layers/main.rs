//! Who may import whom.
//!
//! The tables below say it; this test reads every `crate::…` path of `src` and holds them to it. A new module goes into
//! [`LAYERS`]. What only tests import (`#[cfg(test)]`) is not looked at.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed test is a panic"
)]

mod circles;
mod names;

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Every module of `src/lib.rs`, lowest layer first. A module imports from the layers below its own; from its own layer only
/// where that says so.
const LAYERS: [Layer; 6] = [
    Layer {
        name: "floor: the edges of the process",
        modules: &["build_info", "durations", "fence", "metrics", "telemetry"],
        among_themselves: true,
    },
    Layer {
        name: "controller: what all subsystems stand on",
        modules: &["controller"],
        among_themselves: true,
    },
    Layer {
        name: "subsystems: what is decided",
        modules: &["attach_detach", "binder", "ephemeral", "expander", "protection", "vac_protection"],
        // Each could be deleted without the others.
        among_themselves: false,
    },
    Layer {
        name: "plugins: what is done for the binder",
        modules: &["host_plugins"],
        among_themselves: false,
    },
    Layer {
        name: "explanations: what the subsystems would do",
        modules: &["explain"],
        among_themselves: true,
    },
    Layer {
        name: "process: what puts the parts together",
        modules: &[
            "app",
            "query",
            "cli",
            "config",
            "configz",
            "debugging",
            "observe",
            "preflight",
            "program",
            "routes",
            "serving_flags",
            "supervise",
            "switch",
            "terminal",
        ],
        among_themselves: true,
    },
];

/// Imports against the rule that are still there: module, what it imports. One that is gone has to go here, too.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Crates of `crates`, the lowest first, with the crates of this workspace that each may use.
const CRATES: [(&str, &[&str]); 3] =
    [("telemetry", &[]), ("apiserver", &["telemetry"]), ("serving", &["apiserver", "telemetry"])];

/// Crates of this workspace that know nothing of mooring: what they test, they know from outside.
const STRANGERS: [&str; 2] = ["testbed", "tests/support"];

struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    among_themselves: bool,
}

/// One file of the crate.
struct Module {
    /// `binder::decide`
    path: String,
    /// What is compiled outside tests, without comments.
    code: String,
}

#[test]
fn imports_go_down() {
    let modules = modules("src");
    assert!(modules.len() > 100, "only {} modules were found", modules.len());
    let mut report = String::new();
    let mut excused = BTreeSet::new();
    for Module { path, code } in &modules {
        let own = path.split("::").next().unwrap_or_default();
        if own.is_empty() {
            // The crate's own file names them all.
            continue;
        }
        let Some(layer) = layer_of(own) else {
            let _ = writeln!(report, "{own}: in no layer of tests/layers");
            continue;
        };
        for target in imports(code).into_iter().filter(|target| target != own) {
            // `crate::Type` is no module.
            let Some(below) = layer_of(&target) else { continue };
            if below < layer || (below == layer && LAYERS[layer].among_themselves) {
                continue;
            }
            let is_excused = |(from, to): &&(&str, &str)| is_part_of(path, from) && target == *to;
            if let Some(exception) = EXCEPTIONS.iter().find(is_excused) {
                excused.insert(*exception);
                continue;
            }
            let (name, other) = (LAYERS[layer].name, LAYERS[below].name);
            let _ = writeln!(report, "{path} ({name}) imports {target} ({other})");
        }
    }
    for exception in EXCEPTIONS.iter().filter(|exception| !excused.contains(*exception)) {
        let _ = writeln!(report, "no longer an exception: {exception:?}");
    }
    assert!(report.is_empty(), "\n{report}");
}

/// What runs in the daemon.
const DAEMON: [&str; 5] = ["app", "configz", "debugging", "routes", "supervise"];

#[test]
fn the_daemon_answers_no_questions() {
    for Module { path, code } in modules("src") {
        let is_of_daemon = DAEMON.iter().any(|part| is_part_of(&path, part));
        let asked: Vec<String> = imports(&code)
            .into_iter()
            .filter(|target| is_of_daemon && ["explain", "query"].contains(&target.as_str()))
            .collect();
        assert_eq!(asked, Vec::<String>::new(), "{path}");
    }
}

#[test]
fn who_decides_reads_no_clock_and_logs_nothing() {
    let of_controllers = LAYERS.iter().find(|layer| layer.name.starts_with("subsystems")).unwrap().modules;
    let decides = |path: &str| {
        let mut parts = path.split("::");
        of_controllers.contains(&parts.next().unwrap_or_default())
            && parts.any(|part| ["decide", "plan", "state"].contains(&part))
    };
    let mut count = 0;
    for Module { path, code } in modules("src").into_iter().filter(|module| decides(&module.path)) {
        count += 1;
        for word in ["::now()", "tracing::", "tokio::spawn"] {
            assert!(!code.contains(word), "{path} has {word}");
        }
    }
    assert!(count > 40, "only {count} modules were found");
}

#[test]
fn the_testbed_and_the_support_of_tests_know_nothing_of_mooring() {
    for folder in STRANGERS {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let depends = |line: &&str| line.starts_with("mooring");
        assert_eq!(manifest.lines().find(depends), None, "{folder}");
    }
}

#[test]
fn crates_use_only_those_below() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    assert_eq!(names, CRATES.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, below) in CRATES {
        let manifest = fs::read_to_string(folder.join(name).join("Cargo.toml")).unwrap();
        let used = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let used = used.lines().filter(|line| line.contains("path = ")).map(first_word);
        assert_eq!(used.collect::<Vec<_>>(), below, "{name}");
    }
}

/// All files of the crate in that folder.
fn modules(folder: &str) -> Vec<Module> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|root| root.is_file());
    let root = root.unwrap_or_else(|| panic!("{folder} has no root"));
    let mut modules = Vec::new();
    collect(&source, &root, "", &mut modules);
    modules
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.modules.contains(&module))
}

fn is_part_of(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A file and all that it declares, but for tests.
fn collect(folder: &Path, file: &Path, path: &str, modules: &mut Vec<Module>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut code = String::new();
    let mut is_test = false;
    for line in text.lines().map(|line| line.split("//").next().unwrap_or_default()) {
        let word = line.trim_start();
        // rustfmt leaves one thing to a line. What follows tests in a file are more tests.
        if line == "#[cfg(test)]" {
            is_test = true;
            continue;
        }
        if is_test && line.starts_with("mod tests {") {
            break;
        }
        if is_test && word.starts_with('#') {
            continue;
        }
        if let Some(name) = declared(line).filter(|_| !is_test) {
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}::{name}") };
            let (file, folder) = file_of(folder, name);
            collect(&folder, &file, &path, modules);
        }
        is_test = false;
        code.push_str(line);
        code.push('\n');
    }
    modules.push(Module { path: path.to_owned(), code });
}

/// `pub mod name;`
fn declared(line: &str) -> Option<&str> {
    let (visibility, name) = line.split_once("mod ")?;
    let name = name.strip_suffix(';')?;
    (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
}

fn file_of(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let inner = folder.join(name);
    let file = folder.join(format!("{name}.rs"));
    if file.is_file() { (file, inner) } else { (inner.join("mod.rs"), inner) }
}

/// The modules of the crate that are named: `crate::metrics`, `crate::{cli, metrics::Table}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        // `other_crate::name`, `$crate::name`
        if code[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_') {
            continue;
        }
        let rest = &code[at + start.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(first_word(rest));
            continue;
        };
        let mut depth = 0_usize;
        let mut is_first = true;
        for (index, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                _ if depth == 0 && is_first && !letter.is_whitespace() => {
                    found.insert(first_word(&group[index..]));
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    found
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[test]
fn imports_are_found_however_they_are_written() {
    for (code, expected) in [
        ("use crate::metrics::Table;", &["metrics"][..]),
        ("use crate::{\n    binder::{calls, plan},\n    metrics::Metrics,\n};", &["binder", "metrics"]),
        ("let kind: crate::metrics::Kind = other_crate::binder::kind();", &["metrics"]),
        ("use super::state;", &[]),
    ] {
        assert_eq!(imports(code).iter().map(String::as_str).collect::<Vec<_>>(), expected, "{code}");
    }
}
