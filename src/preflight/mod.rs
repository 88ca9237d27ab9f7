//! `mooring preflight`: can this cluster be switched from kube-controller-manager (KCM) to mooring, how, and what is in the
//! way?
//!
//! In: answers of the API server to the user's own rights, as [`facts`] reads them; everything that creates is a dry run.
//! Out: one [`Line`] for each check of [`judge()`]: ok, warn or stop, the evidence, and what to do. The judgement is a function
//! of the facts; `tests/cases/preflight` has its cases.

mod dry_runs;
pub mod facts;
mod judge;
mod manager;

use std::fmt::Write as _;

use serde::Serialize;
use strum::IntoStaticStr;

pub(crate) use judge::{judge, loop_users, some_of};
pub(crate) use manager::Manager;

/// How it stands with one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "UPPERCASE")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It can be switched, and somebody should look at this first, or it cannot be told.
    Warn,
    /// It cannot be switched.
    Stop,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Which.
    pub check: &'static str,
    /// How it stands.
    pub level: Level,
    /// What was seen.
    pub evidence: String,
    /// What to do; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

/// The worst of them.
pub fn worst(lines: &[Line]) -> Level {
    lines.iter().map(|line| line.level).max().unwrap_or(Level::Ok)
}

/// The lines for people.
pub fn text(lines: &[Line]) -> String {
    let mut text = String::new();
    for Line { check, level, evidence, todo } in lines {
        let _ = writeln!(text, "{:<5} {check:<16} {evidence}", <&str>::from(*level));
        if !todo.is_empty() {
            let _ = writeln!(text, "{:<22} → {todo}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests;
