//! Flags of serving, with kube-controller-manager's names and meaning.
//!
//! In: [`ServingArgs`] as the operator types them. Out: [`Options`], or the flag that cannot be. Files
//! are read when the daemon starts.

use std::{
    net::{AddrParseError, IpAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use serving::{CertificateSource, MinVersion, Options, cipher_suites};

use crate::{config::error::ConfigError, durations::parse_duration, fence::arguments::parse_bool};

/// Flags of serving.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Serving")]
pub struct ServingArgs {
    /// Address to serve on. An unspecified one (:: or 0.0.0.0) means all interfaces and both IP families.
    #[arg(long, value_name = "IP", default_value = "::")]
    pub bind_address: IpAddr,

    /// Port to serve HTTPS on; 0 serves nothing.
    #[arg(long, value_name = "PORT", default_value_t = 10270)]
    pub secure_port: u16,

    /// Addresses of the node, from which its kubelet probes: a share of the connections is kept for them.
    #[arg(long, value_name = "IPS", value_delimiter = ',')]
    pub node_addresses: Vec<String>,

    /// Replaced by --secure-port.
    #[arg(long, value_name = "PORT", hide = true)]
    pub port: Option<String>,

    /// Folder for mooring.crt and mooring.key, which are made if they are missing. Without it and without
    /// --tls-cert-file a certificate is made at each start, and kept in memory.
    #[arg(long, value_name = "FOLDER")]
    pub cert_dir: Option<PathBuf>,

    /// File with the server's certificate and those between it and its authority (PEM). Read again when it
    /// changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// File with the key of --tls-cert-file (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Least version of TLS: VersionTLS12 or VersionTLS13.
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12")]
    pub tls_min_version: String,

    /// Cipher suites of TLS 1.2 [default: all that are known, which are all without known weakness]. Those of
    /// TLS 1.3 are always on.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,

    /// File with the authorities of client certificates (PEM), read again when it changes [default: those in
    /// the ConfigMap extension-apiserver-authentication in kube-system].
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// Do without the authorities in the cluster.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub authentication_skip_lookup: bool,

    /// Kubeconfig of the API server that reviews tokens [default: the one that the daemon works on].
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// How long the review of a token counts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// Kubeconfig of the API server that reviews access [default: the one that the daemon works on].
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Paths that every client may read, without reasons; a trailing * makes a prefix.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,

    /// How long a permission counts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long a refusal counts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl TryFrom<ServingArgs> for Options {
    type Error = ConfigError;

    fn try_from(args: ServingArgs) -> Result<Self, ConfigError> {
        if args.port.is_some() {
            let problem = "is gone: --secure-port serves HTTPS (0 serves nothing), and who reads /metrics needs a \
                           token or a client certificate";
            return Err(ConfigError::new("port", problem));
        }
        let certificate = match (args.tls_cert_file, args.tls_private_key_file, args.cert_dir) {
            (Some(certificate), Some(key), _) => CertificateSource::Files { certificate, key },
            (Some(_), None, _) => {
                return Err(ConfigError::new("tls-cert-file", "needs --tls-private-key-file"));
            }
            (None, Some(_), _) => {
                return Err(ConfigError::new("tls-private-key-file", "needs --tls-cert-file"));
            }
            (None, None, Some(folder)) => CertificateSource::Folder(folder),
            (None, None, None) => CertificateSource::Memory,
        };
        let min_version = match args.tls_min_version.as_str() {
            "" | "VersionTLS12" => MinVersion::Tls12,
            "VersionTLS13" => MinVersion::Tls13,
            other => {
                let problem = match other {
                    "VersionTLS10" | "VersionTLS11" => "TLS before 1.2 cannot be spoken",
                    _ => "must be VersionTLS12 or VersionTLS13",
                };
                return Err(ConfigError::new("tls-min-version", problem));
            }
        };
        let (cipher_suites, skipped_cipher_suites) = choose_cipher_suites(&args.tls_cipher_suites)?;
        let node_addresses = args.node_addresses.iter().filter(|address| !address.is_empty());
        let node_addresses = node_addresses.map(|address| {
            let problem =
                |error: AddrParseError| ConfigError::new("node-addresses", format!("{address:?}: {error}"));
            address.parse().map_err(problem)
        });
        let paths: Vec<String> =
            args.authorization_always_allow_paths.into_iter().filter(|path| !path.is_empty()).collect();
        // apiserver: pkg/authorization/path/path.go, NewAuthorizer.
        let inner_star = |path: &&String| path.strip_suffix('*').unwrap_or(path).contains('*');
        if let Some(path) = paths.iter().find(inner_star) {
            let problem = format!("{path:?}: only a * at the end makes a prefix");
            return Err(ConfigError::new("authorization-always-allow-paths", problem));
        }
        Ok(Self {
            address: args.bind_address,
            port: args.secure_port,
            node_addresses: node_addresses.collect::<Result<_, _>>()?,
            certificate,
            min_version,
            cipher_suites,
            skipped_cipher_suites,
            client_ca_file: args.client_ca_file,
            skip_lookup: args.authentication_skip_lookup,
            authentication_kubeconfig: args.authentication_kubeconfig,
            authorization_kubeconfig: args.authorization_kubeconfig,
            always_allow_paths: paths,
            token_ttl: args.authentication_token_webhook_cache_ttl,
            authorized_ttl: args.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: args.authorization_webhook_cache_unauthorized_ttl,
        })
    }
}

/// Cipher suites of `--tls-cipher-suites`, and those that are not spoken here: Go's without known weaknesses are.
///
/// # Errors
/// Nothing would be left.
fn choose_cipher_suites(names: &[String]) -> Result<(Vec<String>, Vec<String>), ConfigError> {
    let known = cipher_suites();
    let names = names.iter().filter(|name| !name.is_empty()).map(|name| match name.as_str() {
        // Go has two names for these.
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => {
            format!("{name}_SHA256")
        }
        _ => name.clone(),
    });
    let (chosen, skipped): (Vec<_>, Vec<_>) = names.partition(|name| known.contains(name));
    if chosen.is_empty() && !skipped.is_empty() {
        let (skipped, known) = (skipped.join(", "), known.join(", "));
        let problem = format!("{skipped} cannot be spoken, choose among those there are: {known}");
        return Err(ConfigError::new("tls-cipher-suites", problem));
    }
    Ok((chosen, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn options(arguments: &[&str]) -> Result<Options, ConfigError> {
        let Command::Run(args) = cli::parse(["mooring", "run"].iter().chain(arguments)).unwrap().command
        else {
            panic!("it is run")
        };
        Options::try_from(args.serving)
    }

    #[test]
    fn defaults_are_those_of_kcm() {
        let expected = Options {
            address: "::".parse().unwrap(),
            port: 10270,
            node_addresses: Vec::new(),
            certificate: CertificateSource::Memory,
            min_version: MinVersion::Tls12,
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
        };
        assert_eq!(options(&[]), Ok(expected));
    }

    #[test]
    fn certificates_come_from_where_they_are_said_to() {
        let source = |arguments: &[&str]| options(arguments).unwrap().certificate;
        let files = ["--tls-cert-file=a", "--tls-private-key-file=b", "--cert-dir=c"];
        let expected = CertificateSource::Files { certificate: "a".into(), key: "b".into() };
        assert_eq!(source(&files), expected);
        assert_eq!(source(&["--cert-dir=c"]), CertificateSource::Folder("c".into()));
    }

    #[test]
    fn lists_are_written_as_in_go() {
        let options = options(&[
            "--authorization-always-allow-paths=/healthz,/metrics",
            "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_AES_128_GCM_SHA256,\
             TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,TLS_ROT13",
            "--tls-min-version=VersionTLS13",
            "--node-addresses=10.0.0.1,fd00::1",
        ]);
        let options = options.unwrap();
        assert_eq!(options.always_allow_paths, ["/healthz", "/metrics"]);
        let suites = ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"];
        assert_eq!(options.cipher_suites, suites);
        assert_eq!(options.skipped_cipher_suites, ["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "TLS_ROT13"]);
        let addresses: [IpAddr; 2] = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        assert_eq!(options.node_addresses, addresses);
        assert_eq!(options.min_version, MinVersion::Tls13);
        assert!(!options.is_open("/livez"));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cases: [(&[&str], &str); 8] = [
            (&["--port=10270"], "--port: is gone: --secure-port serves HTTPS"),
            (&["--tls-cert-file=a"], "--tls-cert-file: needs --tls-private-key-file"),
            (&["--tls-private-key-file=a"], "--tls-private-key-file: needs --tls-cert-file"),
            (&["--tls-min-version=VersionTLS10"], "--tls-min-version: TLS before 1.2 cannot be spoken"),
            (&["--tls-min-version=1.2"], "--tls-min-version: must be VersionTLS12 or VersionTLS13"),
            (
                &["--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"],
                "--tls-cipher-suites: TLS_RSA_WITH_RC4_128_SHA cannot be spoken, choose among those there are: TLS_",
            ),
            (
                &["--authorization-always-allow-paths=/healthz,/a*b"],
                "--authorization-always-allow-paths: \"/a*b\": only a * at the end makes a prefix",
            ),
            (&["--node-addresses=node-1"], "--node-addresses: \"node-1\": invalid IP address syntax"),
        ];
        for (arguments, expected) in cases {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
