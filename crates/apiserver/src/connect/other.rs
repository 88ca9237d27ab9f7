//! A server other than the API server that is shown the same credentials: a daemon that answers questions.
//!
//! In: its address, and who vouches for its certificate: a file. Out: a client. Credentials go to no server that was not verified by
//! that file: the system's own authorities are not asked.

use std::{fs, path::Path};

use http::uri::Scheme;
use kube::{Client, Config};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

use super::{ApiServer, ConnectError, Connection, refused, uri};

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
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let roots = roots.map_err(|error| unreadable(error.to_string()))?;
        if roots.is_empty() {
            return Err(unreadable("it has no certificate".to_owned()));
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
    /// A client of another server, with this one's credentials, if this authority alone vouches for it.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: the address is not HTTPS, or another user is to be impersonated, which only the API
    /// server can do; [`ConnectError::Unusable`].
    pub fn client_of(&self, url: &str, authority: Authority) -> Result<Client, ConnectError> {
        let Connection::Network(config) = &self.connection else {
            return Err(refused("--daemon", "there are no credentials to show"));
        };
        let mut config = config.clone();
        config.cluster_url = uri(url)?;
        if config.cluster_url.scheme() != Some(&Scheme::HTTPS) {
            return Err(refused("--daemon", "credentials go over HTTPS alone"));
        }
        if config.auth_info.impersonate.is_some() {
            return Err(refused("--daemon", "only the API server impersonates (--as)"));
        }
        authority.alone(&mut config);
        config.tls_server_name = None;
        config.proxy_url = None;
        self.built(&config, url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a cluster the configuration has a file with the API server's authority, and kube verifies by that file alone.
    #[test]
    fn an_authority_alone_vouches() {
        let authority = Authority { roots: vec![vec![1]] };
        let mut config = Config::new("https://10.0.0.1".parse().unwrap());
        (config.root_cert_file, config.accept_invalid_certs) = (Some("/of/the/cluster".into()), true);
        authority.clone().alone(&mut config);
        assert_eq!((config.root_cert, config.root_cert_file), (Some(authority.roots), None));
        assert!(!config.accept_invalid_certs);
    }
}
