//! What excuses a broken promise: what its writer could not know when it sent the request, which may have been held up on its
//! way. What it was told by then excuses nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use test_support::{
    audit::{DAEMON, Entry},
    history::Change,
    invariants,
};
use tokio::time::Instant;

use super::{Moment, Timeline, UNDER_WAY, uid};
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

/// Whether the promise is kept if what others did comes after the write, as far as its writer was not told of it.
pub fn is_untold(
    record: &Record,
    timeline: &Timeline,
    what: &str,
    is_judged: impl Fn(&Change) -> bool + Copy,
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
        let broken = invariants::check_history(&told_late(timeline, &late, revision), is_judged);
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

/// Whether that broken promise is S22 of a claim, made Bound to a volume that is not its own any more, and excused: the volume was
/// the claim's as the request was sent, or when its writer was last told of volumes.
pub fn excuses(record: &Record, timeline: &Timeline, what: &str) -> bool {
    let Some(write) = write_of(timeline, what).filter(|_| what.starts_with("S22 a claim ")) else {
        return false;
    };
    let revision = write.change.revision;
    let Some(sent) = sent(record, revision) else { return false };
    let Some(claim) = &write.change.after else { return false };
    if claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_null() {
        return false;
    }
    timeline.moments.iter().any(|moment| {
        let change = moment.change;
        change.resource == "persistentvolumes"
            && claim["spec"]["volumeName"] == change.name.as_str()
            && !moment.is_ours()
            && tells(record, moment) >= sent
            && change.revision < revision
            && change.before.as_ref().is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == uid(claim))
    })
}

/// Whether that broken promise is S19 of a volume that is given to a claim, and excused: others had given the claim the other
/// volume, and the writer was not told of that when it sent the request.
pub fn is_reserved_meanwhile(record: &Record, timeline: &Timeline, what: &str) -> bool {
    let Some(other) = what.strip_prefix("S19 the claim has ").and_then(|what| what.split(' ').next()) else {
        return false;
    };
    let Some(write) = write_of(timeline, what) else { return false };
    let owner =
        |volume: &Option<Value>| Some(volume.as_ref()?["spec"]["claimRef"]["uid"].as_str()?.to_owned());
    let claim = owner(&write.change.after);
    let sent = sent(record, write.change.revision).unwrap_or(write.at);
    timeline.moments.iter().any(|moment| {
        let change = moment.change;
        change.resource == "persistentvolumes"
            && change.name == other
            && !moment.is_ours()
            && change.revision < write.change.revision
            && tells(record, moment) >= sent
            && owner(&change.after) == claim
            && owner(&change.before) != claim
    })
}

/// Whether a claim is made Bound to a volume that people handed to it a moment before, as far as was told: the claim that had it
/// is not Lost yet (S18 allows that).
pub fn is_handed_over(record: &Record, timeline: &Timeline, what: &str) -> bool {
    let Some(write) = write_of(timeline, what).filter(|_| what.starts_with("S18 ")) else { return false };
    let Some(claim) = &write.change.after else { return false };
    timeline.moments.iter().any(|moment| {
        let change = moment.change;
        let owner = |volume: &Option<Value>| {
            let reference = volume.as_ref().map(|volume| volume["spec"]["claimRef"]["uid"].clone());
            reference.filter(Value::is_string)
        };
        let (had, has) = (owner(&change.before), owner(&change.after));
        change.resource == "persistentvolumes"
            && claim["spec"]["volumeName"] == change.name.as_str()
            && !moment.is_ours()
            && change.revision < write.change.revision
            && tells(record, moment) + UNDER_WAY >= write.at
            && had.is_some_and(|had| had != uid(claim) && Some(had) != has)
    })
}
