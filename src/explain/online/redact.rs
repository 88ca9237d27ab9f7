//! What of an answer is shown to one who may not see all of it. Pure.
//!
//! In: an answer, the objects that it speaks of, and which of them are hidden. Out: the answer without them: their links keep
//! kind, reason and times, and lose name and words; in all other words their names are replaced; what was only about them
//! is left out and counted. So a user of one namespace learns what they wait for, and not for whom.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{boards::subject_of, signs::Signs};
use crate::{
    explain::{
        report::{Candidate, Explanation, Happened, Step},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{
        ids::VolumeName,
        kinds::{Narrow, ObjectRef, PersistentVolume},
    },
    state::Stored,
};

/// In place of a name that is not shown.
pub(super) const HIDDEN: &str = "(hidden)";

/// An answer before it is known who reads it.
#[derive(Debug)]
pub(super) struct Answer {
    /// All of it, but for the past.
    pub explanation: Explanation,
    /// What happened, each with the object that it is about.
    pub past: Vec<(ObjectRef, Happened)>,
    /// What it speaks of, each with the words by which it could be known.
    pub mentioned: BTreeMap<ObjectRef, Vec<String>>,
    /// By what it is seen that it no longer holds.
    pub signs: Signs,
}

/// The objects that an answer speaks of, by its links and in its words, but for the subject.
pub(super) fn mentioned(explanation: &Explanation, snapshot: &Snapshot) -> BTreeMap<ObjectRef, Vec<String>> {
    let own = subject_of(&explanation.subject).map(|subject| subject.object());
    let words = words(explanation);
    let mut found = BTreeMap::new();
    let mut note = |object: ObjectRef, mut secrets: Vec<String>| {
        if own.as_ref() != Some(&object) {
            secrets.retain(|secret| !secret.is_empty());
            found.insert(object, secrets);
        }
    };
    let blockers = explanation.steps.iter().flat_map(|step| &step.blocked_by).map(|blocker| &blocker.object);
    for subject in explanation.steps.iter().map(|step| &step.object).chain(blockers).filter_map(subject_of) {
        note(subject.object(), names(&subject));
    }
    let objects = &snapshot.objects;
    let named: BTreeSet<&str> = explanation.candidates.iter().map(|candidate| &*candidate.name).collect();
    objects.volumes.for_each(|volume| {
        let name = volume.metadata.name.as_str();
        let handle = volume.spec.csi.as_ref().map(|csi| csi.volume_handle.to_string());
        let is_meant = handle.as_ref().is_some_and(|handle| words.contains(handle.as_str()));
        if is_meant || words.contains(name) || named.contains(name) {
            let secrets = [Some(name.to_owned()), handle, Some(volume.metadata.uid.to_string())];
            note(PersistentVolume::object_ref(volume.key()), secrets.into_iter().flatten().collect());
        }
    });
    take_named(&objects.nodes, &words, &mut note);
    take_named(&objects.pods, &words, &mut note);
    take_named(&objects.claims, &words, &mut note);
    take_named(&objects.attachments, &words, &mut note);
    found
}

fn take_named<T: Stored>(
    table: &crate::state::Table<T>,
    words: &BTreeSet<&str>,
    note: &mut impl FnMut(ObjectRef, Vec<String>),
) {
    table.for_each(|object| {
        let metadata = object.metadata();
        if words.contains(metadata.name.as_str()) {
            let secrets = [&*metadata.name, &*metadata.namespace].map(str::to_owned);
            let uid = metadata.uid.to_string();
            note(T::object_ref(object.key()), secrets.into_iter().chain([uid]).collect());
        }
    });
}

fn names(subject: &Subject) -> Vec<String> {
    vec![subject.name().to_owned(), subject.namespace().unwrap_or_default().to_owned()]
}

/// All words of an answer that may be names.
fn words(explanation: &Explanation) -> BTreeSet<&str> {
    texts(explanation)
        .into_iter()
        .flat_map(|text| text.split(|letter: char| !is_of_name(letter)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.is_empty())
        .collect()
}

pub(super) fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_')
}

fn texts(explanation: &Explanation) -> Vec<&str> {
    let mut texts: Vec<&str> = vec![&explanation.headline, &explanation.summary];
    for step in &explanation.steps {
        texts.extend([step.detail.as_str(), &step.message]);
        texts.extend(step.next.as_ref().and_then(|next| next.condition.as_deref()));
        texts.extend(step.blocked_by.iter().map(|blocker| blocker.why.as_str()));
    }
    for candidate in &explanation.candidates {
        texts.extend(candidate.faults.iter().map(|fault| fault.detail.as_str()));
    }
    for action in &explanation.actions {
        texts.push(&action.text);
        texts.extend(action.command.iter().map(String::as_str));
    }
    texts.extend(explanation.unknown.iter().map(String::as_str));
    texts
}

/// What of an answer is shown to one from whom these objects are hidden.
pub(super) fn redacted(answer: &Answer, hidden: &BTreeSet<ObjectRef>) -> Explanation {
    let mut shown = answer.explanation.clone();
    let past = answer.past.iter().filter(|(object, _)| !hidden.contains(object));
    shown.timeline = past.map(|(_, happened)| happened.clone()).collect();
    if hidden.is_empty() {
        return shown;
    }
    let is_hidden =
        |object: &Value| subject_of(object).is_some_and(|subject| hidden.contains(&subject.object()));
    let before = shown.steps.iter().position(|step| step.is_blocker && is_hidden(&step.object));
    for step in &mut shown.steps {
        step.blocked_by.retain(|blocker| !is_hidden(&blocker.object));
        if is_hidden(&step.object) {
            *step = unnamed(step);
        }
    }
    if let Some(step) = before.and_then(|index| shown.steps.get(index)) {
        let kind = step.object.get("kind").and_then(Value::as_str).unwrap_or("object");
        shown.summary = format!("it waits for a {kind} that you may not see");
    }
    let is_shown = |candidate: &Candidate| {
        !hidden.contains(&ObjectRef::Volume(VolumeName::from(candidate.name.as_str())))
    };
    shown.candidates.retain(is_shown);
    let secrets = secrets(answer, hidden);
    shown.actions.retain(|action| {
        let is_clean = |text: &String| scrubbed(text, &secrets) == *text;
        is_clean(&action.text) && action.command.iter().all(is_clean)
    });
    scrub(&mut shown, &secrets);
    shown.redacted = hidden.len();
    shown
}

/// A link of an object that is not shown.
fn unnamed(step: &Step) -> Step {
    let kind = step.object.get("kind").and_then(Value::as_str).unwrap_or("object").to_owned();
    let next = step.next.clone().map(|next| crate::explain::report::Next { condition: None, ..next });
    Step {
        object: json!({ "kind": kind }),
        detail: String::new(),
        message: format!("of a {kind} that you may not see"),
        next,
        ..step.clone()
    }
}

/// The words that tell of what is hidden, but for those that tell of what is shown, too; the longest first.
fn secrets(answer: &Answer, hidden: &BTreeSet<ObjectRef>) -> Vec<String> {
    let mut secrets: BTreeSet<&str> = BTreeSet::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let own = |field| answer.explanation.subject.get(field).and_then(Value::as_str).unwrap_or_default();
    open.extend([own("name"), own("namespace")]);
    for (object, words) in &answer.mentioned {
        let words = words.iter().map(String::as_str);
        if hidden.contains(object) { secrets.extend(words) } else { open.extend(words) }
    }
    let mut secrets: Vec<String> =
        secrets.into_iter().filter(|secret| !open.contains(secret)).map(str::to_owned).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

fn scrub(shown: &mut Explanation, secrets: &[String]) {
    let scrub = |text: &mut String| *text = scrubbed(text, secrets);
    scrub(&mut shown.headline);
    scrub(&mut shown.summary);
    for step in &mut shown.steps {
        scrub(&mut step.detail);
        scrub(&mut step.message);
        if let Some(condition) = step.next.as_mut().and_then(|next| next.condition.as_mut()) {
            scrub(condition);
        }
        step.blocked_by.iter_mut().for_each(|blocker| scrub(&mut blocker.why));
    }
    for candidate in &mut shown.candidates {
        candidate.faults.iter_mut().for_each(|fault| scrub(&mut fault.detail));
    }
    shown.timeline.iter_mut().for_each(|happened| scrub(&mut happened.text));
    shown.unknown.iter_mut().for_each(scrub);
}

/// A text without these words, wherever they stand as words.
fn scrubbed(text: &str, secrets: &[String]) -> String {
    let mut text = text.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(secret.as_str())).map(|at| from + at)
        {
            let end = at + secret.len();
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let mut after = text.get(end..).unwrap_or_default().chars();
            let is_word = !before.is_some_and(is_of_name)
                && match after.next() {
                    // The end of a sentence.
                    Some('.') => !after.next().is_some_and(is_of_name),
                    next => !next.is_some_and(is_of_name),
                };
            if is_word {
                text.replace_range(at..end, HIDDEN);
                from = at + HIDDEN.len();
            } else {
                // At least one character on, and never within one.
                from = at + secret.chars().next().map_or(1, char::len_utf8);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_replaced_where_it_is_a_word_and_nowhere_else() {
        let secrets = ["n1", "shop", "vol-7", "/sub/disk a"].map(str::to_owned);
        let rows = [
            ("on node n1.", "on node (hidden)."),
            ("n1: pod shop/web-0 uses it", "(hidden): pod (hidden)/web-0 uses it"),
            ("n10, n1-a, an1, n1.example stay", "n10, n1-a, an1, n1.example stay"),
            ("kubernetes.io/csi/d^vol-7 (n1)", "kubernetes.io/csi/d^(hidden) ((hidden))"),
            ("handle \"/sub/disk a\"", "handle \"(hidden)\""),
            ("äshop n1", "äshop (hidden)"),
            ("n1n1 n1 n1", "n1n1 (hidden) (hidden)"),
        ];
        for (text, expected) in rows {
            let expected = expected.replace("äshop", "ä(hidden)");
            assert_eq!(scrubbed(text, &secrets), expected, "{text}");
        }
    }
}
