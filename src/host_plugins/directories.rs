//! Directories of this machine, made and removed for volumes of the host-path plugin.
//!
//! In: what to do with which directory. Out: done, or why not. [`HostPath`] is the only way to name one: below `/tmp`, in
//! canonical form. Any user may write below `/tmp`, and so
//! put a symbolic link where a directory was a moment ago. So the way is walked from one open directory to
//! the next, and only the last name is acted on, through the directory that holds it; a link is refused, not followed.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use apiserver::ids::{Uid, VolumeName};
use derive_more::Display;
use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io::Errno,
    path::Arg,
};

use crate::binder::calls::Directory;

/// Where all directories are.
pub const ROOT: &str = "/tmp";

/// Where those that are made here are.
const MADE: &str = "hostpath_pv";

/// A directory below [`ROOT`], by the names of the directories on the way.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("{ROOT}/{}", _0.join("/"))]
pub struct HostPath(Vec<String>);

impl HostPath {
    /// Reads an absolute path. The stock plugin accepts any that has `/tmp/` somewhere in it; this one
    /// must begin there and be canonical, so that no `..` leads elsewhere.
    pub fn parse(path: &str) -> Option<Self> {
        let below = path.strip_prefix(ROOT)?.strip_prefix('/')?;
        let names: Vec<String> = below.split('/').map(str::to_owned).collect();
        let canonical = |name: &String| !matches!(name.as_str(), "" | "." | "..") && !name.contains('\0');
        names.iter().all(canonical).then_some(Self(names))
    }

    /// The directory made for a claim: the same one however often it is begun.
    pub fn of_claim(claim: &Uid) -> Option<Self> {
        Self::parse(&format!("{ROOT}/{MADE}/{claim}"))
    }
}

/// Name of the volume made for a claim.
pub fn volume_name(claim: &Uid) -> VolumeName {
    VolumeName::from(format!("pvc-{claim}"))
}

/// Mode of what is made.
///
/// KCM: pkg/volume/hostpath/host_path.go, Provision.
const MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);

/// Does what is asked for, below a root. Blocks.
///
/// # Errors
/// Why it could not be done, as text for people.
pub fn perform(root: &Path, directory: &Directory) -> Result<(), String> {
    let path = |text: &str| HostPath::parse(text).ok_or_else(|| format!("{text} is not below {ROOT}"));
    let result = match directory {
        Directory::Make(text) => make(root, &path(text)?),
        Directory::Remove(text) => match remove(root, &path(text)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        },
    };
    result.map_err(|error| error.to_string())
}

fn make(root: &Path, HostPath(names): &HostPath) -> io::Result<()> {
    let mut at = open(CWD, root)?;
    for name in names {
        match mkdirat(&at, name, MODE) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        at = open(&at, name)?;
    }
    Ok(())
}

fn remove(root: &Path, HostPath(names): &HostPath) -> io::Result<()> {
    let Some((last, way)) = names.split_last() else { return Ok(()) };
    let mut at = open(CWD, root)?;
    for name in way {
        at = open(&at, name)?;
    }
    // Through the open directory itself, as a path that cannot be bent. The library removes a tree without following
    // links in it.
    let target = PathBuf::from(format!("/proc/self/fd/{}/{last}", at.as_raw_fd()));
    let kind = fs::symlink_metadata(&target)?.file_type();
    if kind.is_symlink() {
        return Err(io::Error::other(format!("{last} is a symbolic link")));
    }
    if kind.is_dir() { fs::remove_dir_all(&target) } else { fs::remove_file(&target) }
}

/// Opens a directory: no link to one, and nothing else, on which another user could have the kernel wait.
fn open(at: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// An empty directory that is gone at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("mooring-{name}-{}", std::process::id()));
            fs::create_dir_all(&root).unwrap();
            Self(fs::canonicalize(root).unwrap())
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn path(text: &str) -> String {
        format!("/tmp/{text}")
    }

    #[test]
    fn a_directory_is_made_and_removed_as_often_as_is_asked() {
        let root = Root::new("directories");
        for _ in 0..2 {
            perform(&root.0, &Directory::Make(path("made/a"))).unwrap();
        }
        let made = root.0.join("made/a");
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o027, 0);
        fs::create_dir(made.join("inner")).unwrap();
        fs::write(made.join("inner/file"), "data").unwrap();
        for _ in 0..2 {
            perform(&root.0, &Directory::Remove(path("made/a"))).unwrap();
        }
        assert!(!made.exists() && root.0.join("made").exists());
        fs::write(root.0.join("made/file"), "data").unwrap();
        perform(&root.0, &Directory::Remove(path("made/file"))).unwrap();
        assert!(!root.0.join("made/file").exists());
        perform(&root.0, &Directory::Remove(path("never/made"))).unwrap();
    }

    #[test]
    fn nothing_but_a_directory_is_opened() {
        let root = Root::new("pipe");
        let pipe = root.0.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // As long as this is open, opening the pipe would not wait, but succeed.
        let _writer = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        for directory in [
            Directory::Make(path("pipe")),
            Directory::Make(path("pipe/new")),
            Directory::Remove(path("pipe/old")),
        ] {
            let error = perform(&root.0, &directory).unwrap_err();
            assert!(error.starts_with("Not a directory"), "{error}");
        }
        open(CWD, &pipe).unwrap_err();
    }

    #[test]
    fn no_link_leads_out() {
        let (root, outside) = (Root::new("links"), Root::new("outside"));
        fs::create_dir(outside.0.join("data")).unwrap();
        symlink(&outside.0, root.0.join("way")).unwrap();
        symlink(outside.0.join("data"), root.0.join("last")).unwrap();
        for directory in [
            Directory::Remove(path("way/data")),
            Directory::Remove(path("last")),
            Directory::Make(path("way/new")),
            Directory::Make(path("last")),
        ] {
            perform(&root.0, &directory).unwrap_err();
        }
        let linked_root = outside.0.join("root");
        symlink(&root.0, &linked_root).unwrap();
        perform(&linked_root, &Directory::Make(path("new"))).unwrap_err();
        assert_eq!(fs::read_dir(outside.0.join("data")).unwrap().count(), 0);
        assert!(outside.0.join("data").exists() && !outside.0.join("new").exists());
        // A link inside a tree goes with the tree, what it points to does not.
        fs::create_dir(root.0.join("tree")).unwrap();
        symlink(outside.0.join("data"), root.0.join("tree/link")).unwrap();
        perform(&root.0, &Directory::Remove(path("tree"))).unwrap();
        assert!(outside.0.join("data").exists() && !root.0.join("tree").exists());
    }

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
