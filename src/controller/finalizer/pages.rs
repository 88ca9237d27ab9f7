//! A live list in pages, of which nothing is kept but what the caller takes of each object.

use apiserver::call::{CallError, Caller, Request, Verb};
use serde::{Deserialize, de::DeserializeOwned};

/// Objects on one page. Each has some kilobytes.
const PAGE: usize = 500;

#[derive(Deserialize)]
struct Page<T> {
    kind: String,
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMeta {
    r#continue: String,
}

/// Where a page is, which the last one names, if there was one.
fn page_path(path: &str, token: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &PAGE.to_string());
    if !token.is_empty() {
        query.append_pair("continue", token);
    }
    format!("{path}?{}", query.finish())
}

/// Lists at the most recent revision, and hands each object of the list on. What cannot be read proves nothing (S42).
///
/// # Errors
/// See [`CallError`].
pub async fn list<T: DeserializeOwned>(
    caller: &Caller,
    path: &str,
    kind: &str,
    mut take: impl FnMut(T),
) -> Result<(), CallError> {
    let mut next = String::new();
    loop {
        let path = page_path(path, &next);
        let body = caller.send(&Request { verb: Verb::Get, path, body: None }).await?;
        let page = serde_json::from_slice::<Page<T>>(&body).ok().filter(|page| page.kind == kind);
        let page = page.ok_or_else(|| CallError::Unknown(format!("unreadable {kind}")))?;
        page.items.into_iter().for_each(&mut take);
        if page.metadata.r#continue.is_empty() {
            return Ok(());
        }
        next = page.metadata.r#continue;
    }
}
