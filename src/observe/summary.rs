//! What an observation has come to: counts of each mutation and of each dangerous situation, the differences, and the verdict.
//!
//! The JSON form is `observe/v1`: fields are added, never renamed or removed.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use apiserver::wire::rfc3339;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use super::{laws::Breach, mutation::MutationKind, pairing::First, situations::Situation};
use crate::explain::{report::Verdict, sheet::clean};

/// So many differences are listed; those after them are counted.
const LISTED_DIFFERENCES: usize = 1_000;

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, Serialize, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The ruler has broken a law.
    Unsafe,
    /// The ruler did what mooring would not have done.
    Unexplained,
    /// The ruler chose a volume of another size or with other access modes.
    OtherVolume,
    /// The ruler does not do what mooring would have done.
    Wait,
    /// The API server would refuse what mooring would write.
    Refused,
    /// It cannot be told what came first.
    NotJudged,
}

impl DifferenceKind {
    /// Its name, before a line.
    pub fn name(self) -> String {
        <&str>::from(self).to_uppercase().replace('_', " ")
    }
}

/// One difference, told once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// When it came to light.
    pub at: Timestamp,
    /// What differs.
    pub kind: DifferenceKind,
    /// The law that was broken.
    pub law: Option<&'static str>,
    /// The revision of the act, if there was one.
    pub revision: Option<String>,
    /// Who did it, by an audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A sentence.
    pub message: String,
}

/// What came of the mutations of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindTally {
    /// How many the ruler made.
    pub acts: u64,
    /// Of these, those that mooring would have made on a world before, and their lead in seconds, together.
    pub mooring_first: u64,
    /// See above.
    pub lead_seconds: f64,
    /// The longest of these leads.
    pub longest_lead_seconds: f64,
    /// Those that mooring would have made, too, but later.
    pub ruler_first: u64,
    /// Of these, those that mooring decided on all the same, and the lead of the ruler in seconds, together. Of the others it is
    /// not known.
    pub mooring_later: u64,
    /// See above.
    pub ruler_lead_seconds: f64,
    /// Those of which it cannot be told.
    pub not_judged: u64,
}

/// What a law was asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LawTally {
    /// Acts that were held against it.
    pub checked: u64,
    /// Acts that broke it.
    pub broken: u64,
}

/// The summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// `observe/v1`.
    pub api_version: &'static str,
    /// `Observation`.
    pub kind: &'static str,
    /// When it began.
    pub since: Timestamp,
    /// For how many seconds it lasted.
    pub seconds: u64,
    /// `Alike`, `Different`, `Unsafe`, `Inconclusive` or `NothingCompared`.
    pub verdict: &'static str,
    /// By kind of mutation.
    pub mutations: BTreeMap<MutationKind, KindTally>,
    /// By law.
    pub laws: BTreeMap<&'static str, LawTally>,
    /// How often each dangerous situation was seen; all are listed.
    pub situations: BTreeMap<Situation, u64>,
    /// How many acts each user made, by an audit log.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub users: BTreeMap<String, u64>,
    /// Wishes that mooring gave up before the ruler acted.
    pub moot: u64,
    /// What mooring wanted when the observation began, and the ruler has not done.
    pub waited_before: u64,
    /// Acts of controllers that were not to be compared.
    pub not_asked: u64,
    /// Acts that are in no other count: a watch had a gap, or had not passed them at the end.
    pub gaps: u64,
    /// The differences, the oldest first.
    pub differences: Vec<Difference>,
    /// How many there are of each kind; all kinds that there are.
    pub difference_counts: BTreeMap<DifferenceKind, u64>,
}

impl Summary {
    pub(super) fn new(since: Timestamp) -> Self {
        Self {
            api_version: "observe/v1",
            kind: "Observation",
            since,
            verdict: "NothingCompared",
            situations: Situation::VARIANTS.iter().map(|situation| (*situation, 0)).collect(),
            ..Self::default()
        }
    }

