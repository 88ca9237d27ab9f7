//! A page for those whom an API server lets read it, and a health check for everybody.

use std::{error::Error, net::Ipv4Addr, sync::Arc, time::Duration};

use axum::{body::Body, extract::Request};
use http::header::AUTHORIZATION;
use mooring_serving::{
    CertificateSource, DelegatedAuth, Gate, Measures, MinVersion, Options, Reviewer, Router, TlsPeer,
    health::{Check, Checks},
};
use telemetry::metrics::Metrics;

fn options() -> Options {
    Options {
        address: Ipv4Addr::LOCALHOST.into(),
        port: 0,
        node_addresses: Vec::new(),
        certificate: CertificateSource::Memory,
        min_version: MinVersion::Tls13,
        cipher_suites: Vec::new(),
        skipped_cipher_suites: Vec::new(),
        client_ca_file: None,
        skip_lookup: true,
        authentication_kubeconfig: None,
        authorization_kubeconfig: None,
        always_allow_paths: vec!["/livez".to_owned()],
        token_ttl: Duration::from_secs(10),
        authorized_ttl: Duration::from_secs(10),
        unauthorized_ttl: Duration::from_secs(10),
    }
}

/// The status for a path, without a token and with one.
async fn statuses(path: &str) -> Result<[u16; 2], Box<dyn Error>> {
    let server = testbed::Server::default();
    server.reviews().know("secret", "ann", &[], &["/page"]);
    let (options, measures) = (options(), Measures::new(&Metrics::default())?);
    let [tokens, access] = [(); 2].map(|()| Reviewer::new(server.client(), measures.clone()));
    let auth = DelegatedAuth::new(&options, tokens, access)?;
    let router = Router::default()
        .json("/page", || ["what there is to see"])
        .checks("/livez", Checks::new("livez", vec![Check::new("ping", || Ok(None))]));
    let gate = Gate::new(router, auth, options, measures);
    // `Server::run` has both from a connection.
    let peer = TlsPeer::new(Ipv4Addr::LOCALHOST.into(), Arc::default());
    let request = || Request::get(path);
    let without = gate.answer(&peer, request().body(Body::default())?).await;
    let with = request().header(AUTHORIZATION, "Bearer secret").body(Body::default())?;
    let with = gate.answer(&peer, with).await;
    Ok([without.status().as_u16(), with.status().as_u16()])
}

#[expect(clippy::print_stdout, reason = "an example")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("/livez {:?}, /page {:?}", statuses("/livez").await?, statuses("/page").await?);
    Ok(())
}

#[tokio::test]
async fn a_page_is_for_those_who_may_read_it() -> Result<(), Box<dyn Error>> {
    assert_eq!((statuses("/livez").await?, statuses("/page").await?), ([200, 200], [401, 200]));
    Ok(())
}
