//! The files of the repository that say something.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Folders that are not the repository's word: what is built, and git's own.
const SKIPPED_FOLDERS: [&str; 4] = [".git", "target", "node_modules", "testdata"];
/// What is read as text. A file without extension is a script.
const EXTENSIONS: [&str; 8] = ["", "go", "jsonnet", "libsonnet", "md", "rs", "toml", "yaml"];
/// Folders whose files hold data, in which two letters mean nothing.
const DATA: [&str; 2] = ["tests/cases/wire/", "dashboards/grafana/"];

/// A file: its path from the root of the repository, and its text.
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    /// Whether its name ends so, as `md`.
    pub fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// Its lines, with their numbers.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

static ALL: LazyLock<Vec<File>> = LazyLock::new(|| {
    let mut files = Vec::new();
    collect(&root(), &mut files);
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
});

/// Everything, in the order of the paths.
pub fn all() -> &'static [File] {
    &ALL
}

fn collect(folder: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !SKIPPED_FOLDERS.contains(&name) {
                collect(&path, files);
            }
            continue;
        }
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let place = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
        if !EXTENSIONS.contains(&extension) || DATA.iter().any(|data| place.starts_with(data)) {
            continue;
        }
        // What is not text has nothing to say.
        if let Ok(text) = fs::read_to_string(&path) {
            files.push(File { path: place, text });
        }
    }
}
