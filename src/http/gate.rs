//! A request with its peer in, an answer out: what everybody may see, and what only some may.
//!
//! Open paths are answered to everybody, without reasons, and without a look at who asks. Only who asks an open
//! path for details (`?verbose`) and shows credentials is asked about, and told the reasons if it may read the
//! path. Everything else is for those alone whom [`DelegatedAuth`] admits.

use std::sync::Arc;

use http::{Method, header, request};

use super::{
    auth::{DelegatedAuth, TlsPeer},
    health::{Audience, is_verbose},
    measures::Measures,
    options::Options,
    pages::{Pages, Sent},
    router::{Answer, Router},
};

/// An answer, and whether it was given to somebody known.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub sent: Sent,
    /// Whether the peer has shown that it may read this.
    pub known: bool,
}

/// Answers requests.
#[derive(Debug)]
pub struct Gate {
    pages: Pages,
    auth: DelegatedAuth,
    options: Options,
    measures: Measures,
}

impl Gate {
    /// A gate before these pages.
    #[must_use]
    pub fn new(pages: Pages, auth: DelegatedAuth, options: Options, measures: Measures) -> Self {
        Self { pages, auth, options, measures }
    }

    /// The pages behind it, for who is in the same process.
    #[must_use]
    pub fn router(&self) -> &Arc<Router> {
        self.pages.router()
    }

    /// How to serve.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What is counted.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Who is let in.
    #[must_use]
    pub fn auth(&self) -> &DelegatedAuth {
        &self.auth
    }

    /// Answers a request.
    pub async fn answer(&self, peer: &TlsPeer, head: &request::Parts) -> Reply {
        let reply = self.reply(peer, head).await;
        self.measures.requested(reply.sent.answer().status);
        reply
    }

    async fn reply(&self, peer: &TlsPeer, head: &request::Parts) -> Reply {
        let (path, query) = (head.uri.path(), head.uri.query());
        let verb = head.method.as_str().to_ascii_lowercase();
        let open = self.options.is_open(path);
        // A probe must wait for nothing, whatever the state of the API server and of others' certificates.
        let is_probe = open && !(is_verbose(query) && DelegatedAuth::has_credentials(peer, &head.headers));
        let admitted =
            if is_probe { None } else { Some(self.auth.admit(peer, &head.headers, &verb, path).await) };
        let audience = match admitted {
            Some(Ok(_)) => Audience::Known,
            Some(Err(denial)) if !open => {
                let (status, text) = denial.told(path);
                return Reply { sent: Sent::of(Answer::text(status, text)), known: false };
            }
            Some(Err(_)) | None => Audience::Everybody,
        };
        let known = audience == Audience::Known;
        let Some(index) = self.pages.router().find(path) else {
            return Reply { sent: Sent::of(Router::not_found()), known };
        };
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Reply { sent: Sent::of(Router::method_not_allowed()), known };
        }
        let router = self.pages.router();
        let answer = router.check(index, query, audience).or_else(|| router.negotiate(index, &accept(head)));
        let sent = match answer {
            Some(answer) => Sent::of(answer),
            None => self.pages.get(index).await,
        };
        Reply { sent, known }
    }
}

/// What the request accepts, of all its headers.
fn accept(head: &request::Parts) -> String {
    let headers = head.headers.get_all(header::ACCEPT).iter();
    headers.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use http::Request;
    use rcgen::ExtendedKeyUsagePurpose;

    use super::*;
    use crate::{
        http::{
            auth::tests::Cluster,
            health::{Check, Checks},
            options::for_tests,
            tls::tests::{authority, client},
        },
        metrics::Metrics,
    };

    fn gate(cluster: &Cluster) -> Gate {
        let checks = |name| Checks::new(name, vec![Check::new("ping", || Ok(Some("reason".to_owned())))]);
        let router = Router::default().checks("/livez", checks("livez")).checks("/readyz", checks("readyz"));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = for_tests();
        Gate::new(Pages::new(Arc::new(router)), cluster.auth(&options), options, measures)
    }

    async fn ask(gate: &Gate, peer: &TlsPeer, path: &str, token: &str) -> (u16, String) {
        let request = Request::get(path).header("authorization", format!("Bearer {token}"));
        let (head, ()) = request.body(()).unwrap().into_parts();
        let answer = gate.answer(peer, &head).await.sent.answer().clone();
        (answer.status.as_u16(), answer.body)
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_is_answered_without_a_look_at_what_it_shows() {
        let cluster = Cluster::default();
        cluster.away.store(true, Ordering::SeqCst);
        let gate = gate(&cluster);
        let (certificate, _) = client(&authority("foreign"), "a", ExtendedKeyUsagePurpose::ClientAuth);
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]));
        let begun = tokio::time::Instant::now();
        for number in 0..100 {
            assert_eq!(ask(&gate, &peer, "/livez", &format!("bad{number}")).await, (200, "ok".to_owned()));
        }
        assert_eq!(cluster.counts(), (0, 0));
        assert_eq!(cluster.lookups.load(Ordering::SeqCst), 0);
        assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    }

    /// A scraper that would rather have OpenMetrics gets the classic format.
    #[tokio::test(start_paused = true)]
    async fn a_page_has_one_form_whatever_is_accepted_and_what_is_negotiated_has_the_one_asked_for() {
        let options = Options { always_allow_paths: vec!["/*".to_owned()], ..for_tests() };
        let router = Router::default()
            .page("/metrics", || Answer::text(http::StatusCode::OK, "up 1\n".to_owned()))
            .negotiated("/flagz", |accept| Answer::text(http::StatusCode::OK, accept.to_owned()));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(Pages::new(Arc::new(router)), auth, options, measures);
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::default());
        for (path, expected) in [("/metrics", "up 1\n"), ("/flagz", "application/openmetrics-text,*/*;q=0.1")]
        {
            let request = Request::get(path)
                .header("accept", "application/openmetrics-text")
                .header("accept", "*/*;q=0.1");
            let (head, ()) = request.body(()).unwrap().into_parts();
            let answer = gate.answer(&peer, &head).await.sent.answer().clone();
            assert_eq!((answer.content_type, answer.body.as_str()), ("text/plain; charset=utf-8", expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_an_open_path_for_reasons_has_to_be_known() {
        let gate = gate(&Cluster::default());
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::default());
        let told = "[+]ping ok: reason\nreadyz check passed\n".to_owned();
        assert_eq!(ask(&gate, &peer, "/readyz?verbose", "good").await, (200, told));
        for (path, token) in [("/readyz?verbose", "bad"), ("/readyz?verbose", ""), ("/livez?verbose", "good")]
        {
            let (status, body) = ask(&gate, &peer, path, token).await;
            assert!(status == 200 && body.starts_with("[+]ping ok\n"), "{path} {token}: {body}");
        }
    }
}
