//! A server other than the API server that is shown the same credentials: a daemon that answers questions.
//!
//! In: its address, and who vouches for its certificate. Out: a client. Credentials go to no server that was not verified:
//! without a certificate authority that was given there is no client, and the system's own are not asked.

use std::{fs, path::Path};

use kube::Client;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

use super::{
    ApiServer, ConnectError, Connection, build,
    choice::{refused, uri},
};

impl ApiServer {
    /// A client of another server, with this one's credentials.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: the address is not HTTPS, the authority cannot be read, or another user is to be
    /// impersonated, which only the API server can do. [`ConnectError::Client`].
    pub fn client_of(&self, url: &str, authority: Option<&Path>) -> Result<Client, ConnectError> {
        let Connection::Network(config) = &self.connection else {
            return Err(refused("--daemon", "there are no credentials to show"));
        };
        let server = uri(url)?;
        if server.scheme_str() != Some("https") {
            return Err(refused("--daemon", "credentials go over HTTPS alone"));
        }
        if config.auth_info.impersonate.is_some() {
            return Err(refused("--daemon", "only the API server impersonates (--as)"));
        }
        let Some(file) = authority else {
            return Err(refused(
                "--daemon",
                "its certificate has to be verified: --daemon-ca says who vouches for it",
            ));
        };
        let unreadable = |why: String| refused("--daemon-ca", &format!("{}: {why}", file.display()));
        let pem = fs::read(file).map_err(|error| unreadable(error.to_string()))?;
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let roots = roots.map_err(|error| unreadable(error.to_string()))?;
        if roots.is_empty() {
            return Err(unreadable("it has no certificate".to_owned()));
        }
        let mut config = config.clone();
        config.cluster_url = server;
        config.root_cert = Some(roots.iter().map(|root| root.to_vec()).collect());
        config.accept_invalid_certs = false;
        config.tls_server_name = None;
        config.proxy_url = None;
        let built = build(&config);
        built.map_err(|error| ConnectError::Client { origin: url.to_owned(), error: Box::new(error) })
    }
}
