//! What excuses that a claim is made Bound to a volume that is not its own any more (S22): the volume was the claim's as the one
//! write was sent, which was held up on its way, or when its writer was last told of volumes. Nothing else that was late then
//! excuses it.

use serde_json::Value;
use test_support::audit::{DAEMON, Entry};

use tokio::time::Instant;

use super::{Timeline, UNDER_WAY, uid};
use crate::play::Record;

/// Whether that broken promise is S22 of a claim, and excused.
pub fn excuses(record: &Record, timeline: &Timeline, what: &str) -> bool {
    let revision = what.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
    let Some(revision) = revision.filter(|_| what.starts_with("S22 a claim ")) else { return false };
    let is_it = |entry: &&Entry| {
        entry.user == DAEMON
            && entry.code < 300
            && entry.verb == "patch"
            && entry.revision() == Some(revision)
    };
    let Some(sent) = record.requests.iter().find(is_it).and_then(|entry| entry.sent) else { return false };
    let Some(write) = timeline.moments.iter().find(|moment| moment.change.revision == revision) else {
        return false;
    };
    let Some(claim) = &write.change.after else { return false };
    if claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_null() {
        return false;
    }
    let blind = record.blind.iter().filter(|blind| {
        blind.is_to("persistentvolumes") && blind.from <= sent && sent <= blind.until + UNDER_WAY
    });
    let seen = blind.map(|blind| blind.from).fold(sent, Instant::min);
    timeline.moments.iter().any(|moment| {
        let change = moment.change;
        change.resource == "persistentvolumes"
            && claim["spec"]["volumeName"] == change.name.as_str()
            && !moment.is_ours()
            && moment.at >= seen
            && change.revision < revision
            && change.before.as_ref().is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == uid(claim))
    })
}

/// Whether a claim is made Bound to a volume that people handed to it a moment before: the claim that had it is not Lost yet
/// (S18 allows that).
pub fn is_handed_over(timeline: &Timeline, what: &str) -> bool {
    let revision = what.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
    let write = timeline.moments.iter().find(|moment| Some(moment.change.revision) == revision);
    let Some(write) = write.filter(|_| what.starts_with("S18 ")) else { return false };
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
            && moment.at + UNDER_WAY >= write.at
            && had.is_some_and(|had| had != uid(claim) && Some(had) != has)
    })
}
