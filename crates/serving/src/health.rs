//! Health checks in Kubernetes' text format.
//!
//! In: named checks. Out: `ok`, or a line per check with `?verbose` and whenever one fails;
//! `?exclude=<name>` leaves a check out. Reasons and remarks may name objects, holders and addresses, so
//! they are for those alone who may read the path; to all others, as with the API server, only what
//! is checked and whether it is well.

use std::{collections::BTreeSet, fmt::Write};

use http::StatusCode;

use super::answer::Answer;
use crate::slis::Slis;

/// Bytes of a query. All names there are have some 400; what is excluded is repeated in the answer.
const MAX_QUERY: usize = 1024;

/// What a check found: fine, with a remark or without, or the reason why not.
pub type Finding = Result<Option<String>, String>;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every client that reaches the port.
    Everybody,
    /// A user who may read the path.
    Known,
    /// The process itself, which is told what is so now.
    Process,
}

/// A named check.
#[derive(derive_more::Debug)]
#[debug("Check({name})")]
pub struct Check {
    name: String,
    find: Box<dyn Fn() -> Finding + Send + Sync>,
}

impl Check {
    /// A check that runs the given function each time.
    pub fn new(name: impl Into<String>, find: impl Fn() -> Finding + Send + Sync + 'static) -> Self {
        Self { name: name.into(), find: Box::new(find) }
    }
}

/// What the query of a request asks for.
struct Query {
    verbose: bool,
    excluded: BTreeSet<String>,
}

impl Query {
    // apiserver: server/healthz/healthz.go, handleRootHealth and getExcludedChecks.
    fn parse(query: &str) -> Self {
        let mut parsed = Self { verbose: false, excluded: BTreeSet::new() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "verbose" => parsed.verbose = true,
                "exclude" => {
                    parsed.excluded.insert(value.into_owned());
                }
                _ => {}
            }
        }
        parsed
    }
}

/// Whether a query asks for a line per check.
pub(crate) fn is_verbose(query: Option<&str>) -> bool {
    let query = query.filter(|query| query.len() <= MAX_QUERY);
    query.is_some_and(|query| Query::parse(query).verbose)
}

/// The checks of one endpoint.
#[derive(Debug)]
pub struct Checks {
    endpoint: &'static str,
    all: Vec<Check>,
    slis: Option<Slis>,
}

impl Checks {
    /// The checks of the endpoint with the given name, such as `readyz`.
    pub fn new(endpoint: &'static str, checks: Vec<Check>) -> Self {
        Self { endpoint, all: checks, slis: None }
    }

    /// The same, whose findings are counted each time.
    #[must_use]
    pub fn counted_in(self, slis: Slis) -> Self {
        Self { slis: Some(slis), ..self }
    }

    fn find(&self, check: &Check) -> Finding {
        let finding = (check.find)();
        if let Some(slis) = &self.slis {
            slis.observe(&check.name, self.endpoint, finding.is_ok());
        }
        finding
    }

    /// Runs the checks and answers.
    ///
    /// Format: apiserver's server/healthz/healthz.go, handleRootHealth.
    pub fn answer(&self, query: Option<&str>, audience: Audience) -> Answer {
        let query = query.unwrap_or_default();
        if query.len() > MAX_QUERY {
            return Answer::text(StatusCode::URI_TOO_LONG, "the query is too long\n".to_owned());
        }
        let Query { verbose, excluded } = Query::parse(query);
        let is_told = audience != Audience::Everybody;
        let mut lines = String::new();
        let mut healthy = true;
        // Writing to a string cannot fail.
        for check in &self.all {
            let name = &check.name;
            if excluded.contains(name) {
                let _ = writeln!(lines, "[+]{name} excluded: ok");
                continue;
            }
            let finding = self.find(check);
            healthy &= finding.is_ok();
            let _ = match finding {
                Ok(Some(remark)) if is_told => writeln!(lines, "[+]{name} ok: {remark}"),
                Ok(_) => writeln!(lines, "[+]{name} ok"),
                Err(reason) if is_told => writeln!(lines, "[-]{name} failed: {reason}"),
                Err(_) => writeln!(lines, "[-]{name} failed: reason withheld"),
            };
        }
        let unknown = excluded.iter().filter(|name| !self.all.iter().any(|check| check.name == **name));
        let unknown: Vec<String> = unknown.map(|name| format!("{name:?}")).collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            let _ = writeln!(lines, "warn: some health checks cannot be excluded: no matches for {unknown}");
        }
        let endpoint = self.endpoint;
        if !healthy {
            let _ = writeln!(lines, "{endpoint} check failed");
            return Answer::text(StatusCode::INTERNAL_SERVER_ERROR, lines);
        }
        if verbose {
            let _ = writeln!(lines, "{endpoint} check passed");
            return Answer::text(StatusCode::OK, lines);
        }
        Answer::text(StatusCode::OK, "ok".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_api_server() {
        let well = || Check::new("ping", || Ok(None));
        let remark = || Check::new("leader-election", || Ok(Some("standby".to_owned())));
        let ill = || Check::new("watch-pods", || Err("connection refused".to_owned()));
        let too_long = "exclude&".repeat(MAX_QUERY);
        let cases: [(Vec<Check>, Option<&str>, u16, &str); 8] = [
            (vec![well(), remark()], None, 200, "ok"),
            (
                vec![well(), remark()],
                Some("verbose"),
                200,
                "[+]ping ok\n[+]leader-election ok: standby\nreadyz check passed\n",
            ),
            (
                vec![well(), ill()],
                None,
                500,
                "[+]ping ok\n[-]watch-pods failed: connection refused\nreadyz check failed\n",
            ),
            (vec![well(), ill()], Some("exclude=watch-pods"), 200, "ok"),
            (
                vec![well(), ill()],
                Some("verbose=true&exclude=watch-pods"),
                200,
                "[+]ping ok\n[+]watch-pods excluded: ok\nreadyz check passed\n",
            ),
            (
                vec![well()],
                Some("exclude=pong&verbose"),
                200,
                "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"pong\"\n\
                 readyz check passed\n",
            ),
            (
                vec![well()],
                Some("exclude=b&exclude=a%20b&exclude=b&exclude=ping&verbose"),
                200,
                "[+]ping excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"a b\", \"b\"\n\
                 readyz check passed\n",
            ),
            (vec![well()], Some(&too_long), 414, "the query is too long\n"),
        ];
        for (checks, query, status, body) in cases {
            let answer = Checks::new("readyz", checks).answer(query, Audience::Known);
            assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body), "{query:?}");
        }
    }

    #[test]
    fn strangers_are_told_what_is_wrong_and_not_why() {
        let checks = || {
            vec![
                Check::new("leader-election", || Ok(Some("held by node-7".to_owned()))),
                Check::new("watch-pods", || Err("pods \"a/b\" is forbidden".to_owned())),
            ]
        };
        let answer = |query| Checks::new("readyz", checks()).answer(query, Audience::Everybody);
        let failed = "[+]leader-election ok\n[-]watch-pods failed: reason withheld\nreadyz check failed\n";
        assert_eq!(answer(None).body, failed);
        assert_eq!(answer(Some("verbose")).body, failed);
        let passed = "[+]leader-election ok\n[+]watch-pods excluded: ok\nreadyz check passed\n";
        assert_eq!(answer(Some("verbose&exclude=watch-pods")).body, passed);
    }
}
