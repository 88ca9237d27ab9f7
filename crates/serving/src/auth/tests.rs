use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};
use telemetry::metrics::Metrics;

use super::{
    super::client_certs::{AUTHORITIES_AGE, AUTHORITIES_REFRESH, AUTHORITIES_RETRY},
    *,
};
use crate::{
    measures::Measures,
    options::for_tests,
    tls::tests::{authority, client, pem_of},
};

/// An API server that knows the tokens `good`, `other` and `denied`, which are users, and lets `good` read
/// `/metrics`, `/readyz` and `/debug/flags/v`, which it may put, and `other` update. What follows a `.` makes another token of the same user.
#[derive(Clone, Default)]
pub struct Cluster {
    pub reviews: Arc<AtomicUsize>,
    pub accesses: Arc<AtomicUsize>,
    pub lookups: Arc<AtomicUsize>,
    pub away: Arc<AtomicBool>,
    /// Requests that are answered with 503 before others are.
    pub stumbles: Arc<AtomicUsize>,
    /// Whether nothing is answered about authorities.
    pub silent: Arc<AtomicBool>,
    pub authorities: Arc<Mutex<Option<String>>>,
}

impl Cluster {
    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| this.clone().answer(request));
        Client::new(service, "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Full<hyper::body::Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = |code, value: Value| {
            let mut answer = Response::new(Full::from(value.to_string()));
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok(answer)
        };
        let (count, code, status) = match path.rsplit('/').next().unwrap() {
            "tokenreviews" => {
                let token = asked["spec"]["token"].as_str().unwrap();
                let name = token.split('.').next().unwrap();
                let known = matches!(name, "good" | "other" | "denied");
                let extra = json!({ "authentication.kubernetes.io/credential-id": [token] });
                let user = json!({ "username": name, "uid": "1", "groups": ["g"], "extra": extra });
                (&self.reviews, 201, json!({ "status": { "authenticated": known, "user": user } }))
            }
            "subjectaccessreviews" => {
                let spec = &asked["spec"];
                let verb = spec["nonResourceAttributes"]["verb"].as_str().unwrap();
                let groups = spec["groups"].as_array().unwrap();
                assert!(groups.contains(&json!("system:authenticated")), "{asked}");
                assert!(spec["extra"]["authentication.kubernetes.io/credential-id"].is_array(), "{asked}");
                let path = spec["nonResourceAttributes"]["path"].as_str().unwrap();
                let denied = spec["user"] == "denied";
                let may = match (verb, path, spec["user"].as_str().unwrap()) {
                    ("get", "/metrics" | "/readyz", "good")
                    | ("get" | "put", "/debug/flags/v", "good")
                    | ("update", "/debug/flags/v", "other") => true,
                    _ => denied,
                };
                (&self.accesses, 201, json!({ "status": { "allowed": may, "denied": denied } }))
            }
            _ => match self.authorities.lock().clone() {
                Some(pem) => (&self.lookups, 200, json!({ "data": { "client-ca-file": pem } })),
                None => (&self.lookups, 404, json!({})),
            },
        };
        count.fetch_add(1, Ordering::SeqCst);
        if self.silent.load(Ordering::SeqCst) && Arc::as_ptr(&self.lookups) == std::ptr::from_ref(count) {
            std::future::pending::<()>().await;
        }
        let one_less = |left: usize| left.checked_sub(1);
        let stumbled = self.stumbles.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if stumbled || self.away.load(Ordering::SeqCst) {
            answer(503, json!({}))
        } else {
            answer(code, status)
        }
    }

    pub fn auth(&self, options: &Options) -> DelegatedAuth {
        let measures = Measures::new(&Metrics::default()).unwrap();
        let reviewer = || Reviewer::new(self.client(), measures.clone());
        DelegatedAuth::new(options, reviewer(), reviewer()).unwrap()
    }

    pub fn counts(&self) -> (usize, usize) {
        (self.reviews.load(Ordering::SeqCst), self.accesses.load(Ordering::SeqCst))
    }
}

fn from(address: &str) -> TlsPeer {
    TlsPeer::new(address.parse().unwrap(), Arc::default())
}

fn with(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())])
}

async fn status(auth: &DelegatedAuth, peer: &TlsPeer, headers: &HeaderMap, path: &str) -> u16 {
    match auth.admit(peer, headers, "get", path).await {
        Ok(_) => 200,
        Err(denial) => denial.told("get", path).0.as_u16(),
    }
}

