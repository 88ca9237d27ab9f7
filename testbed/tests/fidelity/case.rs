//! Named cases: a sequence of requests and what every right server answers.
//!
//! Each is a difference that was found once, or a rule that the daemon relies on. `answer` holds
//! the fields that matter; what it does not name is not checked here, but compared with the real
//! server where there is one.

use kube::Client;
use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::Value;

use super::{
    cases, play,
    sequence::{Run, Sequence, Step},
};

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name.
    pub name: String,
    steps: Vec<Expectation>,
    /// Collections whose events are checked, and compared.
    #[serde(default)]
    watch: Vec<String>,
    /// What they show: type and name.
    #[serde(default)]
    events: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    #[serde(rename = "do")]
    request: String,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    body: Option<Value>,
    code: Option<u16>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    answer: Option<Value>,
}

/// All cases.
pub fn load() -> Vec<Case> {
    cases::files("fidelity").iter().flat_map(|path| cases::read::<Vec<Case>>(path)).collect()
}

impl Expectation {
    fn step(&self) -> Step {
        let (method, path) = self.request.split_once(' ').expect("a method and a path");
        let media = match &self.patch {
            Some(kind) if kind == "apply" => "application/apply-patch+yaml".to_owned(),
            Some(kind) => format!("application/{kind}-patch+json"),
            None => "application/json".to_owned(),
        };
        Step::new(method, path, &media, self.body.clone())
    }
}

/// Checks a case's own expectations on an embedded server.
pub async fn check(case: &Case, client: &Client) -> Result<(), Failed> {
    let mut run = Run::begin(client, "id", false).await;
    for (index, expected) in case.steps.iter().enumerate() {
        // Filled before the step: a revision named is the one that the step finds.
        let wanted = expected.answer.as_ref().map(|wanted| run.fill(&wanted.to_string()));
        let wanted: Option<Value> = wanted.map(|wanted| serde_json::from_str(&wanted)).transpose()?;
        let answer = run.step(&expected.step()).await;
        let reason = answer.body["reason"].as_str().unwrap_or_default();
        let is_right = expected.code.is_none_or(|code| code == answer.code)
            && expected.reason.as_ref().is_none_or(|expected| expected == reason)
            && wanted.as_ref().is_none_or(|wanted| holds(wanted, &answer.body));
        if !is_right {
            return Err(
                format!("step {}, {}: {} {}", index + 1, expected.request, answer.code, answer.body).into()
            );
        }
    }
    let mut events = Vec::new();
    for collection in &case.watch {
        for event in run.events(collection, Some(case.events.len())).await {
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            events.push(format!("{} {name}", event["type"].as_str().unwrap_or_default()).replace("$id-", ""));
        }
    }
    if !case.watch.is_empty() && events != case.events {
        return Err(format!("events {events:?}").into());
    }
    Ok(())
}

/// Whether everything wanted is in what was found; null stands for absent.
fn holds(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), _) => wanted.iter().all(|(name, wanted)| holds(wanted, &found[name])),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len()
                && wanted.iter().zip(found).all(|(wanted, found)| holds(wanted, found))
        }
        (wanted, found) => wanted == found,
    }
}

/// Runs a case on both servers and compares everything.
pub async fn compare(case: &Case, real: &Client) -> Result<(), Failed> {
    let sequence =
        Sequence { steps: case.steps.iter().map(Expectation::step).collect(), watched: case.watch.clone() };
    let id: String = case.name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    match play::difference(real, &sequence, &format!("c{}", id.to_ascii_lowercase()), play::Owners::Agree)
        .await
    {
        Some(difference) => Err(difference.into()),
        None => Ok(()),
    }
}
