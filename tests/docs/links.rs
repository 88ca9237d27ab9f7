//! Links of the repository's Markdown to its own files.

use std::{fs, path::Path};

use crate::{
    files::{self, File},
    pages,
};

/// Pieces of pages that are printed into `docs`, and whose links are read there.
const PIECES: &str = "src/";

pub fn that_lead_nowhere() -> Vec<String> {
    files::all()
        .iter()
        .filter(|file| file.is("md"))
        .filter(|file| !file.path.starts_with(PIECES) || file.path.ends_with("README.md"))
        .flat_map(|file| wrong(file).collect::<Vec<_>>())
        .collect()
}

fn wrong(file: &File) -> impl Iterator<Item = String> + '_ {
    targets(&file.text)
        .filter(|target| !leads_somewhere(file, target))
        .map(|target| format!("{}: {target}", file.path))
}

/// What stands in `](…)`, outside of code.
fn targets(text: &str) -> impl Iterator<Item = String> + '_ {
    pages::prose(text).flat_map(|line| {
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("` `");
        let targets: Vec<String> = plain
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .map(|target| target.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        targets
    })
}

fn leads_somewhere(file: &File, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let place =
        if path.is_empty() { files::root().join(&file.path) } else { files::root().join(folder).join(path) };
    if fragment.is_empty() {
        return place.exists();
    }
    fs::read_to_string(&place).is_ok_and(|text| pages::anchors(&text).contains(fragment))
}
