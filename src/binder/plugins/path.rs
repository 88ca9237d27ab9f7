//! Directories that the host-path plugin may touch, and what it does to them.
//!
//! [`HostPath`] is the only way to name one: below `/tmp`, in canonical form.

use std::fmt;

use crate::kube_api::ids::{Uid, VolumeName};

/// Where all directories are.
pub const ROOT: &str = "/tmp";

/// Where those that are made here are.
const MADE: &str = "hostpath_pv";

/// A directory below [`ROOT`], by the names of the directories on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath(Vec<String>);

impl HostPath {
    /// Reads an absolute path. The stock plugin accepts any that has `/tmp/` somewhere in it; this one
    /// must begin there and be canonical, so that no `..` leads elsewhere.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let below = path.strip_prefix(ROOT)?.strip_prefix('/')?;
        let names: Vec<String> = below.split('/').map(str::to_owned).collect();
        let canonical = |name: &String| !matches!(name.as_str(), "" | "." | "..") && !name.contains('\0');
        names.iter().all(canonical).then_some(Self(names))
    }

    /// The directory made for a claim: the same one however often it is begun.
    #[must_use]
    pub fn of_claim(claim: &Uid) -> Option<Self> {
        Self::parse(&format!("{ROOT}/{MADE}/{claim}"))
    }

    /// The names of the directories on the way, the last one last.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}/{}", self.0.join("/"))
    }
}

/// Name of the volume made for a claim.
#[must_use]
pub fn volume_name(claim: &Uid) -> VolumeName {
    VolumeName::from(format!("pvc-{claim}"))
}

/// What is done to a directory of this machine, for volumes of the host-path plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directory {
    /// Make it, unless it is there.
    Make(HostPath),
    /// Remove it with all it holds, if it is there.
    Remove(HostPath),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_tmp_and_written_plainly_is_a_path() {
        let cases = [
            ("/tmp/a", true),
            ("/tmp/hostpath_pv/1-2", true),
            ("/tmp/a.b/..c", true),
            ("/tmp", false),
            ("/tmp/", false),
            ("/tmp//a", false),
            ("/tmp/a/", false),
            ("/tmp/./a", false),
            ("/tmp/../etc", false),
            ("/tmp/a/..", false),
            ("/tmpa/b", false),
            ("/data/tmp/x", false),
            ("tmp/x", false),
            ("/tmp/a\0b", false),
            ("", false),
        ];
        for (path, accepted) in cases {
            let parsed = HostPath::parse(path);
            assert_eq!(parsed.is_some(), accepted, "{path}");
            assert!(parsed.is_none_or(|parsed| parsed.to_string() == path), "{path}");
        }
        assert_eq!(HostPath::of_claim(&Uid::from("../x")), None);
    }
}
