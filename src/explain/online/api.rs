//! Paths in, answers out: `GET /explain/v1/…`, and the page at `/explain/`.
//!
//! In: a request of a known user. Out: a [`Reply`]. First it is asked whether this one may get the object that the path names;
//! one who may not is told the same whether there is such an object or not, and nothing is looked up. Of each user only so
//! many requests are answered at once.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use super::{
    Knowledge, access,
    answers::{Trouble, etag, etag_of, forbidden, object, protect},
    desk::Desk,
    openapi,
    places::Places,
    site, summary, watching,
};
use crate::{
    explain::{
        page::links::is_name,
        reasons,
        report::{API_VERSION, Verdict},
        subject::Subject,
    },
    http::{Answer, Personal, Reply, Router, Sent, Visit},
};

/// Where all of it is.
pub const PATH: &str = "/explain";
/// What the paths of the API begin with.
pub(super) const API: &str = "/explain/v1/";

/// Requests that are answered at once, of all and of one user.
const REQUESTS: (usize, usize) = (64, 8);
/// Watches at once, of all and of one user.
const WATCHES: (usize, usize) = (32, 4);

/// See the module. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Online {
    desk: Arc<Desk>,
    requests: Places,
    watches: Places,
}

/// What a path of the API asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// An object.
    Object(Subject),
    /// What waits now.
    Summary,
    /// All codes.
    Reasons,
    /// What this API is.
    OpenApi,
}

impl Asked {
    /// From what follows [`API`].
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        if !parts.iter().all(|part| is_name(part)) {
            return None;
        }
        match parts.as_slice() {
            ["summary"] => Some(Self::Summary),
            ["reasons"] => Some(Self::Reasons),
            ["openapi.json"] => Some(Self::OpenApi),
            ["namespaces", namespace, kind @ ("persistentvolumeclaims" | "pods"), name] => {
                Subject::new(kind, namespace, name).ok().map(Self::Object)
            }
            [kind @ ("persistentvolumes" | "volumeattachments" | "nodes" | "storageclasses"), name] => {
                Subject::new(kind, "", name).ok().map(Self::Object)
            }
            _ => None,
        }
    }
}

impl Personal for Online {
    fn answer(&self, visit: Visit) -> BoxFuture<'static, Reply> {
        let online = self.clone();
        Box::pin(async move { online.reply(visit).await })
    }
}

impl Online {
    /// Answers from what the daemon knows.
    pub(crate) fn new(knowledge: Knowledge) -> Self {
        let (requests, watches) = (Places::new(REQUESTS.0, REQUESTS.1), Places::new(WATCHES.0, WATCHES.1));
        Self { desk: Arc::new(Desk::new(knowledge)), requests, watches }
    }

    async fn reply(&self, visit: Visit) -> Reply {
        let Some(_place) = self.requests.take(visit.rights.user()) else {
            return text(
                StatusCode::TOO_MANY_REQUESTS,
                "too many of your requests are being answered: try later\n",
            );
        };
        let path = visit.head.uri.path();
        let Some(rest) = path.strip_prefix(API) else {
            return site::reply(&self.desk, &visit).await;
        };
        match Asked::parse(rest) {
            None => Reply { sent: Sent::of(Router::not_found()), known: false },
            Some(Asked::OpenApi) => fixed(&visit, &openapi::document(), false),
            Some(Asked::Reasons) => fixed(&visit, &catalogue(), false),
            Some(Asked::Summary) => match summary::of(&self.desk, &visit.rights).await {
                Ok(summary) => {
                    let is_known = !summary.is_empty();
                    let etag = etag(&summary.without_time());
                    document(&visit, &summary, &etag, StatusCode::OK, is_known)
                }
                Err(trouble) => refused(&trouble, path),
            },
            Some(Asked::Object(subject)) if watches(&visit) => self.watch(subject, &visit).await,
            Some(Asked::Object(subject)) => match object(&self.desk, &subject, &visit.rights).await {
                Ok((explanation, _)) => {
                    let status = status(explanation.verdict);
                    let known = status != StatusCode::FORBIDDEN;
                    document(&visit, &explanation, &etag_of(&explanation), status, known)
                }
                Err(trouble) => refused(&trouble, path),
            },
        }
    }

    /// Tells of an object again whenever the answer changes.
    async fn watch(&self, subject: Subject, visit: &Visit) -> Reply {
        let path = visit.head.uri.path();
        match visit.rights.may_ask_for(&access::resource(&subject.object())).await {
            Ok(true) => {}
            Ok(false) => {
                let forbidden = forbidden(&subject);
                return document(visit, &forbidden, &etag_of(&forbidden), StatusCode::FORBIDDEN, false);
            }
            Err(denial) => return refused(&Trouble::from(denial), path),
        }
        let Some(place) = self.watches.take(visit.rights.user()) else {
            return text(
                StatusCode::TOO_MANY_REQUESTS,
                "too many watches: end one, or ask again and again\n",
            );
        };
        let sent = watching::begin(Arc::clone(&self.desk), subject, visit.rights.clone(), place);
        Reply { sent, known: true }
    }
}

/// All codes, with their pages.
fn catalogue() -> serde_json::Value {
    let page = |code: &'static str| json!({ "code": code, "page": reasons::page(code) });
    json!({
        "apiVersion": API_VERSION, "kind": "Reasons", "reasons": reasons::codes().map(page).collect::<Vec<_>>(),
    })
}

fn watches(visit: &Visit) -> bool {
    let query = visit.head.uri.query().unwrap_or_default();
    let is_asked = |(key, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
        key == "watch" && matches!(&*value, "1" | "true")
    };
    visit.head.method == Method::GET && form_urlencoded::parse(query.as_bytes()).any(is_asked)
}

/// What is not there, or not to be seen, is said to programs, too.
fn status(verdict: Verdict) -> StatusCode {
    match verdict {
        Verdict::Healthy | Verdict::Waiting | Verdict::Blocked => StatusCode::OK,
        Verdict::NotFound => StatusCode::NOT_FOUND,
        Verdict::Forbidden => StatusCode::FORBIDDEN,
    }
}

fn fixed(visit: &Visit, value: &serde_json::Value, known: bool) -> Reply {
    document(visit, value, &etag(value), StatusCode::OK, known)
}

/// A document, unless the one who asks has it already.
fn document(visit: &Visit, value: &impl Serialize, etag: &str, status: StatusCode, known: bool) -> Reply {
    let has_it = status == StatusCode::OK
        && visit.head.headers.get_all(header::IF_NONE_MATCH).iter().any(|known| {
            let known = known.to_str().unwrap_or_default();
            known.split(',').map(str::trim).any(|known| known == "*" || weak(known) == weak(etag))
        });
    let answer = if has_it {
        Answer { status: StatusCode::NOT_MODIFIED, content_type: "application/json", body: String::new() }
    } else {
        Answer { status, ..Answer::json(value) }
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(header::ETAG, etag);
    }
    protect(&mut headers);
    Reply { sent: Sent::of(answer).with_headers(headers), known }
}

fn weak(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag)
}

fn refused(trouble: &Trouble, path: &str) -> Reply {
    let (status, told) = trouble.told(path);
    text(status, &told)
}

fn text(status: StatusCode, told: &str) -> Reply {
    Reply { sent: Sent::of(Answer::text(status, told.to_owned())), known: false }
}
