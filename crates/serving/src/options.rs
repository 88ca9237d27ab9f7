//! How to serve: the validated form of the serving flags.
//!
//! They are made of flags with the names of Kubernetes' components, which the program has.

use std::{net::IpAddr, path::PathBuf, time::Duration};

/// Where the certificate and its key come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Made at each start, and kept in memory.
    Memory,
    /// Kept as `mooring.crt` and `mooring.key` in a folder, and made there if they are missing.
    Folder(PathBuf),
    /// Given files, read again when they change.
    Files {
        /// PEM, the server's own certificate first.
        certificate: PathBuf,
        /// PEM.
        key: PathBuf,
    },
}

/// The least version of TLS. Older ones than 1.2 cannot be spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// 1.2 and 1.3.
    #[default]
    Tls12,
    /// 1.3 alone.
    Tls13,
}

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Address; an unspecified one means all interfaces and both IP families.
    pub address: IpAddr,
    /// Port; 0 serves nothing.
    pub port: u16,
    /// Addresses of the node, from which its kubelet probes: no other client competes for their connections.
    pub node_addresses: Vec<IpAddr>,
    /// The server's certificate.
    pub certificate: CertificateSource,
    /// The least version of TLS.
    pub min_version: MinVersion,
    /// Names of the cipher suites of TLS 1.2; empty for all that are known. Those of 1.3 are always on.
    pub cipher_suites: Vec<String>,
    /// Names of those that were asked for, and are not spoken.
    pub skipped_cipher_suites: Vec<String>,
    /// Authorities of client certificates. Without it: those of the cluster.
    pub client_ca_file: Option<PathBuf>,
    /// Whether to do without the cluster's authorities.
    pub skip_lookup: bool,
    /// Where tokens are reviewed, if not where the daemon works.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Where access is reviewed, if not where the daemon works.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths for all clients; one that ends in `*` is a prefix.
    pub always_allow_paths: Vec<String>,
    /// How long the review of a token counts.
    pub token_ttl: Duration,
    /// How long a permission counts.
    pub authorized_ttl: Duration,
    /// How long a refusal counts.
    pub unauthorized_ttl: Duration,
}

impl Options {
    /// Whether a path is for all clients.
    // apiserver: pkg/authorization/path/path.go, NewAuthorizer.
    pub fn is_open(&self, path: &str) -> bool {
        let path = without_slash(path);
        self.always_allow_paths.iter().any(|open| {
            let open = without_slash(open);
            open.strip_suffix('*').map_or(path == open, |prefix| path.starts_with(prefix))
        })
    }
}

/// One slash in front is optional.
fn without_slash(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

#[cfg(test)]
pub(crate) fn for_tests() -> Options {
    Options {
        address: "127.0.0.1".parse().unwrap(),
        port: 0,
        node_addresses: Vec::new(),
        certificate: CertificateSource::Memory,
        min_version: MinVersion::default(),
        cipher_suites: Vec::new(),
        skipped_cipher_suites: Vec::new(),
        client_ca_file: None,
        skip_lookup: false,
        authentication_kubeconfig: None,
        authorization_kubeconfig: None,
        always_allow_paths: ["/healthz", "/readyz", "/livez"].map(str::to_owned).to_vec(),
        token_ttl: Duration::from_secs(10),
        authorized_ttl: Duration::from_secs(10),
        unauthorized_ttl: Duration::from_secs(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_open_by_name_or_by_prefix() {
        let options =
            Options { always_allow_paths: vec!["/healthz".to_owned(), "/open/*".to_owned()], ..for_tests() };
        let cases = [
            ("/healthz", true),
            ("/healthz/ping", false),
            ("/healthzz", false),
            ("//healthz", false),
            ("/open/a/b", true),
            ("/open", false),
            ("/metrics", false),
            ("/", false),
        ];
        for (path, expected) in cases {
            assert_eq!(options.is_open(path), expected, "{path}");
        }
    }
}
