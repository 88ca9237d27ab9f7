//! A row of the table: one situation, with its verdict, its sentence, whom it waits for, what comes next, and what to do.
//!
//! In: a row's texts with `{names}` in them, and facts. Out: the texts with the facts. `{pod.name}` and `{pod.namespace}` are the
//! parts of the fact `pod`, if that is a key.

use std::fmt::Display;

use crate::explain::report::{
    Risk::{self, Care, Danger, Safe},
    Verdict,
};

/// What a text's names stand for.
pub(crate) type Facts<'a> = &'a [(&'static str, &'a dyn Display)];

/// One situation.
#[derive(Debug)]
pub(crate) struct Row {
    /// The reasons' codes and, where a reason has several situations, a word for the situation.
    pub cases: &'static [&'static str],
    pub verdict: Verdict,
    /// The sentence; `{told}` is what the controller's decision says itself.
    pub message: &'static str,
    pub parts: &'static [Part],
}

/// What more a row says.
#[derive(Debug)]
pub(crate) enum Part {
    /// It waits for an object: kind, name, why.
    WaitsFor(&'static str, &'static str, &'static str),
    /// What happens next by itself, and on which condition, if there is one.
    Next(&'static str, &'static str),
    /// What a person may do, or never: text and command.
    Do(Risk, &'static str, &'static str),
    /// All that another row says of what to do.
    Also(&'static str),
}

/// Rows, each as `case | case: verdict, message, parts;`.
macro_rules! rows {
    ($($($case:literal)|+: $verdict:expr, $message:expr $(, $part:expr)*;)*) => {
        pub(super) const ROWS: &[Row] = &[
            $(Row { cases: &[$($case),+], verdict: $verdict, message: $message, parts: &[$($part),*] }),*
        ];
    };
}
pub(super) use rows;

/// Waits for an object.
pub(super) const fn waits(kind: &'static str, name: &'static str, why: &'static str) -> Part {
    Part::WaitsFor(kind, name, why)
}

/// Goes on with an action, on a condition.
pub(super) const fn next(action: &'static str, condition: &'static str) -> Part {
    Part::Next(action, condition)
}

/// Something that loses nothing, in any state of the cluster.
pub(super) const fn safe(text: &'static str, command: &'static str) -> Part {
    Part::Do(Safe, text, command)
}

/// Something that has a price, or is right only on the condition in its text.
pub(super) const fn care(text: &'static str, command: &'static str) -> Part {
    Part::Do(Care, text, command)
}

/// All leases but those of nodes: of mooring, of kube-controller-manager and of side-cars.
pub(super) const SHOW_LEASES: &str =
    "kubectl get leases -A --field-selector metadata.namespace!=kube-node-lease";

/// Something never to do.
pub(super) const fn never(text: &'static str) -> Part {
    Part::Do(Danger, text, "")
}

/// A text with its facts; what is no fact's name stays as it is.
pub(crate) fn fill(text: &str, facts: Facts<'_>) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}').and_then(|(name, rest)| Some((fact(name, facts)?, rest))) {
            Some((fact, rest)) => filled.extend([fact.as_str(), rest]),
            None => filled.extend(["{", part]),
        }
    }
    filled
}

fn fact(name: &str, facts: Facts<'_>) -> Option<String> {
    let (name, part) = name.split_once('.').unwrap_or((name, ""));
    let (_, fact) = facts.iter().find(|(known, _)| *known == name)?;
    let fact = fact.to_string();
    Some(match (part, fact.split_once('/')) {
        ("namespace", Some((namespace, _))) => namespace.to_owned(),
        ("name", Some((_, name))) => name.to_owned(),
        _ => fact,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_take_the_place_of_their_names_and_patches_stay() {
        let facts: Facts<'_> = &[("pod", &"shop/web"), ("node", &"n1")];
        let cases = [
            ("pod {pod} is on {node}", "pod shop/web is on n1"),
            ("kubectl get pod {pod.name} -n {pod.namespace}", "kubectl get pod web -n shop"),
            (r#"{"spec":{"claimRef":null}} {other}"#, r#"{"spec":{"claimRef":null}} {other}"#),
        ];
        for (text, filled) in cases {
            assert_eq!(fill(text, facts), filled);
        }
    }
}
