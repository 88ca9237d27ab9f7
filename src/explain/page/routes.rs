//! Paths in, answers out.
//!
//! In: a [`PageSource`]. Out: a router whose answers have the headers that keep a page to itself: nothing from elsewhere is loaded or
//! run, no other page frames it, and no link out of it tells where it came from. Names that Kubernetes would not allow lead to
//! no object.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, RawQuery, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header};

use super::{guard::Guard, layout, links::Links, reason, source::PageSource, views};
use crate::explain::{
    reasons,
    report::Verdict,
    subject::{self, is_name},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const ICON: &str = include_str!("icon.svg");

/// What a page may load, and who may frame it.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

const HTML: &str = "text/html; charset=utf-8";

/// The pages of a source.
struct Site<S> {
    source: S,
    links: Links,
}

type Shared<S> = State<Arc<Site<S>>>;

/// Pages for one person on this machine.
pub fn router<S: PageSource + 'static>(source: S, guard: Guard) -> Router {
    let links = Links::new(&guard.base(), source.program());
    let path = |rest: &str| links.path(rest);
    let asset = |kind, text: &'static str| get(async move || reply(StatusCode::OK, kind, text.to_owned()));
    Router::new()
        .route(path("").trim_end_matches('/'), get(waiting::<S>))
        .route(&path(""), get(waiting::<S>))
        .route(&path("page.css"), asset("text/css; charset=utf-8", STYLE))
        .route(&path("page.js"), asset("text/javascript; charset=utf-8", SCRIPT))
        .route(&path("icon.svg"), asset("image/svg+xml", ICON))
        .route(&path("go"), get(go::<S>))
        .route(&path("reason/{code}"), get(about_reason::<S>))
        .route(&path("node/{name}"), get(node::<S>))
        .route(&path("o/{kind}/{name}"), get(object::<S>))
        .route(&path("o/{kind}/{namespace}/{name}"), get(object::<S>))
        .fallback(async |State(site): Shared<S>| site.nowhere())
        .method_not_allowed_fallback(async |State(site): Shared<S>| {
            let why = ("Nothing is changed here", "Only GET and HEAD are answered.");
            ([(header::ALLOW, "GET, HEAD")], site.without(StatusCode::METHOD_NOT_ALLOWED, why.0, why.1))
        })
        .layer(middleware::from_fn_with_state(guard, admitted))
        .with_state(Arc::new(Site { source, links }))
}

async fn admitted(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.admits(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => reply(StatusCode::FORBIDDEN, "text/plain; charset=utf-8", format!("{why}\n")),
    }
}

async fn waiting<S: PageSource>(State(site): Shared<S>) -> Response {
    let found = site.source.waiting().await;
    site.told(found.map(|now| (Verdict::Healthy, views::waiting(&site.links, &now))))
}

async fn object<S: PageSource>(State(site): Shared<S>, Path(parts): Path<Vec<String>>) -> Response {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let subject = match parts.as_slice() {
        [kind, name] => subject::named(kind, "", name).ok().filter(|it| it.names().0.is_none()),
        [kind, namespace, name] => {
            subject::named(kind, namespace, name).ok().filter(|it| it.names().0.is_some())
        }
        _ => None,
    };
    let Some(subject) = subject.filter(|_| parts.iter().all(|part| is_name(part))) else {
        return site.nowhere();
    };
    let found = site.source.explain(&subject).await;
    site.told(found.map(|it| (it.verdict, views::object(&site.links, &it))))
}

async fn node<S: PageSource>(State(site): Shared<S>, Path(name): Path<String>) -> Response {
    if !is_name(&name) {
        return site.nowhere();
    }
    let found = site.source.node(&name.as_str().into()).await;
    site.told(found.map(|now| (now.verdict, views::node(&site.links, &now))))
}

async fn about_reason<S: PageSource>(State(site): Shared<S>, Path(code): Path<String>) -> Response {
    match reasons::page(&code) {
        Some(text) => reply(StatusCode::OK, HTML, reason::page(&site.links, &code, text)),
        None => site.nowhere(),
    }
}

/// Leads from the form to an object's page.
async fn go<S: PageSource>(State(site): Shared<S>, RawQuery(query): RawQuery) -> Response {
    let field = |name: &str| {
        let found = form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.trim().to_owned());
        found.unwrap_or_default()
    };
    let namespace = Some(field("namespace")).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let subject = subject::named(&field("kind"), &namespace, &field("name")).ok();
    match subject.and_then(|subject| site.links.path_of(&subject)) {
        Some(path) => {
            ([(header::LOCATION, path)], reply(StatusCode::SEE_OTHER, HTML, String::new())).into_response()
        }
        None => site.without(StatusCode::BAD_REQUEST, "That is no name", "Kubernetes would not allow it."),
    }
}

impl<S> Site<S> {
    fn told(&self, found: Result<(Verdict, String), String>) -> Response {
        match found {
            Ok((verdict, page)) => reply(status(verdict), HTML, page),
            Err(why) => self.without(StatusCode::SERVICE_UNAVAILABLE, "There is no answer", &why),
        }
    }

    fn nowhere(&self) -> Response {
        self.without(StatusCode::NOT_FOUND, "There is no such page", "The address is not one of this page.")
    }

    fn without(&self, status: StatusCode, title: &str, why: &str) -> Response {
        reply(status, HTML, layout::trouble(&self.links, title, why))
    }
}

/// A page about what is not there, or not to be seen, says so to programs, too.
fn status(verdict: Verdict) -> StatusCode {
    match verdict {
        Verdict::Healthy | Verdict::Waiting | Verdict::Blocked => StatusCode::OK,
        Verdict::NotFound => StatusCode::NOT_FOUND,
        Verdict::Forbidden => StatusCode::FORBIDDEN,
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, body).into_response()
}
