//! The use of VolumeAttributesClasses: S49.
//!
//! In: a class before and after a write, and the claims and volumes that have named it for a while. Out: whether it lost
//! its finalizer too early.

use std::collections::BTreeSet;

use serde_json::Value;

use super::text;

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// Where a claim or a volume names classes.
const NAMES: [&str; 3] = [
    "/spec/volumeAttributesClassName",
    "/status/currentVolumeAttributesClassName",
    "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
];

/// The classes that a claim or volume names.
pub fn named(user: &Value) -> BTreeSet<String> {
    NAMES.map(|pointer| text(user, pointer).to_owned()).into_iter().filter(|name| !name.is_empty()).collect()
}

/// S49: why the class should not have lost its finalizer by a write that left `after` of it.
pub fn let_go_early<'a>(
    before: &Value,
    after: Option<&Value>,
    users: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let has = |class: &Value| {
        class["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == FINALIZER))
    };
    if !has(before) || after.is_some_and(has) {
        return None;
    }
    if !before["metadata"]["deletionTimestamp"].is_string() {
        return Some("S49 a class that is not being deleted loses its finalizer".to_owned());
    }
    let user = users.into_iter().next()?;
    Some(format!("S49 a class loses its finalizer while {user} names it"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s49_a_class_loses_its_finalizer_when_it_is_deleted_and_nothing_names_it() {
        let class = |has: bool, is_going: bool| {
            let finalizers = if has { vec!["a", FINALIZER] } else { vec!["a"] };
            let mut class = json!({ "metadata": { "finalizers": finalizers } });
            if is_going {
                class["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            class
        };
        // before, after, who names it, whether that is wrong
        let cases = [
            (class(true, true), Some(class(false, true)), &[][..], false),
            (class(true, true), None, &[][..], false),
            (class(true, true), Some(class(false, true)), &["c"], true),
            (class(true, true), None, &["v"], true),
            (class(true, false), Some(class(false, false)), &[], true),
            (class(false, false), Some(class(true, false)), &["c"], false),
            (class(true, true), Some(class(true, true)), &["c"], false),
            (class(false, true), None, &["c"], false),
        ];
        for (before, after, users, expected) in cases {
            let told = let_go_early(&before, after.as_ref(), users.iter().copied());
            assert_eq!(told.is_some(), expected, "{before} {after:?} {users:?}: {told:?}");
        }
        let user = json!({
            "spec": { "volumeAttributesClassName": "a" },
            "status": {
                "currentVolumeAttributesClassName": "",
                "modifyVolumeStatus": { "targetVolumeAttributesClassName": "b" },
            },
        });
        assert_eq!(named(&user), ["a", "b"].map(str::to_owned).into());
    }
}
