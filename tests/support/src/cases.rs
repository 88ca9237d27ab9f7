//! The folders of cases: `tests/cases/<suite>` of the repository and, if the variable `MOORING_CASES` names
//! a folder, `<folder>/<suite>`. So you can add a case without a change of code, or of this repository.
//!
//! In: the name of a suite. Out: its files, the repository's first, each in the type that its runner expects.

pub mod comparison;
mod shown;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::shown::fitted;
use crate::repository;

/// The variable that names a folder with more cases.
const FOLDER: &str = "MOORING_CASES";

/// Whether recorded answers, which people read, are to be written and not compared (`MOORING_BLESS`). What a case expects is
/// never written.
pub fn blesses() -> bool {
    std::env::var_os("MOORING_BLESS").is_some()
}

/// The YAML files of a suite.
///
/// # Panics
/// If a folder cannot be read, or `MOORING_CASES` names one without a folder for any suite: better than to
/// pass without having run what was meant.
pub fn files(suite: &str) -> Vec<PathBuf> {
    let own = repository().join("tests/cases");
    let suites: Vec<_> = entries(&own).into_iter().filter(|path| path.is_dir()).collect();
    let mut files = entries(&own.join(suite));
    if let Some(more) = std::env::var_os(FOLDER).map(PathBuf::from) {
        let is_suite = |path: &PathBuf| suites.iter().any(|suite| suite.file_name() == path.file_name());
        assert!(
            entries(&more).iter().any(|path| path.is_dir() && is_suite(path)),
            "{FOLDER}={} has no folder of a suite: {suites:?}",
            more.display()
        );
        let folder = more.join(suite);
        if folder.is_dir() {
            files.extend(entries(&folder));
        }
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files
}

/// A file's content.
///
/// # Panics
/// If it is not what the runner expects.
pub fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The fields of a value, by their paths and whether they hold something: a new one is shown by some recorded answer.
#[must_use]
pub fn fields_of(value: &Value) -> BTreeSet<String> {
    fn below(value: &Value, path: &str) -> BTreeSet<String> {
        match value {
            Value::Object(fields) => {
                fields.iter().flat_map(|(name, value)| below(value, &format!("{path}.{name}"))).collect()
            }
            Value::Array(values) if values.is_empty() => [format!("{path}: none")].into(),
            Value::Array(values) => values.iter().flat_map(|value| below(value, path)).collect(),
            Value::Null => [format!("{path}: null")].into(),
            _ => [path.to_owned()].into(),
        }
    }
    below(value, "")
}
