//! Whether the API server is reached through a proxy, and the connections that begin there.
//!
//! In: `proxy-url` of the kubeconfig, the environment, the server. Out: a connector. As with client-go, `proxy-url` holds for every
//! server. The environment (`HTTPS_PROXY`, for a server without TLS `HTTP_PROXY`) holds for a server that is neither this machine
//! nor named by `NO_PROXY`, which follows Go's rules. kube asks the environment, too, but compares `NO_PROXY` with the proxy.
//!
//! The proxy looks up the name of the server. An HTTPS proxy is verified as the server is, with its own name. Unlike with client-go,
//! a server without TLS is reached by CONNECT: a proxy that reads requests could hold a write back ([`super::super::call::gate`]).

use std::{net::IpAddr, time::Duration};

use http::{Uri, uri::Scheme};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::{
    client::{
        legacy::connect::{
            HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioIo,
};
use ipnet::IpNet;
use kube::{
    Config,
    client::ConfigExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use thiserror::Error;
use tokio::{net::TcpStream, time::timeout};
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};

/// Makes connections to the server of a configuration.
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// How long a proxy may take: less than all of a connection may, so that the proxy is named.
const LONGEST_ANSWER: Duration = Duration::from_secs(4);

/// A proxy, and the server behind it. Both addresses have a port.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    /// With credentials, which its `Debug` does not show.
    intercept: Intercept,
    is_socks: bool,
    address: Uri,
    server: Uri,
}

/// What failed between this process and the server, and where.
#[derive(Debug, Error)]
#[error("through the proxy {proxy}")]
struct Through {
    proxy: String,
    source: BoxError,
}

/// Whether the cluster that is chosen in a kubeconfig names a proxy.
pub(super) fn is_named(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> bool {
    let context = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = kubeconfig.contexts.iter().find(|named| Some(&named.name) == context);
    let context = context.and_then(|named| named.context.as_ref());
    let cluster = options.cluster.as_ref().or(context.map(|context| &context.cluster));
    let cluster = kubeconfig.clusters.iter().find(|named| Some(&named.name) == cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_ref());
    cluster.and_then(|cluster| cluster.proxy_url.as_ref()).is_some_and(|url| !url.is_empty())
}

impl Proxy {
    /// The proxy of a configuration whose `proxy_url` is the kubeconfig's own, or that of the environment.
    ///
    /// # Errors
    /// The setting that has no URL of a proxy.
    pub(super) fn of(
        config: &Config,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, &'static str> {
        let server = &config.cluster_url;
        if let Some(url) = &config.proxy_url {
            return Self::at(&url.to_string(), server).ok_or("proxy-url").map(Some);
        }
        let first = |names: [&'static str; 2]| {
            let values = names.into_iter().filter_map(|name| Some((name, variable(name)?)));
            values.into_iter().find(|(_, value)| !value.is_empty())
        };
        let is_plain = server.scheme() == Some(&Scheme::HTTP);
        let names = if is_plain { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
        let Some((name, url)) = first(names) else { return Ok(None) };
        let excluded = first(["NO_PROXY", "no_proxy"]).map(|(_, list)| list).unwrap_or_default();
        if is_this_machine(config) || is_excluded(server, &excluded) {
            return Ok(None);
        }
        let url = if url.contains("://") { url } else { format!("http://{url}") };
        Self::at(&url, server).ok_or(name).map(Some)
    }

    fn at(url: &str, server: &Uri) -> Option<Self> {
        if !url.contains("://") {
            return None;
        }
        let matcher = Matcher::builder().all(url).build();
        let intercept = matcher.intercept(&Uri::from_static("https://any"))?;
        let (is_socks, scheme, default_port) = match intercept.uri().scheme_str()? {
            "http" => (false, Scheme::HTTP, 80),
            "https" => (false, Scheme::HTTPS, 443),
            "socks5" | "socks5h" => (true, Scheme::HTTP, 1080),
            _ => return None,
        };
        let address = with_port(intercept.uri(), scheme, default_port)?;
        let server = with_port(server, server.scheme()?.clone(), port_of(server))?;
        Some(Self { intercept, is_socks, address, server })
    }

    fn connector(self, config: &Config, tcp: HttpConnector) -> Result<Connector, kube::Error> {
        let Self { intercept, is_socks, address, server } = self;
        let mut config = config.clone();
        config.tls_server_name = None;
        let first_hop = config.rustls_https_connector_with_connector(tcp)?;
        let proxy = address.authority().map(ToString::to_string).unwrap_or_default();
        let through = move |source: BoxError| BoxError::from(Through { proxy: proxy.clone(), source });
        let to_server = move |_: Uri| server.clone();
        if is_socks {
            let mut socks = SocksV5::new(address, first_hop);
            if let Some((user, password)) = intercept.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            let socks = socks.map_future(in_time).map_err(through);
            return Ok(Connector::new(socks.map_request(to_server)));
        }
        let mut tunnel = Tunnel::new(address, first_hop);
        if let Some(credentials) = intercept.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let tunnel = tunnel.map_future(in_time).map_err(through);
        Ok(Connector::new(tunnel.map_request(to_server)))
    }
}

async fn in_time<T, E: Into<BoxError>>(
    connecting: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    match timeout(LONGEST_ANSWER, connecting).await {
        Ok(connected) => connected.map_err(Into::into),
        Err(_) => Err(format!("no answer within {LONGEST_ANSWER:?}").into()),
    }
}

/// Connections to the server of a configuration, through the proxy if there is one.
pub(super) fn connector(
    config: &Config,
    proxy: Option<&Proxy>,
    tcp: HttpConnector,
) -> Result<Connector, kube::Error> {
    match proxy {
        Some(proxy) => proxy.clone().connector(config, tcp),
        None => Ok(Connector::new(tcp.map_response(MaybeHttpsStream::Http).map_err(BoxError::from))),
    }
}

fn with_port(url: &Uri, scheme: Scheme, default: u16) -> Option<Uri> {
    let authority = format!("{}:{}", url.host()?, url.port_u16().unwrap_or(default));
    Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build().ok()
}

fn port_of(server: &Uri) -> u16 {
    let default = if server.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
    server.port_u16().unwrap_or(default)
}

/// Whether the server is on this machine. As with client-go the environment names no proxy for it.
pub(super) fn is_this_machine(config: &Config) -> bool {
    let host = config.cluster_url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Whether `NO_PROXY` names a server.
///
/// Go: x/net/http/httpproxy/proxy.go `init` reads the list, and `useProxy` compares.
fn is_excluded(server: &Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default().to_ascii_lowercase();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port_of(server).to_string();
    list.split(',').any(|entry| names(&entry.trim().to_ascii_lowercase(), host, &port))
}

/// Whether an entry of the list names a host: `*`, a network, an address, a domain with all below it, or, after a dot, only what is
/// below it. All but networks may have a port.
fn names(entry: &str, host: &str, port: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let is_host = |name: &str| !name.contains(':') || name.starts_with('[') && name.ends_with(']');
    let (name, its_port) = match entry.rsplit_once(':') {
        Some((name, its_port)) if is_host(name) => (name, its_port),
        _ => (entry, ""),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() || !its_port.is_empty() && its_port != port {
        return false;
    }
    let named_address: Option<IpAddr> = name.parse().ok();
    if named_address.is_some() || address.is_some() {
        return named_address == address;
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|before| before.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is set in the environment.
    type Set = &'static [(&'static str, &'static str)];
    /// Where connections begin, or which setting is refused.
    type Begin = Result<Option<&'static str>, &'static str>;

    fn proxy(server: &str, proxy_url: Option<&str>, set: Set) -> Result<Option<Proxy>, &'static str> {
        let mut config = Config::new(server.parse().unwrap());
        config.proxy_url = proxy_url.map(|url| url.parse().unwrap());
        let variable =
            |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        Proxy::of(&config, variable)
    }

    #[test]
    fn m3_proxy_url_holds_always_and_the_environment_unless_it_excludes_the_server() {
        const BOTH: Set =
            &[("HTTPS_PROXY", "http://env:3128"), ("HTTP_PROXY", "http://plain"), ("NO_PROXY", "api")];
        // server, proxy-url, environment
        let cases: [(&str, Option<&str>, Set, Begin); 18] = [
            ("https://api", None, &[], Ok(None)),
            ("https://api", Some("http://own"), BOTH, Ok(Some("http://own:80/"))),
            ("https://127.0.0.1:6443", Some("https://own"), BOTH, Ok(Some("https://own:443/"))),
            ("https://localhost", Some("socks5://own"), BOTH, Ok(Some("http://own:1080/"))),
            ("https://api", Some("socks5h://own:9"), &[], Ok(Some("http://own:9/"))),
            ("https://api", Some("socks4://own"), &[], Err("proxy-url")),
            ("https://api", Some("own:3128"), &[], Err("proxy-url")),
            ("https://api", None, BOTH, Ok(None)),
            ("https://other", None, BOTH, Ok(Some("http://env:3128/"))),
            ("http://other", None, BOTH, Ok(Some("http://plain:80/"))),
            ("https://127.0.0.2", None, BOTH, Ok(None)),
            ("https://[::1]:6443", None, BOTH, Ok(None)),
            ("https://localhost:6443", None, BOTH, Ok(None)),
            (
                "https://api",
                None,
                &[("HTTPS_PROXY", ""), ("https_proxy", "small")],
                Ok(Some("http://small:80/")),
            ),
            ("https://api", None, &[("HTTPS_PROXY", "env:3128/")], Ok(Some("http://env:3128/"))),
            ("https://api", None, &[("ALL_PROXY", "all"), ("HTTP_PROXY", "plain")], Ok(None)),
            ("https://api", None, &[("https_proxy", "ftp://env")], Err("https_proxy")),
            ("https://api", None, &[("https_proxy", "ftp://env"), ("no_proxy", "*")], Ok(None)),
        ];
        for (server, proxy_url, set, expected) in cases {
            let found = proxy(server, proxy_url, set);
            let found = found.map(|proxy| proxy.map(|proxy| proxy.address.to_string()));
            assert_eq!(found, expected.map(|url| url.map(str::to_owned)), "{server} {proxy_url:?} {set:?}");
        }
    }

    #[test]
    fn m3_credentials_are_shown_to_the_proxy_and_nowhere_else() {
        let tunnel = proxy("https://api", Some("http://user:pa%40ss@own"), &[]).unwrap().unwrap();
        assert_eq!(tunnel.intercept.basic_auth().unwrap(), "Basic dXNlcjpwYUBzcw==");
        let socks = proxy("https://api", Some("socks5://user:pa%40ss@own"), &[]).unwrap().unwrap();
        assert_eq!(socks.intercept.raw_auth(), Some(("user", "pa@ss")));
        for shown in [format!("{tunnel:?}"), format!("{socks:?}")] {
            assert!(!shown.contains("pa") || !shown.contains("ss"), "{shown}");
        }
    }

    #[test]
    fn no_proxy_is_read_as_by_go() {
        let server: Uri = "https://api.k8s.example:6443".parse().unwrap();
        let address: Uri = "https://10.1.2.3".parse().unwrap();
        let six: Uri = "https://[fd00::7]:6443".parse().unwrap();
        // the list; whether it names the name, the address, and the one of IPv6
        let cases = [
            ("", [false, false, false]),
            ("other, *", [true, true, true]),
            ("api.k8s.example", [true, false, false]),
            ("API.K8s.Example:6443", [true, false, false]),
            ("api.k8s.example:443", [false, false, false]),
            ("k8s.example", [true, false, false]),
            (".k8s.example", [true, false, false]),
            ("*.k8s.example", [true, false, false]),
            (".api.k8s.example", [false, false, false]),
            ("pi.k8s.example", [false, false, false]),
            ("*example", [false, false, false]),
            ("10.1.2.3", [false, true, false]),
            ("10.1.2.3:443", [false, true, false]),
            ("10.1.2.3:6443", [false, false, false]),
            ("10.0.0.0/8", [false, true, false]),
            ("10.2.0.0/16,2.3", [false, false, false]),
            ("fd00::7", [false, false, true]),
            ("[fd00::7]:6443", [false, false, true]),
            ("[fd00::7]:443", [false, false, false]),
            ("fd00::/8", [false, false, true]),
            (":6443,,", [false, false, false]),
        ];
        for (list, expected) in cases {
            let found = [&server, &address, &six].map(|server| is_excluded(server, list));
            assert_eq!(found, expected, "{list:?}");
        }
    }
}
