//! The pages of the specification, and what can be linked on a page of Markdown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use crate::files::{self, File};

/// Folder of the specification.
const FOLDER: &str = "docs/spec/";

/// The anchors of each page of the specification, by the page's name without `.md`.
pub static ANCHORS: LazyLock<BTreeMap<&str, BTreeSet<String>>> = LazyLock::new(|| {
    files::all().iter().filter_map(|file| Some((name(file)?, anchors(&file.text)))).collect()
});

/// Whether a page of the specification has an anchor.
pub fn has(page: &str, anchor: &str) -> bool {
    ANCHORS.get(page).is_some_and(|anchors| anchors.contains(anchor))
}

/// The name of a page of the specification, if the file is one.
pub fn name(file: &File) -> Option<&str> {
    file.path.strip_prefix(FOLDER)?.strip_suffix(".md")
}

/// The text of a section of a page, from its heading to the next one.
pub fn section(page: &str, number: &str) -> String {
    let text = files::read(&format!("{FOLDER}{page}.md"));
    let anchor = format!("<a id=\"{number}\"></a>");
    let lines = text.lines().skip_while(|line| !line.contains(&anchor)).enumerate();
    let lines = lines.take_while(|(index, line)| *index == 0 || !line.starts_with('#'));
    lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

/// Everything on a page that a link can lead to: `<a id="…">`, and headings as GitHub names them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> =
        text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let slug = slug(heading);
        let before = times.entry(slug.clone()).or_default();
        found.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    found
}

/// The lines that are not within a block of code.
pub fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// What tells a person to make a PersistentVolume again for a disk's handle, and not to give it its `claimRef`: any claim may
/// take it then, while the disk still is on a machine.
pub fn volumes_made_again_for_anybody() -> Vec<String> {
    let told = files::all().iter().filter(|file| {
        let is_page = ["docs/reasons/", "docs/runbooks/"].iter().any(|folder| file.path.starts_with(folder));
        is_page || file.path.starts_with("src/explain/table/")
    });
    let items = told.flat_map(|file| items(&file.text).into_iter().map(move |item| (file, item)));
    let is_wrong = |item: &str| {
        ["olume", "again", "handle", "Retain"].iter().all(|word| item.contains(word))
            && !item.contains("claimRef")
    };
    items.filter(|(_, item)| is_wrong(item)).map(|(file, item)| format!("{}: {item}", file.path)).collect()
}

/// Runbooks that are not in the list of their folder, or are there more than once. Links that lead nowhere are found elsewhere.
pub fn runbooks_that_the_index_does_not_name() -> Vec<String> {
    const RUNBOOKS: &str = "docs/runbooks/";
    let index = files::read(&format!("{RUNBOOKS}README.md"));
    let names = files::all().iter().filter_map(|file| file.path.strip_prefix(RUNBOOKS)?.strip_suffix(".md"));
    let pages: Vec<&str> = names.filter(|name| *name != "README").collect();
    assert!(pages.len() > 20, "{pages:?}");
    let is_wrong = |name: &&str| index.matches(&format!("\n- [{name}]({name}.md)\n")).count() != 1;
    pages.into_iter().filter(is_wrong).map(|name| format!("{RUNBOOKS}README.md: {name}")).collect()
}

/// Paragraphs, items of a list, and what a row of a table tells to do, each on one line.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    for line in text.lines().map(str::trim) {
        let begins = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
        if line.is_empty() || [". ", "- ", "safe(", "care("].iter().any(|sign| begins.starts_with(sign)) {
            items.push(String::new());
        }
        items.last_mut().expect("an item").extend([line, " "]);
    }
    items
}

/// A heading's name in a link: small letters, digits, `-` and `_`; blanks become `-`.
fn slug(heading: &str) -> String {
    without_tags(heading.trim_start_matches('#').trim())
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

fn without_tags(text: &str) -> String {
    let mut depth = 0_i32;
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    plain
}
