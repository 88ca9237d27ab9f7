//! Health checks in Kubernetes' text format.
//!
//! In: named checks. Out: `ok`, or a line per check with `?verbose` and whenever one fails;
//! `?exclude=<name>` leaves a check out. Reasons and remarks may name objects, holders and addresses, so
//! they are for those alone who may read the path; to everybody else, as with the API server, only what
//! is checked and whether it is well.

use std::fmt::Write;

use http::StatusCode;

use super::Answer;

/// What a check found: fine, with a remark or without, or the reason why not.
pub type Finding = Result<Option<String>, String>;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Whoever reaches the port.
    Everybody,
    /// Somebody who may read the path.
    Known,
}

/// A named check.
pub struct Check {
    name: String,
    find: Box<dyn Fn() -> Finding + Send + Sync>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Check").field(&self.name).finish()
    }
}

impl Check {
    /// A check that runs the given function each time.
    #[must_use]
    pub fn new(name: impl Into<String>, find: impl Fn() -> Finding + Send + Sync + 'static) -> Self {
        Self { name: name.into(), find: Box::new(find) }
    }
}

/// The checks of one endpoint.
#[derive(Debug)]
pub struct Checks {
    endpoint: &'static str,
    checks: Vec<Check>,
}

impl Checks {
    /// The checks of the endpoint with the given name, such as `readyz`.
    #[must_use]
    pub fn new(endpoint: &'static str, checks: Vec<Check>) -> Self {
        Self { endpoint, checks }
    }

    /// Runs the checks and answers.
    ///
    /// Format: apiserver's server/healthz/healthz.go, handleRootHealth.
    #[must_use]
    pub fn answer(&self, query: Option<&str>, audience: Audience) -> Answer {
        let withheld = audience == Audience::Everybody;
        let mut verbose = false;
        let mut excluded = Vec::new();
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("verbose", _) => verbose = true,
                ("exclude", name) => excluded.push(name),
                _ => {}
            }
        }
        let mut lines = String::new();
        let mut healthy = true;
        // Writing to a string cannot fail.
        for check in &self.checks {
            let name = &check.name;
            let _ = if excluded.contains(&name.as_str()) {
                writeln!(lines, "[+]{name} excluded: ok")
            } else {
                match (check.find)() {
                    Ok(Some(_)) if withheld => writeln!(lines, "[+]{name} ok"),
                    Ok(None) => writeln!(lines, "[+]{name} ok"),
                    Ok(Some(remark)) => writeln!(lines, "[+]{name} ok: {remark}"),
                    Err(reason) => {
                        healthy = false;
                        let reason = if withheld { "reason withheld" } else { reason.as_str() };
                        writeln!(lines, "[-]{name} failed: {reason}")
                    }
                }
            };
        }
        for name in excluded {
            if !self.checks.iter().any(|check| check.name == name) {
                let _ =
                    writeln!(lines, "warn: some health checks cannot be excluded: no matches for {name:?}");
            }
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
        let cases: [(Vec<Check>, Option<&str>, u16, &str); 6] = [
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
