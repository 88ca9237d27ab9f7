//! Paths in, answers out.
//!
//! In: a request's head, and a [`Source`]. Out: an answer with the headers that keep a page to itself: nothing from elsewhere is
//! loaded or run, no other page frames it, and no link out of it tells where it came from.

use http::{HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::{
    guard::Guard,
    layout,
    links::{Asked, Links},
    node, object, reason,
    source::Source,
    waiting,
};
use crate::explain::{report::Verdict, subject::Subject};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const ICON: &str = include_str!("icon.svg");

/// What a page may load, and who may frame it.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

const HTML: &str = "text/html; charset=utf-8";

/// The pages of a source.
#[derive(Debug)]
pub struct Site<S> {
    source: S,
    links: Links,
    guard: Guard,
}

impl<S: Source> Site<S> {
    /// Pages for one person on this machine.
    pub fn new(source: S, guard: Guard) -> Self {
        Self { source, links: Links::new(&guard.base()), guard }
    }

    /// Answers a request.
    pub async fn answer(&self, request: &Parts) -> Response<String> {
        let path = request.uri.path();
        if let Err(why) = self.guard.admits(path, &request.headers) {
            return reply(StatusCode::FORBIDDEN, "text/plain; charset=utf-8", format!("{why}\n"));
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let mut refusal = self.without(
                StatusCode::METHOD_NOT_ALLOWED,
                "Nothing is changed here",
                "Only GET and HEAD are answered.",
            );
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        let query = request.uri.query().unwrap_or_default();
        match self.links.asked(path) {
            None => self.without(
                StatusCode::NOT_FOUND,
                "There is no such page",
                "The address is not one of this page.",
            ),
            Some(Asked::Style) => reply(StatusCode::OK, "text/css; charset=utf-8", STYLE.to_owned()),
            Some(Asked::Script) => reply(StatusCode::OK, "text/javascript; charset=utf-8", SCRIPT.to_owned()),
            Some(Asked::Icon) => reply(StatusCode::OK, "image/svg+xml", ICON.to_owned()),
            Some(Asked::Reason(code, text)) => {
                reply(StatusCode::OK, HTML, reason::page(&self.links, code, text))
            }
            Some(Asked::Go) => self.go(query),
            Some(Asked::Waiting) => {
                let found = self.source.waiting().await;
                self.told(found.map(|now| (Verdict::Healthy, waiting::page(&self.links, &now))))
            }
            Some(Asked::Object(subject)) => {
                let found = self.source.explain(&subject).await;
                self.told(found.map(|it| (it.verdict, object::page(&self.links, &it))))
            }
            Some(Asked::Node(name)) => {
                let found = self.source.node(&name).await;
                self.told(found.map(|now| (now.verdict, node::page(&self.links, &now))))
            }
        }
    }

    fn told(&self, found: Result<(Verdict, String), String>) -> Response<String> {
        match found {
            Ok((verdict, page)) => reply(status(verdict), HTML, page),
            Err(why) => self.without(StatusCode::SERVICE_UNAVAILABLE, "There is no answer", &why),
        }
    }

    /// Leads from the form to an object's page.
    fn go(&self, query: &str) -> Response<String> {
        let field = |name: &str| {
            let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name);
            found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let namespace = Some(field("namespace")).filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let subject = Subject::new(&field("kind"), &namespace, &field("name")).ok();
        let path = subject.and_then(|subject| HeaderValue::try_from(self.links.path_of(&subject)?).ok());
        let Some(path) = path else {
            return self.without(
                StatusCode::BAD_REQUEST,
                "That is no name",
                "Kubernetes would not allow it.",
            );
        };
        let mut answer = reply(StatusCode::SEE_OTHER, HTML, String::new());
        answer.headers_mut().insert(header::LOCATION, path);
        answer
    }

    fn without(&self, status: StatusCode, title: &str, why: &str) -> Response<String> {
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

fn reply(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
