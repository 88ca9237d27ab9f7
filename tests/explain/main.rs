//! Explanations over recorded clusters: `tests/cases/explain/*.yaml`, one test each. Beside each case lies what is said
//! as text (`.txt`), and beside a few of them the same as JSON (`.json`): together these show each field that an answer can
//! have. `MOORING_BLESS=1` writes both anew, to be read before they are committed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(unreachable_pub)]

mod form;

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use form::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use mooring::explain::{
    explain,
    report::Explanation,
    sheet::text::{Style, text},
    subject,
};
use serde_json::json;
use test_support::cases::{self, blesses, fields_of, fitted};

fn main() {
    let mut trials = Vec::new();
    let (mut seen, mut fields, mut shown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for path in cases::files("explain") {
        let case: Case = cases::read(&path);
        let answers = answers(&case);
        seen.extend(answers.iter().flat_map(|(_, answer)| codes(answer)));
        let of_case: BTreeSet<_> = answers.iter().flat_map(|(_, answer)| fields_of(&json!(answer))).collect();
        if path.with_extension("json").exists() {
            shown.extend(of_case.clone());
        }
        fields.extend(of_case);
        let name = format!("explain {}: {}", path.file_stem().unwrap().to_string_lossy(), case.title);
        trials.push(Trial::test(name, move || check(&case, &path)));
    }
    trials.push(Trial::test("explain: each reason that a snapshot can show has a case", move || {
        covered(&seen)
    }));
    trials.push(Trial::test("explain: each field of an answer is in one that is kept as JSON", move || {
        let missing: Vec<_> = fields.difference(&shown).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not shown: {missing:?}").into()) }
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The answers to all questions of a case.
fn answers(case: &Case) -> Vec<(String, Explanation)> {
    let snapshot = case.snapshot();
    let ask = |question: &String| {
        let words: Vec<&str> = question.split(' ').collect();
        let (subject, namespace) = match words.as_slice() {
            [subject] => (*subject, "default"),
            [subject, "-n", namespace] => (*subject, *namespace),
            _ => panic!("{question}: want KIND/NAME or KIND/NAME -n NAMESPACE"),
        };
        let subject = subject::parse(&[subject], namespace).unwrap();
        (question.clone(), explain(&snapshot, &subject))
    };
    case.ask.iter().map(ask).collect()
}

fn codes(answer: &Explanation) -> BTreeSet<String> {
    let steps = answer.steps.iter().map(|step| step.reason.clone());
    let faults = answer.candidates.iter().flat_map(|one| &one.faults).map(|fault| fault.reason.clone());
    let chosen = answer.candidates.iter().any(|one| one.faults.is_empty()).then(|| "Chosen".to_owned());
    steps.chain(faults).chain(chosen).collect()
}

fn check(case: &Case, path: &Path) -> Result<(), Failed> {
    let answers = answers(case);
    let mut said = String::new();
    for (question, answer) in &answers {
        let style = Style { wide: case.ask.len() == 1, ..Style::default() };
        let _ = write!(said, "$ mooring explain {question}\n{}\n", text(answer, style));
        let shown = text(answer, Style::default());
        let head = shown.lines().next().map(str::to_owned);
        for line in shown.lines() {
            // What is to be copied stays whole: the first line, and commands.
            let is_command = ["      kubectl ", "      mooring "].iter().any(|begin| line.starts_with(begin));
            let has_long_name = line.split(' ').any(|word| word.len() > 40);
            let is_copied = is_command || Some(line) == head.as_deref() || has_long_name;
            if line.chars().count() > 80 && !is_copied {
                return Err(format!("longer than 80 columns: {line}").into());
            }
        }
        if let Some(name) = unfilled(&shown) {
            return Err(format!("{{{name}}} stands where a fact should:\n{shown}").into());
        }
        let ascii = text(answer, Style { ascii: true, ..Style::default() });
        if !ascii.is_ascii() {
            return Err(format!("not ASCII:\n{ascii}").into());
        }
    }
    let reasons: Vec<&str> = answers.iter().map(|(_, answer)| answer.reason.as_str()).collect();
    if case.reasons != reasons {
        return Err(format!("reasons: expected {:?}, was {reasons:?}\n{said}", case.reasons).into());
    }
    untrue(case, &answers)?;
    let all: Vec<_> =
        answers.iter().map(|(question, answer)| json!({ "ask": question, "answer": answer })).collect();
    let told = format!("{}\n", fitted(&json!(all)));
    same(&path.with_extension("txt"), &said)?;
    let as_json = path.with_extension("json");
    if as_json.exists() { same(&as_json, &told) } else { Ok(()) }
}

/// A name of the table of reasons that has got no fact.
fn unfilled(text: &str) -> Option<&str> {
    let names = text.split('{').skip(1).filter_map(|part| part.split_once('}'));
    names
        .map(|(name, _)| name)
        .find(|name| name.starts_with(|it: char| it.is_ascii_lowercase()) && !name.contains(':'))
}

/// Holds the answers against what the case says is true.
fn untrue(case: &Case, answers: &[(String, Explanation)]) -> Result<(), Failed> {
    for (question, truth) in &case.truth {
        let (_, answer) =
            answers.iter().find(|(asked, _)| asked == question).ok_or("a truth of no question")?;
        let said = text(answer, Style { wide: true, ..Style::default() });
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let lacks = truth.says.iter().filter(|phrase| !words.contains(phrase.as_str()));
        let lies = truth.never.iter().filter(|phrase| words.contains(phrase.as_str()));
        let wrong: Vec<_> = lacks.chain(lies).collect();
        if answer.verdict != truth.verdict || !wrong.is_empty() {
            return Err(format!("{question}: want {:?}; not so: {wrong:?}\n{said}", truth.verdict).into());
        }
    }
    Ok(())
}

fn same(path: &Path, said: &str) -> Result<(), Failed> {
    if blesses() {
        fs::write(path, said)?;
        return Ok(());
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    if expected == said {
        return Ok(());
    }
    let first = expected.lines().zip(said.lines()).position(|(one, other)| one != other);
    let line = first.unwrap_or_else(|| expected.lines().count().min(said.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(end)").to_owned();
    Err(format!(
        "{}: line {}\n  expected: {}\n  said:     {}\nMOORING_BLESS=1 writes it anew",
        path.display(),
        line + 1,
        at(&expected),
        at(said)
    )
    .into())
}

/// Codes that no case shows, each with the reason why.
const UNSHOWN: &[(&str, &str)] = &[
    ("ClaimNotBound", "the claim itself says why"),
    ("ConfirmingClass", "a reader asks before it answers"),
    ("ConfirmingClaimGone", "a reader asks before it answers"),
    ("ConfirmingLost", "a reader asks before it answers"),
    ("DetachWaitingForSettlement", "known to the daemon alone: a write without an answer"),
    ("DynamicProvisioningDisabled", "of a daemon that is told so"),
    ("ForeignWriter", "known to the daemon alone"),
    ("FenceAmiss", "told by the doctor"),
    ("FencedWithoutRuler", "told by the doctor"),
    ("HandOver", "known to the daemon alone"),
    ("HandleShared", "told by the doctor"),
    ("AttacherLimited", "told by the doctor"),
    ("AttachmentOfGoneNode", "told by the doctor"),
    ("CsiDriverMissing", "told by the doctor"),
    ("ManyDefaultClasses", "told by the doctor"),
    ("NoDefaultClass", "told by the doctor"),
    ("NobodyRules", "told by the doctor"),
    ("ProvisionerLimited", "told by the doctor"),
    ("HoldsOtherVolume", "between two writes"),
    ("NodeStatusRefused", "known to the daemon alone: its own failures"),
    ("RestoreGrace", "known to the daemon alone"),
    ("RetryBackoff", "known to the daemon alone: its own failures"),
    ("Uncertain", "known to the daemon alone: a write without an answer"),
    ("VolumeBusy", "between two writes"),
    ("WriteUndone", "known to the daemon alone: its own pauses"),
    ("WaitingForDeletion", "between two writes"),
    ("ClaimOrVolumeChanged", "of a pod that was attached before its claim changed"),
    ("Annotating", "between two writes"),
    ("ObjectUnreadable", "of a list; a single object that cannot be read is an error of the reader"),
    ("DeleteFailed", "of a daemon with plugins of its own"),
    ("Deleting", "of a daemon with plugins of its own"),
    ("LeftoverRecyclerPod", "of a daemon with plugins of its own"),
    ("Provisioning", "of a daemon with plugins of its own"),
    ("ProvisioningError", "of a daemon with plugins of its own"),
    ("ProvisioningUnsupported", "of a daemon with plugins of its own"),
    ("RecycleFailed", "of a daemon with plugins of its own"),
    ("Recycling", "of a daemon with plugins of its own"),
];

fn covered(seen: &BTreeSet<String>) -> Result<(), Failed> {
    let excused: BTreeSet<&str> = UNSHOWN.iter().map(|(code, _)| *code).collect();
    let pages = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reasons"))?;
    let pages: Vec<PathBuf> = pages.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let codes = pages.iter().filter_map(|page| page.file_stem()?.to_str()).filter(|code| *code != "README");
    let missing: Vec<&str> = codes.filter(|code| !seen.contains(*code) && !excused.contains(code)).collect();
    let idle: Vec<&&str> = excused.iter().filter(|code| seen.contains(**code)).collect();
    if missing.is_empty() && idle.is_empty() {
        return Ok(());
    }
    Err(format!("without a case: {missing:?}; shown although excused: {idle:?}").into())
}
