//! The outcome of a trial, and the tables that say it.

use std::{fmt::Write as _, time::Duration};

use crate::{
    judges::{Violations, parties::Party},
    stage::Usage,
    waits::{Kind, Wait, quantile},
};

/// A window of faults as it was played, in milliseconds since 1970.
#[derive(Clone, Debug)]
pub struct Played {
    pub name: String,
    pub from: i64,
    pub to: i64,
    /// How long mooring takes nothing away afterwards.
    pub pause: Duration,
}

impl Played {
    fn meets(&self, wait: &Wait) -> bool {
        let pause = i64::try_from(self.pause.as_millis()).expect("minutes");
        wait.from <= self.to + AFTERWARDS + pause && wait.to >= self.from
    }
}

/// The most that a replica of the subject held before the first fault, and when nothing was left.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub before: Usage,
    pub after: Usage,
}

impl Held {
    /// Whether it has given back what the trial took: ten files more are connections of the moment.
    pub fn is_back(&self) -> bool {
        self.after.files <= self.before.files + 10 && self.after.memory * 10 <= self.before.memory * 13
    }
}

/// A wait counts for a fault that it meets, also this long after it was healed.
const AFTERWARDS: i64 = 5_000;

/// All that a trial has shown.
#[derive(Debug)]
pub struct Outcome {
    pub heading: String,
    pub operations: Vec<(&'static str, usize)>,
    pub played: Vec<Played>,
    pub violations: Violations,
    /// Disks that machines still had at the end, by the driver's log.
    pub left: Vec<String>,
    pub waits: Vec<Wait>,
    /// Waits that had not ended when all was taken away.
    pub endless: Vec<Wait>,
    /// Seconds until everything ran after the last fault, and until nothing was left; else what was missing.
    pub calm: Result<u64, Vec<String>>,
    pub clean: Result<u64, Vec<String>>,
    /// How often a part ended by itself.
    pub ends: Vec<(String, usize)>,
    pub held: Held,
    /// Faults that this subject cannot have.
    pub left_out: Vec<&'static str>,
}

/// The promises of `docs/spec/safety.md` that nothing here judges. S43 is judged of the driver's log; of a subject that promises
/// nothing about its requests no more than S1–S3, S10, S18, S41 and S49 are.
const NOT_JUDGED: &str = "S4–S6, S8, S11, S14–S17, S36–S40, S42, S44, S46–S48, S52 and L18";

impl Outcome {
    /// Whether the subject has kept what it promises. A violation whose author is not on record may be its.
    pub fn is_good(&self) -> bool {
        !self.violations.contains_key(&Party::Subject)
            && !self.violations.contains_key(&Party::Unknown)
            && self.left.is_empty()
            && self.endless.is_empty()
            && self.calm.is_ok()
            && self.clean.is_ok()
            && self.held.is_back()
    }

    /// As Markdown.
    pub fn text(&self) -> String {
        let mut text = format!("## {}\n\n", self.heading);
        let operations = self.operations.iter().map(|(name, count)| format!("{count} {name}"));
        let _ = writeln!(text, "Operations: {}.", operations.collect::<Vec<_>>().join(", "));
        let told = |of: &Result<u64, Vec<String>>| match of {
            Ok(seconds) => format!("after {seconds} s"),
            Err(missing) => format!("**never**: {}", missing.join("; ")),
        };
        let _ = writeln!(
            text,
            "Everything runs {}. Nothing is left over {}.",
            told(&self.calm),
            told(&self.clean)
        );
        let ends =
            self.ends.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
        let or_none =
            |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let _ = writeln!(text, "Ended by themselves: {}.", or_none(ends.collect()));
        let _ = writeln!(text, "Disks that machines still have: {}.", or_none(self.left.clone()));
        let left_out = self.left_out.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "Faults left out: {}. Not judged here: {NOT_JUDGED}.", or_none(left_out));
        let Held { before, after } = self.held;
        let _ = writeln!(
            text,
            "A replica holds {} KiB and {} files, and before the faults {} KiB and {}{}.\n",
            after.memory,
            after.files,
            before.memory,
            before.files,
            if self.held.is_back() { "" } else { ": **not back**" },
        );
        self.violations_into(&mut text);
        self.waits_into(&mut text);
        text
    }

