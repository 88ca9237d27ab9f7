//! The listening socket: lets every client in, and ends who has to make room.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::ServerConfig;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{certificates::OwnCertificate, connection::serve, connections::Connections, gate::Gate};

/// How long answers that are under way at shutdown may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After how long a lack that goes on is logged again.
const ACCEPT_TOLD_AGAIN: Duration = Duration::from_mins(10);
/// How often certificate files are read again. KCM is told of changes, and looks each minute.
const RELOAD: Duration = Duration::from_secs(10);
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

/// Bytes of answers that the kernel holds for a peer that does not read them, before it doubles them for its own
/// use: they count as this process's memory. Else it would hold megabytes.
const SEND_BUFFER: usize = 128 * 1024;

/// The address cannot be served on.
#[derive(Debug, Error)]
#[error("--bind-address {} --secure-port {}: {error}", address.ip(), address.port())]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

/// A bound socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds the socket. An unspecified address, of either family, means all of both, and of IPv4 alone
    /// where there is no IPv6: so Go does what KCM's flag says.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let port = address.port();
        let listening = if address.ip().is_unspecified() {
            listen(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)).or_else(|error| {
                // A port that is taken is taken for both address families.
                if error.kind() == io::ErrorKind::AddrInUse {
                    return Err(error);
                }
                listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))
            })
        } else {
            listen(address)
        };
        let failed = |error| BindError { address, error };
        let listener = listening.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop, on the runtime that runs this.
    ///
    /// # Errors
    /// The socket cannot be used on it.
    pub async fn run(
        self,
        gate: Arc<Gate>,
        config: ServerConfig,
        own: Arc<OwnCertificate>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let config = Arc::new(config);
        let reloading = tokio::spawn(stop.clone().run_until_cancelled_owned(reload(Arc::clone(&gate), own)));
        let connections = Arc::new(Connections::new(&gate.options.node_addresses, gate.measures.clone()));
        let tasks = TaskTracker::new();
        // Ends what is still open after the drain.
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        // A lack of file descriptors fails ten times a second: it is told when it begins, and every ten minutes.
        let (mut failures, mut told) = (0_u64, None::<Instant>);
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    failures += 1;
                    if told.is_none_or(|told| told.elapsed() >= ACCEPT_TOLD_AGAIN) {
                        told = Some(Instant::now());
                        tracing::warn!(attempt = failures, %error, "could not accept a connection");
                    }
                    stop.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "could not set TCP_NODELAY");
            }
            let place = connections.admit(from.ip());
            let serving = serve(stream, from.ip(), Arc::clone(&config), Arc::clone(&gate), stop.clone());
            let over = over.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = serving => {}
                    () = place.end.cancelled() => {}
                    () = over.cancelled() => {}
                }
            });
        }
        drop(listener);
        reloading.abort();
        tasks.close();
        if timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
            tracing::debug!("connections still open after shutdown");
        }
        Ok(())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Independent of the system's default.
        socket.set_only_v6(false)?;
    }
    // The connections have what their listener has.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What was read again, and whether it has changed or what is wrong with it.
type Reloaded = [(&'static str, Result<bool, String>); 2];

/// Reads certificates again, for ever. Tells a problem once, as long as it is the same.
async fn reload(gate: Arc<Gate>, own: Arc<OwnCertificate>) {
    if !own.is_in_files() && !gate.auth.certificates.is_in_file() {
        return;
    }
    let mut told: [Option<String>; 2] = Default::default();
    loop {
        sleep(RELOAD).await;
        let (gate, own) = (Arc::clone(&gate), Arc::clone(&own));
        let Ok(read) = tokio::task::spawn_blocking(move || reload_once(&gate, &own)).await else { continue };
        for ((what, read), told) in read.into_iter().zip(&mut told) {
            if read == Ok(true) {
                tracing::info!(what, "reloaded");
            }
            let problem = read.err();
            if let Some(problem) = problem.as_ref().filter(|_| problem != *told) {
                tracing::warn!(what, problem, "could not reload: the previous content stays in use");
            }
            *told = problem;
        }
    }
}

/// Reads the server's certificate and the authorities of clients again; what is wrong with one keeps no client from
/// the other. Blocks.
fn reload_once(gate: &Gate, own: &OwnCertificate) -> Reloaded {
    let certificate = own.reload().map_err(|error| error.to_string());
    [
        ("the server's certificate", certificate),
        ("the authorities of client certificates", gate.auth.certificates.reload()),
    ]
}

#[cfg(test)]
mod tests;
