//! What it takes to serve: the socket, the certificate, and who lets clients in.

use std::{net::SocketAddr, sync::Arc};

use anyhow::anyhow;
use apiserver::connect::ApiServer;
use serving::{DelegatedAuth, Measures, OwnCertificate, Reviewer, Server};
use tokio_rustls::rustls::ServerConfig;

use crate::{config::Config, supervise::Workplace};

/// How to serve, as it is configured.
pub(super) fn serving(config: &Config) -> serving::Options {
    let serving = config.serving.clone();
    if serving.port != 0 {
        return serving;
    }
    // No client comes that could show a certificate.
    serving::Options { client_ca_file: None, skip_lookup: true, ..serving }
}

/// A bound socket, and what it takes to talk there.
pub(super) struct BoundServer {
    pub server: Server,
    pub tls: ServerConfig,
    pub own: Arc<OwnCertificate>,
}

/// What an operator may have got wrong about serving, before anything that others see: where to serve, and which
/// API servers review tokens and access. Who serves nowhere needs none of it. Also who lets clients in: reviews have connections
/// of their own.
pub(super) async fn prepare(
    serving: &serving::Options,
    api: &ApiServer,
    measures: &Measures,
    workplace: &Workplace,
) -> anyhow::Result<(Option<BoundServer>, DelegatedAuth)> {
    let (mut bound, mut reviewers) = (None, [api.clone(), api.clone()]);
    if serving.port != 0 {
        if !serving.skipped_cipher_suites.is_empty() {
            let skipped = serving.skipped_cipher_suites.join(", ");
            tracing::warn!(
                skipped,
                "--tls-cipher-suites: these are left out, as only suites without known weaknesses are spoken"
            );
        }
        let own = Arc::new(OwnCertificate::load(&serving.certificate, &own_names(serving))?);
        let tls = serving::server_config(serving, Arc::clone(&own))?;
        let server = Server::bind(SocketAddr::new(serving.address, serving.port))?;
        bound = Some(BoundServer { server, tls, own });
        let files = [&serving.authentication_kubeconfig, &serving.authorization_kubeconfig];
        let flags = ["--authentication-kubeconfig", "--authorization-kubeconfig"];
        for ((reviewer, file), flag) in reviewers.iter_mut().zip(files).zip(flags) {
            if let Some(file) = file {
                *reviewer = ApiServer::read(flag, file).await?;
            }
        }
    }
    let auth = workplace.enter(|| {
        let [authentication, authorization] = reviewers.map(|api| api.client());
        let reviewer = |client| Reviewer::new(client, measures.clone());
        DelegatedAuth::new(serving, reviewer(authentication?), reviewer(authorization?))
            .map_err(|it| anyhow!(it))
    });
    Ok((bound, auth?))
}

/// Names for a certificate that is made here.
///
/// KCM: apiserver's pkg/server/options/serving.go, MaybeDefaultWithSelfSignedCerts.
fn own_names(serving: &serving::Options) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !serving.address.is_unspecified() && !serving.address.is_loopback() {
        names.push(serving.address.to_string());
    }
    names.extend(hostname::get().ok().and_then(|name| name.into_string().ok()));
    names
}
