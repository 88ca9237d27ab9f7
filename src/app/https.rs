//! What it takes to serve: the socket, the certificate, and who lets clients in.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::anyhow;
use apiserver::connect::ApiServer;
use serving::{DelegatedAuth, Measures, OwnCertificate, Reviewer, Server};
use tokio_rustls::rustls::ServerConfig;

use crate::config::Config;

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
/// API servers review tokens and access. Who serves nowhere needs none of it.
pub(super) async fn bind_server(
    serving: &serving::Options,
    api: &ApiServer,
) -> anyhow::Result<(Option<BoundServer>, [ApiServer; 2])> {
    if serving.port == 0 {
        return Ok((None, [api.clone(), api.clone()]));
    }
    if !serving.skipped_cipher_suites.is_empty() {
        let skipped = serving.skipped_cipher_suites.join(", ");
        tracing::warn!(skipped, "--tls-cipher-suites: only cipher suites without known weaknesses are used");
    }
    let own = Arc::new(OwnCertificate::load(&serving.certificate, &own_names(serving))?);
    let tls = serving::server_config(serving, Arc::clone(&own))?;
    let server = Server::bind(SocketAddr::new(serving.address, serving.port))?;
    let authentication = serving.authentication_kubeconfig.as_deref();
    let authentication = reviewing("--authentication-kubeconfig", authentication, api).await?;
    let authorization = serving.authorization_kubeconfig.as_deref();
    let authorization = reviewing("--authorization-kubeconfig", authorization, api).await?;
    Ok((Some(BoundServer { server, tls, own }), [authentication, authorization]))
}

/// The API server that reviews clients: a given one, or the one that the daemon works on.
async fn reviewing(
    flag: &'static str,
    kubeconfig: Option<&Path>,
    api: &ApiServer,
) -> anyhow::Result<ApiServer> {
    match kubeconfig {
        Some(file) => Ok(ApiServer::read(flag, file).await?),
        None => Ok(api.clone()),
    }
}

/// Who lets clients in. Reviews have connections of their own.
pub(super) fn build_auth(
    serving: &serving::Options,
    [authentication, authorization]: &[ApiServer; 2],
    measures: &Measures,
) -> anyhow::Result<DelegatedAuth> {
    let auth = DelegatedAuth::new(
        serving,
        Reviewer::new(authentication.client()?, measures.clone()),
        Reviewer::new(authorization.client()?, measures.clone()),
    );
    auth.map_err(|problem| anyhow!(problem))
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
