//! The sheet of an explanation.
//!
//! In: an [`Explanation`]. Out: first the one sentence and what comes next, then what might fit, the chain from the pod to the node
//! with the blocker marked, what happened, what shows it, what to do and what never, and what could not be seen.

use super::model::{Item, Printed, Sheet, Word, next, next_condition};
use crate::explain::{
    report::{Candidate, Explanation, Risk, Step},
    subject,
};
use apiserver::{kinds::ObjectRef, wire::rfc3339};

/// Reasons of claims whose volume the scheduler chooses.
const SCHEDULED: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

/// Candidates, and lines of the past, that are shown unless everything is.
const MOST_ROWS: usize = 8;

/// What to do, by what it costs.
const RISKS: [(Risk, &str); 3] =
    [(Risk::Safe, "Safe to do"), (Risk::Care, "Needs care"), (Risk::Danger, "Never")];

impl Printed for Explanation {
    fn sheet(&self, is_wide: bool) -> Sheet {
        let mut head = vec![Word::object(&self.subject), format!("  {}  ", self.headline).into()];
        head.push(Word::verdict(self.verdict));
        if let Some(since) = self.steps.first().and_then(|step| step.since) {
            head.extend(["  ".into(), Word::Since(since)]);
        }
        let mut sheet = Sheet::new(self.observed.at, head);
        let blocker = self.steps.iter().find(|step| step.is_blocker);
        let coming = blocker.and_then(|step| step.next.as_ref());
        // Until when it waits, the next line says.
        let why = coming.and_then(next_condition).and_then(|until| self.summary.strip_suffix(until.as_str()));
        let why = format!(": {}", why.unwrap_or(&self.summary));
        sheet.push(Item::new("WHY      ", [Word::Reason(self.reason.clone()), why.into()]));
        sheet.extend(coming.map(|it| Item::new("NEXT     ", next(it))));
        candidates(self, is_wide, &mut sheet);
        sheet.section("Chain");
        sheet.extend(self.steps.iter().map(|it| step(it, is_wide)));
        sheet.section("Timeline");
        let most = if is_wide { usize::MAX } else { MOST_ROWS };
        let past = self.timeline.iter().skip(self.timeline.len().saturating_sub(most));
        sheet.extend(past.map(|it| Item::new(format!("  {}  ", rfc3339(it.at)), [it.text.as_str().into()])));
        sheet.section("Evidence");
        let shown = self.evidence.iter().filter(|_| is_wide);
        sheet.extend(shown.map(|it| {
            let at = it.at.map_or_else(|| "-".to_owned(), rfc3339);
            Item::new(format!("  {at}  "), [format!("{} ({})", it.text, it.from).into()])
        }));
        for (risk, title) in RISKS {
            sheet.section(title);
            let of_risk = self.actions.iter().filter(|action| action.risk == risk);
            sheet.extend(of_risk.map(|it| Item::new("  • ", [it.text.clone().into()]).command(&it.command)));
        }
        sheet.section("Not seen");
        sheet.unseen("  ", &self.unseen, is_wide);
        sheet.section("Not known");
        sheet.notes("  ", &self.unknown);
        sheet
    }
}

fn candidates(it: &Explanation, is_wide: bool, sheet: &mut Sheet) {
    let is_of_class = |one: &&Candidate| !one.faults.iter().any(|fault| fault.reason == "ClassMismatch");
    let shown: Vec<&Candidate> = if is_wide {
        it.candidates.iter().collect()
    } else {
        it.candidates.iter().filter(is_of_class).take(MOST_ROWS).collect()
    };
    let fits = match it.reason.as_str() {
        reason if SCHEDULED.contains(&reason) => "fits: the scheduler chooses",
        _ if it.steps.iter().any(|step| step.reason == "Binding") => "Chosen",
        _ => "fits",
    };
    let row = |one: &&Candidate| {
        let result: Vec<Word> = if one.faults.is_empty() {
            vec![fits.into()]
        } else {
            let faults = one.faults.iter().enumerate().flat_map(|(index, fault)| {
                let before = if index == 0 { "" } else { "; " };
                [before.into(), Word::Reason(fault.reason.clone()), format!(" {}", fault.detail).into()]
            });
            faults.collect()
        };
        let object = subject::json(&ObjectRef::Volume(one.name.as_str().into()));
        let cells = [&one.size, &one.modes, &one.class].map(|cell| vec![cell.clone().into()]);
        [vec![Word::Object(object, one.name.clone())]].into_iter().chain(cells).chain([result]).collect()
    };
    sheet.section(format!("Candidates ({})", it.candidates.len()));
    sheet.table(&["name", "size", "modes", "class", "result"], shown.iter().map(row));
    match (shown.len(), it.candidates.len() - shown.len()) {
        (_, 0) => {}
        (0, _) => sheet.say("  ", "none of this class (-o wide shows those of others)"),
        (_, left) => sheet.say("  ", format!("and {left} more (-o wide)")),
    }
}

fn step(step: &Step, is_wide: bool) -> Item {
    let label = if step.is_blocker { "  ✗ " } else { "  · " };
    let mut item = Item::new(label, [Word::object(&step.object), format!("  {}", step.detail).into()])
        .line([Word::Reason(step.reason.clone()), format!(": {}", step.message).into()]);
    item.is_blocker = step.is_blocker;
    for blocker in &step.blocked_by {
        let why = format!(" ({})", blocker.why);
        item = item.line(["waits for ".into(), Word::object(&blocker.object), why.into()]);
    }
    if let Some(since) = step.since.filter(|_| is_wide) {
        item = item.line(["for ".into(), Word::Since(since)]);
    }
    match &step.next {
        Some(it) if is_wide && !step.is_blocker => item.line([vec!["next: ".into()], next(it)].concat()),
        _ => item,
    }
}
