//! A request with its peer in, a response out: what every client may see, and what only some may.
//!
//! Open paths are answered to every client, without reasons, and without a look at who asks. Only who asks an open
//! path for details (`?verbose`) and shows credentials is asked about, and told the reasons if it may read the
//! path. Everything else is for those alone whom [`DelegatedAuth`] admits, and so is setting something.

use std::sync::Arc;

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, Method,
    header::{CACHE_CONTROL, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};

use super::{
    answer::Answer,
    auth::{DelegatedAuth, Denial, TlsPeer},
    health::{Audience, is_verbose},
    measures::Measures,
    options::Options,
    router::Router,
};

/// Seconds until it makes sense to ask again.
const RETRY_SECONDS: &str = "5";

/// The verb that upstream asks for of a PUT to a path that is no resource is the method's name; and the one that
/// Kubernetes has for changing what there is. Either right will do.
// apiserver: pkg/endpoints/request/requestinfo.go, NewRequestInfo.
const VERBS_OF_PUT: [&str; 2] = ["put", "update"];

/// Answers requests.
#[derive(Debug)]
pub struct Gate {
    router: Router,
    pub(super) auth: Arc<DelegatedAuth>,
    pub(super) options: Options,
    pub(super) measures: Measures,
}

impl Gate {
    /// A gate before these pages.
    pub fn new(router: Router, auth: DelegatedAuth, options: Options, measures: Measures) -> Self {
        Self { router, auth: Arc::new(auth), options, measures }
    }

    /// The pages behind it, for who is in the same process.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Answers a request. Its body is read only of who may set what it is about.
    pub async fn answer(&self, peer: &TlsPeer, mut request: Request) -> Response {
        let verb = request.method().as_str().to_ascii_lowercase();
        let mut response = match self.admit(peer, &verb, &mut request).await {
            Ok(()) => self.router.answer(request).await,
            Err(denial) => {
                let (status, text) = denial.told(&verb, request.uri().path());
                Answer::text(status, text).into_response()
            }
        };
        let retry = matches!(response.status().as_u16(), 429 | 503);
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        // apiserver: pkg/endpoints/filters/cachecontrol.go.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        if retry {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        self.measures.requested(response.status());
        response
    }

    /// Lets a request pass, with who reads the answer.
    async fn admit(&self, peer: &TlsPeer, verb: &str, request: &mut Request) -> Result<(), Denial> {
        let (path, headers) = (request.uri().path(), request.headers());
        let sets = *request.method() == Method::PUT;
        let open = !sets && self.options.is_open(path);
        // A probe must wait for nothing, in any state of the API server and of others' certificates.
        let is_asked_about =
            is_verbose(request.uri().query()) && DelegatedAuth::has_credentials(peer, headers);
        if open && !is_asked_about {
            request.extensions_mut().insert(Audience::Everybody);
            return Ok(());
        }
        let verbs = if sets { VERBS_OF_PUT.as_slice() } else { &[verb] };
        let mut admitted = Err(Denial::Unauthenticated);
        for verb in verbs {
            admitted = self.auth.admit(peer, headers, verb, path).await;
            if !matches!(admitted, Err(Denial::Forbidden(_))) {
                break;
            }
        }
        match admitted {
            Ok(user) => {
                request.extensions_mut().insert(user);
                request.extensions_mut().insert(Audience::Known);
                Ok(())
            }
            Err(_) if open => {
                request.extensions_mut().insert(Audience::Everybody);
                Ok(())
            }
            Err(denial) => Err(denial),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use axum::body::Body;
    use http::{Request, StatusCode};
    use http_body_util::BodyExt;
    use rcgen::ExtendedKeyUsagePurpose;
    use telemetry::metrics::Metrics;

    use super::*;
    use crate::{
        auth::tests::Cluster,
        health::{Check, Checks},
        options::for_tests,
        router::LONGEST_SETTING,
        tls::tests::{authority, client},
    };

    fn gate(cluster: &Cluster) -> Gate {
        let checks = |name| Checks::new(name, vec![Check::new("ping", || Ok(Some("reason".to_owned())))]);
        let router = Router::default().checks("/livez", checks("livez")).checks("/readyz", checks("readyz"));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = for_tests();
        Gate::new(router, cluster.auth(&options), options, measures)
    }

    async fn read(response: Response) -> (u16, String) {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    }

    async fn ask(gate: &Gate, peer: &TlsPeer, path: &str, token: &str) -> (u16, String) {
        let request = Request::get(path).header("authorization", format!("Bearer {token}"));
        read(gate.answer(peer, request.body(Body::empty()).unwrap()).await).await
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
    async fn a_page_has_one_form_whatever_is_accepted() {
        let options = Options { always_allow_paths: vec!["/*".to_owned()], ..for_tests() };
        let page = || Answer::text(http::StatusCode::OK, "up 1\n".to_owned());
        let router = Router::default().page("/metrics", page);
        let measures = Measures::new(&Metrics::default()).unwrap();
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(router, auth, options, measures);
        let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::default());
        let request = Request::get("/metrics").header("accept", "application/openmetrics-text;q=1,*/*;q=0.1");
        let response = gate.answer(&peer, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.headers()[http::header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(read(response).await.1, "up 1\n");
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
        read(gate.answer(&peer, request.body(Body::from(body)).unwrap()).await).await
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_put_or_update_it_sets_what_runs_and_nobody_else_is_even_read() {
        let set = Arc::new(std::sync::Mutex::new("0".to_owned()));
        let (shown, kept) = (Arc::clone(&set), Arc::clone(&set));
        let set_it = move |text: &str| {
            let number: u32 = text.parse().map_err(|_| "no number".to_owned())?;
            *kept.lock().unwrap() = number.to_string();
            Ok(format!("set to {number}"))
        };
        let router = Router::default()
            .setting("/debug/flags/v", move || Ok(shown.lock().unwrap().clone()), set_it)
            .page("/metrics", || Answer::text(StatusCode::OK, String::new()));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = Options { always_allow_paths: vec!["/debug/*".to_owned()], ..for_tests() };
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(router, auth, options, measures);
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
        let router = Router::default().setting("/metrics", || Ok(String::new()), |_| Ok(String::new()));
        let measures = Measures::new(&Metrics::default()).unwrap();
        let options = for_tests();
        let auth = Cluster::default().auth(&options);
        let gate = Gate::new(router, auth, options, measures);
        let told = "forbidden: User \"good\" cannot put path \"/metrics\"\n";
        assert_eq!(put(&gate, "/metrics", "good", "1").await, (403, told.to_owned()));
    }
}
