//! The answer as text, for a terminal or a ticket.
//!
//! In: an [`Explanation`] and a [`Style`]. Out: lines that fit the width where words allow it; names are never cut. What
//! others wrote (a driver's error, a label) cannot steer the terminal: control characters are shown as a replacement.

use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    age,
    report::{Action, Candidate, Explanation, Next, Risk, Step, Verdict},
    snapshot::Unseen,
    wrap::{WIDTH, wrapped},
};

/// How text is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Style {
    /// Colours, for a terminal.
    pub color: bool,
    /// No characters beyond ASCII.
    pub ascii: bool,
    /// Times in full beside ages.
    pub utc: bool,
    /// Everything: evidence and all candidates.
    pub wide: bool,
    /// Columns.
    pub width: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self { color: false, ascii: false, utc: false, wide: false, width: WIDTH }
    }
}

/// Reasons of claims whose volume the scheduler chooses.
const SCHEDULED: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

/// Candidates that are shown unless everything is.
const CANDIDATES: usize = 8;

/// Lines of the past that are shown unless everything is.
const PAST: usize = 8;

/// How the names of attachments begin that are computed, how many digits they have, and how many of them are shown.
const COMPUTED: &str = "csi-";
const DIGITS: usize = 64;
const SHOWN: usize = 8;

/// Columns of a label at the beginning of a line.
const LABEL: usize = 9;

/// Prints an answer.
#[must_use]
pub fn text(explanation: &Explanation, style: Style) -> String {
    let mut page = Page { text: String::new(), style, now: explanation.observed.at };
    page.head(explanation);
    let blocker = explanation.steps.iter().find(|step| step.is_blocker);
    let next = blocker.and_then(|step| step.next.as_ref());
    // Until when it waits, the next line says.
    let until = next.and_then(goes_on);
    let why = until.and_then(|until| explanation.summary.strip_suffix(until.as_str()).map(str::to_owned));
    let why = why.unwrap_or_else(|| explanation.summary.clone());
    page.said("WHY", &format!("{}: {why}", explanation.reason));
    if let Some(next) = next {
        let next = page.next(next);
        page.said("NEXT", &next);
    }
    page.candidates(explanation);
    page.chain(&explanation.steps);
    page.timeline(explanation);
    page.evidence(explanation);
    for (risk, title) in [(Risk::Safe, "SAFE TO DO"), (Risk::Care, "NEEDS CARE"), (Risk::Danger, "NEVER")] {
        page.actions(title, explanation.actions.iter().filter(|action| action.risk == risk));
    }
    page.list("NOT SEEN", &unseen(&explanation.unseen, page.style.wide));
    page.list("NOT KNOWN", &explanation.unknown);
    if style.ascii { plain(&page.text) } else { page.text }
}

/// Text in ASCII.
#[must_use]
pub fn plain(text: &str) -> String {
    let text =
        text.replace('…', "...").replace(['·', '–', '•'], "-").replace(['→', '←'], ">").replace('✗', "x");
    text.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect()
}

/// Until when it waits, as the end of a sentence, if that is no time.
pub(super) fn goes_on(next: &Next) -> Option<String> {
    let condition = next.condition.as_ref().filter(|_| next.at.is_none())?;
    Some(format!("; it goes on when {condition}"))
}

/// What was not seen, a line each; what one may not read in one line, and with the server's words if they are wanted.
pub(super) fn unseen(all: &[Unseen], is_wide: bool) -> Vec<String> {
    let (forbidden, others): (Vec<&Unseen>, Vec<&Unseen>) =
        all.iter().partition(|unseen| unseen.forbidden && !is_wide);
    let mut lines = Vec::new();
    if !forbidden.is_empty() {
        let names: Vec<&str> = forbidden.iter().map(|unseen| unseen.what.as_str()).collect();
        lines.push(format!("you may not read: {}", names.join(", ")));
    }
    lines.extend(others.iter().map(|unseen| format!("{}: {}", unseen.what, unseen.why)));
    lines
}

struct Page {
    text: String,
    style: Style,
    now: Timestamp,
}

impl Page {
    fn head(&mut self, explanation: &Explanation) {
        let verdict = match explanation.verdict {
            Verdict::Healthy => self.paint("32", "Healthy"),
            Verdict::Waiting => self.paint("33", "Waiting"),
            Verdict::Blocked => self.paint("31", "Blocked"),
            Verdict::NotFound => self.paint("31", "NotFound"),
            Verdict::Forbidden => self.paint("31", "Forbidden"),
        };
        let name = self.paint("1", &clean(&name(&explanation.subject)));
        let since = explanation.steps.first().and_then(|step| step.since);
        let age = since.map_or(String::new(), |since| format!("  {}", self.since(since)));
        let _ = writeln!(self.text, "{name}  {}  {verdict}{age}", clean(&explanation.headline));
    }

