//! Which path is answered by what.

use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, StatusCode};
use serde::Serialize;

use super::{
    answer::Answer,
    health::{Audience, Checks},
};

/// What answers a path.
enum Handler {
    /// Made from what may be much, so at most one at a time.
    Page(Box<dyn Fn() -> Answer + Send + Sync>),
    /// The same, or a part of it that a query asks for.
    Rows(Box<MakeRows>),
    /// Cheap.
    Checks(Checks),
    /// Shown, and set while the process runs.
    Setting(Setting),
    /// Takes a while.
    Slow(Slow),
    /// Cheap, and in the form that is asked for.
    Negotiated(Box<dyn Fn(&str) -> Answer + Send + Sync>),
}

/// What takes a while to make, and is made for each who asks.
pub struct Slow {
    /// How long it takes beyond the time of any page, at the most.
    pub longest: Duration,
    /// Makes it for a query: bytes, or why there are none.
    pub make: Box<MakeSlowly>,
    /// What the bytes are.
    pub content_type: &'static str,
}

/// Makes a page, or the part of it that a query asks for.
pub type MakeRows = dyn Fn(Option<&str>) -> Answer + Send + Sync;

/// See [`Slow::make`].
pub type MakeSlowly =
    dyn Fn(Option<&str>) -> BoxFuture<'static, Result<Vec<u8>, (StatusCode, String)>> + Send + Sync;

/// What can be set over HTTP: the text of a request's body in, a sentence out, or what is wrong with it.
pub struct Setting {
    /// As it is.
    pub show: Box<Show>,
    /// As it is from now on.
    pub set: Box<Set>,
}

/// See [`Setting::show`].
pub type Show = dyn Fn() -> Result<String, String> + Send + Sync;

/// See [`Setting::set`].
pub type Set = dyn Fn(&str) -> Result<String, String> + Send + Sync;

struct Route {
    path: &'static str,
    handler: Handler,
}

/// All paths.
#[derive(Default)]
pub struct Router {
    routes: Vec<Route>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.routes.iter().map(|route| route.path)).finish()
    }
}

impl Router {
    /// Answers one path.
    #[must_use]
    pub fn page(mut self, path: &'static str, answer: impl Fn() -> Answer + Send + Sync + 'static) -> Self {
        self.routes.push(Route { path, handler: Handler::Page(Box::new(answer)) });
        self
    }

    /// Answers one path, and to a query with a part.
    #[must_use]
    pub fn rows(mut self, path: &'static str, answer: Box<MakeRows>) -> Self {
        self.routes.push(Route { path, handler: Handler::Rows(answer) });
        self
    }

    /// Whether a query asks for a part of a page.
    #[must_use]
    pub fn has_parts(&self, index: usize) -> bool {
        self.routes.get(index).is_some_and(|route| matches!(route.handler, Handler::Rows(_)))
    }

    /// Answers one path with health checks.
    #[must_use]
    pub fn checks(mut self, path: &'static str, checks: Checks) -> Self {
        self.routes.push(Route { path, handler: Handler::Checks(checks) });
        self
    }

    /// Shows and sets something under one path.
    #[must_use]
    pub fn setting(mut self, path: &'static str, setting: Setting) -> Self {
        self.routes.push(Route { path, handler: Handler::Setting(setting) });
        self
    }

    /// Answers one path with what takes a while.
    #[must_use]
    pub fn slow(mut self, path: &'static str, slow: Slow) -> Self {
        self.routes.push(Route { path, handler: Handler::Slow(slow) });
        self
    }

    /// What takes a while to make.
    #[must_use]
    pub fn slowly(&self, index: usize) -> Option<&Slow> {
        match &self.routes.get(index)?.handler {
            Handler::Slow(slow) => Some(slow),
            _ => None,
        }
    }

    /// What is set under a path.
    #[must_use]
    pub fn settable(&self, index: usize) -> Option<&Setting> {
        match &self.routes.get(index)?.handler {
            Handler::Setting(setting) => Some(setting),
            _ => None,
        }
    }

