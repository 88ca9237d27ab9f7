//! The complete history: every revision of every object, read back from etcd.
//!
//! etcd's history is the only complete record in a total order. This module reads it through etcd's JSON
//! gateway: a watch over all keys from a past revision up to the present one. This API server stores JSON
//! and never compacts ([`super::control_plane`]).

use futures::{AsyncBufReadExt, StreamExt};
use k8s_openapi::ByteString;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use super::plain_config::plain_config;

/// One object, before and after one revision.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    /// Resource and the rest of the key: `("persistentvolumes", "pv1")`.
    pub resource: String,
    pub name: String,
    /// `None` when it was created.
    pub before: Option<Value>,
    /// `None` when it is gone.
    pub after: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    result: Reply,
}

#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    events: Vec<Event>,
    #[serde(default)]
    canceled: bool,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct Event {
    kv: KeyValue,
    prev_kv: Option<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: ByteString,
    #[serde(default)]
    mod_revision: Option<String>,
    #[serde(default)]
    value: Option<ByteString>,
}

/// etcd, seen as a record.
#[derive(Clone)]
pub struct History {
    client: Client,
}

impl History {
    /// The record kept by the etcd at this address.
    pub fn of(etcd_url: &str) -> Self {
        Self { client: Client::try_from(plain_config(etcd_url)).expect("build a client for etcd") }
    }

    /// Whether it answers.
    pub async fn is_there(&self) -> bool {
        let request = post("/v3/kv/range", &json!({ "key": base64(b"none"), "count_only": true }));
        self.client.request::<Value>(request).await.is_ok()
    }

    /// Moves the revision up to this one by writes to a key of no object, and forgets what was before: what
    /// `etcdutl snapshot restore --bump-revision --mark-compacted` does.
    pub async fn bump(&self, revision: u64) {
        let ask = async |path: &str, body: Value| {
            let answer: Value = self.client.request(post(path, &body)).await.expect("ask etcd");
            answer
        };
        loop {
            let put = ask("/v3/kv/put", json!({ "key": base64(b"/bump"), "value": base64(b"") })).await;
            let reached = put["header"]["revision"].as_str().and_then(|text| text.parse::<u64>().ok());
            if reached.expect("a revision") >= revision {
                break;
            }
        }
        ask("/v3/kv/compaction", json!({ "revision": revision.to_string(), "physical": true })).await;
    }

    /// The present revision.
    pub async fn revision(&self) -> u64 {
        let request = post("/v3/kv/range", &json!({ "key": base64(b"none"), "count_only": true }));
        let answer: Value = self.client.request(request).await.expect("ask etcd for its revision");
        answer["header"]["revision"].as_str().and_then(|text| text.parse().ok()).expect("a revision")
    }

    /// All objects of a revision, as changes that make them.
    pub async fn objects_at(&self, revision: u64) -> Vec<Change> {
        let (from, to) = (base64(b"/registry/"), base64(b"/registry0"));
        let all = json!({ "key": from, "range_end": to, "revision": revision.to_string() });
        let found: Range = self.client.request(post("/v3/kv/range", &all)).await.expect("ask etcd");
        found.kvs.into_iter().filter_map(|kv| change(Event { kv, prev_kv: None })?.1).collect()
    }

    /// All changes after a revision up to now, in order.
    pub async fn since(&self, revision: u64) -> Vec<Change> {
        let last = self.revision().await;
        let mut changes = Vec::new();
        if last <= revision {
            return changes;
        }
        // Every revision changes some key, so the last one shows that all are here.
        let until_last = |events: Vec<(u64, Option<Change>)>| {
            let at_end = events.iter().any(|(revision, _)| *revision >= last);
            changes.extend(
                events.into_iter().filter(|(revision, _)| *revision <= last).filter_map(|(_, it)| it),
            );
            !at_end
        };
        self.follow(revision, until_last).await.expect("etcd keeps the watch open");
        changes
    }

    /// Tells the revisions after one as they come, each with its change if it is one of an object, as long as it is wanted.
    ///
    /// # Errors
    /// etcd does not answer, or has ended the watch.
    pub async fn follow(
        &self,
        revision: u64,
        mut wants_more: impl FnMut(Vec<(u64, Option<Change>)>) -> bool,
    ) -> Result<(), String> {
        let start = (revision + 1).to_string();
        let create = json!({ "create_request": {
            "key": base64(b"\0"), "range_end": base64(b"\0"), "start_revision": start, "prev_kv": true,
        }});
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let stream = self.client.request_stream(post("/v3/watch", &create)).await.map_err(|e| told(&e))?;
        let mut lines = Box::pin(stream).lines();
        loop {
            let line = lines.next().await.ok_or("the watch is over")?.map_err(|e| told(&e))?;
            let message: Message = serde_json::from_str(&line).map_err(|e| told(&e))?;
            if message.result.canceled {
                return Err("etcd has canceled the watch".to_owned());
            }
            if !wants_more(message.result.events.into_iter().filter_map(change).collect()) {
                return Ok(());
            }
        }
    }

    /// Forgets what was before the present revision, and gives the space back.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn compact(&self) -> Result<(), String> {
        let ask = async |path: &str, body: Value| {
            self.client.request::<Value>(post(path, &body)).await.map_err(|error| error.to_string())
        };
        let now = ask("/v3/kv/range", json!({ "key": base64(b"none"), "count_only": true })).await?;
        ask("/v3/kv/compaction", json!({ "revision": now["header"]["revision"], "physical": true })).await?;
        ask("/v3/maintenance/defragment", json!({})).await.map(drop)
    }
}

fn post(path: &str, body: &Value) -> http::Request<Vec<u8>> {
    http::Request::post(path).body(body.to_string().into_bytes()).expect("a request")
}

fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(ByteString(bytes.to_vec())).expect("bytes become base64")
}

/// The revision of an event, and the change when it is one of an object.
fn change(event: Event) -> Option<(u64, Option<Change>)> {
    let revision = event.kv.mod_revision.as_ref()?.parse().ok()?;
    let key = String::from_utf8_lossy(&event.kv.key.0).into_owned();
    let value = |kv: KeyValue| kv.value.and_then(|value| serde_json::from_slice(&value.0).ok());
    let mut parts = key.strip_prefix("/registry/")?.splitn(2, '/');
    let (Some(resource), Some(name)) = (parts.next(), parts.next()) else { return Some((revision, None)) };
    // etcd's own words for these two differ from the API's.
    let resource = if resource == "minions" { "nodes" } else { resource };
    let before = event.prev_kv.and_then(value);
    let after = value(event.kv);
    let change = Change { revision, resource: resource.to_owned(), name: name.to_owned(), before, after };
    Some((revision, Some(change)))
}
