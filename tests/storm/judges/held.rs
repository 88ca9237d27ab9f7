//! What excuses a broken promise: what its writer could not know when it sent the request, which may have been held up on its
//! way. What it was told by then excuses nothing.

use std::collections::{BTreeMap, BTreeSet};

use test_support::{
    audit::{DAEMON, Entry},
    history::Change,
};
use tokio::time::Instant;

use super::{Moment, Timeline, UNDER_WAY};
use crate::play::Record;

/// The change that a broken promise names.
fn write_of<'a>(timeline: &'a Timeline<'a>, what: &str) -> Option<&'a Moment<'a>> {
    let revision = what.rsplit(' ').next()?.parse::<u64>().ok()?;
    timeline.moments.iter().find(|moment| moment.change.revision == revision)
}

/// When the daemon sent the request that made a change.
fn sent(record: &Record, revision: u64) -> Option<Instant> {
    let made =
        |entry: &&Entry| entry.user == DAEMON && entry.code < 300 && entry.revision() == Some(revision);
    record.requests.iter().find(made)?.sent
}

/// When every process has been told of a change.
pub fn tells(record: &Record, moment: &Moment) -> Instant {
    let lag = record.script.lags.iter().max().map(|lag| *lag + UNDER_WAY).unwrap_or_default();
    let blind = record.blind.iter().filter(|blind| blind.is_to(&moment.change.resource));
    // Where requests fail, watches are cut, too.
    let kept = blind.map(|blind| (blind.from, blind.until)).chain(record.faults.iter().copied());
    let kept = kept.filter(|(from, until)| *from <= moment.at && moment.at <= *until);
    kept.map(|(_, until)| until + UNDER_WAY).fold(moment.at, Instant::max) + lag
}

/// Whether the promise, which this checks, is kept if what others did comes after the write, as far as its writer was not told of it.
pub fn is_untold(
    record: &Record,
    timeline: &Timeline,
    what: &str,
    check: impl Fn(&[Change]) -> Vec<String>,
) -> bool {
    let Some(write) = write_of(timeline, what) else { return false };
    let revision = write.change.revision;
    let sent = sent(record, revision).unwrap_or(write.at);
    let untold: Vec<&Moment> = timeline
        .moments
        .iter()
        .take_while(|moment| moment.change.revision < revision)
        .filter(|moment| !moment.is_ours() && tells(record, moment) >= sent)
        .collect();
    // It may have been told of the first ones.
    let begins: BTreeSet<Instant> = untold.iter().map(|moment| moment.at).collect();
    let rule = what.split(' ').next();
    begins.into_iter().any(|since| {
        let late: BTreeSet<u64> =
            untold.iter().filter(|moment| moment.at >= since).map(|moment| moment.change.revision).collect();
        let broken = check(&told_late(timeline, &late, revision));
        let is_it = |other: &String| {
            other.split(' ').next() == rule && other.rsplit(' ').next() == what.rsplit(' ').next()
        };
        !broken.iter().any(is_it)
    })
}

/// The changes with those of others that are told late after the write, unless we have written to the object meanwhile.
fn told_late(timeline: &Timeline, late: &BTreeSet<u64>, write: u64) -> Vec<Change> {
    let mut moments: Vec<&Moment> = timeline.moments.iter().collect();
    let told = |revision: u64| if late.contains(&revision) { (write, revision) } else { (revision, 0) };
    moments.sort_by_key(|moment| told(moment.change.revision));
    let mut last: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut changes = Vec::new();
    for change in moments.into_iter().map(|moment| moment.change) {
        let known = last.entry((change.resource.as_str(), change.name.as_str())).or_default();
        if *known < change.revision {
            *known = change.revision;
            changes.push(change.clone());
        }
    }
    changes
}
