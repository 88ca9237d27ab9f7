//! The time of day of one process: a preloaded library, compiled when it is needed, adds what a file says.
//!
//! Go reads its clock past the C library, so this holds of mooring alone.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use test_support::process::temporary_folder;

/// Compiles the library.
pub fn library() -> PathBuf {
    let folder = temporary_folder("clock");
    let source = folder.join("clock.c");
    std::fs::write(&source, include_str!("clock.c")).expect("write the clock");
    let library = folder.join("clock.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .status()
        .expect("run the compiler that linked this test");
    assert!(compiled.success(), "the clock is not compiled");
    library
}

/// One process's clock.
#[derive(Debug)]
pub struct Clock(PathBuf);

impl Clock {
    /// One that is right.
    pub fn new() -> Self {
        let file = temporary_folder("clock").join("shift");
        std::fs::write(&file, 0_i64.to_ne_bytes()).expect("write a clock's file");
        Self(file)
    }

    /// What the process needs in its environment.
    pub fn environment(&self, library: &Path) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![("LD_PRELOAD", text(library)), ("TRIAL_CLOCK", text(&self.0))]
    }

    /// Moves it by so many seconds from the machine's. The file keeps its place, as it is mapped.
    pub fn set(&self, seconds: i64) {
        let mut file = OpenOptions::new().write(true).open(&self.0).expect("open a clock's file");
        file.write_all(&seconds.to_ne_bytes()).expect("set a clock");
    }
}
