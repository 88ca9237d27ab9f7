use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};

use super::*;
use crate::{
    http::{
        measures::Measures,
        options::for_tests,
        tls::tests::{authority, client, pem_of},
    },
    metrics::Metrics,
};

/// An API server that knows the tokens `good` and `other`, and lets `good` read `/metrics`.
#[derive(Clone, Default)]
struct Cluster {
    reviews: Arc<AtomicUsize>,
    accesses: Arc<AtomicUsize>,
    lookups: Arc<AtomicUsize>,
    away: Arc<AtomicBool>,
    authorities: Arc<Mutex<Option<String>>>,
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
                let known = matches!(token, "good" | "other");
                let user = json!({ "username": token, "uid": "1", "groups": ["g"], "extra": {"k": ["v"]} });
                (&self.reviews, 201, json!({ "status": { "authenticated": known, "user": user } }))
            }
            "subjectaccessreviews" => {
                let spec = &asked["spec"];
                assert_eq!(spec["nonResourceAttributes"]["verb"], "get", "{asked}");
                let may = spec["nonResourceAttributes"]["path"] == "/metrics" && spec["user"] == "good";
                (&self.accesses, 201, json!({ "status": { "allowed": may } }))
            }
            _ => match self.authorities.lock().unwrap().clone() {
                Some(pem) => (&self.lookups, 200, json!({ "data": { "client-ca-file": pem } })),
                None => (&self.lookups, 404, json!({})),
            },
        };
        count.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) { answer(503, json!({})) } else { answer(code, status) }
    }

    fn doorkeeper(&self, options: &Options) -> Doorkeeper {
        let measures = Measures::new(&Metrics::default()).unwrap();
        let reviewer = || Reviewer::new(self.client(), measures.clone());
        Doorkeeper::new(options, reviewer(), reviewer()).unwrap()
    }

    fn counts(&self) -> (usize, usize) {
        (self.reviews.load(Ordering::SeqCst), self.accesses.load(Ordering::SeqCst))
    }
}

fn from(address: &str) -> Visitor {
    Visitor { address: address.parse().unwrap(), certificates: Arc::default() }
}

fn with(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())])
}

async fn status(doorkeeper: &Doorkeeper, visitor: &Visitor, headers: &HeaderMap, path: &str) -> u16 {
    match doorkeeper.admit(visitor, headers, "get", path).await {
        Ok(_) => 200,
        Err(denial) => denial.told(path).0.as_u16(),
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
    let doorkeeper = cluster.doorkeeper(&for_tests());
    let visitor = from("10.0.0.1");
    assert_eq!(status(&doorkeeper, &visitor, &HeaderMap::new(), "/metrics").await, 401);
    assert_eq!(cluster.counts(), (0, 0));
    for _ in 0..3 {
        assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 200);
        assert_eq!(status(&doorkeeper, &visitor, &with("other"), "/metrics").await, 403);
        assert_eq!(status(&doorkeeper, &visitor, &with("bad"), "/metrics").await, 401);
    }
    assert_eq!(cluster.counts(), (3, 2));
    assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/debug/binder").await, 403);
    assert_eq!(cluster.counts(), (3, 3));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 200);
    assert_eq!(cluster.counts(), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn without_an_api_server_nobody_new_is_let_in() {
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&for_tests());
    let visitor = from("10.0.0.1");
    assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 200);
    cluster.away.store(true, Ordering::SeqCst);
    assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 200);
    assert_eq!(status(&doorkeeper, &visitor, &with("other"), "/metrics").await, 503);
    tokio::time::advance(Duration::from_secs(10)).await;
    for _ in 0..2 {
        assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 503);
    }
    // That it was away is held against nobody and not remembered.
    cluster.away.store(false, Ordering::SeqCst);
    assert_eq!(status(&doorkeeper, &visitor, &with("good"), "/metrics").await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_not_passed_on_and_keeps_nobody_else_out() {
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&for_tests());
    let scraper = from("10.0.0.1");
    assert_eq!(status(&doorkeeper, &scraper, &with("good"), "/metrics").await, 200);
    let mut statuses = Vec::new();
    for number in 0..100 {
        statuses
            .push(status(&doorkeeper, &from("10.0.0.2"), &with(&format!("bad{number}")), "/metrics").await);
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10..], [429; 90]);
    assert_eq!(cluster.counts().0, 11);
    // From a thousand addresses: what may be asked a second is soon asked.
    for number in 0..1_000 {
        let visitor = from(&format!("10.1.{}.{}", number / 250, number % 250));
        status(&doorkeeper, &visitor, &with(&format!("worse{number}")), "/metrics").await;
    }
    let reviews = cluster.counts().0;
    assert!(reviews <= 11 + 40 + 2, "{reviews}");
    // Who was known before is asked about, and let in.
    tokio::time::advance(Duration::from_secs(10)).await;
    for number in 0..1_000 {
        let visitor = from(&format!("10.2.{}.{}", number / 250, number % 250));
        status(&doorkeeper, &visitor, &with(&format!("worst{number}")), "/metrics").await;
    }
    assert_eq!(status(&doorkeeper, &scraper, &with("good"), "/metrics").await, 200);
    // And the first peer may try again.
    assert_eq!(status(&doorkeeper, &from("10.0.0.2"), &with("bad0"), "/metrics").await / 100, 5);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(status(&doorkeeper, &from("10.0.0.2"), &with("bad0"), "/metrics").await, 401);
}

