//! The form of shown values, and the width of all cases.

use serde_json::json;

use super::shown;

#[test]
fn a_value_is_shown_as_yaml_that_says_it() {
    let long = "x".repeat(70);
    let cases = [
        (json!([]), "  seen: []".to_owned()),
        (
            json!(["p1 SuccessfulAttachVolume v1", 3, null]),
            "  seen: [p1 SuccessfulAttachVolume v1, 3, null]".to_owned(),
        ),
        (json!(["list on n1: [v1]", "no", "3"]), "  seen: ['list on n1: [v1]', 'no', '3']".to_owned()),
        (json!({"v1 on n1": "it's"}), "  seen: {v1 on n1: it's}".to_owned()),
        (json!("a\n"), "  seen: \"a\\n\"".to_owned()),
        (json!([long, long]), format!("  seen:\n    - {long}\n    - {long}")),
        (json!({"a": long, "b": [long]}), format!("  seen:\n    a: {long}\n    b: [{long}]")),
    ];
    for (value, expected) in cases {
        assert_eq!(shown::after(2, "seen", &value), expected);
        let read: serde_json::Value = serde_saphyr::from_str(&expected).unwrap();
        assert_eq!(read["seen"], value);
    }
}

/// Whether a line is longer than it may be. One with a word that no line has room for may be.
fn is_too_long(line: &str) -> bool {
    let indent = shown::columns(line) - shown::columns(line.trim_start());
    let longest = line.split_whitespace().map(shown::columns).max().unwrap_or_default();
    shown::columns(line) > shown::COLUMNS && indent + longest <= shown::COLUMNS
}

#[test]
fn a_line_may_be_longer_by_a_word_that_no_line_has_room_for() {
    let word = "x".repeat(130);
    assert!(!is_too_long(&format!("  - {word}")));
    assert!(!is_too_long(&"x ".repeat(60)[..119]));
    assert!(is_too_long(&"x ".repeat(61)));
}

#[test]
fn no_line_of_a_case_is_too_long() {
    let mut folders = vec![crate::repository().join("tests/cases")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in super::entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let long = text.lines().enumerate().filter(|(_, line)| is_too_long(line));
                found.extend(long.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
            }
        }
    }
    assert!(found.is_empty(), "longer than {} columns: {found:#?}", shown::COLUMNS);
}
