//! Credentials from a plugin of the kubeconfig (`exec`).
//!
//! In: the command. Out: credentials that all clients of a configuration share, renewed before they expire and when the
//! API server refuses them. One plugin runs at a time, apart from the requests that wait for it, and no longer than a
//! while: one that hangs keeps nothing waiting whose credentials still hold. kube's own runs for each client and blocks
//! the thread that makes it, and its errors quote what the plugin printed, which may be a token.

use std::{
    io::{self, IsTerminal},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response, StatusCode};
use k8s_openapi::{
    ByteString,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Client, Config,
    client::Body,
    config::{AuthInfo, ExecConfig, ExecInteractiveMode},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;
use tokio::{
    io::AsyncReadExt,
    process::Command,
    sync::watch,
    time::{Instant, timeout},
};
use tower::BoxError;

use super::refusals::Refusals;

/// How long a plugin may take.
const LIMIT: Duration = Duration::from_secs(30);
/// The same, if it may ask a person at the terminal.
const LIMIT_AT_A_TERMINAL: Duration = Duration::from_mins(10);
/// So long before they expire, credentials are renewed.
const EARLY: SignedDuration = SignedDuration::from_mins(1);
/// Between two runs, however they ended: each request would start one.
const PAUSE: Duration = Duration::from_secs(10);
/// Most that is read of what it prints, in bytes.
const LARGEST: u64 = 1 << 20;

/// Why there are no credentials. Never what the plugin printed.
#[derive(Clone, Debug, Error)]
#[error("the credential plugin {command:?} of the kubeconfig {why}")]
pub struct PluginError {
    command: String,
    why: String,
}

/// What a plugin has given.
struct Credentials {
    user: AuthInfo,
    expires: Option<Timestamp>,
}

impl Credentials {
    /// Whether they are over at that time, or so long before.
    fn ends(&self, now: Timestamp, early: SignedDuration) -> bool {
        self.expires.is_some_and(|expires| expires.duration_since(now) <= early)
    }
}

/// A client, and the credentials that it has.
type Made = Arc<Mutex<Option<(Arc<Credentials>, Client)>>>;

#[derive(Default)]
struct State {
    known: Option<Arc<Credentials>>,
    /// Whether the API server has refused those.
    is_refused: bool,
    last_run: Option<Instant>,
    failure: Option<String>,
    is_running: bool,
}

/// The plugin of a configuration.
pub(super) struct Plugin {
    exec: ExecConfig,
    state: Mutex<State>,
    runs: watch::Sender<()>,
}

impl Plugin {
    /// The plugin that the user of a configuration has, if no other credentials come before it.
    pub(super) fn take(user: &mut AuthInfo) -> Option<Arc<Self>> {
        let exec = user.exec.take()?;
        let is_alone = user.auth_provider.is_none()
            && user.username.is_none()
            && user.token.is_none()
            && user.token_file.is_none();
        is_alone.then(|| Arc::new(Self { exec, state: Mutex::default(), runs: watch::Sender::default() }))
    }

    /// Waits until there are credentials, or the plugin has failed.
    pub(super) async fn prepare(self: &Arc<Self>) -> Result<(), PluginError> {
        self.credentials().await.map(drop)
    }

    async fn credentials(self: &Arc<Self>) -> Result<Arc<Credentials>, PluginError> {
        let mut runs = self.runs.subscribe();
        loop {
            {
                let mut state = self.state.lock();
                let now = Timestamp::now();
                if state.known.take_if(|known| known.ends(now, SignedDuration::ZERO)).is_some() {
                    // What a run gave before they ended says nothing of what it would give now.
                    state.last_run = None;
                }
                let known = state.known.clone();
                let is_wanted = state.is_refused || known.as_ref().is_none_or(|known| known.ends(now, EARLY));
                let is_paused = state.last_run.is_some_and(|last| last.elapsed() < PAUSE);
                if is_wanted && !is_paused && !state.is_running {
                    state.is_running = true;
                    // A request that is given up must not end it: the next one would begin it anew.
                    tokio::spawn(Running(Arc::clone(self)).run());
                }
                if let Some(known) = known {
                    return Ok(known);
                }
                if !state.is_running {
                    return Err(self.error(state.failure.as_deref().unwrap_or("gave what has expired")));
                }
            }
            // The sender lives in `self`, so waiting cannot fail.
            let _ = runs.changed().await;
        }
    }

    /// The API server does not take these.
    fn refused(&self, credentials: &Arc<Credentials>) {
        let mut state = self.state.lock();
        state.is_refused |= state.known.as_ref().is_some_and(|known| Arc::ptr_eq(known, credentials));
    }

    fn error(&self, why: &str) -> PluginError {
        PluginError { command: self.exec.command.clone().unwrap_or_default(), why: why.to_owned() }
    }

    /// A client with the plugin's credentials, made anew with each of them.
    pub(super) fn client(
        self: Arc<Self>,
        config: Config,
        refusals: Refusals,
        build: impl Fn(&Config) -> Result<Client, kube::Error> + Clone + Send + Sync + 'static,
    ) -> Client {
        let (namespace, config) = (config.default_namespace.clone(), Arc::new(config));
        let made = Made::default();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (plugin, config, build) = (Arc::clone(&self), Arc::clone(&config), build.clone());
            let (made, refusals) = (Arc::clone(&made), refusals.clone());
            async move {
                let credentials = plugin.credentials().await.inspect_err(|why| refusals.refused(why))?;
                let client = {
                    let mut made = made.lock();
                    match &*made {
                        Some((of, client)) if Arc::ptr_eq(of, &credentials) => client.clone(),
                        _ => {
                            let client = build(&with(&credentials, &config))?;
                            *made = Some((Arc::clone(&credentials), client.clone()));
                            client
                        }
                    }
                };
                let response: Response<Body> = client.send(request).await?;
                if response.status() == StatusCode::UNAUTHORIZED {
                    plugin.refused(&credentials);
                }
                Ok::<_, BoxError>(response)
            }
        });
        Client::new(service, namespace)
    }
}

