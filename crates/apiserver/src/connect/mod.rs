//! How to reach the API server: which configuration, and clients made from it.
//!
//! In: `--kubeconfig` and the environment. Out: an [`ApiServer`], which makes clients. Each client
//! has a connection pool and a queue of its own, so that renewals of the lease never wait behind
//! the main traffic.
//!
//! The stack is kube's default one with differences that its configuration does not offer: TCP
//! keepalive and user time-out, without which a watch on a dead connection goes unnoticed for five minutes
//! and a request that was given up may still be delivered minutes later; writes that are kept back until
//! the server has begun with them ([`super::call::gate`]); no per-request trace layer; and proxies as
//! client-go has them ([`proxy`]). Renewed client certificates are taken ([`reload`]); token files, and within a
//! cluster certificates of authorities, kube reloads itself. Plugins are run here ([`plugin`]); that nothing is
//! accepted any more is told ([`refusals`]).

mod choice;
mod other;
mod plugin;
mod proxy;
#[cfg(test)]
mod proxy_tests;
mod refusals;
mod reload;
#[cfg(test)]
mod rotation_tests;

use std::{
    env,
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{HeaderValue, Request, header::USER_AGENT};
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::{client::Resumption, pki_types::InvalidDnsNameError};
use tower::{BoxError, ServiceBuilder};

pub use self::{choice::Choice, other::Authority};
use self::{plugin::Plugin, proxy::Proxy, refusals::Refusals};
use super::{call::gate::Gated, error_chain, sight::Sight};

/// Who asks. The server makes the name of a manager of the part before the slash.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("mooring/", env!("CARGO_PKG_VERSION")));

/// Time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection on which nothing moves is probed after this long, then every
/// [`KEEPALIVE_INTERVAL`]; after [`KEEPALIVE_RETRIES`] silent probes it is dead.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// See [`KEEPALIVE`].
const KEEPALIVE_RETRIES: u32 = 3;

/// What the other side's kernel has not acknowledged after this long is not sent any more, also not by ours after
/// the request was given up, and the connection is over. Several retransmissions fit in.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle connections are closed before the server does it (after 90 s or more).
const POOL_IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// Why there is no configuration to connect with.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// A flag that cannot be followed.
    #[error("{flag}: {why}")]
    Refused {
        /// The flag.
        flag: &'static str,
        /// Why not.
        why: String,
    },
    /// A configuration, or what it names, cannot be used.
    #[error("{origin}: {why}")]
    Unusable {
        /// Where the configuration came from.
        origin: String,
        /// What is wrong with it.
        why: String,
    },
}

/// For how long the API server and this process may refuse each other before it ends, to be started again. Longer than
/// an API server takes to read authorities that were rotated.
const LONGEST_REFUSAL: Duration = Duration::from_mins(3);

/// The pause between two attempts to make a new connection. Nothing else tells: who has an old one needs no other.
const CONNECT_PAUSE: Duration = Duration::from_secs(30);
/// The same while none can be made, so that the end of that is seen soon.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);
/// How long an attempt may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Nothing that this process could show or believe was accepted any more.
#[derive(Debug, Error)]
#[error(
    "for {} min the API server has refused the credentials of {origin}, its certificate could not be verified by them, or \
     there were none ({why}): what was read is out of date, and is read again by a process that begins anew",
    LONGEST_REFUSAL.as_secs() / 60
)]
pub struct OutOfDate {
    origin: String,
    why: String,
}

/// The API server and how to talk to it.
#[derive(Clone, derive_more::Debug)]
#[debug("ApiServer({origin})")]
pub struct ApiServer {
    connection: Connection,
    plugin: Option<Arc<Plugin>>,
    refusals: Refusals,
    /// Those of [`ApiServer::apart`].
    refusals_apart: Refusals,
    origin: String,
    /// Namespace of the pod we run in; `None` outside a cluster.
    pub own_namespace: Option<String>,
}

#[derive(Clone)]
enum Connection {
    Network(Box<Config>),
    InProcess(Client),
}

impl ApiServer {
    /// An API server in this process, reached without a socket.
    pub fn in_process(client: Client) -> Self {
        Self::over(Connection::InProcess(client), "in process".to_owned())
    }

