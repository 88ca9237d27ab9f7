//! Runs `tests/cases/explain/{doctor,drain,whatif,repair}/*.yaml`: clusters in, text and JSON out.
//!
//! The answers are beside the cases, in `.txt`, as JSON where that shows a field for the first time. `MOORING_BLESS=1` writes
//! them anew; what changed is then to be read.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, missing_docs)]

mod applied;
mod cluster;
mod question;

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use libtest_mimic::{Arguments, Failed, Trial};
use mooring::explain::{doctor::doctor, read::Question, reasons, repair::repair};
use test_support::cases::{self, blesses, fields_of, fitted};

use question::{Answer, Case};

fn main() {
    let mut trials = Vec::new();
    for suite in ["doctor", "drain", "whatif", "repair"] {
        for path in cases::files(&format!("explain/{suite}")) {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            trials.push(Trial::test(format!("{suite}: {name}"), move || file(&path)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn file(path: &Path) -> Result<(), Failed> {
    let (mut found, mut shown) = (String::new(), BTreeSet::new());
    for case in cases::read::<Vec<Case>>(path) {
        let Answer { text, json, exit } = ask(&case)?;
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let lacks = case.says.iter().filter(|phrase| !words.contains(phrase.as_str()));
        let lies = case.never.iter().filter(|phrase| words.contains(phrase.as_str()));
        let wrong: Vec<_> = lacks.chain(lies).collect();
        if !wrong.is_empty() || case.exit.is_some_and(|code| code != exit) {
            let want = case.exit.unwrap_or(exit);
            return Err(
                format!("{}: want exit {want}; not so: {wrong:?}\n{text}exit {exit}", case.name).into()
            );
        }
        // Requests are one line, and names stay whole.
        let is_free = |line: &str| {
            let begins = ["mooring ", "PATCH ", "{"];
            // Names of attachments, and rows of tables.
            let is_wide = line.contains("csi-") || line.matches("  ").count() > 2;
            is_wide || begins.iter().any(|word| line.trim_start().starts_with(word))
        };
        let too_long = text.lines().find(|line| line.chars().count() > 80 && line.trim().contains(' '));
        if let Some(line) = too_long.filter(|line| !is_free(line)) {
            return Err(format!("{}: longer than a terminal: {line:?}", case.name).into());
        }
        let _ = writeln!(found, "=== {}\n$ mooring {}\n{text}exit {exit}", case.name, case.ask);
        let (before, fields) = (shown.len(), fields_of(&json));
        shown.extend(fields);
        if shown.len() > before {
            let _ = writeln!(found, "{}", fitted(&json));
        }
        found.push('\n');
    }
    let answers = path.with_extension("txt");
    if blesses() {
        return Ok(fs::write(&answers, found)?);
    }
    let known = fs::read_to_string(&answers).unwrap_or_default();
    let differing = known.lines().zip(found.lines()).enumerate().find(|(_, (known, found))| known != found);
    if let Some((line, (known, found))) = differing {
        return Err(format!("{}:{}: {known:?}, now {found:?}", answers.display(), line + 1).into());
    }
    if known != found {
        return Err(format!("{} ends too early or too late", answers.display()).into());
    }
    Ok(())
}

fn ask(case: &Case) -> Result<Answer, Failed> {
    let (snapshot, question) = (case.given.snapshot(), case.question("shop"));
    match &question {
        Question::Cluster(_) => {
            let found = doctor(&snapshot, None);
            let without_page =
                found.findings.iter().map(|it| it.reason).find(|reason| reasons::page(reason).is_none());
            if let Some(reason) = without_page {
                return Err(format!("{}: {reason} has no page in docs/reasons", case.name).into());
            }
        }
        Question::Repair(what) => {
            let found = repair(&snapshot, what);
            if !found.requests.is_empty() {
                applied::check(&case.given, what, &found)?;
            }
        }
        _ => {}
    }
    Ok(case.answer(&question, &snapshot))
}