#[tokio::test(start_paused = true)]
async fn somebody_known_cannot_flood_with_paths_either() {
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&for_tests());
    for number in 0..100 {
        status(&doorkeeper, &from("10.0.0.2"), &with("other"), &format!("/{number}")).await;
    }
    assert_eq!(cluster.counts(), (1, 10));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_counts_by_the_authorities_of_the_cluster_which_may_change() {
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&for_tests());
    let (old, new) = (authority("old"), authority("new"));
    let show = |by| {
        let (certificate, _) = client(by, "good", ExtendedKeyUsagePurpose::ClientAuth);
        Visitor { certificates: Arc::new([certificate]), ..from("10.0.0.1") }
    };
    let (of_old, of_new, nothing) = (show(&old), show(&new), HeaderMap::new());
    let lookups = || cluster.lookups.load(Ordering::SeqCst);
    // Nobody has shown a certificate: nobody has asked.
    assert_eq!(status(&doorkeeper, &from("10.0.0.1"), &with("good"), "/metrics").await, 200);
    assert_eq!(lookups(), 0);
    assert_eq!(status(&doorkeeper, &of_old, &nothing, "/metrics").await, 401);
    // A certificate that means nothing is no reason to refuse a token.
    assert_eq!(status(&doorkeeper, &of_old, &with("good"), "/metrics").await, 200);
    assert_eq!(lookups(), 1);

    let publish = |by| {
        let pem = String::from_utf8(pem_of(by)).unwrap();
        *cluster.authorities.lock().unwrap() = Some(pem);
    };
    publish(&old);
    tokio::time::advance(AUTHORITIES_RETRY).await;
    assert_eq!(status(&doorkeeper, &of_old, &nothing, "/metrics").await, 200);
    assert_eq!(status(&doorkeeper, &of_new, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 2);
    publish(&new);
    tokio::time::advance(AUTHORITIES_RETRY).await;
    assert_eq!(status(&doorkeeper, &of_new, &nothing, "/metrics").await, 200);
    assert_eq!(status(&doorkeeper, &of_old, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 3);
    // The API server is away: those known before stay, but the rest is reviewed no more.
    cluster.away.store(true, Ordering::SeqCst);
    tokio::time::advance(AUTHORITIES_AGE).await;
    assert_eq!(status(&doorkeeper, &of_new, &nothing, "/metrics").await, 503);
    assert_eq!(status(&doorkeeper, &of_old, &nothing, "/metrics").await, 401);
    assert_eq!(lookups(), 4);
}

#[tokio::test(start_paused = true)]
async fn authorities_can_be_given_in_a_file() {
    let ours = authority("ours");
    let file = std::env::temp_dir().join(format!("mooring-client-ca-{}", std::process::id()));
    std::fs::write(&file, pem_of(&ours)).unwrap();
    let options = Options { client_ca_file: Some(file.clone()), ..for_tests() };
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&options);
    let (certificate, _) = client(&ours, "good", ExtendedKeyUsagePurpose::ClientAuth);
    let visitor = Visitor { certificates: Arc::new([certificate]), ..from("10.0.0.1") };
    assert_eq!(status(&doorkeeper, &visitor, &HeaderMap::new(), "/metrics").await, 200);
    assert_eq!(status(&doorkeeper, &visitor, &HeaderMap::new(), "/debug/binder").await, 403);
    assert_eq!(cluster.lookups.load(Ordering::SeqCst), 0);
    assert!(!doorkeeper.reload().unwrap());
    std::fs::write(&file, pem_of(&authority("another"))).unwrap();
    assert!(doorkeeper.reload().unwrap());
    assert_eq!(status(&doorkeeper, &visitor, &HeaderMap::new(), "/metrics").await, 401);
    std::fs::remove_file(&file).unwrap();
    assert!(doorkeeper.reload().unwrap_err().starts_with("--client-ca-file "));
}

#[tokio::test(start_paused = true)]
async fn masters_are_not_asked_about() {
    let ours = authority("ours");
    let cluster = Cluster::default();
    let doorkeeper = cluster.doorkeeper(&for_tests());
    *cluster.authorities.lock().unwrap() = Some(String::from_utf8(pem_of(&ours)).unwrap());
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&rcgen::KeyPair::generate().unwrap(), &ours).unwrap().into();
    let visitor = Visitor { certificates: Arc::new([certificate]), ..from("10.0.0.1") };
    assert_eq!(status(&doorkeeper, &visitor, &HeaderMap::new(), "/debug/binder").await, 200);
    assert_eq!(cluster.counts(), (0, 0));
}