    pub(super) fn differs(&mut self, difference: Difference) {
        *self.difference_counts.entry(difference.kind).or_default() += 1;
        if self.differences.len() < LISTED_DIFFERENCES {
            self.differences.push(difference);
        }
    }

    pub(super) fn paired(&mut self, kind: MutationKind, first: First) {
        let tally = self.mutations.entry(kind).or_default();
        match first {
            First::Mooring(by) => {
                tally.mooring_first += 1;
                tally.lead_seconds += by.as_secs_f64();
                tally.longest_lead_seconds = tally.longest_lead_seconds.max(by.as_secs_f64());
            }
            First::Ruler(by) => {
                tally.ruler_first += 1;
                tally.mooring_later += u64::from(by.is_some());
                tally.ruler_lead_seconds += by.unwrap_or_default().as_secs_f64();
            }
            First::NotJudged => tally.not_judged += 1,
        }
    }

    pub(super) fn held_against(&mut self, laws: &[&'static str], breach: Option<&Breach>) {
        for law in laws {
            let tally = self.laws.entry(law).or_default();
            tally.checked += 1;
            tally.broken += u64::from(breach.is_some_and(|breach| breach.law == *law));
        }
    }

    pub(super) fn seen(&mut self, situation: Situation) {
        *self.situations.entry(situation).or_default() += 1;
    }

    /// Notes how long it lasted, and what it comes to.
    pub(super) fn ends(&mut self, lasted: Duration) {
        self.seconds = lasted.as_secs();
        // The worst comes first.
        self.verdict = match self.difference_counts.keys().next() {
            Some(DifferenceKind::Unsafe | DifferenceKind::Unexplained) => "Unsafe",
            Some(DifferenceKind::NotJudged) => "Inconclusive",
            Some(_) => "Different",
            None if self.compared() == 0 => "NothingCompared",
            None if self.compared() * 2 < self.to_compare() => "Inconclusive",
            None => "Alike",
        };
    }

    /// How many acts were compared.
    pub fn compared(&self) -> u64 {
        self.mutations.values().map(|tally| tally.mooring_first + tally.ruler_first).sum()
    }

    /// How many acts there were to compare.
    fn to_compare(&self) -> u64 {
        let acts: u64 = self.mutations.values().map(|tally| tally.acts).sum();
        (acts + self.gaps).saturating_sub(self.not_asked)
    }

    /// What the exit code follows from.
    pub fn exit(&self) -> Verdict {
        match self.verdict {
            "Alike" => Verdict::Healthy,
            "Different" | "Inconclusive" => Verdict::Waiting,
            "Unsafe" => Verdict::Blocked,
            _ => Verdict::NotFound,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let verdict = match self.verdict {
            "Alike" => "ALIKE: mooring would have done the same.",
            "Different" => "DIFFERENT: see the lines above.",
            "Unsafe" => "UNSAFE or UNEXPLAINED: see the lines above.",
            "Inconclusive" => "INCONCLUSIVE: most of what the ruler did could not be compared.",
            _ => "NOTHING COMPARED: the ruler did nothing that could be compared.",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict}");
        let _ = writeln!(
            text,
            "{} of {} acts compared in {} s; {} wishes were moot, {} waited before the start, {} acts came in gaps",
            self.compared(),
            self.to_compare(),
            self.seconds,
            self.moot,
            self.waited_before,
            self.gaps
        );
        let _ = writeln!(
            text,
            "\n{:<18} {:>6} {:>14} {:>10} {:>10} {:>12} {:>10} {:>11}",
            "", "acts", "mooring first", "mean", "longest", "ruler first", "mean", "not judged"
        );
        for (kind, tally) in &self.mutations {
            let KindTally { acts, mooring_first, ruler_first, not_judged, .. } = tally;
            let name = <&str>::from(kind);
            let longest = mean(tally.longest_lead_seconds, (*mooring_first).min(1));
            let leads = [mean(tally.lead_seconds, *mooring_first), longest];
            let ruler = mean(tally.ruler_lead_seconds, tally.mooring_later);
            let _ = writeln!(
                text,
                "{name:<18} {acts:>6} {mooring_first:>14} {:>10} {:>10} {ruler_first:>12} {ruler:>10} {not_judged:>11}",
                leads[0], leads[1]
            );
        }
        let _ = writeln!(text, "\nLaws: acts held against each, and those that broke it");
        for (law, LawTally { checked, broken }) in &self.laws {
            let _ = writeln!(text, "{law:<18} {checked:>6} {broken:>6}");
        }
        let _ = writeln!(text, "\nDangerous situations seen");
        for (situation, count) in &self.situations {
            let _ = writeln!(text, "{:<25} {count:>6}", <&str>::from(situation));
        }
        if !self.users.is_empty() {
            let _ = writeln!(text, "\nActs by user");
        }
        for (user, count) in &self.users {
            let _ = writeln!(text, "{count:>6} {}", clean(user));
        }
        text
    }
}

/// A mean for people.
#[expect(clippy::cast_precision_loss, reason = "counts of acts")]
fn mean(seconds: f64, count: u64) -> String {
    if count == 0 { "-".to_owned() } else { format!("{:.2} s", seconds / count as f64) }
}

impl Difference {
    /// One line for people.
    pub fn line(&self) -> String {
        let time = rfc3339(self.at);
        let law = self.law.map(|law| format!(" {law}")).unwrap_or_default();
        let by = self.user.as_ref().map(|user| format!(", by {}", clean(user))).unwrap_or_default();
        let made = self.revision.as_ref().map(|at| format!(" (revision {at}{by})")).unwrap_or_default();
        // Nodes and webhooks have words in it.
        format!("{time} {}{law}: {}{made}", self.kind.name(), clean(&self.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_wrote_is_one_line_and_steers_no_terminal() {
        let difference = Difference {
            at: Timestamp::UNIX_EPOCH,
            kind: DifferenceKind::Unexplained,
            law: None,
            revision: None,
            user: None,
            message: "a\n\u{1b}[2J UNSAFE".to_owned(),
        };
        let line = difference.line();
        assert!(!line.contains(char::is_control) && line.contains("UNSAFE"), "{line:?}");
    }

    #[test]
    fn leads_of_both_sides_are_told_as_far_as_they_are_known() {
        let mut summary = Summary::new(Timestamp::UNIX_EPOCH);
        let by = Duration::from_secs;
        let seen = [
            First::Mooring(by(1)),
            First::Mooring(by(5)),
            First::Ruler(None),
            First::Ruler(Some(by(2))),
            First::NotJudged,
        ];
        for first in seen {
            summary.mutations.entry(MutationKind::Attach).or_default().acts += 1;
            summary.paired(MutationKind::Attach, first);
        }
        summary.paired(MutationKind::Detach, First::Ruler(None));
        let text = summary.text();
        let row = |kind: &str| {
            let line = text.lines().find(|line| line.starts_with(kind)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("attach"), "attach 5 2 3.00 s 5.00 s 2 2.00 s 1");
        assert_eq!(row("detach"), "detach 0 0 - - 1 - 0");
    }

    #[test]
    fn alike_is_what_was_compared_for_the_most_part() {
        // acts that mooring would have made, too; acts that were not judged, of other controllers, in gaps; what it comes to
        let cases = [
            (0, 0, 0, 0, "NothingCompared"),
            (0, 5, 0, 0, "NothingCompared"),
            (5, 5, 0, 0, "Alike"),
            (5, 6, 0, 0, "Inconclusive"),
            (5, 106, 101, 0, "Alike"),
            (5, 5, 0, 1, "Inconclusive"),
        ];
        for (same, not_judged, not_asked, gaps, expected) in cases {
            let mut summary = Summary::new(Timestamp::UNIX_EPOCH);
            let tally =
                KindTally { acts: same + not_judged, ruler_first: same, not_judged, ..KindTally::default() };
            summary.mutations.insert(MutationKind::Attach, tally);
            (summary.not_asked, summary.gaps) = (not_asked, gaps);
            summary.ends(Duration::ZERO);
            assert_eq!(summary.verdict, expected, "{same} {not_judged} {not_asked} {gaps}");
        }
    }
}