    fn next(&self, next: &Next) -> String {
        let when = match (next.not_before, next.at) {
            (Some(from), Some(to)) => format!(" between {} and {}", stamp(from), stamp(to)),
            (None, Some(to)) => format!(" by {} (in {})", stamp(to), age::between(self.now, to)),
            (Some(from), None) => format!(" not before {}", stamp(from)),
            (None, None) => String::new(),
        };
        let condition = next.condition.as_ref().map_or(String::new(), |condition| {
            let word = if next.at.is_some() { "if" } else { "when" };
            format!(", {word} {condition}")
        });
        format!("{}{when}{condition}", next.action)
    }

    fn candidates(&mut self, explanation: &Explanation) {
        let all = &explanation.candidates;
        if all.is_empty() {
            return;
        }
        let is_of_class = |one: &&Candidate| !one.faults.iter().any(|fault| fault.reason == "ClassMismatch");
        let shown: Vec<&Candidate> = if self.style.wide {
            all.iter().collect()
        } else {
            all.iter().filter(is_of_class).take(CANDIDATES).collect()
        };
        let _ = writeln!(self.text, "\nCANDIDATES ({})", all.len());
        let widest =
            |of: fn(&Candidate) -> &str| shown.iter().map(|one| of(one).chars().count()).max().unwrap_or(0);
        let widths =
            [widest(|it| &it.name), widest(|it| &it.size), widest(|it| &it.modes), widest(|it| &it.class)];
        let [name, size, modes, class] = widths;
        for one in &shown {
            let faults: Vec<String> =
                one.faults.iter().map(|fault| format!("{} {}", fault.reason, fault.detail)).collect();
            let faults = match (faults.is_empty(), SCHEDULED.contains(&explanation.reason.as_str())) {
                (true, true) => "fits: the scheduler chooses".to_owned(),
                (true, false) => "Chosen".to_owned(),
                (false, _) => faults.join("; "),
            };
            let Candidate { name: of, size: large, modes: able, class: kind, .. } = one;
            let head = format!("  {of:name$}  {large:size$}  {able:modes$}  {kind:class$}  ");
            self.hanging(&head, &faults);
        }
        match (shown.len(), all.len() - shown.len()) {
            (_, 0) => {}
            (0, _) => self.text.push_str("  none of this class (-o wide shows those of others)\n"),
            (_, left) => {
                let _ = writeln!(self.text, "  and {left} more (-o wide)");
            }
        }
    }

    fn chain(&mut self, steps: &[Step]) {
        if steps.is_empty() {
            return;
        }
        self.text.push_str("\nCHAIN\n");
        for step in steps {
            let mark = if step.is_blocker { self.paint("31", "✗") } else { "·".to_owned() };
            let head = clean(&self.shown(&name(&step.object)));
            let detail = clean(&step.detail);
            // The mark is one column, in any colour.
            if 4 + head.chars().count() + 2 + detail.chars().count() <= self.style.width {
                let _ = writeln!(self.text, "  {mark} {}", format!("{head}  {detail}").trim_end());
            } else {
                let _ = writeln!(self.text, "  {mark} {head}");
                self.hanging("      ", &detail);
            }
            self.hanging("      ", &format!("{}: {}", step.reason, step.message));
            for blocker in &step.blocked_by {
                self.hanging("      ", &format!("waits for {} ({})", name(&blocker.object), blocker.why));
            }
        }
    }

    fn timeline(&mut self, explanation: &Explanation) {
        let all = &explanation.timeline;
        let most = if self.style.wide { all.len() } else { PAST };
        if all.is_empty() {
            return;
        }
        self.text.push_str("\nTIMELINE\n");
        for happened in all.iter().skip(all.len().saturating_sub(most)) {
            let at = format!("  {}  ", stamp(happened.at));
            self.hanging(&at, &happened.text);
        }
    }

    fn evidence(&mut self, explanation: &Explanation) {
        if explanation.evidence.is_empty() || !self.style.wide {
            return;
        }
        self.text.push_str("\nEVIDENCE\n");
        for evidence in &explanation.evidence {
            let at = evidence.at.map_or_else(|| "-".to_owned(), stamp);
            self.hanging(&format!("  {at}  "), &format!("{} ({})", evidence.text, evidence.from));
        }
    }

