//! One request with JSON on both sides, with the caller's rights, for the few that the fence, `preflight`, `switch` and `repair` send.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{connect::ApiServer, error_chain, tables::watch::page_uri};
use http::{HeaderValue, Method, Request, header::CONTENT_TYPE};
use kube::Client;
use serde_json::{Map, Value, json, value::RawValue};
use thiserror::Error;
use tokio::time::timeout;

/// How long an answer may take.
pub const LONGEST_ANSWER: Duration = Duration::from_secs(10);

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

/// Whether the server's words say that the user has no right to the request, or none to give the rights in it to somebody: nothing
/// else has judged it then.
pub fn lacks_right(words: &str) -> bool {
    words.contains("is forbidden: User ")
        || words.contains("attempting to grant RBAC permissions not currently held")
}

/// A client of the server.
///
/// # Errors
/// See [`NoAnswer`].
pub fn client(api: &ApiServer) -> Result<Client, NoAnswer> {
    api.client().map_err(|error| NoAnswer::Unknown(error.to_string()))
}

/// A request with JSON; what it has with PATCH is a merge patch.
///
/// # Errors
/// It cannot be made.
pub fn request(method: Method, path: &str, body: Option<&Value>) -> Result<Request<Vec<u8>>, NoAnswer> {
    let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content).body(body);
    request.map_err(|error| NoAnswer::Unknown(error.to_string()))
}

/// Sends a request.
///
/// # Errors
/// See [`NoAnswer`]. A status of 500 or more is no refusal, nor is one that asks to come back later.
pub async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, NoAnswer> {
    answer(client, request(method, path, body)?, LONGEST_ANSWER).await
}

/// Applies an object on the server's side.
///
/// # Errors
/// See [`ask`].
pub async fn apply(client: &Client, path: &str, object: &Value) -> Result<Value, NoAnswer> {
    let mut request = request(Method::PATCH, path, Some(object))?;
    let content = HeaderValue::from_static("application/apply-patch+yaml");
    request.headers_mut().insert(CONTENT_TYPE, content);
    answer(client, request, LONGEST_ANSWER).await
}

/// Tries a deletion, which changes nothing. Of an object that is not there, the server says so only to who may delete it.
///
/// # Errors
/// See [`ask`].
pub async fn try_delete(client: &Client, path: &str) -> Result<(), NoAnswer> {
    if_there(ask(client, Method::DELETE, &format!("{path}?dryRun=All"), None).await).map(drop)
}

/// Sends a request as it is, and waits for so long.
///
/// # Errors
/// See [`ask`].
pub async fn answer(
    client: &Client,
    request: Request<Vec<u8>>,
    longest: Duration,
) -> Result<Value, NoAnswer> {
    match timeout(longest, client.request_text(request)).await {
        Ok(Ok(text)) => serde_json::from_str(&text)
            .or_else(|_| without_managed_fields(&text))
            .map_err(|error| NoAnswer::Unknown(error_chain(&error))),
        Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => {
            Err(NoAnswer::Refused(status.code, status.message))
        }
        Ok(Err(error)) => Err(NoAnswer::Unknown(error_chain(&error))),
        Err(_) => Err(NoAnswer::Unknown(format!("no answer within {longest:?}"))),
    }
}

/// An object, or a list of objects, without `managedFields`: whoever may write an object may nest them deeper than a [`Value`] may
/// be, and is to hide nothing by that.
fn without_managed_fields(text: &str) -> Result<Value, serde_json::Error> {
    let mut read = Map::new();
    for (name, raw) in serde_json::from_str::<BTreeMap<String, &RawValue>>(text)? {
        let value = match &*name {
            "managedFields" => continue,
            "metadata" => without_managed_fields(raw.get())?,
            "items" => {
                let items = serde_json::from_str::<Vec<&RawValue>>(raw.get())?;
                items.into_iter().map(|item| without_managed_fields(item.get())).collect::<Result<_, _>>()?
            }
            _ => serde_json::from_str(raw.get())?,
        };
        read.insert(name, value);
    }
    Ok(Value::Object(read))
}

