//! Findings for a terminal of eighty columns.
//!
//! In: findings. Out: lines; a cause takes one or two.

use std::fmt;

use super::findings::{Finding, Findings, Severity};
use crate::explain::{age, text::unseen, wrap::on_terminal};

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
            f.write_str(&on_terminal("PODS WAITING  ", &pods.join(", ")))?;
        }
        for line in &self.fine {
            f.write_str(&on_terminal("OK  ", line))?;
        }
        for line in unseen(&self.unchecked, false) {
            f.write_str(&on_terminal("not checked: ", &line))?;
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
    f.write_str(&on_terminal("", &format!("{head}  {}", facts.join("  "))))?;
    f.write_str(&on_terminal("            ", &finding.summary))?;
    if !finding.command.is_empty() {
        writeln!(f, "            {}", finding.command.join(" "))?;
    }
    Ok(())
}

/// The time of day, in UTC.
fn clock(at: k8s_openapi::jiff::Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}