    /// Finds the configuration: the named file, else the pod's service account, else the default
    /// kubeconfig.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn find(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        if kubeconfig.is_none() && env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            let config = in_cluster()?;
            let own_namespace = Some(config.default_namespace.clone());
            return Ok(Self::over_network(config, "in-cluster configuration".to_owned(), own_namespace));
        }
        Self::choose(&Choice { kubeconfig: kubeconfig.map(Path::to_owned), ..Choice::default() }).await
    }

    /// The one of a kubeconfig that a flag names.
    ///
    /// # Errors
    /// See [`ConnectError::Unusable`].
    pub async fn read(flag: &'static str, file: &Path) -> Result<Self, ConnectError> {
        let origin = format!("{flag} {}", file.display());
        let chosen = |error| unreadable(&origin, &error);
        let content = Kubeconfig::read_from(file).map_err(chosen)?;
        let config = config_of(content, &KubeConfigOptions::default()).await;
        Self::over_network(config.map_err(chosen)?, origin, None).prepared().await
    }

    fn over(connection: Connection, origin: String) -> Self {
        let [refusals, refusals_apart] = Default::default();
        Self { connection, plugin: None, refusals, refusals_apart, origin, own_namespace: None }
    }

    fn over_network(mut config: Config, origin: String, own_namespace: Option<String>) -> Self {
        config.headers.push((USER_AGENT, AGENT));
        let plugin = Plugin::take(&mut config.auth_info);
        Self { plugin, own_namespace, ..Self::over(Connection::Network(Box::new(config)), origin) }
    }

    /// The same, if the plugin that gives the credentials does, or there is none.
    async fn prepared(self) -> Result<Self, ConnectError> {
        if let Connection::Network(config) = &self.connection
            && let Some(provider) = &config.auth_info.auth_provider
            && provider.name != "oidc"
        {
            // client-go has no other any more. kube runs the commands of one, with what is said in `plugin`.
            let why = format!("{}: {:?} is not supported: use a plugin (exec)", self.origin, provider.name);
            return Err(refused("auth-provider", &why));
        }
        if let Some(plugin) = &self.plugin {
            plugin.prepare().await.map_err(|error| unusable(&self.origin, &error))?;
        }
        Ok(self)
    }

    /// The same for those that must connect anew now and then, as who writes. What the elector is answered on a
    /// connection that it never leaves says nothing of that.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { refusals: self.refusals_apart.clone(), ..self.clone() }
    }

    /// Tries now and then whether a new connection can be made.
    ///
    /// # Errors
    /// See [`ApiServer::client`].
    pub async fn keep_connecting(self, sight: Sight) -> Result<(), ConnectError> {
        let Connection::Network(_) = self.connection else { return pending().await };
        let client = self.apart().client()?;
        let mut in_vain_since = None;
        loop {
            let began = Instant::now();
            // The next one, too, is to connect.
            let request = Request::get("/version").header("connection", "close").body(Body::empty());
            let answer = async {
                let request = request.map_err(|error| error.to_string())?;
                client.send(request).await.map_err(|error| error_chain(&error))
            };
            let answer = timeout(CONNECT_LIMIT, answer).await.unwrap_or_else(|error| Err(error.to_string()));
            if let (Err(error), None) = (&answer, in_vain_since) {
                tracing::warn!(error, "no new connection can be made");
            }
            let is_answered = answer.is_ok();
            in_vain_since = (!is_answered).then(|| in_vain_since.unwrap_or(began));
            sight.set_cut_off(in_vain_since);
            sleep(if is_answered { CONNECT_PAUSE } else { RECONNECT_PAUSE }).await;
        }
    }

    /// Waits until, for some minutes, nothing has come but refusals. In a cluster it goes on: what is read there is read
    /// again while it runs, and one that begins anew knows nothing else.
    pub async fn out_of_date(&self) -> OutOfDate {
        if matches!(&self.connection, Connection::Network(config) if config.root_cert_file.is_some()) {
            pending::<()>().await;
        }
        let why = tokio::select! {
            why = self.refusals.last(LONGEST_REFUSAL) => why,
            why = self.refusals_apart.last(LONGEST_REFUSAL) => why,
        };
        OutOfDate { origin: self.origin.clone(), why }
    }

    /// Host and port, as client-go's metrics show it.
    pub fn host(&self) -> String {
        match &self.connection {
            Connection::Network(config) => {
                // Without a password, if somebody has put one there.
                let authority = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
                authority.rsplit_once('@').map_or(authority.clone(), |(_, host)| host.to_owned())
            }
            Connection::InProcess(_) => self.origin.clone(),
        }
    }

    /// Where the configuration came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The client certificate as it is now, with those that vouch for it, as PEM; none with a token or a plugin.
    /// Reads a file.
    pub fn client_certificate(&self) -> Option<Vec<u8>> {
        let Connection::Network(config) = &self.connection else { return None };
        let user = &config.auth_info;
        match (&user.client_certificate_data, &user.client_certificate) {
            (Some(data), _) => {
                let data = serde_json::from_value::<ByteString>(data.clone().into()).ok()?;
                Some(data.0)
            }
            (None, Some(file)) => std::fs::read(file).ok(),
            (None, None) => None,
        }
    }

    /// A client with connections of its own. Connects when it is first used.
    ///
    /// # Errors
    /// [`ConnectError::Unusable`]: the proxy that is named, or the certificates, keys or credentials.
    pub fn client(&self) -> Result<Client, ConnectError> {
        match &self.connection {
            Connection::Network(config) => self.built(config, &self.origin),
            Connection::InProcess(client) => Ok(named(client.clone(), self.refusals.clone())),
        }
    }

    /// A client of that configuration, with the credentials that the plugin gives, if there is one.
    fn built(&self, config: &Config, origin: &str) -> Result<Client, ConnectError> {
        let proxy = Proxy::of(config, |name| env::var(name).ok());
        // The value of the setting may hold credentials.
        let no_url = "is no URL of a proxy: it has to begin with http://, https:// or socks5://";
        let proxy = proxy.map_err(|setting| unusable(origin, &format!("{setting} {no_url}")))?;
        self.built_through(proxy, config).map_err(|error| unusable(origin, &error))
    }

    fn built_through(&self, proxy: Option<Proxy>, config: &Config) -> Result<Client, kube::Error> {
        let refusals = self.refusals.clone();
        let build = move |config: &Config| build(config, proxy.as_ref(), refusals.clone());
        if let Some(plugin) = &self.plugin {
            return Ok(Arc::clone(plugin).client(config.clone(), self.refusals.clone(), build));
        }
        let user = &config.auth_info;
        let files = [&user.client_certificate, &user.client_key];
        let files: Vec<PathBuf> = files.into_iter().flatten().map(PathBuf::from).collect();
        if files.is_empty() {
            return build(config);
        }
        let config = config.clone();
        reload::reloading(files, config.default_namespace.clone(), move || build(&config))
    }
}

