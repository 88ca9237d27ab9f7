//! A live list in pages, of which nothing is kept but what the caller takes of each object.

use apiserver::{
    call::{CallError, Caller, Request, Verb},
    tables::watch::page_uri,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

/// Objects on one page. Each has some kilobytes.
const PAGE: usize = 500;

#[derive(Deserialize)]
struct Page<'a> {
    kind: String,
    metadata: PageMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct PageMeta {
    r#continue: Option<String>,
}

/// Hands each object of a page on. Returns where the next page is, if there is one. An object that cannot be read is no silence
/// of the server: it stays so until somebody mends it.
fn read<T: DeserializeOwned>(
    body: &[u8],
    kind: &str,
    take: &mut impl FnMut(T),
) -> Result<Option<String>, CallError> {
    let page = serde_json::from_slice::<Page<'_>>(body).ok().filter(|page| page.kind == kind);
    let page = page.ok_or_else(|| CallError::Unknown(format!("unreadable {kind}")))?;
    for item in page.items {
        // What is there is not quoted: it may be a secret's.
        take(serde_json::from_str(item.get()).map_err(|_| {
            let object: Value = serde_json::from_str(item.get()).unwrap_or_default();
            let of = |field| object.pointer(field).and_then(Value::as_str);
            let name = [of("/metadata/namespace"), of("/metadata/name")].into_iter().flatten();
            let name = name.collect::<Vec<_>>().join("/");
            CallError::Refused { code: 200, message: format!("{kind}: {name} cannot be read") }
        })?);
    }
    Ok(page.metadata.r#continue.filter(|token| !token.is_empty()))
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
    let mut next = None::<String>;
    loop {
        let path = page_uri(path, PAGE, next.as_deref());
        let body = caller.send(&Request { verb: Verb::Get, path, body: None }).await?;
        next = read(&body, kind, &mut take)?;
        if next.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::PersistentVolumeClaim;
    use serde_json::json;

    use super::*;

    /// L16 is for what says nothing: a list that is garbage. One claim that cannot be read does not end with the next try.
    #[test]
    fn s40_s42_an_object_that_cannot_be_read_fails_the_list_by_its_name_and_is_no_silence() {
        let page = |kind: &str, claim: Value| {
            json!({"kind": kind, "metadata": {"continue": "next"}, "items": [claim]}).to_string()
        };
        let kind = "PersistentVolumeClaimList";
        let claim =
            |status: Value| json!({"metadata": {"namespace": "shop", "name": "data"}, "status": status});
        let read = |page: String| {
            let mut names = Vec::new();
            let take = &mut |claim: PersistentVolumeClaim| names.push(claim.metadata.name.to_string());
            super::read(page.as_bytes(), kind, take).map(|next| (next, names))
        };
        assert_eq!(
            read(page(kind, claim(json!({})))),
            Ok((Some("next".to_owned()), vec!["data".to_owned()]))
        );
        let Err(CallError::Refused { message, .. }) = read(page(kind, claim(json!("s3cret")))) else {
            panic!("the server has answered");
        };
        assert_eq!(message, "PersistentVolumeClaimList: shop/data cannot be read");
        for garbage in [page("PodList", claim(json!({}))), "<html>".to_owned()] {
            assert!(matches!(read(garbage), Err(CallError::Unknown(_))));
        }
    }
}
