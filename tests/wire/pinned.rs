//! What is committed is what the pinned release writes.

use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
};

/// Runs the program that wrote the file; `None` without Go.
fn printed(mode: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control-plane");
    let objects = File::open(folder.join("../cases/wire/objects.yaml")).unwrap();
    let is_required = std::env::var("MOORING_REQUIRE_CONTROL_PLANE").is_ok_and(|value| value == "1");
    let is_there =
        Command::new("go").arg("version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !is_there {
        assert!(!is_required, "Go is needed to check {mode}");
        eprintln!("The {mode} are not printed anew: there is no Go here.");
        return None;
    }
    let output = Command::new("go")
        .args(["run", "-mod=readonly", "protobuf.go", mode])
        .current_dir(folder)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .stdin(objects)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "go run failed");
    Some(String::from_utf8(output.stdout).unwrap())
}

fn check(mode: &str, committed: &str) {
    if let Some(printed) = printed(mode) {
        assert!(printed == committed, "run protobuf.go anew (tests/control-plane/README.md)");
    }
}

#[test]
fn the_committed_cases_are_what_the_pinned_release_writes() {
    check("cases", crate::encoded::COMMITTED);
}

#[test]
fn the_committed_fields_are_those_of_the_pinned_release() {
    check("fields", crate::fields::COMMITTED);
}