/// Objects on a page of a list.
const PAGE: usize = 500;
/// How long a page may take: the API server itself gives up after as long.
const LONGEST_PAGE: Duration = Duration::from_mins(1);

/// Reads a list page by page, and takes each of its objects; of a kind that is not served there are none.
///
/// # Errors
/// See [`NoAnswer`].
pub async fn each(client: &Client, path: &str, mut take: impl FnMut(&Value)) -> Result<(), NoAnswer> {
    let mut next = None::<String>;
    loop {
        let request = request(Method::GET, &page_uri(path, PAGE, next.as_deref()), None)?;
        let page = if_there(answer(client, request, LONGEST_PAGE).await)?.unwrap_or_default();
        page.get("items").and_then(Value::as_array).into_iter().flatten().for_each(&mut take);
        next = Some(text(&page, "/metadata/continue").to_owned()).filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(());
        }
    }
}

/// Reads an object; `None` if it is not there.
///
/// # Errors
/// See [`NoAnswer`].
pub async fn read(client: &Client, path: &str) -> Result<Option<Value>, NoAnswer> {
    if_there(ask(client, Method::GET, path, None).await)
}

/// What was answered; `None` if there is no such object.
///
/// # Errors
/// Any other [`NoAnswer`].
pub fn if_there(answer: Result<Value, NoAnswer>) -> Result<Option<Value>, NoAnswer> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(NoAnswer::Refused(404, _)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same; `None` also if the server refuses to show it.
///
/// # Errors
/// The server does not answer.
pub async fn read_if_allowed(client: &Client, path: &str) -> Result<Option<Value>, NoAnswer> {
    match read(client, path).await {
        Err(NoAnswer::Refused(..)) => Ok(None),
        answer => answer,
    }
}

/// Patches an object on the revision that was read.
///
/// # Errors
/// See [`ask`].
pub async fn patch(client: &Client, path: &str, read: &Value, mut changes: Value) -> Result<(), NoAnswer> {
    let metadata =
        changes.as_object_mut().map(|fields| fields.entry("metadata").or_insert_with(|| json!({})));
    let Some(Value::Object(metadata)) = metadata else {
        return Err(NoAnswer::Unknown("a patch of no fields".to_owned()));
    };
    let revision = read.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    metadata.insert("resourceVersion".to_owned(), revision);
    ask(client, Method::PATCH, path, Some(&changes)).await.map(drop)
}

/// A text of an object; empty if there is none.
pub fn text<'a>(object: &'a Value, at: &str) -> &'a str {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_page_of_a_list_may_take_longer_than_an_object() {
        let service = tower::service_fn(|_: Request<Body>| async {
            sleep(Duration::from_secs(30)).await;
            let list = json!({ "items": [{}] }).to_string().into_bytes();
            Ok::<_, std::io::Error>(http::Response::new(Body::from(list)))
        });
        let (client, mut count) = (Client::new(service, "default"), 0);
        each(&client, "/api/v1/nodes", |_| count += 1).await.unwrap();
        assert_eq!(count, 1);
        assert!(matches!(read(&client, "/version").await, Err(NoAnswer::Unknown(_))));
    }
    #[tokio::test]
    async fn managed_fields_that_are_nested_too_deep_hide_nothing() {
        let deep = format!("{}1{}", "{\"f:a\":".repeat(200), "}".repeat(200));
        let list = format!(
            r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{{"metadata":{{"name":"a","managedFields":[{deep}]}}}},{{"metadata":{{"name":"b"}},"spec":{{"x":1}}}}]}}"#
        );
        let service = tower::service_fn(move |_: Request<Body>| {
            let list = list.clone().into_bytes();
            async { Ok::<_, std::io::Error>(http::Response::new(Body::from(list))) }
        });
        let mut items = Vec::new();
        let client = Client::new(service, "default");
        each(&client, "/api/v1/pods", |item| items.push(item.clone())).await.unwrap();
        let expected = [
            json!({ "metadata": { "name": "a" } }),
            json!({ "metadata": { "name": "b" }, "spec": { "x": 1 } }),
        ];
        assert_eq!(items, expected);
    }
}
