//! Pages of `docs/reasons`: one for each reason code, all under the same headings, and an index of them.
//!
//! In: what each `fn code` of the rules returns (names of variants, if strum derives them), or the table in its `fn row`, and the pages. Out: codes
//! without a page, pages without a code, headings that a page lacks, mentions in runbooks that lead nowhere; and the index, which
//! `MOORING_WRITE_DOCS=1` writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
};

use crate::{files, pages};

const FOLDER: &str = "docs/reasons/";
const INDEX: &str = "docs/reasons/README.md";
const RUNBOOKS: &str = "docs/runbooks/";

/// What a page has, in this order. `Never` is there where something could be lost.
const HEADINGS: [&str; 5] =
    ["## Who acts", "## How long is normal", "## What to look at", "## What to do", "## Source"];
const OPTIONAL: &str = "## Never";

/// A kind of thing that has a reason.
struct Group {
    title: &'static str,
    /// Files and the `impl` in each whose `fn code` or `fn row` names the codes.
    sources: &'static [(&'static str, &'static str)],
    /// Codes that no rule of these files returns: of small controllers, of explain alone.
    added: &'static [&'static str],
}

const GROUPS: [Group; 8] = [
    Group {
        title: "Claims",
        sources: &[("src/binder/reasons.rs", "impl ClaimReason ")],
        added: &[
            "ExpansionUnsupported",
            "ModifyingAttributes",
            "ProvisionerError",
            "ProvisionerNotSeen",
            "ResizerNotSeen",
            "Resizing",
        ],
    },
    Group {
        title: "Volumes",
        sources: &[("src/binder/reasons.rs", "impl VolumeReason ")],
        added: &["HandleShared"],
    },
    Group {
        title: "Why a volume does not fit a claim",
        sources: &[("src/binder/matching/predicate.rs", "impl Mismatch ")],
        added: &["BoundToOther", "Chosen", "LargerThanBest"],
    },
    Group {
        title: "Attachments: a volume on a node",
        sources: &[("src/attach_detach/decide/verdict.rs", "impl Waiting ")],
        added: &["Attached", "AttachNotRequired", "AttacherNotSeen", "DriverNotRegistered"],
    },
    Group {
        title: "Volumes of pods that cannot be attached yet",
        sources: &[("src/attach_detach/state/desired/state.rs", "impl WhyUnresolved ")],
        added: &[
            "MountError",
            "NoPodScheduled",
            "NodeAffinityMismatch",
            "NotAttachable",
            "PodEnded",
            "PodNotStarted",
        ],
    },
    Group {
        title: "All of these",
        sources: &[
            ("src/binder/reasons.rs", "impl HeldBack "),
            ("src/binder/reports.rs", "impl Reason for BinderReason "),
        ],
        added: &[],
    },
    Group {
        title: "Nodes, classes, and the explanation itself",
        sources: &[],
        added: &[
            "Forbidden",
            "NoProvisioner",
            "NotFound",
            "NotProtected",
            "NotReady",
            "OutOfServiceTaint",
            "Protected",
            "ProvisionerSeen",
            "Ready",
        ],
    },
    Group {
        title: "Findings of `mooring doctor` about the whole cluster",
        sources: &[],
        added: &[
            "AttacherLimited",
            "AttachmentOfGoneNode",
            "CsiDriverMissing",
            "ExclusiveAttachedTwice",
            "FenceAmiss",
            "FencedWithoutRuler",
            "FinalizerWithoutOwner",
            "ManyDefaultClasses",
            "NoDefaultClass",
            "NobodyRules",
            "ProvisionerLimited",
        ],
    },
];

const HEAD: &str = "# Reasons

Each reason code has a page for the engineer on call. The page states what the reason means, who acts, how long it normally lasts, what to
look at, what to do, and what never to do. The codes are the same in `mooring explain`, events, logs, metrics and pages, and they keep their
meaning. Alerts have [runbooks](../runbooks/README.md).

`MOORING_WRITE_DOCS=1 cargo test --test docs -- index` generates this page from the rules and the pages. Do not edit it.
";

impl Group {
    fn returned(&self) -> impl Iterator<Item = String> {
        self.sources.iter().flat_map(|(file, of)| returned(file, of))
    }

    fn codes(&self) -> BTreeSet<String> {
        self.returned().chain(self.added.iter().map(|code| (*code).to_owned())).collect()
    }
}

/// The literals that `fn code` of this `impl` returns, or with which the rows in its `fn row` begin; without either, the names of
/// the variants of its enum.
fn returned(file: &str, of: &str) -> Vec<String> {
    let text = files::read(file);
    let implementation =
        text.split(of).nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap_or_default();
    let body = |name: &str| implementation.split(name).nth(1).and_then(|rest| rest.split("\n    }\n").next());
    let codes: Vec<String> = match (body("fn row("), body("fn code(")) {
        (Some(rows), _) => {
            rows.split(" (\"").skip(1).filter_map(|row| row.split('"').next()).map(str::to_owned).collect()
        }
        (None, Some(code)) => code.split('"').skip(1).step_by(2).map(str::to_owned).collect(),
        (None, None) => variants(&text, of),
    };
    assert!(!codes.is_empty(), "{file}: fn code of {of}returns nothing that can be read");
    codes
}