    fn actions<'a>(&mut self, title: &str, actions: impl Iterator<Item = &'a Action>) {
        let mut actions = actions.peekable();
        if actions.peek().is_none() {
            return;
        }
        let _ = writeln!(self.text, "\n{title}");
        for action in actions {
            self.hanging("  • ", &action.text);
            if !action.command.is_empty() {
                let _ = writeln!(self.text, "      {}", clean(&command(&action.command)));
            }
        }
    }

    fn list(&mut self, title: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "\n{title}");
        for line in lines {
            self.hanging("  ", line);
        }
    }

    /// A line with a label.
    fn said(&mut self, label: &str, text: &str) {
        let head = format!("{label:LABEL$}");
        self.hanging(&head, text);
    }

    /// Words after a head, wrapped below each other.
    fn hanging(&mut self, head: &str, text: &str) {
        let (head, text) = (clean(head), clean(&self.shown(text)));
        let indent = head.chars().count();
        // A head that takes most of the line leaves the words a line of their own.
        let indent = if indent * 2 > self.style.width { 6 } else { indent };
        let words: Vec<&str> = text.split_whitespace().collect();
        self.text.push_str(&wrapped(&head, &words.join(" "), indent, self.style.width));
    }

    /// With the names of attachments shortened, unless everything is shown: no other name is that long, and to go on
    /// with, one has the commands.
    fn shown(&self, text: &str) -> String {
        if self.style.wide {
            return text.to_owned();
        }
        let mut parts = text.split(COMPUTED);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
            shown.push_str(COMPUTED);
            match part.split_at_checked(DIGITS) {
                Some((name, rest)) if digits == DIGITS => {
                    shown.extend(name.chars().take(SHOWN));
                    shown.push('…');
                    shown.push_str(rest);
                }
                _ => shown.push_str(part),
            }
        }
        shown
    }

    fn since(&self, at: Timestamp) -> String {
        let age = age::between(at, self.now);
        if self.style.utc { format!("{age} (since {})", stamp(at)) } else { age }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.style.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// RFC 3339, to the second.
pub(super) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Kind and name as they are typed, with the namespace.
fn name(object: &Value) -> String {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let kind = match text("kind") {
        "PersistentVolumeClaim" => "pvc",
        "PersistentVolume" => "pv",
        "VolumeAttachment" => "va",
        "StorageClass" => "sc",
        "Pod" => "pod",
        "Node" => "node",
        other => other,
    };
    match text("namespace") {
        "" => format!("{kind}/{}", text("name")),
        namespace => format!("{kind}/{}  -n {namespace}", text("name")),
    }
}

/// A command to be copied: words that a shell would take apart are quoted.
#[must_use]
pub fn command(words: &[String]) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    let quoted = words.iter().map(|word| {
        let is_plain = !word.is_empty() && word.chars().all(is_plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Whether a character is not seen, and changes what is seen: control characters, marks of writing direction.
pub(super) fn is_deceiving(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text of strangers without what steers a terminal.
#[must_use]
pub fn clean(text: &str) -> String {
    let shown = |letter: char| match letter {
        '\n' | '\t' | '\r' => ' ',
        letter if is_deceiving(letter) => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    text.chars().map(shown).collect()
}

/// The chain as a graph in the language of Graphviz.
#[must_use]
pub fn dot(explanation: &Explanation) -> String {
    let quoted = |text: &str| format!("\"{}\"", clean(text).replace('\\', "\\\\").replace('"', "\\\""));
    let mut graph = String::from("digraph explanation {\n  rankdir=LR;\n  node [shape=box];\n");
    let mut before: Option<String> = None;
    for step in &explanation.steps {
        let node = name(&step.object);
        let label = quoted(&format!("{node}\n{}", step.reason));
        let color = if step.is_blocker { ", color=red" } else { "" };
        let _ = writeln!(graph, "  {} [label={label}{color}];", quoted(&node));
        if let Some(before) = before.filter(|before| *before != node) {
            let _ = writeln!(graph, "  {} -> {};", quoted(&before), quoted(&node));
        }
        for blocker in &step.blocked_by {
            let other = name(&blocker.object);
            let _ = writeln!(
                graph,
                "  {} -> {} [style=dashed, label={}];",
                quoted(&node),
                quoted(&other),
                quoted(&blocker.why)
            );
        }
        before = Some(node);
    }
    graph.push_str("}\n");
    graph
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_copied_and_text_of_strangers_steers_no_terminal() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            command(&words(&["kubectl", "get", "pv", "a b", "it's", ""])),
            r"kubectl get pv 'a b' 'it'\''s' ''"
        );
        assert_eq!(clean("\u{1b}[31mred\nnext \u{202e}x"), "\u{fffd}[31mred next \u{fffd}x");
    }
}
