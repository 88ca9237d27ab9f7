//! Which path is answered by what.

use http::{Method, StatusCode};
use serde_json::Value;

use super::health::{Audience, Checks};

/// An answer with its status and content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Body.
    pub body: String,
}

impl Answer {
    /// An answer in plain text.
    #[must_use]
    pub fn text(status: StatusCode, body: String) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// A JSON document.
    #[must_use]
    pub fn json(value: &Value) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: format!("{value:#}\n") }
    }
}

/// What answers a path.
enum Handler {
    /// Made from what may be much, so at most one at a time: gets the rest of the path.
    Page(Box<dyn Fn(&str) -> Answer + Send + Sync>),
    /// Cheap.
    Checks(Checks),
}

struct Route {
    path: &'static str,
    /// Whether it also answers what begins with it.
    below: bool,
    handler: Handler,
}

/// A route for a path, and what the path has beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Position among the routes.
    pub index: usize,
    /// The rest of the path.
    pub rest: &'a str,
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
        let handler = Handler::Page(Box::new(move |_| answer()));
        self.routes.push(Route { path, below: false, handler });
        self
    }

    /// Answers one path with health checks.
    #[must_use]
    pub fn checks(mut self, path: &'static str, checks: Checks) -> Self {
        self.routes.push(Route { path, below: false, handler: Handler::Checks(checks) });
        self
    }

    /// Answers every path that begins with `prefix` with JSON. The function gets the rest of the path;
    /// `None` is a 404.
    #[must_use]
    pub fn json(
        mut self,
        prefix: &'static str,
        answer: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let page = move |rest: &str| answer(rest).map_or_else(Self::not_found, |value| Answer::json(&value));
        self.routes.push(Route { path: prefix, below: true, handler: Handler::Page(Box::new(page)) });
        self
    }

    /// How many routes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.routes.len()
    }

    /// The route of a path: of its name before one that it begins with.
    #[must_use]
    pub fn find<'a>(&self, path: &'a str) -> Option<Found<'a>> {
        let exact = self.routes.iter().position(|route| !route.below && route.path == path);
        exact.map(|index| Found { index, rest: "" }).or_else(|| {
            let mut below = self.routes.iter().enumerate().filter(|(_, route)| route.below);
            below.find_map(|(index, route)| Some(Found { index, rest: path.strip_prefix(route.path)? }))
        })
    }

    /// Answers with health checks; `None` if the route is a page.
    #[must_use]
    pub fn check(&self, found: &Found<'_>, query: Option<&str>, audience: Audience) -> Option<Answer> {
        match &self.routes.get(found.index)?.handler {
            Handler::Checks(checks) => Some(checks.answer(query, audience)),
            Handler::Page(_) => None,
        }
    }

    /// Makes a page. May take long.
    #[must_use]
    pub fn make(&self, index: usize, rest: &str) -> Answer {
        match self.routes.get(index).map(|route| &route.handler) {
            Some(Handler::Page(page)) => page(rest),
            Some(Handler::Checks(_)) | None => Self::not_found(),
        }
    }

    /// Answers a request of somebody in the same process.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Answer {
        let Some(found) = self.find(path) else { return Self::not_found() };
        if method != Method::GET {
            return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n".to_owned());
        }
        self.check(&found, query, Audience::Known).unwrap_or_else(|| self.make(found.index, found.rest))
    }

    /// The answer for paths that there are not.
    #[must_use]
    pub fn not_found() -> Answer {
        Answer::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let router = Router::default()
            .page("/metrics", || Answer::text(StatusCode::OK, "up 1\n".to_owned()))
            .json("/debug/claims/", |rest| (rest == "ns/a").then(|| json!({ "claim": rest })));
        let cases = [
            (Method::GET, "/metrics", 200, "up 1\n"),
            (Method::POST, "/metrics", 405, "only GET is answered\n"),
            (Method::GET, "/metrics/", 404, "404 page not found\n"),
            (Method::POST, "/nowhere", 404, "404 page not found\n"),
            (Method::GET, "/debug/claims/ns/a", 200, "{\n  \"claim\": \"ns/a\"\n}\n"),
            (Method::GET, "/debug/claims/ns/b", 404, "404 page not found\n"),
            (Method::GET, "/debug/claims", 404, "404 page not found\n"),
        ];
        for (method, path, status, body) in cases {
            let answer = router.answer(&method, path, None);
            assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body), "{method} {path}");
        }
    }
}
