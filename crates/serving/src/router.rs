//! Which path is answered by what: axum's router, with the sorts of answers that there are here.
//!
//! In: requests that the gate has let through, with the [`Audience`] that it found. Out: responses without the headers that
//! all have. One who is in the same process asks with [`Router::here`].

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension,
    body::Body,
    extract::{DefaultBodyLimit, RawQuery, Request, rejection::StringRejection},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use futures::FutureExt;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::Serialize;
use tower::ServiceExt;

use super::{
    answer::Answer,
    health::{Audience, Checks},
    pages::{MakeRows, Page},
    user::User,
};

/// Bytes of what is set: more than any filter of the log needs.
pub(super) const LONGEST_SETTING: usize = 4 * 1024;

/// All paths.
#[derive(Clone, derive_more::Debug)]
#[debug("{paths:?}")]
#[must_use]
pub struct Router {
    axum: axum::Router,
    paths: Vec<&'static str>,
}

impl Default for Router {
    fn default() -> Self {
        let not_found = async || Answer::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
        Self { axum: axum::Router::new().fallback(not_found), paths: Vec::new() }
    }
}

impl Router {
    /// Answers the methods of one path.
    pub fn route(mut self, path: &'static str, methods: MethodRouter) -> Self {
        self.paths.push(path);
        let axum = self.axum.route(path, methods.fallback(method_not_allowed));
        Self { axum, ..self }
    }

    /// Answers one path with what may be much: made apart, one at a time. It is the same whatever a query says.
    pub fn page(self, path: &'static str, make: impl Fn() -> Answer + Send + Sync + 'static) -> Self {
        let page = Arc::new(Page::new(Box::new(move |_| make())));
        self.route(path, get(async move |audience| show(&page, audience, None).await))
    }

    /// The same, or to a query a part of it.
    pub fn rows(self, path: &'static str, make: Box<MakeRows>) -> Self {
        let page = Arc::new(Page::new(make));
        let answer = async move |audience, RawQuery(query): RawQuery| {
            let asks = |query: &String| form_urlencoded::parse(query.as_bytes()).next().is_some();
            show(&page, audience, query.filter(asks)).await
        };
        self.route(path, get(answer))
    }

    /// Answers one path with JSON.
    pub fn json<Document: Serialize>(
        self,
        path: &'static str,
        answer: impl Fn() -> Document + Send + Sync + 'static,
    ) -> Self {
        self.page(path, move || Answer::json(&answer()))
    }

    /// Answers one path with health checks.
    pub fn checks(self, path: &'static str, checks: Checks) -> Self {
        let checks = Arc::new(checks);
        let answer = async move |Extension(audience): Extension<Audience>, RawQuery(query): RawQuery| {
            checks.answer(query.as_deref(), audience)
        };
        self.route(path, get(answer))
    }

    /// Shows and sets something under one path: the text of a request's body in, a sentence out, or what is wrong with it.
    pub fn setting(
        self,
        path: &'static str,
        show: impl Fn() -> Result<String, String> + Clone + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static,
    ) -> Self {
        let set = async move |user: Extension<Arc<User>>, text: Result<String, StringRejection>| {
            let result = match text {
                Ok(text) => set(&text),
                Err(_) => Err("error reading request body".to_owned()),
            };
            if let Ok(answer) = &result {
                tracing::warn!(path, user = user.username, answer, "changed while running");
            }
            told(result)
        };
        let methods = get(async move || told(show())).put(set);
        self.route(path, methods.layer(DefaultBodyLimit::max(LONGEST_SETTING)))
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.paths.iter().copied()
    }

    /// Answers a request that was let through.
    pub(super) async fn answer(&self, request: Request) -> Response {
        let Ok(response): Result<Response, Infallible> = self.axum.clone().oneshot(request).await;
        response
    }

    /// What a path with its query says now to one who is in the same process.
    pub fn here(&self, path: &str) -> (StatusCode, String) {
        let asking = async {
            let request = Request::get(path).extension(Audience::Process).body(Body::empty()).ok()?;
            let (head, body) = self.answer(request).await.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            Some((head.status, String::from_utf8_lossy(&body).into_owned()))
        };
        // Nothing of it waits.
        asking.now_or_never().flatten().unwrap_or((StatusCode::BAD_REQUEST, String::new()))
    }
}

async fn show(page: &Arc<Page>, Extension(audience): Extension<Audience>, part: Option<String>) -> Response {
    match audience {
        Audience::Process => (page.make)(part.as_deref()).into_response(),
        Audience::Known | Audience::Everybody => page.get(part).await,
    }
}

async fn method_not_allowed() -> impl IntoResponse {
    let text = "only GET and HEAD are answered\n".to_owned();
    ([(header::ALLOW, "GET, HEAD")], Answer::text(StatusCode::METHOD_NOT_ALLOWED, text))
}

/// What came of showing or setting something.
///
/// Format: apiserver's server/routes/flags.go, StringFlagPutHandler.
fn told(result: Result<String, String>) -> Answer {
    let (status, body) = match result {
        Ok(text) => (StatusCode::OK, text),
        Err(text) => (StatusCode::BAD_REQUEST, text),
    };
    Answer { status, content_type: "text/plain", body }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn paths_are_told_apart() {
        let router = Router::default()
            .page("/metrics", || Answer::text(StatusCode::OK, "up 1\n".to_owned()))
            .json("/debug/claims", || json!({ "claims": ["a"] }));
        let cases = [
            (Method::GET, "/metrics", 200, "up 1\n"),
            (Method::HEAD, "/metrics", 200, ""),
            (Method::POST, "/metrics", 405, "only GET and HEAD are answered\n"),
            (Method::GET, "/metrics/", 404, "404 page not found\n"),
            (Method::POST, "/nowhere", 404, "404 page not found\n"),
            (Method::GET, "/debug/claims", 200, "{\"claims\":[\"a\"]}\n"),
            (Method::GET, "/debug/claims/a", 404, "404 page not found\n"),
        ];
        for (method, path, status, body) in cases {
            let request = Request::builder().method(&method).uri(path).extension(Audience::Known);
            let response = router.answer(request.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), status, "{method} {path}");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body, "{method} {path}");
        }
        assert_eq!(router.here("/metrics?x=1"), (StatusCode::OK, "up 1\n".to_owned()));
        assert_eq!(router.here("/nowhere").0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn who_asks_for_a_part_gets_it_and_a_page_without_parts_is_the_same_whatever_is_asked() {
        let rows = move |query: Option<&str>| Answer::text(StatusCode::OK, format!("{query:?}"));
        let page = move || Answer::text(StatusCode::OK, "all".to_owned());
        let router = Router::default().rows("/rows", Box::new(rows)).page("/page", page);
        for (path, expected) in [
            ("/rows", "None"),
            ("/rows?", "None"),
            ("/rows?&&", "None"),
            ("/rows?a=1", "Some(\"a=1\")"),
            ("/rows", "None"),
            ("/page?a=1", "all"),
        ] {
            let request = Request::get(path).extension(Audience::Known).body(Body::empty()).unwrap();
            let body = router.answer(request).await.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.as_ref(), expected.as_bytes(), "{path}");
            assert_eq!(router.here(path), (StatusCode::OK, expected.to_owned()), "one in the same process");
        }
    }
}