#[test]
fn a_bearer_token_is_read_as_upstream_reads_it() {
    let cases = [
        ("Bearer a", Some("a")),
        ("bearer a b", Some("a")),
        (" Bearer a ", Some("a")),
        ("Bearer ", None),
        ("Bearer  a", None),
        ("Basic a", None),
        ("a", None),
    ];
    for (value, expected) in cases {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
        assert_eq!(bearer(&headers), expected, "{value:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_api_server_says_who_may_read_what_and_its_word_counts_for_a_while() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    let peer = from("10.0.0.1");
    assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/metrics").await, 401);
    assert_eq!(cluster.counts(), (0, 0));
    for _ in 0..3 {
        assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 200);
        assert_eq!(status(&auth, &peer, &with("other"), "/metrics").await, 403);
        assert_eq!(status(&auth, &peer, &with("bad"), "/metrics").await, 401);
    }
    assert_eq!(cluster.counts(), (3, 2));
    assert_eq!(status(&auth, &peer, &with("good"), "/debug/binder").await, 403);
    assert_eq!(cluster.counts(), (3, 3));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 200);
    assert_eq!(cluster.counts(), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn without_an_api_server_nobody_new_is_let_in() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    let peer = from("10.0.0.1");
    assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 200);
    cluster.away.store(true, Ordering::SeqCst);
    assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 200);
    assert_eq!(status(&auth, &peer, &with("other"), "/metrics").await, 503);
    tokio::time::advance(Duration::from_secs(10)).await;
    for _ in 0..2 {
        assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 503);
    }
    // That it was away is held against no client and not remembered.
    cluster.away.store(false, Ordering::SeqCst);
    assert_eq!(status(&auth, &peer, &with("good"), "/metrics").await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_not_passed_on_and_keeps_nobody_else_out() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    let scraper = from("10.0.0.1");
    assert_eq!(status(&auth, &scraper, &with("good"), "/metrics").await, 200);
    let mut statuses = Vec::new();
    for number in 0..100 {
        statuses.push(status(&auth, &from("10.0.0.2"), &with(&format!("bad{number}")), "/metrics").await);
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10..], [429; 90]);
    assert_eq!(cluster.counts().0, 11);
    // From a thousand addresses: what may be asked a second is soon asked.
    for number in 0..1_000 {
        let peer = from(&format!("10.1.{}.{}", number / 250, number % 250));
        status(&auth, &peer, &with(&format!("worse{number}")), "/metrics").await;
    }
    let reviews = cluster.counts().0;
    assert!(reviews <= 11 + 40 + 2, "{reviews}");
    // Who was let in before is asked about again, and let in.
    tokio::time::advance(Duration::from_secs(10)).await;
    for number in 0..1_000 {
        let peer = from(&format!("10.2.{}.{}", number / 250, number % 250));
        status(&auth, &peer, &with(&format!("worst{number}")), "/metrics").await;
    }
    assert_eq!(status(&auth, &scraper, &with("good"), "/metrics").await, 200);
    // And the first peer may try again.
    assert_eq!(status(&auth, &from("10.0.0.2"), &with("bad0"), "/metrics").await / 100, 5);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(status(&auth, &from("10.0.0.2"), &with("bad0"), "/metrics").await, 401);
}

#[tokio::test(start_paused = true)]
async fn somebody_known_cannot_flood_with_paths_either() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    for number in 0..100 {
        status(&auth, &from("10.0.0.2"), &with("other"), &format!("/{number}")).await;
    }
    assert_eq!(cluster.counts(), (1, 10));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_counts_by_the_authorities_of_the_cluster_which_may_change() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    let (old, new) = (authority("old"), authority("new"));
    let show = |by| {
        let (certificate, _) = client(by, "good", ExtendedKeyUsagePurpose::ClientAuth);
        TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]))
    };
    let (of_old, of_new, nothing) = (show(&old), show(&new), HeaderMap::new());
    let lookups = || cluster.lookups.load(Ordering::SeqCst);
    // No client has shown a certificate: no question was asked.
    assert_eq!(status(&auth, &from("10.0.0.1"), &with("good"), "/metrics").await, 200);
    assert_eq!(lookups(), 0);
    assert_eq!(status(&auth, &of_old, &nothing, "/metrics").await, 401);
    // A certificate that means nothing is no reason to refuse a token.
    assert_eq!(status(&auth, &of_old, &with("good"), "/metrics").await, 200);
    assert_eq!(lookups(), 1);

    let publish = |by| {
        let pem = String::from_utf8(pem_of(by)).unwrap();
        *cluster.authorities.lock() = Some(pem);
    };
    publish(&old);
    tokio::time::advance(AUTHORITIES_RETRY).await;
    assert_eq!(status(&auth, &of_old, &nothing, "/metrics").await, 200);
    assert_eq!(status(&auth, &of_new, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 2);
    publish(&new);
    tokio::time::advance(AUTHORITIES_RETRY).await;
    assert_eq!(status(&auth, &of_new, &nothing, "/metrics").await, 200);
    assert_eq!(status(&auth, &of_old, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 3);
    // The API server is away: those known before stay, but the rest is reviewed no more.
    cluster.away.store(true, Ordering::SeqCst);
    tokio::time::advance(AUTHORITIES_AGE).await;
    assert_eq!(status(&auth, &of_new, &nothing, "/metrics").await, 503);
    assert_eq!(status(&auth, &of_old, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 4);
}

#[tokio::test(start_paused = true)]
async fn authorities_can_be_given_in_a_file() {
    let ours = authority("ours");
    let file = std::env::temp_dir().join(format!("mooring-client-ca-{}", std::process::id()));
    std::fs::write(&file, pem_of(&ours)).unwrap();
    let options = Options { client_ca_file: Some(file.clone()), ..for_tests() };
    let cluster = Cluster::default();
    let auth = cluster.auth(&options);
    let (certificate, _) = client(&ours, "good", ExtendedKeyUsagePurpose::ClientAuth);
    let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]));
    assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/metrics").await, 200);
    assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/debug/binder").await, 403);
    assert_eq!(cluster.lookups.load(Ordering::SeqCst), 0);
    assert!(!auth.certificates.reload().unwrap());
    std::fs::write(&file, pem_of(&authority("another"))).unwrap();
    assert!(auth.certificates.reload().unwrap());
    assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/metrics").await, 401);
    std::fs::remove_file(&file).unwrap();
    assert!(auth.certificates.reload().unwrap_err().starts_with("--client-ca-file "));
}

