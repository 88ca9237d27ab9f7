//! The sheet of what the doctor found.
//!
//! In: findings. Out: an item for each cause, and what was looked at.

use super::findings::{Finding, Findings, Severity};
use crate::explain::{
    age,
    report::Verdict,
    sheet::{Item, Printed, Sheet, Word},
};

/// So many findings are printed, the worst first; JSON has all of them, and the page some hundred kilobytes.
const PRINTED: usize = 25;
const PRINTED_WIDE: usize = 500;

/// Of which so many are kept for what is at risk, where more is blocked.
const RISKS_SHOWN: usize = 8;

impl Printed for Findings {
    fn sheet(&self, is_wide: bool) -> Sheet {
        let most = if is_wide { PRINTED_WIDE } else { PRINTED };
        let mut sheet = Sheet::new(self.observed.at, []);
        if self.findings.is_empty() && self.unchecked.is_empty() {
            sheet.say("", "Nothing is blocked, waits or is at risk.");
        }
        // However much is blocked, what is at risk is not passed over.
        let risks = self.findings.iter().filter(|finding| finding.severity == Severity::Risk).count();
        let kept = most.saturating_sub(risks.min(RISKS_SHOWN));
        let mut others = 0;
        let shown = self.findings.iter().enumerate().filter(|(_, finding)| {
            others += usize::from(finding.severity != Severity::Risk);
            finding.severity == Severity::Risk || others <= kept
        });
        sheet.extend(shown.take(most).map(|(index, finding)| item(index + 1, finding, is_wide)));
        if let Some(more) = self.findings.len().checked_sub(most).filter(|more| *more > 0) {
            sheet.say("   ", format!("… and {more} more are not shown: -o json"));
        }
        let pods: Vec<String> =
            self.waiting_pods.iter().map(|(namespace, count)| format!("{namespace} {count}")).collect();
        if !pods.is_empty() {
            sheet.say("PODS WAITING  ", pods.join(", "));
        }
        sheet.notes("OK  ", &self.fine);
        if is_wide {
            sheet.section("What is not known");
        }
        sheet.unseen("not checked: ", &self.unchecked, is_wide);
        sheet
    }
}

fn item(number: usize, finding: &Finding, is_wide: bool) -> Item {
    let (verdict, shown) = match finding.severity {
        Severity::Blocked => (Verdict::Blocked, "BLOCKED"),
        Severity::Waiting => (Verdict::Waiting, "WAITING"),
        Severity::Risk => (Verdict::Forbidden, "RISK"),
    };
    let padding = " ".repeat("BLOCKED".len() + 2 - shown.len());
    let mut head =
        vec![Word::Verdict(verdict, shown), padding.into(), Word::Reason(finding.reason.to_owned())];
    if !finding.about.is_empty() {
        head.push(format!(" {}", finding.about).into());
    }
    if finding.count > 0 {
        head.push(format!("  {}", age::counted(finding.count, finding.unit)).into());
    }
    if finding.pods > 0 {
        head.push(format!("  {} waiting", age::counted(finding.pods, "pod")).into());
    }
    if let Some(oldest) = finding.oldest {
        head.extend(["  oldest ".into(), Word::Since(oldest)]);
    }
    if let Some(at) = finding.next_at {
        head.extend(["  next by ".into(), Word::Until(at)]);
    }
    let item = Item::new(format!("{number:>2} "), head).line([finding.summary.clone().into()]);
    let item = match finding.examples.first().filter(|_| is_wide) {
        Some(example) if finding.count > 1 => {
            item.line([Word::object(example), format!(" and {} more", finding.count - 1).into()])
        }
        Some(example) => item.line([Word::object(example)]),
        None => item,
    };
    item.command(&finding.command)
}
