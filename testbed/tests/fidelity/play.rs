//! Playing sequences on both servers, and reducing one that differs.

use futures::{StreamExt, stream};
use kube::Client;
use serde_json::Value;
use testbed::Server;

use super::{
    generator, mask,
    sequence::{Run, Sequence},
};

/// Sequences under way at once on the real server.
const CONCURRENCY: usize = 24;

/// So many differing sequences are reduced: each takes as many runs as it has steps.
const REDUCED: usize = 12;

/// Everything a sequence led to, masked: an answer per step, then the events per collection. Of the
/// real server as many events are waited for as the embedded one showed.
pub async fn outcome(client: &Client, sequence: &Sequence, id: &str, expected: Option<&[usize]>) -> Outcome {
    let mut run = Run::begin(client, id, expected.is_some()).await;
    let mut answers = Vec::new();
    for step in &sequence.steps {
        answers.push(mask::answer(&run.step(step).await, id));
    }
    let mut events = Vec::new();
    for (index, collection) in sequence.watched.iter().enumerate() {
        let expected = expected.map(|counts| counts[index]);
        events.push(run.events(collection, expected).await);
    }
    Outcome { answers, events }
}

/// What a sequence led to.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Masked answers, one per step.
    pub answers: Vec<Value>,
    /// Masked events, one list per watched collection.
    pub events: Vec<Vec<Value>>,
}

/// Whether two servers have to agree on who owns which fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// In what the cases write, which is what the stories need.
    Agree,
    /// What is generated writes values that are put right on the way in, and empty ones: the real server's bookkeeping
    /// of those is its own.
    MayDiffer,
}

/// Runs a sequence on both servers; the first difference, if any.
pub async fn difference(real: &Client, sequence: &Sequence, id: &str, owners: Owners) -> Option<String> {
    let mut ours = outcome(&Server::default().client(), sequence, id, None).await;
    let counts: Vec<usize> = ours.events.iter().map(Vec::len).collect();
    let mut theirs = outcome(real, sequence, id, Some(&counts)).await;
    if owners == Owners::MayDiffer {
        for outcome in [&mut ours, &mut theirs] {
            outcome.answers.iter_mut().chain(outcome.events.iter_mut().flatten()).for_each(forget_owners);
        }
    }
    for (index, (our, their)) in ours.answers.iter().zip(&theirs.answers).enumerate() {
        if our != their {
            return Some(format!("step {}:\n{}", index + 1, compare(our, their)));
        }
    }
    for (index, (our, their)) in ours.events.iter().zip(&theirs.events).enumerate() {
        if our != their {
            let first = our.iter().zip(their).find(|(our, their)| our != their);
            let detail = match first {
                Some((our, their)) => compare(our, their),
                None => format!("    {} events and {} events", our.len(), their.len()),
            };
            return Some(format!("events of {}:\n{detail}", sequence.watched[index]));
        }
    }
    None
}

fn forget_owners(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("managedFields");
            fields.values_mut().for_each(forget_owners);
        }
        Value::Array(elements) => elements.iter_mut().for_each(forget_owners),
        _ => {}
    }
}

fn compare(ours: &Value, theirs: &Value) -> String {
    let mut lines = Vec::new();
    differing(ours, theirs, "", &mut lines);
    lines.truncate(8);
    lines.join("\n")
}

fn differing(ours: &Value, theirs: &Value, path: &str, lines: &mut Vec<String>) {
    if ours == theirs {
        return;
    }
    match (ours, theirs) {
        (Value::Object(our), Value::Object(their)) => {
            let mut names: Vec<&String> = our.keys().chain(their.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let (our, their) = (our.get(name), their.get(name));
                let nothing = Value::from("(absent)");
                differing(
                    our.unwrap_or(&nothing),
                    their.unwrap_or(&nothing),
                    &format!("{path}/{name}"),
                    lines,
                );
            }
        }
        (Value::Array(our), Value::Array(their)) if our.len() == their.len() => {
            for (index, (our, their)) in our.iter().zip(their).enumerate() {
                differing(our, their, &format!("{path}/{index}"), lines);
            }
        }
        _ => lines.push(format!("    {path}: embedded {ours}, real {theirs}")),
    }
}

/// Plays many generated sequences; the differing ones as texts.
pub async fn many(real: &Client, seed: u64, count: u64) -> Vec<String> {
    let found: Vec<Option<(u64, Sequence, String)>> = stream::iter(seed..seed + count)
        .map(|number| async move {
            let sequence = generator::sequence(number);
            let id = format!("s{number}");
            let difference = difference(real, &sequence, &id, Owners::MayDiffer).await?;
            Some((number, sequence, difference))
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut texts = Vec::new();
    for (number, sequence, difference) in found.into_iter().flatten() {
        texts.push(match texts.len() {
            ..REDUCED => reduce(real, sequence, &format!("s{number}"), difference).await,
            _ => format!("s{number}: {difference}"),
        });
    }
    texts
}

/// Leaves out steps while the sequence still differs.
async fn reduce(real: &Client, mut sequence: Sequence, id: &str, mut last: String) -> String {
    let mut attempt = 0;
    let mut index = sequence.steps.len();
    while index > 0 {
        index -= 1;
        let mut shorter = sequence.clone();
        shorter.steps.remove(index);
        attempt += 1;
        if let Some(difference) =
            difference(real, &shorter, &format!("{id}x{attempt}"), Owners::MayDiffer).await
        {
            sequence = shorter;
            last = difference;
        }
    }
    let steps: Vec<String> = sequence.steps.iter().map(super::sequence::Step::line).collect();
    format!("{id}: {last}\n  steps:\n  {}", steps.join("\n  "))
}