    fn violations_into(&self, text: &mut String) {
        let _ = writeln!(text, "| Violations by | |\n|---|---|");
        for party in Party::ALL {
            let of_party = self.violations.get(&party).map_or(&[][..], Vec::as_slice);
            // By promise; the lines themselves are long and many.
            let mut counts = std::collections::BTreeMap::new();
            for line in of_party {
                *counts.entry(line.split([' ', ':']).next().unwrap_or_default()).or_insert(0) += 1;
            }
            let counts = counts.iter().map(|(rule, count)| format!("{count} × {rule}")).collect::<Vec<_>>();
            let counts = if counts.is_empty() { "0".to_owned() } else { counts.join(", ") };
            let _ = writeln!(text, "| {} | {counts} |", party.name());
        }
        let _ = writeln!(text);
    }

    fn waits_into(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "| ms | attaches | p50 | p99 | longest | detaches | p50 | p99 | longest | binds | p50 | p99 | longest |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|"
        );
        let (anew, usual): (Vec<&Wait>, Vec<&Wait>) = self.waits.iter().partition(|wait| wait.on_new_node);
        let quiet = usual.iter().copied().filter(|wait| !self.played.iter().any(|of| of.meets(wait)));
        row(text, "no fault", quiet);
        row(text, "Node made anew", anew.into_iter());
        let mut names: Vec<&str> = Vec::new();
        for played in &self.played {
            if !names.contains(&played.name.as_str()) {
                names.push(&played.name);
            }
        }
        for name in names {
            let windows: Vec<&Played> = self.played.iter().filter(|played| played.name == name).collect();
            row(text, name, usual.iter().copied().filter(|wait| windows.iter().any(|of| of.meets(wait))));
        }
    }
}

fn row<'a>(text: &mut String, name: &str, waits: impl Iterator<Item = &'a Wait>) {
    let waits: Vec<&Wait> = waits.collect();
    let _ = write!(text, "| {name} |");
    for kind in Kind::ALL {
        let mut of_kind: Vec<i64> =
            waits.iter().filter(|wait| wait.kind == kind).map(|wait| wait.to - wait.from).collect();
        of_kind.sort_unstable();
        let _ = write!(text, " {} |", of_kind.len());
        for share in [0.5, 0.99, 1.0] {
            match quantile(&of_kind, share) {
                Some(value) => _ = write!(text, " {value} |"),
                None => text.push_str(" – |"),
            }
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(memory: u64, files: usize) -> Outcome {
        let before = Usage { memory: 1_000, files: 10 };
        Outcome {
            heading: String::new(),
            operations: Vec::new(),
            played: Vec::new(),
            violations: Violations::new(),
            left: Vec::new(),
            waits: Vec::new(),
            endless: Vec::new(),
            calm: Ok(1),
            clean: Ok(1),
            ends: Vec::new(),
            held: Held { before, after: Usage { memory, files } },
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_trial_is_good_only_if_nothing_is_held_against_the_subject() {
        assert!(outcome(1_300, 20).is_good());
        assert!(!outcome(1_301, 20).is_good(), "memory that was not given back");
        assert!(!outcome(1_300, 21).is_good(), "files that were not given back");
        let with = |change: fn(&mut Outcome)| {
            let mut outcome = outcome(1_000, 10);
            change(&mut outcome);
            outcome.is_good()
        };
        assert!(!with(|it| it.left.push("d on a".to_owned())));
        assert!(!with(|it| it.calm = Err(Vec::new())));
        assert!(!with(|it| it.clean = Err(Vec::new())));
        for (party, is_good) in [
            (Party::Subject, false),
            (Party::Unknown, false),
            (Party::Administrators, true),
            (Party::Others, true),
            (Party::Restore, true),
        ] {
            let mut outcome = outcome(1_000, 10);
            outcome.violations.insert(party, vec!["S1".to_owned()]);
            assert_eq!(outcome.is_good(), is_good, "{party:?}");
        }
    }

    #[test]
    fn the_page_of_runs_names_what_is_not_judged() {
        let page = include_str!("../../docs/reliability.md");
        assert!(page.contains(&format!("Not judged: {NOT_JUDGED}")), "docs/reliability.md differs");
    }
}
