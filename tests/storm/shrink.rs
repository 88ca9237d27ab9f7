//! A failing script, cut down to the acts that it needs.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use crate::{acts::Script, judges, play};

/// How long it may take: a person waits for it.
const LIMIT: Duration = Duration::from_mins(5);

/// The shortest script found that still breaks one of these rules, and which it breaks.
pub fn shrink(script: &Script, rules: &BTreeSet<&'static str>) -> Script {
    let began = Instant::now();
    let mut best = script.clone();
    let mut size = best.steps.len() / 2;
    while size > 0 && began.elapsed() < LIMIT {
        let mut from = 0;
        while from < best.steps.len() && began.elapsed() < LIMIT {
            let mut shorter = best.clone();
            let to = (from + size).min(shorter.steps.len());
            shorter.steps.drain(from..to);
            let faults = judges::judge(&play::play(&shorter));
            if faults.iter().any(|fault| rules.contains(fault.rule)) {
                best = shorter;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    best
}
