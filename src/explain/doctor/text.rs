//! Findings for a terminal of eighty columns.
//!
//! In: findings. Out: lines; a cause takes one or two.

use std::fmt;

use super::{Finding, Findings, Severity};
use crate::explain::{age, text::unseen};

/// Room on a terminal.
pub(in crate::explain) const WIDTH: usize = 80;

/// So many findings are printed, the worst first; JSON has all of them.
const PRINTED: usize = 25;

/// Of which so many are kept for what is at risk, where more is blocked.
const RISKS: usize = 8;

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // However much is blocked, what is at risk is not passed over.
        let risks = self.findings.iter().filter(|finding| finding.severity == Severity::Risk).count();
        let kept = PRINTED.saturating_sub(risks.min(RISKS));
        let mut others = 0;
        let mut shown = self.findings.iter().enumerate().filter(|(_, finding)| {
            others += usize::from(finding.severity != Severity::Risk);
            finding.severity == Severity::Risk || others <= kept
        });
        for (index, finding) in shown.by_ref().take(PRINTED) {
            write_finding(f, index + 1, finding, self)?;
        }
        if let Some(more) = self.findings.len().checked_sub(PRINTED).filter(|more| *more > 0) {
            writeln!(f, "   … and {more} more: -o json")?;
        }
        if !self.waiting_pods.is_empty() {
            let pods: Vec<String> =
                self.waiting_pods.iter().map(|(namespace, count)| format!("{namespace} {count}")).collect();
            write_wrapped(f, "PODS WAITING  ", &pods.join(", "))?;
        }
        for line in &self.fine {
            write_wrapped(f, "OK  ", line)?;
        }
        for line in unseen(&self.unchecked, false) {
            write_wrapped(f, "not checked: ", &line)?;
        }
        Ok(())
    }
}

fn write_finding(
    f: &mut fmt::Formatter<'_>,
    number: usize,
    finding: &Finding,
    all: &Findings,
) -> fmt::Result {
    let mut head = format!("{number:>2} {:<8} {}", finding.severity.as_str(), finding.reason);
    if !finding.about.is_empty() {
        head = format!("{head} {}", finding.about);
    }
    let mut facts = Vec::new();
    if finding.count > 0 {
        facts.push(age::counted(finding.count, finding.unit));
    }
    if finding.pods > 0 {
        facts.push(format!("{} waiting", age::counted(finding.pods, "pod")));
    }
    if let Some(oldest) = finding.oldest {
        facts.push(format!("oldest {}", age::between(oldest, all.observed.at)));
    }
    if let Some(at) = finding.next_at {
        facts.push(format!("next by {}", clock(at)));
    }
    write_wrapped(f, "", &format!("{head}  {}", facts.join("  ")))?;
    write_wrapped(f, "            ", &finding.summary)?;
    if !finding.command.is_empty() {
        writeln!(f, "            {}", finding.command.join(" "))?;
    }
    Ok(())
}

/// The time of day, in UTC.
fn clock(at: k8s_openapi::jiff::Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// The words after the label, the further lines under the first. A word that does not fit stands alone.
pub(in crate::explain) fn write_wrapped(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    let indent = " ".repeat(label.chars().count().max(4));
    let mut line = label.to_owned();
    let mut is_empty = true;
    for word in text.split_inclusive(' ') {
        let is_full = line.chars().count() + word.trim_end().chars().count() > WIDTH;
        if is_full && !is_empty {
            writeln!(f, "{}", line.trim_end())?;
            line.clone_from(&indent);
        }
        line.push_str(word);
        is_empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}
