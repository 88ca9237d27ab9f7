//! One request with JSON on both sides, with the caller's rights, for the few that the fence, `preflight` and `switch` send.

use std::time::Duration;

use apiserver::{connect::ApiServer, error_chain};
use http::{Method, Request};
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

/// How long an answer may take.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);

/// Why there is no object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoAnswer {
    /// The server refuses, with this status code and these words.
    #[error("{1}")]
    Refused(u16, String),
    /// It is not known what became of the request.
    #[error("{0}")]
    Unknown(String),
}

/// Whether the server's words say that the user has no right to the request: nothing else has judged it then.
#[must_use]
pub fn lacks_right(words: &str) -> bool {
    words.contains("is forbidden: User ")
}

/// A client of the server.
///
/// # Errors
/// See [`NoAnswer`].
pub fn client(api: &ApiServer) -> Result<Client, NoAnswer> {
    api.client().map_err(|error| NoAnswer::Unknown(error.to_string()))
}

/// Sends a request. What is sent with PATCH is a merge patch, or with `fieldManager` in the path an apply patch.
///
/// # Errors
/// See [`NoAnswer`]. A status of 500 or more is no refusal, nor is one that asks to come back later.
pub async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, NoAnswer> {
    let content = match method {
        Method::PATCH if path.contains("fieldManager=") => "application/apply-patch+yaml",
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
        .map_err(|error| NoAnswer::Unknown(error.to_string()))?;
    answer(client, request).await
}

/// Sends a request as it is.
///
/// # Errors
/// See [`NoAnswer`]. A status of 500 or more is no refusal.
pub async fn answer(client: &Client, request: Request<Vec<u8>>) -> Result<Value, NoAnswer> {
    match timeout(LONGEST_ANSWER, client.request::<Value>(request)).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => {
            Err(NoAnswer::Refused(status.code, status.message))
        }
        Ok(Err(error)) => Err(NoAnswer::Unknown(error_chain(&error))),
        Err(_) => Err(NoAnswer::Unknown(format!("no answer within {LONGEST_ANSWER:?}"))),
    }
}

/// Objects on a page of a list.
const PAGE: usize = 500;

/// Reads a list page by page, and takes each of its objects; of a kind that is not served there are none.
///
/// # Errors
/// See [`NoAnswer`].
pub async fn each(client: &Client, path: &str, mut take: impl FnMut(&Value)) -> Result<(), NoAnswer> {
    let mut next = String::new();
    loop {
        let page = read(client, &format!("{path}?limit={PAGE}&continue={next}")).await?.unwrap_or_default();
        page.get("items").and_then(Value::as_array).into_iter().flatten().for_each(&mut take);
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => token.clone_into(&mut next),
            _ => return Ok(()),
        }
    }
}

/// Reads an object; `None` if it is not there.
///
/// # Errors
/// See [`NoAnswer`].
pub async fn read(client: &Client, path: &str) -> Result<Option<Value>, NoAnswer> {
    match ask(client, Method::GET, path, None).await {
        Ok(object) => Ok(Some(object)),
        Err(NoAnswer::Refused(404, _)) => Ok(None),
        Err(error) => Err(error),
    }
}