fn with(credentials: &Credentials, config: &Config) -> Config {
    let (given, mut config) = (credentials.user.clone(), config.clone());
    let user = &mut config.auth_info;
    user.token = given.token;
    if given.client_certificate_data.is_some() {
        user.client_certificate_data = given.client_certificate_data;
        user.client_key_data = given.client_key_data;
    }
    config
}

/// A run of the plugin. When dropped it has ended, also with the runtime on which it ran.
struct Running(Arc<Plugin>);

impl Running {
    async fn run(self) {
        let result = run(&self.0.exec).await;
        let mut state = self.0.state.lock();
        match result {
            Ok(credentials) => {
                (state.known, state.is_refused, state.failure) = (Some(Arc::new(credentials)), false, None);
            }
            Err(why) => {
                tracing::warn!(error = %self.0.error(&why), "no new credentials");
                state.failure = Some(why);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.is_running, state.last_run) = (false, Some(Instant::now()));
        drop(state);
        self.0.runs.send_replace(());
    }
}

/// Runs it. An error says what happened, and nothing of what was printed.
async fn run(exec: &ExecConfig) -> Result<Credentials, String> {
    let mode = exec.interactive_mode.as_ref();
    let is_asking = mode != Some(&ExecInteractiveMode::Never) && io::stdin().is_terminal();
    if mode == Some(&ExecInteractiveMode::Always) && !is_asking {
        return Err("wants to ask a person, and there is no terminal".to_owned());
    }
    let cluster = exec.cluster.as_ref().filter(|_| exec.provide_cluster_info);
    let told = json!({
        "apiVersion": exec.api_version,
        "kind": "ExecCredential",
        "spec": { "interactive": is_asking, "cluster": cluster },
    });
    let mut command = Command::new(exec.command.as_deref().unwrap_or_default());
    command.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", told.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.stdin(if is_asking { Stdio::inherit() } else { Stdio::null() });
    command.stdout(Stdio::piped()).kill_on_drop(true);
    // For a person to read. In a log it could be a token.
    command.stderr(if io::stderr().is_terminal() { Stdio::inherit() } else { Stdio::null() });
    let mut child = command.spawn().map_err(|error| format!("cannot be run: {error}"))?;
    let limit = if is_asking { LIMIT_AT_A_TERMINAL } else { LIMIT };
    let running = async {
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(LARGEST).read_to_end(&mut printed).await?;
        }
        Ok::<_, io::Error>((child.wait().await?, printed))
    };
    match timeout(limit, running).await {
        Err(_) => Err(format!("did not end within {} s and was ended", limit.as_secs())),
        Ok(Err(error)) => Err(format!("cannot be read: {error}")),
        Ok(Ok((status, printed))) => judge(status, &printed, Timestamp::now()),
    }
}

fn judge(status: ExitStatus, printed: &[u8], now: Timestamp) -> Result<Credentials, String> {
    #[derive(Deserialize)]
    struct ExecCredential {
        status: Given,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Given {
        expiration_timestamp: Option<String>,
        token: Option<String>,
        client_certificate_data: Option<String>,
        client_key_data: Option<String>,
    }
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    let unreadable = || "printed something other than an ExecCredential with a status".to_owned();
    let ExecCredential { status: given } = serde_saphyr::from_slice(printed).map_err(|_| unreadable())?;
    let has_pair = given.client_certificate_data.is_some() && given.client_key_data.is_some();
    if given.token.is_none() && !has_pair {
        return Err("gave neither a token nor a certificate with its key".to_owned());
    }
    let data = |pem: Option<String>| pem.map(|pem| ByteString(pem.into_bytes()));
    let user = json!({
        "token": given.token,
        "client-certificate-data": data(given.client_certificate_data),
        "client-key-data": data(given.client_key_data),
    });
    let user = serde_json::from_value(user).map_err(|_| unreadable())?;
    let expires = given.expiration_timestamp.map(|time| time.parse()).transpose();
    let credentials = Credentials { user, expires: expires.map_err(|_| unreadable())? };
    if credentials.ends(now, SignedDuration::ZERO) {
        return Err("gave what has expired".to_owned());
    }
    Ok(credentials)
}

#[cfg(test)]
mod tests;