    /// Answers one path in the form that the header `Accept` asks for; empty if there is none.
    #[must_use]
    pub fn negotiated(
        mut self,
        path: &'static str,
        answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.routes.push(Route { path, handler: Handler::Negotiated(Box::new(answer)) });
        self
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.routes.iter().map(|route| route.path)
    }

    /// Answers one path with JSON.
    #[must_use]
    pub fn json<Document: Serialize>(
        self,
        path: &'static str,
        answer: impl Fn() -> Document + Send + Sync + 'static,
    ) -> Self {
        self.page(path, move || Answer::json(&answer()))
    }

    /// How many routes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.routes.len()
    }

    /// Position of a path's route.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<usize> {
        self.routes.iter().position(|route| route.path == path)
    }

    /// Answers with health checks, or with what is set; `None` if the route is a page.
    #[must_use]
    pub fn check(&self, index: usize, query: Option<&str>, audience: Audience) -> Option<Answer> {
        match &self.routes.get(index)?.handler {
            Handler::Checks(checks) => Some(checks.answer(query, audience)),
            Handler::Setting(setting) => Some(told((setting.show)())),
            Handler::Page(_) | Handler::Rows(_) | Handler::Negotiated(_) | Handler::Slow(_) => None,
        }
    }

    /// Answers in the form that is asked for; `None` if there is but one.
    #[must_use]
    pub fn negotiate(&self, index: usize, accept: &str) -> Option<Answer> {
        match &self.routes.get(index)?.handler {
            Handler::Negotiated(answer) => Some(answer(accept)),
            _ => None,
        }
    }

    /// Makes a page, or a part of it. May take long.
    #[must_use]
    pub fn make(&self, index: usize, query: Option<&str>) -> Answer {
        match self.routes.get(index).map(|route| &route.handler) {
            Some(Handler::Page(page)) => page(),
            Some(Handler::Rows(rows)) => rows(query),
            Some(Handler::Checks(_) | Handler::Negotiated(_) | Handler::Setting(_) | Handler::Slow(_))
            | None => Self::not_found(),
        }
    }

    /// Answers a request of the same process.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Answer {
        let Some(index) = self.find(path) else { return Self::not_found() };
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Self::method_not_allowed();
        }
        self.check(index, query, Audience::Known)
            .or_else(|| self.negotiate(index, ""))
            .unwrap_or_else(|| self.make(index, query))
    }

    /// The answer to other methods than GET and HEAD.
    #[must_use]
    pub fn method_not_allowed() -> Answer {
        Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned())
    }

    /// The answer for paths that there are not.
    #[must_use]
    pub fn not_found() -> Answer {
        Answer::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
    }
}

/// What came of showing or setting something.
///
/// Format: apiserver's server/routes/flags.go, StringFlagPutHandler.
#[must_use]
pub fn told(result: Result<String, String>) -> Answer {
    let (status, text) = match result {
        Ok(text) => (StatusCode::OK, text),
        Err(text) => (StatusCode::BAD_REQUEST, text),
    };
    Answer { status, content_type: "text/plain", body: text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let router = Router::default()
            .page("/metrics", || Answer::text(StatusCode::OK, "up 1\n".to_owned()))
            .json("/debug/claims", || json!({ "claims": ["a"] }));
        let cases = [
            (Method::GET, "/metrics", 200, "up 1\n"),
            (Method::HEAD, "/metrics", 200, "up 1\n"),
            (Method::POST, "/metrics", 405, "only GET and HEAD are answered\n"),
            (Method::GET, "/metrics/", 404, "404 page not found\n"),
            (Method::POST, "/nowhere", 404, "404 page not found\n"),
            (Method::GET, "/debug/claims", 200, "{\"claims\":[\"a\"]}\n"),
            (Method::GET, "/debug/claims/a", 404, "404 page not found\n"),
        ];
        for (method, path, status, body) in cases {
            let answer = router.answer(&method, path, None);
            assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body), "{method} {path}");
        }
    }
}
