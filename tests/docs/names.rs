//! Names that pages and code share: reason codes, files of the map, and the commands of the justfile.
//!
//! In: the text of the pages and of the code. Out: one line for each name that only the page has, or only the justfile.

use std::path::Path;

use crate::{files, reasons};

/// The page that lists the reason codes, and the heading above them.
const CODES: (&str, &str) = ("docs/spec/user-experience.md", "### Reason codes");
/// The waits that the alerts know by name.
const ALERTED: (&str, [&str; 3]) =
    ("dashboards/config.libsonnet", ["expectedWaits: [", "usersWaits: [", "alertedWaits: ["]);
/// Where the commands are described for those who have no `just`.
const COMMANDS: &str = "CONTRIBUTING.md";

/// The page that says where a rule lives, and what a section of it may name the folder of its paths with.
const ROOMS: &str = "docs/architecture.md";
const BELOW: &str = "below `";

/// Reason codes that the code does not have.
pub fn codes_without_code() -> Vec<String> {
    let sources: String = files::all()
        .iter()
        .filter(|file| file.path.starts_with("src/") || file.path.starts_with("crates/"))
        .map(|file| file.text.as_str())
        .collect();
    let (page, heading) = CODES;
    let text = files::read(page);
    let list = text.split(heading).nth(1).and_then(|rest| rest.split("\n#").next()).expect("a list of codes");
    let codes: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(codes.len() > 50, "{} codes", codes.len());
    let (config, lists) = ALERTED;
    let settings = files::read(config);
    let alerted = lists.into_iter().flat_map(|list| {
        let codes = settings.split(list).nth(1).and_then(|rest| rest.split(']').next()).expect(list);
        codes.split('\'').skip(1).step_by(2)
    });
    let codes = codes.into_iter().map(|code| (page, code)).chain(alerted.map(|code| (config, code)));
    let returned = reasons::returned_codes();
    codes
        .filter(|(_, code)| !returned.contains(*code) && !sources.contains(&format!("\"{code}\"")))
        .map(|(page, code)| format!("{code} is in {page} and nowhere in src"))
        .collect()
}

/// Files and folders of the map that are not there.
pub fn rooms_without_code() -> Vec<String> {
    let mut folder = String::new();
    let mut wrong = Vec::new();
    for line in files::read(ROOMS).lines() {
        if line.starts_with('#') {
            folder.clear();
        }
        if let Some((_, rest)) = line.split_once(BELOW) {
            folder = format!("{}/", rest.split('`').next().unwrap_or_default());
        }
        for word in line.split('`').skip(1).step_by(2) {
            let is_whole = word.starts_with("src/") || word.starts_with("crates/");
            let is_path = is_whole || Path::new(word).extension().is_some_and(|extension| extension == "rs");
            let path = if is_whole { word.to_owned() } else { format!("{folder}{word}") };
            if is_path && !files::root().join(&path).exists() {
                wrong.push(format!("{ROOMS}: {path}"));
            }
        }
    }
    wrong
}

/// Commands of the justfile that cannot be read without it.
pub fn commands_without_words() -> Vec<String> {
    let page = files::read(COMMANDS);
    files::read("justfile")
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|command| !command.starts_with('@'))
        // An argument has another form on the page.
        .map(|command| command.split("{{").next().unwrap_or_default().trim_end_matches(['-', ' ']))
        .filter(|command| !page.contains(*command))
        .map(|command| format!("`{command}` of the justfile is not in {COMMANDS}"))
        .collect()
}
