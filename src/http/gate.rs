//! A request with its peer in, an answer out: what every client may see, and what only some may.
//!
//! Open paths are answered to every client, without reasons, and without a look at who asks. Only who asks an open
//! path for details (`?verbose`) and shows credentials is asked about, and told the reasons if it may read the
//! path. Everything else is for those alone whom [`DelegatedAuth`] admits.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode, header, request};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Body, Bytes};

use super::{
    answer::{Answer, Reply, Sent},
    auth::{DelegatedAuth, Denial, TlsPeer},
    health::{Audience, is_verbose},
    measures::Measures,
    options::Options,
    pages::Pages,
    router::{Router, told},
};

/// Bytes of what is set: more than any filter of the log needs.
const LONGEST_SETTING: usize = 4 * 1024;

/// The verb that upstream asks for of a PUT to a path that is no resource is the method's name; and the one that
/// Kubernetes has for changing what there is. Either right will do.
// apiserver: pkg/endpoints/request/requestinfo.go, NewRequestInfo.
const VERBS_OF_PUT: [&str; 2] = ["put", "update"];

/// Answers requests.
#[derive(Debug)]
pub struct Gate {
    pages: Pages,
    auth: Arc<DelegatedAuth>,
    options: Options,
    measures: Measures,
}

impl Gate {
    /// A gate before these pages.
    #[must_use]
    pub fn new(pages: Pages, auth: DelegatedAuth, options: Options, measures: Measures) -> Self {
        Self { pages, auth: Arc::new(auth), options, measures }
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

    /// How much longer than any other page this may take.
    #[must_use]
    pub fn patience(&self, head: &request::Parts) -> Duration {
        let router = self.pages.router();
        let slow = router.find(head.uri.path()).and_then(|index| router.slowly(index));
        slow.map_or(Duration::ZERO, |slow| slow.longest)
    }

    /// Answers a request without a body.
    pub async fn answer(&self, peer: &TlsPeer, head: &request::Parts) -> Reply {
        self.answer_with(peer, head, Empty::<Bytes>::new()).await
    }

    /// Answers a request. Its body is read only of who may set what it is about.
    pub async fn answer_with<B>(&self, peer: &TlsPeer, head: &request::Parts, body: B) -> Reply
    where
        B: Body + Send + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let found = self.pages.router().find(head.uri.path());
        let settable = found.filter(|index| self.pages.router().settable(*index).is_some());
        let reply = match settable {
            Some(index) if head.method == Method::PUT => self.set(peer, head, index, body).await,
            _ => self.reply(peer, head).await,
        };
        self.measures.requested(reply.sent.answer().status);
        reply
    }

    /// Sets what is settable under a path. Never open to all clients.
    async fn set<B>(&self, peer: &TlsPeer, head: &request::Parts, index: usize, body: B) -> Reply
    where
        B: Body + Send + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = head.uri.path();
        let mut admitted = Err(Denial::Unauthenticated);
        for verb in VERBS_OF_PUT {
            admitted = self.auth.admit(peer, &head.headers, verb, path).await;
            if !matches!(admitted, Err(Denial::Forbidden(_))) {
                break;
            }
        }
        let user = match admitted {
            Ok(user) => user,
            Err(Denial::Forbidden(user)) => {
                let text = format!("forbidden: User {user:?} cannot put path {path:?}\n");
                return Reply { sent: Sent::of(Answer::text(StatusCode::FORBIDDEN, text)), known: false };
            }
            Err(denial) => {
                let (status, text) = denial.told(path);
                return Reply { sent: Sent::of(Answer::text(status, text)), known: false };
            }
        };
        let body = Limited::new(body, LONGEST_SETTING).collect().await;
        let text = body.ok().and_then(|body| String::from_utf8(body.to_bytes().into()).ok());
        let result = match (text, self.pages.router().settable(index)) {
            (Some(text), Some(setting)) => (setting.set)(&text),
            _ => Err("error reading request body".to_owned()),
        };
        if let Ok(answer) = &result {
            tracing::warn!(path, user = user.username, answer, "set while running");
        }
        Reply { sent: Sent::of(told(result)), known: true }
    }

    async fn reply(&self, peer: &TlsPeer, head: &request::Parts) -> Reply {
        let (path, query) = (head.uri.path(), head.uri.query());
        let verb = head.method.as_str().to_ascii_lowercase();
        let open = self.options.is_open(path);
        // A probe must wait for nothing, in any state of the API server and of others' certificates.
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
        let sent = match (answer, router.slowly(index)) {
            (Some(answer), _) => Sent::of(answer),
            (None, Some(slow)) => match (slow.make)(query).await {
                Ok(bytes) => Sent::binary(slow.content_type, bytes),
                Err((status, text)) => Sent::of(Answer::text(status, text)),
            },
            (None, None) => self.pages.get(index, query).await,
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
            Setting,
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

    async fn put(gate: &Gate, path: &str, token: &str, body: &'static str) -> (u16, String) {
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::default());
        let request = Request::put(path).header("authorization", format!("Bearer {token}"));
        let (head, ()) = request.body(()).unwrap().into_parts();
        let reply = gate.answer_with(&peer, &head, http_body_util::Full::new(Bytes::from(body))).await;
        let answer = reply.sent.answer().clone();
        (answer.status.as_u16(), answer.body)
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_put_or_update_it_sets_what_runs_and_nobody_else_is_even_read() {
        let set = Arc::new(std::sync::Mutex::new("0".to_owned()));
        let (shown, kept) = (Arc::clone(&set), Arc::clone(&set));
        let setting = Setting {
            show: Box::new(move || Ok(shown.lock().unwrap().clone())),
            set: Box::new(move |text| {
                let number: u32 = text.parse().map_err(|_| "no number".to_owned())?;
                *kept.lock().unwrap() = number.to_string();
                Ok(format!("set to {number}"))
            }),
        };
        let router = Router::default()
            .setting("/debug/flags/v", setting)
            .page("/metrics", || Answer::text(StatusCode::OK, String::new()));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = Options { always_allow_paths: vec!["/debug/*".to_owned()], ..for_tests() };
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(Pages::new(Arc::new(router)), auth, options, measures);
        let path = "/debug/flags/v";
        assert_eq!(put(&gate, path, "good", "4").await, (200, "set to 4".to_owned()));
        assert_eq!(put(&gate, path, "other", "5").await, (200, "set to 5".to_owned()));
        assert_eq!(put(&gate, path, "good", "loud").await, (400, "no number".to_owned()));
        let long: &'static str = Box::leak("1".repeat(LONGEST_SETTING + 1).into_boxed_str());
        assert_eq!(put(&gate, path, "good", long).await.0, 400);
        assert_eq!(put(&gate, path, "unknown", "6").await.0, 401, "open to read is not open to set");
        assert_eq!(put(&gate, "/metrics", "good", "6").await.0, 403);
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::default());
        assert_eq!(ask(&gate, &peer, path, "good").await, (200, "5".to_owned()));
        assert_eq!(set.lock().unwrap().as_str(), "5");
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_read_but_not_set_is_told_so() {
        let setting =
            || Setting { show: Box::new(|| Ok(String::new())), set: Box::new(|_| Ok(String::new())) };
        let router = Router::default().setting("/metrics", setting());
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = for_tests();
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(Pages::new(Arc::new(router)), auth, options, measures);
        let told = "forbidden: User \"good\" cannot put path \"/metrics\"\n";
        assert_eq!(put(&gate, "/metrics", "good", "1").await, (403, told.to_owned()));
    }
}
