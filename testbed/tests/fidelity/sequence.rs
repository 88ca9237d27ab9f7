//! Sequences of requests, and running one on a server.
//!
//! Texts may hold placeholders, which each server fills with its own values: `$id` (unique to the
//! run of the sequence), `$uid(plural/name)` and `$rv(plural/name)` (of the object as last seen),
//! `$continue` (token of the last list), `$start` and `$last` (revision before the first step, and
//! the highest one seen).

use std::{collections::HashMap, time::Duration};

use futures::AsyncBufReadExt;
use futures::StreamExt;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Value, json};

use super::mask;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Content type of the body.
    pub media: String,
    /// Body.
    pub body: Option<Value>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// Body; null when it is not JSON.
    pub body: Value,
}

/// Requests in order, and what is watched meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// The requests.
    pub steps: Vec<Step>,
    /// Collections whose events from before the first step on are compared.
    pub watched: Vec<String>,
}

/// The most that a missing event is waited for. A server under load is slow, not wrong.
const EVENT_DEADLINE: Duration = Duration::from_secs(6);
/// How long nothing more must come after the last expected event.
const QUIET: Duration = Duration::from_millis(20);

/// One run of one sequence on one server.
pub struct Run<'a> {
    client: &'a Client,
    id: String,
    is_real: bool,
    seen: HashMap<String, Value>,
    continue_token: String,
    start: String,
    last: u64,
}

impl<'a> Run<'a> {
    /// Begins a run: a namespace of its own, and the revision before the first step.
    pub async fn begin(client: &'a Client, id: &str, is_real: bool) -> Self {
        let mut run = Self {
            client,
            id: id.to_owned(),
            is_real,
            seen: HashMap::new(),
            continue_token: String::new(),
            start: String::new(),
            last: 0,
        };
        let namespace = json!({"metadata": {"name": id}});
        let created = run.step(&Step::post("/api/v1/namespaces", namespace)).await;
        assert_eq!(created.code, 201, "{created:?}");
        created.body["metadata"]["resourceVersion"].as_str().unwrap_or_default().clone_into(&mut run.start);
        run
    }

    /// Sends one request.
    pub async fn step(&mut self, step: &Step) -> Answer {
        let body = step.body.as_ref().map(|body| self.fill(&body.to_string())).unwrap_or_default();
        let request = http::Request::builder()
            .method(step.method.as_str())
            .uri(self.fill(&step.path))
            .header(http::header::CONTENT_TYPE, step.media.as_str())
            .header(http::header::ACCEPT, "application/json")
            .body(kube::client::Body::from(body.into_bytes()))
            .unwrap();
        let response = self.client.send(request).await.expect("send a request");
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("read the answer").to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        self.remember(&step.path, &body);
        if step.method == "DELETE" {
            self.catch_up().await;
        }
        Answer { code, body }
    }

    /// Learns the revision of what was deleted, which the answer may not tell. A list that may be as old as the
    /// revision before it could or could not show the object.
    async fn catch_up(&mut self) {
        let request = http::Request::get("/api/v1/namespaces?limit=1").body(Vec::new()).unwrap();
        let list: Value = self.client.request(request).await.expect("list namespaces");
        let revision = list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        self.last = self.last.max(revision.expect("a revision"));
    }