/// The names that strum derives for the variants of the enum of this `impl`.
fn variants(text: &str, of: &str) -> Vec<String> {
    let head = format!("enum {} {{\n", of.trim_start_matches("impl ").trim_end());
    let body = text.split(&head).nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap_or_default();
    let mut other = None;
    let mut names = Vec::new();
    for line in body.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some((_, name)) = line.split_once("strum(serialize = \"") {
            other = name.split('"').next();
        } else if line.starts_with(char::is_uppercase) {
            names.extend(other.take().or_else(|| line.split(['(', ' ', ',']).next()).map(str::to_owned));
        }
    }
    names
}

/// What the rules return.
pub fn returned_codes() -> BTreeSet<String> {
    GROUPS.iter().flat_map(Group::returned).collect()
}

/// All codes.
fn codes() -> BTreeSet<String> {
    GROUPS.iter().flat_map(Group::codes).collect()
}

/// The pages, by code.
fn pages_by_code() -> BTreeMap<&'static str, &'static str> {
    files::all()
        .iter()
        .filter(|file| file.path != INDEX)
        .filter_map(|file| Some((file.path.strip_prefix(FOLDER)?.strip_suffix(".md")?, file.text.as_str())))
        .collect()
}

pub fn codes_and_pages_that_differ() -> Vec<String> {
    let (codes, pages) = (codes(), pages_by_code());
    assert!(codes.len() > 80, "{} codes", codes.len());
    let without_page = codes.iter().filter(|code| !pages.contains_key(code.as_str()));
    let without_code = pages.keys().filter(|page| !codes.contains(**page));
    without_page
        .map(|code| format!("{code} has no page {FOLDER}{code}.md"))
        .chain(without_code.map(|page| format!("{FOLDER}{page}.md is about no code")))
        .collect()
}

pub fn pages_of_another_form() -> Vec<String> {
    let mut wrong = Vec::new();
    for (code, text) in pages_by_code() {
        let lines: Vec<&str> = pages::prose(text).collect();
        let headings: Vec<&str> = lines.iter().filter(|line| line.starts_with('#')).copied().collect();
        let title = format!("# {code}");
        let asked: Vec<&str> = [title.as_str()].into_iter().chain(HEADINGS).collect();
        let found: Vec<&str> = headings.iter().filter(|heading| **heading != OPTIONAL).copied().collect();
        let last_but_one = headings.iter().rev().nth(1);
        if found != asked || (headings.contains(&OPTIONAL) && last_but_one != Some(&OPTIONAL)) {
            wrong.push(format!("{code}: {headings:?}"));
        }
        // A heading has something under it.
        let filled: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let is_heading = |line: &str| line.starts_with("# ") || line.starts_with("## ");
        let empty = filled.windows(2).filter(|pair| is_heading(pair[0]) && is_heading(pair[1]));
        wrong.extend(empty.map(|pair| format!("{code}: nothing under {:?}", pair[0])));
        if text.lines().count() > 50 {
            wrong.push(format!("{code}: {} lines, of 50 at most", text.lines().count()));
        }
    }
    wrong
}

/// Codes that a runbook names without leading to their page.
pub fn mentions_without_link() -> Vec<String> {
    let codes = codes();
    let mut wrong = Vec::new();
    for file in files::all().iter().filter(|file| file.path.starts_with(RUNBOOKS) && file.is("md")) {
        for line in pages::prose(&file.text) {
            for code in line.split('`').skip(1).step_by(2).filter(|word| codes.contains(*word)) {
                if !line.contains(&format!("[`{code}`](../reasons/{code}.md)")) {
                    wrong.push(format!("{}: `{code}` without a link to its page", file.path));
                }
            }
        }
    }
    wrong
}

/// The first sentence of a page.
fn meaning(text: &str) -> String {
    let paragraph: Vec<&str> =
        text.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ").replace('|', "\\|");
    let end = paragraph.find(". ").map_or(paragraph.len(), |place| place + 1);
    paragraph[..end].to_owned()
}

fn index() -> String {
    let pages = pages_by_code();
    let mut text = HEAD.to_owned();
    for group in &GROUPS {
        write!(text, "\n## {}\n\n| Code | Means |\n|---|---|\n", group.title).expect("text");
        for code in group.codes() {
            let means = pages.get(code.as_str()).map(|text| meaning(text)).unwrap_or_default();
            writeln!(text, "| [{code}]({code}.md) | {means} |").expect("text");
        }
    }
    text
}

pub fn index_is_as_printed() -> bool {
    let index = index();
    if env::var_os("MOORING_WRITE_DOCS").is_some() {
        fs::write(files::root().join(INDEX), &index).expect("written");
    }
    fs::read_to_string(files::root().join(INDEX)).is_ok_and(|found| found == index)
}
