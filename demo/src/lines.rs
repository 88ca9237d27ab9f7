//! What happened, as lines of text.

use std::{fmt, time::Duration};

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// To a node, by fate or by its operator.
    Node,
    /// A claim was bound.
    Bind,
    /// A volume was attached.
    Attach,
    /// A pod runs on another node than before.
    Move,
    /// A volume was detached.
    Detach,
    /// A volume was detached although it may be in use.
    Force,
    /// Something waits, and why.
    Wait,
    /// A volume is gone for good.
    Remove,
}

impl Verb {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Bind => "bind",
            Self::Attach => "attach",
            Self::Move => "move",
            Self::Detach => "detach",
            Self::Force => "force",
            Self::Wait => "wait",
            Self::Remove => "remove",
        }
    }
}

/// What there is to tell: what kind of thing, what it happened to, and the rest of the sentence.
pub type Told = (Verb, String, String);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Since the demo began.
    pub at: Duration,
    /// What.
    pub verb: Verb,
    /// To whom.
    pub subject: String,
    /// The rest of the sentence.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.as_secs_f64();
        write!(f, "{seconds:7.1}s  {:6}  {}{}", self.verb.word(), self.subject, self.text)
    }
}

/// More lines of a kind than this, at once, are told in one.
const AT_ONCE: usize = 3;

/// Lines that came at about the same time, with many of a kind told in one.
pub fn condense(lines: Vec<Line>) -> Vec<Line> {
    let mut groups: Vec<(Verb, Vec<Line>)> = Vec::new();
    for line in lines {
        match groups.iter_mut().find(|(verb, _)| *verb == line.verb) {
            Some((_, group)) => group.push(line),
            None => groups.push((line.verb, vec![line])),
        }
    }
    groups
        .into_iter()
        .flat_map(|(_, group)| if group.len() > AT_ONCE { in_one(group) } else { group })
        .collect()
}

fn in_one(group: Vec<Line>) -> Vec<Line> {
    let others = group.len() - AT_ONCE;
    let subjects: Vec<String> = group.iter().take(AT_ONCE).map(|line| line.subject.clone()).collect();
    let text = format!(" and {others} more{}", common_reason(&group));
    let first = group.into_iter().next();
    first.map(|line| Line { subject: subjects.join(", "), text, ..line }).into_iter().collect()
}

/// `: Reason`, if all lines begin with it.
fn common_reason(group: &[Line]) -> &str {
    let reason = |line: &'_ Line| line.text.match_indices(": ").nth(1).map_or(0, |(end, _)| end);
    let Some(first) = group.first() else { return "" };
    let common = first.text.get(..reason(first)).unwrap_or_default();
    if group.iter().all(|line| line.text.starts_with(common)) { common } else { "" }
}

/// A text with the generated names of volumes cut to what tells them apart.
pub fn shorten(text: &str) -> String {
    /// Length of a UID, and of its first part.
    const UID: usize = 36;
    const HEAD: usize = 8;
    let mut short = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("pvc-") {
        short.push_str(before);
        short.push_str("pvc-");
        let is_uid = |uid: &str| uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        match (after.get(..UID), after.get(..HEAD), after.get(UID..)) {
            (Some(uid), Some(head), Some(tail)) if is_uid(uid) => {
                short.push_str(head);
                rest = tail;
            }
            _ => rest = after,
        }
    }
    short + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: Verb, subject: &str) -> Line {
        Line {
            at: Duration::from_millis(1_250),
            verb,
            subject: subject.to_owned(),
            text: " is bound".to_owned(),
        }
    }

    #[test]
    fn many_of_a_kind_are_told_in_one() {
        let few = vec![line(Verb::Bind, "a"), line(Verb::Attach, "b"), line(Verb::Bind, "c")];
        let told: Vec<String> = condense(few).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            ["    1.2s  bind    a is bound", "    1.2s  bind    c is bound", "    1.2s  attach  b is bound"]
        );
        let many = ["a", "b", "c", "d", "e"].map(|subject| line(Verb::Bind, subject)).to_vec();
        let told: Vec<String> = condense(many).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["    1.2s  bind    a, b, c and 2 more"]);
        let wait = |subject| Line { text: format!(": NoLuck: {subject}"), ..line(Verb::Wait, subject) };
        let told = condense(["a", "b", "c", "d"].map(wait).to_vec());
        assert_eq!(told[0].to_string(), "    1.2s  wait    a, b, c and 1 more: NoLuck");
    }

    #[test]
    fn generated_names_are_cut() {
        let cases = [
            ("\"pvc-0a1b2c3d-0000-4000-8000-000000000000\" x", "\"pvc-0a1b2c3d\" x"),
            ("pvc-small", "pvc-small"),
            ("nothing", "nothing"),
            ("pvc-0a1b2c3d-0000-4000-8000-00000000000ü", "pvc-0a1b2c3d-0000-4000-8000-00000000000ü"),
        ];
        for (text, expected) in cases {
            assert_eq!(shorten(text), expected);
        }
    }
}