    /// The events of a collection since the first step: as many as are expected, and no more.
    pub async fn events(&self, collection: &str, expected: Option<usize>) -> Vec<Value> {
        let separator = if collection.contains('?') { '&' } else { '?' };
        let is_from_start = !collection.contains("resourceVersion=");
        let from = if is_from_start { "&resourceVersion=$start" } else { "" };
        let uri = self.fill(&format!("{collection}{separator}watch=true&timeoutSeconds=60{from}"));
        let request = http::Request::get(&uri).body(Vec::new()).unwrap();
        let mut lines = Box::pin(self.client.request_stream(request).await.expect("watch")).lines();
        let mut events = Vec::new();
        let mut shown = Vec::new();
        let mut revision = 0;
        loop {
            let patience = match expected {
                Some(count) if events.len() < count => EVENT_DEADLINE,
                _ => QUIET,
            };
            match tokio::time::timeout(patience, lines.next()).await {
                Ok(Some(Ok(line))) => {
                    let whole: Value = serde_json::from_str(&line).expect("an event");
                    // What a watch begins with comes in no order.
                    if is_from_start {
                        let next = revision_of(&whole).expect("an event with its revision");
                        assert!(next > revision, "{uri}: {next} comes after {revision}");
                        revision = next;
                    }
                    // The real server also writes who owns a field, and a new claim's first no-op, which its
                    // storage encodes in another way than the create. Ours has no reason for such events.
                    if !(self.is_real && shows_nothing(&whole, &shown)) {
                        events.push(mask::event(&whole, &self.id));
                    }
                    shown.push(whole);
                }
                _ => return events,
            }
        }
    }

    /// Keeps what later steps may refer to.
    fn remember(&mut self, path: &str, body: &Value) {
        if let Some(token) = body["metadata"]["continue"].as_str() {
            token.clone_into(&mut self.continue_token);
        }
        let revision = body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        self.last = self.last.max(revision.unwrap_or(0));
        let Some(name) = body["metadata"]["name"].as_str() else { return };
        let short = name.strip_prefix(&format!("{}-", self.id)).unwrap_or(name);
        let path = path.split('?').next().unwrap_or_default();
        let plural = path.split('/').rev().find(|part| PLURALS.contains(part));
        if let Some(plural) = plural {
            self.seen.insert(format!("{plural}/{short}"), body["metadata"].clone());
        }
    }

    /// A text with this run's values in the places of the marks.
    pub fn fill(&self, text: &str) -> String {
        let mut filled = text
            .replace("$continue", &self.continue_token)
            .replace("$start", &self.start)
            .replace("$last", &self.last.to_string())
            .replace("$id", &self.id);
        for (mark, field) in [("$uid(", "uid"), ("$rv(", "resourceVersion")] {
            while let Some(begin) = filled.find(mark) {
                let Some(length) = filled[begin..].find(')') else { break };
                let key = filled[begin + mark.len()..begin + length].to_owned();
                let value = self.seen.get(&key).and_then(|metadata| metadata[field].as_str());
                filled.replace_range(begin..=begin + length, value.unwrap_or("1"));
            }
        }
        filled
    }
}

fn revision_of(event: &Value) -> Option<u64> {
    event["object"]["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// Does nothing show in which an event differs from the object's one before?
fn shows_nothing(event: &Value, earlier: &[Value]) -> bool {
    let shown = |event: &Value| {
        let mut object = event["object"].clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|field, _| field != "managedFields" && field != "resourceVersion");
        }
        object
    };
    let same = |other: &&Value| other["object"]["metadata"]["uid"] == event["object"]["metadata"]["uid"];
    event["type"] == "MODIFIED"
        && earlier.iter().rev().find(same).is_some_and(|last| shown(last) == shown(event))
}

const PLURALS: [&str; 13] = [
    "pods",
    "nodes",
    "persistentvolumes",
    "persistentvolumeclaims",
    "events",
    "namespaces",
    "leases",
    "configmaps",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
    "csinodes",
    "csidrivers",
];

impl Step {
    /// A create.
    pub fn post(path: &str, body: Value) -> Self {
        Self::new("POST", path, "application/json", Some(body))
    }

    /// Any request.
    pub fn new(method: &str, path: &str, media: &str, body: Option<Value>) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), media: media.to_owned(), body }
    }

    /// As a line of a case.
    pub fn line(&self) -> String {
        let body = self.body.as_ref().map(|body| format!(", body: {body}")).unwrap_or_default();
        let patch = self.media.strip_prefix("application/").and_then(|rest| rest.strip_suffix("-patch+json"));
        let patch = patch.map(|patch| format!(", patch: {patch}")).unwrap_or_default();
        format!("- {{do: '{} {}'{patch}{body}}}", self.method, self.path)
    }
}
