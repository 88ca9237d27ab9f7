//! Completion and manual pages: what a shell is told.

use super::*;

#[test]
fn completion_scripts_and_manual_pages_are_printed_or_written() {
    let run = |arguments: &[&str]| mooring().args(arguments).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completion", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{shell}");
        for word in ["mooring", "explain", "doctor", "leader-elect-lease-duration"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let pages = [
        "",
        "-explain",
        "-doctor",
        "-node",
        "-whatif",
        "-repair",
        "-observe",
        "-preflight",
        "-switch",
        "-run",
        "-completion",
        "-man",
    ];
    let output = run(&["man"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let folder = folder("manual").join("share/man1");
    let _ = fs::remove_dir_all(&folder);
    let output = run(&["man", folder.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), output.stdout.len(), output.stderr.len()),
        (Some(0), 0, 0),
        "{output:?}"
    );
    for page in pages {
        let written = fs::read_to_string(folder.join(format!("mooring{page}.1"))).unwrap();
        assert!(written.contains(&format!(".TH mooring{page} 1")), "{page}");
        assert!(printed.contains(&written), "{page}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), pages.len());

    let no_folder = folder.join("mooring.1");
    let cases: [(&[&str], i32, &str); 3] = [
        (&["completion"], 2, "mooring: the following required arguments were not provided: <SHELL>"),
        (&["completion", "tcsh"], 2, "mooring: invalid value 'tcsh' for '<SHELL>'"),
        (&["man", no_folder.to_str().unwrap()], 1, "mooring: the manual cannot be written: "),
    ];
    for (arguments, code, expected) in cases {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}
