//! A server other than the API server that is shown the same credentials: a daemon that answers questions.
//!
//! In: its address, and who vouches for its certificate: a file, or what the API server says is published. Out: a client.
//! Credentials go to no server that was not verified: without a certificate authority that was given or published there is
//! no client, and the system's own are not asked.

use std::{fs, path::Path};

use http::uri::Scheme;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Config};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

use super::{ApiServer, ConnectError, Connection, refused, uri};
use crate::error_chain;

/// The ConfigMap in which a deployment says who vouches for its daemon: namespace, name and key. Another place would have to be
/// known beforehand, and who knows that can name a file as well.
const PUBLISHED: (&str, &str, &str) = ("mooring-system", "mooring-explain-ca", "ca.crt");

/// Who vouches for a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    roots: Vec<Vec<u8>>,
}

impl Authority {
    /// One from the file that a flag names.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it cannot be read, or has no certificate.
    pub fn of_file(flag: &'static str, file: &Path) -> Result<Self, ConnectError> {
        let unreadable = |why: String| refused(flag, &format!("{}: {why}", file.display()));
        let pem = fs::read(file).map_err(|error| unreadable(error.to_string()))?;
        Self::of_pem(&pem).map_err(unreadable)
    }

    fn of_pem(pem: &[u8]) -> Result<Self, String> {
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let roots = roots.map_err(|error| error.to_string())?;
        if roots.is_empty() {
            return Err("it has no certificate".to_owned());
        }
        Ok(Self { roots: roots.iter().map(|root| root.to_vec()).collect() })
    }

    /// Has it alone vouch for the server of a configuration.
    pub(super) fn alone(self, config: &mut Config) {
        config.root_cert = Some(self.roots);
        // Where there is a file, as in a cluster, kube verifies by nothing else.
        config.root_cert_file = None;
        config.accept_invalid_certs = false;
    }
}

impl ApiServer {
    /// Who vouches for the daemon, as the deployment has published it, read with the user's own rights.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: there is nothing, it may not be read, or the API server itself was not verified, so that
    /// what it says is worth nothing.
    pub async fn published_authority(&self) -> Result<Authority, ConnectError> {
        let (namespace, name, key) = PUBLISHED;
        let none = |why: &str| {
            let why = format!(
                "its certificate has to be verified: --daemon-ca says who vouches for it, or the ConfigMap \
                 {namespace}/{name}, which {why}"
            );
            refused("--daemon", &why)
        };
        if !self.is_verified() {
            return Err(none("counts only if the API server's own certificate is verified"));
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.client()?, namespace);
        let map = maps.get_opt(name).await;
        let map = map.map_err(|error| none(&format!("cannot be read: {}", error_chain(&error))))?;
        let map = map.ok_or_else(|| none("is not there"))?;
        let pem = map.data.as_ref().and_then(|data| data.get(key));
        let pem = pem.ok_or_else(|| none(&format!("has no {key}")))?;
        Authority::of_pem(pem.as_bytes()).map_err(|why| none(&format!("cannot be used: {why}")))
    }

    /// Whether what is answered comes from whom it is said to come from.
    fn is_verified(&self) -> bool {
        match &self.connection {
            Connection::Network(config) => {
                config.cluster_url.scheme() == Some(&Scheme::HTTPS) && !config.accept_invalid_certs
            }
            Connection::InProcess(_) => true,
        }
    }

    /// Whether this one's credentials may be shown to a server at this address at all.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: the address is not HTTPS, or another user is to be impersonated, which only the API
    /// server can do.
    pub fn check_other(&self, url: &str) -> Result<(), ConnectError> {
        let Connection::Network(config) = &self.connection else {
            return Err(refused("--daemon", "there are no credentials to show"));
        };
        if uri(url)?.scheme() != Some(&Scheme::HTTPS) {
            return Err(refused("--daemon", "credentials go over HTTPS alone"));
        }
        if config.auth_info.impersonate.is_some() {
            return Err(refused("--daemon", "only the API server impersonates (--as)"));
        }
        Ok(())
    }

    /// A client of another server, with this one's credentials, if this authority alone vouches for it.
    ///
    /// # Errors
    /// As [`Self::check_other`]; [`ConnectError::Unusable`].
    pub fn client_of(&self, url: &str, authority: &Authority) -> Result<Client, ConnectError> {
        self.check_other(url)?;
        let Connection::Network(config) = &self.connection else {
            return Err(refused("--daemon", "there are no credentials to show"));
        };
        let mut config = config.clone();
        config.cluster_url = uri(url)?;
        authority.clone().alone(&mut config);
        config.tls_server_name = None;
        config.proxy_url = None;
        self.built(&config, url)
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Bytes;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn server(status: u16, answer: serde_json::Value) -> ApiServer {
        let service = tower::service_fn(move |request: Request<Body>| {
            assert_eq!(request.uri(), "/api/v1/namespaces/mooring-system/configmaps/mooring-explain-ca");
            let body = Full::<Bytes>::from(answer.to_string());
            async move { Ok::<_, std::io::Error>(Response::builder().status(status).body(body).unwrap()) }
        });
        ApiServer::in_process(Client::new(service, "default"))
    }

    fn status(code: u16, reason: &str) -> serde_json::Value {
        json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason })
    }

    fn certificate() -> String {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        pem::encode(&pem::Pem::new("CERTIFICATE", made.cert.der().to_vec()))
    }

    #[tokio::test]
    async fn what_is_published_is_the_certificate_of_the_config_map_and_nothing_else() {
        let pem = certificate();
        let map =
            |data: serde_json::Value| json!({ "metadata": { "name": "mooring-explain-ca" }, "data": data });
        let found = server(200, map(json!({ "ca.crt": pem }))).published_authority().await.unwrap();
        assert_eq!(found, Authority::of_pem(pem.as_bytes()).unwrap());
        for (code, answer, expected) in [
            (404, status(404, "NotFound"), "is not there"),
            (403, status(403, "Forbidden"), "cannot be read: "),
            (200, map(json!({ "tls.crt": pem })), "has no ca.crt"),
            (200, map(json!({ "ca.crt": "rubbish" })), "it has no certificate"),
        ] {
            let why = server(code, answer).published_authority().await.unwrap_err().to_string();
            assert!(
                why.contains(expected) && why.contains("--daemon-ca says who vouches"),
                "{expected}: {why}"
            );
        }
    }

    /// In a cluster the configuration has a file with the API server's authority, and kube verifies by that file alone.
    #[test]
    fn an_authority_alone_vouches() {
        let authority = Authority::of_pem(certificate().as_bytes()).unwrap();
        let mut config = Config::new("https://10.0.0.1".parse().unwrap());
        (config.root_cert_file, config.accept_invalid_certs) = (Some("/of/the/cluster".into()), true);
        authority.clone().alone(&mut config);
        assert_eq!((config.root_cert, config.root_cert_file), (Some(authority.roots), None));
        assert!(!config.accept_invalid_certs);
    }

    /// Who stands between could name an authority of their own.
    #[tokio::test]
    async fn an_api_server_that_was_not_verified_publishes_nothing() {
        for (url, skips) in [("https://127.0.0.1:1", true), ("http://127.0.0.1:1", false)] {
            let mut config = Config::new(url.parse().unwrap());
            config.accept_invalid_certs = skips;
            let api = ApiServer::over_network(config, "kubeconfig".to_owned(), None);
            let why = api.published_authority().await.unwrap_err().to_string();
            assert!(why.contains("only if the API server's own certificate is verified"), "{url}: {why}");
        }
    }
}
