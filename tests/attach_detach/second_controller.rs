//! `second_controller.yaml`: each case plays the acts of others against the clock.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mooring::attach_detach::second_controller::{ForeignAct, Suspicion};
use serde::Deserialize;
use tokio::time::Instant;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    when: Vec<(u64, Act)>,
    #[serde(default)]
    raised: Option<u64>,
    #[serde(default)]
    ends: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Act {
    ListChanged,
    Created,
    Deleted,
}

pub fn trials(cases: Vec<Case>) -> Vec<Trial> {
    super::each("second controller", cases, |case| &case.name, run)
}

fn run(case: &Case) -> Result<(), Failed> {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let mut suspicion = Suspicion::default();
    let (mut raised, mut ends) = (None, None);
    let end = case.when.last().map_or(0, |(second, _)| *second) + 3_600;
    let mut acts = case.when.iter().peekable();
    for second in 0..end {
        if suspicion.settle(at(second)) {
            ends = Some(second);
        }
        while let Some((_, act)) = acts.next_if(|(when, _)| *when == second) {
            let act = match act {
                Act::ListChanged => ForeignAct::ListChanged,
                Act::Created => ForeignAct::AttachmentCreated,
                Act::Deleted => ForeignAct::AttachmentDeleted,
            };
            if suspicion.note(act, at(second)) && raised.replace(second).is_some() {
                return Err("the alarm is raised twice".into());
            }
        }
        if suspicion.is_alarmed() != (raised.is_some() && ends.is_none()) {
            return Err(format!("second {second}: alarmed is {}", suspicion.is_alarmed()).into());
        }
    }
    if (raised, ends) == (case.raised, case.ends) {
        return Ok(());
    }
    Err(format!("expected {:?}, seen {:?}", (case.raised, case.ends), (raised, ends)).into())
}
