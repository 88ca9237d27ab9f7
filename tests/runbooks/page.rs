//! The pages: which there are, and the commands in their blocks.

use std::{collections::BTreeSet, fs};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbooks");

/// A page, by what is done with its parts.
pub struct Page {
    pub see: Vec<String>,
    pub steps: Vec<String>,
    pub over: Vec<String>,
    words: String,
}

impl Page {
    /// The page of an alert.
    pub fn of(alert: &str) -> Self {
        let text = text(alert);
        let part = |heading: &str| {
            let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("{alert} has no {heading:?}"));
            commands(rest.split("\n## ").next().unwrap())
        };
        Self {
            see: part("## How to see it\n"),
            steps: part("## What to do\n"),
            over: part("## How to see that it is over\n"),
            words: words(&text),
        }
    }

    /// Whether it says so, however its lines break.
    pub fn says(&self, told: &str) -> bool {
        self.words.contains(&words(told))
    }
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All that have a page.
pub fn alerts() -> BTreeSet<String> {
    let files = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: std::path::PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files.map(name).filter(|name| name != "README").collect()
}

/// The page of an alert as it is.
pub fn text(alert: &str) -> String {
    fs::read_to_string(format!("{FOLDER}/{alert}.md")).unwrap()
}

/// The commands of a text, in order; one that goes on in the next line, in one.
pub fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(begun) = line.strip_prefix("$ ") else { continue };
        let mut command = begun.to_owned();
        while command.ends_with(['\\', '|']) {
            command = format!("{} {}", command.trim_end_matches('\\'), lines.next().unwrap_or_default());
        }
        commands.push(command);
    }
    commands
}
