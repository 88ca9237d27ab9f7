//! Which path is answered by what.

use http::{Method, StatusCode};
use serde_json::Value;

use super::health::Checks;

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

type Handler = Box<dyn Fn(&str, Option<&str>) -> Answer + Send + Sync>;

/// All paths.
#[derive(Default)]
pub struct Router {
    exact: Vec<(&'static str, Handler)>,
    below: Vec<(&'static str, Handler)>,
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths =
            |routes: &[(&'static str, Handler)]| routes.iter().map(|(path, _)| *path).collect::<Vec<_>>();
        f.debug_struct("Router")
            .field("exact", &paths(&self.exact))
            .field("below", &paths(&self.below))
            .finish()
    }
}

impl Router {
    /// Answers one path. The function gets the query.
    #[must_use]
    pub fn route(
        mut self,
        path: &'static str,
        answer: impl Fn(Option<&str>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.exact.push((path, Box::new(move |_, query| answer(query))));
        self
    }

    /// Answers one path with health checks.
    #[must_use]
    pub fn checks(self, path: &'static str, checks: Checks) -> Self {
        self.route(path, move |query| checks.answer(query))
    }

    /// Answers every path that begins with `prefix` (which ends in `/`) with JSON. The function gets
    /// the rest of the path; `None` is a 404.
    #[must_use]
    pub fn json(
        mut self,
        prefix: &'static str,
        answer: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let handler = move |rest: &str, _: Option<&str>| match answer(rest) {
            Some(value) => Answer::json(&value),
            None => not_found(),
        };
        self.below.push((prefix, Box::new(handler)));
        self
    }

    /// Answers a request.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Answer {
        let exact = self.exact.iter().find(|(route, _)| *route == path).map(|(_, handler)| (handler, ""));
        let found = exact.or_else(|| {
            self.below.iter().find_map(|(prefix, handler)| Some((handler, path.strip_prefix(prefix)?)))
        });
        let Some((handler, rest)) = found else { return not_found() };
        if method != Method::GET {
            return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n".to_owned());
        }
        handler(rest, query)
    }
}

fn not_found() -> Answer {
    Answer::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let router = Router::default()
            .route("/metrics", |query| Answer::text(StatusCode::OK, query.unwrap_or("none").to_owned()))
            .json("/debug/claims/", |rest| (rest == "ns/a").then(|| json!({ "claim": rest })));
        let cases = [
            (Method::GET, "/metrics", 200, "none"),
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
