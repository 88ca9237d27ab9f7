//! S46: the rate of the daemon's writes to each object, and of its creations of one name.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Fault, Timeline};
use crate::play::Record;

/// In any minute. A bind is four writes, a pod that comes and goes four more; a writer that undoes at once is answered some
/// ten times in the first minute and three in each that follows.
const MOST: usize = 30;
const MINUTE: Duration = Duration::from_mins(1);

pub fn judge(_: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut recent: BTreeMap<(&str, &str), VecDeque<Instant>> = BTreeMap::new();
    let mut faults = BTreeMap::new();
    for moment in timeline.moments.iter().filter(|moment| moment.is_ours()) {
        let change = moment.change;
        if ["events", "leases", "configmaps"].contains(&change.resource.as_str()) {
            continue;
        }
        let key = (change.resource.as_str(), change.name.as_str());
        let writes = recent.entry(key).or_default();
        writes.push_back(moment.at);
        while writes.front().is_some_and(|first| moment.at - *first > MINUTE) {
            writes.pop_front();
        }
        if writes.len() > MOST {
            faults.entry(key).or_insert_with(|| Fault {
                rule: "pace: against a writer that undoes",
                what: format!(
                    "more than {MOST} writes within a minute to {} {}",
                    change.resource, change.name
                ),
            });
        }
    }
    faults.into_values().collect()
}
