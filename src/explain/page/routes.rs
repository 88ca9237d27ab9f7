//! Paths in, answers out.
//!
//! In: a [`PageSource`]. Out: a router whose answers have the headers that keep a page to itself: nothing from elsewhere is loaded or
//! run, no other page frames it, and no link out of it tells where it came from. Names that Kubernetes would not allow lead to
//! no object.

use std::sync::Arc;

use apiserver::ids::NodeName;
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
    doctor::doctor,
    drain::drain,
    explain,
    read::Question,
    reasons,
    report::Verdict,
    snapshot::Snapshot,
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
struct Site {
    source: PageSource,
    links: Links,
}

type Shared = State<Arc<Site>>;

/// Pages for one person on this machine.
pub fn router(source: PageSource, guard: Guard) -> Router {
    let links = Links::new(&guard.base(), source.program);
    let path = |rest: &str| links.path(rest);
    let asset = |kind, text: &'static str| get(async move || reply(StatusCode::OK, kind, text.to_owned()));
    Router::new()
        .route(path("").trim_end_matches('/'), get(waiting))
        .route(&path(""), get(waiting))
        .route(&path("page.css"), asset("text/css; charset=utf-8", STYLE))
        .route(&path("page.js"), asset("text/javascript; charset=utf-8", SCRIPT))
        .route(&path("icon.svg"), asset("image/svg+xml", ICON))
        .route(&path("go"), get(go))
        .route(&path("reason/{code}"), get(about_reason))
        .route(&path("node/{name}"), get(node))
        .route(&path("o/{kind}/{name}"), get(object))
        .route(&path("o/{kind}/{namespace}/{name}"), get(object))
        .fallback(async |State(site): Shared| site.nowhere())
        .method_not_allowed_fallback(async |State(site): Shared| {
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

async fn waiting(State(site): Shared) -> Response {
    site.told(Question::Cluster(site.source.namespace.clone()), |seen| {
        (Verdict::Healthy, views::waiting(&site.links, &doctor(seen, site.source.of.as_deref())))
    })
    .await
}

async fn object(State(site): Shared, Path(parts): Path<Vec<String>>) -> Response {
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
    site.told(Question::Object(subject.clone()), |seen| {
        let told = explain(seen, &subject);
        (told.verdict, views::object(&site.links, &told))
    })
    .await
}

async fn node(State(site): Shared, Path(name): Path<String>) -> Response {
    if !is_name(&name) {
        return site.nowhere();
    }
    let name = NodeName::from(name);
    site.told(Question::Drain(name.clone()), |seen| {
        let now = drain(seen, &name, None);
        (now.verdict, views::node(&site.links, &now))
    })
    .await
}

async fn about_reason(State(site): Shared, Path(code): Path<String>) -> Response {
    match reasons::page(&code) {
        Some(text) => reply(StatusCode::OK, HTML, reason::page(&site.links, &code, text)),
        None => site.nowhere(),
    }
}

/// Leads from the form to an object's page.
async fn go(State(site): Shared, RawQuery(query): RawQuery) -> Response {
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

impl Site {
    async fn told(&self, question: Question, page: impl FnOnce(&Snapshot) -> (Verdict, String)) -> Response {
        match (self.source.read)(question).await.as_ref().map(page) {
            Ok((verdict, page)) => reply(status(verdict), HTML, page),
            Err(why) => self.without(StatusCode::SERVICE_UNAVAILABLE, "There is no answer", why),
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