/// What options choose in a kubeconfig; `proxy_url` only if it stands there.
async fn config_of(content: Kubeconfig, options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    let has_proxy = proxy::is_named(&content, options);
    let mut config = Config::from_custom_kubeconfig(content, options).await?;
    config.proxy_url = config.proxy_url.filter(|_| has_proxy);
    Ok(config)
}

/// The same client, which says who asks, as one over the network does.
fn named(client: Client, refusals: Refusals) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, AGENT);
        let (client, refusals) = (client.clone(), refusals.clone());
        async move {
            let result = client.send(request).await.map_err(BoxError::from);
            refusals.note(&result);
            result
        }
    });
    Client::new(service, namespace)
}

fn build(config: &Config, proxy: Option<&Proxy>, refusals: Refusals) -> Result<Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let to_server = proxy::connector(config, proxy, tcp)?;
    // To a session that is resumed the server shows no certificate: one that nobody vouches for any more would go unseen.
    let mut tls = config.rustls_client_config()?;
    tls.resumption = Resumption::disabled();
    let names: Arc<dyn ResolveServerName + Send + Sync> = match config.tls_server_name.clone() {
        Some(name) => {
            let name =
                name.try_into().map_err(|error: InvalidDnsNameError| kube::Error::Service(error.into()))?;
            Arc::new(FixedServerNameResolver::new(name))
        }
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    let mut connector = TimeoutConnector::new(HttpsConnector::new(to_server, tls, false, names));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let http: hyper_util::client::legacy::Client<_, Gated> = Builder::new(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(connector);
    let service = ServiceBuilder::new()
        .map_result(move |result| {
            refusals.note(&result);
            result
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(Gated::request)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The address of a server; without a scheme it is HTTPS.
fn uri(server: &str) -> Result<http::Uri, ConnectError> {
    let with_scheme = if server.contains("://") { server.to_owned() } else { format!("https://{server}") };
    let uri: http::Uri =
        with_scheme.parse().map_err(|error| refused("--server", &format!("{server:?}: {error}")))?;
    match uri.scheme_str() {
        Some("https" | "http") if uri.host().is_some() => Ok(uri),
        _ => Err(refused("--server", &format!("{server:?} is no address of an API server"))),
    }
}

/// What is wrong with a configuration from there.
fn unusable(origin: &str, why: &impl ToString) -> ConnectError {
    ConnectError::Unusable { origin: origin.to_owned(), why: why.to_string() }
}

/// The same of a kubeconfig. The YAML reader quotes the lines around a mistake, which may hold credentials.
fn unreadable(origin: &str, error: &KubeconfigError) -> ConnectError {
    unusable(origin, &error.to_string().lines().next().unwrap_or_default())
}

fn in_cluster() -> Result<Config, ConnectError> {
    let origin = "in-cluster configuration (KUBERNETES_SERVICE_HOST is set, --kubeconfig is not)";
    Config::incluster().map_err(|error| unusable(origin, &error))
}

/// What a flag cannot have.
fn refused(flag: &'static str, why: &str) -> ConnectError {
    ConnectError::Refused { flag, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_named() {
        let error = ApiServer::find(Some(Path::new("/nowhere/kubeconfig"))).await.unwrap_err();
        assert!(error.to_string().starts_with("--kubeconfig /nowhere/kubeconfig: "), "{error}");
    }

    #[tokio::test]
    async fn a_client_in_this_process_says_who_asks_as_one_over_the_network_does() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let agent = request.headers()[USER_AGENT].to_str().unwrap().to_owned();
            let version = serde_json::json!({
                "major": "1", "minor": "36", "gitVersion": agent, "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            });
            Ok::<_, BoxError>(http::Response::new(Body::from(version.to_string().into_bytes())))
        });
        let server = ApiServer::in_process(Client::new(service, "default"));
        let version = server.client().unwrap().apiserver_version().await.unwrap();
        assert_eq!(version.git_version, concat!("mooring/", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn m14_the_client_certificate_is_that_of_the_file_or_stands_in_the_kubeconfig() {
        let certificate = |data: Option<&str>, file: Option<String>| {
            let mut config = Config::new("https://api.example:6443".parse().unwrap());
            config.auth_info.client_certificate_data = data.map(str::to_owned);
            config.auth_info.client_certificate = file;
            let connection = Connection::Network(Box::new(config));
            ApiServer::over(connection, "kubeconfig".to_owned()).client_certificate()
        };
        let file = env::temp_dir().join(format!("mooring-client-certificate-{}", std::process::id()));
        std::fs::write(&file, "PEM").unwrap();
        let path = file.to_str().map(str::to_owned);
        assert_eq!(certificate(None, path.clone()).as_deref(), Some(&b"PEM"[..]));
        assert_eq!(certificate(Some("UEVN"), path).as_deref(), Some(&b"PEM"[..]));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(certificate(None, None), None);
        assert_eq!(certificate(Some("?"), None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn m14_where_what_was_refused_is_read_again_anyway_a_process_goes_on() {
        for (file, ends) in [(None, true), (Some("/of/the/cluster"), false)] {
            let mut config = Config::new("https://api.example:6443".parse().unwrap());
            config.root_cert_file = file.map(PathBuf::from);
            let server = ApiServer::over(Connection::Network(Box::new(config)), "origin".to_owned());
            for _ in 0..=6 {
                server.refusals.refused(&"401 Unauthorized");
                tokio::time::advance(LONGEST_REFUSAL / 6).await;
            }
            assert_eq!(server.out_of_date().now_or_never().is_some(), ends, "{file:?}");
        }
    }

    #[tokio::test]
    async fn a_provider_that_would_run_a_command_is_refused() {
        let provider = serde_json::json!({ "name": "gcp", "config": { "cmd-path": "/nowhere" } });
        let mut config = Config::new("https://api.example:6443".parse().unwrap());
        config.auth_info.auth_provider = serde_json::from_value(provider).unwrap();
        let server = ApiServer::over(Connection::Network(Box::new(config)), "kubeconfig".to_owned());
        let error = server.prepared().await.unwrap_err().to_string();
        assert_eq!(error, "auth-provider: kubeconfig: \"gcp\" is not supported: use a plugin (exec)");
    }

    #[tokio::test]
    async fn a_mistake_in_a_file_does_not_show_what_stands_around_it() {
        let file = env::temp_dir().join(format!("mooring-kubeconfig-{}", std::process::id()));
        std::fs::write(&file, "users:\n- user: {token: secret\n  : }\n").unwrap();
        let error = ApiServer::find(Some(&file)).await.unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(error.contains("line ") && !error.contains("secret"), "{error}");
    }
}
