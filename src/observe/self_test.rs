//! The self-test: bundled recordings of rulers that do what no ruler should, each of which has to be told.
//!
//! In: `recordings.yaml`, worlds and acts as objects. Out: for each recording, whether the judge told what it expects, and no
//! more. It shows on any machine, without a cluster, that silence of an observation means something.

use std::collections::BTreeSet;

use apiserver::{
    ids::ResourceVersion,
    tables::{Objects, Stored, Way},
    with_kind,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{judge::Judge, summary::Difference};
use crate::config::Controllers;

/// The recordings.
const RECORDINGS: &str = include_str!("self_test/recordings.yaml");

/// A world, and what the ruler does in it.
#[derive(Debug, Deserialize)]
struct Recording {
    /// A sentence about what happens.
    name: String,
    /// What is told: a law, or a kind of difference.
    expects: Vec<String>,
    /// How many of each dangerous situation are counted: `1 node_deleted`.
    #[serde(default)]
    seen: Vec<String>,
    /// Objects that there are.
    world: Vec<Value>,
    /// Revisions that follow, in order; one below `deleted` is an end, one below `listed` comes after a gap.
    acts: Vec<Value>,
}

/// What came of one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// A sentence about what happens.
    pub name: String,
    /// What has to be told and counted.
    pub expected: BTreeSet<String>,
    /// What was told and counted.
    pub told: BTreeSet<String>,
}

/// Plays all recordings.
///
/// # Errors
/// A recording cannot be read.
pub fn self_test() -> Result<Vec<Played>, String> {
    let ago = |minutes| Timestamp::now().checked_sub(SignedDuration::from_mins(minutes));
    let [now, long_ago] = [1, 60].map(|minutes| ago(minutes).unwrap_or_default().to_string());
    let text = RECORDINGS.replace("$NOW", &now).replace("$LONG_AGO", &long_ago);
    let recordings: Vec<Recording> = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    recordings.into_iter().map(play).collect()
}

fn play(recording: Recording) -> Result<Played, String> {
    let running = Controllers::parse("storage")?.running;
    let mut judge = Judge::new(running, Instant::now());
    let objects = Objects::default();
    let mut tells = objects.tell();
    let mut revision = 0;
    let steps = recording.world.iter().map(|it| (it, Way::FirstList));
    for (object, way) in steps.chain(recording.acts.iter().map(|it| (it, Way::Watch))) {
        revision += 1;
        let (object, way) = object.get("listed").map_or((object, way), |listed| (listed, Way::List));
        tell(&objects, object, revision).map_err(|error| format!("{}: {error}", recording.name))?;
        while let Ok(mut told) = tells.try_recv() {
            told.way = way;
            judge.told(told);
        }
    }
    judge.pass(ResourceVersion(revision), Instant::now());
    let told = |it: Difference| it.law.map_or_else(|| it.kind.name(), str::to_owned);
    let news = judge.news();
    let seen = judge.counts().situations.iter().filter(|(_, count)| **count > 0);
    let seen = seen.map(|(situation, count)| format!("{count} {}", <&str>::from(situation)));
    Ok(Played {
        name: recording.name,
        expected: recording.expects.into_iter().chain(recording.seen).collect(),
        told: news.into_iter().map(told).chain(seen).collect(),
    })
}

/// Has the tables tell of an object, or of its end.
fn tell(objects: &Objects, step: &Value, revision: u64) -> Result<(), String> {
    let (object, is_end) = match step.get("deleted") {
        Some(object) => (object, true),
        None => (step, false),
    };
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    with_kind!(KIND = kind.as_str(), |Kind| tell_of::<Kind>(objects, object, is_end), else {
        Err(format!("{kind:?} is not watched"))
    })
}

fn tell_of<T: Stored>(objects: &Objects, object: Value, is_end: bool) -> Result<(), String> {
    let object: T = serde_json::from_value(object).map_err(|error| error.to_string())?;
    if is_end {
        objects.delete(object);
    } else {
        objects.apply(object);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use strum::VariantArray as _;

    use super::{
        super::{laws::LAWS, situations::Situation},
        *,
    };

    #[test]
    fn each_recording_tells_what_it_expects_and_no_more_and_each_law_and_situation_is_in_one() {
        let all = self_test().unwrap();
        let missed: Vec<&Played> = all.iter().filter(|played| played.told != played.expected).collect();
        assert!(missed.is_empty(), "{missed:#?}");
        let told: BTreeSet<String> = all.into_iter().flat_map(|played| played.told).collect();
        // Without one of them, its recording is not told.
        let missing: Vec<&str> = LAWS.into_iter().filter(|law| !told.contains(*law)).collect();
        assert_eq!(missing, [""; 0]);
        let is_counted = |it: &&Situation| !told.contains(&format!("1 {}", <&str>::from(*it)));
        let missing: Vec<&Situation> = Situation::VARIANTS.iter().filter(is_counted).collect();
        assert_eq!(missing, [&Situation::NodeDeleted; 0]);
    }

    #[test]
    fn of_each_hole_of_the_stock_controllers_it_is_documented_how_it_is_told_and_each_breach_is_recorded() {
        let documented = include_str!("../../docs/adopting.md");
        let rows = documented.lines().filter_map(|line| line.strip_prefix("| H")?.split_once(" | "));
        let rows = rows.filter(|(holes, _)| holes.starts_with(|it: char| it.is_ascii_digit()));
        let rows = rows.flat_map(|(holes, told)| {
            format!("H{holes}").split(", ").map(|hole| (hole.to_owned(), told.to_owned())).collect::<Vec<_>>()
        });
        let mut rows: BTreeMap<String, String> = rows.collect();
        let recordings = self_test().unwrap();
        for line in include_str!("../../docs/spec/safety.md").lines() {
            let Some((id, _)) = line.strip_prefix("| <a id=\"h").and_then(|rest| rest.split_once('"')) else {
                continue;
            };
            let told = rows.remove(&format!("H{id}")).unwrap_or_else(|| panic!("H{id} is not documented"));
            let law = told.strip_prefix("`UNSAFE ").and_then(|rest| rest.split('`').next());
            let is_it = |played: &&Played| played.name.contains(&format!(" (H{id}) "));
            let recorded = recordings.iter().find(is_it);
            assert_eq!(recorded.and_then(|played| played.told.first()).map(String::as_str), law, "H{id}");
        }
        assert_eq!(rows, BTreeMap::new());
    }
}
