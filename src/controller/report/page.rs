//! The debug page of a controller: what waits for what, since when, and who else writes (L18).
//!
//! In: its board, and which rows are asked for. Out: JSON that prints the very values that were decided on, so it cannot
//! drift from what is done. A row is made when it is written: there may be as many as there are volumes on nodes.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    Reason, ReportKey, WallClock,
    board::{Board, Wait},
};
use crate::controller::asked::Asked;

/// What a page shows. A row that began to wait, or ceased to, while it was made may be missing, or be there twice.
#[derive(Debug, Serialize)]
#[serde(bound = "K: ReportKey, R: Reason", rename_all = "camelCase")]
pub struct DebugPage<K, R> {
    alarm: Option<String>,
    leads: bool,
    second_writers: Vec<Value>,
    settled: Rows<K, R>,
    waiting: Rows<K, R>,
}

impl<K: ReportKey, R: Reason> Board<K, R> {
    /// The page with the rows that are asked for.
    pub(crate) fn page(&self, asked: &Asked) -> DebugPage<K, R> {
        let has = |(key, wait): &(K, Wait<R>)| {
            asked.is_all() || {
                let mut names = key.names();
                names.extend(wait.reason.names());
                asked.has(&names)
            }
        };
        let clock = WallClock::now();
        let waiting = Rows(self.rows(|all| &all.waits).filter(has).collect(), clock);
        let settled = Rows(self.rows(|all| &all.settled).filter(has).collect(), clock);
        let (alarm, second_writers) = self.standing().second_writers.clone();
        DebugPage { alarm, leads: self.leads(), second_writers, settled, waiting }
    }
}

/// Rows that are made while they are written.
#[derive(Debug)]
struct Rows<K, R>(Vec<(K, Wait<R>)>, WallClock);

impl<K: ReportKey, R: Reason> Serialize for Rows<K, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(key, wait)| row(key, wait, &self.1)))
    }
}

/// Names, state, and since when; of what waits also for what.
fn row<K: ReportKey, R: Reason>(key: &K, wait: &Wait<R>, clock: &WallClock) -> Map<String, Value> {
    let Wait { reason, since, next } = wait;
    let names = key.names().into_iter().chain(reason.names());
    let mut row: Map<String, Value> =
        names.map(|(field, name)| (field.to_owned(), Value::String(name))).collect();
    row.insert("state".to_owned(), json!(reason.state()));
    row.insert("since".to_owned(), json!(clock.at(*since).to_string()));
    if !reason.is_settled() {
        row.extend([
            ("kind".to_owned(), json!(key.kind())),
            ("reason".to_owned(), json!(reason.code())),
            ("message".to_owned(), json!(reason.to_string())),
            ("next".to_owned(), json!(next.map(|next| clock.at(next).to_string()))),
            ("until".to_owned(), json!(reason.until(clock).map(|until| until.to_string()))),
            ("facts".to_owned(), Value::Object(reason.facts())),
        ]);
    }
    row
}
