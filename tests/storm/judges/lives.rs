//! The daemon does not end by itself, but where it leads by a lease that it may have lost.

use std::time::Duration;

use super::Fault;
use crate::play::Record;

/// An end is found at the next act of the script, or at the end of the calm.
const FOUND: Duration = Duration::from_mins(2);

pub fn judge(record: &Record) -> Vec<Fault> {
    let mut faults = Vec::new();
    for at in &record.ended {
        let may_lose_lease = record.script.has_replicas
            && record
                .late
                .iter()
                .chain(&record.faults)
                .any(|(begin, end)| begin <= at && *end + FOUND >= *at);
        if !may_lose_lease {
            let what = format!("after {:.1} s", at.duration_since(record.began).as_secs_f64());
            faults.push(Fault { rule: "lives: the daemon has ended by itself", what });
        }
    }
    faults
}
