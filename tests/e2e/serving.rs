//! Who may read the daemon's pages: with the rights in `deploy/`, as an operator gives them.

use http::StatusCode;
use test_support::{
    backend::METRICS_READER,
    daemon::Launch,
    visitor::{Authority, Credentials, ask},
};
use testbed::faults::Write;

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("serving_the_api_server_says_who_may_read_what", tokens)
            .also_real("kube-apiserver reviews tokens and access, by the roles of `deploy`."),
        story("serving_z_pages_are_for_who_may_read_them", z_pages),
        story("serving_a_client_certificate_is_as_good_as_a_token", certificates)
            .only_real("kube-apiserver publishes its authorities of clients."),
    ]
}

async fn tokens(stage: Stage) {
    let (reader, stranger) =
        (stage.visitor("prometheus", &[METRICS_READER]).await, stage.visitor("somebody", &[]).await);
    let launch = Launch::alone().with_authorities_of_the_cluster();
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let status = async |path: &str, token: Option<&str>| daemon.visit(path, token).await.0;

    assert_eq!(status("/metrics", None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status("/metrics", Some("made-up")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status("/metrics", Some(&stranger)).await, StatusCode::FORBIDDEN);
    let (code, page) = daemon.visit("/metrics", Some(&reader)).await;
    assert_eq!(code, StatusCode::OK, "{page}");
    assert!(page.contains("\nmooring_build_info{"), "{page}");
    let (code, page) = daemon.visit("/metrics/openmetrics", Some(&reader)).await;
    assert!(code == StatusCode::OK && page.ends_with("# EOF\n"), "{page}");
    assert!(!page.contains("rest_client_"), "only what is ours: {page}");
    for path in ["/debug/binder", "/debug/attach-detach?node=n1", "/debug/watches", "/"] {
        assert_eq!(status(path, None).await, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(status(path, Some(&reader)).await, StatusCode::FORBIDDEN, "{path}");
    }
    // Probes answer every client, without what they would give away.
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(daemon.visit(path, None).await, (StatusCode::OK, "ok".to_owned()), "{path}");
        assert_eq!(status(path, Some("made-up")).await, StatusCode::OK, "{path}");
    }
    // And what they found is shown.
    let (_, slis) = daemon.visit("/metrics/slis", Some(&reader)).await;
    for endpoint in ["healthz", "livez", "readyz"] {
        let line = format!("kubernetes_healthcheck{{name=\"ping\",type=\"{endpoint}\"}} 1");
        assert!(slis.lines().any(|shown| shown == line), "{line} is not in {slis}");
    }
    let (_, verbose) = daemon.visit("/readyz?verbose", None).await;
    assert!(verbose.contains("[+]leader-election ok\n"), "{verbose}");

    // The API server does not answer a review: no new client is let in, until it comes again.
    let _dropped = stage.proxy.drop_unsent(|write: &Write| write.path.ends_with("/tokenreviews"));
    assert_eq!(status("/metrics", Some("made-up-last")).await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status("/metrics", Some("made-up-last")).await, StatusCode::UNAUTHORIZED);
}

/// A client that may only scrape is not told what runs with which flags; and those pages hold no secrets.
async fn z_pages(stage: Stage) {
    let reader = stage.visitor("scraper", &[METRICS_READER]).await;
    let daemon = stage.daemon().await;
    for path in ["/configz", "/flagz", "/statusz", "/version"] {
        assert_eq!(daemon.visit(path, None).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    // A cluster lets every authenticated user read /version.
    for path in ["/configz", "/flagz", "/statusz"] {
        assert_eq!(daemon.visit(path, Some(&reader)).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/metrics/openmetrics", "/metrics/slis"] {
        assert_eq!(daemon.visit(path, None).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    daemon.page_says("/flagz", "\nleader-elect=false\n").await;
    daemon.page_says("/statusz", "\nPaths: /configz /debug /flagz /healthz /livez /metrics /readyz").await;
    daemon.page_says("/version", &format!("\"gitVersion\":\"v{}\"", env!("CARGO_PKG_VERSION"))).await;
    daemon.page_says("/configz", "\"leaderElect\":false").await;
}

/// The API server publishes its authorities of client certificates; the daemon may read them by a Role that is
/// there in every cluster.
async fn certificates(stage: Stage) {
    let token = stage.visitor("certified", &[METRICS_READER]).await;
    let launch = Launch::alone().with_authorities_of_the_cluster();
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let url = daemon.url().await;
    let status = async |credentials: Credentials| ask(&credentials.client(&url), "/metrics").await.unwrap().0;

    let authority = Authority::of_the_test();
    let reader = authority.vouch("system:serviceaccount:default:certified", &[]);
    assert_eq!(status(reader.into()).await, StatusCode::OK);
    let other = authority.vouch("somebody-certified", &["no-readers"]);
    assert_eq!(status(other.clone().into()).await, StatusCode::FORBIDDEN);
    let master = Authority::master();
    assert_eq!(status(master.into()).await, StatusCode::OK);
    let foreign = Authority::another().vouch("somebody", &["system:masters"]);
    assert_eq!(status(foreign.clone().into()).await, StatusCode::UNAUTHORIZED);
    // It means nothing here, and so does not stand in the way of a token.
    let both = Credentials { identity: Some(foreign), token: Some(token) };
    assert_eq!(status(both).await, StatusCode::OK);
}
