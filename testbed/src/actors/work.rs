//! The keys that need another look, and for each the one write in progress.

use std::{collections::BTreeSet, fmt::Debug, time::Duration};

use http::Method;
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::task::JoinSet;

use super::storage::Effect;

/// Pause of a key after an error, so that a refused write is not repeated at once.
const PAUSE: Duration = Duration::from_millis(50);

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub method: Method,
    pub path: String,
    pub body: Value,
    /// How long the storage system takes before the request is sent.
    pub delay: Duration,
    /// What happens in the storage system after that while.
    pub effect: Option<Effect>,
}

impl Write {
    /// A request that waits for nothing and means nothing to the storage system.
    pub fn new(method: Method, path: String, body: Value) -> Self {
        Self { method, path, body, delay: Duration::ZERO, effect: None }
    }

    /// JSON merge patch.
    pub fn patch(path: String, body: Value) -> Self {
        Self::new(Method::PATCH, path, body)
    }

    /// The same after a while.
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Sends it. What is gone needs no write, what exists no creation.
    async fn send(self, client: &Client) -> Result<(), String> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        if let Some(effect) = &self.effect {
            effect.happen();
        }
        let content_type =
            if self.method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let creates = self.method == Method::POST;
        let request = http::Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(Body::from(self.body.to_string().into_bytes()))
            .map_err(|error| error.to_string())?;
        let response = client.send(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let body = response.into_body().collect_bytes().await.map_err(|error| error.to_string())?;
        if status.is_success() || status == 404 || (creates && status == 409) {
            return Ok(());
        }
        Err(format!("{} {status}: {}", self.path, String::from_utf8_lossy(&body)))
    }
}

/// Marked keys, and those being worked on. A key marked during its own write is looked at again
/// after it.
#[derive(Debug)]
pub struct Work<K> {
    marked: BTreeSet<K>,
    busy: BTreeSet<K>,
    writes: JoinSet<(K, Result<(), String>)>,
    timers: JoinSet<K>,
    limit: usize,
}

impl<K: Ord + Clone + Debug + Send + 'static> Work<K> {
    /// Nothing to do yet; at most `limit` writes at once.
    pub fn new(limit: usize) -> Self {
        Self {
            marked: BTreeSet::new(),
            busy: BTreeSet::new(),
            writes: JoinSet::new(),
            timers: JoinSet::new(),
            limit,
        }
    }

    /// Marks a key.
    pub fn mark(&mut self, key: K) {
        self.marked.insert(key);
    }

    /// Marks a key after a while.
    pub fn mark_after(&mut self, key: K, pause: Duration) {
        self.timers.spawn(async move {
            tokio::time::sleep(pause).await;
            key
        });
    }

    /// Takes a marked key that is free to be worked on.
    pub fn next(&mut self) -> Option<K> {
        if self.busy.len() >= self.limit {
            return None;
        }
        let key = self.marked.iter().find(|key| !self.busy.contains(*key))?.clone();
        self.marked.remove(&key);
        Some(key)
    }

    /// Sends the write of a key.
    pub fn start(&mut self, key: K, write: Write, client: Client) {
        self.busy.insert(key.clone());
        self.writes.spawn(async move {
            let result = write.send(&client).await;
            if result.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            (key, result)
        });
    }

    /// Waits for a write to end. What was written comes back as an event and marks its key then;
    /// what failed is marked here.
    pub async fn finished(&mut self) {
        let ended = tokio::select! {
            Some(Ok(key)) = self.timers.join_next() => return self.mark(key),
            Some(ended) = self.writes.join_next() => ended,
            // Nothing under way: there is nothing to wait for.
            else => std::future::pending().await,
        };
        match ended {
            Ok((key, result)) => {
                self.busy.remove(&key);
                if let Err(error) = result {
                    tracing::debug!(?key, error, "a stand-in's write failed, trying again");
                    self.mark(key);
                }
            }
            Err(error) => tracing::error!(%error, "a stand-in's write panicked"),
        }
    }
}
