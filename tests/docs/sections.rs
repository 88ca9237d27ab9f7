//! Sections: `attach-detach §4.2`, `pv-binder.md 16.7`, `pain 14`, and whether the specification has them.
//!
//! `pv-binder §2.1.B-2` is point 2 of section 2.1.B: an entry of a list, or a row of a table. Several sections may follow
//! one page's name, and on a page of the specification its own need none; any other section without a page is wrong.

use crate::{
    files::{self, File},
    pages,
};

/// Pages that are cited by section.
const PAGES: [&str; 4] = ["attach-detach", "pv-binder", "safety", "user-experience"];
/// Cited as `pain 14`: rows of attach-detach §16, and on the binder's own page of pv-binder §17.
const PAIN: &str = "pain ";

pub fn that_are_not_there() -> Vec<String> {
    files::all().iter().flat_map(|file| sections(file).into_iter().chain(pains(file))).collect()
}

fn sections(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    // A list of sections may go on in the next line.
    let own = pages::name(file).and_then(|name| PAGES.into_iter().find(|page| *page == name));
    let mut page = own;
    for (number, line) in file.lines() {
        let mut cited = Vec::new();
        for (place, _) in line.match_indices('§') {
            page = PAGES
                .iter()
                .filter_map(|page| Some((line[..place].rfind(page)?, *page)))
                .max()
                .map_or(page, |(_, page)| Some(page));
            cited.push((page, section_at(&line[place + '§'.len_utf8()..])));
        }
        // Without the sign, only a number right behind the name is a section.
        for page in PAGES {
            for name in [format!("{page} "), format!("{page}.md ")] {
                for (place, _) in line.match_indices(&name) {
                    let rest = &line[place + name.len()..];
                    if !rest.starts_with('§') {
                        cited.push((Some(page), section_at(rest)));
                    }
                }
            }
        }
        for (page, section) in cited {
            let Some(section) = section else { continue };
            match page {
                Some(page) if is_there(page, &section) => {}
                Some(page) => wrong.push(format!("{}:{number}: {page} §{section}", file.path)),
                None => wrong.push(format!("{}:{number}: §{section} of no page", file.path)),
            }
        }
        if !line.contains('§') {
            page = own;
        }
    }
    wrong
}

fn pains(file: &File) -> Vec<String> {
    let page = if file.path == "docs/spec/pv-binder.md" { "pv-binder" } else { "attach-detach" };
    let mut wrong = Vec::new();
    for (number, line) in file.lines() {
        for (place, _) in line.match_indices(PAIN) {
            let pain: String = line[place + PAIN.len()..].chars().take_while(char::is_ascii_digit).collect();
            if !pain.is_empty() && !pages::has(page, &format!("pain-{pain}")) {
                wrong.push(format!("{}:{number}: pain {pain}", file.path));
            }
        }
    }
    wrong
}

/// The section that a text begins with: a number, and what follows it without a blank.
fn section_at(text: &str) -> Option<String> {
    let section: String = text
        .chars()
        .take_while(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-'))
        .collect();
    let section = section.trim_end_matches(['.', '-']);
    section.starts_with(|first: char| first.is_ascii_digit()).then(|| section.to_owned())
}

fn is_there(page: &str, section: &str) -> bool {
    let (number, point) = section.split_once('-').unwrap_or((section, ""));
    let text = pages::section(page, &number.to_lowercase());
    let point = point.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    !text.is_empty()
        && (point.is_empty()
            || text.lines().any(|line| {
                line.trim_start().starts_with(&format!("| {point} |"))
                    || line.trim_start().starts_with(&format!("{point}. "))
                    || line.contains(&format!(" {point}. "))
            }))
}