#[tokio::test(start_paused = true)]
async fn masters_are_not_asked_about() {
    let ours = authority("ours");
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    *cluster.authorities.lock() = Some(String::from_utf8(pem_of(&ours)).unwrap());
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&rcgen::KeyPair::generate().unwrap(), &ours).unwrap().into();
    let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]));
    assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/debug/binder").await, 200);
    assert_eq!(cluster.counts(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_is_known_does_not_wait_for_news_of_the_authorities() {
    let ours = authority("ours");
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    *cluster.authorities.lock() = Some(String::from_utf8(pem_of(&ours)).unwrap());
    let (certificate, _) = client(&ours, "good", ExtendedKeyUsagePurpose::ClientAuth);
    let peer = TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]));
    let took = async || {
        let begun = Instant::now();
        assert_eq!(status(&auth, &peer, &HeaderMap::new(), "/metrics").await, 200);
        begun.elapsed()
    };
    assert_eq!(took().await, Duration::ZERO);
    cluster.silent.store(true, Ordering::SeqCst);
    tokio::time::advance(AUTHORITIES_REFRESH).await;
    assert_eq!(took().await, Duration::ZERO);
    while cluster.lookups.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    // Nothing is known for sure any more, but when that cannot be helped, what was known stays.
    tokio::time::advance(AUTHORITIES_AGE).await;
    assert!(took().await <= Duration::from_secs(5));
    tokio::time::advance(AUTHORITIES_AGE).await;
    assert_eq!(took().await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_verified_once_in_a_while_and_failures_count_against_the_peer() {
    let foreign = authority("foreign");
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    *cluster.authorities.lock() = Some(String::from_utf8(pem_of(&authority("ours"))).unwrap());
    let bad = || {
        let (certificate, _) = client(&foreign, "bad", ExtendedKeyUsagePurpose::ClientAuth);
        TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]))
    };
    let nothing = HeaderMap::new();
    let one = bad();
    for _ in 0..100 {
        assert_eq!(status(&auth, &one, &nothing, "/metrics").await, 401);
    }
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(status(&auth, &bad(), &nothing, "/metrics").await);
    }
    assert_eq!(statuses[..9], [401; 9]);
    assert_eq!(statuses[9..], [429; 11]);
    // Who has been verified before is verified again, also if others share its address.
    let (certificate, _) = client(&foreign, "good", ExtendedKeyUsagePurpose::ClientAuth);
    let scraper = TlsPeer::new([10, 0, 0, 1].into(), Arc::new([certificate]));
    tokio::time::advance(REFUSAL_WINDOW).await;
    *cluster.authorities.lock() = Some(String::from_utf8(pem_of(&foreign)).unwrap());
    assert_eq!(status(&auth, &scraper, &nothing, "/metrics").await, 200);
    *cluster.authorities.lock() = Some(String::from_utf8(pem_of(&foreign)).unwrap());
    for number in 0..20 {
        status(&auth, &from("10.0.0.1"), &with(&format!("bad{number}")), "/metrics").await;
    }
    assert_eq!(status(&auth, &from("10.0.0.1"), &with("bad-last"), "/metrics").await, 429);
    tokio::time::advance(VERDICT_TTL).await;
    assert_eq!(status(&auth, &scraper, &nothing, "/metrics").await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_denial_counts_more_than_a_permission() {
    let auth = Cluster::default().auth(&for_tests());
    assert_eq!(status(&auth, &from("10.0.0.1"), &with("denied"), "/metrics").await, 403);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stumbles_is_asked_again_when_the_client_comes_again() {
    let cluster = Cluster::default();
    let auth = cluster.auth(&for_tests());
    cluster.stumbles.store(2, Ordering::SeqCst);
    for (expected, counts) in [(503, (1, 0)), (503, (2, 0)), (200, (3, 1))] {
        assert_eq!(status(&auth, &from("10.0.0.1"), &with("good"), "/metrics").await, expected);
        assert_eq!(cluster.counts(), counts);
    }
}
