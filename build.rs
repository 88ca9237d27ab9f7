//! Says what is built from what: the commit and the compiler, for `mooring_build_info`, `/version` and `/statusz`.
//!
//! The commit is what `MOORING_COMMIT` says, as the build of the image does; else, of a build that is to be used, what
//! git says of the checkout; else unknown. A build for tests does not ask git: it would compile everything anew after
//! each commit. Nothing of the machine or the time goes into it, so that equal sources are equal files.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MOORING_COMMIT");
    let told = env::var("MOORING_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_for_use = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = told.or_else(|| if is_for_use { commit() } else { None });
    println!("cargo:rustc-env=MOORING_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let rustc = env::var("RUSTC").ok().and_then(|rustc| output(&rustc, &["--version"]));
    // `rustc 1.95.0 (… 2026-…)`: the number says all.
    let rustc = rustc.as_deref().and_then(|version| version.split_whitespace().nth(1)).unwrap_or("unknown");
    println!("cargo:rustc-env=MOORING_RUSTC={rustc}");
    println!("cargo:rustc-env=MOORING_TARGET={}", env::var("TARGET").unwrap_or_default());
}

/// The commit of the checkout, if this is one. Built again when another one is checked out.
fn commit() -> Option<String> {
    let commit = output("git", &["rev-parse", "HEAD"])?;
    // Names of files may differ in worktrees, so git is asked for them.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", file])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Some(commit)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
