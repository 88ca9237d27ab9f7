//! Raw requests of people and machines. What the API server refuses is not repeated: the act did not happen.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

/// A client that asks for what paths say.
#[derive(Clone)]
pub struct Hands(pub Client);

impl Hands {
    async fn send(&self, method: &str, path: &str, media: &str, body: &Value) -> Option<Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", media).body(body);
        self.0.request::<Value>(request.ok()?).await.ok()
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        self.send("GET", path, "application/json", &Value::Null).await
    }

    /// In the order of their names.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.get(path).await;
        list.and_then(|list| list["items"].as_array().cloned()).unwrap_or_default()
    }

    pub async fn create(&self, path: &str, body: &Value) -> Option<Value> {
        self.send("POST", path, "application/json", body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Option<Value> {
        self.send("PATCH", &format!("{path}?fieldManager=people"), "application/merge-patch+json", body).await
    }

    pub async fn delete(&self, path: &str) -> Option<Value> {
        self.send("DELETE", path, "application/json", &Value::Null).await
    }

    /// Deletes it, at once and without its finalizers if by force.
    pub async fn end(&self, path: &str, by_force: bool) {
        if by_force {
            self.remove(path).await;
        } else {
            self.delete(path).await;
        }
    }

    /// Deletes it at once: without grace, and without its finalizers.
    pub async fn remove(&self, path: &str) {
        self.send("DELETE", path, "application/json", &json!({ "gracePeriodSeconds": 0 })).await;
        self.patch(path, &json!({ "metadata": { "finalizers": null } })).await;
    }
}

/// Name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
