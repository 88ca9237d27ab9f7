//! The listening socket: lets everybody in, and ends who has to make room.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::rustls::ServerConfig;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    certificates::OwnCertificate,
    connection::{Door, Seat, Table, serve},
    connections::{Id, Peer},
    gate::Gate,
    measures::{End, Measures},
    turns::Turns,
};

/// How long answers that are under way at shutdown may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often connections are looked at whose time may be over. No deadline is meant to be exact.
const SWEEP: Duration = Duration::from_millis(500);
/// How often certificate files are read again. KCM is told of changes, and looks each minute.
const RELOAD: Duration = Duration::from_secs(10);
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

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
                // A port that is taken is taken, whatever the family.
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
    #[must_use]
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
        let mut house = House::new(&gate);
        let turns = Arc::clone(&house.turns);
        let giving = tokio::spawn(async move { turns.give().await });
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sweep.tick(), if !house.ends.is_empty() => {
                    house.sweep();
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = sleep(ACCEPT_PAUSE) => house.sweep(),
                    }
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "could not switch off delays");
            }
            house.let_in(stream, from.ip(), &config, &gate, &stop);
        }
        drop(listener);
        reloading.abort();
        giving.abort();
        house.tasks.close();
        if timeout(DRAIN_TIMEOUT, house.tasks.wait()).await.is_err() {
            tracing::debug!("connections still open after shutdown");
        }
        for end in house.ends.into_values() {
            end.cancel();
        }
        Ok(())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Those who are in.
struct House {
    table: Table,
    turns: Arc<Turns>,
    ends: HashMap<Id, CancellationToken>,
    tasks: TaskTracker,
    measures: Measures,
}

impl House {
    fn new(gate: &Gate) -> Self {
        let measures = gate.measures().clone();
        Self {
            table: Table::default(),
            turns: Arc::default(),
            ends: HashMap::new(),
            tasks: TaskTracker::new(),
            measures,
        }
    }

    fn let_in(
        &mut self,
        stream: tokio::net::TcpStream,
        address: IpAddr,
        config: &Arc<ServerConfig>,
        gate: &Arc<Gate>,
        stop: &CancellationToken,
    ) {
        let peer = Peer::from(address);
        let (id, crowd, connections) = {
            let mut table = self.table.lock();
            let (id, crowd) = table.admit(peer, Instant::now());
            (id, crowd, table.of(peer))
        };
        if let Some(crowd) = crowd {
            self.end(crowd, End::Crowded);
        }
        let end = CancellationToken::new();
        self.ends.insert(id, end.clone());
        let seat = Arc::new(Seat::new(self.table.clone(), id));
        let door = Door { config: Arc::clone(config), turns: Arc::clone(&self.turns), connections };
        let serving = serve(stream, address, seat, door, Arc::clone(gate), stop.clone());
        self.tasks.spawn(end.run_until_cancelled_owned(serving));
        self.measures.accepted(self.table.lock().count());
    }

    /// Ends those whose time is over, and forgets those who have left.
    fn sweep(&mut self) {
        let overdue = self.table.lock().overdue(Instant::now());
        for (id, phase) in overdue {
            self.end(id, End::Overdue(phase));
        }
        let table = self.table.lock();
        self.ends.retain(|id, _| table.contains(*id));
        self.measures.open(table.count());
    }

    fn end(&mut self, id: Id, why: End) {
        if let Some(end) = self.ends.remove(&id) {
            end.cancel();
            self.measures.ended(why);
        }
    }
}

/// Reads certificates again, for ever. What cannot be used is told once.
async fn reload(gate: Arc<Gate>, own: Arc<OwnCertificate>) {
    if !own.is_in_files() && !gate.doorkeeper().is_in_file() {
        return;
    }
    let mut told = String::new();
    loop {
        sleep(RELOAD).await;
        let (gate, own) = (Arc::clone(&gate), Arc::clone(&own));
        let reading = tokio::task::spawn_blocking(move || {
            let changed = own.reload().map_err(|error| error.to_string())?;
            Ok::<_, String>((changed, gate.doorkeeper().reload()?))
        });
        match reading.await {
            Ok(Ok((false, false))) => told.clear(),
            Ok(Ok((own, authorities))) => {
                told.clear();
                tracing::info!(own, authorities, "certificates read again");
            }
            Ok(Err(problem)) if problem != told => {
                tracing::warn!(problem, "certificates cannot be read again: those before stay in use");
                told = problem;
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
