//! The cases of `tests/cases/preflight`: what is seen, and each line that is not ok.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Level, Line,
    facts::{PreflightFacts, PreflightTopic},
    judge, text, worst,
};
use crate::fence::policies::{FENCES, Fence};

#[derive(Deserialize)]
struct PreflightCases {
    /// When it is.
    now: String,
    /// A cluster in which nothing is in the way.
    base: BTreeMap<PreflightTopic, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// What is otherwise.
    #[serde(default)]
    given: BTreeMap<PreflightTopic, Value>,
    /// What cannot be read, with the server's words.
    #[serde(default)]
    unseen: BTreeMap<PreflightTopic, String>,
    /// Each check that is not ok, with its level and a part of what is said.
    then: BTreeMap<String, (String, String)>,
}

#[test]
fn each_case_has_these_lines() {
    let cases: PreflightCases =
        serde_saphyr::from_str(include_str!("../../tests/cases/preflight/cases.yaml")).unwrap();
    let two = [&FENCES[0], &FENCES[1]];
    for case in cases.cases {
        let mut seen: BTreeMap<PreflightTopic, Result<Value, String>> =
            cases.base.clone().into_iter().map(|(topic, value)| (topic, Ok(value))).collect();
        seen.extend(case.given.into_iter().map(|(topic, value)| (topic, Ok(value))));
        seen.extend(case.unseen.into_iter().map(|(topic, why)| (topic, Err(why))));
        let lines = judge(&PreflightFacts { now: cases.now.parse().unwrap(), seen }, &two);
        let found: Vec<&Line> = lines.iter().filter(|line| line.level != Level::Ok).collect();
        let names: Vec<&str> = found.iter().map(|line| line.check).collect();
        assert_eq!(names.len(), case.then.len(), "{}: {found:#?}", case.name);
        for line in &found {
            let Some((level, words)) = case.then.get(line.check) else { panic!("{}: {line:?}", case.name) };
            assert_eq!(<&str>::from(line.level), level.to_uppercase(), "{}: {line:?}", case.name);
            assert!(line.evidence.contains(words.as_str()), "{}: {line:?}", case.name);
            assert!(!line.todo.is_empty(), "{}: {line:?}", case.name);
        }
        let expected = found.iter().map(|line| line.level).max().unwrap_or(Level::Ok);
        assert_eq!(worst(&lines), expected);
        assert_eq!(
            text(&lines).matches("→").count(),
            lines.iter().filter(|line| !line.todo.is_empty()).count()
        );
    }
}

#[test]
fn what_denied_writes_cost_is_the_rate_of_the_flag_for_each_loop_and_the_rule_names_their_users() {
    let managers = |flags: &[&str]| {
        let command: Vec<&str> =
            ["kube-controller-manager"].into_iter().chain(flags.iter().copied()).collect();
        json!({ "items": [{ "spec": { "containers": [{ "command": command }] } }] })
    };
    let users = [&FENCES[0], &FENCES[1]].map(Fence::user);
    let rule = json!({ "level": "None", "users": users, "verbs": ["create", "update", "patch", "delete"] });
    for (flags, rate) in [([].as_slice(), 20), (&["--kube-api-qps=150"], 150)] {
        let seen = BTreeMap::from([(PreflightTopic::Managers, Ok(managers(flags)))]);
        let now = "2026-11-23T12:00:00Z".parse().unwrap();
        let lines = judge(&PreflightFacts { now, seen }, &[&FENCES[0], &FENCES[1]]);
        let line = lines.iter().find(|line| line.check == "cost").unwrap();
        let said = format!(
            "at most {rate} a second for each of 2 loops, as many audit entries; audit rule: - {rule}"
        );
        assert!(line.level == Level::Ok && line.evidence.ends_with(&said), "{line:?}");
    }
}

#[test]
fn a_lack_of_rights_is_told_from_no_answer() {
    let cases = [
        (r#"nodes is forbidden: User "jane" cannot list resource "nodes""#, "who has the right"),
        (
            "user \"jane\" (groups=[\"ops\"]) is attempting to grant RBAC permissions not currently held",
            "who has the right",
        ),
        ("no answer within 10s", "run this again"),
    ];
    for (why, todo) in cases {
        let seen = BTreeMap::from([(PreflightTopic::Version, Err(why.to_owned()))]);
        let lines = judge(&PreflightFacts { now: "2026-11-23T12:00:00Z".parse().unwrap(), seen }, &[]);
        let line = lines.iter().find(|line| line.check == "version").unwrap();
        assert!(line.todo.contains(todo), "{line:?}");
    }
}
